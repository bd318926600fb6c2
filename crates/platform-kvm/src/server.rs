//! The server of a guest's device: sends QEMU the window and the doorbells.
//!
//! ```text
//!  socket ──► accept ──► version, number, window, doorbells ──► Connected(ServerGuest) ─── … ───► Disconnected
//!                │                                                          the peer closes, or says anything
//!                └─► Failed: somebody is there already, or there are no descriptors left
//! ```
//!
//! A server has at most one guest at a time. Each connection has a new window, so that no guest sees the data of another. A connection can
//! outlive its server ([`IvshmemServer::pack`]). The host is peer 0 and the guest peer 1 ([`HOST`], [`GUEST`]). Other guests are peers only
//! if they are [added](IvshmemServer::add_peer); the guest then rings them without the host. The server never blocks. Its descriptor
//! ([`AsFd`]) is readable while [`IvshmemServer::poll`] has an event to return. `docs/spec/device.md` describes the messages.

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

pub use isthmus_layout::proxy::{GUEST, HOST};

/// The version of QEMU's protocol.
pub(crate) const PROTOCOL: i64 = 0;

/// The number that announces the window in place of a peer.
pub(crate) const WINDOW: i64 = -1;

/// The reason why a server cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another process serves the socket.
    #[error("{}: another process serves this socket", .0.display())]
    Taken(PathBuf),
    /// The system refused an operation.
    #[error("{operation} {}: {source}", .path.display())]
    Refused {
        /// The operation.
        operation: &'static str,
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        source: Errno,
    },
}

/// The reason why a connection was not established.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// A guest is connected already.
    #[error("a guest is connected already")]
    AlreadyConnected,
    /// The connection ended, or the peer sent data, before the device was set up.
    #[error("the connection ended before the device was set up: {0}")]
    ClosedEarly(CloseReason),
    /// There is no memory for the window, or there are no descriptors for the doorbells.
    #[error(transparent)]
    Resources(#[from] PlatformError),
    /// A message could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The system could not accept the connection, for example for lack of descriptors.
    #[error("accepting a connection: {0}")]
    Accept(#[source] Errno),
}

/// The reason why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The device is gone: unplugged, or QEMU has ended.
    #[error("the device was unplugged, or QEMU has ended")]
    Closed,
    /// The peer sent data, which QEMU never does.
    #[error("the peer sent data, which no device does")]
    UnexpectedData,
    /// This server ended the connection ([`IvshmemServer::disconnect`]).
    #[error("the daemon ended the connection")]
    Dismissed,
}

