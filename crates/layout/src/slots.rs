//! A table of values by number, for the engines and libraries that name what they keep by a slot.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// Values by the number of their slot. A slot is used again after its value was removed: the one that became free last first, because
/// it is still in the cache.
#[derive(Debug)]
pub struct SlotTable<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for SlotTable<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> SlotTable<T> {
    /// Adds a value. Returns its slot.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        self.insert_with(|_| value)
    }

    /// Adds a value that knows its slot. Returns the slot.
    #[inline]
    pub fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = Some(make(slot));
        slot
    }

    /// Removes a value.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(value)
    }

    /// Returns the value in a slot.
    #[inline(always)]
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Returns the value in a slot, mutably.
    #[inline(always)]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Returns all values with their slots, in the order of the slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.slots).filter_map(|(slot, value)| Some((slot, value.as_ref()?)))
    }

    /// Returns all values, in the order of their slots.
    #[inline]
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    /// Returns all values mutably, in the order of their slots.
    #[inline]
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns true if there is no value.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of slots, free ones included.
    pub const fn slots(&self) -> usize {
        self.slots.len()
    }
}

#[cold]
#[inline(never)]
fn empty_slot() -> ! {
    panic!("the slot has no value")
}

impl<T> Index<u32> for SlotTable<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, slot: u32) -> &T {
        self.get(slot).unwrap_or_else(|| empty_slot())
    }
}

impl<T> IndexMut<u32> for SlotTable<T> {
    #[inline(always)]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.get_mut(slot).unwrap_or_else(|| empty_slot())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_that_became_free_last_is_used_first() {
        let mut table = SlotTable::default();
        assert_eq!(['a', 'b', 'c'].map(|value| table.insert(value)), [0, 1, 2]);
        assert_eq!(
            (table.remove(0), table.remove(2), table.remove(2), table.remove(9)),
            (Some('a'), Some('c'), None, None)
        );
        assert_eq!((table.len(), table.slots(), table.get(2), table.get(9)), (1, 3, None, None));
        assert_eq!(['d', 'e', 'f'].map(|value| table.insert(value)), [2, 0, 3]);
        assert!(table.iter().eq([(0, &'e'), (1, &'b'), (2, &'d'), (3, &'f')]));
        table[2] = 'g';
        assert!(table.values().eq(&['e', 'b', 'g', 'f']) && table[2] == 'g');
    }

    #[test]
    fn value_knows_its_slot() {
        let mut table = SlotTable::default();
        assert_eq!(table.insert_with(|slot| slot + 10), 0);
        assert_eq!(table.insert_with(|slot| slot + 10), 1);
        assert_eq!((table[0], table[1], table.is_empty()), (10, 11, false));
    }

    #[test]
    #[should_panic(expected = "the slot has no value")]
    fn empty_slot_has_no_value() {
        let mut table = SlotTable::default();
        let slot = table.insert(());
        table.remove(slot);
        let () = table[slot];
    }
}
