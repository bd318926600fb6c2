//! The first 16 bytes of every frame (1.1): an Ethernet header and the receiver's number for the sender.

use isthmus_layout::NicId;

use super::fields::{Fields, FieldsMut};
use super::{Dialect, Malformed, PeerIndex};

/// The ethertype of MX over Ethernet.
pub const ETHERTYPE: u16 = 0x86df;

/// The size of the header in bytes.
pub const HEADER_BYTES: usize = 16;

/// The size of the shortest frame in bytes, without its check sequence. Shorter packets are padded with zeros.
pub const FRAME_BYTES_MIN: usize = 60;

/// The broadcast address, for announcements.
pub const BROADCAST: NicId = NicId::from_octets([0xff; 6]);

/// The source and destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The board that the frame is for.
    pub dst: NicId,
    /// The board that sent it.
    pub src: NicId,
    /// `dst_src_peer_index`: the receiver's number for the sender. None until the sender has learned it. HOST_QUERY, HOST_REPLY
    /// and PULL_REPLY come with anything in it.
    pub peer_index: Option<PeerIndex>,
}

impl Header {
    /// Splits a frame into header and body.
    #[inline]
    pub fn parse(dialect: Dialect, frame: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (fields, body) = Fields::<HEADER_BYTES>::split(frame, 0)?;
        let ethertype = fields.u16::<12>();
        if ethertype != dialect.ethertype() {
            return Err(Malformed::Ethertype(ethertype));
        }
        let header = Self {
            dst: NicId::from_octets(fields.bytes::<0, 6>()),
            src: NicId::from_octets(fields.bytes::<6, 6>()),
            peer_index: PeerIndex::new(fields.u16::<14>()),
        };
        Ok((header, body))
    }

    /// Returns the bytes of the header.
    #[inline]
    pub fn emit(&self, dialect: Dialect) -> [u8; HEADER_BYTES] {
        FieldsMut::zeroed()
            .bytes::<0, 6>(octets(self.dst))
            .bytes::<6, 6>(octets(self.src))
            .u16::<12>(dialect.ethertype())
            .u16::<14>(PeerIndex::emit(self.peer_index))
            .finish()
    }
}

#[inline]
fn octets(nic: NicId) -> [u8; 6] {
    let [_, _, octets @ ..] = nic.number().to_be_bytes();
    octets
}
