//! Use counts of the buffers used last, in a table that never grows.

const SETS: usize = 64;
const WAYS: usize = 4;
/// Maximum number of times that misses double the required uses of a buffer.
const DOUBLINGS_MAX: u32 = 6;

/// Maximum number of times that misses double the required uses of all buffers of a program.
const MISS_DOUBLINGS_MAX: u32 = 4;

/// Use counts by the address of a buffer's first whole page. Lengths may vary from use to use.
#[derive(Debug)]
pub(super) struct ReuseStats {
    sets: Box<[[Candidate; WAYS]; SETS]>,
    clock: u64,
    /// Number of misses since the last hit of any buffer. A program with short-lived buffers usually has misses for all of them.
    misses: u32,
    /// This number of misses doubles the number of uses that is required of every buffer.
    misses_per_doubling: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    address: usize,
    uses: u32,
    doublings: u32,
    last: u64,
}

impl ReuseStats {
    pub(super) fn new(misses_per_doubling: u32) -> Self {
        let sets = Box::new([[Candidate::default(); WAYS]; SETS]);
        Self { sets, clock: 0, misses: 0, misses_per_doubling: misses_per_doubling.max(1) }
    }

    /// Counts a use of the buffer at `address`. Returns true when it has now been used `needed` times, or more often if
    /// it was a miss before.
    pub(super) fn count(&mut self, address: usize, needed: u32) -> bool {
        let doublings = (self.misses / self.misses_per_doubling).min(MISS_DOUBLINGS_MAX);
        let candidate = self.candidate(address);
        candidate.uses = candidate.uses.saturating_add(1);
        candidate.uses >= needed.saturating_mul(1 << candidate.doublings.max(doublings))
    }

    /// The buffer is migrated: counting starts anew when it is lost.
    pub(super) fn record_migrated(&mut self, address: usize) {
        self.candidate(address).uses = 0;
    }

    /// Migration was refused, or was lost again after few uses: next time it takes twice as many uses. So a program
    /// which frees and allocates between any two uses soon pays next to nothing for us.
    pub(super) fn record_miss(&mut self, address: usize) {
        let candidate = self.candidate(address);
        candidate.uses = 0;
        candidate.doublings = (candidate.doublings + 1).min(DOUBLINGS_MAX);
        self.misses = self.misses.saturating_add(1);
    }

    /// Records that a migrated buffer was reused, and resets the misses.
    pub(super) fn record_hit(&mut self, address: usize) {
        let candidate = self.candidate(address);
        candidate.uses = 0;
        candidate.doublings = 0;
        self.misses = 0;
    }

    /// Some buffer is used again and again: so others may be.
    pub(super) fn clear_misses(&mut self) {
        self.misses = 0;
    }

    fn candidate(&mut self, address: usize) -> &mut Candidate {
        self.clock += 1;
        // Buffers begin at pages, often at the same distance from each other: mix all the bits.
        let mixed = (address as u64 >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let set = &mut self.sets[(mixed >> 58) as usize];
        let way = (0..WAYS)
            .find(|&way| set[way].address == address)
            .or_else(|| (0..WAYS).min_by_key(|&way| set[way].last))
            .expect("a set has ways");
        let candidate = &mut set[way];
        if candidate.address != address {
            *candidate = Candidate { address, ..Candidate::default() };
        }
        candidate.last = self.clock;
        candidate
    }
}

const _: () = assert!(SETS == 1 << (64 - 58));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_is_ready_at_the_use_asked_for() {
        let mut stats = ReuseStats::new(2);
        assert_eq!([1, 2, 3].map(|_| stats.count(0x1000, 2)), [false, true, true]);
        assert!(stats.count(0x2000, 1), "the first use can be enough");
    }

    #[test]
    fn misses_double_the_threshold_and_hits_reset_it() {
        let mut stats = ReuseStats::new(2);
        stats.record_miss(0x1000);
        assert_eq!([1, 2, 3, 4].map(|_| stats.count(0x1000, 2)), [false, false, false, true]);
        for _ in 0..100 {
            stats.record_miss(0x1000);
        }
        let needed = (0..).position(|_| stats.count(0x1000, 2)).map(|before| before + 1);
        assert_eq!(needed, Some(2 << DOUBLINGS_MAX), "there is an end to it");
        stats.record_hit(0x1000);
        assert_eq!([1, 2].map(|_| stats.count(0x1000, 2)), [false, true]);
    }

    #[test]
    fn buffers_that_come_and_go_make_every_buffer_wait() {
        let mut stats = ReuseStats::new(2);
        for buffer in 1..=2 {
            stats.record_miss(buffer << 20);
        }
        assert_eq!([1, 2, 3, 4].map(|_| stats.count(0x7000, 2)), [false, false, false, true]);
        for buffer in 1..=1000 {
            stats.record_miss(buffer << 20);
        }
        let patient = 2 << MISS_DOUBLINGS_MAX;
        assert_eq!((1..=patient).filter(|_| stats.count(0x9000, 2)).count(), 1, "but not for ever");
        stats.clear_misses();
        assert_eq!([1, 2].map(|_| stats.count(0x8000, 2)), [false, true]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "a hundred thousand uses take minutes, and touch no memory but a map's")]
    fn the_least_recently_used_makes_room() {
        let mut stats = ReuseStats::new(2);
        for page in 1..=100_000usize {
            stats.count(0x7000, 3);
            stats.count(0x1_0000 + page * 4096, 2);
        }
        assert!(stats.count(0x7000, 100_000), "used all along, so remembered all along");
        assert!(!stats.count(0x1_0000 + 4096, 2), "forgotten");
    }
}
