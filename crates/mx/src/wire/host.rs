//! Packets of hosts rather than endpoints: raw packets, and the names of boards (3.1, 3.2, 5).

use core::fmt;

use isthmus_layout::NicId;

use super::fields::{Fields, FieldsMut};
use super::{HEADER_BYTES, Malformed, PacketType, PeerIndex};

/// The size of the longest raw frame that hosts deliver in bytes, including its Ethernet header.
pub const RAW_FRAME_BYTES_MAX: usize = 1024;

/// The offset of the name in the frame of a HOST_REPLY.
pub(super) const NAME_OFFSET: usize = HEADER_BYTES + 16;

/// The size of a HOST_REPLY's frame without the name, in bytes. Linux adds the name's length to a whole minimal frame,
/// and so does this code.
pub(super) const NAME_FRAME_BYTES: usize = super::FRAME_BYTES_MIN;

/// RAW (5.1), for the program that has opened the board's raw endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw<D> {
    /// The bytes after the type, including the padding.
    pub data: D,
}

/// An announcement of Open-MX's discovery (5.2): the contents of its broadcast raw packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The announced board.
    pub nic_id: NicId,
    /// A random number, drawn when the host's discovery starts. A new number means that the host restarted.
    pub serial: u32,
}

impl Announcement {
    /// The size of a raw packet's data in bytes.
    pub const BYTES: usize = 47;

    /// Parses a raw packet's data. Raw packets of other mappers (5.3) look the same.
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        let (fields, _) = Fields::<27>::split(data, HEADER_BYTES + 1)?;
        let number = fields.u64::<15>();
        let nic_id = NicId::new(number).ok_or(Malformed::AnnouncedNic(number))?;
        Ok(Self { nic_id, serial: fields.u32::<23>() })
    }

    /// Returns the data of the raw packet.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        FieldsMut::zeroed().u64::<15>(self.nic_id.number()).u32::<23>(self.serial).finish()
    }
}

/// HOST_QUERY (3.1): requests the name of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostQuery {
    /// The number of the queried board in the querier's table. The queried host puts it into headers.
    pub src_dst_peer_index: Option<PeerIndex>,
    /// A value that the reply repeats.
    pub magic: u32,
}

impl HostQuery {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let (fields, _) = Fields::<16>::split(body, HEADER_BYTES)?;
        Ok(Self { src_dst_peer_index: PeerIndex::new(fields.u16::<2>()), magic: fields.u32::<8>() })
    }

    pub(super) fn emit(&self) -> [u8; 16] {
        FieldsMut::zeroed()
            .u8::<0>(PacketType::HostQuery.number())
            .u16::<2>(PeerIndex::emit(self.src_dst_peer_index))
            .u32::<8>(self.magic)
            .finish()
    }
}

/// HOST_REPLY (3.2): reports the name of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostReply {
    /// The number of the querying board in the replier's table.
    pub src_dst_peer_index: Option<PeerIndex>,
    /// The value of the query.
    pub magic: u32,
    /// The name of the queried board.
    pub hostname: BoardName,
}

impl HostReply {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let (fields, rest) = Fields::<16>::split(body, HEADER_BYTES)?;
        let (length, kind) = (fields.u8::<1>(), PacketType::HostReply);
        if length == 0 {
            return Err(Malformed::TooShort { kind, declared: 0, least: 1 });
        }
        if usize::from(length) > BoardName::BYTES_MAX + 1 {
            let most = BoardName::BYTES_MAX as u32 + 1;
            return Err(Malformed::TooLong { kind, declared: u32::from(length), most });
        }
        let name = super::message::declared(rest, u32::from(length))?;
        Ok(Self {
            src_dst_peer_index: PeerIndex::new(fields.u16::<2>()),
            magic: fields.u32::<8>(),
            hostname: BoardName::until_nul(name),
        })
    }

    pub(super) fn emit(&self) -> [u8; 16] {
        FieldsMut::zeroed()
            .u8::<0>(PacketType::HostReply.number())
            .u8::<1>(self.hostname.len + 1)
            .u16::<2>(PeerIndex::emit(self.src_dst_peer_index))
            .u32::<8>(self.magic)
            .finish()
    }
}

/// A board's name, usually `host:board`. It may contain any bytes except NUL.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BoardName {
    len: u8,
    /// The name, followed by zeros.
    bytes: [u8; Self::BYTES_MAX],
}

impl BoardName {
    /// The maximum length of a name in bytes. On the wire, a NUL follows.
    pub const BYTES_MAX: usize = 79;

    /// Returns `None` if the name is too long or contains a NUL.
    pub fn new(name: &[u8]) -> Option<Self> {
        (name.len() <= Self::BYTES_MAX && !name.contains(&0)).then(|| Self::cut(name))
    }

    /// Reads a name up to the first NUL. The last byte counts as NUL, whatever its value.
    fn until_nul(bytes: &[u8]) -> Self {
        let [name @ .., _] = bytes else { return Self::cut(&[]) };
        Self::cut(name.split(|&byte| byte == 0).next().unwrap_or(&[]))
    }

    fn cut(name: &[u8]) -> Self {
        let name = &name[..name.len().min(Self::BYTES_MAX)];
        let mut bytes = [0; Self::BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name);
        Self { len: name.len() as u8, bytes }
    }

    /// Returns the name without the NUL.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Displays bytes that are not UTF-8 as `\x…`.
impl fmt::Display for BoardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.as_bytes().utf8_chunks() {
            f.write_str(chunk.valid())?;
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for BoardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}
