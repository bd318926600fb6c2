//! The routes of a network, indexed for the search by addresses.
//!
//! ```text
//!   bucket of (source, destination)   rank 8            ┐
//!   bucket of (source, ·)             ranks 7, 6 and 4  │ each sorted by rank, highest first, then by number
//!   bucket of (·, destination)        ranks 7 and 6     │
//!   bucket of (·, ·)                  ranks 5 and 3     ┘
//! ```
//!
//! A route stands in the bucket of its exact addresses. A search looks into four buckets at most, however many routes there are.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::hash::{Hash, Hasher};

use super::{MacPattern, Rank, Route, RouteId};
use crate::mac::{KeyedHash, MacAddr, MacMap};
use crate::ports::Port;

/// The number of routes that a network can have.
pub const ROUTES_MAX: usize = 10_000;

/// The reason why a route is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The network has [`ROUTES_MAX`] routes, or the new table has more.
    #[error("a network can have {ROUTES_MAX} routes at most")]
    TableFull,
    /// Every number has been used.
    #[error("no route number is left")]
    NumbersExhausted,
}

/// The routes of a network.
pub(crate) struct RouteTable {
    routes: BTreeMap<RouteId, Route>,
    /// A map for each kind of bucket. A search hashes nothing for a kind that no route has.
    buckets: [MacMap<BucketKey, Vec<BucketEntry>>; 4],
    /// The number of the last route that was added.
    last_id: u32,
}

/// The exact addresses of a route.
#[derive(Clone, Copy, PartialEq, Eq)]
struct BucketKey {
    source: Option<MacAddr>,
    destination: Option<MacAddr>,
}

impl BucketKey {
    const fn of(route: &Route) -> Self {
        const fn exact(pattern: MacPattern) -> Option<MacAddr> {
            if let MacPattern::Exact(mac) = pattern { Some(mac) } else { None }
        }
        Self { source: exact(route.source), destination: exact(route.destination) }
    }
}

impl BucketKey {
    /// The map of this bucket.
    const fn kind(self) -> usize {
        (self.source.is_some() as usize) << 1 | self.destination.is_some() as usize
    }
}

impl Hash for BucketKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for mac in [self.source, self.destination] {
            state.write_u64(mac.map_or(u64::MAX, MacAddr::bits));
        }
    }
}

struct BucketEntry {
    rank: Rank,
    id: RouteId,
    route: Route,
}

impl BucketEntry {
    const fn order(&self) -> (Reverse<Rank>, RouteId) {
        (Reverse(self.rank), self.id)
    }
}

impl RouteTable {
    pub(crate) fn new(hash: KeyedHash) -> Self {
        Self { routes: BTreeMap::new(), buckets: core::array::from_fn(|_| MacMap::with_hasher(hash)), last_id: 0 }
    }

    pub(crate) fn add(&mut self, route: Route) -> Result<RouteId, RouteError> {
        if self.routes.len() >= ROUTES_MAX {
            return Err(RouteError::TableFull);
        }
        self.last_id = self.last_id.checked_add(1).ok_or(RouteError::NumbersExhausted)?;
        let id = RouteId(self.last_id);
        self.routes.insert(id, route);
        // A route without rank never matches, so no search has to find it.
        if let Some(rank) = route.rank() {
            let entry = BucketEntry { rank, id, route };
            let key = BucketKey::of(&route);
            let bucket = self.buckets[key.kind()].entry(key).or_default();
            let at = bucket.partition_point(|other| other.order() < entry.order());
            bucket.insert(at, entry);
        }
        Ok(id)
    }

    pub(crate) fn remove(&mut self, id: RouteId) -> Option<Route> {
        let route = self.routes.remove(&id)?;
        if let Some(rank) = route.rank() {
            let key = BucketKey::of(&route);
            let buckets = &mut self.buckets[key.kind()];
            let bucket = buckets.get_mut(&key).expect("a route with a rank stands in its bucket");
            let at = bucket.binary_search_by_key(&(Reverse(rank), id), BucketEntry::order);
            bucket.remove(at.expect("the bucket of a route has it, sorted by rank and number"));
            if bucket.is_empty() {
                buckets.remove(&key);
            }
        }
        Some(route)
    }

