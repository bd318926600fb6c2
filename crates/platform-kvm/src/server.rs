//! The server of a guest's device: gives QEMU the window and the doorbells.
//!
//! ```text
//!  socket ──► accept ──► version, number, window, doorbells ──► Connected(ServerGuest) ─── … ───► Disconnected
//!                │                                                          the peer closes, or says anything
//!                └─► Failed: somebody is there already, or there are no descriptors left
//! ```
//!
//! There is one guest at a time behind a socket, and each connection has a window of its own, made for it: what one guest left no other ever
//! sees. A connection can outlive its server ([`IvshmemServer::pack`]). The host is peer 0 and the guest peer 1 ([`HOST`], [`GUEST`]). Other
//! guests are peers only as far as they are [added](IvshmemServer::add_peer): then the guest rings them without the host. Nothing here
//! waits for anybody; the server's descriptor ([`AsFd`]) is readable as long as [`IvshmemServer::poll`] has something to say. The messages
//! are in `docs/spec/device.md`.

use crate::device_layout::DeviceLayout;
use isthmus_layout::RegionSize;
use isthmus_platform::seqpacket::{self, SendError};
use isthmus_platform::{Doorbell, PlatformError, local};
use isthmus_shm::{Access, MapError, Mapping};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

mod keep;
pub use keep::ResumeError;

/// The host's number among a device's peers.
pub const HOST: u16 = 0;

/// The guest's.
pub const GUEST: u16 = 1;

/// The version of the protocol that QEMU speaks.
pub(crate) const PROTOCOL: i64 = 0;

/// What stands for the window where a peer's number would stand.
pub(crate) const WINDOW: i64 = -1;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another process answers there.
    #[error("{}: another process serves this socket", .0.display())]
    Taken(PathBuf),
    /// The system refused.
    #[error("{operation} {}: {source}", .path.display())]
    Refused {
        /// What was tried.
        operation: &'static str,
        /// With which path.
        path: PathBuf,
        /// What the system said.
        source: Errno,
    },
}

/// Why a connection came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// There is a guest already.
    #[error("a guest is connected already")]
    AlreadyConnected,
    /// It went away, or spoke, before it had all that it needs.
    #[error("it ended before the device was set up: {0}")]
    ClosedEarly(CloseReason),
    /// There is no memory for its window, or there are no descriptors for its bells.
    #[error(transparent)]
    Resources(#[from] PlatformError),
    /// What it needs could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The system had no descriptor for the connection itself, or similar.
    #[error("accepting a connection: {0}")]
    Accept(#[source] Errno),
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The device is gone: unplugged, or QEMU has ended.
    #[error("the device was unplugged, or QEMU has ended")]
    Closed,
    /// It said something, which is not QEMU's part.
    #[error("it spoke, which no device does")]
    UnexpectedData,
    /// We ended it ([`IvshmemServer::disconnect`]).
    #[error("it was dismissed")]
    Dismissed,
}

/// What happened.
#[derive(Debug)]
pub enum ServerEvent {
    /// A guest has its device.
    Connected(ServerGuest),
    /// The guest that was connected is there no more; the next connection has a window of its own.
    Disconnected {
        /// How.
        reason: CloseReason,
        /// Its connection. Whoever drops it waits for what QEMU may have sent with it: a descriptor that takes its time to close.
        socket: OwnedFd,
    },
    /// A connection came to nothing. A guest that is connected does not notice.
    Failed {
        /// Why.
        error: AcceptError,
        /// The connection, as in [`ServerEvent::Disconnected`].
        socket: Option<OwnedFd>,
    },
}

/// The host's side of a guest's device.
#[derive(Debug)]
pub struct ServerGuest {
    /// The window: a memory file of its own, sealed against shrinking and growing.
    pub window: OwnedFd,
    /// How large it is.
    pub size: RegionSize,
    /// What rings the guest's vectors: event descriptors, by vector.
    pub to_guest: Vec<OwnedFd>,
    /// Where the guest's rings of our vectors are heard: event descriptors, by vector.
    pub from_guest: Vec<OwnedFd>,
    /// QEMU's process, as the kernel says; None where it cannot be seen from here.
    pub process: Option<i32>,
}

impl ServerGuest {
    pub(crate) fn new(layout: DeviceLayout, process: Option<i32>) -> Result<Self, PlatformError> {
        let doorbells = |count: u16| (0..count).map(|_| event()).collect::<Result<Vec<_>, _>>();
        let size = layout.window();
        let window = local::memory(size)?;
        let (to_guest, from_guest) = (doorbells(layout.guest_vectors())?, doorbells(layout.host_vectors())?);
        Ok(Self { window, size, to_guest, from_guest, process })
    }

    /// Our mapping of a part of the window.
    pub fn map(&self, at: u64, size: RegionSize, access: Access) -> Result<Mapping, MapError> {
        Mapping::window(&self.window, at, size, access)
    }

    /// What rings a vector of the guest; None where it has no such vector.
    pub fn doorbell_sender(&self, vector: u16) -> Option<Result<Doorbell, PlatformError>> {
        self.to_guest.get(usize::from(vector)).map(copy)
    }

    /// Where rings of a vector of ours are heard; None where we have no such vector.
    pub fn listener(&self, vector: u16) -> Option<Result<Doorbell, PlatformError>> {
        self.from_guest.get(usize::from(vector)).map(copy)
    }

    /// What QEMU is told, message by message.
    fn message(&self, nth: usize) -> Option<(i64, Option<BorrowedFd<'_>>)> {
        match nth {
            0 => Some((PROTOCOL, None)),
            1 => Some((i64::from(GUEST), None)),
            2 => Some((WINDOW, Some(self.window.as_fd()))),
            _ => {
                let host = self.from_guest.iter().map(|fd| (HOST, fd));
                let guest = self.to_guest.iter().map(|fd| (GUEST, fd));
                host.chain(guest).nth(nth - 3).map(|(peer, fd)| (i64::from(peer), Some(fd.as_fd())))
            }
        }
    }
}

fn event() -> Result<OwnedFd, PlatformError> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|source| PlatformError::Refused { operation: "creating a doorbell", source })
}

