//! State by which the program's calls, the serving thread, and a thread of the program that sleeps for an event agree on which of them
//! serves.

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

/// The time that a program has between two sleeps for an event before the serving thread acts for peers again.
const STAND_BY: Duration = Duration::from_millis(5);

/// Visits in a row without an access of a peer, after which calls of the program do not arm the domain any more.
const VAIN_VISITS_MAX: u8 = 8;

/// The serving thread sleeps without a limit on the armed domain.
const THREAD: u8 = 1;

/// A thread of the program does.
const PROGRAM: u8 = 2;

/// The words and descriptors of an open device. In the common case each word is written by one side.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Handover {
    /// Counts calls of the program.
    calls: AtomicU32,
    /// [`THREAD`] and [`PROGRAM`]: those that a call of the program has to wake, because it may end the arming of the domain.
    asleep: AtomicU8,
    stopped: AtomicBool,
    /// The number of visits without an access after which calls arm the domain no more. Zero while they do not.
    vain_visits_left: AtomicU8,
    /// A thread of the program sleeps for an event, and serves meanwhile.
    has_turn: AtomicBool,
    /// Further threads of the program that sleep for events.
    waiting: AtomicU32,
    /// The serving thread sleeps here.
    pub(crate) thread: SleepSet,
    /// The thread of the program sleeps here.
    pub(crate) program: SleepSet,
    /// Ends the stand-by of the serving thread.
    timer: OwnedFd,
    /// The timer runs, or has run and the serving thread has not looked yet.
    timer_set: AtomicBool,
}

impl Handover {
    pub(crate) fn new(domain: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        Ok(Self {
            calls: AtomicU32::new(0),
            asleep: AtomicU8::new(0),
            stopped: AtomicBool::new(false),
            vain_visits_left: AtomicU8::new(0),
            has_turn: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            thread: SleepSet::new(domain)?,
            program: SleepSet::new(domain)?,
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?,
            timer_set: AtomicBool::new(false),
        })
    }

    /// The program makes a call that does the work of the serving thread as well. Called under the lock of the device.
    #[inline]
    pub(crate) fn note_call(&self) {
        self.calls.store(self.calls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.wake_asleep();
        }
    }

    #[cold]
    fn wake_asleep(&self) {
        self.wake_thread();
        if self.asleep.fetch_and(!PROGRAM, Ordering::Relaxed) & PROGRAM != 0 {
            self.program.wake();
        }
    }

    /// Wakes the serving thread, if it sleeps without a limit.
    fn wake_thread(&self) {
        if self.asleep.fetch_and(!THREAD, Ordering::Relaxed) & THREAD != 0 {
            self.thread.wake();
        }
    }

    /// The number of calls so far.
    pub(crate) fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    /// A server has visited the device, or did not because the program makes calls. `accessed` is true if it has performed accesses of
    /// peers: then peers have waited for it, and calls arm the domain as they end.
    pub(crate) fn note_visit(&self, accessed: bool) {
        let left = self.vain_visits_left.load(Ordering::Relaxed);
        let new = if accessed { VAIN_VISITS_MAX } else { left.saturating_sub(1) };
        if new != left {
            self.vain_visits_left.store(new, Ordering::Relaxed);
        }
    }

