//! A queue in which one looks for the oldest with a certain match info: unexpected messages, and requests that are over.
//!
//! ```text
//!   order   first ─ a:7 ─ b:3 ─ c:7 ─ d:7 ─ e:3 ─ … ─ last      always
//!   equals  7: a ─ c ─ d   3: b ─ e   …                         from the first long search on, until the queue is short again
//! ```
//!
//! What is wanted is nearly always among the oldest few. Only a search that did not find it there makes lists of equal match
//! infos, which then serve searches without wildcards however long the queue is. A program that takes things in order never pays
//! for a hash. A wildcard walks.

use crate::equals::Equals;
use crate::filter::Filter;
use crate::hash::Seed;
use crate::links::{Ends, Links};
use crate::slab::Slot;

/// How many are looked at one by one before anything is hashed.
pub(crate) const WALK_MAX: usize = 8;

/// Lists by key are given up when a queue becomes as short as this.
pub(crate) const SHORT: usize = 2;

/// The queue.
#[derive(Debug)]
pub(crate) struct Line {
    order: Links<u64>,
    ends: Ends,
    len: usize,
    equals: Equals,
    equal: Links<()>,
    /// Whether `equals` holds what the queue holds; else it is empty.
    indexed: bool,
}

impl Line {
    pub(crate) const fn new(seed: Seed) -> Self {
        Self {
            order: Links::new(),
            ends: Ends { first: None, last: None },
            len: 0,
            equals: Equals::new(seed),
            equal: Links::new(),
            indexed: false,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The oldest.
    #[inline]
    pub(crate) const fn front(&self) -> Option<Slot> {
        self.ends.first
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, slot: Slot, match_info: u64) {
        self.order.push(&mut self.ends, slot, match_info);
        self.len += 1;
        if self.indexed {
            self.equals.push(&mut self.equal, match_info, slot);
        }
    }

    /// Takes out a slot that is in the queue.
    #[inline(always)]
    pub(crate) fn remove(&mut self, slot: Slot) {
        self.order.remove(&mut self.ends, slot);
        self.len -= 1;
        if self.indexed {
            self.unindex(slot);
        }
    }

    /// The oldest that a filter accepts.
    #[inline]
    pub(crate) fn first(&mut self, filter: Filter) -> Option<Slot> {
        let first = self.ends.first?;
        if filter.accepts(self.order.node(first).value) { Some(first) } else { self.first_further(filter) }
    }

    /// Most searches end before this: it is kept out of their way.
    #[inline(never)]
    fn first_further(&mut self, filter: Filter) -> Option<Slot> {
        let by_hash = filter.is_exact();
        if by_hash && self.indexed {
            return self.equals.first(filter.match_info());
        }
        let mut steps = 0;
        let mut next = self.ends.first;
        while let Some(slot) = next {
            if by_hash && steps == WALK_MAX {
                self.make_index();
                return self.equals.first(filter.match_info());
            }
            let node = self.order.node(slot);
            if filter.accepts(node.value) {
                return Some(slot);
            }
            (next, steps) = (node.after, steps + 1);
        }
        None
    }

    #[inline(never)]
    fn unindex(&mut self, slot: Slot) {
        self.equals.remove(&mut self.equal, self.order.node(slot).value, slot);
        if self.len <= SHORT {
            self.give_up_index();
        }
    }

    #[cold]
    fn make_index(&mut self) {
        for slot in self.order.walk(self.ends) {
            self.equals.push(&mut self.equal, self.order.node(slot).value, slot);
        }
        self.indexed = true;
    }

    #[cold]
    fn give_up_index(&mut self) {
        for slot in self.order.walk(self.ends) {
            self.equals.remove(&mut self.equal, self.order.node(slot).value, slot);
        }
        self.indexed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    #[test]
    fn lists_are_made_by_a_long_search_and_given_up_when_the_queue_is_short() {
        let (mut slab, mut line) = (Slab::new(), Line::new(Seed::new(1)));
        let slots: Vec<Slot> = (0..50).map(|_| slab.insert(()).unwrap().slot()).collect();
        for round in 0..2 {
            (0..).zip(&slots).for_each(|(number, slot)| line.push(*slot, number));
            assert_eq!(line.first(Filter::exactly(WALK_MAX as u64 - 1)), Some(slots[WALK_MAX - 1]));
            assert_eq!(line.first(Filter::ANY), Some(slots[0]));
            assert!(!line.indexed, "round {round}: nothing was far");
            assert_eq!(line.first(Filter::exactly(40)), Some(slots[40]));
            assert!(line.indexed);
            slots[SHORT..].iter().rev().for_each(|slot| line.remove(*slot));
            assert!(!line.indexed && line.equals.is_empty());
            slots[..SHORT].iter().for_each(|slot| line.remove(*slot));
            assert_eq!((line.len(), line.front()), (0, None));
        }
    }
}
