//! The packets between open devices. A packet is a message of the client library: a tag of 64 bits and a body. Bytes that do not fit
//! beside the header into [`SHORT_BYTES_MAX`] follow as a message of their own, with nothing in between.
//!
//! ```text
//!   tag   kind (bits 60-63), parameter (48-59), count (24-47), destination queue pair (0-23)
//!
//!   kind         parameter   count       words of the body (32 bits each, little-endian), then the payload
//!   1 send       flags       executed    [source] [immediate] [length, if payload follows]
//!   2 datagram   flags       source      Q_Key, service level [immediate] [8 words of GIDs] [length, if payload follows]
//!   3 write      flags       executed    [source] address (2), key [immediate] [length, if payload follows]
//!   4 read       flags       executed    [source] address (2), key, length
//!   5 atomic     flags       executed    [source] address (2), key, operand (2), compare (2)
//!   6 response   flags       executed    [length, if payload follows]
//!   7 ack        syndrome    executed    -
//!   8 payload    -           -           the payload and nothing else
//!   9 describe   rights      domain      -
//! ```
//!
//! *Source* is the number of the sender's queue pair, and in the highest 8 bits the lowest 8 of the request's PSN.
//!
//! *Executed* is the PSN of the next request that the sender expects: the first PSN of the connection, and one more for each request
//! that was executed, modulo 2²⁴. So each packet of a reliable connection acknowledges. A syndrome other than zero refuses the first request that is not counted.

use crate::types::{AtomicOperation, Gid, Key, QpNumber};

/// Bytes of header and payload together, in one message.
pub const SHORT_BYTES_MAX: usize = 128;

/// Flags of a packet, in its parameter.
pub(crate) mod flags {
    /// The payload follows as a message of its own.
    pub(crate) const FOLLOWS: u16 = 1;
    /// There is immediate data.
    pub(crate) const IMMEDIATE: u16 = 1 << 1;
    /// The completion is a solicited event.
    pub(crate) const SOLICITED: u16 = 1 << 3;
    /// The first packet after a refusal: those between the two were dropped.
    pub(crate) const RESTART: u16 = 1 << 4;
    /// The sender waits for an acknowledgement.
    pub(crate) const ACKNOWLEDGE: u16 = 1 << 5;
    /// The number of the sender's queue pair is in the body: the sender does not know yet whether the destination exists.
    pub(crate) const SOURCE: u16 = 1 << 6;
    /// There are GIDs.
    pub(crate) const GRH: u16 = 1 << 7;
    /// The atomic operation compares.
    pub(crate) const COMPARE: u16 = 1 << 8;
}

/// Why a request was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syndrome {
    /// All requests that are counted were executed.
    None,
    /// There is no receive request. The sender waits for the time of this code.
    ReceiverNotReady(u8),
    /// The queue pair has left the connection.
    NotReady,
    /// There is no such connection. The count is the lowest 8 bits of the refused request's PSN.
    NotConnected,
    /// The refused requests may be sent again.
    Ready,
    /// A request was refused as not ready, and may be sent again already.
    Again,
    /// The request is invalid.
    InvalidRequest,
    /// The key does not allow the access.
    Access,
    /// The receiver could not complete the request.
    Operation,
    /// The sender asks for an acknowledgement.
    Asks,
}

impl Syndrome {
    const fn code(self) -> u16 {
        match self {
            Self::None => 0,
            Self::NotReady => 1,
            Self::Ready => 2,
            Self::InvalidRequest => 3,
            Self::Access => 4,
            Self::Operation => 5,
            Self::Again => 6,
            Self::NotConnected => 7,
            Self::Asks => 8,
            Self::ReceiverNotReady(timer) => 0x20 | (timer & 0x1f) as u16,
        }
    }

