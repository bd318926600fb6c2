//! Packets that connect endpoints, acknowledge, and refuse (3.3, 3.4, 3.11).

use super::fields::{Fields, FieldsMut};
use super::message::declared;
use super::{EndpointNumber, HEADER_BYTES, Malformed, PacketType, PeerIndex, SeqNum, SessionId};
use crate::StatusCode;

/// The value of the length field of a CONNECT and of an acknowledgement, and its minimum.
const INNER_BYTES: u8 = 16;

/// Checks a declared inner length against its minimum and against the available bytes.
fn check_inner(kind: PacketType, length: u8, inner: &[u8]) -> Result<(), Malformed> {
    let length = u32::from(length);
    if length < u32::from(INNER_BYTES) {
        return Err(Malformed::TooShort { kind, declared: length, least: u32::from(INNER_BYTES) });
    }
    declared(inner, length).map(|_| ())
}

/// TRUC (3.3): an acknowledgement in a packet of its own. `send_seq` is written as `lib_seqnum` and not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liback {
    /// The endpoint that sent the messages.
    pub dst_endpoint: EndpointNumber,
    /// The endpoint that received the messages.
    pub src_endpoint: EndpointNumber,
    /// `session` and `session_id`: the session of the destination endpoint.
    pub session: SessionId,
    /// The first number that is not completely received. All numbers before it are acknowledged.
    pub lib_seqnum: SeqNum,
    /// The count of acknowledgements for this partner, from 1.
    pub acknum: u32,
}

impl Liback {
    const BYTES: usize = 28;
    /// The offset at which the counted part of the acknowledgement begins.
    const INNER_OFFSET: usize = 12;
    const ACK: u8 = 0x55;

    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let (fields, _) = Fields::<{ Self::BYTES }>::split(body, HEADER_BYTES)?;
        check_inner(PacketType::Truc, fields.u8::<4>(), &body[Self::INNER_OFFSET..])?;
        match fields.u8::<12>() {
            Self::ACK => {}
            other => return Err(Malformed::TrucType(other)),
        }
        let (header, inner) = (fields.u32::<8>(), fields.u32::<16>());
        if header != inner {
            return Err(Malformed::TrucSessions { header, inner });
        }
        Ok(Self {
            dst_endpoint: EndpointNumber(fields.u8::<1>()),
            src_endpoint: EndpointNumber(fields.u8::<2>()),
            session: SessionId(header),
            lib_seqnum: SeqNum::from_bits(fields.u16::<14>()),
            acknum: fields.u32::<20>(),
        })
    }

    pub(super) fn emit(&self) -> [u8; Self::BYTES] {
        FieldsMut::zeroed()
            .u8::<0>(PacketType::Truc.number())
            .u8::<1>(self.dst_endpoint.0)
            .u8::<2>(self.src_endpoint.0)
            .u8::<4>(INNER_BYTES)
            .u32::<8>(self.session.0)
            .u8::<12>(Self::ACK)
            .u16::<14>(self.lib_seqnum.to_bits())
            .u32::<16>(self.session.0)
            .u32::<20>(self.acknum)
            .u16::<24>(self.lib_seqnum.to_bits())
            .finish()
    }
}

/// CONNECT with `is_reply` 0 (3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The requested endpoint.
    pub dst_endpoint: EndpointNumber,
    /// The requesting endpoint.
    pub src_endpoint: EndpointNumber,
    /// The number of the destination in the sender's table. The receiver puts it into headers from now on.
    pub src_dst_peer_index: Option<PeerIndex>,
    /// The session of the requesting endpoint.
    pub src_session_id: SessionId,
    /// The key, which must equal the key of the destination.
    pub app_key: u32,
    /// The number that the requesting endpoint expects on the next message of its target.
    pub target_recv_seqnum_start: SeqNum,
    /// Distinguishes this connect from others of the same two endpoints.
    pub connect_seqnum: u8,
}

/// CONNECT with `is_reply` 1 (3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectReply {
    /// The requesting endpoint.
    pub dst_endpoint: EndpointNumber,
    /// The requested endpoint.
    pub src_endpoint: EndpointNumber,
    /// The number of the destination in the replier's table.
    pub src_dst_peer_index: Option<PeerIndex>,
    /// The session of the requesting endpoint, repeated from the request.
    pub src_session_id: SessionId,
    /// The session of the replying endpoint.
    pub target_session_id: SessionId,
    /// The number that the replying endpoint expects on the next message of the requester.
    pub target_recv_seqnum_start: SeqNum,
    /// The number of the connect, repeated from the request.
    pub connect_seqnum: u8,
    /// The outcome.
    pub status: ConnectStatus,
}

/// The outcome in a CONNECT reply. Replies with other numbers are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ConnectStatus {
    /// The endpoints are connected.
    Success = 0,
    /// The endpoint has another key.
    BadKey = 11,
}

const CONNECT_BYTES: usize = 32;

/// One of the two forms of CONNECT.
pub(super) enum Connect {
    Request(ConnectRequest),
    Reply(ConnectReply),
}

