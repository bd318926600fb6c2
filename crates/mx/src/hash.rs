//! A hash function with a secret seed. Peers choose match infos: without the secret, a peer could send thousands that
//! collide.

use core::hash::{BuildHasher, Hasher};

/// The seed of a hash function, chosen at random. The function multiplies, and folds the 128 bits of the product.
#[derive(Clone, Copy)]
pub(crate) struct Seed {
    start: u64,
    factor: u64,
}

/// Hides the secret from logs.
impl core::fmt::Debug for Seed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Seed")
    }
}

impl Seed {
    /// Returns the hash function of this random number.
    pub(crate) const fn new(random: u64) -> Self {
        let start = mix(random);
        Self { start, factor: mix(start) | 1 }
    }
}

/// Mixes `number`, so that each bit of the result depends on all of its bits (the finalizer of SplitMix64).
const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl BuildHasher for Seed {
    type Hasher = FoldHasher;

    #[inline]
    fn build_hasher(&self) -> FoldHasher {
        FoldHasher { state: self.start, factor: self.factor }
    }
}

/// A hasher.
pub(crate) struct FoldHasher {
    state: u64,
    factor: u64,
}

impl Hasher for FoldHasher {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.factor);
        self.state = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the fullest of 2^12 buckets after 2^12 keys, by low bits and by high bits. The expected size
    /// is about seven.
    fn fullest(seed: Seed, keys: impl Iterator<Item = u64>) -> u32 {
        let (mut low, mut high) = (vec![0_u32; 1 << 12], vec![0_u32; 1 << 12]);
        for key in keys.take(1 << 12) {
            let hash = seed.hash_one(key);
            low[hash as usize % (1 << 12)] += 1;
            high[(hash >> 52) as usize] += 1;
        }
        low.into_iter().chain(high).max().unwrap()
    }

    #[test]
    fn regular_match_infos_spread() {
        for random in 0..8 {
            let seed = Seed::new(random);
            for shift in [0, 8, 16, 32, 48, 52] {
                let most = fullest(seed, (0_u64..).map(|number| number << shift));
                assert!(most < 24, "seed {random}, shift {shift}: {most} in one bucket");
            }
        }
    }

    #[test]
    fn keys_crafted_for_one_seed_do_not_collide_under_another() {
        let colliding = |seed: Seed| (1..1 << 16).filter(move |key| seed.hash_one(*key) % (1 << 8) == 0);
        let [one, other] = [Seed::new(1), Seed::new(2)];
        let still = colliding(one).filter(|key: &u64| other.hash_one(*key) % (1 << 8) == 0).count();
        assert!(still < 32, "{still} of 256 keys crafted for one seed collide under another");
    }

    #[test]
    fn strings_of_zeros_differ() {
        let seed = Seed::new(3);
        assert_ne!(seed.hash_one([0_u8; 3]), seed.hash_one([0_u8; 4]));
    }
}
