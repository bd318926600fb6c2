//! The control plane over real sockets: a daemon with its workers, and clients that speak the protocol by hand.
#![allow(clippy::unwrap_used, reason = "tests")]

mod attaching;
mod capture;
mod channels;
mod full_tables;
mod grants;
mod guest;
mod guests;
mod guests_restart;
mod hostile;
mod monitor;
mod mx;
mod overlay;
mod owners;
mod pairs;
mod processes;
mod regions;
mod reports;
mod resuming;
mod streams;
mod testbed;
mod verbs;
mod viewers;
mod xen;
mod xen_backends;
mod xen_pairs;
