//! The waiter of an epoll set or of a blocked thread: a page of the board, and a doorbell.

use std::cell::{RefCell, UnsafeCell};
use std::sync::Arc;

use isthmus_channel::wait::AdaptiveSpin;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::{ALARM, WaiterIndex, Want};
use isthmus_platform::{Doorbell, Ring};
use isthmus_shm::SharedMapping;
use isthmus_shm::stream::Board;
use rustix::fd::{AsFd, AsRawFd};

use crate::inside::SleepBell;
use crate::private_lock::PrivateLock;
use crate::session;

/// The lock of the waiters of all boards. It is taken after that of a set, and before that of the session.
pub(crate) static LOCK: PrivateLock<()> = PrivateLock::new(());

/// The board of this process, and its waiters.
pub(crate) struct LocalBoard {
    pub(crate) board: Board<SharedMapping>,
    /// [`LOCK`] guards them.
    waiters: UnsafeCell<Waiters>,
}

// SAFETY: the waiters are used under a lock.
unsafe impl Sync for LocalBoard {}

#[derive(Default)]
struct Waiters {
    free: Vec<(WaiterIndex, Doorbell)>,
    made: u8,
}

/// A waiter. It returns to its board when dropped.
pub(crate) struct Waiter {
    pub(crate) board: Arc<LocalBoard>,
    pub(crate) index: WaiterIndex,
    pub(crate) doorbell: Doorbell,
}

impl LocalBoard {
    pub(crate) fn new(memory: SharedMapping) -> Self {
        Self { board: Board::new(memory), waiters: UnsafeCell::default() }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Waiters) -> R) -> R {
        // SAFETY: under the lock.
        LOCK.with(|()| f(unsafe { &mut *self.waiters.get() }))
    }

    /// Returns a waiter. None if the board has no more, or the daemon does not answer.
    pub(crate) fn waiter(self: &Arc<Self>) -> Option<Waiter> {
        let (index, doorbell) = self.with(|waiters| match waiters.free.pop() {
            Some(free) => Some(free),
            None => {
                let index = WaiterIndex::new(waiters.made).filter(|_| waiters.made < ALARM)?;
                // Also when the daemon does not answer in time: it may have given the doorbell of this index to peers.
                waiters.made += 1;
                Some((index, session::new_doorbell(self, index)?))
            }
        })?;
        Some(Waiter { board: Arc::clone(self), index, doorbell })
    }
}

impl Waiter {
    /// The descriptor to wait on.
    pub(crate) fn fd(&self) -> core::ffi::c_int {
        self.doorbell.as_fd().as_raw_fd()
    }

    /// The wish of a stream that this waiter checks before it sleeps.
    pub(crate) fn hot(&self) -> Want {
        Want::Hot(self.index)
    }

    /// The wish of a stream that this waiter does not check.
    pub(crate) fn parked(&self, ready_bit: ReadyBit) -> Want {
        Want::Parked { waiter: self.index, ready_bit }
    }

    /// Marks the waiter as sleeping. Returns true if it may sleep.
    pub(crate) fn begin_sleep(&self) -> bool {
        self.board.board.ready_map(self.index).begin_sleep()
    }

    /// Marks the waiter as awake.
    pub(crate) fn end_sleep(&self) {
        self.board.board.ready_map(self.index).end_sleep();
    }

    /// Wakes the waiter if it sleeps.
    pub(crate) fn wake(&self) {
        if self.board.board.wake_hot(self.index) {
            self.doorbell.ring();
        }
    }
}

/// Marks a thread's sleep with a waiter that [`Waiter::begin_sleep`] allows, until it is dropped. A thread that is cancelled drops it, too.
pub(crate) struct Asleep<'a> {
    waiter: &'a Waiter,
    _bell: SleepBell,
}

impl<'a> Asleep<'a> {
    /// Begins.
    pub(crate) fn begin(waiter: &'a Waiter) -> Self {
        Self { waiter, _bell: SleepBell::begin(waiter.fd()) }
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.waiter.end_sleep();
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.board.board.ready_map(self.index).drain(|_| {});
        self.board.with(|waiters| waiters.free.push((self.index, self.doorbell.clone())));
    }
}

/// A thread's own means of waiting.
pub(crate) struct ThreadWaiter {
    pub(crate) spin: AdaptiveSpin,
    pub(crate) waiter: Option<Waiter>,
}

thread_local! {
    static THREAD: RefCell<ThreadWaiter> =
        RefCell::new(ThreadWaiter { spin: AdaptiveSpin::new(crate::settings::get().wait), waiter: None });
}

/// Calls `f` with the waiter of this thread on `board`. The waiter is None if the board has no more.
pub(crate) fn with_thread<R>(board: &Arc<LocalBoard>, f: impl FnOnce(&mut ThreadWaiter) -> R) -> Option<R> {
    let with = |thread: &RefCell<ThreadWaiter>| {
        let mut thread = thread.try_borrow_mut().ok()?;
        if thread.waiter.as_ref().is_none_or(|waiter| !Arc::ptr_eq(&waiter.board, board)) {
            thread.waiter = board.waiter();
        }
        Some(f(&mut thread))
    };
    THREAD.try_with(with).ok().flatten()
}
