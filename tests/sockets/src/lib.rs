//! Programs that use TCP, as they are compiled for any system, on the kernel alone and with the library of sockets.
//!
//! ```text
//!  c/transfer.c    a pseudo-random stream, in one or both directions: contents, count, hash
//!  c/exchange.c    requests and replies over many connections
//!  c/shown.c       a connection that the daemon examines
//!  c/uring.c       messages by io_uring, which go past the library
//!  c/differential.c  random programs; it runs them on the kernel alone and with the library, and compares
//!  c/endings.c     FIN, RST and death; c/calls.c, kinds.c, edges.c: everything else. They print transcripts
//!        │ cc, once
//!        ▼
//!  Stage ── the kernel alone, or a daemon and LD_PRELOAD
//!    └─ TwoPrograms ── two programs on one host, or in two containers: Container
//! ```
//!
//! The kernel is the reference: a transcript with the library has to have the same lines. `ISTHMUS_SOCKETS_LIBRARY=DIR` tests the
//! library that lies in DIR.

#![forbid(unsafe_code)]

pub mod build;
mod container;
mod stage;
mod transcript;
mod two_programs;

pub use container::Container;
pub use stage::Stage;
pub use transcript::{Transcript, cases, run_case};
pub use two_programs::{End, TwoPrograms};

use isthmus_testbed::Deadline;

/// The longest time that something may take that must happen; it never judges speed.
pub fn timeout() -> Deadline {
    Deadline::secs(60)
}
