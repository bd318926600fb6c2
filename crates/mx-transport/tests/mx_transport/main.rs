//! MX transports of several hosts on a bad network, in virtual time, each with a library written from the rules of the daemon path: every
//! message arrives once, in order and intact, credit is never exceeded and comes back whole, and nothing is kept when all is over.
#![allow(clippy::unwrap_used, reason = "tests")]

mod behaviour;
mod connects;
mod content;
mod limits;
mod model_library;
mod model_peer;
mod node;
#[path = "../../../mx/tests/net/random.rs"]
mod random;
mod regions;
mod restarts;
mod schedules;
mod simulation;
mod sizes;
mod violations;
#[path = "../../../mx/tests/net/wire.rs"]
mod wire;
