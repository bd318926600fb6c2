//! Numbers of the wire as distinct types (1.3).

/// An index in a host's table of peers. Each host has its own numbering: the index in a frame is the receiver's number
/// for the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerIndex(u16);

impl PeerIndex {
    /// The value in frames of a sender that has not learned its index yet.
    pub(super) const UNKNOWN: u16 = u16::MAX;

    /// Returns `None` for 0xFFFF, which means that the sender does not know its index.
    pub const fn new(number: u16) -> Option<Self> {
        if number == Self::UNKNOWN { None } else { Some(Self(number)) }
    }

    /// Returns the number.
    pub const fn number(self) -> u16 {
        self.0
    }

    pub(super) fn emit(index: Option<Self>) -> u16 {
        index.map_or(Self::UNKNOWN, Self::number)
    }
}

/// The number of an endpoint of a board. A packet can contain any of the 256 values; the receiver checks whether the
/// endpoint exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointNumber(pub u8);

impl EndpointNumber {
    /// The raw endpoint. Messages never have it as their destination.
    pub const RAW: Self = Self(255);
}

/// The session of an endpoint, drawn at random each time that it is opened. It distinguishes packets for this owner of
/// the number from packets for earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u32);

impl SessionId {
    /// The value that Open-MX sends before it has learned the session (7.4). Sessions of this implementation never have
    /// it.
    pub const UNSET: Self = Self(u32::MAX);
}

/// The identifier of a pull, chosen by the pulling side. The other side repeats both words in its replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PullHandle {
    /// `src_pull_handle` of a PULL, `dst_pull_handle` of its replies.
    pub handle: u32,
    /// `src_magic` and `dst_magic`.
    pub magic: u32,
}
