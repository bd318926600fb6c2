//! Decisions about frames, the reasons for dropping them, and their counts.

use core::fmt;

use super::Decision::{Drop, To};
use crate::learned::LearnedCounts;
use crate::ports::Port;

/// The fate of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    /// Each of these ports gets one copy. There is at least one, and they are ascending.
    To(&'a [Port]),
    /// No port gets a copy.
    Drop(DropReason),
}

/// The reason why no port gets a copy of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The frame came by a port that the network does not have.
    UnknownPort,
    /// No route matches, and the network does not learn.
    NoRoute,
    /// The frame would only leave by the port it came from, or from edge to edge; also a flood in a network without another port.
    SplitHorizon,
    /// The winning routes lead to ports that the network does not have.
    PortGone,
    /// The source address belongs to an interface of this host, but the frame came by an edge.
    Loop,
    /// The source address moves too often between interfaces of this host.
    Flapping,
    /// Frames of the interface may not have this source address.
    ForeignSource,
}

impl DropReason {
    /// All reasons, in the order of their counts.
    pub const ALL: [Self; 7] = [
        Self::UnknownPort,
        Self::NoRoute,
        Self::SplitHorizon,
        Self::PortGone,
        Self::Loop,
        Self::Flapping,
        Self::ForeignSource,
    ];

    /// The identifier of this reason in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownPort => "unknown-port",
            Self::NoRoute => "no-route",
            Self::SplitHorizon => "split-horizon",
            Self::PortGone => "port-gone",
            Self::Loop => "loop",
            Self::Flapping => "flapping",
            Self::ForeignSource => "foreign-source",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownPort => "the port that the frame came by is not in the network",
            Self::NoRoute => "no route matches, and learning is off",
            Self::SplitHorizon => "the frame would only return to its port or pass from edge to edge",
            Self::PortGone => "the matching routes lead to ports that are not in the network",
            Self::Loop => "the source address was seen at an interface of this host within the last second",
            Self::Flapping => "the source address moves between ports too often",
            Self::ForeignSource => "the interface may not send from this address (`source_macs`)",
        })
    }
}

/// Counts of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that left by the ports of routes.
    pub routed: u64,
    /// Frames that left by the port where their destination was learned.
    pub learned: u64,
    /// Frames that left by all ports.
    pub flooded: u64,
    /// Copies of all these frames.
    pub copies: u64,
    /// Frames for which the route table was searched.
    pub cache_misses: u64,
    /// Changes of the learned addresses.
    pub addresses: LearnedCounts,
    /// Reports that were lost because too many waited.
    pub reports_lost: u64,
    pub(super) dropped: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// The number of frames that were dropped for a reason.
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    pub(super) fn refuse<'a>(&mut self, reason: DropReason) -> Decision<'a> {
        self.dropped[reason as usize] += 1;
        Drop(reason)
    }

    #[inline]
    pub(super) fn routed<'a>(&mut self, ports: &'a [Port]) -> Decision<'a> {
        self.routed += 1;
        self.copies += ports.len() as u64;
        To(ports)
    }

    #[inline]
    pub(super) fn by_address<'a>(&mut self, is_learned: bool, ports: &'a [Port]) -> Decision<'a> {
        if ports.is_empty() {
            return self.refuse(DropReason::SplitHorizon);
        }
        *if is_learned { &mut self.learned } else { &mut self.flooded } += 1;
        self.copies += ports.len() as u64;
        To(ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::string::ToString;

    #[test]
    fn each_reason_has_a_name_a_text_and_a_count_of_its_own() {
        let names: BTreeSet<_> = DropReason::ALL.map(DropReason::name).into();
        let texts: BTreeSet<_> = DropReason::ALL.map(|reason| reason.to_string()).into();
        assert_eq!((names.len(), texts.len()), (7, 7));
        let mut counters = Counters::default();
        for (times, reason) in DropReason::ALL.into_iter().enumerate() {
            for _ in 0..times {
                assert_eq!(counters.refuse(reason), Drop(reason));
            }
        }
        for (times, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(counters.dropped(reason), times as u64);
        }
    }
}