    /// Removes routes, each once, and adds others. Routes that the table does not have are passed over. Changes nothing if the added ones are
    /// refused.
    pub(crate) fn change(&mut self, removed: &[Route], added: &[Route]) -> Result<Vec<RouteId>, RouteError> {
        if (self.routes.len() + added.len()).saturating_sub(removed.len()) > ROUTES_MAX {
            return Err(RouteError::TableFull);
        }
        let count = u32::try_from(added.len()).map_err(|_| RouteError::TableFull)?;
        self.last_id.checked_add(count).ok_or(RouteError::NumbersExhausted)?;
        for route in removed {
            if let Some(id) = self.find_id(route) {
                self.remove(id);
            }
        }
        added.iter().map(|route| self.add(*route)).collect()
    }

    /// The number of a route; the first one if there are several like it.
    fn find_id(&self, route: &Route) -> Option<RouteId> {
        let key = BucketKey::of(route);
        match route.rank() {
            Some(_) => {
                self.buckets[key.kind()].get(&key)?.iter().find(|entry| entry.route == *route).map(|entry| entry.id)
            }
            None => self.routes.iter().find(|(_, other)| *other == route).map(|(id, _)| *id),
        }
    }

    /// The routes in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RouteId, Route)> {
        self.routes.iter().map(|(id, route)| (*id, *route))
    }

    /// Collects the ports of all routes of the highest rank that match. Returns that rank; `None` if no route matches.
    pub(crate) fn find(
        &self,
        from: Port,
        source: MacAddr,
        destination: MacAddr,
        ports: &mut Vec<Port>,
    ) -> Option<Rank> {
        let (source_key, destination_key) = (Some(source), Some(destination));
        let keys = [(source_key, destination_key), (source_key, None), (None, destination_key), (None, None)];
        let mut best = None;
        ports.clear();
        for (source_key, destination_key) in keys {
            let key = BucketKey { source: source_key, destination: destination_key };
            for entry in self.buckets[key.kind()].get(&key).into_iter().flatten() {
                if Some(entry.rank) < best {
                    break;
                }
                if entry.route.check(from, source, destination).is_ok() {
                    if Some(entry.rank) > best {
                        best = Some(entry.rank);
                        ports.clear();
                    }
                    ports.push(entry.route.to);
                }
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{EdgeId, InterfaceId};
    use crate::route::RouteSource;
    use MacPattern::{Any, Exact, None as Never, Not};
    use alloc::vec;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
    const C: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xc]);
    const FROM: Port = Port::Interface(InterfaceId(1));

    fn edge(id: u16) -> Port {
        Port::Edge(EdgeId(id))
    }

    fn route(source: MacPattern, destination: MacPattern, to: u16) -> Route {
        Route { source, destination, from: RouteSource::Any, to: edge(to) }
    }

    fn table() -> RouteTable {
        RouteTable::new(KeyedHash::new([1, 2]))
    }

    /// The rank and the ports for the frame from A to B.
    fn find(table: &RouteTable) -> (Option<u8>, Vec<Port>) {
        let mut ports = vec![edge(99)];
        let rank = table.find(FROM, A, B, &mut ports);
        (rank.map(Rank::number), ports)
    }

    #[test]
    fn finds_the_highest_rank_in_every_bucket() {
        let mut table = table();
        assert_eq!(find(&table), (None, vec![]));
        let steps = [
            (Any, Any, 3),
            (Exact(A), Never, 4),
            (Not(C), Any, 5),
            (Any, Exact(B), 6),
            (Exact(A), Not(C), 7),
            (Exact(A), Exact(B), 8),
        ];
        let mut ids = vec![];
        for (source, destination, rank) in steps {
            ids.push(table.add(route(source, destination, u16::from(rank))).unwrap());
            assert_eq!(find(&table), (Some(rank), vec![edge(u16::from(rank))]));
        }
        for (id, (_, _, rank)) in ids.into_iter().zip(steps).rev() {
            assert_eq!(find(&table), (Some(rank), vec![edge(u16::from(rank))]));
            table.remove(id);
        }
        assert_eq!(find(&table), (None, vec![]));
        assert!(table.buckets.iter().all(MacMap::is_empty));
    }

    #[test]
    fn collects_all_routes_of_the_highest_rank_across_buckets() {
        let mut table = table();
        for (source, destination, to) in [
            (Any, Exact(B), 1),
            (Exact(A), Any, 2),
            (Any, Any, 3),
            (Exact(A), Any, 4),
            (Exact(A), Never, 5),
            (Any, Exact(C), 6),
        ] {
            table.add(route(source, destination, to)).unwrap();
        }
        assert_eq!(find(&table), (Some(6), vec![edge(2), edge(4), edge(1)]));
    }

    #[test]
    fn skips_routes_of_a_higher_rank_that_do_not_match() {
        let mut table = table();
        table.add(Route { from: RouteSource::AnyEdge, ..route(Exact(A), Exact(B), 1) }).unwrap();
        table.add(route(Exact(A), Not(B), 2)).unwrap();
        table.add(route(Exact(A), Any, 3)).unwrap();
        assert_eq!(find(&table), (Some(6), vec![edge(3)]));
    }

    #[test]
    fn numbers_from_one_and_never_again() {
        let mut table = table();
        assert_eq!(table.add(route(Any, Any, 1)), Ok(RouteId(1)));
        assert_eq!(table.add(route(Never, Never, 2)), Ok(RouteId(2)));
        assert_eq!(table.remove(RouteId(2)), Some(route(Never, Never, 2)));
        assert_eq!(table.remove(RouteId(2)), None);
        assert_eq!(table.add(route(Any, Any, 3)), Ok(RouteId(3)));
        let before: Vec<_> = table.iter().map(|(_, route)| route).collect();
        let added = [route(Any, Any, 4), route(Not(A), Not(A), 5)];
        assert_eq!(table.change(&before, &added), Ok(vec![RouteId(4), RouteId(5)]));
        assert!(table.iter().eq([(RouteId(4), route(Any, Any, 4)), (RouteId(5), route(Not(A), Not(A), 5))]));
        assert_eq!(find(&table), (Some(3), vec![edge(4)]));
    }

    #[test]
    fn a_change_touches_one_of_equal_routes_and_no_other() {
        let mut table = table();
        let (same, never) = (route(Any, Exact(B), 1), route(Never, Never, 2));
        table.change(&[], &[same, never, same, route(Any, Any, 3)]).unwrap();
        assert_eq!(table.change(&[same, never, route(Any, Any, 9)], &[route(Any, Any, 4)]), Ok(vec![RouteId(5)]));
        let expected = [(3, same), (4, route(Any, Any, 3)), (5, route(Any, Any, 4))];
        assert!(table.iter().eq(expected.map(|(id, route)| (RouteId(id), route))));
        assert_eq!(find(&table), (Some(6), vec![edge(1)]));
    }

    #[test]
    fn refuses_routes_beyond_the_maximum_and_keeps_the_table() {
        let mut table = table();
        let many = vec![route(Any, Any, 1); ROUTES_MAX + 1];
        table.add(route(Any, Any, 7)).unwrap();
        let before = [route(Any, Any, 7)];
        assert_eq!(table.change(&before, &many), Err(RouteError::TableFull));
        assert_eq!(find(&table), (Some(3), vec![edge(7)]));
        assert_eq!(table.change(&before, &many[1..]).map(|ids| ids.len()), Ok(ROUTES_MAX));
        assert_eq!(table.add(many[0]), Err(RouteError::TableFull));
    }

    #[test]
    fn refuses_routes_when_the_numbers_are_used_up() {
        let mut table = table();
        table.last_id = u32::MAX - 2;
        assert_eq!(table.change(&[], &[route(Any, Any, 1); 3]), Err(RouteError::NumbersExhausted));
        assert_eq!(table.change(&[], &[route(Any, Any, 1); 2]).map(|ids| ids[1]), Ok(RouteId(u32::MAX)));
        assert_eq!(table.add(route(Any, Any, 2)), Err(RouteError::NumbersExhausted));
        assert_eq!(table.iter().count(), 2);
    }
}