fn copy(doorbell: &OwnedFd) -> Result<Doorbell, PlatformError> {
    let copied = rustix::io::fcntl_dupfd_cloexec(doorbell, 0);
    let refused = |source| PlatformError::Refused { operation: "copying a doorbell", source };
    copied.map(Doorbell::from).map_err(refused)
}

/// What QEMU is told later: a doorbell of a peer, or that a peer is gone.
type PeerMessage = (u16, Option<OwnedFd>);

/// A connection on its way.
#[derive(Debug)]
enum Connection {
    /// Not everything has been sent.
    Handshake { socket: OwnedFd, guest: ServerGuest, sent: usize },
    /// The guest is somebody else's now.
    Established { socket: OwnedFd, pending: VecDeque<PeerMessage>, peers: BTreeSet<u16> },
}

impl Connection {
    /// Of a guest that knows of no other one, or will not hear from those that it knows.
    fn established(socket: OwnedFd) -> Self {
        Self::Established { socket, pending: VecDeque::new(), peers: BTreeSet::new() }
    }

    fn socket(&self) -> &OwnedFd {
        match self {
            Self::Handshake { socket, .. } | Self::Established { socket, .. } => socket,
        }
    }

    fn into_socket(self) -> OwnedFd {
        match self {
            Self::Handshake { socket, .. } | Self::Established { socket, .. } => socket,
        }
    }

    /// Whether it is over. Nothing is taken from it: what it may hold is not ours to close.
    fn close_reason(&self) -> Option<CloseReason> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(self.socket(), &mut [0_u8; 1], flags) {
            Err(Errno::AGAIN | Errno::INTR) => None,
            Ok((0, _)) | Err(_) => Some(CloseReason::Closed),
            Ok(_) => Some(CloseReason::UnexpectedData),
        }
    }
}

/// Serves one guest's device at a socket.
#[derive(Debug)]
pub struct IvshmemServer {
    listener: OwnedFd,
    layout: DeviceLayout,
    connection: Option<Connection>,
    ready: OwnedFd,
    /// Given up for a moment where no descriptor is left: whoever knocks can then still be sent away.
    spare_fd: Option<OwnedFd>,
    socket_file: Option<SocketFile>,
}

