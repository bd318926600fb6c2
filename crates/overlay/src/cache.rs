//! Decisions of the route table that were made before, by the port a frame comes from and its addresses.
//!
//! ```text
//!   set:    │ key │ key │ key │ key │    four keys in one cache line; the hash of a key names its set
//!            decision, decision, …       the place of a key in the array names its decision
//! ```
//!
//! A search looks at one set, so its time is constant, whatever addresses guests choose. A full set gives up the decision that it has had
//! longest. A decision depends on routes and ports alone. Changes of these remove what they affect ([`DecisionCache::retain`]). Where the
//! learned address of a frame leads is not part of a decision: a [`SlotHint`] only shortens the search for it.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::BuildHasher;

use crate::learned::SlotHint;
use crate::mac::{KeyedHash, MacAddr};
use crate::network::DropReason;
use crate::ports::{EdgeId, InterfaceId, Port};
use crate::route::Rank;

/// The number of decisions in a set.
const WAYS: usize = 4;

/// The addresses of a frame and the port it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheKey {
    /// The source address, and the number of the port in the low 16 bits.
    source: u64,
    /// The destination address, and the VLAN and flags in the low 16 bits.
    destination: u64,
}

impl CacheKey {
    const USED: u64 = 1;
    const EDGE: u64 = 2;
    const EMPTY: Self = Self { source: 0, destination: 0 };

    #[inline]
    pub(crate) const fn new(from: Port, source: MacAddr, destination: MacAddr) -> Self {
        let (id, kind) = match from {
            Port::Interface(InterfaceId(id)) => (id, 0),
            Port::Edge(EdgeId(id)) => (id, Self::EDGE),
        };
        Self { source: source.bits() << 16 | id as u64, destination: destination.bits() << 16 | Self::USED | kind }
    }

    /// The key for frames of a VLAN.
    #[inline]
    pub(crate) const fn in_vlan(self, vlan: Option<u16>) -> Self {
        let vlan = match vlan {
            Some(vlan) => vlan as u64,
            None => 0,
        };
        Self { source: self.source, destination: self.destination | vlan << 4 }
    }

    pub(crate) const fn from(self) -> Port {
        let id = self.source as u16;
        if self.destination & Self::EDGE == 0 { Port::Interface(InterfaceId(id)) } else { Port::Edge(EdgeId(id)) }
    }

    pub(crate) const fn source(self) -> MacAddr {
        MacAddr::from_bits(self.source >> 16)
    }

    pub(crate) const fn destination(self) -> MacAddr {
        MacAddr::from_bits(self.destination >> 16)
    }
}

/// The ports that get a copy: one or several, ascending.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PortList {
    One(Port),
    Several(Box<[Port]>),
}

impl PortList {
    /// Returns `None` if there is no port.
    pub(crate) fn new(ports: &[Port]) -> Option<Self> {
        match ports {
            [] => None,
            [port] => Some(Self::One(*port)),
            several => Some(Self::Several(several.into())),
        }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Port] {
        match self {
            Self::One(port) => core::slice::from_ref(port),
            Self::Several(ports) => ports,
        }
    }
}

/// The result of a search of the route table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The winning routes lead to these ports.
    Copies(PortList),
    /// The frame is dropped.
    Drop(DropReason),
    /// No route matches: the frame goes where its destination address was learned, or everywhere.
    ByAddress(SlotHint),
}

/// A decision of the route table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CachedDecision {
    pub(crate) outcome: Outcome,
    /// The rank of the winning routes. `None` if no route matches.
    pub(crate) rank: Option<Rank>,
    /// Whether a winning route leads to a port that the network does not have.
    pub(crate) has_gone_port: bool,
    /// Where the source address stands among the learned ones.
    pub(crate) source_slot: SlotHint,
}

impl CachedDecision {
    /// The entry beside an empty key.
    const fn empty() -> Self {
        let outcome = Outcome::Drop(DropReason::NoRoute);
        Self { outcome, rank: None, has_gone_port: false, source_slot: SlotHint::NONE }
    }
}

/// The keys of one set, in a cache line of their own.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct KeySet([CacheKey; WAYS]);

