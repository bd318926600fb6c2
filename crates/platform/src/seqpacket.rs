//! Packets with file descriptors over a Unix socket: one control message each.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

/// Maximum number of descriptors in one packet.
pub const FDS_MAX: usize = isthmus_layout::limits::CONTROL_FDS_MAX;

/// Maximum number of descriptors that the kernel allows in one packet (`SCM_MAX_FD`).
const KERNEL_FDS_MAX: usize = 253;

/// How long a connection waits for a place in the queue of a socket that listens.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// `SIOCOUTQ`, as in `linux/include/uapi/linux/sockios.h`.
const SIOCOUTQ: Opcode = 0x5411;

/// The reason that no packet was received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// Nothing waits (on a non-blocking socket).
    #[error("no packet waits")]
    Empty,
    /// The other side closed the connection, or is gone.
    #[error("the connection is closed")]
    Closed,
    /// The packet was longer than any message; its content is lost.
    #[error("a packet longer than any control message")]
    TooLong,
    /// The packet's descriptors could not all be received: this process may not open more.
    #[error("descriptors were lost: this process may not open more (RLIMIT_NOFILE)")]
    DescriptorsLost {
        /// Bytes of the packet, which are in the buffer all the same.
        bytes: usize,
    },
    /// The kernel refused.
    #[error("receiving a packet: {0}")]
    Refused(#[source] Errno),
}

/// Why a packet was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No room (on a non-blocking socket).
    #[error("the socket is full")]
    Full,
    /// The other side closed the connection, or is gone.
    #[error("the connection is closed")]
    Closed,
    /// Too many descriptors of this user are under way in sockets (RLIMIT_NOFILE counts them too).
    #[error("too many file descriptors are in flight in sockets of this user (RLIMIT_NOFILE)")]
    FdsInFlight,
    /// The kernel refused.
    #[error("sending a packet: {0}")]
    Refused(#[source] Errno),
}

/// A connection to the socket at `path`; blocking. Fails with [`Errno::AGAIN`] if the other side does not accept connections: the kernel
/// queues a limited number of them for a process that is stopped.
pub fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    connect_within(path, QUEUE_TIMEOUT)
}

/// As [`connect`], with a limit for the wait.
pub fn connect_within(path: &Path, limit: Duration) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(limit))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, None)?;
    Ok(socket)
}

/// A socket that listens at `path`, which must not exist; non-blocking.
pub fn listen(path: &Path, backlog: i32) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// The next connection to a listening socket; non-blocking.
pub fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Two ends of a connection of its own, non-blocking; for tests.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends one packet. Never raises SIGPIPE.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(fds.len() <= FDS_MAX && ancillary.push(SendAncillaryMessage::ScmRights(fds))); // Ours.
    }
    loop {
        return match rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(_) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Err(SendError::Full),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(SendError::Closed),
            Err(Errno::TOOMANYREFS) => Err(SendError::FdsInFlight),
            Err(refused) => Err(SendError::Refused(refused)),
        };
    }
}

/// Receives one packet into `into`, its descriptors into `fds`; answers its bytes. There are the descriptors of a packet that is
/// refused, too, for the caller to close: that may take as long as their sender likes. With `wait`, a blocking socket waits for
/// one.
pub fn receive(socket: impl AsFd, into: &mut [u8], fds: &mut Vec<OwnedFd>, wait: bool) -> Result<usize, ReceiveError> {
    // What finds no room here the kernel closes before it lets us go on.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    fds.clear();
    let mut was_reset = false;
    let message = loop {
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(into)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(ReceiveError::Empty),
            // The other side has closed and left something of ours unread. That is told once, before what it had said itself.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(Errno::CONNRESET | Errno::NOTCONN) => return Err(ReceiveError::Closed),
            other => break other.map_err(ReceiveError::Refused)?,
        }
    };
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = part {
            fds.extend(came);
        }
    }
    if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        let long = message.flags.contains(ReturnFlags::TRUNC);
        return Err(if long { ReceiveError::TooLong } else { ReceiveError::DescriptorsLost { bytes: message.bytes } });
    }
    // No control message is empty, so an empty packet is the end as well.
    if message.bytes == 0 { Err(ReceiveError::Closed) } else { Ok(message.bytes) }
}

