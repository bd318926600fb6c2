//! Plans the datagrams of a message. The caller gathers headers and ranges into `sendmsg`.

use core::ops::Range;

use thiserror::Error;

use super::header::{CHUNK_HEADER_BYTES, ChunkHeader};
use super::{CHUNK_BYTES_MIN, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN, SEND_BYTES_MAX, SEND_SEGMENTS_MAX};
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
    vni: Vni,
    message: u32,
    message_bytes: usize,
    chunk_bytes: usize,
}

/// The chunks of one `sendmsg`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendBatch {
    /// Which chunks.
    pub chunks: Range<usize>,
    /// For `UDP_SEGMENT`: bytes of each datagram but the last, with the chunk header.
    pub segment_bytes: u16,
}

impl Sender {
    /// A sender that gives its first message this number. The number is random, because the receiver takes recent numbers for duplicates,
    /// also after the sender has restarted.
    pub const fn new(first: u32) -> Self {
        Self { next: first }
    }

    /// Plans a message (virtio-net header and frame) for a path that carries UDP payloads of `datagram_bytes`.
    ///
    /// # Errors
    /// The message or the datagrams have no possible length.
    pub fn plan(&mut self, vni: Vni, message_bytes: usize, datagram_bytes: usize) -> Result<Chunks, SendError> {
        if !(MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX).contains(&message_bytes) {
            return Err(SendError::MessageLength(message_bytes));
        }
        if datagram_bytes < CHUNK_HEADER_BYTES + CHUNK_BYTES_MIN {
            return Err(SendError::DatagramShort(datagram_bytes));
        }
        let message = self.next;
        self.next = message.wrapping_add(1);
        let chunk_bytes = datagram_bytes.min(SEND_BYTES_MAX) - CHUNK_HEADER_BYTES;
        Ok(Chunks { vni, message, message_bytes, chunk_bytes })
    }
}

impl Chunks {
    /// The number of chunks.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub const fn len(&self) -> usize {
        self.message_bytes.div_ceil(self.chunk_bytes)
    }

    /// The header of a chunk, and its bytes in the message.
    ///
    /// # Panics
    /// There is no such chunk.
    pub fn get(&self, index: usize) -> ([u8; CHUNK_HEADER_BYTES], Range<usize>) {
        let offset = index * self.chunk_bytes;
        assert!(offset < self.message_bytes, "chunk {index} of {}", self.len());
        let header = ChunkHeader { vni: self.vni, message: self.message, total: self.message_bytes, offset };
        (header.emit(), offset..self.message_bytes.min(offset + self.chunk_bytes))
    }

    /// The chunks of each `sendmsg`.
    pub fn batches(&self) -> impl Iterator<Item = SendBatch> {
        let segment_bytes = CHUNK_HEADER_BYTES + self.chunk_bytes;
        let most = (SEND_BYTES_MAX / segment_bytes).min(SEND_SEGMENTS_MAX);
        let count = self.len();
        (0..count)
            .step_by(most)
            .map(move |first| SendBatch { chunks: first..count.min(first + most), segment_bytes: segment_bytes as u16 })
    }
}
