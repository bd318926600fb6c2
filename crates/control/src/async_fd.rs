//! Registers descriptors with tokio, which reports when they become ready.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor for reading.
#[expect(
    deprecated,
    reason = "its successor is unsafe, because the descriptor of some types may change; that of an `OwnedFd` never does"
)]
pub fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Registers a descriptor for writing.
#[expect(deprecated, reason = "as above")]
pub fn register_writable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::WRITABLE)
}

/// Registers a descriptor for reading and writing.
#[expect(deprecated, reason = "as above")]
pub fn register_both(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE | Interest::WRITABLE)
}

/// Returns a descriptor that becomes readable once the process has ended. Returns `None` if the process does not exist or is not visible.
pub fn pidfd(pid: i32) -> Option<AsyncFd<OwnedFd>> {
    let pid = rustix::process::Pid::from_raw(pid)?;
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
    register(process).ok()
}
