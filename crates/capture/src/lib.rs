//! Captures frames: from a busy worker, over a socket, into a file that Wireshark reads.
//!
//! ```text
//!   isthmusd                                                 isthmus capture
//!  ┌────────────────────────────────────────────────┐       ┌──────────────────────────────┐
//!  │ worker: Tap::offer ─► words ─► TapReader::pop  │       │                              │
//!  │         never waits            stream::emit ───┼──────►│ CaptureReader ──► pcapng::Writer ──► file, pipe
//!  └────────────────────────────────────────────────┘ bytes └──────────────────────────────┘
//! ```
//!
//! A reader must not slow down the observed worker: a [`Tap`] that is full drops frames and counts them, and the file contains the counts.
//! [`stream::parse`] checks all data from the socket; no contents make this crate panic.
//!
//! ```
//! use isthmus_capture::{CaptureDirection, InterfaceIndex, OfferResult, PcapInterface, pcapng::Writer, tap};
//!
//! let (mut tap, mut reader) = tap(1, 1 << 16, 1 << 20);
//! let (head, data) = ([0; 40], *b"hello");
//! assert_eq!(tap.offer(1, InterfaceIndex(0), CaptureDirection::Sent, &[&head, &data]), OfferResult::Queued);
//!
//! let mut file = Writer::new(Vec::new(), &[PcapInterface::new("wire0", "the board's link")])?;
//! while let Some(record) = reader.pop() {
//!     file.write(&record)?;
//! }
//! let bytes = file.finish(&reader.statistics())?;
//! assert!(bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod pcapng;
mod record;
pub mod stream;
mod tap;

pub use record::{
    CaptureDirection, CapturedFrame, InterfaceIndex, InterfaceStatistics, PcapInterface, SNAP_BYTES_MAX, TEXT_BYTES_MAX,
};
pub use tap::{OfferResult, Tap, TapReader, tap};
