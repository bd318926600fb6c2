//! The doorbells of one waiter for peers of other owners.
//!
//! Each such owner has a socket, of which its programs have the ringing end. The receiving ends lie in one epoll set of the library's, so the
//! waiter waits on one more descriptor, however many owners there are.
//!
//! A peer may set ready bits and ring without a reason. The waiter cannot tell which program of the owner does so. After [`IDLE_MAX`] of
//! these in a row it *mutes* the owner's page: nothing looks at the page or at the socket for a time. Streams of that owner are late by that
//! time at most, and those of other owners are not. Each page has a time of its own, and the clock ends it, also in a child of `fork`. One
//! timer for all only wakes a waiter that sleeps.

use core::cell::{Cell, OnceCell};

use isthmus_platform::Doorbell;
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::kernel;

/// Bits and rings of an owner without a reason in a row, after which its page is muted.
const IDLE_MAX: u32 = 16;

/// The nanoseconds for which a page is muted.
const MUTE_NS: u64 = 20_000_000;

const NS_A_SECOND: u64 = 1_000_000_000;

/// The timer among the events. No descriptor has this number.
const TIMER: u64 = u64::MAX;

/// The receiving ends, and the timer.
pub(crate) struct OwnerBells {
    epoll: OwnedFd,
    /// Made when a page is muted for the first time.
    timer: OnceCell<OwnedFd>,
    /// When the timer runs out. A time that has passed: it does not run.
    timer_until: Cell<u64>,
}

/// The receiving end of one owner.
pub(crate) struct OwnerBell {
    receiver: Doorbell,
    /// Bits and rings without a reason since the last one with a reason.
    idle: Cell<u32>,
    /// The time at which the page is looked at again. 0: it is not muted.
    muted_until: Cell<u64>,
}

impl OwnerBells {
    /// Makes the set without receiving ends. None if the kernel refuses it.
    pub(crate) fn new() -> Option<Self> {
        let epoll = kernel::placed(epoll::create(epoll::CreateFlags::CLOEXEC).ok()?);
        Some(Self { epoll, timer: OnceCell::new(), timer_until: Cell::new(0) })
    }

    /// Adds the receiving end of an owner.
    pub(crate) fn watch(&self, receiver: Doorbell) -> Option<OwnerBell> {
        let bell = OwnerBell { receiver, idle: Cell::new(0), muted_until: Cell::new(0) };
        self.add(&bell).then_some(bell)
    }

    fn add(&self, bell: &OwnerBell) -> bool {
        self.add_file(bell.receiver.as_fd(), bell.number())
    }

    fn add_file(&self, file: BorrowedFd<'_>, number: u64) -> bool {
        let watched = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, file, epoll::EventData::new_u64(number), watched).is_ok()
    }

    /// Removes a receiving end.
    pub(crate) fn forget(&self, bell: &OwnerBell) {
        let _ = epoll::delete(&self.epoll, &bell.receiver); // Not there while it is muted.
    }

    /// Counts a bit or a ring. Its reason is not known yet.
    pub(crate) fn count(&self, bell: &OwnerBell) {
        bell.idle.set(bell.idle.get().saturating_add(1));
        let until = kernel::now_ns() + MUTE_NS;
        if bell.idle.get() >= IDLE_MAX && bell.muted_until.get() == 0 && self.start_timer(until) {
            bell.muted_until.set(until);
            self.forget(bell);
        }
    }

    /// Lets the timer run out at a time, or earlier if it runs already: [`Self::take`] starts it again then.
    fn start_timer(&self, until: u64) -> bool {
        if self.timer_until.get() > kernel::now_ns() {
            return true;
        }
        let time = Timespec { tv_sec: (until / NS_A_SECOND) as i64, tv_nsec: (until % NS_A_SECOND) as i64 };
        let once = Itimerspec { it_interval: Timespec::default(), it_value: time };
        let starts = |timer: &OwnedFd| timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once).is_ok();
        let is_started = self.timer().is_some_and(starts);
        if is_started {
            self.timer_until.set(until);
        }
        is_started
    }

    fn timer(&self) -> Option<&OwnedFd> {
        if self.timer.get().is_none() {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = kernel::placed(timerfd_create(TimerfdClockId::Monotonic, flags).ok()?);
            if self.add_file(timer.as_fd(), TIMER) {
                let _ = self.timer.set(timer);
            }
        }
        self.timer.get()
    }

    /// Takes the events. `all`: the receiving ends of the waiter.
    pub(crate) fn take<'a, I: Iterator<Item = &'a OwnerBell>>(&self, all: impl Fn() -> I) {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 32];
        let found = epoll::wait(&self.epoll, &mut events[..], Some(&Timespec::default())).unwrap_or(0);
        for event in &events[..found] {
            if event.data.u64() == TIMER {
                all().for_each(|bell| self.end_mute(bell));
                let next = all().map(|bell| bell.muted_until.get()).filter(|until| *until != 0).min();
                next.map(|until| self.start_timer(until));
            } else if let Some(bell) = all().find(|bell| bell.number() == event.data.u64()) {
                bell.receiver.clear();
                self.count(bell);
            }
        }
    }

    /// Watches the receiving end again if the time for which it is muted has passed.
    pub(crate) fn end_mute(&self, bell: &OwnerBell) {
        if bell.muted_until.get() == 0 || bell.is_muted() {
            return;
        }
        bell.receiver.clear();
        bell.idle.set(0);
        let until = kernel::now_ns() + MUTE_NS;
        let is_watched = self.add(bell) || !self.start_timer(until); // Without memory, it stays muted for another time.
        bell.muted_until.set(if is_watched { 0 } else { until });
    }
}

