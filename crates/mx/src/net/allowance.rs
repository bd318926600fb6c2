//! How much may be on its way to an endpoint in answer to its questions: as much as finds room before the slowest line.
//!
//! ```text
//!   bytes ▲      ╱╲    ╱╲    ╱╲        a round: as many bytes come as may be on their way
//!         │    ╱   ╲ ╱   ╲ ╱   ╲       frames are missing, and answers take long: less of it
//!         │  ╱                         next to none is missing, and it was all in use: more of it
//!         └──────────────────────►
//! ```
//!
//! A queue that is full loses what comes in excess, and answers take long because of it. A wire that loses frames by itself loses no
//! fewer when less is on its way: there, less would only be slower, and what it loses is what is usual.

/// What a new endpoint begins with.
const FIRST: u32 = 3 << 19;

/// Less would be one question at a time, which it is with less than a block already.
const LEAST: u32 = 1 << 16;

/// Of 1024 frames so many are missing beyond the usual, and answers take long: the queue is too short.
const MANY: u32 = 64;

/// The same, whatever answers take.
const FAR_TOO_MANY: u32 = 256;

/// As good as none.
const FEW: u32 = 16;

/// No wire loses more by itself.
const USUAL_MAX: u32 = 192;

/// Fewer frames say nothing.
const FRAMES: u32 = 128;

/// What was missing of 1024 frames before it became less.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Steady,
    /// What is missing in this round was asked for before.
    Settles(u32),
    /// What is missing in this round shows whether less helps.
    Tries(u32),
}

/// What the path carries, as far as it is known.
#[derive(Debug)]
pub(crate) struct Allowance {
    bytes: u32,
    /// Nothing was too much yet: it doubles each round, until answers take longer for it.
    doubles: bool,
    /// Bytes that come until this round is over.
    left: u32,
    /// Frames that came in this round.
    came: u32,
    /// Frames that were found to be missing.
    missing: u32,
    /// More would have been asked for.
    in_use: bool,
    /// Of 1024 frames the wire loses so many whatever is on the way.
    usual: u32,
    phase: Phase,
}

impl Allowance {
    pub(crate) const fn new() -> Self {
        let (doubles, in_use) = (true, false);
        Self { bytes: FIRST, doubles, left: FIRST, came: 0, missing: 0, in_use, usual: 0, phase: Phase::Steady }
    }

    /// Bytes that may be on their way.
    pub(crate) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// All that may be is on its way.
    pub(crate) const fn use_up(&mut self) {
        self.in_use = true;
    }

    /// So many frames that should be here were lost.
    pub(crate) const fn miss(&mut self, frames: u32) {
        self.missing = self.missing.saturating_add(frames);
    }

    /// A frame of so many bytes has come. `is_late` says whether answers take much longer than they could. There are never more than
    /// `most` bytes.
    pub(crate) fn take(&mut self, bytes: u32, is_late: bool, most: u32) {
        self.came += 1;
        self.left = self.left.saturating_sub(bytes);
        if self.left == 0 && self.came.saturating_add(self.missing) >= FRAMES {
            self.judge(is_late, most);
        }
    }

    fn judge(&mut self, is_late: bool, most: u32) {
        let before = self.bytes;
        let (came, all) = (u64::from(self.came), u64::from(self.came) + u64::from(self.missing));
        let lost = (1024 - 1024 * came / all) as u32;
        let phase = core::mem::replace(&mut self.phase, Phase::Steady);
        match phase {
            Phase::Tries(then) if 2 * lost >= then => self.usual = lost.min(USUAL_MAX),
            _ => self.usual -= self.usual.saturating_sub(lost) / 8,
        }
        let unusual = lost.saturating_sub(self.usual);
        if let Phase::Settles(then) = phase {
            self.phase = Phase::Tries(then);
        } else if unusual >= FAR_TOO_MANY || is_late && unusual >= if self.doubles { FEW } else { MANY } {
            // What came is what there is room for, and a little less empties the queue.
            let kept = u64::from(before) * came / all;
            self.bytes = ((kept - kept / 8) as u32).max(LEAST); // Less than before.
            (self.doubles, self.phase) = (false, Phase::Settles(lost));
        } else if self.in_use && unusual < FEW {
            let more = if self.doubles && !is_late { before } else { before / 16 };
            self.bytes = before.saturating_add(more).min(most.max(LEAST));
        }
        (self.left, self.came, self.missing, self.in_use) = (before.max(self.bytes), 0, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 4 << 20;
    const FRAME: u32 = 1 << 10;

    /// A round in which of 256 frames so many are missing.
    fn round(allowance: &mut Allowance, missing: u32, is_late: bool) -> u32 {
        allowance.use_up();
        let frames = allowance.left.div_ceil(FRAME).max(FRAMES);
        allowance.miss(frames * missing / (256 - missing.min(255)));
        (0..frames).for_each(|_| allowance.take(FRAME, is_late, MOST));
        allowance.bytes()
    }

    #[test]
    fn it_grows_while_nothing_is_lost_and_no_further_than_it_may() {
        let mut allowance = Allowance::new();
        assert_eq!(round(&mut allowance, 0, false), 2 * FIRST);
        assert_eq!(round(&mut allowance, 0, true), 2 * FIRST + FIRST / 8, "more would only wait");
        assert_eq!([round(&mut allowance, 0, false), round(&mut allowance, 0, false)], [MOST; 2]);
    }

    #[test]
    fn what_is_not_used_does_not_grow() {
        let mut allowance = Allowance::new();
        (0..4096).for_each(|_| allowance.take(FRAME, false, MOST));
        assert_eq!(allowance.bytes(), FIRST);
    }

    #[test]
    fn a_full_queue_makes_it_less_once_and_then_it_grows_slowly() {
        let mut allowance = Allowance::new();
        let less = round(&mut allowance, 128, true);
        assert!(less.abs_diff(FIRST / 2 - FIRST / 16) < FIRST / 256, "{less}");
        assert_eq!(round(&mut allowance, 128, true), less, "that was asked for before");
        let more = round(&mut allowance, 0, true);
        assert_eq!(more, less + less / 16);
        assert!(round(&mut allowance, 20, true) < more);
    }

    #[test]
    fn a_wire_that_loses_a_little_keeps_it_as_it_is_and_one_that_is_not_late_even_more() {
        let mut allowance = Allowance::new();
        round(&mut allowance, 40, true);
        round(&mut allowance, 0, true);
        let bytes = allowance.bytes();
        assert_eq!(round(&mut allowance, 10, true), bytes);
        assert_eq!(round(&mut allowance, 26, false), bytes);
        assert!(round(&mut allowance, 2, false) > bytes);
    }

    #[test]
    fn where_less_does_not_help_it_is_the_wire_that_loses() {
        let mut allowance = Allowance::new();
        let least = (0..100).map(|_| round(&mut allowance, 26, true)).min();
        assert!(least.is_some_and(|least| least > FIRST / 2), "{least:?}");
        assert_eq!(allowance.bytes(), MOST);
        assert!(round(&mut allowance, 128, true) < MOST, "this is more than it loses by itself");
    }

    #[test]
    fn it_never_ends() {
        let mut allowance = Allowance::new();
        (0..100).for_each(|_| _ = round(&mut allowance, 255, true));
        assert_eq!(allowance.bytes(), LEAST);
        (0..200).for_each(|_| _ = round(&mut allowance, 0, false));
        assert_eq!(allowance.bytes(), MOST);
    }
}
