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

/// Bits of a place's number, and of a generation: a name fits into 48 bits.
const BITS: u32 = 24;

const MASK: u32 = (1 << BITS) - 1;

/// The number of a place, counted from one, so that "none" costs no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot(NonZeroU32);

impl Slot {
    #[inline]
    fn of(index: usize) -> Option<Self> {
        let number = u32::try_from(index).ok()?.checked_add(1)?;
        if number <= MASK { NonZeroU32::new(number).map(Self) } else { None }
    }

    /// Where it stands in an array.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The name of one thing in a slab: the generation, and below it the number of the place. One word, so that it is moved and
/// compared in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlabKey(NonZeroU64);

impl SlabKey {
    /// The first name of a place.
    fn first(slot: Slot) -> Self {
        Self(NonZeroU64::from(slot.0) | 1 << BITS)
    }

    /// The next name of the same place.
    #[inline]
    fn next(self) -> Self {
        match self.0.checked_add(1 << BITS) {
            Some(next) if next.get() >> (2 * BITS) == 0 => Self(next),
            _ => Self::first(self.slot()),
        }
    }

    #[inline]
    pub(crate) fn slot(self) -> Slot {
        // No name is made with place 0. Without a panic here, more of what calls this is inlined.
        Slot(NonZeroU32::new(self.0.get() as u32 & MASK).unwrap_or(NonZeroU32::MIN))
    }

    /// Below 2^48, never 0.
    #[inline]
    pub(crate) const fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// None for 0. Other bits that no name has are never found in a slab.
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }
}

/// No room: a slab holds 2^24 - 1 things at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no room for another one")]
pub struct Full;

#[derive(Debug)]
struct SlotState<T> {
    /// The name of what is here, or will be here next.
    id: SlabKey,
    /// The next free place, where this one is free and not the last.
    next: Option<Slot>,
    value: Option<T>,
}

/// Things by name. The place that became free last is used first, since it is still in the cache.
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

    /// Whether another thing fits.
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
        // Nothing was here, which the compiler cannot know: it would look whether something has to be dropped.
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

    /// The name and the thing that is in a place now.
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

    /// The thing of this name, to look at and then to take out perhaps.
    #[inline(always)]
    pub(crate) fn entry(&mut self, id: SlabKey) -> Option<OccupiedEntry<'_, T>> {
        let slot_state = self.slots.get_mut(id.slot().index())?;
        if slot_state.id != id || slot_state.value.is_none() {
            return None;
        }
        Some(OccupiedEntry { slot_state, free: &mut self.free, len: &mut self.len })
    }

    /// Takes a thing out; its name means nothing any more.
    #[inline]
    pub(crate) fn remove(&mut self, id: SlabKey) -> Option<T> {
        self.entry(id)?.remove()
    }

    /// All things, in the order of their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlabKey, &T)> {
        (0..self.slots.len()).filter_map(|index| self.at(Slot::of(index)?))
    }
}

/// A thing that is there.
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
