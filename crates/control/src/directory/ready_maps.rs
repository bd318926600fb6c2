//! A domain's ready maps and the bits in them. The daemon assigns both and notifies the domain.

use isthmus_layout::control::{Owner, ReadyMapIndex};
use isthmus_layout::limits::{READY_MAP_BITS, READY_MAPS_MAX};
use isthmus_layout::proxy::WindowId;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::reason::Reason;

const WORDS: usize = READY_MAP_BITS as usize / 64;

/// The allocated bits of one ready map.
#[derive(Clone, Debug)]
pub struct ReadyBits {
    allocated: [u64; WORDS],
    count: u32,
}

impl Default for ReadyBits {
    /// No bit is allocated except those that have a fixed meaning in every ready map.
    fn default() -> Self {
        let mut allocated = [0; WORDS];
        allocated[0] = (1 << ReadyBit::FIRST_CHANNEL) - 1;
        Self { allocated, count: 0 }
    }
}

impl ReadyBits {
    /// Allocates the lowest free bit.
    pub fn alloc(&mut self) -> Option<ReadyBit> {
        let word = self.allocated.iter().position(|&word| word != u64::MAX)?;
        let ready_bit = ReadyBit::new((64 * word) as u16 + self.allocated[word].trailing_ones() as u16)?;
        self.alloc_at(ready_bit).then_some(ready_bit)
    }

    /// Allocates the given bit. Returns false if it is already allocated.
    pub fn alloc_at(&mut self, ready_bit: ReadyBit) -> bool {
        let (word, bit) = (usize::from(ready_bit.number()) / 64, 1_u64 << (ready_bit.number() % 64));
        let free = self.allocated[word] & bit == 0;
        self.allocated[word] |= bit;
        self.count += u32::from(free);
        free
    }

    /// Frees an allocated bit.
    pub fn free(&mut self, ready_bit: ReadyBit) {
        let (word, bit) = (usize::from(ready_bit.number()) / 64, 1_u64 << (ready_bit.number() % 64));
        assert!(ready_bit.number() >= ReadyBit::FIRST_CHANNEL && self.allocated[word] & bit != 0); // Ours.
        self.allocated[word] &= !bit;
        self.count -= 1;
    }

    /// The number of allocated bits, without those that have a fixed meaning.
    pub fn count(&self) -> u32 {
        self.count
    }
}

#[derive(Debug)]
struct MapSlot {
    owner: Owner,
    /// The guest's window that the ready map lies in.
    window: WindowId,
    bits: ReadyBits,
    /// False for a ready map that cannot be offered to other peers. This is so for a ready map from before a restart, because only its
    /// peers have the ringing end of its doorbell, and for one in a window that is gone.
    is_offered: bool,
}

/// A bit of a ready map that is allocated for a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedBit {
    /// The ready map.
    pub ready_map: ReadyMapIndex,
    /// The bit in it.
    pub ready_bit: ReadyBit,
    /// True if the ready map has to be created, because there was none for this owner in this window.
    pub new_ready_map: bool,
}

/// The ready maps of one domain. Number 0 is for the daemon and for domains of the same owner.
#[derive(Debug)]
pub struct ReadyMaps {
    slots: [Option<MapSlot>; READY_MAPS_MAX],
}

impl ReadyMaps {
    /// Creates the ready map that a domain begins with.
    pub fn new(own: Owner) -> Self {
        let mut slots = [const { None }; READY_MAPS_MAX];
        let (bits, window) = (ReadyBits::default(), WindowId::OWN);
        slots[0] = Some(MapSlot { owner: own, window, bits, is_offered: true });
        Self { slots }
    }

    /// Allocates a bit for a channel with a domain of `owner`, in this window. If there is no ready map for both, it creates one in a free
    /// slot, or else in place of one without channels.
    pub fn reserve(&mut self, owner: Owner, window: WindowId) -> Result<ReservedBit, Reason> {
        let fits = |slot: &MapSlot| slot.owner == owner && slot.window == window && slot.is_offered;
        let known = self.slots.iter().position(|slot| slot.as_ref().is_some_and(fits));
        let idle = |slot: &Option<MapSlot>| slot.as_ref().is_none_or(|slot| slot.bits.count() == 0);
        let index = match known {
            Some(index) => index,
            None => {
                let free = self.slots.iter().position(Option::is_none);
                let index =
                    free.or_else(|| Some(1 + self.slots[1..].iter().position(idle)?)).ok_or(Reason::ReadyMapsFull)?;
                self.slots[index] = Some(MapSlot { owner, window, bits: ReadyBits::default(), is_offered: true });
                index
            }
        };
        let slot = self.slots[index].as_mut().expect("found or made above");
        let ready_bit = slot.bits.alloc().ok_or(Reason::ReadyMapFull)?;
        let ready_map = ReadyMapIndex::new(index as u8).expect("there are no more slots than ready maps");
        Ok(ReservedBit { ready_map, ready_bit, new_ready_map: known.is_none() })
    }

    /// Records a ready map from before a restart.
    pub fn adopt(&mut self, ready_map: ReadyMapIndex, owner: Owner) -> Result<(), Reason> {
        let slot = &mut self.slots[usize::from(ready_map.number())];
        if slot.is_some() {
            return Err(Reason::RequestInvalid);
        }
        *slot = Some(MapSlot { owner, window: WindowId::OWN, bits: ReadyBits::default(), is_offered: false });
        Ok(())
    }

    /// Allocates the bit of a channel from before a restart.
    pub fn adopt_bit(&mut self, ready_map: ReadyMapIndex, ready_bit: ReadyBit) -> Result<(), Reason> {
        let slot = self.slots[usize::from(ready_map.number())].as_mut().ok_or(Reason::RequestInvalid)?;
        if slot.bits.alloc_at(ready_bit) { Ok(()) } else { Err(Reason::RequestInvalid) }
    }

