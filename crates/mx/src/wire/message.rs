//! Numbered packets: whole messages, fragments, announcements of large messages, and their ends (3.5 to 3.7, 3.10).

use super::fields::{Fields, FieldsMut};
use super::malformed::narrow;
use super::{Dialect, EmitError, EndpointNumber, HEADER_BYTES, Malformed, PacketType, SeqNum, SessionId, Sizes};

/// The maximum length of a TINY message in bytes.
pub const TINY_BYTES_MAX: usize = 32;

/// The maximum length of a SMALL message in bytes.
pub const SMALL_BYTES_MAX: usize = 128;

/// The maximum length of a fragment in MX mode in bytes.
pub const MX_FRAGMENT_BYTES_MAX: usize = 4096;

/// The offset of a fragment's data in its frame, in bytes.
pub(super) const FRAGMENT_HEAD_BYTES: usize = HEADER_BYTES + FRAGMENT_BYTES;

const MESSAGE_BYTES: usize = 24;
const FRAGMENT_BYTES: usize = 32;
const RNDV_BYTES: usize = 32;
const NOTIFY_BYTES: usize = 24;

/// Returns the declared number of bytes after a header. Padding counts as available (1.2).
pub(super) fn declared(rest: &[u8], declared: u32) -> Result<&[u8], Malformed> {
    rest.get(..declared as usize).ok_or(Malformed::DataMissing { declared, have: rest.len() })
}

/// The common fields of TINY, SMALL, MEDIUM and RNDV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHead {
    /// The receiving endpoint.
    pub dst_endpoint: EndpointNumber,
    /// The sending endpoint.
    pub src_endpoint: EndpointNumber,
    /// The number of the message, the same in all of its fragments.
    pub lib_seqnum: SeqNum,
    /// The acknowledgement of the other direction: the first number that is not completely received.
    pub lib_piggyack: SeqNum,
    /// The match info for receives: `match_a` is the upper half, `match_b` the lower one.
    pub match_info: u64,
    /// The session of the destination endpoint.
    pub session: SessionId,
}

impl MessageHead {
    #[inline]
    fn parse<const N: usize>(fields: Fields<'_, N>) -> Self {
        Self {
            dst_endpoint: EndpointNumber(fields.u8::<1>()),
            src_endpoint: EndpointNumber(fields.u8::<2>()),
            lib_seqnum: SeqNum::from_bits(fields.u16::<8>()),
            lib_piggyack: SeqNum::from_bits(fields.u16::<10>()),
            match_info: fields.u64::<12>(),
            session: SessionId(fields.u32::<20>()),
        }
    }

    /// Writes all fields except the length.
    #[inline]
    fn emit<const N: usize>(&self, kind: PacketType) -> FieldsMut<N> {
        FieldsMut::zeroed()
            .u8::<0>(kind.number())
            .u8::<1>(self.dst_endpoint.0)
            .u8::<2>(self.src_endpoint.0)
            .u16::<8>(self.lib_seqnum.to_bits())
            .u16::<10>(self.lib_piggyack.to_bits())
            .u64::<12>(self.match_info)
            .u32::<20>(self.session.0)
    }
}

/// TINY and SMALL (3.5): a whole message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eager<D> {
    /// The endpoints, and the number of the message.
    pub head: MessageHead,
    /// The message.
    pub data: D,
}

impl<'a> Eager<&'a [u8]> {
    #[inline]
    pub(super) fn parse(kind: PacketType, most: usize, body: &'a [u8]) -> Result<Self, Malformed> {
        let (fields, rest) = Fields::<MESSAGE_BYTES>::split(body, HEADER_BYTES)?;
        let length = u32::from(fields.u16::<4>());
        if length as usize > most {
            return Err(Malformed::TooLong { kind, declared: length, most: most as u32 });
        }
        Ok(Self { head: MessageHead::parse(fields), data: declared(rest, length)? })
    }
}

