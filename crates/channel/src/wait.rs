//! How to wait, as a value.

mod idle;
mod serving;

pub use idle::Idle;
pub use serving::Serving;

use isthmus_platform::crowd;
use std::time::{Duration, Instant};

/// How a receiver with nothing to do waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Look again and again; one processor for one receiver.
    Spin,
    /// Look for a while, at most this long, as long as that has lately been worth it and nobody waits for the processor, which is
    /// offered to others meanwhile; then sleep on the doorbell.
    Adaptive(Duration),
    /// Sleep on the doorbell at once.
    Sleep,
}

impl Default for Wait {
    /// Adaptive with 50 µs, about five sleeps and wake-ups.
    fn default() -> Self {
        Self::Adaptive(Duration::from_micros(50))
    }
}

/// Spin budgets below this are not worth a look at the clock.
const SMALLEST: Duration = Duration::from_micros(4);

/// A receiver that has given up spinning tries again on one wait out of so many.
const PROBE_EVERY: u32 = 32;

/// An offer of the processor that took longer was accepted: alone, it is a system call that does nothing.
const ACCEPTED: Duration = Duration::from_micros(2);

/// Accepted offers in a row after which a receiver shares its processor: those it waits for may be who wants it.
const SHARED_AFTER: u32 = 2;

/// Refused offers in a row after which a receiver is alone, and offers its processor only on one wait out of [`PROBE_EVERY`].
const ALONE_AFTER: u32 = 64;

/// What a receiver learned about its waits: whether spinning pays. For those who serve others there is [`Serving`].
#[derive(Clone, Debug)]
pub struct Waiting {
    wait: Wait,
    budget: Duration,
    waits: u32,
    /// Offers in a row that were accepted, and that were not.
    accepted: u32,
    refused: u32,
}

/// Looks for a while and no longer: the caller has deadlines to look after.
fn spin_always(mut ready: impl FnMut() -> bool) -> bool {
    (0..4096).any(|_| ready())
}

/// How a time of spinning ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spun {
    Ready,
    InVain,
    /// Somebody else has had the processor.
    Shared,
}

impl Waiting {
    /// Nothing learned yet.
    pub fn new(wait: Wait) -> Self {
        let budget = match wait {
            Wait::Adaptive(longest) => longest,
            Wait::Spin | Wait::Sleep => Duration::ZERO,
        };
        Self { wait, budget, waits: 0, accepted: 0, refused: 0 }
    }

    /// The way to wait.
    pub fn wait(&self) -> Wait {
        self.wait
    }

    /// Spins as long as it is worth it, or until `ready`. True if it became ready; false means: sleep now.
    pub fn spin(&mut self, ready: impl FnMut() -> bool) -> bool {
        self.spin_among(crowd::is_crowded, offer, ready)
    }

    fn spin_among(
        &mut self,
        crowded: impl FnOnce(Instant) -> bool,
        offer: impl FnOnce() -> Duration,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        match self.wait {
            Wait::Spin => spin_always(ready),
            Wait::Sleep => false,
            Wait::Adaptive(longest) => {
                let (budget, start) = (self.next_budget(), Instant::now());
                // What we wait for may need our processor.
                if budget.is_zero() || crowded(start) {
                    return false;
                }
                let spun = self.spin_for(start, budget, offer, &mut ready);
                if spun != Spun::Shared {
                    self.learn(spun == Spun::Ready, longest);
                }
                spun == Spun::Ready
            }
        }
    }

    /// How long to spin this time.
    fn next_budget(&mut self) -> Duration {
        self.waits = self.waits.wrapping_add(1);
        match self.waits.is_multiple_of(PROBE_EVERY) {
            true => self.budget.max(SMALLEST),
            false if self.accepted >= SHARED_AFTER => Duration::ZERO,
            false => self.budget,
        }
    }

