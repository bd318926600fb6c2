//! Routes: patterns of source and destination addresses, the port a frame comes from and the port it leaves by.
//!
//! Several routes can match a frame. Those of the highest [`Rank`] win, and each of their ports gets a copy. The ranks are those of VNET/U
//! (docs: the second table of ranks in its specification); later versions of VNET let `any`/`any` tie with exact destinations.
//!
//! | source, destination | rank |
//! | --- | --- |
//! | exact, exact | 8 |
//! | exact, `not`; `not`, exact | 7 |
//! | exact, `any`; `any`, exact | 6 |
//! | `any`, `not`; `not`, `any` | 5 |
//! | exact, `none`: the default route of a source | 4 |
//! | `any`, `any` | 3 |
//!
//! All other combinations never match. They are accepted, because VNET's language accepts them.

pub(crate) mod table;

use core::fmt;

use crate::mac::MacAddr;
use crate::ports::Port;

/// Addresses that a route applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MacPattern {
    /// Every address.
    Any,
    /// No address. As a destination beside an exact source, it makes the default route of that source.
    None,
    /// Every address but this one.
    Not(MacAddr),
    /// This address.
    Exact(MacAddr),
}

/// Ports that a route applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteSource {
    /// Every port.
    Any,
    /// Every interface.
    AnyInterface,
    /// Every edge.
    AnyEdge,
    /// This port.
    Port(Port),
}

impl RouteSource {
    /// Whether a route with this source applies to frames from `from`.
    #[inline]
    pub fn accepts(self, from: Port) -> bool {
        match self {
            Self::Any => true,
            Self::AnyInterface => !from.is_edge(),
            Self::AnyEdge => from.is_edge(),
            Self::Port(port) => port == from,
        }
    }
}

/// A rule for frames: those that match leave by `to`, unless another rule ranks higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The source addresses.
    pub source: MacPattern,
    /// The destination addresses.
    pub destination: MacPattern,
    /// The ports that frames come from.
    pub from: RouteSource,
    /// The port that frames leave by.
    pub to: Port,
}

/// The number of a route: from 1 upward, never reused in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub u32);

/// The precedence of a route among those that match a frame. A higher rank wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(u8);

impl Rank {
    /// The rank of the table in the module's description.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The reason why a route does not match a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// No frame can match this combination of patterns.
    Inert,
    /// The source address differs from the route's.
    SourceDiffers,
    /// The source address is the one that the route excludes.
    SourceExcluded,
    /// The destination address differs from the route's.
    DestinationDiffers,
    /// The destination address is the one that the route excludes.
    DestinationExcluded,
    /// The frame came from a port that the route does not apply to.
    FromDiffers,
}

impl Route {
    /// The rank of this route. `None` if it never matches.
    pub const fn rank(&self) -> Option<Rank> {
        use MacPattern::{Any, Exact, None as Never, Not};
        let rank = match (self.source, self.destination) {
            (Exact(_), Exact(_)) => 8,
            (Exact(_), Not(_)) | (Not(_), Exact(_)) => 7,
            (Exact(_), Any) | (Any, Exact(_)) => 6,
            (Any, Not(_)) | (Not(_), Any) => 5,
            (Exact(_), Never) => 4,
            (Any, Any) => 3,
            (Never, _) | (_, Never) | (Not(_), Not(_)) => return None,
        };
        Some(Rank(rank))
    }

    /// Compares this route with a frame. Returns the rank of the route if it matches.
    #[inline]
    pub fn check(&self, from: Port, source: MacAddr, destination: MacAddr) -> Result<Rank, Mismatch> {
        let rank = self.rank().ok_or(Mismatch::Inert)?;
        match self.source {
            MacPattern::Exact(mac) if mac != source => return Err(Mismatch::SourceDiffers),
            MacPattern::Not(mac) if mac == source => return Err(Mismatch::SourceExcluded),
            _ => {}
        }
        match self.destination {
            MacPattern::Exact(mac) if mac != destination => return Err(Mismatch::DestinationDiffers),
            MacPattern::Not(mac) if mac == destination => return Err(Mismatch::DestinationExcluded),
            _ => {}
        }
        if self.from.accepts(from) { Ok(rank) } else { Err(Mismatch::FromDiffers) }
    }
}

impl fmt::Display for MacPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::None => f.write_str("none"),
            Self::Not(mac) => write!(f, "not-{mac}"),
            Self::Exact(mac) => write!(f, "{mac}"),
        }
    }
}

