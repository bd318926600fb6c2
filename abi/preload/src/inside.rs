//! What a thread does inside the library, in memory of the thread that signal handlers read.
//!
//! While a thread *holds* signals, no handler of the program runs in it: it has a lock, or an object is between two states. A signal that
//! arrives then is deferred to the end of that time ([`crate::signals`]). Holding costs two writes to memory of the thread.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

/// The state of a thread. Only the thread itself and handlers that run in it use it, so the orderings are those of one thread.
pub(crate) struct ThreadState {
    /// Calls are made by the library's own parts, and are the kernel's.
    inside: AtomicU32,
    /// Reasons to hold signals.
    held: AtomicU32,
    /// The deferred signal. 0: none.
    pub(crate) deferred: AtomicI32,
    /// What the kernel has told of the deferred signal.
    pub(crate) told: UnsafeCell<MaybeUninit<libc::siginfo_t>>,
    /// The signals that were blocked before one was deferred.
    pub(crate) mask: AtomicU64,
    /// Handlers of the program that have run, and those of them that do not restart calls.
    pub(crate) handled: AtomicU32,
    pub(crate) handled_ending: AtomicU32,
    /// Signals of the library's own.
    pub(crate) alarms: AtomicU32,
    /// A doorbell that ends the thread's sleep in the kernel, plus 1. 0: the thread is not about to sleep.
    pub(crate) bell: AtomicI32,
    /// The place to go on after a fault of the copy that is under way. 0: none is.
    pub(crate) copy: AtomicUsize,
}

thread_local! {
    static STATE: ThreadState = const {
        ThreadState {
            inside: AtomicU32::new(0),
            held: AtomicU32::new(0),
            deferred: AtomicI32::new(0),
            told: UnsafeCell::new(MaybeUninit::zeroed()),
            mask: AtomicU64::new(0),
            handled: AtomicU32::new(0),
            handled_ending: AtomicU32::new(0),
            alarms: AtomicU32::new(0),
            bell: AtomicI32::new(0),
            copy: AtomicUsize::new(0),
        }
    };
}

/// Returns the state of this thread. It is used before the thread ends.
#[inline]
pub(crate) fn state() -> &'static ThreadState {
    // SAFETY: the value has no destructor, so it lives as long as its thread, and no caller passes the reference to another one.
    STATE.with(|state| unsafe { &*core::ptr::from_ref(state) })
}

impl ThreadState {
    /// Begins to hold signals.
    #[inline]
    pub(crate) fn hold(&self) {
        self.held.store(self.held.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// Ends what [`Self::hold`] began. The last end delivers a signal that was deferred.
    #[inline]
    pub(crate) fn release(&self) {
        compiler_fence(Ordering::SeqCst);
        let left = self.held.load(Ordering::Relaxed) - 1;
        self.held.store(left, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if left == 0 && self.deferred.load(Ordering::Relaxed) != 0 {
            crate::signals::deliver(self);
        }
    }

    /// True if the thread holds signals.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) != 0
    }
}

/// Holds signals until it is dropped.
pub(crate) struct Held(&'static ThreadState);

impl Held {
    /// Begins.
    #[inline]
    pub(crate) fn begin() -> Self {
        let state = state();
        state.hold();
        Self(state)
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Marks that the library's own parts make calls, until it is dropped. It holds signals, too.
///
/// Descriptors of the library are closed by the C library's `close`, which is a hook. Their numbers may be those of sockets that the program
/// has closed past the library.
pub(crate) struct Inside(Held);

impl Inside {
    /// Enters.
    pub(crate) fn enter() -> Self {
        let held = Held::begin();
        held.0.inside.store(held.0.inside.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Self(held)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let inside = &self.0.0.inside;
        inside.store(inside.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}

/// True if the library itself makes the call.
#[inline]
pub(crate) fn is_inside() -> bool {
    state().inside.load(Ordering::Relaxed) != 0
}

/// The handlers of the program that have run in this thread so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handled {
    all: u32,
    ending: u32,
    alarms: u32,
}

/// What handlers mean for a call that they have interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// No handler has run.
    None,
    /// All that have run restart calls.
    Restarts,
    Ends,
}

impl Handled {
    /// Notes what has run until now.
    pub(crate) fn now() -> Self {
        let state = state();
        let [all, ending, alarms] =
            [&state.handled, &state.handled_ending, &state.alarms].map(|count| count.load(Ordering::Relaxed));
        Self { all, ending, alarms }
    }

    /// Returns what the handlers mean that have run since.
    pub(crate) fn since(self) -> Interruption {
        match Self::now() {
            now if now.ending != self.ending => Interruption::Ends,
            now if now.all != self.all => Interruption::Restarts,
            _ => Interruption::None,
        }
    }

    /// Returns true if a call was interrupted by the library's own signal alone, of which the program must not learn.
    pub(crate) fn was_only_alarm(self, code: c_int) -> bool {
        code == libc::EINTR && self.since() == Interruption::None && Self::now().alarms != self.alarms
    }
}

/// Says which doorbell ends the sleep that follows, until it is dropped: a handler that runs before the kernel sleeps rings it.
pub(crate) struct SleepBell(&'static ThreadState, c_int);

impl SleepBell {
    /// Begins. The caller asks [`Handled::since`] after this.
    pub(crate) fn begin(doorbell: c_int) -> Self {
        let state = state();
        let before = state.bell.load(Ordering::Relaxed);
        state.bell.store(doorbell + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Self(state, before)
    }
}

impl Drop for SleepBell {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.0.bell.store(self.1, Ordering::Relaxed);
    }
}
