//! The traffic matrix: frames and bytes by source and destination address.
//!
//! ```text
//!   set:   │ pair │ pair │ … │    eight pairs; the hash of the addresses names their set
//!   others                        the counts of the pairs that lost their place
//! ```
//!
//! The matrix is bounded, and counting takes constant time, whatever addresses guests choose: a new pair of a full set takes the place of the
//! one that was silent for longest. All groups are one destination, because a frame for a group goes to every station.

use alloc::vec::Vec;
use core::hash::BuildHasher;

use crate::mac::{KeyedHash, MacAddr};

/// The maximum number of pairs of a network.
pub const PAIRS_MAX: usize = 1024;

/// The number of pairs in a set.
const WAYS: usize = 8;

const SETS: usize = PAIRS_MAX / WAYS;
const _: () = assert!(SETS.is_power_of_two() && SETS * WAYS == PAIRS_MAX);

/// Frames, and bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCount {
    /// The number of frames.
    pub frames: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// The frames from one station to another, or to groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairCount {
    /// The address of the sender.
    pub source: MacAddr,
    /// The address of the receiver; [`MacAddr::BROADCAST`] for every group.
    pub destination: MacAddr,
    /// The frames.
    pub count: FrameCount,
}

/// Two addresses, as numbers that are compared quickly.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PairKey {
    source: u64,
    destination: u64,
}

/// A pair, and its counts.
#[derive(Clone, Copy)]
struct Entry {
    key: PairKey,
    count: FrameCount,
    /// The number of the last frame; 0 for an entry without a pair.
    last: u64,
}

impl Entry {
    /// No pair has this source, because an address has 48 bits.
    const EMPTY: Self =
        Self { key: PairKey { source: u64::MAX, destination: 0 }, count: FrameCount { frames: 0, bytes: 0 }, last: 0 };
}

/// The counts of a network by source and destination.
pub struct TrafficMatrix {
    hash: KeyedHash,
    /// Empty until the first frame.
    entries: Vec<Entry>,
    /// The places of two pairs that were counted lately: mostly those of a stream and its acknowledgements.
    recent: [usize; 2],
    frames: u64,
    others: FrameCount,
}

impl TrafficMatrix {
    /// Makes an empty matrix. Guests do not know the key, so that they cannot choose the set of a pair.
    pub fn new(hash_key: [u64; 2]) -> Self {
        Self {
            hash: KeyedHash::new(hash_key),
            entries: Vec::new(),
            recent: [0; 2],
            frames: 0,
            others: FrameCount::default(),
        }
    }

    /// Counts a frame. Allocates only for the first frame.
    #[inline]
    pub fn count(&mut self, source: MacAddr, destination: MacAddr, bytes: usize) {
        let destination = if destination.is_group() { MacAddr::BROADCAST } else { destination };
        let key = PairKey { source: source.bits(), destination: destination.bits() };
        self.frames += 1;
        let is_at = |at: &usize| self.entries.get(*at).is_some_and(|entry| entry.key == key);
        let at = match self.recent.into_iter().find(is_at) {
            Some(at) => at,
            None => {
                let at = self.place(key);
                self.recent = [at, self.recent[0]];
                at
            }
        };
        let entry = &mut self.entries[at];
        entry.last = self.frames;
        entry.count.add(FrameCount { frames: 1, bytes: bytes as u64 });
    }

    /// Returns the place of a pair, which it gets if it had none.
    #[inline(never)]
    fn place(&mut self, key: PairKey) -> usize {
        if self.entries.is_empty() {
            self.entries.resize(PAIRS_MAX, Entry::EMPTY);
        }
        let first = (self.hash.hash_one(key) as usize & (SETS - 1)) * WAYS;
        let (mut oldest, mut at) = (first, first);
        while at < first + WAYS {
            if self.entries[at].key == key {
                return at;
            }
            if self.entries[at].last < self.entries[oldest].last {
                oldest = at;
            }
            at += 1;
        }
        self.others.add(self.entries[oldest].count);
        self.entries[oldest] = Entry { key, ..Entry::EMPTY };
        oldest
    }