impl<D> Eager<D> {
    #[inline]
    pub(super) fn emit(&self, kind: PacketType, most: usize, bytes: usize) -> Result<[u8; MESSAGE_BYTES], EmitError> {
        let length = narrow("length", bytes as u64, most as u16)?;
        Ok(self.head.emit(kind).u16::<4>(length).finish())
    }
}

/// MEDIUM (3.6): one fragment of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Medium<D> {
    /// The common fields, the same in all fragments of the message.
    pub head: MessageHead,
    /// The length of the whole message in bytes; 16 bits in MX mode.
    pub length: u32,
    /// The index of the fragment, from 0.
    pub frag_seqnum: u8,
    /// In MX mode, the binary logarithm of the sender's fragment size. Open-MX mode has no such field: 0 is read, and
    /// nothing is written.
    pub frag_pipeline: u8,
    /// The bytes of the fragment; `frag_length` is their number.
    pub data: D,
}

impl<D> Medium<D> {
    /// The `frag_pipeline` of an MX-mode sender that divides messages into fragments of 4096 bytes.
    pub const PIPELINE: u8 = MX_FRAGMENT_BYTES_MAX.trailing_zeros() as u8;

    /// Returns the offset of the fragment in its message. In MX mode the packet contains it; in Open-MX mode it follows
    /// from the sizes of the network.
    #[inline]
    pub fn offset(&self, dialect: Dialect, sizes: &Sizes) -> u64 {
        match dialect {
            Dialect::Mx => self.mx_offset(),
            Dialect::OpenMx { .. } => u64::from(self.frag_seqnum) * u64::from(sizes.fragment_bytes()),
        }
    }

    /// A shift by 32 or more exceeds every message.
    fn mx_offset(&self) -> u64 {
        u64::from(self.frag_seqnum) << self.frag_pipeline.min(32)
    }

    /// Returns the offset as far as the packet alone determines it.
    fn offset_known(&self, dialect: Dialect) -> u64 {
        if dialect == Dialect::Mx { self.mx_offset() } else { 0 }
    }
}

impl<'a> Medium<&'a [u8]> {
    #[inline]
    pub(super) fn parse(dialect: Dialect, body: &'a [u8]) -> Result<Self, Malformed> {
        let (fields, rest) = Fields::<FRAGMENT_BYTES>::split(body, HEADER_BYTES)?;
        let bytes = u32::from(fields.u16::<24>());
        let (length, frag_pipeline) = match dialect {
            Dialect::Mx => (u32::from(fields.u16::<4>()), fields.u8::<27>()),
            Dialect::OpenMx { .. } => (fields.u32::<4>(), 0),
        };
        if dialect == Dialect::Mx && bytes as usize > MX_FRAGMENT_BYTES_MAX {
            let most = MX_FRAGMENT_BYTES_MAX as u32;
            return Err(Malformed::TooLong { kind: PacketType::Medium, declared: bytes, most });
        }
        let data = declared(rest, bytes)?;
        let head = MessageHead::parse(fields);
        let fragment = Self { head, length, frag_seqnum: fields.u8::<26>(), frag_pipeline, data };
        let offset = fragment.offset_known(dialect);
        if offset + u64::from(bytes) > u64::from(length) {
            return Err(Malformed::FragmentOutside { offset, bytes, length });
        }
        Ok(fragment)
    }
}

impl<D> Medium<D> {
    #[inline]
    pub(super) fn emit(&self, dialect: Dialect, bytes: usize) -> Result<[u8; FRAGMENT_BYTES], EmitError> {
        let (most, fields) = match dialect {
            Dialect::Mx => {
                let length = narrow("length", u64::from(self.length), u16::MAX)?;
                let fields = self.head.emit(PacketType::Medium).u16::<4>(length).u8::<27>(self.frag_pipeline);
                (MX_FRAGMENT_BYTES_MAX as u16, fields)
            }
            Dialect::OpenMx { .. } => (u16::MAX, self.head.emit(PacketType::Medium).u32::<4>(self.length)),
        };
        let frag_length = narrow("frag_length", bytes as u64, most)?;
        let end = self.offset_known(dialect) + u64::from(frag_length);
        narrow("end of fragment", end, self.length)?;
        Ok(fields.u16::<24>(frag_length).u8::<26>(self.frag_seqnum).finish())
    }
}

