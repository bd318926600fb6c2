//! Frames for people to look at: from a worker that is busy with them, over a socket, into a file that Wireshark reads.
//!
//! ```text
//!   isthmusd                                                 isthmus capture
//!  ┌────────────────────────────────────────────────┐       ┌──────────────────────────────┐
//!  │ worker: Tap::offer ─► words ─► Tapped::take    │       │                              │
//!  │         never waits            stream::emit ───┼──────►│ stream::Reader ─► pcapng::Writer ──► file, pipe
//!  └────────────────────────────────────────────────┘ bytes └──────────────────────────────┘
//! ```
//!
//! Whoever watches must not slow down what is watched: a [`Tap`] that is full drops and counts, and the counts end up in the
//! file. What comes over the socket is checked by [`stream::parse`]; nothing that stands in it makes this crate panic.
//!
//! ```
//! use isthmus_capture::{Direction, Interface, InterfaceIndex, Offered, pcapng::Writer, tap};
//!
//! let (mut tap, mut tapped) = tap(1, 1 << 16, 1 << 20);
//! let (head, data) = ([0; 40], *b"hello");
//! assert_eq!(tap.offer(1, InterfaceIndex(0), Direction::Sent, &[&head, &data]), Offered::Taken);
//!
//! let mut file = Writer::new(Vec::new(), &[Interface::new("wire0", "the board's link")])?;
//! while let Some(record) = tapped.take() {
//!     file.write(&record)?;
//! }
//! let bytes = file.finish(&tapped.statistics())?;
//! assert!(bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod pcapng;
mod record;
pub mod stream;
mod tap;

pub use record::{Direction, Interface, InterfaceIndex, Record, SNAP_BYTES_MAX, Statistics, TEXT_BYTES_MAX};
pub use tap::{Offered, Tap, Tapped, tap};
