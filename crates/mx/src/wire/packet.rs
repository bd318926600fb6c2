//! Packets of all types: parsing and emitting.

use super::connect::Connect;
use super::host::{NAME_FRAME_BYTES, NAME_OFFSET};
use super::malformed::narrow;
use super::{
    BoardName, ConnectReply, ConnectRequest, Dialect, Eager, EmitError, EndpointNumber, FRAME_BYTES_MIN, HEADER_BYTES,
    Header, HostQuery, HostReply, Liback, Malformed, Medium, NackLib, NackMcp, Notify, Pull, PullReply,
    RAW_FRAME_BYTES_MAX, Raw, Rndv, SMALL_BYTES_MAX, TINY_BYTES_MAX,
};

macro_rules! packet_types {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// The type of a packet, which is the first byte of its body (2). The numbers 0 and 255 are never sent.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum PacketType {
            $($(#[$doc])* $name = $number,)*
        }

        impl PacketType {
            /// All types, by number.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the type of a number, or `None` if there is none.
            #[inline]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns the number in packets.
            #[inline]
            pub const fn number(self) -> u8 {
                self as u8
            }
        }
    };
}

packet_types! {
    /// Carries data for the program that has opened the raw endpoint.
    Raw = 1,
    /// Not supported.
    MfmNicReply = 2,
    /// Asks a board for its name.
    HostQuery = 3,
    /// A board's name, in reply to a HOST_QUERY.
    HostReply = 4,
    /// IP over MX; not supported.
    EtherUnicast = 32,
    /// IP over MX; not supported.
    EtherMulticast = 33,
    /// IP over MX; not supported.
    EtherNative = 34,
    /// An acknowledgement.
    Truc = 35,
    /// A request to connect, or a reply to one.
    Connect = 36,
    /// A message of up to 32 bytes.
    Tiny = 37,
    /// A message of up to 128 bytes.
    Small = 38,
    /// A fragment of a message.
    Medium = 39,
    /// The announcement of a large message.
    Rndv = 40,
    /// A request for a block of a large message.
    Pull = 41,
    /// A frame of the block.
    PullReply = 42,
    /// The end of a transfer.
    Notify = 43,
    /// A message or connect was refused.
    NackLib = 44,
    /// A PULL was refused.
    NackMcp = 45,
}

/// The maximum size of the headers that [`emit_head`] writes, in bytes.
pub const HEAD_BYTES_MAX: usize = NAME_OFFSET + BoardName::BYTES_MAX + 1;

/// The data of a packet: bytes, or a reference to bytes elsewhere.
pub trait PacketData {
    /// Returns the number of bytes.
    fn length(&self) -> usize;
}

impl<T: AsRef<[u8]>> PacketData for T {
    #[inline]
    fn length(&self) -> usize {
        self.as_ref().len()
    }
}

/// A packet, without its frame header. `D` is the type of its data: a slice of the frame after parsing, and any type of
/// the sender's choice for emitting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<D> {
    /// RAW.
    Raw(Raw<D>),
    /// HOST_QUERY.
    HostQuery(HostQuery),
    /// HOST_REPLY.
    HostReply(HostReply),
    /// TRUC.
    Liback(Liback),
    /// A CONNECT request.
    ConnectRequest(ConnectRequest),
    /// A CONNECT reply.
    ConnectReply(ConnectReply),
    /// TINY.
    Tiny(Eager<D>),
    /// SMALL.
    Small(Eager<D>),
    /// MEDIUM.
    Medium(Medium<D>),
    /// RNDV.
    Rndv(Rndv),
    /// PULL.
    Pull(Pull),
    /// PULL_REPLY.
    PullReply(PullReply<D>),
    /// NOTIFY.
    Notify(Notify),
    /// NACK_LIB.
    NackLib(NackLib),
    /// NACK_MCP.
    NackMcp(NackMcp),
}

