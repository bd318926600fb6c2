//! How to wait, as a value.

use isthmus_platform::crowd;
use std::time::{Duration, Instant};

/// How a receiver with nothing to do waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Look again and again; one processor for one receiver.
    Spin,
    /// Look for a while, at most this long, as long as that has lately been worth it and nobody waits for the processor; then sleep on
    /// the doorbell.
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

/// What a receiver learned about its waits: whether spinning pays.
#[derive(Clone, Debug)]
pub struct Waiting {
    wait: Wait,
    budget: Duration,
    waits: u32,
}

impl Waiting {
    /// Nothing learned yet.
    pub fn new(wait: Wait) -> Self {
        let budget = match wait {
            Wait::Adaptive(longest) => longest,
            Wait::Spin | Wait::Sleep => Duration::ZERO,
        };
        Self { wait, budget, waits: 0 }
    }

    /// The way to wait.
    pub fn wait(&self) -> Wait {
        self.wait
    }

    /// Spins as long as it is worth it, or until `ready`. True if it became ready; false means: sleep now.
    pub fn spin(&mut self, ready: impl FnMut() -> bool) -> bool {
        self.spin_unless(crowd::is_crowded, ready)
    }

    fn spin_unless(&mut self, crowded: impl FnOnce(Instant) -> bool, mut ready: impl FnMut() -> bool) -> bool {
        match self.wait {
            Wait::Spin => {
                // Back to the caller now and then: it has deadlines to look after.
                (0..4096).any(|_| ready())
            }
            Wait::Sleep => false,
            Wait::Adaptive(longest) => {
                let (budget, start) = (self.next_budget(), Instant::now());
                // What we wait for may need our processor.
                if budget.is_zero() || crowded(start) {
                    return false;
                }
                let found = spin_for(start, budget, &mut ready);
                self.learn(found, longest);
                found
            }
        }
    }

    fn next_budget(&mut self) -> Duration {
        self.waits = self.waits.wrapping_add(1);
        if self.budget.is_zero() && self.waits.is_multiple_of(PROBE_EVERY) { SMALLEST } else { self.budget }
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
}

fn spin_for(start: Instant, budget: Duration, ready: &mut impl FnMut() -> bool) -> bool {
    loop {
        for _ in 0..32 {
            if ready() {
                return true;
            }
        }
        if start.elapsed() >= budget {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(!waiting.spin_unless(|_| false, look));
            spun += u32::from(looked);
        }
        assert!((10..=13).contains(&spun), "{spun} of {} waits spun", 10 * PROBE_EVERY);
        waiting.budget = SMALLEST;
        assert!(waiting.spin_unless(|_| false, || true));
        assert_eq!(waiting.budget, 2 * SMALLEST);
    }

    #[test]
    fn where_others_wait_for_the_processor_nobody_spins_and_nothing_is_learned() {
        let mut waiting = Waiting::new(Wait::default());
        let before = waiting.budget;
        assert!(!waiting.spin_unless(|_| true, || unreachable!("it sleeps at once")));
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
