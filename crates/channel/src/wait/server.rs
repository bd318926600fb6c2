//! How somebody waits who serves many.

use super::{ALONE_AFTER_YIELDS, PROBE_EVERY, WaitMode, YIELD_TAKEN_AFTER, spin_always, yield_cpu};
use std::time::{Duration, Instant};

/// Waits in a row in vain after which a server sleeps at once, but for one wait out of [`PROBE_EVERY`].
const FAILED_SPINS_MAX: u32 = 2;

/// How often one who is alone offers its processor: an offer costs half a microsecond.
const YIELD_INTERVAL: Duration = Duration::from_micros(5);

/// An offer that took longer went to somebody who does not wait for us.
const YIELD_LONG: Duration = Duration::from_micros(500);

/// So many times as long nobody is offered the processor afterwards.
const YIELD_PAUSE_FACTOR: u32 = 10;

/// What somebody who serves many has learned about its waits.
///
/// One who waits for many has something to do every now and then for as long as any of them is at work, and each of them pays when it
/// has to be woken; so it looks for longer, and all the time it offers its processor to those it serves, who may be on it. They
/// sleep while they wait for it ([`super::AdaptiveSpin`]), so most of the time nobody wants it.
#[derive(Clone, Debug)]
pub struct ServerSpin {
    wait: WaitMode,
    waits: u32,
    /// Waits in a row that were spent in vain.
    failed_spins: u32,
    /// Offers in a row that were not accepted.
    yields_untaken: u32,
    /// Somebody kept the processor for long: until then nobody is offered any, and whoever wants us wakes us.
    no_yield_until: Option<Instant>,
}

impl ServerSpin {
    /// Nothing learned yet.
    pub fn new(wait: WaitMode) -> Self {
        Self { wait, waits: 0, failed_spins: 0, yields_untaken: 0, no_yield_until: None }
    }

    /// The way to wait.
    pub fn wait(&self) -> WaitMode {
        self.wait
    }

    /// Spins as long as it is worth it, or until `ready`. True if it became ready; false means: sleep now.
    pub fn spin(&mut self, ready: impl FnMut() -> bool) -> bool {
        self.spin_with(yield_cpu, ready)
    }

    fn spin_with(&mut self, mut offer: impl FnMut() -> Duration, mut ready: impl FnMut() -> bool) -> bool {
        let longest = match self.wait {
            WaitMode::Spin => return spin_always(ready),
            WaitMode::Sleep => return false,
            WaitMode::Adaptive(longest) => longest,
        };
        self.waits = self.waits.wrapping_add(1);
        let start = Instant::now();
        let gave_up = self.failed_spins >= FAILED_SPINS_MAX && !self.waits.is_multiple_of(PROBE_EVERY);
        if gave_up || longest.is_zero() || self.no_yield_until.is_some_and(|until| start < until) {
            return false;
        }
        let mut offered = Duration::ZERO;
        loop {
            if ready() || ready() {
                self.failed_spins = 0;
                return true;
            }
            let elapsed = start.elapsed();
            if elapsed >= longest {
                self.failed_spins = self.failed_spins.saturating_add(1);
                return false;
            }
            if self.yields_untaken < ALONE_AFTER_YIELDS || elapsed - offered >= YIELD_INTERVAL {
                offered = elapsed;
                if self.record_yield(offer()) {
                    return false;
                }
            }
        }
    }

    /// An offer came back after so long. True if somebody kept the processor.
    fn record_yield(&mut self, took: Duration) -> bool {
        self.yields_untaken = if took > YIELD_TAKEN_AFTER { 0 } else { self.yields_untaken.saturating_add(1) };
        let kept = took > YIELD_LONG;
        if kept {
            self.no_yield_until = Some(Instant::now() + took * YIELD_PAUSE_FACTOR);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;

    #[test]
    fn server_spins_and_yields_until_too_many_spins_failed() {
        let mut spin = ServerSpin::new(WaitMode::Adaptive(Duration::from_micros(20)));
        let mut spun = 0;
        for _ in 0..10 * PROBE_EVERY {
            let (mut looks, mut offers) = (0_u32, 0);
            let offer = || {
                offers += 1;
                refused()
            };
            assert!(!spin.spin_with(offer, || {
                looks += 1;
                false
            }));
            spun += u32::from(looks > 0);
            assert!(
                looks == 0 || offers > 0 || spin.yields_untaken >= ALONE_AFTER_YIELDS,
                "others are asked while it looks"
            );
        }
        assert!((FAILED_SPINS_MAX + 9..=FAILED_SPINS_MAX + 10).contains(&spun), "{spun} waits were spun");
        spin.waits = PROBE_EVERY - 1;
        assert!(spin.spin_with(refused, || true));
        assert_eq!(spin.failed_spins, 0, "one that is worth it is enough");
    }

    #[test]
    fn server_stops_yielding_for_a_while_after_a_long_yield() {
        let mut spin = ServerSpin::new(WaitMode::Adaptive(Duration::from_secs(1)));
        let mut offers = 0;
        let kept = || {
            offers += 1;
            if offers < 3 { 2 * YIELD_TAKEN_AFTER } else { Duration::from_secs(60) }
        };
        assert!(!spin.spin_with(kept, || false), "a short turn is no reason to stop, a long one is");
        assert_eq!((offers, spin.failed_spins), (3, 0), "and says nothing of what is worth it");
        assert!(!spin.spin_with(|| unreachable!("it sleeps at once"), || unreachable!("it sleeps at once")));
        spin.no_yield_until = Some(Instant::now());
        assert!(spin.spin_with(refused, || true));
    }

    #[test]
    fn a_server_that_is_to_sleep_or_to_spin_does() {
        assert!(!ServerSpin::new(WaitMode::Sleep).spin(|| unreachable!("sleep does not look")));
        assert!(!ServerSpin::new(WaitMode::Adaptive(Duration::ZERO)).spin(|| unreachable!("no time to look")));
        let mut looks = 0;
        assert!(!ServerSpin::new(WaitMode::Spin).spin(|| {
            looks += 1;
            false
        }));
        assert_eq!(looks, 4096);
    }
}
