//! A place where whole frames enter and leave user space: an interface with a packet socket, alone in its namespace.
//!
//! The socket is not bound: it receives all of the namespace, where nothing else is, and each frame is sent with the
//! interface's address. (To be bound it would need an address with a protocol in it, which nothing safe makes.) It must be
//! one socket for both: the kernel shows what is sent to all packet sockets but the sender's.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::cmsg_space;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg, sendto,
    setsockopt, socket, sockopt as stamps,
};
use nix::sys::time::TimeSpec;
use rustix::net::sockopt;

/// Of the socket, for bursts that come while we do something else.
const BUFFER_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct FrameSocket {
    socket: OwnedFd,
    /// The interface: its protocol is 0, for which the kernel takes that of each frame.
    interface: LinkAddr,
    /// Room for the time that comes with a frame.
    stamp: Vec<u8>,
}

/// A frame that came in.
pub(crate) struct ReceivedFrame<'a> {
    pub(crate) bytes: &'a [u8],
    /// When, by the system's clock, in nanoseconds since 1970.
    pub(crate) at: Option<u64>,
}

impl FrameSocket {
    /// Must run in the interface's namespace.
    pub(crate) fn open(interface: &str) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).is_err() {
            // Root of a user namespace may only ask for as much as the system gives everybody.
            sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES)?;
        }
        setsockopt(&socket, stamps::ReceiveTimestampns, &true)?; // We may look at it late.
        let mut interfaces = nix::ifaddrs::getifaddrs()?.filter(|found| found.interface_name == interface);
        let address = interfaces.find_map(|found| found.address?.as_link_addr().copied());
        let interface = address.ok_or_else(|| io::Error::other(format!("no interface {interface}")))?;
        Ok(Self { socket, interface, stamp: cmsg_space!(TimeSpec) })
    }

    /// The next frame that came in, if there is one.
    pub(crate) fn receive<'a>(&mut self, buffer: &'a mut [u8]) -> Option<ReceivedFrame<'a>> {
        let mut parts = [IoSliceMut::new(buffer)];
        let message =
            recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut self.stamp), MsgFlags::empty()).ok()?;
        debug_assert!(!message.flags.contains(MsgFlags::MSG_TRUNC), "the buffer holds the longest frame there is");
        let at = message.cmsgs().ok()?.find_map(|extra| match extra {
            ControlMessageOwned::ScmTimestampns(at) => {
                u64::try_from(i128::from(at.tv_sec()) * 1_000_000_000 + i128::from(at.tv_nsec())).ok()
            }
            _ => None,
        });
        let bytes = message.bytes;
        Some(ReceivedFrame { bytes: &buffer[..bytes], at })
    }

    /// Sends a frame out; fails where the interface is down, or its MTU too small.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        sendto(self.socket.as_raw_fd(), frame, &self.interface, MsgFlags::empty())?;
        Ok(())
    }
}

/// Readable when frames came in.
impl AsFd for FrameSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