/// The place of a decision in the cache. Valid until the cache changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheIndex(usize);

/// A cache of fixed size.
pub(crate) struct DecisionCache {
    keys: Vec<KeySet>,
    decisions: Vec<CachedDecision>,
    /// The way of each set that the next insertion replaces when the set is full.
    victims: Vec<u8>,
    /// Makes the sets of chosen addresses unpredictable. A guest that finds addresses of one set nevertheless only makes cache misses.
    seed: [u64; 2],
}

impl DecisionCache {
    /// Makes an empty cache for `entries` decisions, rounded up to a power of two.
    pub(crate) fn new(entries: usize, hash: KeyedHash) -> Self {
        let sets = entries.div_ceil(WAYS).next_power_of_two();
        let mut decisions = Vec::new();
        decisions.resize_with(sets * WAYS, CachedDecision::empty);
        Self {
            keys: alloc::vec![KeySet([CacheKey::EMPTY; WAYS]); sets],
            decisions,
            victims: alloc::vec![0; sets],
            seed: [1_u64, 2].map(|word| hash.hash_one(word) | 1),
        }
    }

    #[inline]
    fn set_of(&self, key: CacheKey) -> usize {
        let [first, second] = self.seed;
        let mixed = u128::from(key.source ^ second).wrapping_mul(u128::from(first));
        let mixed = key.destination ^ (mixed as u64) ^ ((mixed >> 64) as u64);
        let mixed = u128::from(mixed).wrapping_mul(u128::from(second));
        ((mixed as u64) ^ ((mixed >> 64) as u64)) as usize & (self.keys.len() - 1)
    }

    /// Finds the decision for a frame.
    #[inline]
    pub(crate) fn find(&self, key: CacheKey) -> Option<CacheIndex> {
        let set = self.set_of(key);
        let way = self.keys[set].0.iter().position(|known| *known == key)?;
        Some(CacheIndex(set * WAYS + way))
    }

    /// Keeps a decision for frames with a key that has none.
    pub(crate) fn insert(&mut self, key: CacheKey, decision: CachedDecision) -> CacheIndex {
        let set = self.set_of(key);
        let empty = self.keys[set].0.iter().position(|known| *known == CacheKey::EMPTY);
        let way = empty.unwrap_or_else(|| {
            let victim = &mut self.victims[set];
            let way = usize::from(*victim);
            *victim = (*victim + 1) % WAYS as u8;
            way
        });
        self.keys[set].0[way] = key;
        self.decisions[set * WAYS + way] = decision;
        CacheIndex(set * WAYS + way)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: CacheIndex) -> &mut CachedDecision {
        &mut self.decisions[at.0]
    }