/// The parts of a frame, in bytes: the headers from [`emit_head`], then data, then zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameParts {
    /// The size of the headers.
    pub head: usize,
    /// The size of the data.
    pub data: usize,
    /// The number of zeros that pad the frame to its minimum size.
    pub pad: usize,
}

impl FrameParts {
    /// The maximum number of padding zeros.
    pub const PAD_MAX: usize = FRAME_BYTES_MIN;

    /// Returns the size of the frame in bytes.
    pub const fn frame(self) -> usize {
        self.head + self.data + self.pad
    }
}

/// Parses a frame, including its Ethernet header. The data stays in the frame. No contents make this panic.
pub fn parse(dialect: Dialect, frame: &[u8]) -> Result<(Header, Packet<&[u8]>), Malformed> {
    let (header, body) = Header::parse(dialect, frame)?;
    let [number, rest @ ..] = body else {
        return Err(Malformed::Short { have: frame.len(), need: HEADER_BYTES + 1 });
    };
    let kind = PacketType::from_number(*number).ok_or(Malformed::Type(*number))?;
    let packet = match kind {
        PacketType::Raw => Packet::Raw(Raw::parse(rest)?),
        PacketType::HostQuery => Packet::HostQuery(HostQuery::parse(body)?),
        PacketType::HostReply => Packet::HostReply(HostReply::parse(body)?),
        PacketType::Truc => Packet::Liback(Liback::parse(body)?),
        PacketType::Connect => match Connect::parse(body)? {
            Connect::Request(request) => Packet::ConnectRequest(request),
            Connect::Reply(reply) => Packet::ConnectReply(reply),
        },
        PacketType::Tiny => Packet::Tiny(Eager::parse(kind, TINY_BYTES_MAX, body)?),
        PacketType::Small => Packet::Small(Eager::parse(kind, SMALL_BYTES_MAX, body)?),
        PacketType::Medium => Packet::Medium(Medium::parse(dialect, body)?),
        PacketType::Rndv => Packet::Rndv(Rndv::parse(body)?),
        PacketType::Pull => Packet::Pull(Pull::parse(dialect, body)?),
        PacketType::PullReply => Packet::PullReply(PullReply::parse(body)?),
        PacketType::Notify => Packet::Notify(Notify::parse(body)?),
        PacketType::NackLib => Packet::NackLib(NackLib::parse(body)?),
        PacketType::NackMcp => Packet::NackMcp(NackMcp::parse(body)?),
        PacketType::MfmNicReply | PacketType::EtherUnicast | PacketType::EtherMulticast | PacketType::EtherNative => {
            return Err(Malformed::UnsupportedType(kind));
        }
    };
    Ok((header, packet))
}

/// Writes the headers of a frame to the start of `buffer`, for which [`HEAD_BYTES_MAX`] bytes always suffice. Returns
/// the sizes of the frame's parts.
pub fn emit_head<D: PacketData>(
    dialect: Dialect,
    header: &Header,
    packet: &Packet<D>,
    buffer: &mut [u8],
) -> Result<FrameParts, EmitError> {
    let parts = packet.parts(dialect);
    let have = buffer.len();
    let head = buffer.get_mut(..parts.head).ok_or(EmitError::Room { need: parts.head, have })?;
    let (front, body) = head.split_at_mut(HEADER_BYTES);
    front.copy_from_slice(&header.emit(dialect));
    packet.emit_body(dialect, header, body)?;
    Ok(parts)
}

/// Writes a whole frame, including data and padding, to the start of `buffer`. Returns the size of the frame in bytes.
pub fn emit<D: AsRef<[u8]>>(
    dialect: Dialect,
    header: &Header,
    packet: &Packet<D>,
    buffer: &mut [u8],
) -> Result<usize, EmitError> {
    let (need, have) = (packet.parts(dialect).frame(), buffer.len());
    let frame = buffer.get_mut(..need).ok_or(EmitError::Room { need, have })?;
    let parts = emit_head(dialect, header, packet, frame)?;
    let (data, pad) = frame[parts.head..].split_at_mut(parts.data);
    if let Some(bytes) = packet.data() {
        data.copy_from_slice(bytes.as_ref());
    }
    pad.fill(0);
    Ok(need)
}

