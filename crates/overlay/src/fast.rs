//! *Fast*, the encapsulation between two daemons: a frame of up to 64 KiB crosses whole, with its virtio-net header.
//!
//! ```text
//!   message    │ virtio-net header (12) │ frame ....................................... │
//!   datagrams  │ chunk header │ chunk 0 │  │ chunk header │ chunk 1 │  ...  │ chunk n, may be shorter │
//!                                                                             ends with the first bytes again, if the frame can be cut
//! ```
//!
//! The caller sends the datagrams by `UDP_SEGMENT`, and `UDP_GRO` returns them in one buffer. [`Sender`] plans the chunks.
//! [`Reassembler`] delivers a message that lies whole in one buffer without a copy. It collects others in bounded memory; of a TCP frame
//! with a lost chunk it delivers the parts around the hole. `docs/spec/overlay-fast.md` is the specification.

mod finished;
mod header;
mod parts;
mod pending;
mod ranges;
mod reassembler;
mod sender;
#[cfg(test)]
mod tests;

pub use header::{CHUNK_HEADER_BYTES, ChunkError, vni_of};
pub use reassembler::{Delivery, FastCounters, Reassembler};
pub use sender::{Chunk, Chunks, SendError, Sender};

use crate::virtio_net::{ETHERNET_BYTES, FRAME_BYTES_MAX, VIRTIO_NET_BYTES};

/// Bytes of the longest message.
pub const MESSAGE_BYTES_MAX: usize = VIRTIO_NET_BYTES + FRAME_BYTES_MAX;
/// Bytes of the shortest message: an Ethernet header with its virtio-net header.
pub const MESSAGE_BYTES_MIN: usize = VIRTIO_NET_BYTES + ETHERNET_BYTES;
/// Bytes of the shortest chunk that is not the last. So the first one has the headers by which a frame is routed.
pub const CHUNK_BYTES_MIN: usize = 256;
/// Bytes that a message of several chunks repeats at its end if its frame is to be cut. So one lost chunk never costs the headers: with a
/// VLAN tag, those of TCP over IPv4 have at most 150 bytes, and over IPv6 without extensions 130.
pub const REPEATED_BYTES: usize = 160;
/// Bytes of the longest datagram: the limit of UDP over IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Incomplete messages of an edge. Each has at most [`MESSAGE_BYTES_MAX`] bytes of memory.
pub const PENDING_MAX: usize = 8;
/// After this time an incomplete message is given up.
pub const PENDING_MS_MAX: u64 = 10;
/// After this number of newer complete messages an incomplete one is given up, unless it is delivered in parts.
pub const NEWER_MESSAGES_MAX: u8 = 3;
