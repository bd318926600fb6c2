//! Every link over real interfaces: two network namespaces with a cable (veth) between them.
//!
//! ```text
//!   namespace a   w ══════════ w   namespace b        made for each test, gone with its threads
//! ```
#![allow(clippy::unwrap_used, reason = "tests")]

mod edge;
mod packet;
mod pattern;
mod raw;
mod suite;
mod testbed;
mod udp;
#[cfg(feature = "af-xdp")]
mod xdp;