impl Connect {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let (fields, _) = Fields::<CONNECT_BYTES>::split(body, HEADER_BYTES)?;
        check_inner(PacketType::Connect, fields.u8::<4>(), &body[CONNECT_BYTES - usize::from(INNER_BYTES)..])?;
        let dst_endpoint = EndpointNumber(fields.u8::<1>());
        let src_endpoint = EndpointNumber(fields.u8::<2>());
        let src_dst_peer_index = PeerIndex::new(fields.u16::<10>());
        let src_session_id = SessionId(fields.u32::<16>());
        let target_recv_seqnum_start = SeqNum::from_bits(fields.u16::<24>());
        let connect_seqnum = fields.u8::<27>();
        match fields.u8::<26>() {
            0 => Ok(Self::Request(ConnectRequest {
                dst_endpoint,
                src_endpoint,
                src_dst_peer_index,
                src_session_id,
                app_key: fields.u32::<20>(),
                target_recv_seqnum_start,
                connect_seqnum,
            })),
            1 => Ok(Self::Reply(ConnectReply {
                dst_endpoint,
                src_endpoint,
                src_dst_peer_index,
                src_session_id,
                target_session_id: SessionId(fields.u32::<20>()),
                target_recv_seqnum_start,
                connect_seqnum,
                status: ConnectStatus::from_number(fields.u8::<28>())?,
            })),
            other => Err(Malformed::ConnectKind(other)),
        }
    }
}

/// Writes the common fields of both forms; `lib_seqnum` is 0.
fn connect_head(
    dst: EndpointNumber,
    src: EndpointNumber,
    index: Option<PeerIndex>,
    session: SessionId,
) -> FieldsMut<CONNECT_BYTES> {
    FieldsMut::zeroed()
        .u8::<0>(PacketType::Connect.number())
        .u8::<1>(dst.0)
        .u8::<2>(src.0)
        .u8::<4>(INNER_BYTES)
        .u16::<10>(PeerIndex::emit(index))
        .u32::<16>(session.0)
}

impl ConnectRequest {
    pub(super) fn emit(&self) -> [u8; CONNECT_BYTES] {
        connect_head(self.dst_endpoint, self.src_endpoint, self.src_dst_peer_index, self.src_session_id)
            .u32::<20>(self.app_key)
            .u16::<24>(self.target_recv_seqnum_start.to_bits())
            .u8::<27>(self.connect_seqnum)
            .finish()
    }
}

impl ConnectReply {
    pub(super) fn emit(&self) -> [u8; CONNECT_BYTES] {
        connect_head(self.dst_endpoint, self.src_endpoint, self.src_dst_peer_index, self.src_session_id)
            .u32::<20>(self.target_session_id.0)
            .u16::<24>(self.target_recv_seqnum_start.to_bits())
            .u8::<26>(1)
            .u8::<27>(self.connect_seqnum)
            .u8::<28>(self.status as u8)
            .finish()
    }
}

impl ConnectStatus {
    fn from_number(number: u8) -> Result<Self, Malformed> {
        match number {
            0 => Ok(Self::Success),
            11 => Ok(Self::BadKey),
            other => Err(Malformed::ConnectStatus(other)),
        }
    }
}

/// NACK_LIB (3.11): a message or a connect was refused. The index in the body repeats the header's; it is written and
/// not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NackLib {
    /// The endpoint that sent the refused packet.
    pub dst_endpoint: EndpointNumber,
    /// The endpoint number that the refused packet was for.
    pub src_endpoint: EndpointNumber,
    /// The reason.
    pub nack_type: Nack,
    /// The number of the refused packet; [`SeqNum::ZERO`] for a CONNECT.
    pub lib_seqnum: SeqNum,
}

/// The reason why a packet was refused (3.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Nack {
    /// The board cannot have an endpoint with this number.
    BadEndpoint = 1,
    /// The endpoint is not open.
    EndpointClosed = 2,
    /// The endpoint number belongs to another program now, or to another session of the same program.
    BadSession = 3,
    /// The region does not exist. Only in reply to a PULL.
    BadRdmaWindow = 4,
}

impl Nack {
    pub(super) fn from_number(number: u8) -> Result<Self, Malformed> {
        match number {
            1 => Ok(Self::BadEndpoint),
            2 => Ok(Self::EndpointClosed),
            3 => Ok(Self::BadSession),
            4 => Ok(Self::BadRdmaWindow),
            other => Err(Malformed::NackType(other)),
        }
    }

    /// Returns the number in packets.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the status of the refused request.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::BadEndpoint => StatusCode::BadEndpoint,
            Self::EndpointClosed => StatusCode::EndpointClosed,
            Self::BadSession => StatusCode::BadSession,
            Self::BadRdmaWindow => StatusCode::BadRdmaWindow,
        }
    }
}

impl NackLib {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let (fields, _) = Fields::<16>::split(body, HEADER_BYTES)?;
        Ok(Self {
            dst_endpoint: EndpointNumber(fields.u8::<9>()),
            src_endpoint: EndpointNumber(fields.u8::<1>()),
            nack_type: Nack::from_number(fields.u8::<3>())?,
            lib_seqnum: SeqNum::from_bits(fields.u16::<12>()),
        })
    }

    pub(super) fn emit(&self, header_index: Option<PeerIndex>) -> [u8; 16] {
        FieldsMut::zeroed()
            .u8::<0>(PacketType::NackLib.number())
            .u8::<1>(self.src_endpoint.0)
            .u8::<3>(self.nack_type.number())
            .u8::<9>(self.dst_endpoint.0)
            .u16::<10>(PeerIndex::emit(header_index))
            .u16::<12>(self.lib_seqnum.to_bits())
            .finish()
    }
}
