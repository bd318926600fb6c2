//! The behaviour of the program that uses a model library.

/// The rates at which a program acts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerBehaviour {
    /// The longest time between two polls.
    pub(crate) poll_interval_us: u64,
    /// The number of polls, of a million, after which the program computes for a while.
    pub(crate) computes_per_million: u64,
    pub(crate) computes_us: u64,
    /// The number of polls, of a million, in which the program returns credit.
    pub(crate) gives_per_million: u64,
    /// Receives for announced messages that it posts.
    pub(crate) posts_per_million: u64,
}

impl PeerBehaviour {
    pub(crate) const EAGER: Self = Self {
        poll_interval_us: 20,
        computes_per_million: 0,
        computes_us: 0,
        gives_per_million: 1_000_000,
        posts_per_million: 1_000_000,
    };
}
