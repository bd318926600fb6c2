//! The messages of two managers, and their form on the wire.
//!
//! | bytes | content |
//! | --- | --- |
//! | 4 | `ICM1` |
//! | 1 | the kind |
//! | 1 | the port space: 0 TCP, 1 UDP |
//! | 2 | the port of the sender's identifier |
//! | 2 | the reason of a rejection |
//! | 1 | the length of the private data |
//! | 1 | flow control in bit 0, a shared receive queue in bit 1 |
//! | 4, 4, 4 | the queue pair, its key, its first packet |
//! | 16 | the GID |
//! | 1, 1, 1, 1 | responder resources, initiator depth, retries, retries for a receiver that is not ready |
//! | n | the private data |
//!
//! Numbers have the byte order of the network. All kinds have this form; what a kind does not need is zero and is not read.

use super::PortSpace;
use crate::Gid;

const MAGIC: [u8; 4] = *b"ICM1";
const HEADER_BYTES: usize = 44;

/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + PrivateData::BYTES_MAX;

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Asks for a connection, or for a queue pair of the port space UDP.
    Request = 1,
    /// Accepts.
    Reply = 2,
    /// Confirms a reply.
    Ready = 3,
    /// Refuses a request, a reply or a connection that has not begun.
    Reject = 4,
    /// Ends a connection.
    Disconnect = 5,
    /// Confirms the end.
    Disconnected = 6,
}

/// The data that a program adds to a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    len: u8,
    bytes: [u8; Self::BYTES_MAX],
}

impl PrivateData {
    /// The most bytes of a message.
    pub const BYTES_MAX: usize = 196;

    /// No data.
    pub const NONE: Self = Self { len: 0, bytes: [0; Self::BYTES_MAX] };

    /// Copies the bytes. None if they are too many.
    pub fn new(from: &[u8]) -> Option<Self> {
        let mut data = Self::NONE;
        data.bytes.get_mut(..from.len())?.copy_from_slice(from);
        data.len = from.len() as u8;
        Some(data)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl core::fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PrivateData({} bytes)", self.len)
    }
}

/// The parameters of a connection, as `rdma_conn_param` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of the interface")]
pub struct Parameters {
    pub qp: u32,
    pub qkey: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retries: u8,
    pub receiver_retries: u8,
    pub srq: bool,
    pub private: PrivateData,
}

impl Parameters {
    /// Parameters that say nothing.
    pub const NONE: Self = Self {
        qp: 0,
        qkey: 0,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: false,
        retries: 0,
        receiver_retries: 0,
        srq: false,
        private: PrivateData::NONE,
    };

    /// The other end's view: what one end initiates, the other responds to.
    #[must_use]
    pub(super) fn of_peer(mut self) -> Self {
        (self.responder_resources, self.initiator_depth) = (self.initiator_depth, self.responder_resources);
        self
    }
}

/// A message of one manager to another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table above says what the fields are")]
pub struct Message {
    pub kind: Kind,
    pub space: PortSpace,
    pub port: u16,
    pub reason: u16,
    pub psn: u32,
    pub gid: Gid,
    pub parameters: Parameters,
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Message {
    /// A message of this kind that says nothing else.
    pub(super) fn bare(kind: Kind, space: PortSpace) -> Self {
        Self { kind, space, port: 0, reason: 0, psn: 0, gid: Gid([0; 16]), parameters: Parameters::NONE }
    }

    /// Refuses a request, with this reason.
    pub fn reject(space: PortSpace, reason: u16, private: PrivateData) -> Self {
        let parameters = Parameters { private, ..Parameters::NONE };
        Self { reason, parameters, ..Self::bare(Kind::Reject, space) }
    }

    /// Writes the message, and returns its length.
    pub fn encode(&self, to: &mut [u8; MESSAGE_BYTES_MAX]) -> usize {
        let given = &self.parameters;
        to[..4].copy_from_slice(&MAGIC);
        to[4] = self.kind as u8;
        to[5] = u8::from(self.space == PortSpace::Udp);
        to[6..8].copy_from_slice(&self.port.to_be_bytes());
        to[8..10].copy_from_slice(&self.reason.to_be_bytes());
        to[10] = given.private.len;
        to[11] = u8::from(given.flow_control) | u8::from(given.srq) << 1;
        to[12..16].copy_from_slice(&given.qp.to_be_bytes());
        to[16..20].copy_from_slice(&given.qkey.to_be_bytes());
        to[20..24].copy_from_slice(&self.psn.to_be_bytes());
        to[24..40].copy_from_slice(&self.gid.0);
        to[40..44].copy_from_slice(&[
            given.responder_resources,
            given.initiator_depth,
            given.retries,
            given.receiver_retries,
        ]);
        let len = HEADER_BYTES + usize::from(given.private.len);
        to[HEADER_BYTES..len].copy_from_slice(given.private.as_slice());
        len
    }

    /// Reads the first message, and returns its length as well. None if more bytes must arrive first.
    ///
    /// # Errors
    ///
    /// The bytes are no message of this manager's version.
    pub fn decode(from: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        if !MAGIC.starts_with(&from[..from.len().min(4)]) {
            return Err(Malformed);
        }
        let Some(header) = from.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let kind = match header[4] {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Ready,
            4 => Kind::Reject,
            5 => Kind::Disconnect,
            6 => Kind::Disconnected,
            _ => return Err(Malformed),
        };
        let space = match header[5] {
            0 => PortSpace::Tcp,
            1 => PortSpace::Udp,
            _ => return Err(Malformed),
        };
        let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let short = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let len = usize::from(header[10]);
        if len > PrivateData::BYTES_MAX {
            return Err(Malformed);
        }
        let Some(private) = from.get(HEADER_BYTES..HEADER_BYTES + len) else { return Ok(None) };
        let mut gid = [0; 16];
        gid.copy_from_slice(&header[24..40]);
        let parameters = Parameters {
            qp: number(12) & 0xff_ffff,
            qkey: number(16),
            responder_resources: header[40],
            initiator_depth: header[41],
            flow_control: header[11] & 1 != 0,
            retries: header[42] & 7,
            receiver_retries: header[43] & 7,
            srq: header[11] & 2 != 0,
            private: PrivateData::new(private).ok_or(Malformed)?,
        };
        let psn = number(20) & 0xff_ffff;
        let message = Self { kind, space, port: short(6), reason: short(8), psn, gid: Gid(gid), parameters };
        Ok(Some((message, HEADER_BYTES + len)))
    }
}
