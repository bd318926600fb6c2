//! Sleeping: what there is to sleep on, and when a program that only polls had better sleep.

use crate::errno::Errno;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

const NUDGE: u64 = 1;

/// What those who wait on a domain sleep on: the descriptors of all its endpoints, and a nudge by other threads.
#[derive(Debug)]
pub(crate) struct Bell {
    set: OwnedFd,
    nudge: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> Result<Self, Errno> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let nudge = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&set, &nudge, EventData::new_u64(NUDGE), EventFlags::IN)?;
        Ok(Self { set, nudge })
    }

    /// Listens to an endpoint too, for as long as its descriptor is open.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        Ok(epoll::add(&self.set, fd, EventData::new_u64(0), EventFlags::IN)?)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Wakes who sleeps.
    pub(crate) fn ring(&self) {
        // Refused where the counter is full: then it is readable, which is all that is wanted.
        let _ = rustix::io::write(&self.nudge, &1_u64.to_ne_bytes());
    }

    /// What woke those who slept is heard.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.nudge, &mut [0; 8]);
    }

    /// Sleeps.
    pub(crate) fn sleep(&self, limit: Duration) {
        let mut events = [const { MaybeUninit::uninit() }; 4];
        let limit = Timespec::try_from(limit).ok();
        if let Ok((happened, _)) = epoll::wait(&self.set, &mut events[..], limit.as_ref())
            && happened.iter().any(|event| event.data.u64() == NUDGE)
        {
            self.silence();
        }
    }
}

/// When a wait ends: a negative number of milliseconds is never.
pub(crate) fn deadline(timeout_ms: i32) -> Option<Instant> {
    u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms))
}

/// What is left until then; a long time where there is no end.
pub(crate) fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::from_secs(3600), |deadline| deadline.saturating_duration_since(Instant::now()))
}

/// Looks that find nothing before the processor is offered to others.
const PATIENCE: u32 = 400;

/// Looks between two offers.
const OFFER_EVERY: u32 = 50;

/// The same for who is alone: nobody has accepted any of the last ones.
const OFFER_EVERY_ALONE: u32 = 800;

/// An offer that took longer was accepted: somebody else had to run.
const ACCEPTED: Duration = Duration::from_micros(15);

/// Offers in a row that nobody accepted before we believe that we are alone.
const ALONE_AFTER: u32 = 200;

/// The first sleep, and the longest one.
const SLEEP_FIRST: Duration = Duration::from_micros(100);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// What a program that polls and finds nothing does about it. Polling is the best there is while every process has a processor of its own;
/// where they have not, it keeps the one from running that is waited for. So after some time the processor is offered
/// to others, and if it is taken, the next thing is to sleep until something comes.
#[derive(Debug)]
pub(crate) struct Idle {
    looks: u32,
    /// At how many of them the processor is offered.
    next: u32,
    refused: u32,
    crowded: bool,
    sleep: Duration,
}

impl Default for Idle {
    fn default() -> Self {
        Self { looks: 0, next: PATIENCE, refused: 0, crowded: false, sleep: Duration::ZERO }
    }
}

impl Idle {
    /// Something was there.
    #[inline]
    pub(crate) fn found(&mut self) {
        (self.looks, self.next, self.sleep) = (0, PATIENCE, Duration::ZERO);
    }

    /// The last look found nothing, the next one may, and then nothing is to be done about it yet.
    #[inline]
    pub(crate) fn is_in_vain(&self) -> bool {
        self.looks > 0 && self.looks + 1 < self.next
    }

    /// Nothing was there, and [nothing is to be done](Self::is_in_vain) about it.
    #[inline]
    pub(crate) fn count(&mut self) {
        self.looks += 1;
    }

    /// Nothing was there. How long to sleep, if that is the thing to do.
    #[inline]
    pub(crate) fn nothing(&mut self) -> Option<Duration> {
        self.looks += 1;
        if self.looks < self.next { None } else { self.offer() }
    }

    #[cold]
    fn offer(&mut self) -> Option<Duration> {
        self.looks = 0;
        self.next = if self.refused < ALONE_AFTER { OFFER_EVERY } else { OFFER_EVERY_ALONE };
        let before = Instant::now();
        rustix::thread::sched_yield();
        self.answered(before.elapsed())
    }

    /// An offer came back after so long.
    fn answered(&mut self, took: Duration) -> Option<Duration> {
        if took > ACCEPTED {
            (self.crowded, self.refused) = (true, 0);
        } else {
            self.refused = self.refused.saturating_add(1);
            if self.refused >= ALONE_AFTER {
                self.crowded = false;
            }
        }
        if !self.crowded {
            return None;
        }
        self.sleep = (self.sleep * 2).clamp(SLEEP_FIRST, SLEEP_MAX);
        Some(self.sleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_never_sleeps() {
        let mut idle = Idle::default();
        assert!((0..10_000).all(|_| idle.answered(Duration::from_nanos(300)).is_none()));
    }

    #[test]
    fn looks_in_vain_are_counted_until_the_processor_is_to_be_offered() {
        let mut idle = Idle::default();
        assert!(!idle.is_in_vain(), "the first one is a close look");
        assert_eq!(idle.nothing(), None);
        while idle.is_in_vain() {
            idle.count();
        }
        assert_eq!(idle.looks, PATIENCE - 1);
        idle.found();
        assert_eq!((idle.looks, idle.is_in_vain()), (0, false));
    }

    #[test]
    fn in_a_crowd_sleeps_grow_until_something_comes() {
        let mut idle = Idle::default();
        assert_eq!(idle.answered(Duration::from_millis(1)), Some(SLEEP_FIRST));
        assert_eq!(idle.answered(Duration::ZERO), Some(2 * SLEEP_FIRST));
        (0..20).for_each(|_| assert_ne!(idle.answered(Duration::from_millis(1)), Some(Duration::ZERO)));
        assert_eq!(idle.answered(Duration::from_millis(1)), Some(SLEEP_MAX));
        idle.found();
        assert_eq!(idle.answered(Duration::from_millis(1)), Some(SLEEP_FIRST));
        (0..ALONE_AFTER).for_each(|_| assert_ne!(idle.answered(Duration::ZERO), Some(Duration::ZERO)));
        assert_eq!(idle.answered(Duration::ZERO), None, "the crowd has gone");
    }

    #[test]
    fn a_ring_before_the_sleep_is_heard() {
        let bell = Bell::new().expect("descriptors");
        bell.ring();
        bell.sleep(Duration::from_secs(3600));
    }
}
