//! MX between hosts: real daemons on hosts of a testbed (network namespaces), with real wires and MX programs on them.
//!
//! ```text
//!   MxProgram ══ orders ══ c/mx_program.c ── libmyriexpress ── isthmusd ── wire0 ── isthmusd ── libmyriexpress ── c/mx_program.c ══ MxProgram
//!                                               TestHost a          cable, or a wire that loses, doubles, delays      TestHost b
//! ```
//!
//! A [`TestHost`] is a host with its daemon, a [`MxProgram`] a program on it. A [`flow`](Flow) describes messages between programs: all of
//! a message follows from a stream and a number, so each has to come once, in order, with every byte right. [`spoofing`] is an attacker on
//! the wire.
//!
//! It needs what [`isthmus_netns::Testbed`] needs; without, tests say `skipped: why`.

#![forbid(unsafe_code)]

mod mx_program;
pub mod spoofing;
mod test_host;
mod two_hosts;

pub use mx_program::{Flow, MxProgram, code, program as program_path};
pub use test_host::{TestHost, timeout};
pub use two_hosts::{TwoHosts, board_on_wire, testbed};
