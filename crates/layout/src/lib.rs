//! What two domains agree on: names, limits, and every byte that lies in shared memory or crosses the control socket.
//!
//! ```text
//!   capability ─── what the daemon is used for, and the numbers that belong to each use
//!   ids, span ──── numbers that cannot be mixed up, places that are known to lie inside
//!   limits ─────── every maximum, and the assertions that tie them together
//!   channel ────── the memory of a channel: head page, two rings of cells, two slabs
//!   arena ──────── the file with memory that peers read and write by themselves
//!   record ─────── what the cells of a ring carry
//!   ready_map ──── the page where a receiver sees which of its peers are active
//!   proxy ──────── a guest's window, and the protocol between its daemon and the host's
//!   control ────── messages between a library and its daemon
//!   mx ─────────── the messages and limits of MX
//!   environment ── the variables that the library looks at
//!   reason ─────── why something was refused, took the slower path, or was ended
//! ```
//!
//! Nothing here touches memory that another domain can write: that is `isthmus-shm`. Nothing here does I/O.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arena;
pub mod capability;
pub mod channel;
pub mod control;
pub mod environment;
pub mod ids;
pub mod limits;
pub mod mx;
pub mod proxy;
pub mod ready_map;
pub mod reason;
pub mod record;
pub mod span;

pub use capability::Capability;
pub use ids::{ChannelId, DomainId, EndpointAddress, EndpointIndex, NicId, RegionId};
pub use span::{Len, Offset, OutsideRegion, RegionSize, Span};
