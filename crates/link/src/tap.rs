//! A TAP: the end of a virtual Ethernet interface at which a program reads the frames that the interface sends, and writes those that it
//! receives.
//!
//! Each frame follows a virtio-net header of [`TAP_HEADER_BYTES`](crate::TAP_HEADER_BYTES), which describes its offloads. A frame that passes from one TAP to
//! another one keeps this header, so no checksum is computed and no segment is cut.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, read, writev};

use crate::{LinkError, TAP_HEADER_BYTES};

/// The size of a buffer that holds every frame with its virtio-net header: 64 KiB of data behind an Ethernet header with VLAN tags.
pub const TAP_FRAME_BYTES_MAX: usize = TAP_HEADER_BYTES + 14 + 4 * 4 + 65_535;

/// `EBADFD`: the interface of the descriptor no longer exists.
const NO_INTERFACE: Errno = Errno::BADFD;

/// A TAP, as a descriptor that does not block.
#[derive(Debug)]
pub struct Tap {
    name: String,
    fd: OwnedFd,
}

/// The result of writing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a frame that was not written is lost"]
pub enum TapWrite {
    /// The interface has received the frame.
    Written,
    /// The interface is down.
    Down,
    /// The kernel has no memory for the frame now.
    NoRoom,
    /// The kernel does not accept the frame or its header.
    Refused,
}

impl Tap {
    /// Wraps the descriptor of an open TAP. `name` is used in errors.
    pub fn new(name: impl Into<String>, fd: OwnedFd) -> Self {
        Self { name: name.into(), fd }
    }

    /// Returns the name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the next frame, with its virtio-net header. Returns its length, or none if no frame waits. The kernel cuts a frame that is longer
    /// than `into`. An error means that the interface no longer exists.
    pub fn read(&self, into: &mut [u8]) -> Result<Option<usize>, LinkError> {
        loop {
            match read(&self.fd, &mut *into) {
                Ok(len) => return Ok(Some(len)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("reading a frame", errno)),
            }
        }
    }

    /// Writes a frame that is in several parts; the first begins with the virtio-net header. An error means that the interface no longer exists.
    pub fn write(&self, parts: &[IoSlice<'_>]) -> Result<TapWrite, LinkError> {
        loop {
            return match writev(&self.fd, parts) {
                Ok(_) => Ok(TapWrite::Written),
                Err(Errno::INTR) => continue,
                Err(Errno::IO) => Ok(TapWrite::Down),
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => Ok(TapWrite::NoRoom),
                Err(NO_INTERFACE) => Err(self.failed("writing a frame", NO_INTERFACE)),
                Err(_) => Ok(TapWrite::Refused),
            };
        }
    }

    fn failed(&self, operation: &'static str, source: Errno) -> LinkError {
        LinkError { link: self.name.clone(), operation, source }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
