//! Rate limits.

use crate::net::Time;

/// A rate limit: a burst, and then a number of events per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The number of events permitted at once after a pause. 0 counts as 1.
    pub burst: u32,
    /// Events per second, from 1 to a million. Other values are clamped to that range.
    pub per_second: u32,
}

/// Enforces a [`Rate`]. Each event moves `next_free` ahead by `step_us`. An event may happen while `next_free` is at most `burst_us`
/// ahead of the current time.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateLimiter {
    step_us: u64,
    burst_us: u64,
    next_free: Time,
}

impl RateLimiter {
    pub(super) fn new(rate: Rate) -> Self {
        let step_us = 1_000_000 / u64::from(rate.per_second.clamp(1, 1_000_000));
        Self { step_us, burst_us: step_us * u64::from(rate.burst.saturating_sub(1)), next_free: Time::ZERO }
    }

    /// Returns true if the event may happen now, and counts it.
    pub(super) fn try_acquire(&mut self, now: Time) -> bool {
        let from = self.next_free.max(now);
        let may = from.since_us(now) <= self.burst_us;
        if may {
            self.next_free = from.after_us(self.step_us);
        }
        may
    }

    /// Returns when the next event may happen.
    pub(super) fn ready_at(&self) -> Time {
        Time::from_us(self.next_free.us().saturating_sub(self.burst_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let mut limiter = RateLimiter::new(Rate { burst: 4, per_second: 10 });
        let start = Time::from_us(7_000_000);
        assert_eq!((0..10).filter(|_| limiter.try_acquire(start)).count(), 4);
        assert_eq!(limiter.ready_at(), start.after_us(100_000));
        assert!(!limiter.try_acquire(start.after_us(99_999)));
        assert!(limiter.try_acquire(start.after_us(100_000)));
        let taken = (0..10_000).filter(|ms| limiter.try_acquire(start.after_us(100_000 + ms * 1000))).count();
        assert_eq!(taken, 99);
    }

    #[test]
    fn out_of_range_rates_are_clamped() {
        let mut least = RateLimiter::new(Rate { burst: 0, per_second: 0 });
        assert_eq!((0..10).filter(|s| least.try_acquire(Time::from_us(s * 500_000))).count(), 5);
        let mut most = RateLimiter::new(Rate { burst: u32::MAX, per_second: u32::MAX });
        assert!((0..1000).all(|_| most.try_acquire(Time::from_us(u64::MAX))));
    }
}
