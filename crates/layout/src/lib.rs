//! The agreement between two domains: names, limits, and every byte in shared memory and on the control socket.
//!
//! ```text
//!   capability ─── the capabilities of the daemon, and the numbers that belong to each
//!   ids, span ──── numbers that cannot be confused, ranges that are known to lie inside
//!   slots ──────── a table of values by number
//!   limits ─────── every maximum, and the assertions about them
//!   channel ────── the memory of a channel: head page, two rings of cells, two slabs
//!   arena ──────── the file with memory that peers read and write directly
//!   record ─────── the records in the cells of a ring
//!   ready_map ──── the page that shows a receiver which peers are active
//!   proxy ──────── a guest's window, and the protocol between the guest daemon and the host daemon
//!   control ────── messages between a library and its daemon
//!   mx ─────────── the messages and limits of MX
//!   sockets ────── the memory of streams, boards, and the page of listeners
//!   verbs ──────── the messages and limits of verbs
//!   overlay ────── the messages and limits of overlay networks
//!   environment ── the variables that the library reads
//!   reason ─────── the reasons for refusals, slower paths, faults and ends; [`Refusal`] adds details
//! ```
//!
//! This crate does no I/O, and accesses no memory that another domain can write: that is `isthmus-shm`.
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
pub mod overlay;
pub mod proxy;
pub mod ready_map;
pub mod reason;
pub mod record;
mod refusal;
pub mod slots;
pub mod sockets;
pub mod span;
pub mod verbs;

pub use capability::Capability;
pub use ids::{ChannelId, DomainId, EndpointAddress, EndpointIndex, NicId, RegionId};
pub use refusal::Refusal;
pub use slots::SlotTable;
pub use span::{Len, Offset, OutsideRegion, RegionSize, Span};
