//! Programs that use TCP, on the kernel and with the library.
#![allow(clippy::unwrap_used, reason = "tests")]

mod containers;
mod exchanges;
mod inherited;
mod judges;
mod kills;
mod owners;
mod programs;
mod python;
mod redis;
mod restarts;
mod sanitizers;
mod shown;
mod transcripts;
mod transfers;
mod uring;
mod why;
