//! Suites against the built programs: a real `isthmusd`, real processes as domains, real kills.
//!
//! ```text
//!   tests/*.rs ── TestProgram ══ stdin, stdout ══ isthmus-test-program ── isthmus-client ══ isthmusd
//!                       (one line asks, one line answers)
//! ```
//!
//! [`TestProgram`] is the test's side of a domain in a process of its own; the program itself is `src/bin/test_program.rs`. [`pattern`] is what
//! messages contain, so that a receiver knows every byte it must get; [`exchange`] sends and receives whole lists of them at once;
//! [`in_flight_fds`] has descriptors under way. [`attach`] is for the domains of the test's own process.

#![forbid(unsafe_code)]

pub mod attach;
pub mod exchange;
pub mod in_flight_fds;
pub mod pattern;
pub mod test_program;

pub use test_program::{TIMEOUT_S, TestProgram, daemon};