    /// True if a call of the program arms the domain as it ends, because the program may then poll memory until a peer has written it.
    #[inline]
    pub(crate) fn arms_after_calls(&self) -> bool {
        self.vain_visits_left.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.thread.wake();
        self.program.wake();
        self.end_stand_by();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// True if a thread of the program serves.
    pub(crate) fn has_turn(&self) -> bool {
        self.has_turn.load(Ordering::SeqCst)
    }

    /// The serving thread is going to sleep on the armed domain. Called inside of the gate, under the lock.
    pub(crate) fn thread_sleeps(&self) {
        self.asleep.fetch_or(THREAD, Ordering::Relaxed);
    }

    /// The serving thread is awake. Called inside of the gate.
    pub(crate) fn thread_wakes(&self) {
        self.asleep.fetch_and(!THREAD, Ordering::Relaxed);
    }

    /// Waits, as the serving thread, until it has to look whether a thread of the program still serves.
    pub(crate) fn wait_for_timer(&self) {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
    }

    /// The serving thread is going to look, after a wait. Called inside of the gate.
    pub(crate) fn timer_is_over(&self) {
        // With `end_turn` (argued): all four accesses are in one order. So a thread of the program that still finds the timer set has
        // left before this store, and the serving thread finds that it has.
        self.timer_set.store(false, Ordering::SeqCst);
    }

    fn end_stand_by(&self) {
        self.timer_set.store(true, Ordering::SeqCst);
        self.set_timer(Duration::from_nanos(1));
    }

    fn set_timer(&self, after: Duration) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval: zero, it_value: Timespec::try_from(after).unwrap_or(zero) };
        // Refused only for values that are no times.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value);
    }

    /// A thread of the program that sleeps for an event serves meanwhile. False if another one sleeps: this one sleeps on its pipe then.
    pub(crate) fn begin_turn(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0 && !self.has_turn.swap(true, Ordering::SeqCst)
    }

    /// A thread of the program sleeps for an event, and does not serve.
    pub(crate) fn begin_wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread of the program that did not serve sleeps no more.
    pub(crate) fn end_wait(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// The thread of the program is going to sleep on the armed domain. Called under the lock.
    pub(crate) fn program_sleeps(&self) {
        self.asleep.fetch_or(PROGRAM, Ordering::Relaxed);
    }

    /// The thread of the program is awake. Called under the lock.
    pub(crate) fn program_wakes(&self) {
        self.asleep.fetch_and(!PROGRAM, Ordering::Relaxed);
    }

    /// The turn of the thread of the program is over. The serving thread looks at once, or when the program had time to sleep again. Called
    /// under the lock.
    pub(crate) fn end_turn(&self, at_once: bool) {
        self.program_wakes();
        self.wake_thread();
        self.has_turn.store(false, Ordering::SeqCst);
        if at_once || self.waiting.load(Ordering::Relaxed) > 0 {
            self.end_stand_by();
        } else if !self.timer_set.swap(true, Ordering::SeqCst) {
            self.set_timer(STAND_BY);
        }
    }
}

/// Why a sleep has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Woken {
    /// A doorbell of the domain.
    pub(crate) rung: bool,
    /// The program, which makes a call or closes the device.
    pub(crate) called: bool,
}

/// The descriptors on which a server sleeps.
#[derive(Debug)]
pub(crate) struct SleepSet {
    set: OwnedFd,
    wake_fd: OwnedFd,
}

impl SleepSet {
    const RUNG: u64 = 1;
    const CALLED: u64 = 2;

    /// The descriptor of the domain may stay readable while the program polls, so only a new doorbell counts.
    fn new(domain: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let wake_fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&set, domain, EventData::new_u64(Self::RUNG), EventFlags::IN | EventFlags::ET)?;
        epoll::add(&set, &wake_fd, EventData::new_u64(Self::CALLED), EventFlags::IN)?;
        Ok(Self { set, wake_fd })
    }

    /// Sleeps until there is a reason to wake, or the limit is over.
    pub(crate) fn sleep(&self, limit: Option<Duration>) -> Woken {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut events = [const { MaybeUninit::uninit() }; 2];
        // Interrupted, it is as if the limit were over: the caller looks.
        let Ok((happened, _)) = epoll::wait(&self.set, &mut events[..], limit.as_ref()) else {
            return Woken::default();
        };
        let has = |tag| happened.iter().any(|event| event.data.u64() == tag);
        Woken { rung: has(Self::RUNG), called: has(Self::CALLED) }
    }

    fn wake(&self) {
        // Refused where the counter is full: then it is readable, which is all that is wanted.
        let _ = rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes());
    }

    /// Forgets that the program has called.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.wake_fd, &mut [0; 8]);
    }
}

impl AsFd for SleepSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handover() -> Handover {
        let domain = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
        Handover::new(domain.as_fd()).expect("descriptors")
    }

    #[test]
    fn one_thread_serves_while_no_other_one_sleeps() {
        let handover = handover();
        assert!(handover.begin_turn() && handover.has_turn());
        assert!(!handover.begin_turn());
        handover.begin_wait();
        handover.end_turn(false);
        assert!(!handover.has_turn() && !handover.begin_turn());
        handover.end_wait();
        assert!(handover.begin_turn());
    }

    #[test]
    fn each_end_of_a_turn_ends_the_stand_by() {
        let handover = handover();
        for at_once in [false, true, false] {
            assert!(handover.begin_turn());
            handover.end_turn(at_once);
            handover.wait_for_timer(); // It hangs if the timer does not run.
            handover.timer_is_over();
        }
    }

    #[test]
    fn a_call_wakes_those_that_sleep_on_the_armed_domain_once() {
        let handover = handover();
        handover.note_call();
        assert!(!handover.program.sleep(Some(Duration::ZERO)).called);
        handover.program_sleeps();
        handover.note_call();
        assert!(handover.program.sleep(None).called && !handover.thread.sleep(Some(Duration::ZERO)).called);
        handover.program.clear();
        handover.note_call();
        assert!(!handover.program.sleep(Some(Duration::ZERO)).called);
        assert_eq!(handover.calls(), 3);
    }
}
