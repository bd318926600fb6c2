//! The board: the page where a receiver sees which of its peers is active.
//!
//! A receiver with a thousand channels does not look at a thousand rings. It looks at the few that were busy a moment ago, and
//! at one word of its board. A peer whose ring is *parked* marks its place on the board after it has published.
//!
//! ```text
//! word 0        ANY        a bit for each group of marks in which a place was marked since the receiver looked last
//! word 32       SLEEPING   1: the receiver sleeps; whoever marks a place rings the doorbell
//! word 64..192  MARKS      one bit for each place
//! ```
//!
//! Everybody who may mark a board can also erase the marks of others, so a receiver has one board for each *owner* among its peers:
//! a domain can lose wake-ups by the hand of its own owner's domains, and of nobody else's.

use crate::limits::{BOARD_PLACES, PAGE_BYTES};
use crate::span::RegionSize;

/// Word: not 0 if a place was marked since the receiver looked last, and where to look.
pub const ANY: u32 = 0;
/// Bit of `ANY`: anywhere. Markers of minor versions before 4 set no other.
pub const ANYWHERE: u32 = 1;
/// Word: 1 while the receiver sleeps.
pub const SLEEPING: u32 = 32;
/// First word of the marks.
pub const MARKS: u32 = 64;
/// Words of marks.
pub const MARK_WORDS: u32 = BOARD_PLACES / 32;
/// Words of marks of one group, which has a bit of `ANY`: for one mark a receiver looks at eight words, and not at all.
pub const GROUP_WORDS: u32 = 8;
/// Groups of marks.
pub const GROUPS: u32 = MARK_WORDS / GROUP_WORDS;
/// Bits of `ANY`: each group.
pub const ALL_GROUPS: u32 = group_bit(GROUPS) - group_bit(0);

/// Bytes of a board's region.
pub const SIZE: RegionSize = RegionSize(PAGE_BYTES as u64);

/// A channel's place on its receiver's board. The daemon assigns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(u16);

impl Place {
    /// The daemon's own place on each board: look at your control socket.
    pub const CONTROL: Self = Self(0);
    /// The place of the domain ring.
    pub const DOMAIN_RING: Self = Self(1);
    /// The first place for channels with peers.
    pub const FIRST: u16 = 2;

    /// None beyond the board.
    pub const fn new(number: u16) -> Option<Self> {
        if (number as u32) < BOARD_PLACES { Some(Self(number)) } else { None }
    }

    /// The number as it stands in control messages.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The word of the board that holds this place's bit.
    pub const fn word(self) -> u32 {
        MARKS + self.0 as u32 / 32
    }

    /// The bit within it.
    pub const fn bit(self) -> u32 {
        1 << (self.0 % 32)
    }

    /// The bit of `ANY` that says to look at its group.
    pub const fn group_bit(self) -> u32 {
        group_bit(self.0 as u32 / 32 / GROUP_WORDS)
    }
}

/// The bit of `ANY` for a group, counted from 0.
pub const fn group_bit(group: u32) -> u32 {
    ANYWHERE << 1 << group
}

const _: () = assert!(4 * (MARKS + MARK_WORDS) <= PAGE_BYTES && GROUPS < 32 && MARK_WORDS.is_multiple_of(GROUP_WORDS));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_a_bit_of_its_own() {
        let last = Place::new(BOARD_PLACES as u16 - 1).unwrap();
        assert_eq!((last.word(), last.bit()), (MARKS + MARK_WORDS - 1, 1 << 31));
        assert_eq!((Place::DOMAIN_RING.word(), Place::DOMAIN_RING.bit()), (MARKS, 2));
        assert_eq!((Place::DOMAIN_RING.group_bit(), last.group_bit()), (2, 2 << (GROUPS - 1)));
        assert_eq!(Place::new(BOARD_PLACES as u16), None);
    }
}
