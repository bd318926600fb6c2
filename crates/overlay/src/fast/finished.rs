//! The numbers of messages that were lately delivered or given up, so that a late or duplicated chunk does not begin them again.

/// Numbers that are remembered.
const WINDOW: u32 = 1024;
const WORD_BITS: u32 = u64::BITS;

/// A window that ends at the highest number, as in the replay protection of IPsec (RFC 4303, 3.4.3).
#[derive(Debug, Default)]
pub(super) struct Finished {
    highest: Option<u32>,
    /// Number modulo [`WINDOW`]. Bits of numbers that are not in the window are zero.
    bits: [u64; (WINDOW / WORD_BITS) as usize],
}

impl Finished {
    pub(super) fn contains(&self, number: u32) -> bool {
        let Some(highest) = self.highest else { return false };
        let (word, bit) = place(number);
        highest.wrapping_sub(number) < WINDOW && self.bits[word] & bit != 0
    }

    /// A number outside of the window starts another: the sender has restarted.
    pub(super) fn insert(&mut self, number: u32) {
        let highest = self.highest.unwrap_or(number);
        let ahead = number.wrapping_sub(highest);
        if ahead >= WINDOW && highest.wrapping_sub(number) >= WINDOW {
            *self = Self::default();
        } else if ahead < WINDOW {
            for step in 1..=ahead {
                let (word, bit) = place(highest.wrapping_add(step));
                self.bits[word] &= !bit;
            }
        }
        if self.highest.is_none() || ahead < WINDOW {
            self.highest = Some(number);
        }
        let (word, bit) = place(number);
        self.bits[word] |= bit;
    }
}

const fn place(number: u32) -> (usize, u64) {
    let at = number % WINDOW;
    ((at / WORD_BITS) as usize, 1 << (at % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_last_numbers_across_zero() {
        let mut finished = Finished::default();
        assert!(!finished.contains(0));
        for number in (0..3000).map(|at| (u32::MAX - 1500).wrapping_add(2 * at)) {
            finished.insert(number);
            assert!(finished.contains(number));
            assert!(!finished.contains(number.wrapping_add(1)));
            assert!(!finished.contains(number.wrapping_sub(1)));
            assert!(!finished.contains(number.wrapping_sub(WINDOW)));
            assert!(!finished.contains(number.wrapping_add(WINDOW)));
        }
        let last = (u32::MAX - 1500).wrapping_add(2 * 2999);
        assert!(finished.contains(last.wrapping_sub(WINDOW - 2)));
        // Two steps, each within the window, so that the second reaches the bit of `last`.
        finished.insert(last.wrapping_add(1000));
        finished.insert(last.wrapping_add(1500));
        assert!(!finished.contains(last.wrapping_add(WINDOW)));
        let last = last.wrapping_add(1500);
        finished.insert(last.wrapping_sub(1));
        assert!(finished.contains(last) && finished.contains(last.wrapping_sub(1)));
    }

    #[test]
    fn starts_again_at_a_distant_number() {
        let mut finished = Finished::default();
        finished.insert(5);
        finished.insert(100_000);
        assert!(!finished.contains(5) && finished.contains(100_000));
        finished.insert(5);
        assert!(finished.contains(5) && !finished.contains(100_000));
    }
}
