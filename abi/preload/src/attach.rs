//! The step from a paired connection to one that uses its stream.
//!
//! A connection attaches only if the program is known to wait for it through the library: its epoll set was waited on since the socket was
//! added, or the socket was polled, or calls block. A program that waits past the library stays on TCP.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use isthmus_layout::sockets::StreamState;

use crate::connection::{Connection, Stage, Stream};
use crate::epoll_set::Enlisted;
use crate::inside::Held;
use crate::table::InUse;
use crate::{kernel, leave, session, waiter};

/// How an attempt ended.
enum Attempt {
    Done,
    /// A thread is in the kernel for this connection, or it is not yet known how the program waits. A later call tries again.
    Later,
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
            Self::try_attach(this, fd, None);
        }
    }

    /// Attaches a paired connection if it can. `armed` is a one-shot entry that the program arms now.
    #[cold]
    pub(crate) fn try_attach(this: &InUse<Self>, fd: c_int, armed: Option<u32>) {
        let Some(stream) = this.paired() else { return };
        match this.attempt(fd, stream, armed) {
            Attempt::Later => {}
            Attempt::Done => stream.notify_all(),
            Attempt::Never => {
                stream.stays_unused();
                this.move_stage(Stage::Paired, Stage::Off); // The daemon learns it when the connection is closed.
            }
        }
    }

    fn attempt(&self, fd: c_int, stream: &Stream, armed: Option<u32>) -> Attempt {
        if self.links().is_empty() && !self.is_awaited.load(Ordering::Relaxed) && kernel::is_nonblocking(fd) {
            return Attempt::Later;
        }
        let _held = Held::begin(); // A handler that uses the connection would wait for the end of the attempt.
        let Some(counted) = self.plain.close() else { return Attempt::Later };
        let attempt = self.attempt_closed(fd, stream, counted, armed);
        if !matches!(attempt, Attempt::Done) {
            self.plain.open();
        }
        attempt
    }

    /// Attaches while no call reads, writes or waits on TCP.
    fn attempt_closed(&self, fd: c_int, stream: &Stream, counted: (u64, u64), armed: Option<u32>) -> Attempt {
        if !self.is_sole() || leave::do_all_stay() {
            return Attempt::Never;
        }
        match self.counts_all_bytes(fd, counted) {
            None => return Attempt::Later,
            Some(false) => return Attempt::Never,
            Some(true) => {}
        }
        if !self.set_shared(counted.0, counted.1) {
            return Attempt::Never;
        }
        let links = self.links();
        let is_watched = match links.as_slice() {
            // Without an epoll set, threads wait for the stream. One without a waiter would have to look again and again.
            [] => match waiter::with_thread(|thread| thread.serves(&stream.board)) {
                Some(true) => Enlisted::Yes,
                _ => Enlisted::Never,
            },
            [(set, at)] => set.enlist(*at, stream, armed == Some(*at)),
            _ => Enlisted::Never, // One wish serves one set.
        };
        self.nonblocking.store(kernel::is_nonblocking(fd), Ordering::Relaxed);
        self.note_inq(fd);
        if is_watched == Enlisted::Yes && self.move_stage(Stage::Paired, Stage::Attached) {
            stream.memory.add_state(StreamState::ATTACHED);
            return Attempt::Done;
        }
        links.iter().for_each(|(set, at)| set.delist(*at));
        self.clear_shared();
        if is_watched == Enlisted::Later { Attempt::Later } else { Attempt::Never }
    }

    /// Returns whether the library has counted every byte that the kernel carried. None while bytes move.
    fn counts_all_bytes(&self, fd: c_int, counted: (u64, u64)) -> Option<bool> {
        for _ in 0..4 {
            let carried = kernel::carried(fd, self.is_connector());
            if carried != kernel::carried(fd, self.is_connector()) {
                continue; // The kernel answers in two calls, between which bytes may move.
            }
            return Some(carried.map(|carried| (carried.sent, carried.received)) == Some(counted));
        }
        None
    }
}
