//! Lists of slots: the links of all slots lie in one array, so a slot leaves its list in one step, and a list is two numbers.

use crate::slab::Slot;
use alloc::vec::Vec;

/// The two ends of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) first: Option<Slot>,
    pub(crate) last: Option<Slot>,
}

/// A slot's neighbours, and something about the slot that is looked at while walking.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Node<T> {
    pub(crate) before: Option<Slot>,
    pub(crate) after: Option<Slot>,
    pub(crate) value: T,
}

/// The links of many lists; a slot is in one of them at most.
#[derive(Debug)]
pub(crate) struct Links<T>(Vec<Node<T>>);

impl<T: Copy + Default> Links<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Puts a slot at the end of a list.
    #[inline(always)]
    pub(crate) fn push(&mut self, ends: &mut Ends, slot: Slot, value: T) {
        if slot.index() >= self.0.len() {
            self.grow(slot);
        }
        // One by one: a node that was put together in memory first would be read before it is there.
        let node = &mut self.0[slot.index()];
        node.before = ends.last;
        node.after = None;
        node.value = value;
        match ends.last {
            Some(last) => self.0[last.index()].after = Some(slot),
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
    pub(crate) fn remove(&mut self, ends: &mut Ends, slot: Slot) {
        let Node { before, after, .. } = self.0[slot.index()];
        match before {
            Some(before) => self.0[before.index()].after = after,
            None => ends.first = after,
        }
        match after {
            Some(after) => self.0[after.index()].before = before,
            None => ends.last = before,
        }
    }

    /// What is known of a slot in a list.
    #[inline]
    pub(crate) fn node(&self, slot: Slot) -> &Node<T> {
        &self.0[slot.index()]
    }

    /// The slots of a list, oldest first.
    pub(crate) fn walk(&self, ends: Ends) -> impl Iterator<Item = Slot> {
        core::iter::successors(ends.first, |slot| self.node(*slot).after)
    }

    /// The slots of a list, newest first.
    pub(crate) fn walk_back(&self, ends: Ends) -> impl Iterator<Item = Slot> {
        core::iter::successors(ends.last, |slot| self.node(*slot).before)
    }
}
