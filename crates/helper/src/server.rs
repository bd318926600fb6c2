//! The helper's side: carries out the requests of its connections.
//!
//! ```text
//!   listener ── a thread for each connection ── request ──┬── here
//!                                                         └── a thread that enters the namespace and ends after the request
//! ```
//!
//! A connection waits for nothing but its own requests. Closing a descriptor that a client sent may block if its file system does; that delays
//! this connection only. What the kernel created for a connection has no owner here: an interface is gone when the client has closed its
//! descriptor, whether or not the helper runs.

mod interfaces;
mod namespace;
mod record_store;
mod route_socket;
mod sandbox;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use isthmus_link::connection_record::Recorder;
use isthmus_platform::seqpacket::{self, ReceiveError, SendError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use crate::protocol::{HelperInfo, Malformed, PACKET_BYTES_MAX, Reply, Request, VERSION};
use crate::refusal::{Refusal, RefusalReason};
use interfaces::{Existing, Interfaces};
pub use record_store::RecordStore;
pub use sandbox::{Abilities, SandboxError, enter as enter_sandbox, enter_starter};

/// The maximum number of connections at a time. A host has one daemon; while it restarts, it has two.
pub const CONNECTIONS_MAX: usize = 8;

/// Accepts connections until the listening socket fails.
pub fn serve_listener(listener: &OwnedFd, abilities: Abilities, records: RecordStore) -> io::Result<()> {
    let places = Arc::new(AtomicUsize::new(CONNECTIONS_MAX));
    let existing = Arc::new(Existing::default());
    let records = Arc::new(records);
    loop {
        wait_readable(listener)?;
        let socket = match seqpacket::accept(listener) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let Some(place) = Place::take(&places) else {
            tracing::warn!("a connection was closed: there are {CONNECTIONS_MAX}");
            continue;
        };
        let interfaces = Interfaces::new(Arc::clone(&existing));
        let records = Arc::clone(&records);
        let serve = move || {
            serve(&socket, Connection::new(abilities, interfaces, records));
            drop(place);
        };
        if let Err(error) = thread::Builder::new().name("connection".to_owned()).spawn(serve) {
            tracing::warn!(%error, "a connection was closed: its thread cannot start");
        }
    }
}

/// The right to have one of the connections; given back when it ends, by a panic as well.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(places: &Arc<AtomicUsize>) -> Option<Self> {
        let taken = places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
        taken.ok().map(|_| Self(Arc::clone(places)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Serves one connection, the only one, until the client closes it.
pub fn serve_connection(socket: &OwnedFd, abilities: Abilities, records: RecordStore) {
    serve(socket, Connection::new(abilities, Interfaces::new(Arc::default()), Arc::new(records)));
}

fn serve(socket: &OwnedFd, mut connection: Connection) {
    let (mut packet, mut descriptors) = ([0; PACKET_BYTES_MAX], Vec::new());
    loop {
        if let Err(error) = wait_readable(socket) {
            break tracing::warn!(%error, "waiting for requests");
        }
        let received = match seqpacket::receive(socket, &mut packet, &mut descriptors, false) {
            Ok(bytes) => Request::parse(&packet[..bytes], descriptors.len()),
            Err(ReceiveError::TooLong) => Err(Malformed::Length { have: packet.len() + 1 }),
            Err(ReceiveError::Empty) => continue,
            Err(ReceiveError::Closed) => break,
            Err(error @ (ReceiveError::DescriptorsLost { .. } | ReceiveError::Refused(_))) => {
                break tracing::warn!(%error, "a connection ends");
            }
        };
        let (reply, attachment) = connection.reply(received, descriptors.pop());
        descriptors.clear();
        let sent = seqpacket::send(socket, &reply.emit(), &attachment.descriptors());
        match sent {
            Ok(()) => {}
            Err(SendError::Closed) => break,
            Err(error) => break tracing::warn!(%error, "a connection ends: its replies are not read"),
        }
    }
    connection.refusals.log();
}

pub(crate) fn wait_readable(socket: &OwnedFd) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The state of a connection.
struct Connection {
    abilities: Abilities,
    interfaces: Interfaces,
    records: Arc<RecordStore>,
    refusals: Refusals,
}

/// The descriptors that the packet of a reply carries.
enum Attachment {
    Nothing,
    Tap(OwnedFd),
    Recorder(Arc<Recorder>),
}

impl Attachment {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Tap(tap) => vec![tap.as_fd()],
            Self::Recorder(recorder) => {
                let [recording, marking] = &recorder.links;
                vec![recorder.map.as_fd(), recording.as_fd(), marking.as_fd()]
            }
        }
    }
}

impl Connection {
    fn new(abilities: Abilities, interfaces: Interfaces, records: Arc<RecordStore>) -> Self {
        Self { abilities, interfaces, records, refusals: Refusals::default() }
    }

    /// Carries out a request. Returns the reply, and the descriptors for its packet.
    fn reply(&mut self, received: Result<Request, Malformed>, descriptor: Option<OwnedFd>) -> (Reply, Attachment) {
        let done = received.map_err(Refusal::from).and_then(|request| self.carry_out(request, descriptor));
        done.unwrap_or_else(|refusal| {
            self.refusals.count(refusal);
            (Reply::Refused(refusal), Attachment::Nothing)
        })
    }

    fn carry_out(&mut self, request: Request, descriptor: Option<OwnedFd>) -> Result<(Reply, Attachment), Refusal> {
        let done = |()| (Reply::Done, Attachment::Nothing);
        match request {
            Request::Hello { version: VERSION } => Ok((Reply::Hello(self.hello()), Attachment::Nothing)),
            Request::Hello { .. } => Err(RefusalReason::VersionUnsupported.into()),
            Request::OpenTap { tap, namespace: _ } => {
                if descriptor.is_some() && !self.abilities.may_enter_namespaces {
                    return Err(RefusalReason::NamespacesOff.into());
                }
                if tap.bridge.is_some() && !self.abilities.may_join_bridges {
                    return Err(RefusalReason::BridgesOff.into());
                }
                let (info, tap) = self.interfaces.open_tap(&tap, descriptor)?;
                Ok((Reply::TapOpened(info), Attachment::Tap(tap)))
            }
            Request::SetMtu { interface, mtu } => self.interfaces.set_mtu(interface, mtu).map(done),
            Request::SetUp { interface, is_up } => self.interfaces.set_up(interface, is_up).map(done),
            Request::AddAddress { interface, address } => self.interfaces.add_address(interface, address).map(done),
            Request::DelAddress { interface, address } => self.interfaces.del_address(interface, address).map(done),
            Request::Release { interface } => self.interfaces.release(interface).map(done),
            Request::RecordConnections if self.abilities.may_record_connections => {
                Ok((Reply::ConnectionsRecorded, Attachment::Recorder(self.records.recorder()?)))
            }
            Request::RecordConnections => Err(RefusalReason::ConnectionRecordsOff.into()),
        }
    }

    fn hello(&self) -> HelperInfo {
        HelperInfo {
            version: VERSION,
            has_net_admin: self.abilities.has_net_admin,
            has_namespaces: self.abilities.may_enter_namespaces,
            has_tun: isthmus_link::has_tun_driver(),
        }
    }
}

/// Counts the refusals of a connection by reason. The first of each reason is logged at once, the numbers when the connection ends.
#[derive(Default)]
struct Refusals([u64; RefusalReason::ALL.len()]);

impl Refusals {
    fn count(&mut self, refusal: Refusal) {
        let place = RefusalReason::ALL.iter().position(|reason| *reason == refusal.reason);
        let count = &mut self.0[place.expect("ALL has every reason")];
        *count += 1;
        if *count == 1 {
            tracing::warn!(reason = refusal.reason.name(), "refused: {refusal}");
        }
    }

    fn log(&self) {
        for (reason, count) in RefusalReason::ALL.iter().zip(self.0).filter(|(_, count)| *count > 1) {
            tracing::info!(reason = reason.name(), count, "refusals of a connection that has ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{InterfaceNumber, NamespaceChoice};
    use proptest::prelude::*;

    fn reply_to(socket: &OwnedFd, packet: &[u8], descriptors: &[rustix::fd::BorrowedFd<'_>]) -> Reply {
        seqpacket::send(socket, packet, descriptors).unwrap();
        wait_readable(socket).unwrap();
        let (mut reply, mut descriptors) = ([0; PACKET_BYTES_MAX], Vec::new());
        let bytes = seqpacket::receive(socket, &mut reply, &mut descriptors, false).unwrap();
        Reply::parse(&reply[..bytes], descriptors.len()).unwrap()
    }

    /// Serves a connection in a thread of this process, without privileges and without filter.
    fn with_connection(test: impl FnOnce(&OwnedFd)) {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let abilities = Abilities::default();
        let server = thread::spawn(move || serve_connection(&theirs, abilities, RecordStore::default()));
        test(&ours);
        drop(ours);
        server.join().unwrap();
    }

    #[test]
    fn malformed_packets_of_every_length_are_refused_and_end_nothing() {
        with_connection(|socket| {
            let malformed = Reply::Refused(RefusalReason::RequestMalformed.into());
            for len in 1..=2 * PACKET_BYTES_MAX {
                assert_eq!(reply_to(socket, &vec![0xA5; len], &[]), malformed, "{len} bytes");
            }
            let null = std::fs::File::open("/dev/null").unwrap();
            let hello = Request::Hello { version: VERSION }.emit();
            assert_eq!(reply_to(socket, &hello, &[null.as_fd()]), malformed);
            assert_eq!(reply_to(socket, &hello, &[null.as_fd(); 3]), malformed);
            assert!(matches!(reply_to(socket, &hello, &[]), Reply::Hello(info) if info.version == VERSION));
        });
    }

    #[test]
    fn requests_for_interfaces_that_were_not_created_are_refused() {
        with_connection(|socket| {
            let (interface, address) = (InterfaceNumber(0), "10.0.0.1/24".parse().unwrap());
            let mtu = crate::Mtu::new(1500).unwrap();
            for request in [
                Request::SetMtu { interface, mtu },
                Request::SetUp { interface, is_up: true },
                Request::AddAddress { interface, address },
                Request::DelAddress { interface, address },
                Request::Release { interface },
            ] {
                let refused = Reply::Refused(RefusalReason::NoSuchInterface.into());
                assert_eq!(reply_to(socket, &request.emit(), &[]), refused, "{request:?}");
            }
            let refused = Reply::Refused(RefusalReason::VersionUnsupported.into());
            assert_eq!(reply_to(socket, &Request::Hello { version: VERSION + 1 }.emit(), &[]), refused);
        });
    }

    #[test]
    fn namespace_is_refused_without_the_ability() {
        with_connection(|socket| {
            let tap = crate::TapRequest {
                name: crate::InterfaceName::new("tap0").unwrap(),
                mac: crate::MacAddress::new([2; 6]).unwrap(),
                mtu: crate::Mtu::new(1500).unwrap(),
                is_up: false,
                addresses: crate::AddressList::default(),
                gso_max_size: None,
                bridge: None,
            };
            let request = Request::OpenTap { tap, namespace: NamespaceChoice::Attached };
            let namespace = std::fs::File::open("/proc/self/ns/net").unwrap();
            let refused = Reply::Refused(RefusalReason::NamespacesOff.into());
            assert_eq!(reply_to(socket, &request.emit(), &[namespace.as_fd()]), refused);
        });
    }

    #[test]
    fn places_come_back() {
        let places = Arc::new(AtomicUsize::new(1));
        let place = Place::take(&places).unwrap();
        assert!(Place::take(&places).is_none());
        drop(place);
        assert!(Place::take(&places).is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn random_packets_end_nothing(packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 1..20)) {
            with_connection(|socket| {
                for packet in &packets {
                    reply_to(socket, packet, &[]);
                }
                let hello = Request::Hello { version: VERSION }.emit();
                assert!(matches!(reply_to(socket, &hello, &[]), Reply::Hello(_)));
            });
        }
    }
}
