//! How often something may happen.

use crate::net::Time;

/// So many at once, and then so many in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// At once, after a pause: 0 counts as 1.
    pub burst: u32,
    /// In a second: from 1 to a million; anything else counts as the nearest of them.
    pub per_second: u32,
}

/// Keeps to a [`Rate`]. Each time pays for a piece of the future; a burst is how far into it one may have paid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    step_us: u64,
    ahead_us: u64,
    paid_until: Time,
}

impl Meter {
    pub(super) fn new(rate: Rate) -> Self {
        let step_us = 1_000_000 / u64::from(rate.per_second.clamp(1, 1_000_000));
        Self { step_us, ahead_us: step_us * u64::from(rate.burst.saturating_sub(1)), paid_until: Time::ZERO }
    }

    /// Whether it may happen now. If so, it has.
    pub(super) fn take(&mut self, now: Time) -> bool {
        let from = self.paid_until.max(now);
        let may = from.since_us(now) <= self.ahead_us;
        if may {
            self.paid_until = from.after_us(self.step_us);
        }
        may
    }

    /// When it may happen again.
    pub(super) fn ready_at(&self) -> Time {
        Time::from_us(self.paid_until.us().saturating_sub(self.ahead_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let mut meter = Meter::new(Rate { burst: 4, per_second: 10 });
        let start = Time::from_us(7_000_000);
        assert_eq!((0..10).filter(|_| meter.take(start)).count(), 4);
        assert_eq!(meter.ready_at(), start.after_us(100_000));
        assert!(!meter.take(start.after_us(99_999)));
        assert!(meter.take(start.after_us(100_000)));
        let taken = (0..10_000).filter(|ms| meter.take(start.after_us(100_000 + ms * 1000))).count();
        assert_eq!(taken, 99);
    }

    #[test]
    fn absurd_rates_are_the_nearest_possible() {
        let mut least = Meter::new(Rate { burst: 0, per_second: 0 });
        assert_eq!((0..10).filter(|s| least.take(Time::from_us(s * 500_000))).count(), 5);
        let mut most = Meter::new(Rate { burst: u32::MAX, per_second: u32::MAX });
        assert!((0..1000).all(|_| most.take(Time::from_us(u64::MAX))));
    }
}
