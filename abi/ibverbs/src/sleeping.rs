//! A thread of the program that sleeps in `ibv_get_cq_event()`: it serves meanwhile, so a message wakes one thread only.
//!
//! ```text
//!   doorbell ──► this thread: work of all peers ──► its event: returns
//!                                              └──► events of other channels: into their pipes
//! ```
//!
//! Handlers of signals run only while the thread is asleep: one that leaves by a jump would leave the lock of the device behind otherwise.
//!
//! The serving thread stands by until the program has been away for a while. One thread serves at a time. Further threads that sleep, on
//! the same channel or on others, sleep on the pipes. So do programs that poll the descriptor, and channels that do not block.

use crate::device::{Shared, set_errno};
use crate::events::ChannelPipe;
use crate::handover::{SleepSet, Woken};
use crate::serving::{self, Server, Visit};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A thread that sleeps for an event of a channel.
///
/// It may be cancelled there, as in libibverbs' function. Cancellation unwinds the stack, and may only unwind frames that have nothing to
/// drop. So this lies on the heap, and the destructor of a thread-specific value releases it.
#[derive(Debug)]
pub(crate) struct Sleep {
    shared: Arc<Shared>,
    channel: Arc<ChannelPipe>,
    state: Cell<State>,
    /// The signals that the program blocks.
    signals: Cell<libc::sigset_t>,
}

/// The state of a thread that sleeps for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Serves peers meanwhile.
    Serves,
    /// Counts as a thread that waits.
    Waits,
    /// Awake, or reading an event that is there.
    Neither,
}

/// The end of a turn of serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnEnd {
    /// The pipe has an event, as far as is known, or the device is closed.
    Event,
    /// A signal with `SA_RESTART`.
    Restarted,
    /// A signal without it, which ends the call.
    Interrupted,
}

impl Sleep {
    pub(crate) fn new(shared: Arc<Shared>, channel: Arc<ChannelPipe>) -> Self {
        Self { shared, channel, state: Cell::new(State::Neither), signals: Cell::new(no_signals()) }
    }

    /// Sleeps until the channel has an event, and reads it. The descriptor is the program's.
    pub(crate) fn get(self, fd: BorrowedFd<'_>, read: impl Fn() -> c_int) -> c_int {
        let blocks = || rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
        let must_sleep = !self.channel.take() && blocks() && !self.shared.lock().is_child();
        let Some(key) = sleep_key().filter(|_| must_sleep) else {
            drop(self);
            return read();
        };
        let sleep = Box::into_raw(Box::new(self));
        // SAFETY: the key is live. Its value is null, or from an earlier call that a handler of a signal has left by a jump.
        unsafe {
            let left = libc::pthread_getspecific(key);
            if !left.is_null() {
                leave(left);
            }
            libc::pthread_setspecific(key, sleep.cast());
        }
        let cancellation = set_cancellation(DISABLED);
        // SAFETY: from above.
        let result = unsafe { &*sleep }.run(fd, cancellation, read);
        // SAFETY: as above; the value is taken back.
        drop(unsafe {
            libc::pthread_setspecific(key, ptr::null());
            Box::from_raw(sleep)
        });
        set_cancellation(cancellation);
        result.unwrap_or_else(|errno| {
            set_errno(errno);
            -1
        })
    }

    fn run(&self, fd: BorrowedFd<'_>, cancellation: c_int, read: impl Fn() -> c_int) -> Result<c_int, Errno> {
        let handover = &self.shared.handover;
        let read = || {
            set_cancellation(cancellation);
            let result = read();
            set_cancellation(DISABLED);
            if result == 0 {
                self.channel.take();
            }
            Ok(result)
        };
        self.signals.set(set_signals(&all_signals()));
        let end = if handover.begin_turn() {
            self.state.set(State::Serves);
            let end = Turn::run(self, fd, cancellation);
            self.end_turn(end != TurnEnd::Event);
            Some(end)
        } else {
            None
        };
        set_signals(&self.signals.get());
        match end {
            Some(TurnEnd::Event) => return read(),
            Some(TurnEnd::Interrupted) => return Err(Errno::INTR),
            Some(TurnEnd::Restarted) | None => {}
        }
        handover.begin_wait();
        self.state.set(State::Waits);
        let result = read();
        self.end_wait();
        result
    }

    fn end_turn(&self, at_once: bool) {
        let handover = &self.shared.handover;
        let mut adapter = self.shared.lock();
        self.state.set(State::Neither);
        let at_once = at_once || !handover.is_stopped() && adapter.is_other_armed(&self.channel);
        handover.end_turn(at_once);
    }

    fn end_wait(&self) {
        self.state.set(State::Neither);
        self.shared.handover.end_wait();
    }
}

/// The key of the [`Sleep`] of a thread. None if the process has too many.
fn sleep_key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the place has room for a key.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(leave)) } == 0).then_some(key)
    })
}

