//! Reads the kernel's records about a socket that a program has shown, and closes the socket.
//!
//! ```text
//!   request ── ReceivedFd ──► SocketReader ──► thread of the session ── Found, or a reason ──► Broker
//! ```
//!
//! Several of these calls wait for the lock of the socket, and its program can hold that lock for any time. The last close of a socket that
//! lingers waits for the other side. A session therefore has a thread of its own while sockets of it are read, and no other session waits
//! for that thread.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isthmus_layout::control::Owner;
use isthmus_layout::reason::Reason;
use isthmus_link::connection_record::Recorder;
use isthmus_platform::tcp_socket;
use rustix::net::{AddressFamily, SocketAddrAny, SocketType, ipproto, sockopt};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use super::pairing::{EndEvidence, Evidence, NoRecord, TimestampClock};
use super::records::SocketName;
use crate::fd_reaper::ReceivedFd;

/// The number of sockets of one session that may wait for its thread.
const PENDING_MAX: usize = 512;

/// The number of threads of one user. Usually there are few, because a socket is read in microseconds.
const THREADS_MAX: usize = 256;

/// Bytes of the stack of a thread.
const STACK_BYTES: usize = 64 << 10;

/// The state that a request expects of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) enum SocketRole {
    /// The socket listens.
    Listener,
    /// The socket was connected within this time, in milliseconds.
    Connector { since_ms: u64, until_ms: u64 },
    /// The socket was accepted.
    Acceptor,
}

/// The facts about a socket.
#[derive(Debug)]
pub(super) enum Found {
    /// The address at which the socket listens.
    Listener(SocketAddr),
    /// The evidence about a connected socket.
    Connected(Evidence),
}

/// The result of reading a socket.
#[derive(Debug)]
pub(super) struct SocketRead {
    /// The inode and the addresses; none if it is not a TCP socket.
    pub(super) name: Option<SocketName>,
    /// The facts, or why it gets no stream.
    pub(super) found: Result<Found, Reason>,
}

#[derive(Debug)]
struct Job {
    socket: OwnedFd,
    role: SocketRole,
    recorder: Option<Arc<Recorder>>,
    done: oneshot::Sender<SocketRead>,
}

/// The sockets of a session that are to be read.
#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// A thread reads them.
    is_served: bool,
}

/// Reads the sockets of a session, in order.
#[derive(Debug)]
pub(super) struct SocketReader {
    queue: Arc<Mutex<Queue>>,
    threads: ThreadCount,
}

/// The number of threads of one user.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadCount(Arc<AtomicUsize>);