impl<'a> Raw<&'a [u8]> {
    fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let most = RAW_FRAME_BYTES_MAX - HEADER_BYTES - 1;
        if data.len() > most {
            let (declared, most) = (u32::try_from(data.len()).unwrap_or(u32::MAX), most as u32);
            return Err(Malformed::TooLong { kind: PacketType::Raw, declared, most });
        }
        Ok(Self { data })
    }
}

impl<D> Packet<D> {
    /// Returns the type of the packet.
    pub const fn kind(&self) -> PacketType {
        match self {
            Self::Raw(_) => PacketType::Raw,
            Self::HostQuery(_) => PacketType::HostQuery,
            Self::HostReply(_) => PacketType::HostReply,
            Self::Liback(_) => PacketType::Truc,
            Self::ConnectRequest(_) | Self::ConnectReply(_) => PacketType::Connect,
            Self::Tiny(_) => PacketType::Tiny,
            Self::Small(_) => PacketType::Small,
            Self::Medium(_) => PacketType::Medium,
            Self::Rndv(_) => PacketType::Rndv,
            Self::Pull(_) => PacketType::Pull,
            Self::PullReply(_) => PacketType::PullReply,
            Self::Notify(_) => PacketType::Notify,
            Self::NackLib(_) => PacketType::NackLib,
            Self::NackMcp(_) => PacketType::NackMcp,
        }
    }

    /// Returns the destination endpoint. `None` if the packet does not name it, because it is for the host, or is found
    /// by the handle of a pull.
    pub const fn dst_endpoint(&self) -> Option<EndpointNumber> {
        match self {
            Self::Raw(_) | Self::HostQuery(_) | Self::HostReply(_) | Self::PullReply(_) | Self::NackMcp(_) => None,
            Self::Liback(body) => Some(body.dst_endpoint),
            Self::ConnectRequest(body) => Some(body.dst_endpoint),
            Self::ConnectReply(body) => Some(body.dst_endpoint),
            Self::Tiny(body) | Self::Small(body) => Some(body.head.dst_endpoint),
            Self::Medium(body) => Some(body.head.dst_endpoint),
            Self::Rndv(body) => Some(body.head.dst_endpoint),
            Self::Pull(body) => Some(body.dst_endpoint),
            Self::Notify(body) => Some(body.dst_endpoint),
            Self::NackLib(body) => Some(body.dst_endpoint),
        }
    }

    /// Returns the data of the packet, if its type has any.
    pub const fn data(&self) -> Option<&D> {
        match self {
            Self::Raw(body) => Some(&body.data),
            Self::Tiny(body) | Self::Small(body) => Some(&body.data),
            Self::Medium(body) => Some(&body.data),
            Self::PullReply(body) => Some(&body.data),
            _ => None,
        }
    }

    /// Returns the packet with other data.
    pub fn map<E>(self, change: impl FnOnce(D) -> E) -> Packet<E> {
        match self {
            Self::Raw(body) => Packet::Raw(Raw { data: change(body.data) }),
            Self::HostQuery(body) => Packet::HostQuery(body),
            Self::HostReply(body) => Packet::HostReply(body),
            Self::Liback(body) => Packet::Liback(body),
            Self::ConnectRequest(body) => Packet::ConnectRequest(body),
            Self::ConnectReply(body) => Packet::ConnectReply(body),
            Self::Tiny(body) => Packet::Tiny(Eager { head: body.head, data: change(body.data) }),
            Self::Small(body) => Packet::Small(Eager { head: body.head, data: change(body.data) }),
            Self::Medium(Medium { head, length, frag_seqnum, frag_pipeline, data }) => {
                Packet::Medium(Medium { head, length, frag_seqnum, frag_pipeline, data: change(data) })
            }
            Self::Rndv(body) => Packet::Rndv(body),
            Self::Pull(body) => Packet::Pull(body),
            Self::PullReply(PullReply { frame_seqnum, msg_offset, puller, data }) => {
                Packet::PullReply(PullReply { frame_seqnum, msg_offset, puller, data: change(data) })
            }
            Self::Notify(body) => Packet::Notify(body),
            Self::NackLib(body) => Packet::NackLib(body),
            Self::NackMcp(body) => Packet::NackMcp(body),
        }
    }

