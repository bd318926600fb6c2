//! The overlay without I/O: one Ethernet for containers and guests on several hosts.
//!
//! ```text
//!   interfaces of this host ──►┐                                          ┌──► interfaces
//!                              ├─► FrameHeader ─► Network::forward ─► ports
//!   edges to other hosts ─────►┘       routes, else learned, else flood   └──► edges
//!
//!   TAP ─► virtio_net ─┬─ segment ─► (vxlan) ─► UDP, VXLAN      cut into frames that fit the path
//!                      └─ fast ───────────────► another daemon  whole, in chunks
//!   UDP, VXLAN ─► coalesce ─┐
//!   fast ─► reassembly ─────┴─► virtio_net ─► TAP
//! ```
//!
//! A [`Network`] decides which ports get a copy of a frame. It has no sockets and no clock: a poller passes frames and the time in, and
//! sends the copies. [`Network::explain`] says why a frame goes where it goes. Payload is never copied on the way out: heads are made in
//! reusable buffers, data is borrowed.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod cache;
pub mod checksum;
pub mod coalesce;
mod explain;
pub mod fast;
mod frame;
pub mod headers;
mod learned;
mod mac;
mod network;
mod pairs;
mod ports;
mod route;
#[cfg(test)]
mod samples;
pub mod segment;
pub mod virtio_net;
pub mod vnet;
pub mod vxlan;

pub use explain::{Explanation, RouteOutcome, Verdict};
pub use frame::{FrameError, FrameHeader, HEADER_BYTES, TAGS_MAX};
pub use learned::{
    CLAIM_AFTER_MS, FLAP_MOVES_MAX, FLAP_WINDOW_MS, LOOP_MS, LearnedCounts, REPORT_INTERVAL_MS, Station,
};
pub use mac::{MacAddr, MacParseError};
pub use network::{Counters, Decision, DropReason, Millis, Network, NetworkOptions, REPEATS_MAX, REPORTS_MAX, Report};
pub use pairs::{FrameCount, PAIRS_MAX, PairCount, TrafficMatrix};
pub use ports::{EdgeId, InterfaceId, Port};
pub use route::table::{ROUTES_MAX, RouteError};
pub use route::{MacPattern, Mismatch, Rank, Route, RouteId, RouteSource};