    /// Removes the decisions for which `keep` is false. The time is that of one pass over the keys.
    pub(crate) fn retain(&mut self, keep: impl Fn(CacheKey, &CachedDecision) -> bool) {
        let keys = self.keys.iter_mut().flat_map(|set| set.0.iter_mut());
        for (key, decision) in keys.zip(&mut self.decisions) {
            if *key != CacheKey::EMPTY && !keep(*key, decision) {
                *key = CacheKey::EMPTY;
                *decision = CachedDecision::empty();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::EdgeId;
    use alloc::vec::Vec;
    use core::cell::Cell;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
    const B: MacAddr = MacAddr([2, 0xff, 0, 0, 0, 0xb]);
    const I1: Port = Port::Interface(InterfaceId(0x8001));
    const E1: Port = Port::Edge(EdgeId(0x8001));

    fn key(number: u8) -> CacheKey {
        CacheKey::new(I1, MacAddr([2, 0, 0, 0, 0, number]), B)
    }

    fn to(id: u16) -> CachedDecision {
        let outcome = Outcome::Copies(PortList::One(Port::Edge(EdgeId(id))));
        CachedDecision { outcome, rank: None, has_gone_port: false, source_slot: SlotHint::NONE }
    }

    #[test]
    fn keys_differ_by_port_kind_number_and_addresses() {
        let base = CacheKey::new(I1, A, B);
        let others = [
            CacheKey::new(E1, A, B),
            CacheKey::new(Port::Interface(InterfaceId(1)), A, B),
            CacheKey::new(I1, B, B),
            CacheKey::new(I1, A, A),
            base.in_vlan(Some(1)),
            base.in_vlan(Some(0xfff)),
            CacheKey::EMPTY,
        ];
        assert!(others.iter().all(|other| *other != base));
        for from in [I1, E1] {
            let key = CacheKey::new(from, A, B);
            for key in [key, key.in_vlan(Some(0xfff))] {
                assert_eq!((key.from(), key.source(), key.destination()), (from, A, B));
            }
        }
        assert_ne!(CacheKey::new(Port::Interface(InterfaceId(0)), MacAddr([0; 6]), MacAddr([0; 6])), CacheKey::EMPTY);
    }

    #[test]
    fn finds_what_was_inserted() {
        let mut cache = DecisionCache::new(64, KeyedHash::new([1, 2]));
        assert_eq!(cache.find(key(1)), None);
        let at = cache.insert(key(1), to(1));
        assert_eq!(cache.find(key(1)), Some(at));
        assert_eq!(cache.find(key(2)), None);
        assert_eq!(*cache.get_mut(at), to(1));
    }

    #[test]
    fn a_full_set_gives_up_the_oldest() {
        let mut cache = DecisionCache::new(1, KeyedHash::new([1, 2]));
        let known =
            |cache: &DecisionCache| (1..10).filter(|number| cache.find(key(*number)).is_some()).collect::<Vec<_>>();
        for number in 1..=4 {
            cache.insert(key(number), to(u16::from(number)));
        }
        assert_eq!(known(&cache), [1, 2, 3, 4]);
        for (number, expected) in
            [(5, [2, 3, 4, 5]), (6, [3, 4, 5, 6]), (7, [4, 5, 6, 7]), (8, [5, 6, 7, 8]), (9, [6, 7, 8, 9])]
        {
            let at = cache.insert(key(number), to(u16::from(number)));
            assert_eq!(known(&cache), expected);
            assert_eq!(*cache.get_mut(at), to(u16::from(number)));
        }
    }

    #[test]
    fn retain_removes_what_it_is_asked_to() {
        let mut cache = DecisionCache::new(64, KeyedHash::new([1, 2]));
        for number in 1..=8 {
            cache.insert(key(number), to(u16::from(number)));
        }
        let asked = Cell::new(0);
        cache.retain(|known, decision| {
            asked.set(asked.get() + 1);
            known != key(3) && *decision != to(5)
        });
        assert_eq!(asked.get(), 8, "empty places are passed over");
        let left: Vec<_> = (1..=8).filter(|number| cache.find(key(*number)).is_some()).collect();
        assert_eq!(left, [1, 2, 4, 6, 7, 8]);
        let empty = cache.decisions.iter().filter(|decision| **decision == CachedDecision::empty());
        assert_eq!(empty.count(), 64 - 6);
    }

    #[test]
    fn sizes_are_rounded_up_to_a_power_of_two() {
        for (entries, places) in [(0, 4), (1, 4), (5, 8), (4096, 4096), (4097, 8192)] {
            assert_eq!(DecisionCache::new(entries, KeyedHash::new([1, 2])).decisions.len(), places);
        }
    }

    #[test]
    fn keys_spread_over_the_sets() {
        let cache = DecisionCache::new(4096, KeyedHash::new([1, 2]));
        let mut counts = alloc::vec![0; 1024];
        for number in 0..4096_u32 {
            let [_, _, high, low] = number.to_be_bytes();
            let destination = MacAddr([2, 0, 0, 0, high, low]);
            counts[cache.set_of(CacheKey::new(I1, A, destination))] += 1;
        }
        let most = counts.iter().max().unwrap();
        assert!(*most <= 20, "{most} of 4096 keys in one of 1024 sets");
    }

    #[test]
    fn lists_have_one_or_several_ports() {
        assert_eq!(PortList::new(&[]), None);
        assert_eq!(PortList::new(&[I1]).unwrap().as_slice(), [I1]);
        assert_eq!(PortList::new(&[I1, E1]).unwrap().as_slice(), [I1, E1]);
    }
}