impl ThreadCount {
    /// True if the user has no session and no thread any more.
    pub(super) fn is_unused(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl SocketReader {
    /// Creates the reader of a session, with the count of its user.
    pub(super) fn new(threads: ThreadCount) -> Self {
        Self { queue: Arc::default(), threads }
    }

    /// Begins to read a socket, which is closed afterwards.
    pub(super) fn read(
        &self,
        owner: Owner,
        socket: ReceivedFd,
        role: SocketRole,
        recorder: Option<Arc<Recorder>>,
    ) -> Result<oneshot::Receiver<SocketRead>, Reason> {
        let mut queue = lock(&self.queue);
        if queue.jobs.len() >= PENDING_MAX {
            return Err(Reason::TooManyRequests);
        }
        let (done, result) = oneshot::channel();
        // A plain close is right here. The closing thread would change how the program's own socket lingers.
        queue.jobs.push_back(Job { socket: socket.into_fd(), role, recorder, done });
        if !queue.is_served {
            if let Err(reason) = self.serve() {
                // Nothing else is queued. The closing thread is the only one left.
                queue.jobs.drain(..).for_each(|job| drop(ReceivedFd::new(owner.0, job.socket)));
                return Err(reason);
            }
            queue.is_served = true;
        }
        Ok(result)
    }

    /// Starts the thread, which ends when no socket is left.
    fn serve(&self) -> Result<(), Reason> {
        let (queue, threads) = (Arc::clone(&self.queue), self.threads.clone());
        if threads.0.fetch_add(1, Relaxed) >= THREADS_MAX {
            threads.0.fetch_sub(1, Relaxed);
            return Err(Reason::TooManyRequests);
        }
        let serve = move || {
            while let Some(Job { socket, role, recorder, done }) = next(&queue) {
                let result = read(&socket, role, recorder.as_deref());
                drop(socket);
                let _ = done.send(result); // The session may have ended.
            }
            threads.0.fetch_sub(1, Relaxed);
        };
        let thread = std::thread::Builder::new().name("sockets".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(serve).map(drop).map_err(|_| {
            self.threads.0.fetch_sub(1, Relaxed);
            Reason::KernelRefused
        })
    }
}

/// Returns the next socket. None ends the thread.
fn next(queue: &Mutex<Queue>) -> Option<Job> {
    let mut queue = lock(queue);
    let job = queue.jobs.pop_front();
    queue.is_served = job.is_some();
    job
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a socket.
fn read(socket: &OwnedFd, role: SocketRole, recorder: Option<&Recorder>) -> SocketRead {
    match check_tcp(socket) {
        Some(()) => SocketRead { name: socket_name(socket), found: facts(socket, role, recorder) },
        None => SocketRead { name: None, found: Err(Reason::StreamNotTcp) },
    }
}

fn socket_name(socket: &OwnedFd) -> Option<SocketName> {
    let inode = rustix::fs::fstat(socket).ok()?.st_ino;
    let local = rustix::net::getsockname(socket).ok().and_then(canonical)?;
    let peer = rustix::net::getpeername(socket).ok().flatten().and_then(canonical);
    Some(SocketName { inode, local, peer })
}

fn facts(socket: &OwnedFd, role: SocketRole, recorder: Option<&Recorder>) -> Result<Found, Reason> {
    let wanted = match role {
        SocketRole::Listener => tcp_socket::LISTEN,
        SocketRole::Connector { .. } | SocketRole::Acceptor => tcp_socket::ESTABLISHED,
    };
    if tcp_socket::state(socket) != Ok(wanted) {
        return Err(Reason::StreamWrongState);
    }
    let local = rustix::net::getsockname(socket).ok().and_then(canonical).ok_or(Reason::StreamWrongState)?;
    match role {
        SocketRole::Listener => Ok(Found::Listener(local)),
        _ => evidence(socket, role, local, recorder).map(Found::Connected),
    }
}

/// Checks that the descriptor is a TCP socket over IPv4 or IPv6.
fn check_tcp(socket: &OwnedFd) -> Option<()> {
    let family = sockopt::socket_domain(socket).ok()?;
    let is_stream = sockopt::socket_type(socket).ok()? == SocketType::STREAM;
    let is_tcp = sockopt::socket_protocol(socket).ok()? == Some(ipproto::TCP);
    (matches!(family, AddressFamily::INET | AddressFamily::INET6) && is_stream && is_tcp).then_some(())
}

fn evidence(
    socket: &OwnedFd,
    role: SocketRole,
    local: SocketAddr,
    recorder: Option<&Recorder>,
) -> Result<Evidence, Reason> {
    let peer = rustix::net::getpeername(socket).ok().flatten().and_then(canonical).ok_or(Reason::StreamWrongState)?;
    let cookie = sockopt::socket_cookie(socket).map_err(|_| Reason::StreamUnidentified)?;
    let record = match recorder {
        None => Err(NoRecord::NoRecorder),
        // The data of the SYN moves the number of one end. The other one may have been established before that.
        Some(_) if tcp_socket::had_data_in_syn(socket) != Ok(false) => Err(NoRecord::FastOpen),
        Some(recorder) => recorder.map.read(socket).ok().flatten().ok_or(NoRecord::Unrecorded),
    };
    // Sockets that are bound to different interfaces may have the same addresses in one namespace.
    let netns = tcp_socket::netns_cookie(socket).ok().filter(|_| tcp_socket::bound_interface(socket) == Ok(0));
    if netns.is_none() && record.is_err() {
        return Err(Reason::StreamUnidentified);
    }
    let end = match role {
        SocketRole::Connector { since_ms, until_ms } => {
            let clock = tcp_socket::timestamp_ms(socket).ok();
            let clock = clock.map(|value| TimestampClock { value, at_ms: now_ms() });
            EndEvidence::Connector { since_ms, until_ms, clock }
        }
        _ => EndEvidence::Acceptor {
            syn: tcp_socket::take_saved_syn(socket).ok().and_then(|headers| syn_timestamp(&headers)),
        },
    };
    Ok(Evidence { local, peer, socket: cookie, netns, record, end })
}

/// The address, where an IPv4 address in an IPv6 one is the former, and without a scope.
fn canonical(address: SocketAddrAny) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(address).ok()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// The time in milliseconds, by the clock of TCP timestamps.
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanoseconds) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    seconds.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000)
}

/// Returns the timestamp in the headers of a SYN: those of IP, and of TCP behind them. None if there is none.
fn syn_timestamp(headers: &[u8]) -> Option<u32> {
    const TCP: u8 = 6;
    let (ip_bytes, protocol) = match headers.first()? >> 4 {
        4 => (usize::from(headers[0] & 15) * 4, *headers.get(9)?),
        6 => (40, *headers.get(6)?),
        _ => return None,
    };
    let tcp = headers.get(ip_bytes..).filter(|_| protocol == TCP)?;
    let tcp_bytes = usize::from(tcp.get(12)? >> 4) * 4;
    let mut options = tcp.get(20..tcp_bytes)?;
    loop {
        match *options {
            [0, ..] | [] => return None,
            [1, ref rest @ ..] => options = rest,
            [8, 10, a, b, c, d, ..] => return Some(u32::from_be_bytes([a, b, c, d])),
            [_, bytes, ..] if bytes >= 2 => options = options.get(usize::from(bytes)..)?,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd as _;

    fn connector(role: SocketRole, socket: &TcpStream) -> Evidence {
        let Ok(Found::Connected(evidence)) = read(&socket.as_fd().try_clone_to_owned().unwrap(), role, None).found
        else {
            panic!("no evidence")
        };
        evidence
    }

    #[test]
    fn evidence_of_both_ends_is_a_pair() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        tcp_socket::save_syns(&listener).unwrap();
        let since_ms = now_ms();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let until_ms = now_ms();
        let (server, address) = listener.accept().unwrap();
        let a = connector(SocketRole::Connector { since_ms, until_ms }, &client);
        let b = connector(SocketRole::Acceptor, &server);
        assert_eq!((a.addresses(), b.local), (b.mirrored(), listener.local_addr().unwrap()));
        assert_eq!((a.local, a.netns), (address, b.netns));
        assert_ne!(a.socket, b.socket);
        assert!(matches!(b.end, EndEvidence::Acceptor { syn: Some(_) }), "{b:?}");
        // The time of the SYN holds across namespaces, too.
        let (a, mut b) = (a, b);
        b.netns = b.netns.map(|netns| netns + 1);
        let (mut a_far, owner) = (a.clone(), Owner(1));
        (a_far.local, a_far.peer) = (([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into());
        (b.local, b.peer) = (a_far.peer, a_far.local);
        let candidate = |evidence| super::super::pairing::Candidate { evidence, owner };
        let decision = super::super::pairing::decide(candidate(&b), &[candidate(&a_far)], true);
        assert_eq!(decision, super::super::pairing::Decision::Pair(0), "{a_far:?} {b:?}");
    }

    #[test]
    fn other_descriptors_are_named() {
        let reason = |socket: OwnedFd, role| read(&socket, role, None).found.map(|_| ()).unwrap_err();
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert_eq!(reason(udp.into(), SocketRole::Acceptor), Reason::StreamNotTcp);
        assert_eq!(reason(rustix::pipe::pipe().unwrap().0, SocketRole::Listener), Reason::StreamNotTcp);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert_eq!(reason(listener.try_clone().unwrap().into(), SocketRole::Acceptor), Reason::StreamWrongState);
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(reason(client.try_clone().unwrap().into(), SocketRole::Listener), Reason::StreamWrongState);
        let (server, _) = listener.accept().unwrap();
        drop(client);
        while tcp_socket::state(&server) == Ok(tcp_socket::ESTABLISHED) {
            std::thread::yield_now();
        }
        assert_eq!(reason(server.into(), SocketRole::Acceptor), Reason::StreamWrongState);
    }

    proptest! {
        #[test]
        fn any_bytes_are_headers_of_a_syn_or_not(headers in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = syn_timestamp(&headers);
        }
    }
}
