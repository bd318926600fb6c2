//! The control plane over real sockets: a daemon with its workers, and clients that speak the protocol by hand.
#![allow(clippy::unwrap_used, reason = "tests")]

mod attaching;
mod capture;
mod channels;
mod full_tables;
mod grants;
#[expect(dead_code, reason = "the tests of guests use the rest")]
#[path = "../../../guests/tests/server/guest.rs"]
mod guest;
mod hostile;
mod mx;
mod overlay;
mod owners;
mod processes;
mod recorded;
mod reports;
mod resuming;
mod streams;
#[expect(dead_code, reason = "as above")]
mod testbed;
mod verbs;
mod viewers;
