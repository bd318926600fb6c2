//! A descriptor that tokio tells us about when it becomes readable.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor of our own.
#[expect(
    deprecated,
    reason = "its successor is unsafe, because of types whose descriptor may change; an `OwnedFd`'s never does"
)]
pub(crate) fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Registers a descriptor of our own, for when it can be written to.
#[expect(deprecated, reason = "as above")]
pub(crate) fn register_writable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::WRITABLE)
}

/// Registers a descriptor of our own, for both.
#[expect(deprecated, reason = "as above")]
pub(crate) fn register_both(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE | Interest::WRITABLE)
}

/// A process that is readable once it has ended; none if there is none, or if it cannot be seen.
pub(crate) fn pidfd(pid: i32) -> Option<AsyncFd<OwnedFd>> {
    let pid = rustix::process::Pid::from_raw(pid)?;
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
    register(process).ok()
}
