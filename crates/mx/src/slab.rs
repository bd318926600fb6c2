//! A slab with generational keys: a stale key does not resolve to a newer entry until the 24-bit generation wraps.
//!
//! ```text
//!   places   [ 7 full | 3 free | 1 full | 2 free ]      number: generation
//!                        │                 ▲
//!   free ────────────────┘─── next free ───┘            Id = place + generation
//! ```
//!
//! Each reuse of a slot gives it another generation, so that the key of the old entry differs from the key of the new one. After
//! 2^24 uses of one slot, an old key could be taken for a new one.

use alloc::vec::Vec;
use core::num::{NonZeroU32, NonZeroU64};

/// The width of a slot number and of a generation in bits: a key has 48 bits.
const BITS: u32 = 24;

const MASK: u32 = (1 << BITS) - 1;

/// The number of a slot, from one, so that `Option` takes no extra space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot(NonZeroU32);

impl Slot {
    #[inline]
    fn of(index: usize) -> Option<Self> {
        let number = u32::try_from(index).ok()?.checked_add(1)?;
        if number <= MASK { NonZeroU32::new(number).map(Self) } else { None }
    }

    /// Returns the array index of the slot.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The key of an entry: the generation, and the slot number in the lower bits. A single word, so that moves and
/// comparisons take one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlabKey(NonZeroU64);

impl SlabKey {
    /// Returns the first key of a slot.
    fn first(slot: Slot) -> Self {
        Self(NonZeroU64::from(slot.0) | 1 << BITS)
    }

    /// Returns the next key of the same slot.
    #[inline]
    fn next(self) -> Self {
        match self.0.checked_add(1 << BITS) {
            Some(next) if next.get() >> (2 * BITS) == 0 => Self(next),
            _ => Self::first(self.slot()),
        }
    }

    #[inline]
    pub(crate) fn slot(self) -> Slot {
        // No key has slot 0. The code avoids a panic here so that the compiler inlines the callers.
        Slot(NonZeroU32::new(self.0.get() as u32 & MASK).unwrap_or(NonZeroU32::MIN))
    }

    /// Returns the key as a number below 2^48, never 0.
    #[inline]
    pub(crate) const fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// Returns `None` for 0. Other numbers that are not keys are never found in a slab.
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }
}

/// The slab is full: it holds 2^24 - 1 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no room for another one")]
pub struct Full;

#[derive(Debug)]
struct SlotState<T> {
    /// The key of the current or next entry.
    id: SlabKey,
    /// The next free slot, if this one is free and not the last.
    next: Option<Slot>,
    value: Option<T>,
}

/// A slab. The slot that was freed last is reused first, because it is still in the cache.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<SlotState<T>>,
    free: Option<Slot>,
    len: usize,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: None, len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the slab has room for another entry.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.free.is_some() || Slot::of(self.slots.len()).is_some()
    }

    #[inline(always)]
    pub(crate) fn insert(&mut self, value: T) -> Result<SlabKey, Full> {
        if self.free.is_none() {
            self.extend()?;
        }
        let slot = self.free.ok_or(Full)?;
        let slot_state = &mut self.slots[slot.index()];
        // The slot was empty. `forget` keeps the compiler from adding a check whether a value has to be dropped.
        core::mem::forget(slot_state.value.replace(value));
        self.free = slot_state.next;
        self.len += 1;
        Ok(slot_state.id)
    }

    #[cold]
    fn extend(&mut self) -> Result<(), Full> {
        let slot = Slot::of(self.slots.len()).ok_or(Full)?;
        self.slots.push(SlotState { id: SlabKey::first(slot), next: None, value: None });
        self.free = Some(slot);
        Ok(())
    }

    #[inline]
    pub(crate) fn get(&self, id: SlabKey) -> Option<&T> {
        let slot_state = self.slots.get(id.slot().index())?;
        if slot_state.id == id { slot_state.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: SlabKey) -> Option<&mut T> {
        let slot_state = self.slots.get_mut(id.slot().index())?;
        if slot_state.id == id { slot_state.value.as_mut() } else { None }
    }

    /// Returns the key and the value of a slot.
    #[inline]
    pub(crate) fn at(&self, slot: Slot) -> Option<(SlabKey, &T)> {
        let slot_state = self.slots.get(slot.index())?;
        Some((slot_state.id, slot_state.value.as_ref()?))
    }

    /// Returns the key and the value of a slot, mutably.
    #[inline]
    pub(crate) fn at_mut(&mut self, slot: Slot) -> Option<(SlabKey, &mut T)> {
        let slot_state = self.slots.get_mut(slot.index())?;
        Some((slot_state.id, slot_state.value.as_mut()?))
    }

    /// Returns the entry with this key, to be read and perhaps removed.
    #[inline(always)]
    pub(crate) fn entry(&mut self, id: SlabKey) -> Option<OccupiedEntry<'_, T>> {
        let slot_state = self.slots.get_mut(id.slot().index())?;
        if slot_state.id != id || slot_state.value.is_none() {
            return None;
        }
        Some(OccupiedEntry { slot_state, free: &mut self.free, len: &mut self.len })
    }

    /// Removes and returns an entry. Its key becomes invalid.
    #[inline]
    pub(crate) fn remove(&mut self, id: SlabKey) -> Option<T> {
        self.entry(id)?.remove()
    }

    /// Returns all entries, in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlabKey, &T)> {
        (0..self.slots.len()).filter_map(|index| self.at(Slot::of(index)?))
    }
}

