//! SIGINT and SIGTERM as events to wait for, so that the file of an interrupted capture is complete.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// A descriptor for both signals, which have no other effect while it exists.
#[derive(Debug)]
pub(super) struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals in this thread. The program must have no other threads, because the signals would still end it there.
    pub(super) fn take() -> io::Result<Self> {
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        signals.thread_block()?;
        Ok(Self(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// Returns whether a signal has arrived since the last call.
    pub(super) fn is_pending(&self) -> io::Result<bool> {
        Ok(self.0.read_signal()?.is_some())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
