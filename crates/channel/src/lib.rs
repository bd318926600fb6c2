//! Channels: what is left between two domains once the daemon has introduced them and stepped out of the way.
//!
//! ```text
//!   channel ── one pair: a ring and a slab each way, the peer's board and doorbell
//!   inbox ──── all channels that one thread receives on: who is active, and sleeping when nobody is
//!   crossing ─ frames between the daemon of a guest and that of its host
//!   wait ───── how to wait: spin, adaptive, sleep
//!   flight ─── the last events of a channel, for when it dies
//! ```
#![forbid(unsafe_code)]

pub mod channel;
pub mod crossing;
pub mod flight;
pub mod inbox;
pub mod wait;

pub use channel::{Channel, Ends, SendError};
pub use crossing::{Crossing, CrossingFault, Frame};
pub use inbox::{BoardIndex, ChannelKey, Inbox, Polled};
pub use wait::{Idle, Serving, Wait, Waiting};
