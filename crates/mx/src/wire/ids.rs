//! Numbers of the wire that must not be mixed up (1.3).

/// A place in a host's table of peers. Each host numbers for itself: the index in a frame is the receiver's number for the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerIndex(u16);

impl PeerIndex {
    /// The value in a frame from a sender that has not learned the number yet.
    pub(super) const UNKNOWN: u16 = u16::MAX;

    /// None for 0xFFFF, which says that the sender does not know the number.
    pub const fn new(number: u16) -> Option<Self> {
        if number == Self::UNKNOWN { None } else { Some(Self(number)) }
    }

    /// The number in the table.
    pub const fn number(self) -> u16 {
        self.0
    }

    pub(super) fn emit(index: Option<Self>) -> u16 {
        index.map_or(Self::UNKNOWN, Self::number)
    }
}

/// An endpoint of a board. Any of the 256 values can stand in a packet; whether there is such an endpoint is found out later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointNumber(pub u8);

impl EndpointNumber {
    /// Takes raw packets; never the destination of a message.
    pub const RAW: Self = Self(255);
}

/// One opening of an endpoint: drawn anew each time, so that packets for its last owner are told from those for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u32);

impl SessionId {
    /// The value that Open-MX sends where it has not learned the session (7.4). Never a session of ours.
    pub const UNSET: Self = Self(u32::MAX);
}

/// Names a running pull at the side that pulls, which chose both words; the side that answers gives them back as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PullHandle {
    /// `src_pull_handle` of a PULL, `dst_pull_handle` of its replies.
    pub handle: u32,
    /// `src_magic` and `dst_magic`.
    pub magic: u32,
}