/// True if the other side has not yet received all packets that were sent, whether or not the connection is still open. Descriptors in
/// such packets are in flight.
pub fn has_unread(socket: impl AsFd) -> Result<bool, Errno> {
    // SAFETY: the request has the kernel write one `c_int`, and on any other file than a socket or a terminal it is refused.
    let bytes = unsafe { ioctl(socket, Getter::<SIOCOUTQ, i32>::new()) }?;
    // When the other side receives a packet, the kernel first takes all of its bytes but one from the account, then reports that there is
    // room, and then takes the last one. So the byte alone is a packet that was received, and no other report follows.
    Ok(bytes > 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local;
    use isthmus_layout::RegionSize;
    use rustix::event::epoll;

    #[test]
    fn connection_to_a_full_queue_fails() {
        let path = std::env::temp_dir().join(format!("isthmus-full-queue-{}", std::process::id()));
        let listener = listen(&path, 0).unwrap();
        let limit = Duration::from_millis(1);
        let mut queued = Vec::new();
        let refused = loop {
            match connect_within(&path, limit) {
                Ok(socket) => queued.push(socket),
                Err(errno) => break errno,
            }
        };
        assert_eq!((refused, queued.is_empty()), (Errno::AGAIN, false));
        drop(accept(&listener).unwrap());
        let socket = connect_within(&path, limit).unwrap();
        assert_eq!(sockopt::socket_timeout(&socket, sockopt::Timeout::Send).unwrap(), None);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn packets_keep_their_boundaries_and_descriptors() {
        let (a, b) = pair().unwrap();
        let memory = local::memory(RegionSize(4096)).unwrap();
        send(&a, b"first", &[memory.as_fd(), memory.as_fd()]).unwrap();
        send(&a, b"second", &[]).unwrap();
        let (mut bytes, mut fds) = ([0; 100], Vec::new());
        assert_eq!(receive(&b, &mut bytes, &mut fds, false).unwrap(), 5);
        assert_eq!(fds.len(), 2);
        assert_eq!(rustix::fs::fstat(&fds[0]).unwrap().st_size, 4096);
        assert_eq!(receive(&b, &mut bytes, &mut fds, false).unwrap(), 6);
        assert_eq!((&bytes[..6], fds.len()), (&b"second"[..], 0));
        assert!(matches!(receive(&b, &mut bytes, &mut fds, false), Err(ReceiveError::Empty)));
        send(&a, &[7; 200], &[memory.as_fd()]).unwrap();
        assert!(matches!(receive(&b, &mut bytes, &mut fds, false), Err(ReceiveError::TooLong)));
        assert_eq!(fds.len(), 1);
        drop(a);
        assert!(matches!(receive(&b, &mut bytes, &mut fds, false), Err(ReceiveError::Closed)));
        assert!(matches!(send(&b, b"x", &[]), Err(SendError::Closed)));
    }

    #[test]
    fn unread_packets_are_seen_even_after_the_close() {
        let (a, b) = pair().unwrap();
        assert!(!has_unread(&a).unwrap());
        send(&a, b"first", &[b.as_fd()]).unwrap();
        send(&a, b"second", &[]).unwrap();
        let (mut bytes, mut fds) = ([0; 100], Vec::new());
        receive(&b, &mut bytes, &mut fds, false).unwrap();
        rustix::net::shutdown(&a, rustix::net::Shutdown::Both).unwrap();
        assert!(has_unread(&a).unwrap());
        receive(&b, &mut bytes, &mut fds, false).unwrap();
        assert!(!has_unread(&a).unwrap());
        assert!(has_unread(std::fs::File::open("/dev/null").unwrap()).is_err());
    }

    #[test]
    fn received_packet_is_seen_when_the_socket_reports_room() {
        let (a, b) = pair().unwrap();
        let room = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let edge = epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&room, &a, epoll::EventData::new_u64(0), edge).unwrap();
        let receiver = std::thread::spawn(move || {
            let (mut bytes, mut fds) = ([0; 100], Vec::new());
            while !matches!(receive(&b, &mut bytes, &mut fds, false), Err(ReceiveError::Closed)) {}
        });
        for _ in 0..20_000 {
            send(&a, b"packet", &[]).unwrap();
            while has_unread(&a).unwrap() {
                let mut events = [epoll::Event { flags: edge, data: epoll::EventData::new_u64(0) }];
                let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
                let count = epoll::wait(&room, &mut events, Some(&limit)).unwrap();
                assert_eq!(count, 1, "no edge follows the reception of the only packet");
            }
        }
        drop(a);
        receiver.join().unwrap();
    }

    #[test]
    fn receives_packets_sent_before_the_close() {
        let (a, b) = pair().unwrap();
        send(&a, b"hello", &[]).unwrap();
        send(&b, b"last", &[]).unwrap();
        send(&b, b"word", &[]).unwrap();
        drop(b);
        let (mut bytes, mut fds) = ([0; 100], Vec::new());
        for said in [b"last", b"word"] {
            assert_eq!(receive(&a, &mut bytes, &mut fds, false).unwrap(), 4);
            assert_eq!(&bytes[..4], said);
        }
        assert!(matches!(receive(&a, &mut bytes, &mut fds, false), Err(ReceiveError::Closed)));
    }
}
