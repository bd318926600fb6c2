//! The ones' complement sum of IP, TCP and UDP (RFC 1071), over wide words.
//!
//! A [`Sum`] is a value of network byte order. Sums of parts may be added if each part but the last has an even number of bytes.

/// A running sum, not complemented.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of these bytes. An odd last byte counts as the high half of a word.
    pub fn of(bytes: &[u8]) -> Self {
        let (blocks, rest) = bytes.as_chunks::<64>();
        let mut sums = [0_u64; 8];
        for block in blocks {
            let (words, _) = block.as_chunks::<8>();
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum += halves(*word);
            }
        }
        let (words, tail) = rest.as_chunks::<8>();
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        let rest = words.iter().map(|word| halves(*word)).sum::<u64>() + halves(last);
        Self(u64::from(u16::from_be(fold(sums.iter().sum::<u64>() + rest))))
    }

    /// Adds the sum of other bytes that the checksum covers.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// Adds a word of 16 bits.
    #[must_use]
    pub const fn plus_word(self, word: u16) -> Self {
        Self(self.0 + word as u64)
    }

    /// Adds two words of 16 bits.
    #[must_use]
    pub const fn plus_double_word(self, words: u32) -> Self {
        Self(self.0 + (words >> 16) as u64 + (words & 0xffff) as u64)
    }

    /// The sum in 16 bits: the value of a partial checksum. It is 0xffff for bytes with a correct checksum.
    pub const fn folded(self) -> u16 {
        fold(self.0)
    }

    /// The checksum.
    pub const fn complement(self) -> u16 {
        !fold(self.0)
    }

    /// The checksum as UDP has it, where 0 means that there is none. TCP permits either form of zero.
    pub const fn complement_not_zero(self) -> u16 {
        match self.complement() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

/// The sum of both halves, which leaves room for carries. The byte order of the machine is as good as any (RFC 1071, 2.B).
const fn halves(word: [u8; 8]) -> u64 {
    let word = u64::from_ne_bytes(word);
    (word & 0xffff_ffff) + (word >> 32)
}

const fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn naive(bytes: &[u8]) -> u16 {
        let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
        words.fold(0, |sum, word| (sum + word) % 0xffff) as u16
    }

    #[test]
    fn matches_the_example_of_rfc_1071() {
        let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.folded(), 0xddf2);
        assert_eq!(sum.complement(), 0x220d);
        assert_eq!(Sum::of(&[0xff, 0xff]).complement_not_zero(), 0xffff);
    }

    proptest! {
        #[test]
        fn matches_a_sum_of_words(bytes: Vec<u8>, at in 0_usize..400) {
            prop_assert_eq!(Sum::of(&bytes).folded() % 0xffff, naive(&bytes));
            let (first, second) = bytes.split_at(at.min(bytes.len()) & !1);
            prop_assert_eq!(Sum::of(first).plus(Sum::of(second)).folded() % 0xffff, naive(&bytes));
        }
    }
}
