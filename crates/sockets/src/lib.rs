//! The engine of sockets: the decisions that one end of a stream takes.
//!
//! A *stream* is a TCP connection with a second way for its bytes, through shared memory. Each direction has a position, the number of bytes
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
//! # The order of loads and stores
//!
//! The checks rely on the order in which callers load and store the words of a stream. Callers must follow the procedure in
//! `tests/simulation/driver.rs`, for which the simulation there shows that programs are given what TCP gives:
//!
//! * All words are loaded, and passed to the engine, while the caller holds the lock of the end. Calls of the kernel run without the lock, between
//!   `begin_tcp` and `end_tcp`.
//! * The sender loads TAKEN and notes it, then HEAD. It publishes TAIL, then a switch to a ring.
//! * The receiver loads TAIL, then SWITCHES, then the switch. It publishes HEAD, then TAKEN, and loads the words again before it waits.
//! * An end attaches while no call of the kernel reads for it. Its later reads of TCP do not block. If it sends no more, it says so before.
//! * A FIN or an error of the kernel counts when no call reads TCP, and when the words that were loaded after it show an empty ring and no
//!   switch to take. recv() tells an EOF from a reset, not `SO_ERROR`: an RST behind a FIN is still EOF.
//! * After a FIN of a peer that only ended its sending, an end keeps its own sending on TCP. If the peer has closed or died, the end notes
//!   the receiver's words and abandons the ring. A sender that finds no room checks the kernel's connection for both.
//! * The kernel does not tell of a death while its FIN lies behind bytes that the program does not read, or after the peer ended its sending.
//!   An end therefore abandons the ring as well when the daemon reports that the peer's process left.
//!
//! ```
//! use isthmus_layout::sockets::StreamPath;
//! use isthmus_sockets::{Receive, Receiver, Sender, SenderView};
//!
//! let (mut sender, mut receiver) = (Sender::default(), Receiver::default());
//! sender.begin_tcp();
//! sender.end_tcp(100);
//! let attached = SenderView { attached: true, taken: 0, tcp_please: false };
//! let announced = sender.consider(attached, || false).unwrap().unwrap();
//! assert_eq!((announced.at, announced.path), (100, StreamPath::Small));
//!
//! receiver.refresh(100, announced.count, |_| (100, announced.path as u32)).unwrap();
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
pub use sender::{Announcement, RingBytes, SPILL_MS, Sender, SenderView};
pub use upgrade::Upgrade;
pub use violation::Violation;
