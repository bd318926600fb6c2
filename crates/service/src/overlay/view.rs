//! The visible state of a network, which its worker publishes.

use super::counters::PortCounters;
use isthmus_overlay::{EdgeId, FrameCount, InterfaceId, MacAddr, Millis, PairCount, Port, Station};
use std::time::Instant;

/// The visible state of an overlay network.
#[derive(Clone, Debug)]
pub struct OverlayView {
    /// The time of the last update.
    pub updated_at: Instant,
    /// The interfaces.
    pub interfaces: Vec<InterfaceView>,
    /// The edges.
    pub edges: Vec<EdgeView>,
    /// The learned addresses.
    pub learned: Vec<LearnedView>,
    /// The forwarded frames by source and destination, in no order.
    pub pairs: Vec<PairCount>,
    /// The forwarded frames of pairs that lost their place in the matrix.
    pub others: FrameCount,
}

impl Default for OverlayView {
    fn default() -> Self {
        Self {
            updated_at: Instant::now(),
            interfaces: Vec::new(),
            edges: Vec::new(),
            learned: Vec::new(),
            pairs: Vec::new(),
            others: FrameCount::default(),
        }
    }
}

/// An interface.
#[derive(Clone, Copy, Debug)]
pub struct InterfaceView {
    /// The interface.
    pub interface: InterfaceId,
    /// Its counters.
    pub counters: PortCounters,
    /// True if a frame of the interface waits for room in the socket of an edge.
    pub is_held: bool,
}

/// An edge.
#[derive(Clone, Copy, Debug)]
pub struct EdgeView {
    /// The edge.
    pub edge: EdgeId,
    /// Its counters.
    pub counters: PortCounters,
    /// The length of the longest datagram on the path; none without a route.
    pub datagram_bytes: Option<usize>,
    /// The time since the last frame from the host, in milliseconds; none if there was none.
    pub heard_ms: Option<u64>,
}

/// A learned address.
#[derive(Clone, Copy, Debug)]
pub struct LearnedView {
    /// The address.
    pub mac: MacAddr,
    /// The VLAN in which it was learned. None without a tag.
    pub vlan: Option<u16>,
    /// The interface or edge that has it.
    pub port: Port,
    /// The time since its last frame, in milliseconds.
    pub age_ms: u64,
}

impl From<(Station, Port, Millis)> for LearnedView {
    fn from((Station { mac, vlan }, port, age): (Station, Port, Millis)) -> Self {
        Self { mac, vlan, port, age_ms: age.0 }
    }
}
