//! The queue of posted receives. Each has a match info and a mask. The oldest receive that accepts an arriving message
//! gets it.
//!
//! ```text
//!   order    first ─ 1 ─ 2 ─ 3 ─ … ─ last            always
//!   groups   mask ffff…: tag 7: 1 ─ 4, tag 9: 3      from the first long search on, until few are left
//!            mask 00ff…: tag 5: 2                    a message looks once in each and takes the oldest of what it finds
//! ```
//!
//! Programs use few different masks, so a search costs a few hashes however many receives wait. As in
//! [`MatchQueue`](crate::match_queue::MatchQueue), the groups are built only once a search has gone past the oldest few receives.

use crate::filter::Filter;
use crate::hash::Seed;
use crate::key_index::KeyIndex;
use crate::list_arena::{ListArena, ListEnds};
use crate::match_queue::{INDEX_LEN_MIN, SCAN_MAX};
use crate::slab::Slot;
use alloc::vec::Vec;

/// The filter of a receive, and its position in the order of posts.
#[derive(Clone, Copy, Debug)]
struct PostedEntry {
    filter: Filter,
    post_order: u64,
}

impl Default for PostedEntry {
    fn default() -> Self {
        Self { filter: Filter::ANY, post_order: 0 }
    }
}

/// The receives with one mask, by their match info.
#[derive(Debug)]
struct MaskGroup {
    mask: u64,
    key_index: KeyIndex,
}

/// The posted receives.
#[derive(Debug)]
pub(crate) struct PostedQueue {
    order: ListArena<PostedEntry>,
    ends: ListEnds,
    len: usize,
    /// Empty groups are kept, because their mask is likely to be used again.
    groups: Vec<MaskGroup>,
    key_links: ListArena<()>,
    /// The groups index all receives of `order`. Otherwise they are empty.
    indexed: bool,
    seed: Seed,
}

impl PostedQueue {
    pub(crate) const fn new(seed: Seed) -> Self {
        Self {
            order: ListArena::new(),
            ends: ListEnds { first: None, last: None },
            len: 0,
            groups: Vec::new(),
            key_links: ListArena::new(),
            indexed: false,
            seed,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the oldest receive.
    pub(crate) const fn front(&self) -> Option<Slot> {
        self.ends.first
    }

    /// Appends a receive. `post_order` is higher than that of all receives before.
    #[inline(always)]
    pub(crate) fn push(&mut self, slot: Slot, filter: Filter, post_order: u64) {
        self.order.push(&mut self.ends, slot, PostedEntry { filter, post_order });
        self.len += 1;
        if self.indexed {
            self.index(slot);
        }
    }

    /// Removes a posted receive.
    #[inline(always)]
    pub(crate) fn remove(&mut self, slot: Slot) {
        self.order.remove(&mut self.ends, slot);
        self.len -= 1;
        if self.indexed {
            self.remove_from_index(slot);
        }
    }

    /// Returns the oldest receive that accepts this message.
    #[inline(always)]
    pub(crate) fn first(&mut self, match_info: u64) -> Option<Slot> {
        let first = self.ends.first?;
        let filter = self.order.node(first).value.filter;
        if filter.accepts(match_info) { Some(first) } else { self.search(match_info) }
    }

    /// Searches beyond the oldest receives. A separate function, so that the common case stays small.
    #[inline(never)]
    fn search(&mut self, match_info: u64) -> Option<Slot> {
        if self.indexed {
            return self.find_in_groups(match_info);
        }
        let mut steps = 0;
        let mut next = self.ends.first;
        while let Some(slot) = next {
            if steps == SCAN_MAX {
                self.build_index();
                return self.find_in_groups(match_info);
            }
            let node = self.order.node(slot);
            if node.value.filter.accepts(match_info) {
                return Some(slot);
            }
            (next, steps) = (node.next, steps + 1);
        }
        None
    }

    fn find_in_groups(&self, match_info: u64) -> Option<Slot> {
        let found = self.groups.iter().filter_map(|group| group.key_index.first(match_info & group.mask));
        found.min_by_key(|slot| self.order.node(*slot).value.post_order)
    }

    #[inline(never)]
    fn index(&mut self, slot: Slot) {
        let filter = self.order.node(slot).value.filter;
        let at = self.group(filter.mask());
        self.groups[at].key_index.push(&mut self.key_links, filter.match_info(), slot);
    }

    #[inline(never)]
    fn remove_from_index(&mut self, slot: Slot) {
        self.remove_from_group(slot);
        if self.len <= INDEX_LEN_MIN {
            self.drop_index();
        }
    }

    fn remove_from_group(&mut self, slot: Slot) {
        let filter = self.order.node(slot).value.filter;
        let at = self.group(filter.mask());
        self.groups[at].key_index.remove(&mut self.key_links, filter.match_info(), slot);
    }

    /// Returns the group of a mask: the existing one, an empty one, or a new one.
    fn group(&mut self, mask: u64) -> usize {
        if let Some(at) = self.groups.iter().position(|group| group.mask == mask) {
            return at;
        }
        if let Some(at) = self.groups.iter().position(|group| group.key_index.is_empty()) {
            self.groups[at].mask = mask;
            return at;
        }
        self.groups.push(MaskGroup { mask, key_index: KeyIndex::new(self.seed) });
        self.groups.len() - 1
    }

    #[cold]
    fn build_index(&mut self) {
        let mut next = self.ends.first;
        while let Some(slot) = next {
            self.index(slot);
            next = self.order.node(slot).next;
        }
        self.indexed = true;
    }

    #[cold]
    fn drop_index(&mut self) {
        let mut next = self.ends.first;
        while let Some(slot) = next {
            self.remove_from_group(slot);
            next = self.order.node(slot).next;
        }
        self.groups.truncate(SCAN_MAX); // A program that used many masks earlier does not pay for them forever.
        self.indexed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    #[test]
    fn builds_groups_on_a_long_search_and_empties_them_when_few_are_left() {
        let (mut slab, mut posted) = (Slab::new(), PostedQueue::new(Seed::new(1)));
        let slots: Vec<Slot> = (0..64).map(|_| slab.insert(()).unwrap().slot()).collect();
        for round in 0..2 {
            for (number, slot) in (0..).zip(&slots) {
                let mask = u64::MAX << (number % 32);
                posted.push(*slot, Filter::new(1 << 40, mask).unwrap(), 64 * round + number);
            }
            assert_eq!(posted.first(1 << 40 | 0x3f), Some(slots[6]));
            assert!(!posted.indexed, "nothing was far");
            assert_eq!(posted.first(1 << 40 | 1 << 20), Some(slots[21]), "the oldest of those in 22 groups");
            assert!(posted.indexed && posted.groups.len() == 32);
            slots[INDEX_LEN_MIN..].iter().rev().for_each(|slot| posted.remove(*slot));
            assert!(!posted.indexed && posted.groups.iter().all(|group| group.key_index.is_empty()));
            assert_eq!(posted.groups.len(), SCAN_MAX);
            slots[..INDEX_LEN_MIN].iter().for_each(|slot| posted.remove(*slot));
            assert_eq!((posted.len(), posted.front()), (0, None));
        }
    }
}
