//! Sequence numbers of messages (8.1): 14 bits that wrap, below 2 bits that say for which session the receiver counts.

/// The number of a message in one direction between two endpoints, or the first one that a receiver still misses.
///
/// Distances are taken modulo 2^14 and never between different session numbers without a look at [`SeqNum::sesnum`] first. There
/// is no order: which of two numbers is earlier depends on where one stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeqNum(u16);

/// The upper two bits: the receiver of a direction counts them up when it gives its sender up (9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SesNum(u8);

const NUMBER_BITS: u32 = 14;

impl SeqNum {
    /// How many numbers there are before they repeat.
    pub const COUNT: u16 = 1 << NUMBER_BITS;

    /// Numbers that a sender may have outstanding toward one partner (8.6): further ones could not be told from old ones.
    pub const OUTSTANDING_MAX: u16 = (Self::COUNT - 1) / 2;

    /// The number in connect packets, which are not numbered.
    pub const ZERO: Self = Self(0);

    /// Of the first message after a connect.
    pub const FIRST: Self = Self(1);

    const MASK: u16 = Self::COUNT - 1;

    /// The bits that Open-MX flips in a number when it gives up, so that old packets are far away.
    const FLIPPED: u16 = 0x30f0;

    /// As it stands in a packet.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// As it stands in a packet.
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// Without the session number: below [`SeqNum::COUNT`].
    pub const fn number(self) -> u16 {
        self.0 & Self::MASK
    }

    /// The session number.
    pub const fn sesnum(self) -> SesNum {
        SesNum((self.0 >> NUMBER_BITS) as u8)
    }

    /// Returns the number that is `count` numbers later, in the same session.
    #[must_use]
    pub const fn plus(self, count: u16) -> Self {
        Self(self.0 & !Self::MASK | self.0.wrapping_add(count) & Self::MASK)
    }

    /// The following number, in the same session.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// The number before, in the same session.
    #[must_use]
    pub const fn previous(self) -> Self {
        self.plus(Self::MASK)
    }

    /// How many steps lead from `earlier` to this one, modulo [`SeqNum::COUNT`], whatever the sessions.
    pub const fn steps_from(self, earlier: Self) -> u16 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }

    /// [`SeqNum::FIRST`] with the session number of this one: where receiving starts over with a peer that was opened again (7.2).
    #[must_use]
    pub const fn restarted(self) -> Self {
        Self(self.0 & !Self::MASK | Self::FIRST.0)
    }

    /// Where receiving starts after its sender was given up: another session number, and far from the numbers before (9.6).
    #[must_use]
    pub const fn given_up(self) -> Self {
        Self((self.0 ^ Self::FLIPPED).wrapping_add(Self::COUNT))
    }
}

/// `session:number`.
impl core::fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:{}", self.sesnum().0, self.number())
    }
}

impl SesNum {
    /// 0 to 3.
    pub const fn number(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_wrap_inside_their_session() {
        let last = SeqNum::from_bits(0x7fff);
        assert_eq!((last.number(), last.sesnum().number()), (0x3fff, 1));
        assert_eq!(last.next(), SeqNum::from_bits(0x4000));
        assert_eq!(SeqNum::from_bits(0x4000).previous(), last);
        assert_eq!(SeqNum::from_bits(0xffff).next(), SeqNum::from_bits(0xc000));
        assert_eq!(SeqNum::FIRST.previous(), SeqNum::ZERO);
    }

    #[test]
    fn steps_from_ignores_the_session_number() {
        assert_eq!(SeqNum::from_bits(0x4002).steps_from(SeqNum::from_bits(0x3fff)), 3);
        assert_eq!(SeqNum::from_bits(0x0000).steps_from(SeqNum::from_bits(0xffff)), 1);
    }

    #[test]
    fn a_restart_keeps_the_session_and_giving_up_does_not() {
        let at = SeqNum::from_bits(0xc123);
        assert_eq!(at.restarted(), SeqNum::from_bits(0xc001));
        assert_eq!(at.given_up(), SeqNum::from_bits(0x31d3));
    }

    proptest! {
        #[test]
        fn plus_and_steps_undo_each_other(bits: u16, count in 0..SeqNum::COUNT) {
            let at = SeqNum::from_bits(bits);
            let then = at.plus(count);
            prop_assert_eq!(then.sesnum(), at.sesnum());
            prop_assert_eq!(then.steps_from(at), count);
            prop_assert_eq!(then.plus(SeqNum::COUNT - count), at);
        }

        #[test]
        fn given_up_advances_the_session_number(bits: u16) {
            let at = SeqNum::from_bits(bits);
            prop_assert_eq!(at.given_up().sesnum().number(), (at.sesnum().number() + 1) % 4);
        }
    }
}
