//! Shared memory: the one crate that touches pages another domain can write.
//!
//! ```text
//!   words ───────── Words, Payload: what may be done with foreign memory
//!   mapping ─────── Mapping, SharedMapping: the real memory
//!   liar ────────── Liar: the worst memory there could be
//!   window_extent ─ memory of a guest's window, by the descriptors of its driver
//!   ring ────────── records, a line at a time
//!   slab ────────── bytes too many for a record
//!   ready_map ───── which of many peers is active, and when to sleep
//!   stream ──────── bytes between two sockets, and the boards of their processes
//!   biased_lock ─── a lock for what one thread uses, and others may
//!   regcache ────── large buffers of the program moved onto pages that a peer may map
//!     arena ─────── registered memory, moved onto pages that peers may write
//! ```
//!
//! A record from one side to the other:
//!
//! ```
//! use isthmus_layout::channel::{Direction, ChannelGeometry, SlabSize};
//! use isthmus_shm::{Consumer, Mapping, Producer, RecordBuffer, SharedMapping};
//!
//! let geometry = ChannelGeometry { slab: SlabSize::new(64 << 10).unwrap() };
//! let memory = SharedMapping::new(Mapping::private(geometry.size()));
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

pub mod asymmetric_fence;
pub mod biased_lock;
pub mod buffer;
mod copy;
#[cfg(test)]
mod delayed_stores;
pub mod fault;
pub mod fork_guard;
mod gather;
pub mod liar;
pub mod mapping;
mod ready_map;
pub mod regcache;
pub mod ring;
pub mod slab;
pub mod step;
pub mod stream;
pub mod window_extent;
pub mod words;

pub use buffer::Buffer;
pub use fault::PeerFault;
pub use fork_guard::ForkGuard;
pub use gather::Gather;
pub use mapping::{Access, MapError, Mapping, SharedMapping};
pub use ready_map::{PeerReadyBit, ReadyMap};
pub use ring::{AccessCounters, Consumer, Producer, PushError, RecordBuffer, RingCounters};
pub use slab::{SlabConsumer, SlabProducer};
pub use stream::{Board, StreamMemory};
pub use words::{Payload, Words};
