//! Frames that circulate: a bridge of a user connects two interfaces, and each flooded frame comes back by one of them.
//!
//! Source addresses show most loops, because a frame then comes by two ports (`learned/moves.rs`). They do not show a frame that circulates in
//! one direction: it always comes by the port of its station. Such a frame is the same each time, so flooded frames are counted by a keyed
//! hash of their content. A beacon is the same each time, too, so frames of a port that has one station are not counted
//! (`network/sources.rs`): a bridge is behind the other ports. A frame that is flooded more than [`REPEATS_MAX`] times within [`WINDOW_MS`] is dropped, which ends it.
//!
//! The table is bounded. A frame takes the place of another one when that has been outnumbered, so the most frequent frames stay.

use alloc::vec::Vec;
use core::hash::{BuildHasher as _, Hasher as _};

use super::Millis;
use crate::mac::KeyedHash;

/// The number of times that the same frame is flooded in a window.
pub const REPEATS_MAX: u32 = 128;

/// The length of a window.
const WINDOW_MS: Millis = Millis(1_000);

/// The number of frames that are counted at a time.
const FRAMES_MAX: usize = 1_024;

/// The bytes of a frame that are compared, with its length.
const CONTENT_BYTES_MAX: usize = 2_048;

#[derive(Clone, Copy, Default)]
struct Counted {
    hash: u64,
    since: Millis,
    count: u32,
}

/// Counts of the frames that were flooded lately.
pub(super) struct Circulation {
    hash: KeyedHash,
    /// Empty until a frame is flooded.
    counted: Vec<Counted>,
}

/// Whether a frame circulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    /// The frame does not circulate.
    Few,
    /// The frame circulates, and was not reported yet.
    TooMany,
    /// The frame circulates, which was reported.
    Known,
}

impl Circulation {
    pub(super) fn new(hash: KeyedHash) -> Self {
        Self { hash, counted: Vec::new() }
    }

    /// Notes a frame that is to be flooded.
    pub(super) fn note(&mut self, now: Millis, frame: &[u8]) -> Repeats {
        if self.counted.is_empty() {
            self.counted.resize(FRAMES_MAX, Counted::default());
        }
        let mut hasher = self.hash.build_hasher();
        hasher.write_usize(frame.len());
        hasher.write(&frame[..frame.len().min(CONTENT_BYTES_MAX)]);
        let hash = hasher.finish();
        let counted = &mut self.counted[hash as usize % FRAMES_MAX];
        if now.since(counted.since) >= WINDOW_MS || counted.count == 0 {
            *counted = Counted { hash, since: now, count: 1 };
        } else if counted.hash == hash {
            counted.count = counted.count.saturating_add(1);
        } else {
            counted.count -= 1;
            return Repeats::Few;
        }
        match counted.count {
            ..=REPEATS_MAX => Repeats::Few,
            count if count == REPEATS_MAX + 1 => Repeats::TooMany,
            _ => Repeats::Known,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circulation() -> Circulation {
        Circulation::new(KeyedHash::new([3, 5]))
    }

    #[test]
    fn a_frame_that_repeats_is_found_once_and_forgotten_with_its_window() {
        let mut circulation = circulation();
        for second in [5_000, 6_000] {
            let frame = [7; 60];
            let noted: Vec<_> = (0..131).map(|step| circulation.note(Millis(second + step), &frame)).collect();
            assert!(noted[..128].iter().all(|noted| *noted == Repeats::Few));
            assert_eq!(noted[128..], [Repeats::TooMany, Repeats::Known, Repeats::Known]);
        }
    }

    #[test]
    fn frames_that_differ_anywhere_or_in_length_do_not_repeat() {
        let mut circulation = circulation();
        for number in 0..2_000_u16 {
            let mut frame = [0; 1_514];
            frame[1_512..].copy_from_slice(&number.to_be_bytes());
            assert_eq!(circulation.note(Millis(5), &frame), Repeats::Few);
            assert_eq!(circulation.note(Millis(5), &frame[..usize::from(number % 1_500)]), Repeats::Few);
        }
    }

    #[test]
    fn frequent_frames_are_found_among_many_others() {
        let mut circulation = circulation();
        let mut found = 0;
        for step in 0..20_000_u32 {
            let others = (step % 5_000).to_be_bytes();
            circulation.note(Millis(5), &others);
            found += u32::from(circulation.note(Millis(5), b"the same") == Repeats::TooMany);
        }
        assert!(found >= 1, "the other frames have displaced it");
    }
}
