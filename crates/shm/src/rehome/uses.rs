//! How often a buffer was used: the few last ones, in a table that never grows.

const SETS: usize = 64;
const WAYS: usize = 4;
/// How often a disappointment doubles the uses that are asked for.
const DOUBLINGS_MAX: u32 = 6;

/// The same for what all buffers of a program are made to wait for the sake of those that were re-homed in vain.
const DOUBTS_MAX: u32 = 4;

/// Use counts by the address of a buffer's first whole page. Lengths may vary from use to use.
#[derive(Debug)]
pub(super) struct Uses {
    sets: Box<[[Candidate; WAYS]; SETS]>,
    clock: u64,
    /// Disappointments since a buffer was last worth it: a program whose buffers come and go does so with all of them.
    doubts: u32,
    /// So many of them double the uses that are asked of every buffer.
    doubts_each: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    address: usize,
    uses: u32,
    doublings: u32,
    last: u64,
}

impl Uses {
    pub(super) fn new(doubts_each: u32) -> Self {
        let sets = Box::new([[Candidate::default(); WAYS]; SETS]);
        Self { sets, clock: 0, doubts: 0, doubts_each: doubts_each.max(1) }
    }

    /// Counts a use of the buffer at `address`; true when it has now been used `needed` times, or more often if
    /// it has disappointed us before.
    pub(super) fn count(&mut self, address: usize, needed: u32) -> bool {
        let doubts = (self.doubts / self.doubts_each).min(DOUBTS_MAX);
        let candidate = self.candidate(address);
        candidate.uses = candidate.uses.saturating_add(1);
        candidate.uses >= needed.saturating_mul(1 << candidate.doublings.max(doubts))
    }

    /// The buffer is re-homed: counting starts anew when it is lost.
    pub(super) fn rehomed(&mut self, address: usize) {
        self.candidate(address).uses = 0;
    }

    /// Re-homing was refused, or was lost again after few uses: next time it takes twice as many uses. So a program
    /// which frees and allocates between any two uses soon pays next to nothing for us.
    pub(super) fn disappointed(&mut self, address: usize) {
        let candidate = self.candidate(address);
        candidate.uses = 0;
        candidate.doublings = (candidate.doublings + 1).min(DOUBLINGS_MAX);
        self.doubts = self.doubts.saturating_add(1);
    }

    /// It was worth it: no doubts are left.
    pub(super) fn content(&mut self, address: usize) {
        let candidate = self.candidate(address);
        candidate.uses = 0;
        candidate.doublings = 0;
        self.doubts = 0;
    }

    /// Some buffer is used again and again: so others may be.
    pub(super) fn reassured(&mut self) {
        self.doubts = 0;
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
        let mut uses = Uses::new(2);
        assert_eq!([1, 2, 3].map(|_| uses.count(0x1000, 2)), [false, true, true]);
        assert!(uses.count(0x2000, 1), "the first use can be enough");
    }

    #[test]
    fn disappointment_doubles_and_content_forgives() {
        let mut uses = Uses::new(2);
        uses.disappointed(0x1000);
        assert_eq!([1, 2, 3, 4].map(|_| uses.count(0x1000, 2)), [false, false, false, true]);
        for _ in 0..100 {
            uses.disappointed(0x1000);
        }
        let needed = (0..).position(|_| uses.count(0x1000, 2)).map(|before| before + 1);
        assert_eq!(needed, Some(2 << DOUBLINGS_MAX), "there is an end to it");
        uses.content(0x1000);
        assert_eq!([1, 2].map(|_| uses.count(0x1000, 2)), [false, true]);
    }

    #[test]
    fn buffers_that_come_and_go_make_every_buffer_wait() {
        let mut uses = Uses::new(2);
        for buffer in 1..=2 {
            uses.disappointed(buffer << 20);
        }
        assert_eq!([1, 2, 3, 4].map(|_| uses.count(0x7000, 2)), [false, false, false, true]);
        for buffer in 1..=1000 {
            uses.disappointed(buffer << 20);
        }
        let patient = 2 << DOUBTS_MAX;
        assert_eq!((1..=patient).filter(|_| uses.count(0x9000, 2)).count(), 1, "but not for ever");
        uses.reassured();
        assert_eq!([1, 2].map(|_| uses.count(0x8000, 2)), [false, true]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "a hundred thousand uses take minutes, and touch no memory but a map's")]
    fn the_least_recently_used_makes_room() {
        let mut uses = Uses::new(2);
        for page in 1..=100_000usize {
            uses.count(0x7000, 3);
            uses.count(0x1_0000 + page * 4096, 2);
        }
        assert!(uses.count(0x7000, 100_000), "used all along, so remembered all along");
        assert!(!uses.count(0x1_0000 + 4096, 2), "forgotten");
    }
}