    const fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            0 => Self::None,
            1 => Self::NotReady,
            2 => Self::Ready,
            3 => Self::InvalidRequest,
            4 => Self::Access,
            5 => Self::Operation,
            6 => Self::Again,
            7 => Self::NotConnected,
            8 => Self::Asks,
            0x20..=0x3f => Self::ReceiverNotReady((code & 0x1f) as u8),
            _ => return None,
        })
    }
}

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketKind {
    Send,
    Datagram,
    Write,
    Read,
    Atomic,
    Response,
    Ack,
    Payload,
    Describe,
}

impl PacketKind {
    const fn code(self) -> u64 {
        match self {
            Self::Send => 1,
            Self::Datagram => 2,
            Self::Write => 3,
            Self::Read => 4,
            Self::Atomic => 5,
            Self::Response => 6,
            Self::Ack => 7,
            Self::Payload => 8,
            Self::Describe => 9,
        }
    }
}

/// The tag of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) kind: PacketKind,
    /// Flags, or a syndrome.
    pub(crate) parameter: u16,
    /// Requests executed, or the source of a datagram.
    pub(crate) count: u32,
    pub(crate) destination: QpNumber,
}

impl Tag {
    /// The tag of a payload that follows its header.
    pub(crate) const PAYLOAD: u64 = PacketKind::Payload.code() << 60;

    #[inline]
    pub(crate) const fn emit(self) -> u64 {
        self.kind.code() << 60
            | ((self.parameter & 0xfff) as u64) << 48
            | ((self.count & QpNumber::MASK) as u64) << 24
            | (self.destination.0 & QpNumber::MASK) as u64
    }

    /// Reads a tag. None if no device of ours writes such a tag.
    #[inline]
    pub(crate) const fn parse(tag: u64) -> Option<Self> {
        let kind = match tag >> 60 {
            1 => PacketKind::Send,
            2 => PacketKind::Datagram,
            3 => PacketKind::Write,
            4 => PacketKind::Read,
            5 => PacketKind::Atomic,
            6 => PacketKind::Response,
            7 => PacketKind::Ack,
            8 => PacketKind::Payload,
            9 => PacketKind::Describe,
            _ => return None,
        };
        Some(Self {
            kind,
            parameter: (tag >> 48) as u16 & 0xfff,
            count: (tag >> 24) as u32 & QpNumber::MASK,
            destination: QpNumber(tag as u32 & QpNumber::MASK),
        })
    }

    #[inline]
    pub(crate) const fn has(&self, flag: u16) -> bool {
        self.parameter & flag != 0
    }

    /// The acknowledgement with this syndrome.
    pub(crate) const fn ack(destination: QpNumber, executed: u32, syndrome: Syndrome) -> Self {
        Self { kind: PacketKind::Ack, parameter: syndrome.code(), count: executed, destination }
    }

    /// The syndrome of an acknowledgement.
    pub(crate) const fn syndrome(&self) -> Option<Syndrome> {
        Syndrome::from_code(self.parameter)
    }
}

/// The body of a packet that is being written: the words of the header, then the payload.
#[derive(Debug)]
pub(crate) struct BodyWriter<'a> {
    bytes: &'a mut [u8; SHORT_BYTES_MAX],
    len: usize,
}

impl<'a> BodyWriter<'a> {
    #[inline]
    pub(crate) const fn new(bytes: &'a mut [u8; SHORT_BYTES_MAX]) -> Self {
        Self { bytes, len: 0 }
    }

    /// The number of bytes so far.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The next `len` bytes, which the caller writes.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> &mut [u8] {
        let taken = &mut self.bytes[self.len..self.len + len];
        self.len += len;
        taken
    }

    /// Writes the length of a payload that does not fit, which follows as a message of its own. Returns the flag that says so, or 0.
    #[inline]
    pub(crate) fn follows(&mut self, len: u32) -> u16 {
        if self.len as u64 + u64::from(len) <= SHORT_BYTES_MAX as u64 {
            return 0;
        }
        self.word(len);
        flags::FOLLOWS
    }

    #[inline]
    pub(crate) fn word(&mut self, word: u32) {
        self.take(4).copy_from_slice(&word.to_le_bytes());
    }

    #[inline]
    pub(crate) fn long(&mut self, long: u64) {
        self.word(long as u32);
        self.word((long >> 32) as u32);
    }

    pub(crate) fn gid(&mut self, gid: Gid) {
        self.take(16).copy_from_slice(&gid.0);
    }
}

