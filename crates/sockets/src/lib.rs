//! The engine of sockets: the decisions that one end of a stream takes.
//!
//! A *stream* is a TCP connection whose bytes may also travel through shared memory. Each direction has a position, the number of bytes
//! since the connection began, and a path. The sender announces a switch of the path at its position; the receiver takes the switch when it
//! has read up to there.
//!
//! ```text
//!   program writes ─► Sender ── path: Tcp, or a ring ──► Receiver ─► program reads
//!                       │  announce "from byte N on, this path" ─►  │
//!                       └◄────────── taken ────────────────────────┘
//!   Upgrade    when a connection has exchanged enough to be worth a stream
//!   at_fin     what the kernel's FIN means for a stream
//! ```
//!
//! The engine does no I/O. Callers pass the words that they fetched from shared memory, each fetched once; the engine checks them. Its
//! state has no pointers, so it may lie in memory that a process shares with its children.
//!
//! ```
//! use isthmus_layout::sockets::StreamPath;
//! use isthmus_sockets::{Receive, Receiver, Sender, SenderView};
//!
//! let (mut sender, mut receiver) = (Sender::default(), Receiver::default());
//! sender.begin_tcp();
//! sender.end_tcp(100);
//! let attached = SenderView { attached: true, taken: 0, tcp_please: false };
//! let announced = sender.consider(attached).unwrap().unwrap();
//! assert_eq!((announced.at, announced.path), (100, StreamPath::Small));
//!
//! receiver.refresh(100, announced.count, || (100, announced.path as u32)).unwrap();
//! assert_eq!(receiver.next(), Receive::Tcp { limit: 100 });
//! receiver.begin_tcp();
//! receiver.end_tcp(100);
//! assert_eq!(receiver.take(), Some(1));
//! assert_eq!(receiver.path(), StreamPath::Small);
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod fin;
mod receiver;
mod sender;
mod upgrade;
mod violation;

pub use fin::{AtFin, at_fin};
pub use receiver::{Receive, Receiver};
pub use sender::{Announcement, Sender, SenderView};
pub use upgrade::Upgrade;
pub use violation::Violation;
