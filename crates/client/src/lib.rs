//! The library that a program links to attach to the daemon, open endpoints, send and receive.
//!
//! ```text
//!   domain ───── the program's side of its daemon: attach, poll, wait, detach
//!   core ─────── all of a domain's state, and the one iteration (`Core::progress`) in which everything happens
//!   options ──── options of an attachment, from the program and the environment
//!   connect ──── finding the daemon's socket, starting a daemon for this user
//!   control, notifications ── requests over that socket, and unsolicited messages of the daemon
//!   later ────── requests with a reply that comes later
//!   resume ───── reattaching to a daemon that was restarted
//!   peer, peer_table ── another domain: its path, queued messages, pending messages
//!   send, receive, rendezvous ── records out, records in, messages too long for the slab
//!   remote_memory ── memory that peers read and write directly
//!   matcher, inorder ── the choice of the receive for a message: the trait for protocols on top, and the simplest one
//!   poll_budget ── the number of events that one progress call of a library on top may find
//!   mx ───────── MX endpoint numbers: claimed, looked up
//!   verbs ────── queue pair numbers: taken, looked up
//!   overlay ──── changes of overlay networks
//!   sleep ────── what to sleep on, and the descriptor that a program may put into its own epoll set
//! ```
//!
//! The library has no thread, no signal handler and no lock: everything happens inside its calls, on the caller's thread. A
//! [`Domain`] is used by one thread at a time.
#![forbid(unsafe_code)]

mod blocking;
mod connect;
mod control;
mod core;
mod domain;
mod endpoints;
mod error;
mod guest_regions;
mod inorder;
mod later;
mod matcher;
mod mx;
mod notifications;
mod options;
mod overlay;
mod payload_words;
mod peer;
mod peer_table;
mod poll_budget;
mod query;
mod receive;
mod remote_memory;
mod rendezvous;
mod resume;
mod send;
mod sleep;
pub mod sockets;
mod status;
mod undelivered;
pub mod verbs;

pub use blocking::Received;
pub use connect::is_in_guest;
pub use domain::{Domain, Message};
pub use error::{AttachError, Refusal};
pub use inorder::InOrder;
pub use isthmus_channel::{AdaptiveSpin, PollBackoff, WaitMode};
pub use isthmus_layout::control::{Name, RequestSerial, ToClient, ToDaemon, Topic};
pub use isthmus_layout::{DomainId, EndpointAddress, EndpointIndex, reason::Reason};
pub use isthmus_platform::scheduling::request_short_slices;
pub use isthmus_shm::Buffer;
pub use isthmus_shm::regcache::{arena, serving};
pub use matcher::{Announced, Completion, Envelope, Matcher, Outcome, Posted, Token, Unexpected, UnexpectedState};
pub use mx::{MxBoard, MxBoards, MxDomain, MxEndpoint, MxOpenedEndpoint, MxPeer, mx_found};
pub use options::{OptionError, Options};
pub use payload_words::copy_words;
pub use poll_budget::PollBudget;
pub use query::QueryClient;
pub use status::{ChannelStatus, PathKind};
