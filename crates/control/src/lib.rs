//! The daemon's control plane: who is attached, who may talk to whom, which pairs have a channel. The only library that knows tokio.
//!
//! ```text
//!   daemon ──── everything put together from a configuration
//!     socket ── the socket, one daemon at a time            config ── one file, every key checked
//!     server ── one thread: accepts, reads, sends, waits     scrape ── the counters over HTTP
//!     session ─ one connection: bounded rate, bounded queue   disposal ─ closes what clients send
//!       broker ─── requests, decisions, descriptors; carries no bytes itself
//!         directory ─ domains, endpoints, boards, channels   policy ── who may, as reasons
//!         tickets ─── what a later daemon has to know        journal ─ counts and log lines
//!       capture ── frames on their way to a program that asked for them
//!       border ──── programs of guests, by the window a guest shares with us; also what a guest's own daemon is
//!         ground ── where a domain's memory and bells come from: files of this host, or a guest's window
//!         kvm ───── QEMU's side: devices; windows that are plugged into two guests; what of guests outlives this daemon
//!         xen ───── both sides of a window that a guest of Xen grants, and of one that two such guests have in common
//!         pairs ─── the life of a window that two guests have in common
//!       answer ─── reports as JSON (schema), metrics as text
//! ```
//!
//! Messages between domains never pass here: they take a channel, which this crate brokers, or the workers of `isthmus-service`, which it
//! tells who is there.
#![forbid(unsafe_code)]

pub mod answer;
pub mod border;
pub mod broker;
mod capture;
pub mod config;
pub mod daemon;
pub mod directory;
mod disposal;
pub mod ground;
mod host;
pub mod journal;
mod kvm;
pub mod metrics;
mod network;
mod pairs;
pub mod policy;
mod privileges;
pub mod schema;
pub mod scrape;
pub mod server;
mod session;
pub mod socket;
pub mod tickets;
mod watched;
pub mod xen;