/// An event of the server.
#[derive(Debug)]
pub enum ServerEvent {
    /// A guest has received its device.
    Connected(ServerGuest),
    /// The connected guest is gone. The next connection has a new window.
    Disconnected {
        /// The reason.
        reason: CloseReason,
        /// The connection. Dropping it closes all descriptors that QEMU may have sent, which can block.
        socket: OwnedFd,
    },
    /// A connection failed. A connected guest is not affected.
    Failed {
        /// The reason.
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
    /// The size of the window.
    pub size: RegionSize,
    /// The event descriptors that ring the guest's vectors, by vector.
    pub to_guest: Vec<OwnedFd>,
    /// The event descriptors on which the guest's rings of the host's vectors arrive, by vector.
    pub from_guest: Vec<OwnedFd>,
    /// The process of QEMU according to the kernel, or `None` if it is not visible from here.
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

    /// Maps a part of the window.
    pub fn map(&self, at: u64, size: RegionSize, access: Access) -> Result<Mapping, MapError> {
        Mapping::window(&self.window, at, size, access)
    }

    /// Returns the sender for a vector of the guest, or `None` if the guest has no such vector.
    pub fn doorbell_sender(&self, vector: u16) -> Option<Result<Doorbell, PlatformError>> {
        self.to_guest.get(usize::from(vector)).map(copy)
    }

    /// Returns the listener of a vector of the host, or `None` if the host has no such vector.
    pub fn listener(&self, vector: u16) -> Option<Result<Doorbell, PlatformError>> {
        self.from_guest.get(usize::from(vector)).map(copy)
    }

    /// Returns message `nth` of the handshake with QEMU.
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

/// A message after the handshake: a doorbell of a peer, or the removal of a peer.
type PeerMessage = (u16, Option<OwnedFd>);

/// A connection and its state.
#[derive(Debug)]
enum Connection {
    /// The handshake is incomplete.
    Handshake { socket: OwnedFd, guest: ServerGuest, sent: usize },
    /// The [`ServerGuest`] was handed to the caller.
    Established { socket: OwnedFd, pending: VecDeque<PeerMessage>, peers: BTreeSet<u16> },
}

impl Connection {
    /// Creates an established connection without other peers.
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

    /// Returns the reason if the connection is over. Received data stays unread, because it may contain descriptors that the server must
    /// not close.
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
    /// Released briefly when no descriptor is left, so that a connection can still be accepted and closed.
    spare_fd: Option<OwnedFd>,
    socket_file: Option<SocketFile>,
}

impl IvshmemServer {
    /// Serves at `path`. Only root, the own user and `extra_user` may connect. A socket that a dead process left there is replaced.
    pub fn listen(path: &Path, extra_user: Option<u32>, layout: DeviceLayout) -> Result<Self, ServerError> {
        let refused = |operation| move |source| ServerError::Refused { operation, path: path.to_owned(), source };
        let address = SocketAddrUnix::new(path).map_err(refused("binding a socket to"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let listener = socket().map_err(refused("creating a socket for"))?;
        // The file inherits the socket's mode, so that no process can connect before the access list is set.
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

    /// Serves at a non-blocking stream socket that listens already.
    pub fn over(listener: OwnedFd, layout: DeviceLayout) -> Result<Self, Errno> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &listener, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        let spare = rustix::io::fcntl_dupfd_cloexec(&ready, 0)?;
        Ok(Self { listener, layout, connection: None, ready, spare_fd: Some(spare), socket_file: None })
    }

    /// Returns the layout of each guest's device.
    pub fn layout(&self) -> DeviceLayout {
        self.layout
    }

    /// Returns the next event without blocking, or `None` if the caller has to wait until the descriptor is readable.
    pub fn poll(&mut self) -> Option<ServerEvent> {
        if let Some(reason) = self.connection.as_ref().and_then(Connection::close_reason) {
            return self.end(reason);
        }
        if let Some(event) = self.accept() {
            return Some(event);
        }
        self.send_handshake().or_else(|| self.send_pending())
    }

    /// Makes another guest a peer of the connected one. The connected guest rings the vectors of the other by these event descriptors, in
    /// this order. QEMU accepts as many as its device has vectors. Does nothing if no guest is connected.
    pub fn add_peer(&mut self, peer: u16, doorbells: Vec<OwnedFd>) {
        let insert_peer = |peers: &mut BTreeSet<u16>| peers.insert(peer);
        self.queue_messages(insert_peer, doorbells.into_iter().map(|doorbell| (peer, Some(doorbell))));
    }

    /// Removes a peer.
    pub fn remove_peer(&mut self, peer: u16) {
        self.queue_messages(|peers| peers.remove(&peer), [(peer, None)].into_iter());
    }

    /// Returns true if QEMU has read all messages.
    pub fn is_drained(&self) -> bool {
        let Some(Connection::Established { socket, pending, .. }) = &self.connection else { return false };
        // The kernel counts the bytes that the reader of a Unix socket has not taken.
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
        // Fails only for a closed socket, and then the end of the connection is seen, too.
        let _ = epoll::modify(&self.ready, socket, epoll::EventData::new_u64(1), HANDSHAKE_EVENTS);
    }

    /// Sends the queued messages to an established guest.
    fn send_pending(&mut self) -> Option<ServerEvent> {
        let Some(Connection::Established { socket, pending, .. }) = &mut self.connection else { return None };
        if pending.is_empty() {
            return None;
        }
        while let Some((peer, doorbell)) = pending.front() {
            let doorbell = doorbell.as_ref().map(OwnedFd::as_fd);
            match seqpacket::send(&*socket, &i64::from(*peer).to_le_bytes(), doorbell.as_slice()) {
                Ok(()) => drop(pending.pop_front()),
                // Descriptors in flight arrive eventually. The thread does not wait for them.
                Err(SendError::Full | SendError::FdsInFlight) => return None,
                Err(SendError::Closed) => return self.end(CloseReason::Closed),
                Err(SendError::Refused(_)) => return self.end(CloseReason::Dismissed),
            }
        }
        let _ = epoll::modify(&self.ready, socket, epoll::EventData::new_u64(1), ESTABLISHED_EVENTS);
        None
    }

    /// Ends the connection. QEMU keeps the device without a server. Returns the event that [`IvshmemServer::poll`] would otherwise return.
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

    /// Accepts the next connection. Returns an event if that failed.
    fn accept(&mut self) -> Option<ServerEvent> {
        let socket = match seqpacket::accept(&self.listener) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return None,
            Err(source) => {
                // Closes the pending connection, which would otherwise keep the descriptor readable.
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

    /// Sends the remaining messages of the handshake.
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
            // Not reached, because the socket was registered a moment ago. A connection that is not monitored must not stay.
            Err(_) => self.end(CloseReason::Dismissed),
        }
    }
}

const ESTABLISHED_EVENTS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP);
const HANDSHAKE_EVENTS: epoll::EventFlags = ESTABLISHED_EVENTS.union(epoll::EventFlags::OUT);

impl AsFd for IvshmemServer {
    /// The descriptor is readable while [`IvshmemServer::poll`] has an event to return; for `poll`, or an epoll set of the caller.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// The socket's file, which is removed on drop.
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
        // Another daemon may have created its own socket there.
        if rustix::fs::stat(&self.path).is_ok_and(|found| (found.st_dev, found.st_ino) == self.file) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

mod access;
#[cfg(test)]
mod tests;
