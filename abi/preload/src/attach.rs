//! The step from a paired connection to one that uses its stream.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use isthmus_layout::sockets::StreamState;

use crate::connection::{Connection, Stage, Stream};
use crate::table::InUse;
use crate::{kernel, session, waiter};

/// How an attempt ended.
enum Attempt {
    Done,
    /// A thread is in the kernel for this connection. The next call tries again.
    Busy,
    /// Bytes went past the library, or the connection has ended.
    Never,
}

impl Connection {
    /// Moves the upgrade on, if it is under way. Called at the beginning of calls of the program.
    #[inline]
    pub(crate) fn progress(this: &InUse<Self>, fd: c_int) {
        match this.stage() {
            Stage::Shown => session::look(),
            Stage::Paired => {}
            Stage::Attached => return this.stream().map_or((), |stream| this.heed(fd, stream)),
            _ => return,
        }
        if this.stage() == Stage::Paired {
            Self::try_attach(this, fd);
        }
    }

    #[cold]
    fn try_attach(this: &InUse<Self>, fd: c_int) {
        let Some(stream) = this.paired() else { return };
        match this.attempt(fd, stream) {
            Attempt::Busy => {}
            Attempt::Done => stream.notify_all(),
            Attempt::Never => this.set_stage(Stage::Off), // The daemon learns it when the connection is closed.
        }
    }

    fn attempt(&self, fd: c_int, stream: &Stream) -> Attempt {
        if self.polling.load(Ordering::Acquire) > 0 {
            return Attempt::Busy;
        }
        match self.counts_all_bytes(fd) {
            None => return Attempt::Busy,
            Some(false) => return Attempt::Never,
            Some(true) => {}
        }
        let links = self.links();
        let is_watched = match links.as_slice() {
            // Without an epoll set, threads wait for the stream. One without a waiter would have to look again and again.
            [] => waiter::with_thread(&stream.board, |thread| thread.waiter.is_some()) == Some(true),
            [(set, at)] => set.enlist(*at, stream),
            _ => false, // One wish serves one set.
        };
        if !is_watched {
            return Attempt::Never;
        }
        self.nonblocking.store(kernel::is_nonblocking(fd), Ordering::Relaxed);
        self.set_stage(Stage::Attached);
        stream.memory.add_state(StreamState::ATTACHED);
        Attempt::Done
    }

    /// Returns whether the library has counted every byte that the kernel carried. None while a thread reads or writes, or bytes move.
    fn counts_all_bytes(&self, fd: c_int) -> Option<bool> {
        let before = self.counts()?;
        for _ in 0..4 {
            let told = kernel::carried(fd, self.is_connector());
            if told != kernel::carried(fd, self.is_connector()) {
                continue; // The kernel answers in two calls, between which bytes may move.
            }
            let counted = told.map(|told| (told.sent, told.received));
            return (before == self.counts()?).then_some(counted == Some(before));
        }
        None
    }

    /// The bytes that the library has counted: sent and received. None while a call of the kernel is under way.
    fn counts(&self) -> Option<(u64, u64)> {
        let shared = self.shared();
        let received = shared.with_receiver(|receiver| (!receiver.is_in_tcp()).then(|| receiver.position()))?;
        let sent = shared.with_sender(|sender| (!sender.is_in_tcp()).then(|| sender.position()))?;
        Some((sent, received))
    }
}
