//! The visible state of an MX board.

use isthmus_link::{Link, LinkCounters, LinkKind, LinkState};
use isthmus_mx::board::{BoardCounters, PeerReport};
use isthmus_mx::net::{IgnoredCounts, Time, TrafficCounters};
use std::time::Instant;

/// An MX board, as it was when the worker last updated the view.
#[derive(Clone, Debug)]
pub struct MxView {
    /// When that was.
    pub updated_at: Instant,
    /// The same, in the time of `peers`.
    pub now: Time,
    /// Its links, by number.
    pub links: Vec<LinkView>,
    /// Whom it knows.
    pub peers: Vec<PeerReport>,
    /// What it received, sent and dropped.
    pub counters: BoardCounters,
    /// Endpoints that are open, each with its transport.
    pub transports: usize,
    /// Endpoints of other hosts that they know, counted for each.
    pub remote_peers: usize,
    /// Packets that changed nothing, by reason, of endpoints that are closed, too.
    pub ignored: IgnoredCounts,
    /// What was carried, by them too.
    pub traffic: TrafficCounters,
}

/// A link of an MX board.
#[derive(Clone, Debug)]
pub struct LinkView {
    /// The interface or the address.
    pub name: String,
    /// What carries the frames.
    pub kind: LinkKind,
    /// Whether frames can pass.
    pub state: LinkState,
    /// It failed, and is not tried again.
    pub broken: bool,
    /// The longest frame.
    pub frame_bytes_max: u32,
    /// How good it is.
    pub rank: u32,
    /// What was carried and lost.
    pub counters: LinkCounters,
    /// Frames that were made for it and not given to it, because it was down, or refused.
    pub unsent: u64,
}

impl LinkView {
    /// What was lost, by reason.
    pub fn lost(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counters.lost().chain([("unsent", self.unsent)])
    }

    /// A link as it is.
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
