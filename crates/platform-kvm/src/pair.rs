//! The server's side of a device that shows a pair window.
//!
//! ```text
//!   host: PairDevice ── socket pair ── QEMU of one guest:   ivshmem-doorbell, without doorbells
//!         PairDevice ── socket pair ── QEMU of the other one
//! ```
//!
//! QEMU receives its end of the socket through its monitor, with all messages already queued in it. QEMU therefore never waits for the
//! daemon, and no other process can connect. The device has no doorbells. Guests ring each other through the devices that they have anyway
//! ([`IvshmemServer::add_peer`](crate::IvshmemServer::add_peer)), and a device without doorbells can be unplugged at any time.

use crate::device::hangs_up;
use crate::server::{PROTOCOL, WINDOW};
use isthmus_platform::PlatformError;
use isthmus_platform::seqpacket::{self, SendError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// A device in one of the two guests, while it is plugged in.
#[derive(Debug)]
pub struct PairDevice {
    socket: OwnedFd,
}

impl PairDevice {
    /// Creates a device with this peer number and no other peers, for a sealed memory file. Also returns the end of its socket for QEMU.
    pub fn new(peer: u16, window: impl AsFd) -> Result<(Self, OwnedFd), PlatformError> {
        let refused = |operation| move |source| PlatformError::Refused { operation, source };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let ends = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (socket, theirs) = ends.map_err(refused("creating a socket for a device"))?;
        let messages: [(i64, Option<BorrowedFd<'_>>); 3] =
            [(PROTOCOL, None), (peer.into(), None), (WINDOW, Some(window.as_fd()))];
        for (number, fd) in messages {
            seqpacket::send(&socket, &number.to_le_bytes(), fd.as_slice()).map_err(|error| {
                let source = match error {
                    SendError::Full => Errno::NOBUFS,
                    SendError::Closed => Errno::PIPE,
                    SendError::FdsInFlight => Errno::TOOMANYREFS,
                    SendError::Refused(source) => source,
                };
                refused("telling a device of its window")(source)
            })?;
        }
        Ok((Self { socket }, theirs))
    }

    /// Returns true if the device is gone: it was unplugged, or QEMU has ended. Data from QEMU is not read.
    pub fn is_gone(&self) -> bool {
        hangs_up(&self.socket)
    }
}

impl AsFd for PairDevice {
    /// The descriptor hangs up when the device goes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_layout::RegionSize;
    use isthmus_platform::local;
    use isthmus_shm::{Access, Mapping, Payload as _, SharedMapping};

    #[test]
    fn qemu_reads_its_whole_setup_from_the_socket() {
        let size = RegionSize(1 << 20);
        let window = local::memory(size).unwrap();
        let (device, qemu) = PairDevice::new(7, &window).unwrap();
        let next = || {
            let (mut number, mut fds) = ([0; 8], Vec::new());
            assert_eq!(seqpacket::receive(&qemu, &mut number, &mut fds, false).unwrap(), 8);
            (i64::from_le_bytes(number), fds.pop())
        };
        assert_eq!((next().0, next().0), (0, 7));
        let (-1, Some(window_fd)) = next() else { panic!("the window") };
        let map = |fd: &OwnedFd| SharedMapping::new(Mapping::new(fd, size, Access::ReadWrite).unwrap());
        map(&window).copy_in(4096, b"in common");
        let mut seen = [0; 9];
        map(&window_fd).copy_out(4096, &mut seen);
        assert_eq!(&seen, b"in common");
        assert!(!device.is_gone());
        drop(qemu);
        assert!(device.is_gone());
    }
}
