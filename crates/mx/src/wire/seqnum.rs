//! Sequence numbers of messages (8.1): 14 bits that wrap, and above them 2 bits with the receiver's session number.

/// The number of a message in one direction between two endpoints, or the first number that a receiver lacks.
///
/// Distances are modulo 2^14. Callers compare the session numbers ([`SeqNum::sesnum`]) before they compute a distance.
/// The numbers have no total order, because they wrap.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeqNum(u16);

/// The upper two bits. The receiver of a direction increments them when it gives up the sender (9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SesNum(u8);

const NUMBER_BITS: u32 = 14;

impl SeqNum {
    /// The number of values before they repeat.
    pub const COUNT: u16 = 1 << NUMBER_BITS;

    /// The maximum number of unacknowledged messages to one partner (8.6). Beyond it, new numbers could not be
    /// distinguished from old ones.
    pub const OUTSTANDING_MAX: u16 = (Self::COUNT - 1) / 2;

    /// The number in connect packets, which are not numbered.
    pub const ZERO: Self = Self(0);

    /// The number of the first message after a connect.
    pub const FIRST: Self = Self(1);

    const MASK: u16 = Self::COUNT - 1;

    /// The bits that Open-MX inverts in a number when it gives up a partner, so that old packets are far away.
    const FLIPPED: u16 = 0x30f0;

    /// Creates a number from its representation in packets.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Returns the representation in packets.
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// Returns the number without the session number: below [`SeqNum::COUNT`].
    pub const fn number(self) -> u16 {
        self.0 & Self::MASK
    }

    /// Returns the session number.
    pub const fn sesnum(self) -> SesNum {
        SesNum((self.0 >> NUMBER_BITS) as u8)
    }

    /// Returns the number that is `count` numbers later, in the same session.
    #[must_use]
    pub const fn plus(self, count: u16) -> Self {
        Self(self.0 & !Self::MASK | self.0.wrapping_add(count) & Self::MASK)
    }

    /// Returns the next number, in the same session.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// Returns the previous number, in the same session.
    #[must_use]
    pub const fn previous(self) -> Self {
        self.plus(Self::MASK)
    }

    /// Returns the number of steps from `earlier` to this number, modulo [`SeqNum::COUNT`], regardless of the sessions.
    pub const fn steps_from(self, earlier: Self) -> u16 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }

    /// Returns [`SeqNum::FIRST`] with the session number of this one: the restart of receiving with a peer that was
    /// reopened (7.2).
    #[must_use]
    pub const fn restarted(self) -> Self {
        Self(self.0 & !Self::MASK | Self::FIRST.0)
    }

    /// Returns the restart of receiving after the sender was given up: the next session number, and far from the
    /// previous numbers (9.6).
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
    /// Returns the number, 0 to 3.
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
