//! Endpoints of several hosts on a bad wire, in virtual time: each message arrives once, in order and intact, or there is an error
//! at both ends. Every schedule comes from a seed, and is the same on every machine.
#![allow(clippy::unwrap_used, reason = "tests")]

mod attacks;
mod host;
mod random;
mod refusals;
mod restarts;
mod rules;
mod schedules;
mod simulation;
mod throughput;
mod wire;