    /// Frees the bit of a closed channel.
    pub fn release(&mut self, ready_map: ReadyMapIndex, ready_bit: ReadyBit) {
        let slot = self.slots[usize::from(ready_map.number())].as_mut().expect("a ready map with channels stays");
        slot.bits.free(ready_bit);
    }

    /// Forgets a ready map that its domain does not know yet. A ready map with channels stays.
    pub fn forget(&mut self, ready_map: ReadyMapIndex) {
        self.slots[usize::from(ready_map.number())].take_if(|slot| slot.bits.count() == 0);
    }

    /// Retires the ready maps in a window that is gone, and returns them. They are not offered to peers from now on.
    pub fn retire(&mut self, window: WindowId) -> Vec<ReadyMapIndex> {
        let mut retired = Vec::new();
        for (index, slot) in (0..).zip(&mut self.slots) {
            if let Some(slot) = slot.as_mut().filter(|slot| slot.window == window && slot.is_offered) {
                slot.is_offered = false;
                retired.extend(ReadyMapIndex::new(index));
            }
        }
        retired
    }

    /// The number of ready maps.
    pub fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Always false, because the first ready map exists as long as the domain.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserves_a_map_per_owner_and_a_bit_per_channel() {
        let mut maps = ReadyMaps::new(Owner(7));
        let own = maps.reserve(Owner(7), WindowId::OWN).unwrap();
        assert_eq!((own.ready_map.number(), own.ready_bit.number(), own.new_ready_map), (0, 2, false));
        let other = maps.reserve(Owner(8), WindowId::OWN).unwrap();
        assert_eq!((other.ready_map.number(), other.ready_bit.number(), other.new_ready_map), (1, 2, true));
        let next = maps.reserve(Owner(8), WindowId::OWN).unwrap();
        assert_eq!((next.ready_map.number(), next.ready_bit.number(), next.new_ready_map), (1, 3, false));
        maps.release(other.ready_map, other.ready_bit);
        assert_eq!(maps.reserve(Owner(8), WindowId::OWN).unwrap().ready_bit.number(), 2);
    }

    #[test]
    fn reserves_maps_per_window_until_it_is_retired() {
        let mut maps = ReadyMaps::new(Owner(7));
        let in_pair = maps.reserve(Owner(7), WindowId(3)).unwrap();
        assert_eq!((in_pair.ready_map.number(), in_pair.new_ready_map), (1, true));
        assert!(!maps.reserve(Owner(7), WindowId(3)).unwrap().new_ready_map);
        assert_eq!(maps.reserve(Owner(7), WindowId::OWN).unwrap().ready_map.number(), 0);
        assert_eq!(maps.retire(WindowId(3)), [in_pair.ready_map]);
        maps.release(in_pair.ready_map, in_pair.ready_bit);
        let next = maps.reserve(Owner(7), WindowId(3)).unwrap();
        assert_eq!((next.ready_map.number(), next.new_ready_map), (2, true));
    }

    #[test]
    fn a_forgotten_map_is_new_again_at_the_same_number() {
        let mut maps = ReadyMaps::new(Owner(7));
        let first = maps.reserve(Owner(7), WindowId(3)).unwrap();
        maps.release(first.ready_map, first.ready_bit);
        maps.forget(first.ready_map);
        assert_eq!(maps.len(), 1);
        assert_eq!(maps.reserve(Owner(7), WindowId(4)), Ok(first), "domains number their ready maps without gaps");
    }

    #[test]
    fn reuses_a_map_without_channels_when_all_slots_are_used() {
        let mut maps = ReadyMaps::new(Owner(0));
        let allocated: Vec<_> =
            (1..READY_MAPS_MAX as u32).map(|owner| maps.reserve(Owner(owner), WindowId::OWN).unwrap()).collect();
        assert_eq!(maps.reserve(Owner(99), WindowId::OWN), Err(Reason::ReadyMapsFull));
        maps.release(allocated[4].ready_map, allocated[4].ready_bit);
        let reserved = maps.reserve(Owner(99), WindowId::OWN).unwrap();
        assert_eq!((reserved.ready_map, reserved.new_ready_map), (allocated[4].ready_map, true));
    }

    #[test]
    fn returns_an_error_when_all_bits_are_used() {
        let mut maps = ReadyMaps::new(Owner(0));
        for _ in u32::from(ReadyBit::FIRST_CHANNEL)..READY_MAP_BITS {
            maps.reserve(Owner(0), WindowId::OWN).unwrap();
        }
        assert_eq!(maps.reserve(Owner(0), WindowId::OWN), Err(Reason::ReadyMapFull));
    }

    #[test]
    fn does_not_reserve_on_an_adopted_map() {
        let mut maps = ReadyMaps::new(Owner(0));
        let (ready_map, ready_bit) = (ReadyMapIndex::new(1).unwrap(), ReadyBit::new(9).unwrap());
        maps.adopt(ready_map, Owner(5)).unwrap();
        assert_eq!(maps.adopt(ready_map, Owner(5)), Err(Reason::RequestInvalid));
        maps.adopt_bit(ready_map, ready_bit).unwrap();
        assert_eq!(maps.adopt_bit(ready_map, ready_bit), Err(Reason::RequestInvalid));
        assert_eq!(maps.adopt_bit(ReadyMapIndex::new(3).unwrap(), ready_bit), Err(Reason::RequestInvalid));
        let fresh = maps.reserve(Owner(5), WindowId::OWN).unwrap();
        assert_eq!((fresh.ready_map.number(), fresh.new_ready_map), (2, true));
    }
}