/// An occupied entry.
pub(crate) struct OccupiedEntry<'a, T> {
    slot_state: &'a mut SlotState<T>,
    free: &'a mut Option<Slot>,
    len: &'a mut usize,
}

impl<T> OccupiedEntry<'_, T> {
    #[inline(always)]
    pub(crate) fn value(&self) -> Option<&T> {
        self.slot_state.value.as_ref()
    }

    #[inline(always)]
    pub(crate) fn remove(self) -> Option<T> {
        let Self { slot_state, free, len } = self;
        let value = slot_state.value.take();
        let slot = slot_state.id.slot();
        slot_state.id = slot_state.id.next();
        slot_state.next = *free;
        *free = Some(slot);
        *len -= 1;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_key_does_not_resolve_to_a_newer_entry() {
        let mut slab = Slab::new();
        let first = slab.insert('a').unwrap();
        let second = slab.insert('b').unwrap();
        assert_eq!(slab.remove(first), Some('a'));
        assert_eq!(slab.remove(first), None);
        let third = slab.insert('c').unwrap();
        assert_eq!(third.slot(), first.slot(), "the place is used again");
        assert_eq!((slab.get(first), slab.get(second), slab.get(third)), (None, Some(&'b'), Some(&'c')));
        assert_eq!(slab.at(third.slot()), Some((third, &'c')));
        assert_eq!(slab.len(), 2);
    }

    #[test]
    fn generations_wrap_past_zero() {
        let mut slab = Slab::new();
        let id = slab.insert(()).unwrap();
        let last = SlabKey::from_bits(u64::from(MASK) << BITS | 1).unwrap();
        slab.slots[0].id = last;
        assert_eq!(slab.remove(last), Some(()));
        assert_eq!(slab.insert(()), Ok(id), "the first generation comes again");
    }

    #[test]
    fn key_bits_are_nonzero_and_round_trip() {
        let mut slab = Slab::new();
        for _ in 0..3 {
            let id = slab.insert(()).unwrap();
            assert!(id.to_bits() != 0 && id.to_bits() < 1 << 48);
            assert_eq!(SlabKey::from_bits(id.to_bits()), Some(id));
        }
        assert_eq!(SlabKey::from_bits(0), None);
        for bad in [1, 1 << BITS, 1 << BITS | 9, 1 << 48 | 1, 1 << 48 | 1 << BITS | 1, u64::MAX] {
            let bad = SlabKey::from_bits(bad).unwrap();
            assert!(slab.get(bad).is_none() && slab.get_mut(bad).is_none() && slab.remove(bad).is_none(), "{bad:x?}");
        }
        assert_eq!(slab.len(), 3);
    }

    #[test]
    fn insert_fails_when_the_slab_is_full() {
        assert_eq!(Slot::of(MASK as usize), None);
        assert!(Slot::of(MASK as usize - 1).is_some());
    }
}
