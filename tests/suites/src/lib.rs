//! Suites against the built programs: a real `isthmusd`, real processes as domains, real kills.
//!
//! ```text
//!   tests/*.rs ── Actor ══ stdin, stdout ══ isthmus-actor ── isthmus-client ══ isthmusd
//!                 (one line asks, one line answers)
//! ```
//!
//! [`Actor`] is the test's side of a domain in a process of its own; the program itself is `src/bin/actor.rs`. [`pattern`] is what
//! messages contain, so that a receiver knows every byte it must get; [`exchange`] sends and receives whole lists of them at once;
//! [`crowd`] has descriptors under way.

#![forbid(unsafe_code)]

pub mod actor;
pub mod crowd;
pub mod exchange;
pub mod pattern;

pub use actor::{Actor, PATIENCE, daemon};
