//! How somebody waits who serves many.

use super::{ACCEPTED, ALONE_AFTER, PROBE_EVERY, Wait, offer, spin_always};
use std::time::{Duration, Instant};

/// Waits in a row in vain after which a server sleeps at once, but for one wait out of [`PROBE_EVERY`].
const VAIN_MAX: u32 = 2;

/// How often one who is alone offers its processor: an offer costs half a microsecond.
const OFFER_EVERY: Duration = Duration::from_micros(5);

/// An offer that took longer went to somebody who does not wait for us.
const KEPT: Duration = Duration::from_micros(500);

/// So many times as long nobody is offered the processor afterwards.
const KEPT_REST: u32 = 10;

/// What somebody who serves many has learned about its waits.
///
/// One who waits for many has something to do every now and then for as long as any of them is at work, and each of them pays when it
/// has to be woken; so it looks for longer, and all the time it offers its processor to those it serves, who may be on it. They
/// sleep while they wait for it ([`super::Waiting`]), so most of the time nobody wants it.
#[derive(Clone, Debug)]
pub struct Serving {
    wait: Wait,
    waits: u32,
    /// Waits in a row that were spent in vain.
    vain: u32,
    /// Offers in a row that were not accepted.
    refused: u32,
    /// Somebody kept the processor for long: until then nobody is offered any, and whoever wants us wakes us.
    kept_until: Option<Instant>,
}

impl Serving {
    /// Nothing learned yet.
    pub fn new(wait: Wait) -> Self {
        Self { wait, waits: 0, vain: 0, refused: 0, kept_until: None }
    }

    /// The way to wait.
    pub fn wait(&self) -> Wait {
        self.wait
    }

    /// Spins as long as it is worth it, or until `ready`. True if it became ready; false means: sleep now.
    pub fn spin(&mut self, ready: impl FnMut() -> bool) -> bool {
        self.spin_among(offer, ready)
    }

    fn spin_among(&mut self, mut offer: impl FnMut() -> Duration, mut ready: impl FnMut() -> bool) -> bool {
        let longest = match self.wait {
            Wait::Spin => return spin_always(ready),
            Wait::Sleep => return false,
            Wait::Adaptive(longest) => longest,
        };
        self.waits = self.waits.wrapping_add(1);
        let start = Instant::now();
        let gave_up = self.vain >= VAIN_MAX && !self.waits.is_multiple_of(PROBE_EVERY);
        if gave_up || longest.is_zero() || self.kept_until.is_some_and(|until| start < until) {
            return false;
        }
        let mut offered = Duration::ZERO;
        loop {
            if ready() || ready() {
                self.vain = 0;
                return true;
            }
            let elapsed = start.elapsed();
            if elapsed >= longest {
                self.vain = self.vain.saturating_add(1);
                return false;
            }
            if self.refused < ALONE_AFTER || elapsed - offered >= OFFER_EVERY {
                offered = elapsed;
                if self.answered(offer()) {
                    return false;
                }
            }
        }
    }

    /// An offer came back after so long. True if somebody kept the processor.
    fn answered(&mut self, took: Duration) -> bool {
        self.refused = if took > ACCEPTED { 0 } else { self.refused.saturating_add(1) };
        let kept = took > KEPT;
        if kept {
            self.kept_until = Some(Instant::now() + took * KEPT_REST);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;

    #[test]
    fn a_server_looks_and_offers_until_it_has_looked_in_vain_too_often() {
        let mut serving = Serving::new(Wait::Adaptive(Duration::from_micros(20)));
        let mut spun = 0;
        for _ in 0..10 * PROBE_EVERY {
            let (mut looks, mut offers) = (0_u32, 0);
            let offer = || {
                offers += 1;
                refused()
            };
            assert!(!serving.spin_among(offer, || {
                looks += 1;
                false
            }));
            spun += u32::from(looks > 0);
            assert!(looks == 0 || offers > 0 || serving.refused >= ALONE_AFTER, "others are asked while it looks");
        }
        assert!((VAIN_MAX + 9..=VAIN_MAX + 10).contains(&spun), "{spun} waits were spun");
        serving.waits = PROBE_EVERY - 1;
        assert!(serving.spin_among(refused, || true));
        assert_eq!(serving.vain, 0, "one that is worth it is enough");
    }

    #[test]
    fn a_server_beside_somebody_who_keeps_the_processor_sleeps_for_a_while() {
        let mut serving = Serving::new(Wait::Adaptive(Duration::from_secs(1)));
        let mut offers = 0;
        let kept = || {
            offers += 1;
            if offers < 3 { 2 * ACCEPTED } else { Duration::from_secs(60) }
        };
        assert!(!serving.spin_among(kept, || false), "a short turn is no reason to stop, a long one is");
        assert_eq!((offers, serving.vain), (3, 0), "and says nothing of what is worth it");
        assert!(!serving.spin_among(|| unreachable!("it sleeps at once"), || unreachable!("it sleeps at once")));
        serving.kept_until = Some(Instant::now());
        assert!(serving.spin_among(refused, || true));
    }

    #[test]
    fn a_server_that_is_to_sleep_or_to_spin_does() {
        assert!(!Serving::new(Wait::Sleep).spin(|| unreachable!("sleep does not look")));
        assert!(!Serving::new(Wait::Adaptive(Duration::ZERO)).spin(|| unreachable!("no time to look")));
        let mut looks = 0;
        assert!(!Serving::new(Wait::Spin).spin(|| {
            looks += 1;
            false
        }));
        assert_eq!(looks, 4096);
    }
}
