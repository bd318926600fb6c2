//! An index of slots by key: for each key, the list of its slots, oldest first.

use crate::hash::Seed;
use crate::list_arena::{ListArena, ListEnds};
use crate::slab::Slot;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

/// The lists. The caller owns the links, and several indices may share them.
#[derive(Debug)]
pub(crate) struct KeyIndex(HashMap<u64, ListEnds, Seed>);

impl KeyIndex {
    pub(crate) const fn new(seed: Seed) -> Self {
        Self(HashMap::with_hasher(seed))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the oldest slot with this key.
    pub(crate) fn first(&self, key: u64) -> Option<Slot> {
        self.0.get(&key)?.first
    }

    pub(crate) fn push(&mut self, links: &mut ListArena<()>, key: u64, slot: Slot) {
        links.push(self.0.entry(key).or_default(), slot, ());
    }

    pub(crate) fn remove(&mut self, links: &mut ListArena<()>, key: u64, slot: Slot) {
        if let Entry::Occupied(mut list) = self.0.entry(key) {
            links.remove(list.get_mut(), slot);
            if list.get().first.is_none() {
                list.remove();
            }
        }
    }
}
