//! The header of a chunk, all fields big-endian.
//!
//! ```text
//!   0 version (4 bits), kind (4 bits)   1 VNI (3)   4 message number (4)   8 bytes of the message (4)   12 offset of the chunk (4)
//! ```

use thiserror::Error;

use super::{CHUNK_BYTES_MIN, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN, REPEATED_BYTES};
use crate::vxlan::Vni;

/// Bytes of the header.
pub const CHUNK_HEADER_BYTES: usize = 16;

pub(super) const VERSION: u8 = 1;
/// A chunk of a frame.
pub(super) const KIND_FRAME: u8 = 0;
/// A chunk of a frame that is followed by its first [`REPEATED_BYTES`].
pub(super) const KIND_REPEATED: u8 = 1;

/// A header that agrees with the length of its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkHeader {
    pub(super) vni: Vni,
    pub(super) message: u32,
    /// Bytes of the message.
    pub(super) total: usize,
    /// The first bytes follow the message again.
    pub(super) is_repeated: bool,
    pub(super) offset: usize,
}

/// Why a datagram is not a chunk of the message that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChunkError {
    /// No header, or no payload.
    #[error("datagram of {0} bytes has no chunk")]
    Short(usize),
    /// Another version.
    #[error("version {0} is not known")]
    Version(u8),
    /// Another kind.
    #[error("kind {0} is not known")]
    Kind(u8),
    /// The message is shorter or longer than any.
    #[error("message of {0} bytes")]
    Total(u32),
    /// The chunk ends after the message.
    #[error("chunk of {bytes} bytes at {offset} is not in its message")]
    Outside {
        /// As stated.
        offset: u32,
        /// Bytes of the chunk.
        bytes: usize,
    },
    /// The chunk is shorter than [`CHUNK_BYTES_MIN`] and not the last.
    #[error("chunk of {0} bytes is not the last")]
    ChunkShort(usize),
    /// An earlier chunk of this message stated another length or network.
    #[error("chunk contradicts an earlier one of its message")]
    Inconsistent,
    /// The chunk covers some bytes that are there, and some that are not.
    #[error("chunk overlaps an earlier one")]
    Overlap,
}

/// Returns the number of the network that a datagram names. `None` if the datagram has no header of this version.
pub fn vni_of(datagram: &[u8]) -> Option<Vni> {
    let bytes = datagram.first_chunk::<CHUNK_HEADER_BYTES>()?;
    (bytes[0] >> 4 == VERSION).then(|| Vni::from_bytes([bytes[1], bytes[2], bytes[3]]))
}

impl ChunkHeader {
    pub(super) fn emit(&self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        bytes[0] = VERSION << 4 | if self.is_repeated { KIND_REPEATED } else { KIND_FRAME };
        bytes[1..4].copy_from_slice(&self.vni.to_bytes());
        bytes[4..8].copy_from_slice(&self.message.to_be_bytes());
        bytes[8..12].copy_from_slice(&(self.total as u32).to_be_bytes());
        bytes[12..].copy_from_slice(&(self.offset as u32).to_be_bytes());
        bytes
    }

    /// Splits a datagram into header and chunk.
    pub(super) fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), ChunkError> {
        let short = ChunkError::Short(datagram.len());
        let (bytes, chunk) = datagram.split_first_chunk::<CHUNK_HEADER_BYTES>().ok_or(short)?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let is_repeated = match (bytes[0] >> 4, bytes[0] & 0xf) {
            (VERSION, KIND_FRAME) => false,
            (VERSION, KIND_REPEATED) => true,
            (VERSION, kind) => return Err(ChunkError::Kind(kind)),
            (version, _) => return Err(ChunkError::Version(version)),
        };
        if chunk.is_empty() {
            return Err(short);
        }
        let (total, offset) = (word(8) as usize, word(12) as usize);
        let least = if is_repeated { REPEATED_BYTES } else { MESSAGE_BYTES_MIN };
        if !(least..=MESSAGE_BYTES_MAX).contains(&total) {
            return Err(ChunkError::Total(word(8)));
        }
        let vni = Vni::from_bytes([bytes[1], bytes[2], bytes[3]]);
        let header = Self { vni, message: word(4), total, is_repeated, offset };
        if offset >= header.extent() || chunk.len() > header.extent() - offset {
            return Err(ChunkError::Outside { offset: word(12), bytes: chunk.len() });
        }
        if chunk.len() < CHUNK_BYTES_MIN && offset + chunk.len() < header.extent() {
            return Err(ChunkError::ChunkShort(chunk.len()));
        }
        Ok((header, chunk))
    }

    /// True if a chunk with `other` as its header may belong to the same message.
    pub(super) fn is_same_message(&self, other: &Self) -> bool {
        *self == Self { offset: self.offset, ..*other }
    }

    /// Bytes of the message and its repeated head.
    pub(super) const fn extent(&self) -> usize {
        self.total + if self.is_repeated { REPEATED_BYTES } else { 0 }
    }
}
