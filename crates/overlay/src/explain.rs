//! Explanations: why a frame goes where it goes, and what each route has to do with it.
//!
//! An explanation compares the frame with every route in turn. It uses neither the index nor the cache, and changes nothing.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::fmt;

use crate::frame::FrameHeader;
use crate::mac::MacAddr;
use crate::network::{DropReason, Millis, Network};
use crate::ports::Port;
use crate::route::{Mismatch, Rank, Route, RouteId};

/// The reasons for a decision about a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The port that the frame comes by.
    pub from: Port,
    /// The source address of the frame.
    pub source: MacAddr,
    /// The destination address of the frame.
    pub destination: MacAddr,
    /// The decision.
    pub verdict: Verdict,
    /// Every route with its part in the decision, in the order of the numbers. If the frame is dropped because of its source, these are
    /// the parts that the routes would have.
    pub routes: Vec<(RouteId, Route, RouteOutcome)>,
}

/// A decision, with the rule that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Routes lead to these ports.
    Routed {
        /// The rank of the routes.
        rank: Rank,
        /// The ports that get a copy.
        ports: Vec<Port>,
    },
    /// No route matches, and the destination was seen at a port.
    Learned {
        /// The port.
        port: Port,
        /// The time since the destination was seen.
        age: Millis,
    },
    /// No route matches, and the destination is a group or unknown.
    Flooded {
        /// The ports that get a copy.
        ports: Vec<Port>,
    },
    /// No port gets a copy.
    Dropped(DropReason),
}

impl Verdict {
    /// The ports that get a copy.
    pub fn ports(&self) -> &[Port] {
        match self {
            Self::Routed { ports, .. } | Self::Flooded { ports } => ports,
            Self::Learned { port, .. } => core::slice::from_ref(port),
            Self::Dropped(_) => &[],
        }
    }
}

/// The part of a route in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteOutcome {
    /// The port of the route gets a copy.
    Wins(Rank),
    /// The port of the route gets a copy by an earlier route.
    Repeats(RouteId),
    /// The route has the winning rank, but split horizon keeps the frame from its port.
    SplitHorizon,
    /// The route has the winning rank, but the network does not have its port.
    PortGone,
    /// The route matches, but routes of a higher rank win.
    LowerRank {
        /// The rank of the route.
        rank: Rank,
        /// The rank of the routes that win.
        best: Rank,
    },
    /// The route does not match.
    Mismatch(Mismatch),
}

impl Network {
    /// Explains the decision about a frame that would come by `from` now.
    pub fn explain(&self, now: Millis, from: Port, frame: &FrameHeader) -> Explanation {
        let now = now.max(self.now);
        let checks: Vec<_> =
            self.routes().map(|(id, route)| (id, route, route.check(from, frame.source, frame.destination))).collect();
        let best = checks.iter().filter_map(|(.., check)| check.ok()).max();
        let mut winners: Vec<(Port, RouteId)> = Vec::new();
        let mut routes = Vec::with_capacity(checks.len());
        for (id, route, check) in checks {
            let outcome = match (check, best) {
                (Ok(rank), Some(best)) if rank == best => self.winning(from, id, route.to, rank, &mut winners),
                (Ok(rank), Some(best)) => RouteOutcome::LowerRank { rank, best },
                (Err(mismatch), _) => RouteOutcome::Mismatch(mismatch),
                (Ok(_), None) => unreachable!("a route that matches has a rank, and the best is one of these"),
            };
            routes.push((id, route, outcome));
        }
        let mut ports: Vec<Port> = winners.into_iter().map(|(port, _)| port).collect();
        ports.sort_unstable();
        let is_gone = routes.iter().any(|(.., outcome)| *outcome == RouteOutcome::PortGone);
        let verdict = match best {
            _ if !self.ports().contains(&from) => Verdict::Dropped(DropReason::UnknownPort),
            _ if !self.sources.allows(from, frame.source) => Verdict::Dropped(DropReason::ForeignSource),
            _ if let Err(reason) = self.learned.check(now, from, frame.sender()) => Verdict::Dropped(reason),
            Some(rank) if !ports.is_empty() => Verdict::Routed { rank, ports },
            Some(_) if is_gone => Verdict::Dropped(DropReason::PortGone),
            Some(_) => Verdict::Dropped(DropReason::SplitHorizon),
            None => self.by_address(now, from, frame),
        };
        Explanation { from, source: frame.source, destination: frame.destination, verdict, routes }
    }

    /// The part of a route that has the winning rank. Adds its port to the winners if it gets a copy.
    fn winning(
        &self,
        from: Port,
        id: RouteId,
        to: Port,
        rank: Rank,
        winners: &mut Vec<(Port, RouteId)>,
    ) -> RouteOutcome {
        if !self.ports().contains(&to) {
            RouteOutcome::PortGone
        } else if !from.may_forward(to) {
            RouteOutcome::SplitHorizon
        } else if let Some((_, earlier)) = winners.iter().find(|(port, _)| *port == to) {
            RouteOutcome::Repeats(*earlier)
        } else {
            winners.push((to, id));
            RouteOutcome::Wins(rank)
        }
    }

    /// The verdict on a frame that no route matches.
    fn by_address(&self, now: Millis, from: Port, frame: &FrameHeader) -> Verdict {
        if !self.learning {
            return Verdict::Dropped(DropReason::NoRoute);
        }
        match self.learned.peek(now, from, frame.sender(), frame.receiver()) {
            Some((port, age)) if from.may_forward(port) => Verdict::Learned { port, age },
            Some(_) => Verdict::Dropped(DropReason::SplitHorizon),
            None => {
                let ports: Vec<Port> = self.ports.flood(from).collect();
                if ports.is_empty() { Verdict::Dropped(DropReason::SplitHorizon) } else { Verdict::Flooded { ports } }
            }
        }
    }
}

/// Writes ports as a list of words.
struct PortNames<'a>(&'a [Port]);

impl fmt::Display for PortNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, port) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{port}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Routed { rank, ports } => write!(f, "to {}, by routes of rank {}", PortNames(ports), rank.number()),
            Self::Learned { port, age } => {
                write!(f, "to {port}, where the destination was seen {} ms ago; no route matches", age.0)
            }
            Self::Flooded { ports } => {
                write!(
                    f,
                    "flooded to {}; no route matches, and the destination is a group or unknown",
                    PortNames(ports)
                )
            }
            Self::Dropped(reason) => write!(f, "dropped: {reason}"),
        }
    }
}

impl fmt::Display for RouteOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wins(rank) => write!(f, "wins with rank {}", rank.number()),
            Self::Repeats(RouteId(id)) => write!(f, "matches, but route {id} sends the copy to this port"),
            Self::SplitHorizon => {
                f.write_str("matches, but the frame would return to its port or pass from edge to edge")
            }
            Self::PortGone => f.write_str("matches, but its port is not in the network"),
            Self::LowerRank { rank, best } => {
                write!(f, "matches with rank {}, and rank {} wins", rank.number(), best.number())
            }
            Self::Mismatch(mismatch) => write!(f, "does not match: {mismatch}"),
        }
    }
}

impl fmt::Display for Explanation {
    /// The verdict, and a line for each route.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}, from {}: {}", self.source, self.destination, self.from, self.verdict)?;
        for (RouteId(id), route, outcome) in &self.routes {
            write!(f, "\nroute {id} ({route}) {outcome}")?;
        }
        Ok(())
    }
}
