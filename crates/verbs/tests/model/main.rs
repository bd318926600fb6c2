//! Engines that exchange packets through a transport of the tests, in any order that a transport may have: what their programs see is
//! what the standard says.
#![allow(clippy::unwrap_used, reason = "tests")]

mod buffers;
mod flows;
mod memory;
mod network;
mod programs;
mod rules;
mod setup;
mod states;
