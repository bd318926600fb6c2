//! The daemon's control plane: attached domains, the policy, and the channels of pairs. The only library that knows tokio.
//!
//! ```text
//!   daemon ──── everything put together from a configuration
//!     socket ── the socket, one daemon at a time
//!     server ── one thread: accepts, reads, sends, waits     metrics_server ── the counters over HTTP
//!     session ─ one connection: bounded rate, bounded queue   fd_reaper ─ closes what clients send
//!     users ─── what all connections of one user together may take      accounts ── who counts as whom
//!     places ── the rule by which users share each table                turns ───── the processor time of each turn
//!       broker ─── requests, decisions, descriptors; carries no bytes itself
//!         directory ─ domains, endpoints, ready maps, channels   policy ── permissions, as reasons
//!         tickets ─── what a later daemon has to know        reason_log ─ counts and log lines
//!         capabilities ── mx, sockets, verbs, overlay: each in a folder of its own
//!       capture ── frames on their way to a program that asked for them
//!       proxy ───── programs of guests, by the window a guest shares with us; also what a guest's own daemon is
//!         allocator ─ where a domain's memory and doorbells come from: files of this host, or a guest's window
//!         kvm ───── QEMU's side: devices; windows that are plugged into two guests; what of guests outlives this daemon
//!         xen ───── both sides of a window that a guest of Xen grants, and of a pair window of two such guests
//!         pairs ─── the life of a pair window
//!       report ─── reports as JSON (`isthmus-report`), metrics as text
//!         viewer ── the part of the state that the asking program may see
//! ```
//!
//! Messages between domains never pass here. They take a channel, which this crate brokers, or the workers of `isthmus-service`, which
//! this crate notifies of domains.
#![forbid(unsafe_code)]

mod accounts;
pub mod allocator;
mod async_fd;
pub mod broker;
pub mod capabilities;
mod capture;
pub mod credentials;
pub mod daemon;
pub mod directory;
mod fd_reaper;
mod heartbeat;
mod host;
mod kvm;
pub mod metrics;
pub mod metrics_server;
pub mod mx;
pub mod overlay;
mod pairs;
pub mod places;
pub mod policy;
mod privileges;
pub mod proxy;
pub mod reason_log;
pub mod report;
mod reserved;
pub mod server;
mod session;
pub mod socket;
pub mod sockets;
pub mod tickets;
mod turns;
mod users;
pub mod verbs;
mod viewer;
pub mod xen;
