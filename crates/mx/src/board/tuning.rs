//! Times and limits of a board. The defaults are those of other implementations (mxoe-wire 5).

use super::Rate;

/// The tunable parameters of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoardTuning {
    /// The capacity of the table, including boards of this host and forgotten peers: at most
    /// [`BoardTuning::PEERS_LIMIT`].
    pub peers_max: usize,
    /// The number of entries that announcements may fill. The rest are reserved for peers that programs of this host
    /// request.
    pub announced_max: usize,
    /// The number of endpoints of the board, at most 255. Packets for higher numbers name an endpoint that cannot
    /// exist.
    pub endpoints_max: u16,
    /// The number of announcements in a burst, at the start and when a peer appears.
    pub burst: u32,
    /// The interval within a burst. A peer's restart also counts at most once in this time.
    pub burst_us: u64,
    /// The interval between later announcements.
    pub announce_us: u64,
    /// The interval between the first queries to a peer. Later intervals grow.
    pub ask_us: u64,
    /// The longest time between two queries to a peer.
    pub ask_us_max: u64,
    /// A link stops being used for a peer once its last frame there is this much older than the peer's last frame on any link.
    pub link_stale_us: u64,
    /// The limit of peers that become known by announcement.
    pub found: Rate,
    /// The limit of queries for names.
    pub queries: Rate,
    /// The limit of replies to queries for our name.
    pub replies: Rate,
    /// The limit of negative acknowledgements.
    pub nacks: Rate,
}

impl Default for BoardTuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl BoardTuning {
    /// The maximum capacity of a table: an index has 16 bits, and one value means none.
    pub const PEERS_LIMIT: usize = u16::MAX as usize;

    /// The defaults, which suit most networks and match the expectations of peers.
    pub const DEFAULT: Self = Self {
        peers_max: 1024,
        announced_max: 896,
        endpoints_max: 255,
        burst: 8,
        burst_us: 1_000_000,
        announce_us: 180_000_000,
        ask_us: 5_000_000,
        ask_us_max: 300_000_000,
        // This tolerates two lost announcements.
        link_stale_us: 600_000_000,
        found: Rate { burst: 256, per_second: 64 },
        queries: Rate { burst: 64, per_second: 64 },
        replies: Rate { burst: 128, per_second: 128 },
        nacks: Rate { burst: 64, per_second: 1000 },
    };

    /// Returns these parameters with each limit clamped to its valid range.
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