impl fmt::Display for RouteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any port"),
            Self::AnyInterface => f.write_str("any interface"),
            Self::AnyEdge => f.write_str("any edge"),
            Self::Port(port) => write!(f, "{port}"),
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}, from {} to {}", self.source, self.destination, self.from, self.to)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inert => "these patterns never match together",
            Self::SourceDiffers => "the source address differs",
            Self::SourceExcluded => "the source address is excluded",
            Self::DestinationDiffers => "the destination address differs",
            Self::DestinationExcluded => "the destination address is excluded",
            Self::FromDiffers => "the frame comes from another port",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{EdgeId, InterfaceId};
    use MacPattern::{Any, Exact, None as Never, Not};
    use alloc::string::ToString;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
    const C: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xc]);
    const I1: Port = Port::Interface(InterfaceId(1));
    const E1: Port = Port::Edge(EdgeId(1));

    fn route(source: MacPattern, destination: MacPattern) -> Route {
        Route { source, destination, from: RouteSource::Any, to: E1 }
    }

    /// Checks a route against the frame from A to B.
    fn check(source: MacPattern, destination: MacPattern) -> Result<u8, Mismatch> {
        route(source, destination).check(I1, A, B).map(Rank::number)
    }

    #[test]
    fn ranks_are_those_of_the_table() {
        assert_eq!(check(Exact(A), Exact(B)), Ok(8));
        assert_eq!(check(Exact(A), Not(C)), Ok(7));
        assert_eq!(check(Not(C), Exact(B)), Ok(7));
        assert_eq!(check(Exact(A), Any), Ok(6));
        assert_eq!(check(Any, Exact(B)), Ok(6));
        assert_eq!(check(Any, Not(C)), Ok(5));
        assert_eq!(check(Not(C), Any), Ok(5));
        assert_eq!(check(Exact(A), Never), Ok(4));
        assert_eq!(check(Any, Any), Ok(3));
        assert!(route(Exact(A), Never).rank() > route(Any, Any).rank(), "a default route wins over any to any");
    }

    #[test]
    fn names_the_first_difference() {
        assert_eq!(check(Exact(C), Exact(B)), Err(Mismatch::SourceDiffers));
        assert_eq!(check(Exact(C), Never), Err(Mismatch::SourceDiffers));
        assert_eq!(check(Not(A), Any), Err(Mismatch::SourceExcluded));
        assert_eq!(check(Any, Exact(C)), Err(Mismatch::DestinationDiffers));
        assert_eq!(check(Any, Not(B)), Err(Mismatch::DestinationExcluded));
    }

    #[test]
    fn other_combinations_never_match() {
        for (source, destination) in
            [(Not(C), Not(C)), (Never, Any), (Never, Exact(B)), (Never, Never), (Any, Never), (Not(C), Never)]
        {
            assert_eq!(check(source, destination), Err(Mismatch::Inert), "{source} {destination}");
        }
    }

    #[test]
    fn compares_the_port_a_frame_comes_from() {
        let accepts = |source: RouteSource| (source.accepts(I1), source.accepts(E1));
        assert_eq!(accepts(RouteSource::Any), (true, true));
        assert_eq!(accepts(RouteSource::AnyInterface), (true, false));
        assert_eq!(accepts(RouteSource::AnyEdge), (false, true));
        assert_eq!(accepts(RouteSource::Port(I1)), (true, false));
        let only_edges = Route { from: RouteSource::AnyEdge, ..route(Any, Any) };
        assert_eq!(only_edges.check(I1, A, B), Err(Mismatch::FromDiffers));
        assert!(only_edges.check(E1, A, B).is_ok());
    }

    #[test]
    fn prints_patterns_as_vnet_writes_them() {
        let text = Route { from: RouteSource::AnyInterface, ..route(Not(A), Exact(B)) }.to_string();
        assert_eq!(text, "not-02:00:00:00:00:0a to 02:00:00:00:00:0b, from any interface to edge 1");
        let text = Route { from: RouteSource::Port(I1), ..route(Any, Never) }.to_string();
        assert_eq!(text, "any to none, from interface 1 to edge 1");
        assert_eq!(
            (RouteSource::Any.to_string(), RouteSource::AnyEdge.to_string()),
            ("any port".into(), "any edge".into())
        );
    }
}
