//! Guests over the real protocol: a daemon with its workers, and guests that speak the proxy's protocol by hand.
#![allow(clippy::unwrap_used, reason = "tests")]

mod guest;
mod guests;
mod guests_restart;
mod loops;
mod monitor;
mod pairs;
mod regions;
#[expect(dead_code, reason = "the tests of the control plane use the rest")]
#[path = "../../../control/tests/server/testbed.rs"]
mod testbed;
mod xen;
mod xen_backends;
mod xen_pairs;