/// RNDV (3.7): announces a large message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rndv {
    /// The endpoints, and the number of the message.
    pub head: MessageHead,
    /// The length of the message in bytes.
    pub msg_length: u32,
    /// The region from which the message is pulled.
    pub pulled_rdma_id: u8,
    /// The use of the region, repeated in PULL and NOTIFY.
    pub pulled_rdma_seqnum: u8,
    /// The offset of the message in the region's first frame: 0 from Open-MX, an offset in a page from native MX.
    pub pulled_rdma_offset: u16,
}

impl Rndv {
    /// The value of the length field, and its minimum: the bytes after the message head.
    const INNER_BYTES: u16 = 8;

    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let (fields, _) = Fields::<RNDV_BYTES>::split(body, HEADER_BYTES)?;
        let (length, least) = (u32::from(fields.u16::<4>()), u32::from(Self::INNER_BYTES));
        if length < least {
            return Err(Malformed::TooShort { kind: PacketType::Rndv, declared: length, least });
        }
        declared(&body[MESSAGE_BYTES..], length)?;
        Ok(Self {
            head: MessageHead::parse(fields),
            msg_length: fields.u32::<24>(),
            pulled_rdma_id: fields.u8::<28>(),
            pulled_rdma_seqnum: fields.u8::<29>(),
            pulled_rdma_offset: fields.u16::<30>(),
        })
    }

    pub(super) fn emit(&self) -> [u8; RNDV_BYTES] {
        self.head
            .emit(PacketType::Rndv)
            .u16::<4>(Self::INNER_BYTES)
            .u32::<24>(self.msg_length)
            .u8::<28>(self.pulled_rdma_id)
            .u8::<29>(self.pulled_rdma_seqnum)
            .u16::<30>(self.pulled_rdma_offset)
            .finish()
    }
}

/// NOTIFY (3.10): reports that a large message was pulled, or will not be. Numbered like a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notify {
    /// The sender of the large message.
    pub dst_endpoint: EndpointNumber,
    /// The receiver of the large message.
    pub src_endpoint: EndpointNumber,
    /// The session of the destination endpoint.
    pub session: SessionId,
    /// The number of bytes transferred: 0 if the message was discarded or could not be pulled.
    pub total_length: u32,
    /// The region of the RNDV.
    pub pulled_rdma_id: u8,
    /// The use of the region of the RNDV.
    pub pulled_rdma_seqnum: u8,
    /// The number of this packet.
    pub lib_seqnum: SeqNum,
    /// The acknowledgement of the other direction: the first number that is not completely received.
    pub lib_piggyack: SeqNum,
}

impl Notify {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let (fields, _) = Fields::<NOTIFY_BYTES>::split(body, HEADER_BYTES)?;
        Ok(Self {
            dst_endpoint: EndpointNumber(fields.u8::<1>()),
            src_endpoint: EndpointNumber(fields.u8::<2>()),
            session: SessionId(fields.u32::<4>()),
            total_length: fields.u32::<8>(),
            pulled_rdma_id: fields.u8::<12>(),
            pulled_rdma_seqnum: fields.u8::<13>(),
            lib_seqnum: SeqNum::from_bits(fields.u16::<18>()),
            lib_piggyack: SeqNum::from_bits(fields.u16::<20>()),
        })
    }

    pub(super) fn emit(&self) -> [u8; NOTIFY_BYTES] {
        FieldsMut::zeroed()
            .u8::<0>(PacketType::Notify.number())
            .u8::<1>(self.dst_endpoint.0)
            .u8::<2>(self.src_endpoint.0)
            .u32::<4>(self.session.0)
            .u32::<8>(self.total_length)
            .u8::<12>(self.pulled_rdma_id)
            .u8::<13>(self.pulled_rdma_seqnum)
            .u16::<18>(self.lib_seqnum.to_bits())
            .u16::<20>(self.lib_piggyack.to_bits())
            .finish()
    }
}
