//! The messages between endpoints of this provider. A message of the client library is either a *header*, with the
//! payload behind it if both fit, or a *payload* that the previous header announced.
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
//! A write without payload that has a length reports bytes that the sender has written directly
//! ([`direct`](crate::engine::direct)).
//!
//! A payload follows its header with nothing in between, so it needs no identifier. Messages are matched by their
//! headers. The client library therefore transfers long payloads straight into the destination buffer, without a header
//! in front.

/// Maximum size of a header and its payload together, in bytes.
pub(crate) const SHORT_BYTES_MAX: usize = 128;

const KIND_SHIFT: u32 = 60;
const FLAG_SHIFT: u32 = 56;

/// The width of a parameter in bits.
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
/// The CQ data is a word of the body, because it has more bits than a parameter. In a reply, the flag marks a refusal.
pub(crate) const WIDE_DATA: u64 = 4 << FLAG_SHIFT;
/// The sender wants an acknowledgement when the message has arrived.
pub(crate) const ACKNOWLEDGE: u64 = 8 << FLAG_SHIFT;

impl PacketKind {
    /// Returns the bits of the kind in a tag.
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

    /// Returns the kind of a tag, or `None` if no endpoint of this provider writes such a tag.
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

/// Returns the parameter of a tag.
#[inline]
pub(crate) const fn parameter(tag: u64) -> u64 {
    tag & ((1 << PARAMETER_BITS) - 1)
}

/// A header under construction.
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

    /// Adds CQ data. It goes into the tag if it fits there and the tag has no other parameter.
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

    /// Returns the number of bytes available for payload behind the words.
    #[inline]
    pub(crate) const fn room(&self) -> usize {
        SHORT_BYTES_MAX - self.len
    }

    /// Returns the buffer for the payload.
    #[inline]
    pub(crate) fn payload(&mut self, len: usize) -> &mut [u8] {
        let start = self.len;
        self.len += len;
        &mut self.bytes[start..start + len]
    }

    /// Returns the body.
    #[inline]
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A reader of a header.
#[derive(Clone, Copy)]
pub(crate) struct HeaderReader<'a>(pub(crate) &'a [u8]);

impl<'a> HeaderReader<'a> {
    /// Returns the next word, or `None` if the header is too short.
    #[inline]
    pub(crate) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// Returns the CQ data, as [`Header::data`] wrote it.
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