impl IvshmemServer {
    /// Serves at `path`, which only root, our own user and `extra_user` may connect to. A socket that a dead process left there is replaced.
    pub fn listen(path: &Path, extra_user: Option<u32>, layout: DeviceLayout) -> Result<Self, ServerError> {
        let refused = |operation| move |source| ServerError::Refused { operation, path: path.to_owned(), source };
        let address = SocketAddrUnix::new(path).map_err(refused("binding a socket to"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let listener = socket().map_err(refused("creating a socket for"))?;
        // The file takes the socket's mode, so that nobody comes in before it has its own.
        rustix::fs::fchmod(&listener, Mode::RUSR | Mode::WUSR).map_err(refused("protecting"))?;
        match rustix::net::bind(&listener, &address) {
            Err(Errno::ADDRINUSE) => {
                let probe = socket().map_err(refused("creating a socket for"))?;
                if rustix::net::connect(&probe, &address) != Err(Errno::CONNREFUSED) {
                    return Err(ServerError::Taken(path.to_owned()));
                }
                rustix::fs::unlink(path).map_err(refused("removing"))?;
                rustix::net::bind(&listener, &address)
            }
            bound => bound,
        }
        .map_err(refused("binding a socket to"))?;
        let name = SocketFile::of(path).map_err(refused("looking at"))?;
        extra_user
            .map_or(Ok(()), |user| access::allow_user(path, user))
            .map_err(refused("admitting the user of QEMU to"))?;
        rustix::net::listen(&listener, 4).map_err(refused("listening at"))?;
        let mut server = Self::over(listener, layout).map_err(refused("waiting for"))?;
        server.socket_file = Some(name);
        Ok(server)
    }

    /// Serves at a stream socket that listens already and does not block.
    pub fn over(listener: OwnedFd, layout: DeviceLayout) -> Result<Self, Errno> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &listener, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        let spare = rustix::io::fcntl_dupfd_cloexec(&ready, 0)?;
        Ok(Self { listener, layout, connection: None, ready, spare_fd: Some(spare), socket_file: None })
    }

    /// What each guest gets.
    pub fn layout(&self) -> DeviceLayout {
        self.layout
    }

    /// What happened next; None: wait until the descriptor is readable. Never waits.
    pub fn poll(&mut self) -> Option<ServerEvent> {
        if let Some(reason) = self.connection.as_ref().and_then(Connection::close_reason) {
            return self.end(reason);
        }
        if let Some(event) = self.accept() {
            return Some(event);
        }
        self.send_handshake().or_else(|| self.send_pending())
    }

    /// Makes another guest a peer of the connected one, which rings the other guest's vectors by these event descriptors, in their order. QEMU
    /// takes as many as its device has vectors. Nothing happens where no guest is there.
    pub fn add_peer(&mut self, peer: u16, doorbells: Vec<OwnedFd>) {
        let insert_peer = |peers: &mut BTreeSet<u16>| peers.insert(peer);
        self.queue_messages(insert_peer, doorbells.into_iter().map(|doorbell| (peer, Some(doorbell))));
    }

    /// That one is a peer no longer.
    pub fn remove_peer(&mut self, peer: u16) {
        self.queue_messages(|peers| peers.remove(&peer), [(peer, None)].into_iter());
    }

    /// True when QEMU has read all that it was told.
    pub fn is_drained(&self) -> bool {
        let Some(Connection::Established { socket, pending, .. }) = &self.connection else { return false };
        // Of a Unix socket that is what its reader has not taken.
        pending.is_empty() && crate::unsent::bytes(socket) == Ok(0)
    }

    fn queue_messages(
        &mut self,
        changes: impl FnOnce(&mut BTreeSet<u16>) -> bool,
        messages: impl Iterator<Item = PeerMessage>,
    ) {
        let Some(Connection::Established { socket, pending, peers }) = &mut self.connection else { return };
        if !changes(peers) {
            return;
        }
        pending.extend(messages);
        // Refused only if the socket were not there: then its end is seen, too.
        let _ = epoll::modify(&self.ready, socket, epoll::EventData::new_u64(1), HANDSHAKE_EVENTS);
    }

    /// Sends what is left to be told to a guest that is there.
    fn send_pending(&mut self) -> Option<ServerEvent> {
        let Some(Connection::Established { socket, pending, .. }) = &mut self.connection else { return None };
        if pending.is_empty() {
            return None;
        }
        while let Some((peer, doorbell)) = pending.front() {
            let doorbell = doorbell.as_ref().map(OwnedFd::as_fd);
            match seqpacket::send(&*socket, &i64::from(*peer).to_le_bytes(), doorbell.as_slice()) {
                Ok(()) => drop(pending.pop_front()),
                // Descriptors that are under way arrive some time; our own thread has other things to do until then.
                Err(SendError::Full | SendError::FdsInFlight) => return None,
                Err(SendError::Closed) => return self.end(CloseReason::Closed),
                Err(SendError::Refused(_)) => return self.end(CloseReason::Dismissed),
            }
        }
        let _ = epoll::modify(&self.ready, socket, epoll::EventData::new_u64(1), ESTABLISHED_EVENTS);
        None
    }

    /// Ends the connection. QEMU keeps a device that nobody answers; the next [`IvshmemServer::poll`] would have told of its end, this does.
    pub fn disconnect(&mut self) -> Option<ServerEvent> {
        self.end(CloseReason::Dismissed)
    }

    fn end(&mut self, reason: CloseReason) -> Option<ServerEvent> {
        let connection = self.connection.take()?;
        let settled = matches!(connection, Connection::Established { .. });
        let socket = connection.into_socket();
        let _ = epoll::delete(&self.ready, &socket);
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        Some(match settled {
            true => ServerEvent::Disconnected { reason, socket },
            false => ServerEvent::Failed { error: AcceptError::ClosedEarly(reason), socket: Some(socket) },
        })
    }

    /// Takes the next connection; an event where that came to nothing.
    fn accept(&mut self) -> Option<ServerEvent> {
        let socket = match seqpacket::accept(&self.listener) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return None,
            Err(source) => {
                // Whoever knocks would keep us awake.
                self.spare_fd = None;
                let socket = seqpacket::accept(&self.listener).ok();
                drop(socket);
                self.spare_fd = rustix::io::fcntl_dupfd_cloexec(&self.ready, 0).ok();
                return Some(ServerEvent::Failed { error: AcceptError::Accept(source), socket: None });
            }
        };
        let failed = |error, socket| Some(ServerEvent::Failed { error, socket: Some(socket) });
        if self.connection.is_some() {
            return failed(AcceptError::AlreadyConnected, socket);
        }
        let process = rustix::net::sockopt::socket_peercred(&socket).ok();
        let process = process.map(|peer| peer.pid.as_raw_nonzero().get());
        let guest = match ServerGuest::new(self.layout, process) {
            Ok(guest) => guest,
            Err(error) => return failed(error.into(), socket),
        };
        if let Err(source) = epoll::add(&self.ready, &socket, epoll::EventData::new_u64(1), HANDSHAKE_EVENTS) {
            let operation = "waiting for a connection";
            return failed(PlatformError::Refused { operation, source }.into(), socket);
        }
        self.connection = Some(Connection::Handshake { socket, guest, sent: 0 });
        None
    }

