//! MX without I/O: the state and decisions of one endpoint. Partners, matching, unexpected messages, and requests.
//!
//! ```text
//!   program                                 Engine                                        transport
//!
//!   irecv ──── post_receive ──►  posted ◄────────────────────────────── arrive ◄──── a message begins
//!                   │              │ matched: the receive's buffer goes to the transport ──► copies into it
//!                   │              ▼
//!                   │           underway ─────────────────────────────── received ◄──── its bytes are there
//!                   │              ▼
//!   test ◄──────────────────────  done, in the order of completion
//!                   │              ▲
//!   isend ──── post_send ─────►  underway ─────────────────────────────── sent ◄──────── it has left, or was taken
//!                   │
//!                   └── found ─  unexpected ◄────────────────────────── hold ◄────── no receive matches
//!   probe ◄──────────────────────  │
//! ```
//!
//! A message goes to the oldest posted receive that accepts it; a receive takes the oldest unexpected message that it accepts.
//! The engine does not know where bytes are: the data of receives and unexpected messages are types of the transport
//! ([`TransportTypes`]). The same engine runs over shared memory and over the wire. It never does I/O, waits or reads a clock,
//! and no input of a peer makes it panic.
//!
//! The cost of a call does not depend on the number of waiting requests and messages, because entries beyond the oldest few
//! are found by hash. There are two exceptions. A wildcard that searches messages or completed requests walks the queue from
//! the oldest entry on. An arriving message is looked up once for each mask of the posted receives.
//!
//! ```
//! use isthmus_mx::{ContextIdBits, Engine, Filter, MatchEnvelope, PostOutcome, StatusCode, TransportTypes};
//!
//! /// Buffers are vectors, unexpected messages too, and partners have numbers.
//! struct Example;
//! impl TransportTypes for Example {
//!     type Receive = Vec<u8>;
//!     type Message = Vec<u8>;
//!     type Address = u32;
//! }
//!
//! let mut engine: Engine<Example> = Engine::new(ContextIdBits::NONE, 0x5eed);
//! let Ok(PostOutcome::Waiting(request)) = engine.post_receive(Filter::exactly(7), 0, 64, Vec::new()) else { panic!() };
//!
//! let source = engine.partner(1)?;
//! let matched = engine.arrive(&MatchEnvelope { source, match_info: 7, msg_length: 8 }).unwrap();
//! assert_eq!(matched.request, request);
//! engine.received(request, StatusCode::Success, 8);
//!
//! let status = engine.test(request)?.unwrap();
//! assert_eq!((status.code, status.source, status.xfer_length), (StatusCode::Success, Some(source), 8));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod board;
mod engine;
mod filter;
mod hash;
mod ids;
mod key_index;
mod list_arena;
mod match_queue;
pub mod net;
mod partner;
mod posted_queue;
mod slab;
mod status;
pub mod wire;

pub use engine::{
    BufferedError, Cancelled, Counts, DisconnectedPartner, DrainedRequests, Engine, MatchEnvelope, Matched, PostError,
    PostOutcome, RequestKind, TransportTypes, UnexpectedMessage, UnknownPartner, UnknownRequest,
};
pub use filter::{BadContextIdBits, ContextIdBits, Filter, InvalidMask};
pub use ids::{MessageId, PartnerId, RequestId};
pub use slab::Full;
pub use status::{Status, StatusCode};
