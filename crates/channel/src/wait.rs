//! How to wait, as a value.

mod poll_backoff;
mod server;

pub use poll_backoff::PollBackoff;
pub use server::ServerSpin;

use isthmus_platform::oversubscription;
use std::time::{Duration, Instant};

/// How a receiver with nothing to do waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Look again and again; one processor for one receiver.
    Spin,
    /// Look for a while, at most this long, as long as that has lately been worth it and nobody waits for the processor, which is
    /// offered to others meanwhile; then sleep on the doorbell.
    Adaptive(Duration),
    /// Sleep on the doorbell at once.
    Sleep,
}

impl Default for WaitMode {
    /// Adaptive with 50 µs, about five sleeps and wake-ups.
    fn default() -> Self {
        Self::Adaptive(Duration::from_micros(50))
    }
}

/// Spin budgets below this are not worth a look at the clock.
const SPIN_BUDGET_MIN: Duration = Duration::from_micros(4);

/// A receiver that has given up spinning tries again on one wait out of so many.
const PROBE_EVERY: u32 = 32;

/// An offer of the processor that took longer was accepted: alone, it is a system call that does nothing.
const YIELD_TAKEN_AFTER: Duration = Duration::from_micros(2);

/// Accepted offers in a row after which a receiver shares its processor: those it waits for may be who wants it.
const SHARED_AFTER_YIELDS: u32 = 2;

/// Refused offers in a row after which a receiver is alone, and offers its processor only on one wait out of [`PROBE_EVERY`].
const ALONE_AFTER_YIELDS: u32 = 64;

/// What a receiver learned about its waits: whether spinning pays. For those who serve others there is [`ServerSpin`].
#[derive(Clone, Debug)]
pub struct AdaptiveSpin {
    wait: WaitMode,
    budget: Duration,
    waits: u32,
    /// Offers in a row that were accepted, and that were not.
    yields_taken: u32,
    yields_untaken: u32,
}

/// Looks for a while and no longer: the caller has deadlines to look after.
fn spin_always(mut ready: impl FnMut() -> bool) -> bool {
    (0..4096).any(|_| ready())
}

/// How a time of spinning ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpinResult {
    Ready,
    /// The budget was used up.
    TimedOut,
    /// Another thread has had the processor.
    Shared,
}

impl AdaptiveSpin {
    /// Nothing learned yet.
    pub fn new(wait: WaitMode) -> Self {
        let budget = match wait {
            WaitMode::Adaptive(longest) => longest,
            WaitMode::Spin | WaitMode::Sleep => Duration::ZERO,
        };
        Self { wait, budget, waits: 0, yields_taken: 0, yields_untaken: 0 }
    }

    /// The way to wait.
    pub fn wait(&self) -> WaitMode {
        self.wait
    }

    /// Spins as long as it is worth it, or until `ready`. True if it became ready; false means: sleep now.
    pub fn spin(&mut self, ready: impl FnMut() -> bool) -> bool {
        self.spin_with(oversubscription::is_oversubscribed, yield_cpu, ready)
    }

    fn spin_with(
        &mut self,
        oversubscribed: impl FnOnce(Instant) -> bool,
        offer: impl FnOnce() -> Duration,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        match self.wait {
            WaitMode::Spin => spin_always(ready),
            WaitMode::Sleep => false,
            WaitMode::Adaptive(longest) => {
                let (budget, start) = (self.next_budget(), Instant::now());
                // What we wait for may need our processor.
                if budget.is_zero() || oversubscribed(start) {
                    return false;
                }
                let spun = self.spin_for(start, budget, offer, &mut ready);
                if spun != SpinResult::Shared {
                    self.adjust_budget(spun == SpinResult::Ready, longest);
                }
                spun == SpinResult::Ready
            }
        }
    }

    /// How long to spin this time.
    fn next_budget(&mut self) -> Duration {
        self.waits = self.waits.wrapping_add(1);
        match self.waits.is_multiple_of(PROBE_EVERY) {
            true => self.budget.max(SPIN_BUDGET_MIN),
            false if self.yields_taken >= SHARED_AFTER_YIELDS => Duration::ZERO,
            false => self.budget,
        }
    }

    /// Doubles the budget where spinning paid, halves it where it did not.
    fn adjust_budget(&mut self, found: bool, longest: Duration) {
        self.budget = if found {
            (self.budget * 2).clamp(SPIN_BUDGET_MIN.min(longest), longest)
        } else if self.budget <= SPIN_BUDGET_MIN {
            Duration::ZERO
        } else {
            self.budget / 2
        };
    }