    /// The pairs, in no order.
    pub fn pairs(&self) -> impl Iterator<Item = PairCount> {
        let pair = |entry: &Entry| PairCount {
            source: MacAddr::from_bits(entry.key.source),
            destination: MacAddr::from_bits(entry.key.destination),
            count: entry.count,
        };
        self.entries.iter().filter(|entry| entry.last > 0).map(pair)
    }

    /// The frames of pairs that lost their place to others.
    pub fn others(&self) -> FrameCount {
        self.others
    }
}

impl FrameCount {
    fn add(&mut self, more: Self) {
        self.frames += more.frames;
        self.bytes += more.bytes;
    }
}

impl core::fmt::Debug for TrafficMatrix {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TrafficMatrix")
            .field("frames", &self.frames)
            .field("others", &self.others)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn station(number: u64) -> MacAddr {
        MacAddr::from_bits(0x0200_0000_0000 + number)
    }

    fn matrix() -> TrafficMatrix {
        TrafficMatrix::new([1, 2])
    }

    fn of(matrix: &TrafficMatrix, source: u64, destination: MacAddr) -> Option<FrameCount> {
        let mut pairs = matrix.pairs().filter(|pair| pair.source == station(source) && pair.destination == destination);
        let found = pairs.next().map(|pair| pair.count);
        assert_eq!(pairs.next(), None);
        found
    }

    #[test]
    fn counts_by_direction_with_all_groups_as_one_destination() {
        let mut matrix = matrix();
        assert_eq!(matrix.pairs().count(), 0);
        for bytes in [60, 1500, 60] {
            matrix.count(station(1), station(2), bytes);
            matrix.count(station(2), station(1), 60);
        }
        matrix.count(station(1), MacAddr::BROADCAST, 42);
        matrix.count(station(1), MacAddr([0x33, 0x33, 0, 0, 0, 1]), 86);
        assert_eq!(of(&matrix, 1, station(2)), Some(FrameCount { frames: 3, bytes: 1620 }));
        assert_eq!(of(&matrix, 2, station(1)), Some(FrameCount { frames: 3, bytes: 180 }));
        assert_eq!(of(&matrix, 1, MacAddr::BROADCAST), Some(FrameCount { frames: 2, bytes: 128 }));
        assert_eq!((matrix.pairs().count(), matrix.others()), (3, FrameCount::default()));
    }

    #[test]
    fn a_full_matrix_keeps_who_talks_and_every_frame_is_in_a_count() {
        let mut matrix = matrix();
        let flood = 4 * PAIRS_MAX as u64;
        for number in 0..flood {
            matrix.count(station(1), station(2), 100); // Talks all the time.
            matrix.count(station(10 + number), station(3), 10);
        }
        assert_eq!(matrix.pairs().count(), PAIRS_MAX);
        assert_eq!(of(&matrix, 1, station(2)), Some(FrameCount { frames: flood, bytes: 100 * flood }));
        let mut total = matrix.others();
        assert!(total.frames >= flood - PAIRS_MAX as u64);
        matrix.pairs().for_each(|pair| total.add(pair.count));
        assert_eq!(total, FrameCount { frames: 2 * flood, bytes: 110 * flood });
    }

    #[test]
    fn a_pair_that_was_silent_for_longest_gives_up_its_place() {
        let mut matrix = matrix();
        let set = |number: u64, matrix: &TrafficMatrix| {
            let key = PairKey { source: station(number).bits(), destination: station(0).bits() };
            matrix.hash.hash_one(key) as usize & (SETS - 1)
        };
        let same: Vec<_> = (1..).filter(|&number| set(number, &matrix) == 0).take(WAYS + 1).collect();
        let (last, first) = same.split_last().expect("several");
        first.iter().for_each(|&number| matrix.count(station(number), station(0), 1));
        matrix.count(station(same[0]), station(0), 1); // The second is now the one that was silent for longest.
        matrix.count(station(*last), station(0), 1);
        assert_eq!(of(&matrix, same[1], station(0)), None);
        let left = [same[0], same[2], *last].map(|number| of(&matrix, number, station(0)).map(|count| count.frames));
        assert_eq!(left, [Some(2), Some(1), Some(1)]);
        assert_eq!(matrix.others(), FrameCount { frames: 1, bytes: 1 });
    }
}
