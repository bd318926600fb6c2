//! What a program does that only polls, and finds nothing.

use isthmus_platform::crowd;
use std::time::Duration;

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

/// Something else was found so often: then the daemon is not what is waited for any more.
const OTHERS_MAX: u32 = 16;

/// Looks before the sleep where the daemon is on this processor: while we look, it brings nothing. But MPIs look until nothing is there
/// before they act on what they have found.
const PATIENCE_BESIDE: u32 = 6;

/// Of so many waits for the daemon, half or more in which this thread lost its processor say that the daemon is on it.
const OBSERVED: u32 = 16;

/// So many waits later that is looked at again.
const BELIEVED: u32 = 8192;

/// Whether a daemon that is waited for runs on this thread's processor. Then looking for its messages keeps them from coming, and the
/// thread loses its processor for each of them.
#[derive(Debug, Default)]
struct Neighbour {
    /// Records that the daemon had brought when something was found last, and how often something else was found since.
    brought: u64,
    others: u32,
    /// What is believed, for so many waits more.
    is_beside: bool,
    left: u32,
    /// How often the thread had lost its processor when this began; None before the first time.
    switches: Option<i64>,
}

impl Neighbour {
    /// True if it matters what was found, when the daemon had brought so many records.
    #[inline]
    fn is_concerned(&self, brought: u64) -> bool {
        self.is_beside || self.brought != brought
    }

    /// Something was found, when the daemon had brought so many records and this thread had lost its processor `switches` times.
    fn found(&mut self, brought: u64, switches: impl FnOnce() -> i64) {
        if self.brought == brought {
            self.others = self.others.saturating_add(1);
        } else {
            (self.brought, self.others) = (brought, 0);
            match self.left.checked_sub(1) {
                Some(left) => self.left = left,
                None => self.conclude(switches()),
            }
        }
    }

    /// True if what is waited for now is a daemon beside this thread.
    #[inline]
    fn is_awaited(&self) -> bool {
        self.is_beside && self.others < OTHERS_MAX
    }

    #[cold]
    fn conclude(&mut self, switches: i64) {
        // What was believed is observed anew: for that the thread looks, and does not sleep.
        let lost = self.switches.map_or(0, |before| switches - before);
        self.is_beside = !self.is_beside && lost >= i64::from(OBSERVED / 2);
        self.left = if self.is_beside { BELIEVED } else { OBSERVED };
        self.switches = Some(switches);
    }
}

/// What a program that polls and finds nothing does about it. Polling is the best there is while every process has a processor of its own;
/// where they have not, it keeps the one from running that is waited for. So after some time the processor is offered
/// to others, and if it is taken, the next thing is to sleep until something comes. Where it is the daemon beside us that is waited for,
/// the sleep comes at once.
#[derive(Debug)]
pub struct Idle {
    looks: u32,
    /// At how many of them the processor is offered.
    next: u32,
    refused: u32,
    crowded: bool,
    sleep: Duration,
    neighbour: Neighbour,
}

impl Default for Idle {
    fn default() -> Self {
        Self {
            looks: 0,
            next: PATIENCE,
            refused: 0,
            crowded: false,
            sleep: Duration::ZERO,
            neighbour: Neighbour::default(),
        }
    }
}

impl Idle {
    /// Something was there, when the daemon had brought so many records.
    #[inline]
    pub fn found(&mut self, brought: u64) {
        self.looks = 0;
        if self.neighbour.is_concerned(brought) {
            self.neighbour.found(brought, crowd::switches);
        }
    }

    /// The last look found nothing, the next one may, and then nothing is to be done about it yet.
    #[inline]
    pub fn is_in_vain(&self) -> bool {
        self.looks > 0 && self.looks + 1 < self.next
    }

    /// Nothing was there, and [nothing is to be done](Self::is_in_vain) about it.
    #[inline]
    pub fn count(&mut self) {
        self.looks += 1;
    }

    /// Nothing was there. How long to sleep, if that is the thing to do.
    #[inline]
    pub fn nothing(&mut self) -> Option<Duration> {
        if self.looks == 0 {
            self.sleep = Duration::ZERO;
            self.next = if self.neighbour.is_awaited() { PATIENCE_BESIDE } else { PATIENCE };
        }
        self.looks += 1;
        if self.looks < self.next { None } else { self.offer() }
    }

    #[cold]
    fn offer(&mut self) -> Option<Duration> {
        self.looks = 1;
        if self.neighbour.is_awaited() {
            return Some(self.next_sleep());
        }
        self.next = if self.refused < ALONE_AFTER { OFFER_EVERY } else { OFFER_EVERY_ALONE };
        self.answered(super::offer())
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
        self.crowded.then(|| self.next_sleep())
    }

    fn next_sleep(&mut self) -> Duration {
        self.sleep = (self.sleep * 2).clamp(SLEEP_FIRST, SLEEP_MAX);
        self.sleep
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
        idle.found(0);
        assert_eq!((idle.looks, idle.is_in_vain()), (0, false));
    }

    #[test]
    fn in_a_crowd_sleeps_grow_until_something_comes() {
        let mut idle = Idle::default();
        assert_eq!(idle.answered(Duration::from_millis(1)), Some(SLEEP_FIRST));
        assert_eq!(idle.answered(Duration::ZERO), Some(2 * SLEEP_FIRST));
        (0..20).for_each(|_| assert_ne!(idle.answered(Duration::from_millis(1)), Some(Duration::ZERO)));
        assert_eq!(idle.answered(Duration::from_millis(1)), Some(SLEEP_MAX));
        idle.found(0);
        assert_eq!(idle.nothing(), None);
        assert_eq!(idle.answered(Duration::from_millis(1)), Some(SLEEP_FIRST));
        (0..ALONE_AFTER).for_each(|_| assert_ne!(idle.answered(Duration::ZERO), Some(Duration::ZERO)));
        assert_eq!(idle.answered(Duration::ZERO), None, "the crowd has gone");
    }

    #[test]
    fn who_loses_the_processor_whenever_the_daemon_is_waited_for_sleeps_at_once_and_sometimes_looks_again() {
        let (mut neighbour, mut brought) = (Neighbour::default(), 0);
        let mut wait = |lost: i64| {
            brought += 1;
            neighbour.found(brought, || lost);
            neighbour.is_awaited()
        };
        assert!((0..10 * OBSERVED).all(|_| !wait(100)), "it never loses its processor");
        assert!((0..3 * i64::from(OBSERVED)).any(|more| wait(100 + more)), "it does for each wait");
        let slept = (0..2 * BELIEVED).take_while(|_| wait(1000)).count();
        assert_eq!(slept, BELIEVED as usize, "then it looks again");
        assert!((0..10 * OBSERVED).all(|_| !wait(1000)), "the daemon has gone elsewhere");
    }

    #[test]
    fn who_finds_other_things_does_not_wait_for_the_daemon() {
        let mut neighbour = Neighbour { is_beside: true, left: BELIEVED, ..Neighbour::default() };
        let mut is_awaited_after = |brought| {
            neighbour.found(brought, || 0);
            neighbour.is_awaited()
        };
        assert!(is_awaited_after(1));
        assert!((1..OTHERS_MAX).all(|_| is_awaited_after(1)), "sends that are over come in between");
        assert!(!is_awaited_after(1));
        assert!(is_awaited_after(2));
    }
}
