//! The wait strategy of a thread that serves many clients.

use super::{ALONE_AFTER_YIELDS, PROBE_EVERY, WaitMode, YIELD_TAKEN_AFTER, spin_always, yield_cpu};
use std::time::{Duration, Instant};

/// Number of failed spins in a row after which a server sleeps without spinning, except on one of [`PROBE_EVERY`] waits.
const FAILED_SPINS_MAX: u32 = 2;

/// Interval between the yields of a server that is alone on its CPU. A yield costs half a microsecond.
const YIELD_INTERVAL: Duration = Duration::from_micros(5);

/// A yield that took longer let a thread run that does not wait for this server.
const YIELD_LONG: Duration = Duration::from_micros(500);

/// After a long yield, the server does not spin or yield for this multiple of the yield's duration.
const YIELD_PAUSE_FACTOR: u32 = 10;

/// The state of an adaptive server, which learns from its waits whether spinning pays.
///
/// A server has work now and then while any of its clients is active, and a client pays for the wake-up when the server sleeps.
/// A server therefore spins longer than a receiver. It yields the CPU all that time, because a client may need the same CPU.
/// Clients on the same CPU sleep while they wait for it ([`super::AdaptiveSpin`]), so usually no thread needs the CPU.
#[derive(Clone, Debug)]
pub struct ServerSpin {
    wait: WaitMode,
    waits: u32,
    /// Number of failed spins in a row.
    failed_spins: u32,
    /// Number of yields in a row that let no other thread run.
    yields_untaken: u32,
    /// The end of the pause after a long yield. Until then the server sleeps without spinning, and clients wake it.
    no_yield_until: Option<Instant>,
}

impl ServerSpin {
    /// Creates a server state that has learned nothing.
    pub fn new(wait: WaitMode) -> Self {
        Self { wait, waits: 0, failed_spins: 0, yields_untaken: 0, no_yield_until: None }
    }

    /// The wait mode.
    pub fn wait(&self) -> WaitMode {
        self.wait
    }

    /// Spins while spinning pays, or until `ready`. Returns true if it became ready, and false if the caller should sleep now.
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

    /// Records a yield that took `took`. Returns true if another thread kept the CPU for long.
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
    fn server_follows_a_fixed_wait_mode() {
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
