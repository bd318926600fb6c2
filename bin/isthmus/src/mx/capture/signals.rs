//! SIGINT and SIGTERM as something to wait for, so that a capture that is told to end becomes a whole file.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Both signals. They do nothing else from now on.
#[derive(Debug)]
pub(super) struct Signals(SignalFd);

impl Signals {
    /// For a program that has only this thread: others would still end by them.
    pub(super) fn take() -> io::Result<Self> {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        signals.thread_block()?;
        Ok(Self(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// True if one of them has come since the last time.
    pub(super) fn is_pending(&self) -> io::Result<bool> {
        Ok(self.0.read_signal()?.is_some())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
