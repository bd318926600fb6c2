//! What endpoints of this provider say to each other: a message of the client library is a *head* with what fits behind it, or
//! the *bulk* that the head before it announced.
//!
//! ```text
//!   tag of the client's message   kind (bits 60-63), flags (56-59), parameter (0-55)
//!   body                          words of the kind, then the payload if head and payload have 128 bytes at most
//!
//!   kind        parameter       words of the body (64 bits each, little-endian)
//!   1 tagged    CQ data         [CQ data, if wide] [request, if acknowledged] tag [length, if bulk]
//!   2 plain     CQ data         [CQ data, if wide] [request, if acknowledged] [length, if bulk]
//!   3 write     request         [CQ data, if wide] key, offset, length
//!   4 read      request         key, offset, length
//!   5 atomic    request         key, offset, what (operation, type, form, count), length
//!   6 reply     request         [error, if refused]
//!   7 bulk      -               the payload and nothing else
//! ```
//!
//! A write that is no bulk and has no payload, though its length says otherwise, tells of bytes that its sender has put in place by
//! himself ([`direct`](crate::engine::direct)).
//!
//! A sender's bulk follows its head with nothing in between, so it needs no name. Whatever is matched is matched by the head; so long
//! payloads are fetched straight into where they belong, by the client library's own ways, and are never preceded by bytes of ours.

/// Bytes of head and payload together.
pub(crate) const SHORT_MAX: usize = 128;

const KIND_SHIFT: u32 = 60;
const FLAG_SHIFT: u32 = 56;

/// Bits of a parameter.
pub(crate) const PARAMETER_BITS: u32 = 56;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tagged,
    Plain,
    Write,
    Read,
    Atomic,
    Reply,
    Bulk,
}

/// The payload follows as a message of its own.
pub(crate) const BULK: u64 = 1 << FLAG_SHIFT;
/// There is CQ data.
pub(crate) const DATA: u64 = 2 << FLAG_SHIFT;
/// The CQ data is a word of the body, because it has more bits than a parameter. Of a reply: it is a refusal.
pub(crate) const WIDE: u64 = 4 << FLAG_SHIFT;
/// The sender wants to hear when the message has arrived.
pub(crate) const ACKNOWLEDGE: u64 = 8 << FLAG_SHIFT;

impl Kind {
    /// Its bits of the tag.
    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        let number = match self {
            Self::Tagged => 1,
            Self::Plain => 2,
            Self::Write => 3,
            Self::Read => 4,
            Self::Atomic => 5,
            Self::Reply => 6,
            Self::Bulk => 7,
        };
        number << KIND_SHIFT
    }

    /// The kind of a tag. None for what no endpoint of ours writes.
    #[inline]
    pub(crate) const fn of(tag: u64) -> Option<Self> {
        Some(match tag >> KIND_SHIFT {
            1 => Self::Tagged,
            2 => Self::Plain,
            3 => Self::Write,
            4 => Self::Read,
            5 => Self::Atomic,
            6 => Self::Reply,
            7 => Self::Bulk,
            _ => return None,
        })
    }
}

/// The parameter of a tag.
#[inline]
pub(crate) const fn parameter(tag: u64) -> u64 {
    tag & ((1 << PARAMETER_BITS) - 1)
}

/// A head that is being written.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) tag: u64,
    bytes: [u8; SHORT_MAX],
    len: usize,
}

impl Head {
    #[inline]
    pub(crate) fn new(kind: Kind, parameter: u64) -> Self {
        Self { tag: kind.bits() | parameter, bytes: [0; SHORT_MAX], len: 0 }
    }

    /// CQ data: in the tag where it fits, if nothing else is there.
    #[inline]
    pub(crate) fn data(&mut self, data: Option<u64>, in_tag: bool) {
        match data {
            None => {}
            Some(data) if in_tag && data >> PARAMETER_BITS == 0 => self.tag |= DATA | data,
            Some(data) => {
                self.tag |= DATA | WIDE;
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
        SHORT_MAX - self.len
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

/// A head that is being read.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a>(pub(crate) &'a [u8]);

impl<'a> Words<'a> {
    /// The next word; None where the head is shorter than its kind.
    #[inline]
    pub(crate) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// CQ data, as [`Head::data`] wrote it.
    #[inline]
    pub(crate) fn data(&mut self, tag: u64) -> Option<Option<u64>> {
        Some(match (tag & DATA != 0, tag & WIDE != 0) {
            (false, _) => None,
            (true, false) => Some(parameter(tag)),
            (true, true) => Some(self.word()?),
        })
    }

    /// What follows the words.
    #[inline]
    pub(crate) fn payload(self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        for data in [None, Some(0), Some(7), Some((1 << PARAMETER_BITS) - 1), Some(u64::MAX)] {
            let mut head = Head::new(Kind::Tagged, 0);
            head.data(data, true);
            head.word(0xfeed);
            head.payload(3).copy_from_slice(b"abc");
            assert_eq!(Kind::of(head.tag), Some(Kind::Tagged));
            let mut words = Words(head.body());
            assert_eq!(words.data(head.tag), Some(data));
            assert_eq!(words.word(), Some(0xfeed));
            assert_eq!(words.payload(), b"abc");
        }
    }

    #[test]
    fn a_head_that_is_cut_off_is_noticed() {
        let mut words = Words(&[1, 2, 3]);
        assert_eq!(words.word(), None);
        assert_eq!(Words(&[]).data(DATA | WIDE), None);
        assert_eq!((Kind::of(0), Kind::of(8 << KIND_SHIFT)), (None, None));
    }
}
