//! The visible state of an MX board.

use isthmus_link::{Link, LinkCounters, LinkKind, LinkState};
use isthmus_mx::board::{BoardCounters, PeerReport};
use isthmus_mx::net::{IgnoredCounts, Time, TrafficCounters};
use std::time::Instant;

/// An MX board, as it was when the worker last updated the view.
#[derive(Clone, Debug)]
pub struct MxView {
    /// The time of that update.
    pub updated_at: Instant,
    /// The time of that update on the clock of `peers`.
    pub now: Time,
    /// The links of the board, by number.
    pub links: Vec<LinkView>,
    /// The peers that the board knows.
    pub peers: Vec<PeerReport>,
    /// Counters of received, sent and dropped frames.
    pub counters: BoardCounters,
    /// Endpoints that are open, each with its transport.
    pub transports: usize,
    /// Remote peers of these endpoints. A remote peer of two endpoints counts twice.
    pub remote_peers: usize,
    /// Packets that changed nothing, by reason. Closed endpoints are included.
    pub ignored: IgnoredCounts,
    /// Traffic of the endpoints. Closed endpoints are included.
    pub traffic: TrafficCounters,
}

/// A link of an MX board.
#[derive(Clone, Debug)]
pub struct LinkView {
    /// The interface or the address.
    pub name: String,
    /// The kind of the link.
    pub kind: LinkKind,
    /// Whether frames can pass.
    pub state: LinkState,
    /// Whether the link failed and is not tried again.
    pub broken: bool,
    /// The longest frame.
    pub frame_bytes_max: u32,
    /// The rank of the link; higher is better.
    pub rank: u32,
    /// Counters of carried and lost frames.
    pub counters: LinkCounters,
    /// Frames that were made for the link and not sent, because the link was down or refused them.
    pub unsent: u64,
}

impl LinkView {
    /// Lost frames, by reason.
    pub fn lost(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counters.lost().chain([("unsent", self.unsent)])
    }

    /// The current state of a link.
    pub fn of(link: &dyn Link, rank: u32) -> Self {
        Self {
            name: link.name().to_owned(),
            kind: link.kind(),
            state: link.state(),
            broken: false,
            frame_bytes_max: link.frame_bytes_max(),
            rank,
            counters: link.counters(),
            unsent: 0,
        }
    }
}

impl Default for MxView {
    fn default() -> Self {
        Self {
            updated_at: Instant::now(),
            now: Time::ZERO,
            links: Vec::new(),
            peers: Vec::new(),
            counters: BoardCounters::default(),
            transports: 0,
            remote_peers: 0,
            ignored: IgnoredCounts::default(),
            traffic: TrafficCounters::default(),
        }
    }
}
