//! The daemon's control plane: attached domains, the policy, and the channels of pairs.
//!
//! ```text
//!   socket ── the socket, one daemon at a time
//!   server ── one thread: accepts, reads, sends, waits
//!     session ─ one connection: bounded rate, bounded queue   fd_reaper ─ closes what clients send
//!     users ─── what all connections of one user together may take      accounts ── who counts as whom
//!     places ── the rule by which users share each table                turns ───── the processor time of each turn
//!       broker ─── requests, decisions, descriptors; carries no bytes itself
//!         core ──────── what capabilities may borrow: sessions, policy, tickets, workers, messages to send
//!           directory ─ domains, endpoints, ready maps, channels   policy ── permissions, as reasons
//!           tickets ─── what a later daemon has to know        reason_log ─ counts and log lines
//!         capabilities ── mx, sockets, verbs, overlay: each in a folder of its own, lent the core for a call
//!       capture ── frames on their way to a program that asked for them
//!       report ─── reports as JSON (`isthmus-report`), metrics as text
//!         viewer ── the part of the state that the asking program may see
//! ```
//!
//! Messages between domains never pass here. They take a channel, which this crate brokers, or the workers of `isthmus-service`, which
//! this crate notifies of domains. Memory comes from `isthmus-window`. `isthmus-guests` brings connections of guests' programs, and
//! `isthmus-daemon` puts everything together.
#![forbid(unsafe_code)]

mod accounts;
pub mod async_fd;
pub mod broker;
pub mod capabilities;
mod capture;
mod core;
pub mod credentials;
pub mod directory;
pub mod fd_reaper;
mod host;
pub mod interfaces;
pub mod metrics;
pub mod mx;
pub mod overlay;
pub mod places;
pub mod policy;
pub mod reason_log;
pub mod report;
mod reserved;
pub mod server;
pub mod session;
pub mod socket;
pub mod sockets;
pub mod tickets;
mod turns;
mod users;
pub mod verbs;
mod viewer;
