//! Times and limits of a board: its own choice. Times are those that peers of this protocol use (mxoe-wire 5).

use super::Rate;

/// What a board can be told to do otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoardTuning {
    /// Entries of the table, boards of this host and forgotten peers included: at most [`BoardTuning::PEERS_LIMIT`].
    pub peers_max: usize,
    /// Entries that announcements can fill: some are left for those whom somebody here asks for.
    pub announced_max: usize,
    /// Endpoints that the board can have: a packet for a higher number is for no endpoint that could ever be. At most 255.
    pub endpoints_max: u16,
    /// Announcements in a row, at the beginning and when somebody appears.
    pub burst: u32,
    /// Between two announcements in a row. Also the time within which a peer starts anew at most once.
    pub burst_us: u64,
    /// Between two announcements otherwise.
    pub announce_us: u64,
    /// Between the first questions to a peer. Later ones take longer and longer.
    pub ask_us: u64,
    /// Between two questions to a peer, at most.
    pub ask_us_max: u64,
    /// A link by which a peer was heard so much earlier than it was heard at all is not used for it any more.
    pub link_stale_us: u64,
    /// Peers that become known by announcement.
    pub found: Rate,
    /// Questions for names.
    pub queries: Rate,
    /// Answers to questions for our name.
    pub replies: Rate,
    /// Negative answers.
    pub nacks: Rate,
}

impl Default for BoardTuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl BoardTuning {
    /// Entries that a table can have: an index has 16 bits, and one value says that there is none.
    pub const PEERS_LIMIT: usize = u16::MAX as usize;

    /// What suits most networks, and what peers expect.
    pub const DEFAULT: Self = Self {
        peers_max: 1024,
        announced_max: 896,
        endpoints_max: 255,
        burst: 8,
        burst_us: 1_000_000,
        announce_us: 180_000_000,
        ask_us: 5_000_000,
        ask_us_max: 300_000_000,
        // Two announcements may be lost.
        link_stale_us: 600_000_000,
        found: Rate { burst: 256, per_second: 64 },
        queries: Rate { burst: 64, per_second: 64 },
        replies: Rate { burst: 128, per_second: 128 },
        nacks: Rate { burst: 64, per_second: 1000 },
    };

    /// The same, with each limit brought to what is possible.
    pub(super) fn within_limits(self) -> Self {
        Self {
            peers_max: self.peers_max.clamp(1, Self::PEERS_LIMIT),
            endpoints_max: self.endpoints_max.min(255),
            burst_us: self.burst_us.max(1),
            announce_us: self.announce_us.max(1),
            ask_us: self.ask_us.max(1),
            ..self
        }
    }
}
