//! Shared memory: the one crate that touches pages another domain can write.
//!
//! ```text
//!   words ── Words, Payload: what may be done with foreign memory
//!   window ─ Mapping, Window: the real memory        liar ── Liar: the worst memory there could be
//!   piece ── memory of a guest's window, by the descriptors of its driver
//!   ring ─── records, a line at a time               slab ── bytes too many for a record
//!   board ── which of many peers is active, and when to sleep
//!   bias ─── a lock for what one thread uses, and others may
//!   rehome ─ large buffers of the program moved onto pages that a peer may map
//!     arena ─ registered memory, moved onto pages that peers may write
//! ```
//!
//! A record from one side to the other:
//!
//! ```
//! use isthmus_layout::channel::{Direction, Geometry, SlabSize};
//! use isthmus_shm::{Consumer, Mapping, Producer, RecordBuffer, Window};
//!
//! let geometry = Geometry { slab: SlabSize::new(64 << 10).unwrap() };
//! let memory = Window::new(Mapping::private(geometry.size()));
//! let at = geometry.direction(Direction::Zero);
//! let mut producer = Producer::new(memory.clone(), at);
//! let mut consumer = Consumer::new(memory, at);
//!
//! producer.push(1, &[7, 8], b"hello").unwrap();
//! assert!(!producer.wake()); // Nobody is parked, so nobody needs waking.
//! let mut record = RecordBuffer::default();
//! assert!(consumer.pop(&mut record).unwrap());
//! assert_eq!((record.kind(), record.bytes(), record.words()[0]), (1, 13, 7));
//! ```

pub mod barrier;
pub mod bias;
mod board;
pub mod buffer;
mod copy;
#[cfg(test)]
mod delayed;
pub mod fault;
pub mod fork_guard;
mod gather;
pub mod liar;
pub mod piece;
pub mod rehome;
pub mod ring;
pub mod slab;
pub mod step;
pub mod window;
pub mod words;

pub use board::{Board, Marker};
pub use buffer::Buffer;
pub use fault::PeerFault;
pub use fork_guard::ForkGuard;
pub use gather::Gather;
pub use ring::{Consumer, Counters, Producer, PushError, RecordBuffer};
pub use slab::{SlabConsumer, SlabProducer};
pub use window::{Access, MapError, Mapping, Window};
pub use words::{Payload, Words};