    /// Returns the size of the headers in bytes, including the Ethernet header: the offset of the data.
    pub fn head_bytes(&self, dialect: Dialect) -> usize {
        HEADER_BYTES
            + match self {
                Self::Raw(_) => 1,
                Self::HostReply(body) => NAME_OFFSET - HEADER_BYTES + body.hostname.as_bytes().len() + 1,
                Self::HostQuery(_) | Self::PullReply(_) | Self::NackLib(_) | Self::NackMcp(_) => 16,
                Self::Tiny(_) | Self::Small(_) | Self::Notify(_) => 24,
                Self::Liback(_) => 28,
                Self::ConnectRequest(_) | Self::ConnectReply(_) | Self::Medium(_) | Self::Rndv(_) => 32,
                Self::Pull(_) => Pull::bytes(dialect),
            }
    }
}

impl<D: PacketData> Packet<D> {
    /// Returns the parts of the packet's frame.
    pub fn parts(&self, dialect: Dialect) -> FrameParts {
        let (head, data) = (self.head_bytes(dialect), self.data().map_or(0, PacketData::length));
        let least = match self {
            Self::HostReply(_) => NAME_FRAME_BYTES + head - NAME_OFFSET,
            _ => FRAME_BYTES_MIN,
        };
        FrameParts { head, data, pad: least.saturating_sub(head + data) }
    }

    /// Writes the header of the body. `into` has its length.
    fn emit_body(&self, dialect: Dialect, header: &Header, into: &mut [u8]) -> Result<(), EmitError> {
        let bytes = self.data().map_or(0, PacketData::length);
        match self {
            Self::Raw(_) => {
                narrow("raw frame", (HEADER_BYTES + 1 + bytes) as u64, RAW_FRAME_BYTES_MAX as u16)?;
                into.copy_from_slice(&[PacketType::Raw.number()]);
            }
            Self::HostQuery(body) => into.copy_from_slice(&body.emit()),
            Self::HostReply(body) => {
                let (fields, name) = into.split_at_mut(NAME_OFFSET - HEADER_BYTES);
                fields.copy_from_slice(&body.emit());
                let (name, nul) = name.split_at_mut(body.hostname.as_bytes().len());
                name.copy_from_slice(body.hostname.as_bytes());
                nul.fill(0);
            }
            Self::Liback(body) => into.copy_from_slice(&body.emit()),
            Self::ConnectRequest(body) => into.copy_from_slice(&body.emit()),
            Self::ConnectReply(body) => into.copy_from_slice(&body.emit()),
            Self::Tiny(body) => into.copy_from_slice(&body.emit(PacketType::Tiny, TINY_BYTES_MAX, bytes)?),
            Self::Small(body) => into.copy_from_slice(&body.emit(PacketType::Small, SMALL_BYTES_MAX, bytes)?),
            Self::Medium(body) => into.copy_from_slice(&body.emit(dialect, bytes)?),
            Self::Rndv(body) => into.copy_from_slice(&body.emit()),
            Self::Pull(body) => match dialect {
                Dialect::Mx => into.copy_from_slice(&body.emit_mx()?),
                Dialect::OpenMx { .. } => into.copy_from_slice(&body.emit_open_mx()),
            },
            Self::PullReply(body) => into.copy_from_slice(&body.emit(bytes)?),
            Self::Notify(body) => into.copy_from_slice(&body.emit()),
            Self::NackLib(body) => into.copy_from_slice(&body.emit(header.peer_index)),
            Self::NackMcp(body) => into.copy_from_slice(&body.emit()),
        }
        Ok(())
    }
}
