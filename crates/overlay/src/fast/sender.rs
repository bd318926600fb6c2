//! Plans the datagrams of a message. The caller gathers headers and ranges into `sendmsg`.

use core::ops::Range;

use thiserror::Error;

use super::header::{CHUNK_HEADER_BYTES, ChunkHeader};
use super::{CHUNK_BYTES_MIN, DATAGRAM_BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN};
use crate::virtio_net::VirtioNetHeader;
use crate::vxlan::Vni;

/// The sending end of an edge: numbers its messages.
#[derive(Debug)]
pub struct Sender {
    next: u32,
}

/// Why a message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// Shorter than [`MESSAGE_BYTES_MIN`], or longer than [`MESSAGE_BYTES_MAX`].
    #[error("message of {0} bytes")]
    MessageLength(usize),
    /// The path carries only datagrams that have no room for [`CHUNK_BYTES_MIN`].
    #[error("datagrams of {0} bytes are too short")]
    DatagramShort(usize),
}

/// The chunks of a message.
#[derive(Clone, Copy, Debug)]
pub struct Chunks {
    first: ChunkHeader,
    chunk_bytes: usize,
}

/// The contents of a datagram: the header, then these bytes of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The header.
    pub header: [u8; CHUNK_HEADER_BYTES],
    /// The bytes of the message that follow the header; may be empty in the last datagram.
    pub range: Range<usize>,
    /// The bytes from the start of the message that follow `range`; empty but at the end.
    pub repeated: Range<usize>,
}

impl Sender {
    /// A sender that gives its first message this number. The number is random, because the receiver takes recent numbers for duplicates,
    /// also after the sender has restarted.
    pub const fn new(first: u32) -> Self {
        Self { next: first }
    }

    /// Plans a message (virtio-net header and frame) for a path that carries UDP payloads of `datagram_bytes`. `header` is that of the
    /// message: if the frame is to be cut and takes several chunks, its head is repeated.
    ///
    /// # Errors
    /// The message or the datagrams have no possible length.
    pub fn plan(
        &mut self,
        vni: Vni,
        header: &VirtioNetHeader,
        message_bytes: usize,
        datagram_bytes: usize,
    ) -> Result<Chunks, SendError> {
        if !(MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX).contains(&message_bytes) {
            return Err(SendError::MessageLength(message_bytes));
        }
        if datagram_bytes < CHUNK_HEADER_BYTES + CHUNK_BYTES_MIN {
            return Err(SendError::DatagramShort(datagram_bytes));
        }
        let message = self.next;
        self.next = message.wrapping_add(1);
        let chunk_bytes = datagram_bytes.min(DATAGRAM_BYTES_MAX) - CHUNK_HEADER_BYTES;
        let is_repeated = header.gso.is_some() && message_bytes > chunk_bytes;
        Ok(Chunks { first: ChunkHeader { vni, message, total: message_bytes, is_repeated, offset: 0 }, chunk_bytes })
    }
}

impl Chunks {
    /// The number of chunks.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub const fn len(&self) -> usize {
        self.first.extent().div_ceil(self.chunk_bytes)
    }

    /// The contents of a datagram.
    ///
    /// # Panics
    /// There is no such chunk.
    pub fn get(&self, index: usize) -> Chunk {
        let offset = index * self.chunk_bytes;
        let ChunkHeader { total, .. } = self.first;
        assert!(index < self.len(), "chunk {index} of {}", self.len());
        let end = self.first.extent().min(offset + self.chunk_bytes);
        Chunk {
            header: ChunkHeader { offset, ..self.first }.emit(),
            range: offset.min(total)..end.min(total),
            repeated: offset.saturating_sub(total)..end.saturating_sub(total),
        }
    }
}
