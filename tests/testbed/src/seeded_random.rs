//! Seeded chance, for kills at unforeseen moments. The same seed yields the same choices in the same order.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

/// A xorshift64* generator that prints its seed when the test it drives fails.
///
/// `ISTHMUS_SEED=0x… cargo test NAME` repeats a failed schedule. What the kernel does between two steps is not repeated, so
/// a seed brings a failure near, not always back.
#[derive(Debug)]
pub struct SeededRandom {
    seed: u64,
    state: u64,
}

impl SeededRandom {
    /// The schedule of `ISTHMUS_SEED`, or of a fresh seed.
    ///
    /// # Panics
    ///
    /// When `ISTHMUS_SEED` is set and is not a number.
    pub fn new() -> Self {
        match std::env::var("ISTHMUS_SEED") {
            Ok(text) => Self::seeded(parse(&text).unwrap_or_else(|| panic!("ISTHMUS_SEED={text} is not a number"))),
            Err(_) => Self::seeded(std::hash::RandomState::new().build_hasher().finish()),
        }
    }

    /// The schedule of one seed.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, state: if seed == 0 { 0x9e37_79b9_7f4a_7c15 } else { seed } } // Zero would stay zero.
    }

    /// Returns the value to put into `ISTHMUS_SEED`.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    ///
    /// # Panics
    ///
    /// When `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "there is no number below 0");
        let wide = u128::from(self.bits()) * u128::from(end);
        (wide >> 64) as u64
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of `choices`, or none of none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        if choices.is_empty() { None } else { choices.get(self.below(choices.len() as u64) as usize) }
    }

    /// Lets a random time below `end` pass, so that a kill falls anywhere into what others do meanwhile.
    pub fn sleep_random(&mut self, end: Duration) {
        let nanoseconds = self.below(end.as_nanos().clamp(1, u64::MAX.into()) as u64);
        crate::deadline::sleep(Duration::from_nanos(nanoseconds));
    }
}

impl Default for SeededRandom {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SeededRandom {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to repeat this schedule: ISTHMUS_SEED={:#x}", self.seed);
        }
    }
}

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_numbers() {
        let draw = |seed| {
            let mut schedule = SeededRandom::seeded(seed);
            std::array::from_fn::<_, 8, _>(|_| schedule.bits())
        };
        assert_eq!(draw(42), draw(42));
        assert_ne!(draw(42), draw(43));
        assert_ne!(draw(0), [0; 8]);
    }

    #[test]
    fn below_reaches_every_number_and_no_other() {
        let mut schedule = SeededRandom::seeded(7);
        let mut hits = [0; 6];
        for _ in 0..600 {
            hits[schedule.below(6) as usize] += 1;
        }
        assert!(hits.iter().all(|&hit| hit > 0), "{hits:?}");
        assert_eq!(schedule.pick::<u8>(&[]), None);
    }

    #[test]
    fn seeds_are_read_in_both_notations() {
        assert_eq!(parse("0x1f"), Some(31));
        assert_eq!(parse("31"), Some(31));
        assert_eq!(parse("seed"), None);
    }
}
