//! Linked lists of slots. The links of all slots are in one array, so removing a slot takes constant time, and a list
//! is two numbers.

use crate::slab::Slot;
use alloc::vec::Vec;

/// The two ends of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListEnds {
    pub(crate) first: Option<Slot>,
    pub(crate) last: Option<Slot>,
}

/// The neighbours of a slot, and a value that is read during a walk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Node<T> {
    pub(crate) prev: Option<Slot>,
    pub(crate) next: Option<Slot>,
    pub(crate) value: T,
}

/// The links of many lists. A slot is in at most one of them.
#[derive(Debug)]
pub(crate) struct ListArena<T>(Vec<Node<T>>);

impl<T: Copy + Default> ListArena<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends a slot to a list.
    #[inline(always)]
    pub(crate) fn push(&mut self, ends: &mut ListEnds, slot: Slot, value: T) {
        if slot.index() >= self.0.len() {
            self.grow(slot);
        }
        // The fields are stored one by one: a node that was built in memory first would be loaded before the stores
        // complete.
        let node = &mut self.0[slot.index()];
        node.prev = ends.last;
        node.next = None;
        node.value = value;
        match ends.last {
            Some(last) => self.0[last.index()].next = Some(slot),
            None => ends.first = Some(slot),
        }
        ends.last = Some(slot);
    }

    #[cold]
    fn grow(&mut self, slot: Slot) {
        self.0.resize(slot.index() + 1, Node::default());
    }

    /// Removes a slot from its list.
    #[inline(always)]
    pub(crate) fn remove(&mut self, ends: &mut ListEnds, slot: Slot) {
        let Node { prev, next, .. } = self.0[slot.index()];
        match prev {
            Some(prev) => self.0[prev.index()].next = next,
            None => ends.first = next,
        }
        match next {
            Some(next) => self.0[next.index()].prev = prev,
            None => ends.last = prev,
        }
    }

    /// Returns the list node of a slot.
    #[inline]
    pub(crate) fn node(&self, slot: Slot) -> &Node<T> {
        &self.0[slot.index()]
    }

    /// Returns the slots of a list, oldest first.
    pub(crate) fn iter(&self, ends: ListEnds) -> impl Iterator<Item = Slot> {
        core::iter::successors(ends.first, |slot| self.node(*slot).next)
    }

    /// Returns the slots of a list, newest first.
    pub(crate) fn iter_rev(&self, ends: ListEnds) -> impl Iterator<Item = Slot> {
        core::iter::successors(ends.last, |slot| self.node(*slot).prev)
    }
}