impl AsFd for OwnerBells {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl OwnerBell {
    fn number(&self) -> u64 {
        self.receiver.as_fd().as_raw_fd() as u64
    }

    /// True while nothing looks at the page and the socket.
    pub(crate) fn is_muted(&self) -> bool {
        let until = self.muted_until.get();
        until != 0 && kernel::now_ns() < until
    }

    #[cfg(test)]
    pub(crate) fn muted_until(&self) -> u64 {
        self.muted_until.get()
    }

    /// Notes that the owner's programs had a reason.
    pub(crate) fn had_reason(&self) {
        self.idle.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_platform::Ring as _;
    use rustix::event::{PollFd, PollFlags, poll};

    /// Waits for an event, for at most `seconds`, and takes it.
    fn has_event(bells: &OwnerBells, all: &[&OwnerBell], seconds: i64) -> bool {
        let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let found = poll(&mut [PollFd::new(bells, PollFlags::IN)], Some(&limit)).unwrap() == 1;
        bells.take(|| all.iter().copied());
        found
    }

    #[test]
    fn owner_that_rings_without_a_reason_is_muted_for_a_time_and_others_are_not() {
        let bells = OwnerBells::new().unwrap();
        let [(receiver, hostile), (other_receiver, honest)] = [(); 2].map(|()| Doorbell::socket_pair().unwrap());
        let [bell, other] = [receiver, other_receiver].map(|receiver| bells.watch(receiver).unwrap());
        let all = [&bell, &other];
        let fill = || (0..2000).for_each(|_| hostile.ring());
        for _ in 1..IDLE_MAX {
            fill();
            assert!(has_event(&bells, &all, 0) && !bell.is_muted());
            assert!(!has_event(&bells, &all, 0), "each ring is one event");
        }
        bell.had_reason();
        for _ in 0..IDLE_MAX {
            assert!(!bell.is_muted());
            fill();
            assert!(has_event(&bells, &all, 0));
        }
        assert!(bell.is_muted());
        fill();
        honest.ring();
        assert!(has_event(&bells, &all, 0), "the other owner rings");
        while bell.muted_until.get() != 0 {
            assert!(has_event(&bells, &all, 60), "the timer runs out");
        }
        fill();
        assert!(has_event(&bells, &all, 0) && !other.is_muted());
    }

    #[test]
    fn owner_that_is_muted_later_does_not_prolong_the_time_of_another() {
        let bells = OwnerBells::new().unwrap();
        let [bell, other] = [(); 2].map(|()| bells.watch(Doorbell::socket_pair().unwrap().0).unwrap());
        (0..IDLE_MAX).for_each(|_| bells.count(&bell));
        let (until, timer) = (bell.muted_until.get(), bells.timer_until.get());
        assert!(until != 0 && until == timer);
        while kernel::now_ns() == until - MUTE_NS {}
        (0..2 * IDLE_MAX).for_each(|_| bells.count(&other));
        assert!(bells.timer_until.get() == timer || bells.timer_until.get() > until);
        assert!(bell.muted_until.get() == until && other.muted_until.get() > until);
        // Both end without the timer's event, as in a child of `fork`, which does not take it.
        while bell.is_muted() || other.is_muted() {
            std::hint::spin_loop();
        }
        // The timer's event lets both be watched again, or starts the timer for the later one.
        while [&bell, &other].iter().any(|bell| bell.muted_until.get() != 0) {
            assert!(has_event(&bells, &[&bell, &other], 60));
        }
    }
}
