//! Strategies of waiting.

mod poll_backoff;
mod server;

pub use poll_backoff::PollBackoff;
pub use server::ServerSpin;

use isthmus_platform::oversubscription;
use std::time::{Duration, Instant};

/// How a receiver with nothing to do waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Poll without sleeping. Each receiver needs a CPU of its own.
    Spin,
    /// Spin for at most this long, then sleep on the doorbell. The receiver spins only while spinning has recently paid off and no
    /// other thread needs the CPU. It yields the CPU while it spins.
    Adaptive(Duration),
    /// Sleep on the doorbell. Before that, the receiver stays awake for about as long as a sleep and wake-up takes, while that has
    /// recently paid off.
    Sleep,
}

impl Default for WaitMode {
    /// Adaptive with 50 µs, which is about the cost of two sleeps and wake-ups in a virtual machine.
    fn default() -> Self {
        Self::Adaptive(Duration::from_micros(50))
    }
}

/// Smallest spin budget. Below it, reading the clock costs more than spinning gains.
const SPIN_BUDGET_MIN: Duration = Duration::from_micros(4);

/// The number of times that a receiver reads the clock in one spin. A budget ends a spin much sooner.
const LOOKS_MAX: u32 = 20_000;

/// A receiver that has stopped spinning spins again on one of this number of waits.
const PROBE_EVERY: u32 = 32;

/// A yield that took longer let another thread run. Without another thread, it is a system call without effect.
const YIELD_TAKEN_AFTER: Duration = Duration::from_micros(2);

/// The time that a receiver stays awake instead of sleeping at once: about the cost of a sleep and wake-up in a virtual machine. On
/// hardware a wake-up costs a quarter of that.
const AWAKE: Duration = Duration::from_micros(25);

/// The time of a receiver that stays awake although others need its CPU, and of one that looks again whether staying awake pays.
const AWAKE_BRIEFLY: Duration = Duration::from_micros(5);

/// While staying awake does not pay, a receiver looks for the whole of [`AWAKE`] on one of this number of waits.
const LONG_PROBE_EVERY: u32 = 8 * PROBE_EVERY;

/// Looks between two readings of the clock while a receiver stays awake.
const AWAKE_LOOKS: u32 = 8;

/// The highest score of staying awake. Each time that it paid off adds one to the score, and each other time takes one.
const AWAKE_SCORE_MAX: u32 = 8;

/// Number of taken yields in a row after which a receiver considers its CPU shared. The thread that ran may be the one it waits for.
const SHARED_AFTER_YIELDS: u32 = 2;

/// Number of untaken yields in a row after which a receiver considers itself alone. It then yields only on one of [`PROBE_EVERY`] waits.
const ALONE_AFTER_YIELDS: u32 = 64;

/// The state of an adaptive receiver, which learns from its waits whether spinning pays. A server uses [`ServerSpin`] instead.
#[derive(Clone, Debug)]
pub struct AdaptiveSpin {
    wait: WaitMode,
    budget: Duration,
    waits: u32,
    /// Numbers of yields in a row that let another thread run, and that did not.
    yields_taken: u32,
    yields_untaken: u32,
    /// Whether staying awake has paid off recently. At 0, the receiver sleeps at once, but for one of [`PROBE_EVERY`] waits.
    awake_score: u32,
}

/// Spins for a bounded number of polls, because the caller has deadlines to check.
fn spin_always(mut ready: impl FnMut() -> bool) -> bool {
    (0..4096).any(|_| ready())
}

/// The way in which a spin ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpinResult {
    Ready,
    /// The budget was used up.
    TimedOut,
    /// Another thread ran on this CPU.
    Shared,
}

impl AdaptiveSpin {
    /// Creates a receiver state that has learned nothing.
    pub fn new(wait: WaitMode) -> Self {
        let budget = match wait {
            WaitMode::Adaptive(longest) => longest,
            WaitMode::Spin | WaitMode::Sleep => Duration::ZERO,
        };
        Self { wait, budget, waits: 0, yields_taken: 0, yields_untaken: 0, awake_score: AWAKE_SCORE_MAX / 2 }
    }

    /// The wait mode.
    pub fn wait(&self) -> WaitMode {
        self.wait
    }

