//! The options of a network, and its time.

use core::fmt;

/// Milliseconds of a clock that does not go backwards, or a number of them. The caller chooses the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// The time from `earlier` to this; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

/// The options of a network.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NetworkOptions {
    /// Whether frames without a route go where their destination was last seen, or everywhere. Without learning they are dropped.
    pub learning: bool,
    /// Whether frames that seem to come from a loop are dropped. Without that, each address is where it was last seen.
    pub loop_protection: bool,
    /// The number of learned addresses. A new address takes the place of the one that was not seen for longest.
    pub learned_max: usize,
    /// The time after which an address that is not seen counts as unknown.
    pub learned_age: Millis,
    /// The number of decisions in the cache, rounded up to a power of two.
    pub cache_entries: usize,
    /// Random bits that guests do not know. They keep guests from choosing addresses that collide in the tables.
    pub hash_key: [u64; 2],
}

impl NetworkOptions {
    /// The default options: learning with 4,096 addresses that age out after five minutes, and 8,192 decisions.
    pub const fn new(hash_key: [u64; 2]) -> Self {
        Self {
            learning: true,
            loop_protection: true,
            learned_max: 4_096,
            learned_age: Millis(300_000),
            cache_entries: 8_192,
            hash_key,
        }
    }
}

/// Does not show the key.
impl fmt::Debug for NetworkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { learning, loop_protection, learned_max, learned_age, cache_entries, hash_key: _ } = self;
        let mut out = f.debug_struct("NetworkOptions");
        out.field("learning", learning)
            .field("loop_protection", loop_protection)
            .field("learned_max", learned_max)
            .field("learned_age", learned_age);
        out.field("cache_entries", cache_entries).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn a_time_that_did_not_pass_is_zero() {
        assert_eq!(Millis(5).since(Millis(2)), Millis(3));
        assert_eq!(Millis(2).since(Millis(5)), Millis(0));
    }

    #[test]
    fn the_defaults_are_those_of_the_description() {
        let options = NetworkOptions::new([1, 2]);
        assert_eq!((options.learning, options.learned_max, options.learned_age), (true, 4_096, Millis(300_000)));
        assert_eq!((options.cache_entries, options.hash_key), (8_192, [1, 2]));
    }

    #[test]
    fn the_key_is_not_shown() {
        let text = format!("{:?}", NetworkOptions::new([0x1234_5678, 0x1234_5678]));
        assert!(text.contains("learned_max: 4096") && !text.contains("305419896"), "{text}");
    }
}
