//! How a program behaves that a library belongs to.

/// How often it does what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerBehaviour {
    /// Longest time between two looks.
    pub(crate) poll_interval_us: u64,
    /// In so many of a million looks, it computes for a while after it.
    pub(crate) computes_per_million: u64,
    pub(crate) computes_us: u64,
    /// In so many of a million looks, it gives credit back.
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
