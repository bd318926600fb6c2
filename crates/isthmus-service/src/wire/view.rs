//! What is to be seen of a board.

use isthmus_link::{Counters, Kind, Link, State};
use isthmus_mx::board::{BoardCounters, PeerReport};
use isthmus_mx::net::Time;
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
    /// Endpoints that are open.
    pub endpoints: usize,
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
}

impl LinkView {
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
            endpoints: 0,
        }
    }
}
