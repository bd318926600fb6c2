//! Endpoints of several hosts on a faulty wire, in virtual time: each message arrives once, in order and intact, or
//! both ends get an error. Every schedule comes from a seed, and is the same on every machine.
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