/// The thread was cancelled in its call, or a handler of a signal has left it by a jump.
unsafe extern "C" fn leave(sleep: *mut c_void) {
    // SAFETY: from `Sleep::get`, which does not go on.
    let sleep = unsafe { Box::from_raw(sleep.cast::<Sleep>()) };
    match sleep.state.get() {
        State::Serves => sleep.end_turn(true),
        State::Waits => sleep.end_wait(),
        State::Neither => {}
    }
}

/// The empty set of signals.
fn no_signals() -> libc::sigset_t {
    // SAFETY: all zeroes are a set without signals.
    unsafe { std::mem::zeroed() }
}

/// All signals but those that libc keeps to itself, and [`FAULTS`]: a program may handle one of its memory that is copied here.
fn all_signals() -> libc::sigset_t {
    let mut all = no_signals();
    // SAFETY: the place has room for a set.
    unsafe {
        libc::sigfillset(&raw mut all);
        FAULTS.iter().for_each(|signal| _ = libc::sigdelset(&raw mut all, *signal));
    }
    all
}

/// Sets the signals that this thread blocks. Returns the previous ones.
fn set_signals(signals: &libc::sigset_t) -> libc::sigset_t {
    let mut before = no_signals();
    // SAFETY: a set, and room for another one.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, signals, &raw mut before) };
    before
}

/// `PTHREAD_CANCEL_DISABLE`
const DISABLED: c_int = 1;

/// Sets whether this thread may be cancelled. Returns how it was before.
fn set_cancellation(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: the place has room for the state.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

unsafe extern "C-unwind" {
    /// Cancels the thread, if that is pending and the type of cancellation is asynchronous.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;

    /// A point of cancellation, which is why it may unwind.
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
}

/// A turn of serving. It has nothing to drop while it sleeps.
struct Turn<'a> {
    sleep: &'a Sleep,
    /// The program's end of the pipe.
    fd: BorrowedFd<'a>,
    /// The program's state of cancellation.
    cancellation: c_int,
    /// [`ChannelPipe::sent`] before the turn.
    sent: u32,
    end: TurnEnd,
}

impl<'a> Turn<'a> {
    fn run(sleep: &'a Sleep, fd: BorrowedFd<'a>, cancellation: c_int) -> TurnEnd {
        let mut turn = Self { sleep, fd, cancellation, sent: sleep.channel.sent(), end: TurnEnd::Event };
        if serving::serve(&mut turn).is_some() {
            serving::watch(&mut turn, &sleep.shared.handover);
        }
        turn.end
    }
}

impl Server for Turn<'_> {
    fn set(&self) -> &SleepSet {
        &self.sleep.shared.handover.program
    }

    fn visit(&mut self, stays: bool) -> Visit {
        let Sleep { shared, channel, .. } = self.sleep;
        let has_event = || channel.sent() != self.sent;
        let mut adapter = shared.lock();
        if shared.handover.is_stopped() {
            return Visit::Over;
        }
        shared.handover.program_wakes();
        shared.handover.note_visit(adapter.serve(has_event));
        if has_event() {
            return Visit::Over;
        }
        match adapter.prepare_sleep() {
            _ if has_event() => Visit::Over,
            None => Visit::Unfinished,
            Some(limit) => {
                if stays {
                    shared.handover.program_sleeps();
                }
                Visit::Armed(limit)
            }
        }
    }

    fn sleep(&mut self, limit: Option<Duration>) -> Option<Woken> {
        let handover = &self.sleep.shared.handover;
        let descriptors = [self.fd.as_raw_fd(), handover.program.as_fd().as_raw_fd()];
        let mut fds = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        let signals = self.sleep.signals.get();
        // SAFETY: the array has two elements, the set is one, and the time is null or lives until the end of the call.
        let ready = unsafe {
            set_cancellation(self.cancellation);
            let ready = ppoll(fds.as_mut_ptr(), 2, limit, &raw const signals);
            set_cancellation(DISABLED);
            ready
        };
        if ready < 0 {
            self.end = if has_restarting_handler() { TurnEnd::Restarted } else { TurnEnd::Interrupted };
            return None;
        }
        if fds[0].revents != 0 || handover.is_stopped() {
            return None;
        }
        Some(if ready == 0 { Woken::default() } else { handover.program.sleep(Some(Duration::ZERO)) })
    }
}

/// True if a read that a signal interrupts may begin again: a handler of the program is installed with `SA_RESTART`. The kernel does not
/// say which handler has run. If handlers of both kinds are installed, a read begins again.
fn has_restarting_handler() -> bool {
    let mut any = false;
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)) {
        // SAFETY: all zeroes are an action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the place has room for an action, and nothing is changed.
        let known = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } == 0;
        let handled = known && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        any |= handled;
        if handled && action.sa_flags & libc::SA_RESTART != 0 {
            return true;
        }
    }
    !any
}

/// Signals that a thread sends itself by an error, and not while it sleeps.
const FAULTS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