/// The words of a header that is being read, and the payload behind them.
#[derive(Clone, Copy)]
pub(crate) struct HeaderReader<'a>(pub(crate) &'a [u8]);

impl HeaderReader<'_> {
    #[inline]
    pub(crate) fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    #[inline]
    pub(crate) fn word_if(&mut self, is_there: bool) -> Option<Option<u32>> {
        if is_there { self.word().map(Some) } else { Some(None) }
    }

    pub(crate) fn long(&mut self) -> Option<u64> {
        let low = self.word()?;
        Some(u64::from(self.word()?) << 32 | u64::from(low))
    }

    pub(crate) fn gid(&mut self) -> Option<Gid> {
        let (gid, rest) = self.0.split_first_chunk::<16>()?;
        self.0 = rest;
        Some(Gid(*gid))
    }

    /// An address, a key and, depending on the kind, what follows them.
    pub(crate) fn remote(&mut self) -> Option<(u64, Key)> {
        Some((self.long()?, Key(self.word()?)))
    }

    pub(crate) fn atomic(&mut self, compares: bool) -> Option<AtomicOperation> {
        let (operand, compare) = (self.long()?, self.long()?);
        Some(match compares {
            true => AtomicOperation::CompareSwap { compare, swap: operand },
            false => AtomicOperation::FetchAdd(operand),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_round_trips() {
        for kind in 1..=9 {
            let tag = kind << 60 | 0x123 << 48 | 0x45_6789 << 24 | 0xab_cdef;
            let parsed = Tag::parse(tag).expect("a kind of ours");
            assert_eq!(parsed.emit(), tag);
            assert_eq!((parsed.parameter, parsed.count, parsed.destination.0), (0x123, 0x45_6789, 0xab_cdef));
        }
        assert_eq!((Tag::parse(0), Tag::parse(10 << 60), Tag::parse(u64::MAX)), (None, None, None));
    }

    #[test]
    fn syndrome_round_trips() {
        let all = [Syndrome::None, Syndrome::NotReady, Syndrome::Ready, Syndrome::InvalidRequest];
        let all = all.into_iter().chain([
            Syndrome::Access,
            Syndrome::Operation,
            Syndrome::Again,
            Syndrome::NotConnected,
            Syndrome::Asks,
        ]);
        for syndrome in all.chain((0..32).map(Syndrome::ReceiverNotReady)) {
            assert_eq!(Tag::ack(QpNumber(1), 2, syndrome).syndrome(), Some(syndrome));
        }
        assert_eq!(Syndrome::from_code(9), None);
    }

    #[test]
    fn header_round_trips_and_ends() {
        let mut bytes = [0; SHORT_BYTES_MAX];
        let mut body = BodyWriter::new(&mut bytes);
        body.word(7);
        body.long(0x1_0000_0002);
        body.gid(Gid([9; 16]));
        let len = body.len();
        let mut words = HeaderReader(&bytes[..len]);
        assert_eq!(words.word_if(false), Some(None));
        assert_eq!(words.word_if(true), Some(Some(7)));
        assert_eq!((words.long(), words.gid(), words.word()), (Some(0x1_0000_0002), Some(Gid([9; 16])), None));
        assert_eq!((words.gid(), words.long()), (None, None));
    }

    #[test]
    fn payload_follows_if_the_body_has_no_room() {
        let mut bytes = [0; SHORT_BYTES_MAX];
        let mut body = BodyWriter::new(&mut bytes);
        body.word(7);
        let room = (SHORT_BYTES_MAX - 4) as u32;
        assert_eq!((body.follows(room), body.len()), (0, 4));
        assert_eq!((body.follows(room + 1), body.len()), (flags::FOLLOWS, 8));
        assert_eq!(bytes[4..8], (room + 1).to_le_bytes());
    }
}
