//! The engine of verbs: a software RDMA adapter, without I/O.
//!
//! An open device of a program is an [`Engine`]: protection domains, memory regions, completion queues, queue pairs and their requests.
//! Two engines exchange packets through a transport that loses, duplicates and reorders nothing: a channel, or the daemon path.
//!
//! ```text
//!   program                     engine                                     transport
//!   post_send ──► send queue ── pump ──► next_outgoing ──────────────────► packets
//!                     ▲ retire ◄── note_executed ◄── receive ◄──────────── packets, acknowledgements
//!   post_receive ─► receive queue ─► take_receive ──┤
//!   poll ◄──────── completion queue ◄───────────────┘ executed ─► next_ack ─► acknowledgements
//! ```
//!
//! A request of a reliable connection completes when the peer has executed it, with the status of the standard. The memory of the program
//! is behind the trait [`Memory`]; the engine passes only addresses that lie in a registered region with the needed rights. [`packet`]
//! describes the packets.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod accesses;
mod attributes;
pub mod cm;
mod direct;
mod engine;
mod events;
mod look_ups;
mod memory;
mod outgoing;
pub mod packet;
mod queue_pair;
mod queues;
mod receive;
mod requester;
mod responder;
mod send;
mod types;

pub use accesses::PeerAccesses;
pub use attributes::{AttributeMask, Attributes};
pub use direct::Direct;
pub use engine::{Engine, limits};
pub use events::AsyncEvent;
pub use look_ups::{Found, LookUp};
pub use memory::Memory;
pub use outgoing::{PAYLOAD_TAG, Payload, Transmit};
pub use packet::SHORT_BYTES_MAX;
pub use queue_pair::QpInit;
pub use receive::PayloadTarget;
pub use types::*;
