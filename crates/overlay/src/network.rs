//! One overlay network on this host: its ports, its routes and what was learned.
//!
//! ```text
//!   forward ─► cached decision? ─ no ─► search of the route table, kept in the cache
//!                  │
//!                  ├─ source: learned, or refused as a loop
//!                  └─ routes match ─► their ports
//!                     no route ─────► the learned port of the destination, else all ports; dropped without learning
//! ```
//!
//! Split horizon ([`Port::may_forward`]) holds for every copy. A frame has at most one copy for each port. Addresses are learned in each VLAN.

mod circulation;
mod decision;
mod options;
mod reports;
mod sources;
#[cfg(test)]
mod tests;

pub use circulation::REPEATS_MAX;
pub use decision::{Counters, Decision, DropReason};
pub use options::{Millis, NetworkOptions};
pub(crate) use reports::Reports;
pub use reports::{REPORTS_MAX, Report};

use alloc::vec::Vec;
use core::fmt;

use circulation::{Circulation, Repeats};
use sources::SourceLimits;

use crate::cache::{CacheIndex, CacheKey, CachedDecision, DecisionCache, Outcome, PortList};
use crate::frame::FrameHeader;
use crate::learned::{LearnedAddresses, SlotHint, Station};
use crate::mac::{KeyedHash, MacAddr};
use crate::ports::{Port, PortSet};
use crate::route::table::{RouteError, RouteTable};
use crate::route::{Route, RouteId};

/// The number of changed routes that cached decisions are compared with. Beyond it, a change takes less time with an empty cache.
const CHECKED_ROUTES_MAX: usize = 64;

/// An overlay network.
pub struct Network {
    pub(crate) ports: PortSet,
    routes: RouteTable,
    cache: DecisionCache,
    pub(crate) learned: LearnedAddresses,
    pub(crate) learning: bool,
    /// The latest time that was passed in. Time does not go backwards.
    pub(crate) now: Millis,
    counters: Counters,
    reports: Reports,
    /// None without protection against loops.
    circulation: Option<Circulation>,
    pub(crate) sources: SourceLimits,
    /// Ports of the frame at hand, in memory that is used again.
    scratch: Vec<Port>,
}

impl Network {
    /// Makes a network without ports and routes.
    pub fn new(options: NetworkOptions) -> Self {
        let hash = KeyedHash::new(options.hash_key);
        Self {
            ports: PortSet::default(),
            routes: RouteTable::new(hash),
            cache: DecisionCache::new(options.cache_entries, hash),
            learned: LearnedAddresses::new(hash, options.learned_max, options.learned_age, options.loop_protection),
            learning: options.learning,
            now: Millis(0),
            counters: Counters::default(),
            reports: Reports::default(),
            circulation: options.loop_protection.then(|| Circulation::new(hash)),
            sources: SourceLimits::default(),
            scratch: Vec::new(),
        }
    }

    /// Adds a port. Returns false if the network has it already.
    pub fn add_port(&mut self, port: Port) -> bool {
        let is_new = self.ports.insert(port);
        if is_new {
            self.scratch.reserve(self.ports.as_slice().len());
            self.cache.retain(|_, decision| !decision.has_gone_port);
        }
        is_new
    }

    /// Removes a port, and forgets the addresses that were learned there. Routes to it stay; frames for it are dropped as
    /// [`DropReason::PortGone`]. Returns false if the network does not have the port.
    pub fn remove_port(&mut self, port: Port) -> bool {
        let was_there = self.ports.remove(port);
        if was_there {
            self.learned.forget_port(port);
            self.sources.remove(port);
            self.cache.retain(|key, decision| {
                let is_affected = match &decision.outcome {
                    Outcome::Copies(ports) => ports.as_slice().contains(&port),
                    Outcome::Drop(reason) => *reason == DropReason::SplitHorizon,
                    Outcome::ByAddress(_) => false,
                };
                key.from() != port && !is_affected
            });
        }
        was_there
    }

    /// Lets frames of a port have these source addresses only. Others are dropped as [`DropReason::ForeignSource`].
    pub fn limit_sources(&mut self, port: Port, allowed: &[MacAddr]) {
        self.sources.set(port, allowed);
    }

    /// The ports of this network, ascending.
    pub fn ports(&self) -> &[Port] {
        self.ports.as_slice()
    }

    /// Adds a route, also one to a port that is not there.
    pub fn add_route(&mut self, route: Route) -> Result<RouteId, RouteError> {
        let id = self.routes.add(route)?;
        self.cache.retain(|key, decision| !is_affected(&route, key, decision));
        Ok(id)
    }

    /// Removes a route. Returns `None` if no route has this number.
    pub fn remove_route(&mut self, id: RouteId) -> Option<Route> {
        let route = self.routes.remove(id)?;
        self.cache.retain(|key, decision| !is_affected(&route, key, decision));
        Some(route)
    }

    /// Removes routes, each once, and adds others, with new numbers in the order of `added`. If they are refused, nothing changes. Cached
    /// decisions that no changed route concerns stay.
    pub fn change_routes(&mut self, removed: &[Route], added: &[Route]) -> Result<Vec<RouteId>, RouteError> {
        let ids = self.routes.change(removed, added)?;
        let count = removed.len() + added.len();
        self.cache.retain(|key, decision| {
            count <= CHECKED_ROUTES_MAX && !removed.iter().chain(added).any(|route| is_affected(route, key, decision))
        });
        Ok(ids)
    }