    /// Spins while spinning pays, or until `ready`. Returns true if it became ready, and false if the caller should sleep now.
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
            WaitMode::Sleep => {
                self.waits = self.waits.wrapping_add(1);
                self.stay_awake(AWAKE, ready)
            }
            WaitMode::Adaptive(longest) => {
                let (budget, start) = (self.next_budget(), Instant::now());
                // The thread that we wait for may need our CPU.
                if budget.is_zero() || oversubscribed(start) {
                    return self.stay_awake(AWAKE_BRIEFLY, ready);
                }
                let spun = self.spin_for(start, budget, offer, &mut ready);
                if spun != SpinResult::Shared {
                    self.adjust_budget(spun == SpinResult::Ready, longest);
                }
                spun == SpinResult::Ready
            }
        }
    }

    /// Looks for `longest`, if that has paid off recently. Returns true if it became ready.
    fn stay_awake(&mut self, longest: Duration, mut ready: impl FnMut() -> bool) -> bool {
        let Some(longest) = self.time_awake(longest) else { return false };
        let start = Instant::now();
        let mut found = false;
        // As in `spin_for`: a program's clock may stand still.
        for _ in 0..LOOKS_MAX {
            found = (0..AWAKE_LOOKS).any(|_| ready());
            if found || start.elapsed() >= longest {
                break;
            }
        }
        self.awake_score = match found {
            true => (self.awake_score + 1).min(AWAKE_SCORE_MAX),
            false => self.awake_score.saturating_sub(1),
        };
        found
    }

    /// Returns how long to stay awake this time, at most `longest`. None: to sleep at once.
    fn time_awake(&self, longest: Duration) -> Option<Duration> {
        match self.awake_score {
            0 if self.waits.is_multiple_of(LONG_PROBE_EVERY) => Some(longest),
            0 if self.waits.is_multiple_of(PROBE_EVERY) => Some(longest.min(AWAKE_BRIEFLY)),
            0 => None,
            _ => Some(longest),
        }
    }

    /// Returns how long to spin this time.
    fn next_budget(&mut self) -> Duration {
        self.waits = self.waits.wrapping_add(1);
        match self.waits.is_multiple_of(PROBE_EVERY) {
            true => self.budget.max(SPIN_BUDGET_MIN),
            false if self.yields_taken >= SHARED_AFTER_YIELDS => Duration::ZERO,
            false => self.budget,
        }
    }

    /// Doubles the budget if spinning paid off, and halves it otherwise.
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
        // A program's clock may stand still, so the number of looks is limited, too.
        for _ in 0..LOOKS_MAX {
            if (0..32).any(|_| ready()) {
                return SpinResult::Ready;
            }
            if let Some(offer) = offer.take()
                && self.record_yield(offer())
            {
                return if ready() { SpinResult::Ready } else { SpinResult::Shared };
            }
            if start.elapsed() >= budget {
                break;
            }
        }
        SpinResult::TimedOut
    }

    /// Records a yield that took `took`. Returns true if another thread ran.
    fn record_yield(&mut self, took: Duration) -> bool {
        let was_taken = took > YIELD_TAKEN_AFTER;
        (self.yields_taken, self.yields_untaken) = match was_taken {
            true => (self.yields_taken.saturating_add(1), 0),
            false => (0, self.yields_untaken.saturating_add(1)),
        };
        was_taken
    }
}

/// Yields the CPU to other threads, and returns how long that took.
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
    fn idle_receiver_stops_spinning_and_probes_occasionally() {
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
        assert!((10..=17).contains(&spun), "{spun} of {} waits looked", 10 * PROBE_EVERY);
        spin.budget = SPIN_BUDGET_MIN;
        assert!(spin.spin_with(|_| false, refused, || true));
        assert_eq!(spin.budget, 2 * SPIN_BUDGET_MIN);
    }

    #[test]
    fn oversubscribed_receiver_does_not_spin_or_adapt() {
        let mut spin = AdaptiveSpin::new(WaitMode::default());
        let before = spin.budget;
        assert!(!spin.spin_with(|_| true, || unreachable!("it does not yield"), || false));
        assert_eq!(spin.budget, before);
    }

    #[test]
    fn sleeping_receiver_stays_awake_while_that_pays() {
        let mut spin = AdaptiveSpin::new(WaitMode::Sleep);
        let looks = |spin: &mut AdaptiveSpin, found| {
            let mut looked = 0;
            (0..10 * PROBE_EVERY).for_each(|_| {
                let mut is_first = true;
                let result = spin.spin(|| {
                    looked += u32::from(core::mem::take(&mut is_first));
                    found
                });
                assert_eq!(result, found && !is_first);
            });
            looked
        };
        let silent = looks(&mut spin, false);
        assert!((10..=14).contains(&silent), "{silent} of {} waits looked", 10 * PROBE_EVERY);
        let busy = looks(&mut spin, true);
        assert!(busy > 9 * PROBE_EVERY, "{busy} of {} waits looked", 10 * PROBE_EVERY);
        assert_eq!(spin.awake_score, AWAKE_SCORE_MAX);
        let silent = looks(&mut spin, false);
        assert!((10..=18).contains(&silent), "{silent} of {} waits looked", 10 * PROBE_EVERY);
    }

    #[test]
    fn receiver_that_sleeps_probes_briefly_and_sometimes_for_long() {
        let mut spin = AdaptiveSpin::new(WaitMode::Sleep);
        assert_eq!(spin.time_awake(AWAKE), Some(AWAKE), "it begins awake");
        spin.awake_score = 0;
        let mut times = |longest| {
            let all = (1..=LONG_PROBE_EVERY).filter_map(|waits| {
                spin.waits = waits;
                spin.time_awake(longest)
            });
            all.collect::<Vec<_>>()
        };
        assert_eq!(times(AWAKE), [[AWAKE_BRIEFLY; 7].as_slice(), &[AWAKE]].concat());
        assert_eq!(times(AWAKE_BRIEFLY), [AWAKE_BRIEFLY; 8]);
    }

    #[test]
    fn spin_mode_always_polls() {
        let mut looks = 0;
        assert!(AdaptiveSpin::new(WaitMode::Spin).spin(|| {
            looks += 1;
            looks == 100
        }));
    }
}
