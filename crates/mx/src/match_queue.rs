//! A queue that is searched for the oldest entry with a match info: unexpected messages, and completed requests.
//!
//! ```text
//!   order   first ─ a:7 ─ b:3 ─ c:7 ─ d:7 ─ e:3 ─ … ─ last      always
//!   index   7: a ─ c ─ d   3: b ─ e   …                         from the first long search on, until the queue is short again
//! ```
//!
//! The wanted entry is nearly always among the oldest few. Only a search that goes past them builds an index by match
//! info, which then serves all searches without wildcards. A program that takes entries in order never pays for a hash.
//! A wildcard walks the queue.

use crate::filter::Filter;
use crate::hash::Seed;
use crate::key_index::KeyIndex;
use crate::list_arena::{ListArena, ListEnds};
use crate::slab::Slot;

/// The number of entries that a search compares before it builds the index.
pub(crate) const SCAN_MAX: usize = 8;

/// The length at which a queue drops its index.
pub(crate) const INDEX_LEN_MIN: usize = 2;

/// The queue.
#[derive(Debug)]
pub(crate) struct MatchQueue {
    order: ListArena<u64>,
    ends: ListEnds,
    len: usize,
    key_index: KeyIndex,
    key_links: ListArena<()>,
    /// `key_index` indexes all entries of the queue. Otherwise it is empty.
    indexed: bool,
}

impl MatchQueue {
    pub(crate) const fn new(seed: Seed) -> Self {
        Self {
            order: ListArena::new(),
            ends: ListEnds { first: None, last: None },
            len: 0,
            key_index: KeyIndex::new(seed),
            key_links: ListArena::new(),
            indexed: false,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the oldest entry.
    #[inline]
    pub(crate) const fn front(&self) -> Option<Slot> {
        self.ends.first
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, slot: Slot, match_info: u64) {
        self.order.push(&mut self.ends, slot, match_info);
        self.len += 1;
        if self.indexed {
            self.key_index.push(&mut self.key_links, match_info, slot);
        }
    }

    /// Removes a slot that is in the queue.
    #[inline(always)]
    pub(crate) fn remove(&mut self, slot: Slot) {
        self.order.remove(&mut self.ends, slot);
        self.len -= 1;
        if self.indexed {
            self.remove_from_index(slot);
        }
    }

    /// Returns the oldest entry that a filter accepts.
    #[inline]
    pub(crate) fn first(&mut self, filter: Filter) -> Option<Slot> {
        let first = self.ends.first?;
        if filter.accepts(self.order.node(first).value) { Some(first) } else { self.search(filter) }
    }

    /// Searches beyond the oldest entries. A separate function, so that the common case stays small.
    #[inline(never)]
    fn search(&mut self, filter: Filter) -> Option<Slot> {
        let by_hash = filter.is_exact();
        if by_hash && self.indexed {
            return self.key_index.first(filter.match_info());
        }
        let mut steps = 0;
        let mut next = self.ends.first;
        while let Some(slot) = next {
            if by_hash && steps == SCAN_MAX {
                self.build_index();
                return self.key_index.first(filter.match_info());
            }
            let node = self.order.node(slot);
            if filter.accepts(node.value) {
                return Some(slot);
            }
            (next, steps) = (node.next, steps + 1);
        }
        None
    }

    #[inline(never)]
    fn remove_from_index(&mut self, slot: Slot) {
        self.key_index.remove(&mut self.key_links, self.order.node(slot).value, slot);
        if self.len <= INDEX_LEN_MIN {
            self.drop_index();
        }
    }

    #[cold]
    fn build_index(&mut self) {
        for slot in self.order.iter(self.ends) {
            self.key_index.push(&mut self.key_links, self.order.node(slot).value, slot);
        }
        self.indexed = true;
    }

    #[cold]
    fn drop_index(&mut self) {
        for slot in self.order.iter(self.ends) {
            self.key_index.remove(&mut self.key_links, self.order.node(slot).value, slot);
        }
        self.indexed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    #[test]
    fn builds_the_index_on_a_long_search_and_drops_it_when_the_queue_is_short() {
        let (mut slab, mut queue) = (Slab::new(), MatchQueue::new(Seed::new(1)));
        let slots: Vec<Slot> = (0..50).map(|_| slab.insert(()).unwrap().slot()).collect();
        for round in 0..2 {
            (0..).zip(&slots).for_each(|(number, slot)| queue.push(*slot, number));
            assert_eq!(queue.first(Filter::exactly(SCAN_MAX as u64 - 1)), Some(slots[SCAN_MAX - 1]));
            assert_eq!(queue.first(Filter::ANY), Some(slots[0]));
            assert!(!queue.indexed, "round {round}: nothing was far");
            assert_eq!(queue.first(Filter::exactly(40)), Some(slots[40]));
            assert!(queue.indexed);
            slots[INDEX_LEN_MIN..].iter().rev().for_each(|slot| queue.remove(*slot));
            assert!(!queue.indexed && queue.key_index.is_empty());
            slots[..INDEX_LEN_MIN].iter().for_each(|slot| queue.remove(*slot));
            assert_eq!((queue.len(), queue.front()), (0, None));
        }
    }
}
