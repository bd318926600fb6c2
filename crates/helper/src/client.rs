//! The daemon's side: one request at a time, with a deadline.
//!
//! All calls block, up to [`REPLY_TIMEOUT`]. A connection on which a reply is late, malformed or missing is not used again, so that no reply is
//! taken for that of a later request.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use isthmus_link::connection_record::{RecordMap, Recorder};
use isthmus_platform::seqpacket::{self, ReceiveError, SendError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use crate::permissions::Permissions;
use crate::protocol::{
    HelperInfo, InterfaceNumber, Malformed, NamespaceChoice, PACKET_BYTES_MAX, Reply, Request, START, TapInfo,
    TapRequest, VERSION,
};
use crate::refusal::{Refusal, RefusalReason};
use crate::values::{InterfaceAddress, Mtu};

/// The time within which the helper has to reply.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why the helper did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// No helper listens.
    #[error(
        "isthmus-helper is not running: no helper listens at {}; `systemctl enable --now isthmus-helper.socket` starts it, \
         and an isthmusd that is started as root starts its own", path.display()
    )]
    NotRunning {
        /// The path of its socket.
        path: PathBuf,
    },
    /// The socket exists and belongs to another user.
    #[error("{} may be opened by root and the user of the system's isthmusd only", path.display())]
    NotAllowed {
        /// The path of the socket.
        path: PathBuf,
    },
    /// Connecting failed for another reason.
    #[error("connecting to isthmus-helper at {}: {source}", path.display())]
    Connect {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        source: Errno,
    },
    /// The program could not be started.
    #[error("starting {}: {source}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The helper refused the request.
    #[error("isthmus-helper: {0}")]
    Refused(#[from] Refusal),
    /// The helper did not reply in time.
    #[error("isthmus-helper has not replied for {} s", REPLY_TIMEOUT.as_secs())]
    Timeout,
    /// The helper has ended, or has closed the connection.
    #[error("isthmus-helper has closed the connection (`journalctl -u isthmus-helper` may say why)")]
    Closed,
    /// The reply was not understood.
    #[error("isthmus-helper sent {0}: isthmusd and isthmus-helper are of different versions, restart both")]
    Reply(#[from] Malformed),
    /// The reply belongs to another kind of request.
    #[error("isthmus-helper replied to another request")]
    OutOfPlace,
    /// Sending, receiving or waiting failed.
    #[error("exchanging packets with isthmus-helper: {0}")]
    Socket(#[source] Errno),
}

/// A TAP interface that the helper has created.
#[derive(Debug)]
pub struct OpenedTap {
    /// The TAP device, non-blocking, with a virtio-net header of 12 bytes. The interface is gone when all copies of it are closed.
    pub descriptor: OwnedFd,
    /// Its number, its index and what the kernel accepted.
    pub info: TapInfo,
}

/// A process that keeps the privileges of a helper, and starts one for each connection. It ends with this value.
///
/// The daemon starts it before it gives up its own capabilities. It can then have another helper when one has ended.
#[derive(Debug)]
pub struct HelperStarter {
    socket: OwnedFd,
    child: Child,
}

impl HelperStarter {
    /// Starts `program` as a child. The child has to inherit CAP_NET_ADMIN, and for other network namespaces CAP_SYS_ADMIN.
    pub fn spawn(program: &Path, permissions: Permissions) -> Result<Self, HelperError> {
        let (socket, theirs) = seqpacket::pair().map_err(HelperError::Socket)?;
        let mut command = Command::new(program);
        command.arg("--starter").args(permissions.options());
        command.stdin(theirs).stdout(Stdio::null()).process_group(0); // Ctrl-C in a terminal is for the daemon.
        let child = command.spawn();
        let child = child.map_err(|source| HelperError::Spawn { program: program.to_owned(), source })?;
        Ok(Self { socket, child }) // `command` holds the other end, and ends here.
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process has ended, so that it starts no helper any more.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Starts a helper that serves a connection alone, and ends with it. A helper that was started before is killed.
    pub fn connect(&mut self) -> Result<HelperClient, HelperError> {
        let (ours, theirs) = seqpacket::pair().map_err(HelperError::Socket)?;
        seqpacket::send(&self.socket, START, &[theirs.as_fd()]).map_err(send_error)?;
        drop(theirs); // Its last copy is the helper's, so that the connection ends with the helper.
        HelperClient::from_socket(ours)
    }
}

impl Drop for HelperStarter {
    fn drop(&mut self) {
        // It ends anyway when its socket closes, and its helper with the connection. Errors mean that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection to the helper.
#[derive(Debug)]
pub struct HelperClient {
    /// None once a reply was late or malformed.
    socket: Option<OwnedFd>,
    info: HelperInfo,
}

impl HelperClient {
    /// Connects to the helper that listens at `path`.
    pub fn connect(path: &Path) -> Result<Self, HelperError> {
        let path_buf = || path.to_owned();
        let socket = seqpacket::connect_within(path, REPLY_TIMEOUT).map_err(|errno| match errno {
            Errno::NOENT | Errno::CONNREFUSED => HelperError::NotRunning { path: path_buf() },
            Errno::ACCESS | Errno::PERM => HelperError::NotAllowed { path: path_buf() },
            source => HelperError::Connect { path: path_buf(), source },
        })?;
        Self::from_socket(socket)
    }

    /// Uses a connected socket.
    pub fn from_socket(socket: OwnedFd) -> Result<Self, HelperError> {
        rustix::io::ioctl_fionbio(&socket, true).map_err(HelperError::Socket)?;
        let info = HelperInfo { version: VERSION, has_net_admin: false, has_namespaces: false, has_tun: false };
        let mut client = Self { socket: Some(socket), info };
        client.info = client.hello()?;
        if client.info.version == VERSION {
            Ok(client)
        } else {
            Err(Refusal::from(RefusalReason::VersionUnsupported).into())
        }
    }

    /// Returns version and abilities of the helper, as they were when the connection was made.
    pub fn info(&self) -> HelperInfo {
        self.info
    }

    /// Asks for version and abilities of the helper.
    pub fn hello(&mut self) -> Result<HelperInfo, HelperError> {
        match self.ask(&Request::Hello { version: VERSION }, None)? {
            (Reply::Hello(info), _) => Ok(info),
            _ => Err(self.out_of_place()),
        }
    }

    /// Creates a TAP interface, in the network namespace of the helper or in that of the descriptor.
    pub fn open_tap(&mut self, tap: TapRequest, namespace: Option<BorrowedFd<'_>>) -> Result<OpenedTap, HelperError> {
        let choice = if namespace.is_some() { NamespaceChoice::Attached } else { NamespaceChoice::Here };
        match self.ask(&Request::OpenTap { tap, namespace: choice }, namespace)? {
            (Reply::TapOpened(info), mut descriptors) => match descriptors.pop() {
                Some(descriptor) => Ok(OpenedTap { descriptor, info }),
                None => Err(self.out_of_place()),
            },
            _ => Err(self.out_of_place()),
        }
    }

    /// Changes the MTU of an interface.
    pub fn set_mtu(&mut self, interface: InterfaceNumber, mtu: Mtu) -> Result<(), HelperError> {
        self.order(&Request::SetMtu { interface, mtu })
    }

    /// Sets an interface up or down.
    pub fn set_up(&mut self, interface: InterfaceNumber, is_up: bool) -> Result<(), HelperError> {
        self.order(&Request::SetUp { interface, is_up })
    }

    /// Adds an address to an interface.
    pub fn add_address(&mut self, interface: InterfaceNumber, address: InterfaceAddress) -> Result<(), HelperError> {
        self.order(&Request::AddAddress { interface, address })
    }

    /// Deletes an address of an interface.
    pub fn del_address(&mut self, interface: InterfaceNumber, address: InterfaceAddress) -> Result<(), HelperError> {
        self.order(&Request::DelAddress { interface, address })
    }

    /// Has the helper forget an interface, which no later request may name. The interface itself goes with its descriptor.
    pub fn release(&mut self, interface: InterfaceNumber) -> Result<(), HelperError> {
        self.order(&Request::Release { interface })
    }

    fn order(&mut self, request: &Request) -> Result<(), HelperError> {
        match self.ask(request, None)? {
            (Reply::Done, _) => Ok(()),
            _ => Err(self.out_of_place()),
        }
    }

    /// Makes the kernel record connections. The programs stay for as long as copies of their links are open, here or at the helper.
    pub fn record_connections(&mut self) -> Result<Recorder, HelperError> {
        let (reply, descriptors) = self.ask(&Request::RecordConnections, None)?;
        match (reply, <[OwnedFd; 3]>::try_from(descriptors)) {
            (Reply::ConnectionsRecorded, Ok([map, recording, marking])) => {
                let map = RecordMap::try_from(map).map_err(HelperError::Socket)?;
                Ok(Recorder { map, links: [recording, marking] })
            }
            _ => Err(self.out_of_place()),
        }
    }

    fn out_of_place(&mut self) -> HelperError {
        self.socket = None;
        HelperError::OutOfPlace
    }

    /// Sends a request and waits for its reply. Any failure but a refusal ends the connection.
    fn ask(
        &mut self,
        request: &Request,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(Reply, Vec<OwnedFd>), HelperError> {
        let socket = self.socket.take().ok_or(HelperError::Closed)?;
        let replied = exchange(&socket, request, descriptor)?;
        self.socket = Some(socket);
        match replied {
            (Reply::Refused(refusal), _) => Err(refusal.into()),
            replied => Ok(replied),
        }
    }
}

fn exchange(
    socket: &OwnedFd,
    request: &Request,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(Reply, Vec<OwnedFd>), HelperError> {
    let deadline = Instant::now() + REPLY_TIMEOUT;
    seqpacket::send(socket, &request.emit(), descriptor.as_slice()).map_err(send_error)?;
    let (mut packet, mut descriptors) = ([0; PACKET_BYTES_MAX], Vec::new());
    loop {
        wait_readable(socket, deadline)?;
        match seqpacket::receive(socket, &mut packet, &mut descriptors, false) {
            Ok(bytes) => {
                let reply = Reply::parse(&packet[..bytes], descriptors.len())?;
                return Ok((reply, descriptors));
            }
            Err(ReceiveError::Empty) => {}
            Err(ReceiveError::Closed) => return Err(HelperError::Closed),
            Err(ReceiveError::TooLong) => return Err(Malformed::Length { have: packet.len() + 1 }.into()),
            Err(ReceiveError::DescriptorsLost { .. }) => return Err(HelperError::Socket(Errno::MFILE)),
            Err(ReceiveError::Refused(errno)) => return Err(HelperError::Socket(errno)),
        }
    }
}

fn send_error(error: SendError) -> HelperError {
    match error {
        SendError::Closed => HelperError::Closed,
        SendError::Full => HelperError::Timeout, // It has not read the requests before this one.
        SendError::FdsInFlight => HelperError::Socket(Errno::TOOMANYREFS),
        SendError::Refused(errno) => HelperError::Socket(errno),
    }
}

fn wait_readable(socket: &OwnedFd, deadline: Instant) -> Result<(), HelperError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(HelperError::Timeout),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(HelperError::Socket(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn info() -> HelperInfo {
        HelperInfo { version: VERSION, has_net_admin: true, has_namespaces: false, has_tun: true }
    }

    /// Answers one request with these bytes.
    fn answer(socket: &OwnedFd, bytes: &[u8]) {
        let (mut packet, mut descriptors) = ([0; PACKET_BYTES_MAX], Vec::new());
        wait_readable(socket, Instant::now() + REPLY_TIMEOUT).unwrap();
        seqpacket::receive(socket, &mut packet, &mut descriptors, false).unwrap();
        seqpacket::send(socket, bytes, &[]).unwrap();
    }

    /// Runs a client against a helper that greets and then answers one request with these bytes. Returns the results of two requests.
    fn result_of(bytes: Vec<u8>) -> (Result<(), HelperError>, Result<(), HelperError>) {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let helper = thread::spawn(move || {
            answer(&theirs, &Reply::Hello(info()).emit());
            answer(&theirs, &bytes);
        });
        let mut client = HelperClient::from_socket(ours).unwrap();
        assert_eq!(client.info(), info());
        let first = client.release(InterfaceNumber(1));
        helper.join().unwrap();
        (first, client.release(InterfaceNumber(1)))
    }

    #[test]
    fn missing_helper_is_named_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("helper.sock");
        let text = HelperClient::connect(&path).unwrap_err().to_string();
        assert!(text.contains(path.to_str().unwrap()) && text.contains("isthmus-helper.socket"), "{text}");
        // A socket that its helper has left behind.
        drop(seqpacket::listen(&path, 1).unwrap());
        assert!(matches!(HelperClient::connect(&path), Err(HelperError::NotRunning { .. })));
        let program = folder.path().join("no-such-program");
        let text = HelperStarter::spawn(&program, Permissions::default()).unwrap_err().to_string();
        assert!(text.contains("no-such-program"), "{text}");
    }

    #[test]
    fn malformed_and_foreign_replies_end_the_connection() {
        for (bytes, is_malformed) in [(vec![9; 5], true), (Reply::Hello(info()).emit(), false)] {
            let (first, second) = result_of(bytes);
            assert_eq!(matches!(first, Err(HelperError::Reply(_))), is_malformed, "{first:?}");
            assert_eq!(matches!(first, Err(HelperError::OutOfPlace)), !is_malformed, "{first:?}");
            assert!(matches!(second, Err(HelperError::Closed)), "{second:?}");
        }
    }

    #[test]
    fn refusal_leaves_the_connection_usable() {
        let refusal = RefusalReason::NoSuchInterface.by(Errno::NODEV);
        let (first, second) = result_of(Reply::Refused(refusal).emit());
        assert!(matches!(first, Err(HelperError::Refused(refused)) if refused == refusal), "{first:?}");
        // The helper's end was dropped meanwhile.
        assert!(matches!(second, Err(HelperError::Closed)), "{second:?}");
    }

    #[test]
    fn helper_of_another_version_is_refused() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let reply = Reply::Hello(HelperInfo { version: VERSION + 1, ..info() });
        let helper = thread::spawn(move || answer(&theirs, &reply.emit()));
        let text = HelperClient::from_socket(ours).unwrap_err().to_string();
        assert!(text.contains("different versions"), "{text}");
        helper.join().unwrap();
    }
}