    fn spin_for(
        &mut self,
        start: Instant,
        budget: Duration,
        offer: impl FnOnce() -> Duration,
        ready: &mut impl FnMut() -> bool,
    ) -> SpinResult {
        let offers = self.yields_untaken < ALONE_AFTER_YIELDS || self.waits.is_multiple_of(PROBE_EVERY);
        let mut offer = offers.then_some(offer);
        loop {
            if (0..32).any(|_| ready()) {
                return SpinResult::Ready;
            }
            if let Some(offer) = offer.take()
                && self.record_yield(offer())
            {
                return if ready() { SpinResult::Ready } else { SpinResult::Shared };
            }
            if start.elapsed() >= budget {
                return SpinResult::TimedOut;
            }
        }
    }

    /// An offer came back after so long. True if it was accepted.
    fn record_yield(&mut self, took: Duration) -> bool {
        let was_taken = took > YIELD_TAKEN_AFTER;
        (self.yields_taken, self.yields_untaken) = match was_taken {
            true => (self.yields_taken.saturating_add(1), 0),
            false => (0, self.yields_untaken.saturating_add(1)),
        };
        was_taken
    }
}

/// Offers the processor to whoever waits for it; how long that took.
fn yield_cpu() -> Duration {
    let before = Instant::now();
    std::thread::yield_now();
    before.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn refused() -> Duration {
        Duration::ZERO
    }

    #[test]
    fn receiver_on_a_shared_cpu_sleeps_and_probes_occasionally() {
        let mut spin = AdaptiveSpin::new(WaitMode::Adaptive(Duration::from_secs(1)));
        let mut spun = 0;
        for _ in 0..10 * PROBE_EVERY {
            let taken = || {
                spun += 1;
                2 * YIELD_TAKEN_AFTER
            };
            assert!(!spin.spin_with(|_| false, taken, || false));
        }
        assert_eq!(spun, SHARED_AFTER_YIELDS + 10, "the first ones, and the probes");
        assert_eq!(spin.budget, Duration::from_secs(1), "that spinning does not pay was not learned");
        spin.waits = PROBE_EVERY - 1;
        let mut looks = 0;
        assert!(spin.spin_with(
            |_| false,
            refused,
            || {
                looks += 1;
                looks == 100
            }
        ));
        assert_eq!((spin.yields_taken, spin.yields_untaken), (0, 1), "it is alone again");
        assert!(spin.spin_with(|_| false, || unreachable!("it is found before"), || true));
    }

    #[test]
    fn receiver_alone_on_its_cpu_yields_rarely() {
        let mut spin = AdaptiveSpin::new(WaitMode::Adaptive(Duration::from_secs(1)));
        let mut offers = 0;
        for _ in 0..ALONE_AFTER_YIELDS + 10 * PROBE_EVERY {
            let mut looks = 0;
            let found = spin.spin_with(
                |_| false,
                || {
                    offers += 1;
                    Duration::ZERO
                },
                || {
                    looks += 1;
                    looks > 32
                },
            );
            assert!(found);
        }
        assert_eq!(offers, ALONE_AFTER_YIELDS + 10);
    }

    #[test]
    fn a_receiver_that_never_finds_anything_stops_spinning_and_probes_now_and_then() {
        let mut spin = AdaptiveSpin::new(WaitMode::Adaptive(Duration::from_micros(8)));
        let mut spun = 0;
        for _ in 0..10 * PROBE_EVERY {
            let mut looked = false;
            let look = || {
                looked = true;
                false
            };
            assert!(!spin.spin_with(|_| false, refused, look));
            spun += u32::from(looked);
        }
        assert!((10..=13).contains(&spun), "{spun} of {} waits spun", 10 * PROBE_EVERY);
        spin.budget = SPIN_BUDGET_MIN;
        assert!(spin.spin_with(|_| false, refused, || true));
        assert_eq!(spin.budget, 2 * SPIN_BUDGET_MIN);
    }

    #[test]
    fn oversubscribed_receiver_does_not_spin_or_adapt() {
        let mut spin = AdaptiveSpin::new(WaitMode::default());
        let before = spin.budget;
        assert!(!spin.spin_with(|_| true, refused, || unreachable!("it sleeps at once")));
        assert_eq!(spin.budget, before);
    }

    #[test]
    fn sleep_never_looks_and_spin_always_does() {
        assert!(!AdaptiveSpin::new(WaitMode::Sleep).spin(|| unreachable!("sleep does not look")));
        let mut looks = 0;
        assert!(AdaptiveSpin::new(WaitMode::Spin).spin(|| {
            looks += 1;
            looks == 100
        }));
    }
}
