//! The ready map: the page where a receiver sees which of its peers is active.
//!
//! A receiver with a thousand channels does not look at a thousand rings. It looks at the few that were busy a moment ago, and
//! at one word of its ready map. A peer on a *parked* ring sets its bit in the ready map after it has published.
//!
//! ```text
//! word 0        SUMMARY      a bit for each group of ready bits in which one was set since the receiver looked last
//! word 32       SLEEPING     1: the receiver sleeps; the peer that sets a bit rings the doorbell
//! word 64..192  READY_BITS   one bit for each channel
//! ```
//!
//! A peer that may set bits in a ready map can also clear those of others, so a receiver has one ready map for each *owner* among its peers:
//! only domains of the same owner can make it lose wake-ups.

use crate::limits::{PAGE_BYTES, READY_MAP_BITS};
use crate::span::RegionSize;

/// Word: not 0 if a bit was set since the receiver looked last, and where to look.
pub const SUMMARY: u32 = 0;
/// Bit of `SUMMARY`: any group. Peers of minor versions before 4 set no other.
pub const ANY_GROUP: u32 = 1;
/// Word: 1 while the receiver sleeps.
pub const SLEEPING: u32 = 32;
/// First word of the ready bits.
pub const READY_BITS: u32 = 64;
/// Words of ready bits.
pub const READY_BIT_WORDS: u32 = READY_MAP_BITS / 32;
/// Words of ready bits in one group, which has a bit of `SUMMARY`: for one ready bit a receiver reads eight words, and not all of them.
pub const GROUP_WORDS: u32 = 8;
/// Groups of ready bits.
pub const GROUPS: u32 = READY_BIT_WORDS / GROUP_WORDS;
/// Bits of `SUMMARY`: each group.
pub const ALL_GROUPS: u32 = group_bit(GROUPS) - group_bit(0);

/// Bytes of a ready map's region.
pub const SIZE: RegionSize = RegionSize(PAGE_BYTES as u64);

/// A channel's bit in its receiver's ready map. The daemon assigns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadyBit(u16);

impl ReadyBit {
    /// The daemon's own bit in each ready map: look at your control socket.
    pub const CONTROL: Self = Self(0);
    /// The bit of the domain ring.
    pub const DOMAIN_RING: Self = Self(1);
    /// The first bit for channels with peers.
    pub const FIRST_CHANNEL: u16 = 2;

    /// None beyond the ready map.
    pub const fn new(number: u16) -> Option<Self> {
        if (number as u32) < READY_MAP_BITS { Some(Self(number)) } else { None }
    }

    /// The number as it stands in control messages.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The word of the ready map that holds this bit.
    pub const fn word(self) -> u32 {
        READY_BITS + self.0 as u32 / 32
    }

    /// The bit within it.
    pub const fn bit(self) -> u32 {
        1 << (self.0 % 32)
    }

    /// The bit of `SUMMARY` that says to look at its group.
    pub const fn group_bit(self) -> u32 {
        group_bit(self.0 as u32 / 32 / GROUP_WORDS)
    }
}

/// The bit of `SUMMARY` for a group, counted from 0.
pub const fn group_bit(group: u32) -> u32 {
    ANY_GROUP << 1 << group
}

const _: () = assert!(
    4 * (READY_BITS + READY_BIT_WORDS) <= PAGE_BYTES && GROUPS < 32 && READY_BIT_WORDS.is_multiple_of(GROUP_WORDS)
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ready_bit_has_its_own_word_and_bit() {
        let last = ReadyBit::new(READY_MAP_BITS as u16 - 1).unwrap();
        assert_eq!((last.word(), last.bit()), (READY_BITS + READY_BIT_WORDS - 1, 1 << 31));
        assert_eq!((ReadyBit::DOMAIN_RING.word(), ReadyBit::DOMAIN_RING.bit()), (READY_BITS, 2));
        assert_eq!((ReadyBit::DOMAIN_RING.group_bit(), last.group_bit()), (2, 2 << (GROUPS - 1)));
        assert_eq!(ReadyBit::new(READY_MAP_BITS as u16), None);
    }
}
