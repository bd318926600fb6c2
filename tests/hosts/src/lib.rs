//! MX between hosts: real daemons on hosts of a bed (network namespaces), with real wires and MX programs on them.
//!
//! ```text
//!   Party ══ orders ══ c/party.c ── libmyriexpress ── isthmusd ── wire0 ── isthmusd ── libmyriexpress ── c/party.c ══ Party
//!                                       Side a          cable, or a wire that loses, doubles, delays      Side b
//! ```
//!
//! A [`Side`] is a host with its daemon, a [`Party`] a program on it, [`flow`](Flow) what programs send each other: messages of which
//! everything follows from a stream and a number, so that each has to come once, in order, with every byte right. [`lan`] is
//! somebody else on the wire.
//!
//! It needs what [`isthmus_netbed::Bed`] needs; without, tests say `skipped: why`.

#![forbid(unsafe_code)]

pub mod lan;
mod party;
mod side;
mod world;

pub use party::{Flow, Party, code, program as party_program};
pub use side::{Side, patience};
pub use world::{World, bed, wired};
