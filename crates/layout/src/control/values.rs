//! The values of control messages that are more than a number. `parse` of each refuses invalid values.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::codec::{Field, FieldReader, MalformedControl, Width};
use crate::channel::{Direction, SlabSize};
use crate::ids::{ChannelId, DomainId, EndpointIndex, RegionId};
use crate::limits::READY_MAPS_MAX;
use crate::ready_map::ReadyBit;
use crate::reason::Reason;
use crate::sockets::StreamEndIndex;

/// The four letters with which a handshake begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Magic;

impl Magic {
    /// The letters as bytes.
    pub const BYTES: [u8; 4] = *b"ISTH";
}

/// The proof with which a domain resumes after a restart of its daemon. Only the daemon can create a ticket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ticket(pub [u8; 32]);

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket(…)")
    }
}

/// The index of a ready map. A receiver has one ready map for each owner among its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadyMapIndex(u8);

impl ReadyMapIndex {
    /// The ready map in which the daemon sets bits. It exists from the beginning.
    pub const DAEMON: Self = Self(0);

    /// Returns the index with this number. None at or above the limit.
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < READY_MAPS_MAX { Some(Self(number)) } else { None }
    }

    /// Returns the number, as in control messages.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The user that a domain belongs to: the UID in the user namespace of the daemon. For a library it is a number that domains of the same
/// owner share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u32);

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{}", self.0)
    }
}

/// The topic of a [`Query`](super::Query).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Topic {
    /// The daemon itself.
    Status = 1,
    /// The attached domains.
    Domains = 2,
    /// The channels, and the pairs that have none with the reason.
    Channels = 3,
    /// The open endpoints.
    Endpoints = 4,
    /// The path between two domains (the two arguments), with the reason.
    Why = 5,
    /// The state of the system around the daemon.
    Doctor = 6,
    /// The configuration in force.
    Config = 7,
    /// The counters, as Prometheus text in a JSON string.
    Metrics = 8,
    /// The MX boards with the endpoint numbers that are taken, and those that can be reached.
    Mx = 9,
    /// The streams, and the sockets that wait for their peers.
    Streams = 32,
    /// The virtual RDMA device, and the domains that have queue pair numbers.
    Verbs = 40,
    /// The overlay networks; or, with a network, the interface or edge that a frame comes from, its source and its destination address, why
    /// such a frame goes where it goes.
    Overlay = 48,
}

impl Topic {
    /// All topics.
    pub const ALL: [Self; 12] = [
        Self::Status,
        Self::Domains,
        Self::Channels,
        Self::Endpoints,
        Self::Why,
        Self::Doctor,
        Self::Config,
        Self::Metrics,
        Self::Mx,
        Self::Streams,
        Self::Verbs,
        Self::Overlay,
    ];

    /// Returns the code, as in control messages.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the minor version that brought the topic. A daemon of a lower version does not have it.
    pub const fn since(self) -> u16 {
        match self {
            Self::Mx => 2,
            Self::Streams | Self::Verbs | Self::Overlay => 4,
            _ => 0,
        }
    }
}

/// Implements [`Field`] for values that are sent as one number: the conversions from and to the number.
macro_rules! number_field {
    ($($type:ty, $number:ty, $what:literal, $emit:expr, $parse:expr;)*) => {$(
        impl Field for $type {
            const WIDTH: Width = <$number as Field>::WIDTH;

            fn describe() -> String {
                String::from(concat!(stringify!($number), ", ", $what))
            }

            fn emit(&self, out: &mut Vec<u8>) {
                let emit: fn($type) -> $number = $emit;
                emit(*self).emit(out);
            }

            fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
                let parse: fn($number) -> Result<$type, MalformedControl> = $parse;
                parse(<$number>::parse(from)?)
            }
        }
    )*};
}

number_field! {
    DomainId, u32, "a domain, never 0", |id| id.number(), |n| DomainId::new(n).ok_or(MalformedControl::Domain);
    EndpointIndex, u8, "an endpoint", |index| index.number(),
        |n| EndpointIndex::new(n).ok_or(MalformedControl::Endpoint(n));
    ChannelId, u64, "a channel", |id| id.0, |n| Ok(ChannelId(n));
    RegionId, u64, "a region, never 0", |id| id.0, |n| if n == 0 { Err(MalformedControl::Region) } else { Ok(RegionId(n)) };
    ReadyMapIndex, u8, "a ready map", |index| index.number(), |n| ReadyMapIndex::new(n).ok_or(MalformedControl::ReadyMap(n));
    ReadyBit, u16, "a bit of a ready map", |bit| bit.number(), |n| ReadyBit::new(n).ok_or(MalformedControl::ReadyBit(n));
    Owner, u32, "an owner", |owner| owner.0, |n| Ok(Owner(n));
    SlabSize, u32, "a power of two", |size| size.bytes(), |n| SlabSize::new(n).ok_or(MalformedControl::SlabSize(n));
    Reason, u16, "a reason's code", |reason| reason.code(), |n| Reason::from_code(n).ok_or(MalformedControl::Reason(n));
    Direction, u8, "0 or 1",
        |direction| match direction { Direction::Zero => 0, Direction::One => 1 },
        |n| match n { 0 => Ok(Direction::Zero), 1 => Ok(Direction::One), other => Err(MalformedControl::Direction(other)) };
    StreamEndIndex, u8, "0 connector, 1 acceptor", |end| end.number(),
        |n| StreamEndIndex::new(n).ok_or(MalformedControl::StreamEnd(n));
    Topic, u8, "1 status, 2 domains, 3 channels, 4 endpoints, 5 why, 6 doctor, 7 config, 8 metrics, 9 mx (since minor version 2), 32 streams (since minor version 4), 40 verbs (since minor version 4)",
        |topic| topic.code(),
        |n| Topic::ALL.into_iter().find(|topic| topic.code() == n).ok_or(MalformedControl::Topic(n));
}

impl Field for Magic {
    const WIDTH: Width = Width::fixed(4);

    fn describe() -> String {
        String::from("the bytes `ISTH`")
    }

    fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&Self::BYTES);
    }

    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
        let bytes = from.array()?;
        if bytes == Self::BYTES { Ok(Self) } else { Err(MalformedControl::Magic(bytes)) }
    }
}

impl Field for Ticket {
    const WIDTH: Width = Width::fixed(32);

    fn describe() -> String {
        String::from("32 bytes")
    }

    fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
        from.array().map(Self)
    }
}
