//! Channels: the shared-memory connection of two domains, which works without the daemon once it is set up.
//!
//! ```text
//!   channel ────────── one pair: a ring and a slab each way, the peer's ready map and doorbell
//!   inbox ──────────── all channels that one thread receives on: which are active, and sleeping when none is
//!   proxy_ring ─────── frames between the daemon of a guest and that of its host
//!   wait ───────────── how to wait: spin, adaptive, sleep
//!   flight_recorder ── the last events of a channel, written out when it fails
//! ```
#![forbid(unsafe_code)]

pub mod channel;
pub mod flight_recorder;
pub mod inbox;
pub mod proxy_ring;
pub mod wait;

pub use channel::{Channel, ChannelParts, ChannelSendError};
pub use inbox::{ChannelKey, Inbox, InboxMapIndex, Polled};
pub use proxy_ring::{ProxyFrame, ProxyRing, ProxyRingFault};
pub use wait::{AdaptiveSpin, PollBackoff, ServerSpin, WaitMode};
