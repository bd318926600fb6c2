//! A doubly linked list through the slots: the addresses by the time at which they were seen.

use super::Slot;

/// The neighbours of a slot in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Links {
    older: u32,
    newer: u32,
}

/// The end of the list. A table has fewer slots.
const END: u32 = u32::MAX;

const fn index(at: u32) -> Option<u32> {
    if at == END { None } else { Some(at) }
}

impl Default for Links {
    fn default() -> Self {
        Self { older: END, newer: END }
    }
}

impl Links {
    pub(super) const fn newer(self) -> Option<u32> {
        index(self.newer)
    }
}

/// The ends of the list.
#[derive(Debug)]
pub(super) struct Order {
    oldest: u32,
    newest: u32,
}

impl Default for Order {
    fn default() -> Self {
        Self { oldest: END, newest: END }
    }
}

impl Order {
    pub(super) const fn oldest(&self) -> Option<u32> {
        index(self.oldest)
    }

    /// Appends a slot that is not in the list.
    pub(super) fn push_newest(&mut self, slots: &mut [Slot], at: u32) {
        slots[at as usize].links = Links { older: self.newest, newer: END };
        match index(self.newest) {
            Some(newest) => slots[newest as usize].links.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    /// Takes a slot out of the list.
    pub(super) fn unlink(&mut self, slots: &mut [Slot], at: u32) {
        let Links { older, newer } = slots[at as usize].links;
        match index(older) {
            Some(older) => slots[older as usize].links.newer = newer,
            None => self.oldest = newer,
        }
        match index(newer) {
            Some(newer) => slots[newer as usize].links.older = older,
            None => self.newest = older,
        }
    }
}
