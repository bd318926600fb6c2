//! Channels: what is left between two domains once the daemon has introduced them and stepped out of the way.
//!
//! ```text
//!   channel ────────── one pair: a ring and a slab each way, the peer's ready map and doorbell
//!   inbox ──────────── all channels that one thread receives on: who is active, and sleeping when nobody is
//!   proxy_ring ─────── frames between the daemon of a guest and that of its host
//!   wait ───────────── how to wait: spin, adaptive, sleep
//!   flight_recorder ── the last events of a channel, for when it dies
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