    /// Doubles the budget where spinning paid, halves it where it did not.
    fn learn(&mut self, found: bool, longest: Duration) {
        self.budget = if found {
            (self.budget * 2).clamp(SMALLEST.min(longest), longest)
        } else if self.budget <= SMALLEST {
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
    ) -> Spun {
        let offers = self.refused < ALONE_AFTER || self.waits.is_multiple_of(PROBE_EVERY);
        let mut offer = offers.then_some(offer);
        loop {
            if (0..32).any(|_| ready()) {
                return Spun::Ready;
            }
            if let Some(offer) = offer.take()
                && self.answered(offer())
            {
                return if ready() { Spun::Ready } else { Spun::Shared };
            }
            if start.elapsed() >= budget {
                return Spun::InVain;
            }
        }
    }

    /// An offer came back after so long. True if it was accepted.
    fn answered(&mut self, took: Duration) -> bool {
        let accepted = took > ACCEPTED;
        (self.accepted, self.refused) = match accepted {
            true => (self.accepted.saturating_add(1), 0),
            false => (0, self.refused.saturating_add(1)),
        };
        accepted
    }
}

/// Offers the processor to whoever waits for it; how long that took.
fn offer() -> Duration {
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
    fn who_shares_a_processor_sleeps_at_once_and_looks_again_now_and_then() {
        let mut waiting = Waiting::new(Wait::Adaptive(Duration::from_secs(1)));
        let mut spun = 0;
        for _ in 0..10 * PROBE_EVERY {
            let accepted = || {
                spun += 1;
                2 * ACCEPTED
            };
            assert!(!waiting.spin_among(|_| false, accepted, || false));
        }
        assert_eq!(spun, SHARED_AFTER + 10, "the first ones, and the probes");
        assert_eq!(waiting.budget, Duration::from_secs(1), "that spinning does not pay was not learned");
        waiting.waits = PROBE_EVERY - 1;
        let mut looks = 0;
        assert!(waiting.spin_among(
            |_| false,
            refused,
            || {
                looks += 1;
                looks == 100
            }
        ));
        assert_eq!((waiting.accepted, waiting.refused), (0, 1), "it is alone again");
        assert!(waiting.spin_among(|_| false, || unreachable!("it is found before"), || true));
    }

    #[test]
    fn who_is_alone_offers_seldom() {
        let mut waiting = Waiting::new(Wait::Adaptive(Duration::from_secs(1)));
        let mut offers = 0;
        for _ in 0..ALONE_AFTER + 10 * PROBE_EVERY {
            let mut looks = 0;
            let found = waiting.spin_among(
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
        assert_eq!(offers, ALONE_AFTER + 10);
    }

    #[test]
    fn a_receiver_that_never_finds_anything_stops_spinning_and_probes_now_and_then() {
        let mut waiting = Waiting::new(Wait::Adaptive(Duration::from_micros(8)));
        let mut spun = 0;
        for _ in 0..10 * PROBE_EVERY {
            let mut looked = false;
            let look = || {
                looked = true;
                false
            };
            assert!(!waiting.spin_among(|_| false, refused, look));
            spun += u32::from(looked);
        }
        assert!((10..=13).contains(&spun), "{spun} of {} waits spun", 10 * PROBE_EVERY);
        waiting.budget = SMALLEST;
        assert!(waiting.spin_among(|_| false, refused, || true));
        assert_eq!(waiting.budget, 2 * SMALLEST);
    }

    #[test]
    fn where_others_wait_for_the_processor_nobody_spins_and_nothing_is_learned() {
        let mut waiting = Waiting::new(Wait::default());
        let before = waiting.budget;
        assert!(!waiting.spin_among(|_| true, refused, || unreachable!("it sleeps at once")));
        assert_eq!(waiting.budget, before);
    }

    #[test]
    fn sleep_never_looks_and_spin_always_does() {
        assert!(!Waiting::new(Wait::Sleep).spin(|| unreachable!("sleep does not look")));
        let mut looks = 0;
        assert!(Waiting::new(Wait::Spin).spin(|| {
            looks += 1;
            looks == 100
        }));
    }
}