    /// The routes in the order of their numbers, oldest first.
    pub fn routes(&self) -> impl Iterator<Item = (RouteId, Route)> {
        self.routes.iter()
    }

    /// The learned addresses with the port and the time since each was seen, those not seen for longest first.
    pub fn learned(&self, now: Millis) -> impl Iterator<Item = (Station, Port, Millis)> {
        self.learned.iter(now.max(self.now))
    }

    /// Counts of frames and addresses since the network was made.
    pub fn counters(&self) -> Counters {
        Counters { addresses: self.learned.counts(), reports_lost: self.reports.lost(), ..self.counters }
    }

    /// Takes the oldest of the reports that wait.
    pub fn take_report(&mut self) -> Option<Report> {
        self.reports.take()
    }

    /// Decides which ports get a copy of a frame that came by `from`.
    ///
    /// Allocates nothing if the cache has the decision.
    #[inline]
    pub fn forward(&mut self, now: Millis, from: Port, frame: &FrameHeader) -> Decision<'_> {
        self.forward_unless_circulating(now, from, frame, &[])
    }

    /// [`Network::forward`] for a frame of an interface, which is dropped if the whole frame shows that it circulates through a bridge.
    #[inline]
    pub fn forward_unless_circulating(
        &mut self,
        now: Millis,
        from: Port,
        frame: &FrameHeader,
        content: &[u8],
    ) -> Decision<'_> {
        self.now = self.now.max(now);
        // The limit precedes all tables, so invented addresses displace nothing.
        if !self.sources.allows(from, frame.source) {
            self.sources.report(self.now, from, frame.source, &mut self.reports);
            return self.counters.refuse(DropReason::ForeignSource);
        }
        let key = CacheKey::new(from, frame.source, frame.destination).in_vlan(frame.vlan);
        let at = match self.cache.find(key) {
            Some(at) => at,
            None if self.ports.contains(from) => self.decide(key),
            None => return self.counters.refuse(DropReason::UnknownPort),
        };
        let decision = self.cache.get_mut(at);
        if self.learning && frame.source.is_station() {
            let hint = &mut decision.source_slot;
            if let Err(reason) = self.learned.note(self.now, from, frame.sender(), hint, &mut self.reports) {
                return self.counters.refuse(reason);
            }
        }
        let mut circulates = || {
            // A bridge would send back frames of others, which a limited port may not bring.
            let known = self.circulation.as_mut().filter(|_| !content.is_empty() && !self.sources.limits(from));
            let repeats = known.map_or(Repeats::Few, |known| known.note(self.now, content));
            if repeats == Repeats::TooMany {
                self.reports.push(Report::Circulating { mac: frame.source, port: from });
            }
            repeats != Repeats::Few
        };
        match &mut decision.outcome {
            Outcome::Copies(ports) if ports.as_slice().len() > 1 && circulates() => {
                self.counters.refuse(DropReason::Loop)
            }
            Outcome::Copies(ports) => self.counters.routed(ports.as_slice()),
            Outcome::Drop(reason) => self.counters.refuse(*reason),
            Outcome::ByAddress(hint) => {
                let place = self.learned.locate(self.now, frame.receiver(), hint);
                self.scratch.clear();
                match place {
                    Some(to) => self.scratch.extend(Some(to).filter(|to| from.may_forward(*to))),
                    None if circulates() => return self.counters.refuse(DropReason::Loop),
                    None => self.scratch.extend(self.ports.flood(from)),
                }
                self.counters.by_address(place.is_some(), &self.scratch)
            }
        }
    }

    /// Searches the route table, and keeps what it says in the cache.
    #[inline(never)]
    fn decide(&mut self, key: CacheKey) -> CacheIndex {
        self.counters.cache_misses += 1;
        let from = key.from();
        let rank = self.routes.find(from, key.source(), key.destination(), &mut self.scratch);
        let (outcome, has_gone_port) = match rank {
            None if self.learning => (Outcome::ByAddress(SlotHint::NONE), false),
            None => (Outcome::Drop(DropReason::NoRoute), false),
            Some(_) => self.copies(from),
        };
        self.cache.insert(key, CachedDecision { outcome, rank, has_gone_port, source_slot: SlotHint::NONE })
    }

    /// Turns the ports of the winning routes into the ports that get a copy. Also says whether one of the former is not there.
    fn copies(&mut self, from: Port) -> (Outcome, bool) {
        self.scratch.sort_unstable();
        self.scratch.dedup();
        let targets = self.scratch.len();
        self.scratch.retain(|port| self.ports.contains(*port));
        let has_gone_port = self.scratch.len() < targets;
        self.scratch.retain(|port| from.may_forward(*port));
        let nowhere = if has_gone_port { DropReason::PortGone } else { DropReason::SplitHorizon };
        (PortList::new(&self.scratch).map_or(Outcome::Drop(nowhere), Outcome::Copies), has_gone_port)
    }
}

/// Shows what is in the network, not its tables.
impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("ports", &self.ports())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Whether a decision changes when this route is added or removed: the route matches, and no route of a higher rank wins.
fn is_affected(route: &Route, key: CacheKey, decision: &CachedDecision) -> bool {
    route.check(key.from(), key.source(), key.destination()).is_ok_and(|rank| Some(rank) >= decision.rank)
}
