//! Lists of slots: the links of all slots lie in one array, so a slot leaves its list in one step, and a list is two numbers.

use crate::slab::Slot;
use alloc::vec::Vec;

/// The two ends of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListEnds {
    pub(crate) first: Option<Slot>,
    pub(crate) last: Option<Slot>,
}

/// A slot's neighbours, and something about the slot that is looked at while walking.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Node<T> {
    pub(crate) prev: Option<Slot>,
    pub(crate) next: Option<Slot>,
    pub(crate) value: T,
}

/// The links of many lists; a slot is in one of them at most.
#[derive(Debug)]
pub(crate) struct ListArena<T>(Vec<Node<T>>);

impl<T: Copy + Default> ListArena<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Puts a slot at the end of a list.
    #[inline(always)]
    pub(crate) fn push(&mut self, ends: &mut ListEnds, slot: Slot, value: T) {
        if slot.index() >= self.0.len() {
            self.grow(slot);
        }
        // One by one: a node that was put together in memory first would be read before it is there.
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

    /// Takes a slot out of the list that it is in.
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

    /// The slots of a list, oldest first.
    pub(crate) fn iter(&self, ends: ListEnds) -> impl Iterator<Item = Slot> {
        core::iter::successors(ends.first, |slot| self.node(*slot).next)
    }

    /// The slots of a list, newest first.
    pub(crate) fn iter_rev(&self, ends: ListEnds) -> impl Iterator<Item = Slot> {
        core::iter::successors(ends.last, |slot| self.node(*slot).prev)
    }
}
