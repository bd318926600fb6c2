//! The messages between endpoints of this provider. A message of the client library is a *header* with what fits behind it, or
//! the *payload* that the header before it announced.
//!
//! ```text
//!   tag of the client's message   kind (bits 60-63), flags (56-59), parameter (0-55)
//!   body                          words of the kind, then the payload if header and payload have 128 bytes at most
//!
//!   kind        parameter       words of the body (64 bits each, little-endian)
//!   1 tagged    CQ data         [CQ data, if wide] [request, if acknowledged] tag [length, if payload follows]
//!   2 untagged  CQ data         [CQ data, if wide] [request, if acknowledged] [length, if payload follows]
//!   3 write     request         [CQ data, if wide] key, offset, length
//!   4 read      request         key, offset, length
//!   5 atomic    request         key, offset, what (operation, type, form, count), length
//!   6 reply     request         [error, if refused]
//!   7 payload   -               the payload and nothing else
//! ```
//!
//! A write that has a length but no payload, and that no payload follows, reports bytes that its sender has put in place itself
//! ([`direct`](crate::engine::direct)).
//!
//! A sender's payload follows its header with nothing in between, so it needs no name. Messages are matched by the header, so long
//! payloads are fetched straight into where they belong, by the client library's own ways, and are never preceded by bytes of ours.

/// Bytes of header and payload together.
pub(crate) const SHORT_BYTES_MAX: usize = 128;

const KIND_SHIFT: u32 = 60;
const FLAG_SHIFT: u32 = 56;

/// Bits of a parameter.
pub(crate) const PARAMETER_BITS: u32 = 56;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketKind {
    Tagged,
    Untagged,
    Write,
    Read,
    Atomic,
    Reply,
    Payload,
}

/// The payload follows as a message of its own.
pub(crate) const PAYLOAD_FOLLOWS: u64 = 1 << FLAG_SHIFT;
/// There is CQ data.
pub(crate) const DATA: u64 = 2 << FLAG_SHIFT;
/// The CQ data is a word of the body, because it has more bits than a parameter. Of a reply: it is a refusal.
pub(crate) const WIDE_DATA: u64 = 4 << FLAG_SHIFT;
/// The sender wants an acknowledgement when the message has arrived.
pub(crate) const ACKNOWLEDGE: u64 = 8 << FLAG_SHIFT;

impl PacketKind {
    /// Its bits of the tag.
    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        let number = match self {
            Self::Tagged => 1,
            Self::Untagged => 2,
            Self::Write => 3,
            Self::Read => 4,
            Self::Atomic => 5,
            Self::Reply => 6,
            Self::Payload => 7,
        };
        number << KIND_SHIFT
    }

    /// The kind of a tag. None for what no endpoint of ours writes.
    #[inline]
    pub(crate) const fn of(tag: u64) -> Option<Self> {
        Some(match tag >> KIND_SHIFT {
            1 => Self::Tagged,
            2 => Self::Untagged,
            3 => Self::Write,
            4 => Self::Read,
            5 => Self::Atomic,
            6 => Self::Reply,
            7 => Self::Payload,
            _ => return None,
        })
    }
}

/// The parameter of a tag.
#[inline]
pub(crate) const fn parameter(tag: u64) -> u64 {
    tag & ((1 << PARAMETER_BITS) - 1)
}

/// A header that is being written.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) tag: u64,
    bytes: [u8; SHORT_BYTES_MAX],
    len: usize,
}

impl Header {
    #[inline]
    pub(crate) fn new(kind: PacketKind, parameter: u64) -> Self {
        Self { tag: kind.bits() | parameter, bytes: [0; SHORT_BYTES_MAX], len: 0 }
    }

    /// CQ data: in the tag where it fits, if nothing else is there.
    #[inline]
    pub(crate) fn data(&mut self, data: Option<u64>, in_tag: bool) {
        match data {
            None => {}
            Some(data) if in_tag && data >> PARAMETER_BITS == 0 => self.tag |= DATA | data,
            Some(data) => {
                self.tag |= DATA | WIDE_DATA;
                self.word(data);
            }
        }
    }

    #[inline]
    pub(crate) fn word(&mut self, word: u64) {
        self.bytes[self.len..self.len + 8].copy_from_slice(&word.to_le_bytes());
        self.len += 8;
    }

    /// Room for payload behind the words so far.
    #[inline]
    pub(crate) const fn room(&self) -> usize {
        SHORT_BYTES_MAX - self.len
    }

    /// Where payload goes.
    #[inline]
    pub(crate) fn payload(&mut self, len: usize) -> &mut [u8] {
        let start = self.len;
        self.len += len;
        &mut self.bytes[start..start + len]
    }

    /// The body.
    #[inline]
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A header that is being read.
#[derive(Clone, Copy)]
pub(crate) struct HeaderReader<'a>(pub(crate) &'a [u8]);

impl<'a> HeaderReader<'a> {
    /// The next word; None where the header is shorter than its kind.
    #[inline]
    pub(crate) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// CQ data, as [`Header::data`] wrote it.
    #[inline]
    pub(crate) fn data(&mut self, tag: u64) -> Option<Option<u64>> {
        Some(match (tag & DATA != 0, tag & WIDE_DATA != 0) {
            (false, _) => None,
            (true, false) => Some(parameter(tag)),
            (true, true) => Some(self.word()?),
        })
    }

    /// Returns the bytes that follow the words.
    #[inline]
    pub(crate) fn payload(self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips() {
        for data in [None, Some(0), Some(7), Some((1 << PARAMETER_BITS) - 1), Some(u64::MAX)] {
            let mut header = Header::new(PacketKind::Tagged, 0);
            header.data(data, true);
            header.word(0xfeed);
            header.payload(3).copy_from_slice(b"abc");
            assert_eq!(PacketKind::of(header.tag), Some(PacketKind::Tagged));
            let mut words = HeaderReader(header.body());
            assert_eq!(words.data(header.tag), Some(data));
            assert_eq!(words.word(), Some(0xfeed));
            assert_eq!(words.payload(), b"abc");
        }
    }

    #[test]
    fn truncated_header_is_rejected() {
        let mut words = HeaderReader(&[1, 2, 3]);
        assert_eq!(words.word(), None);
        assert_eq!(HeaderReader(&[]).data(DATA | WIDE_DATA), None);
        assert_eq!((PacketKind::of(0), PacketKind::of(8 << KIND_SHIFT)), (None, None));
    }
}