    /// Sends what is left to be sent.
    fn send_handshake(&mut self) -> Option<ServerEvent> {
        let Some(Connection::Handshake { socket, guest, sent }) = &mut self.connection else { return None };
        while let Some((number, fd)) = guest.message(*sent) {
            match seqpacket::send(&*socket, &number.to_le_bytes(), fd.as_slice()) {
                Ok(()) => *sent += 1,
                Err(SendError::Full) => return None,
                Err(SendError::Closed) => return self.end(CloseReason::Closed),
                Err(error) => {
                    let Some(ServerEvent::Failed { socket, .. }) = self.end(CloseReason::Dismissed) else {
                        return None;
                    };
                    return Some(ServerEvent::Failed { error: error.into(), socket });
                }
            }
        }
        let Some(Connection::Handshake { socket, guest, .. }) = self.connection.take() else { return None };
        let settled = epoll::modify(&self.ready, &socket, epoll::EventData::new_u64(1), ESTABLISHED_EVENTS);
        self.connection = Some(Connection::established(socket));
        match settled {
            Ok(()) => Some(ServerEvent::Connected(guest)),
            // It was there a moment ago, so this is not reached; a connection whose end we could not see must not stay.
            Err(_) => self.end(CloseReason::Dismissed),
        }
    }
}

const ESTABLISHED_EVENTS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP);
const HANDSHAKE_EVENTS: epoll::EventFlags = ESTABLISHED_EVENTS.union(epoll::EventFlags::OUT);

impl AsFd for IvshmemServer {
    /// Readable when [`IvshmemServer::poll`] has something to say; for `poll`, or an epoll set of the caller's.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// The socket's file, which we leave as little behind as we can.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    file: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> Result<Self, Errno> {
        let found = rustix::fs::stat(path)?;
        Ok(Self { path: path.to_owned(), file: (found.st_dev, found.st_ino) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another daemon may have put its own there.
        if rustix::fs::stat(&self.path).is_ok_and(|found| (found.st_dev, found.st_ino) == self.file) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

mod access;
#[cfg(test)]
mod tests;
