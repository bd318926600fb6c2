//! What a program links: attach to the daemon, open endpoints, send and receive.
//!
//! ```text
//!   domain ───── the program's side of its daemon: attach, poll, wait, detach
//!   core ─────── all of a domain's state, and the one turn of the wheel in which everything happens
//!   options ──── how to attach, with the environment's say
//!   connect ──── finding the daemon's socket, starting a daemon for this user
//!   control, news ── requests over that socket, and what the daemon tells
//!   resume ───── a daemon that goes away, and one that comes back
//!   peer, peers  another domain: by which path, what is queued, what is under way
//!   send, receive, large ── records out, records in, messages too long for the slab
//!   direct ───── memory that peers read and write by themselves
//!   matcher, inorder ── which receive a message goes to: what protocols on top bring, and the simplest one
//!   mx ───────── MX endpoint numbers: claimed, looked up
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
mod direct;
mod domain;
mod endpoints;
mod error;
mod inorder;
mod large;
mod matcher;
mod mx;
mod news;
mod options;
mod peer;
mod peers;
mod query;
mod receive;
mod regions;
mod resume;
mod send;
mod sleep;
mod status;
mod words;

pub use blocking::Received;
pub use domain::{Domain, Message};
pub use error::{AttachError, Refusal};
pub use inorder::InOrder;
pub use isthmus_channel::{Idle, Wait, Waiting};
pub use isthmus_layout::control::Topic;
pub use isthmus_layout::{DomainId, EndpointAddress, EndpointIndex, reason::Reason};
pub use isthmus_shm::Buffer;
pub use isthmus_shm::rehome::arena;
pub use matcher::{Announced, Completion, Envelope, Matcher, Outcome, Posted, Token, Unexpected, UnexpectedState};
pub use mx::{MxBoard, MxConnecting, MxDomain, MxEndpoint, MxOpened, MxPeer, MxReport};
pub use options::{OptionError, Options};
pub use query::Inquirer;
pub use status::{ChannelStatus, PathKind};
pub use words::copy_words;
