//! Gateways of several hosts on a bad wire, in virtual time, each with a library written from the rules of the ordinary path: every
//! message arrives once, in order and intact, credit is never exceeded and comes back whole, and nothing is kept when all is over.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bounds;
mod connects;
mod content;
mod habits;
mod library;
mod lives;
mod misplaced;
mod node;
mod peer;
#[path = "../../../mx/tests/net/random.rs"]
mod random;
mod regions;
mod schedules;
mod sizes;
#[path = "../../../mx/tests/net/wire.rs"]
mod wire;
mod world;
