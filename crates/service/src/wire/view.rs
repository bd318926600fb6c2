//! What is to be seen of a board.

use isthmus_link::{Counters, Kind, Link, State};
use isthmus_mx::board::{BoardCounters, PeerReport};
use isthmus_mx::net::{Carried, IgnoredCounts, Time};
use std::time::Instant;

/// A board, as it was when the worker last had time to say so.
#[derive(Clone, Debug)]
pub struct MxView {
    /// When that was.
    pub taken: Instant,
    /// The same, in the time of `peers`.
    pub now: Time,
    /// Its links, by number.
    pub links: Vec<LinkView>,
    /// Whom it knows.
    pub peers: Vec<PeerReport>,
    /// What it received, sent and dropped.
    pub counters: BoardCounters,
    /// Endpoints that are open, each with its gateway.
    pub gateways: usize,
    /// Endpoints of other hosts that they know, counted for each.
    pub strangers: usize,
    /// Packets that changed nothing, by reason, of endpoints that are closed, too.
    pub ignored: IgnoredCounts,
    /// What was carried, by them too.
    pub carried: Carried,
}

/// A link of a board.
#[derive(Clone, Debug)]
pub struct LinkView {
    /// The interface or the address.
    pub name: String,
    /// What carries the frames.
    pub kind: Kind,
    /// Whether frames can pass.
    pub state: State,
    /// It failed, and is not tried again.
    pub broken: bool,
    /// The longest frame.
    pub frame_bytes_max: u32,
    /// How good it is.
    pub rank: u32,
    /// What was carried and lost.
    pub counters: Counters,
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
            taken: Instant::now(),
            now: Time::ZERO,
            links: Vec::new(),
            peers: Vec::new(),
            counters: BoardCounters::default(),
            gateways: 0,
            strangers: 0,
            ignored: IgnoredCounts::default(),
            carried: Carried::default(),
        }
    }
}
