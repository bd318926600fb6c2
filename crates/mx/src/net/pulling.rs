//! The side that pulls: which frames of one transfer are asked for, and which are still missing (mxoe-wire 10.2, 10.3).
//!
//! ```text
//!   blocks      done │ asked for: 4 at a time                 │ not yet
//!   frames      ████ │ ██░█ ████ █░░░ ░░░░                    │
//!                      ▲ its last frame is here: the hole is asked for at once, not when time is up
//! ```
//!
//! Frames of a block travel in order on most wires. So the last frame of a block, or a later block that is whole, shows that
//! what is missing before it was lost. Only the missing frames are asked for again. What this cannot see (the end of the
//! transfer was lost, or the question) is found by time.

use super::blocks::{Ask, Cut, Slice};
use super::tuning::{RoundTrip, Tuning};
use super::{Ignored, Time};
use alloc::collections::VecDeque;

/// Questions that wait to be sent, at most: a block with every other frame missing has 32 holes.
const QUESTIONS_MAX: usize = 64;

/// Questions in vain after which nothing is on its way any more, late or not.
const AWAY: u32 = 3;

#[derive(Debug)]
struct Block {
    first: u32,
    frames: u32,
    /// A bit for each frame that is not here.
    missing: u64,
    /// When it was last asked for.
    asked: Time,
    /// It was asked for once only, and nothing of it is here.
    fresh: bool,
}

impl Block {
    const fn bits(frames: u32) -> u64 {
        if frames >= 64 { u64::MAX } else { (1 << frames) - 1 }
    }
}

/// A transfer under way.
#[derive(Debug)]
pub(crate) struct Pulling {
    cut: Cut,
    block_frames: u32,
    length: u32,
    blocks: VecDeque<Block>,
    blocks_in_flight: usize,
    next_block: u32,
    /// Nothing beyond this byte is asked for.
    limit: u32,
    /// Bytes that are on their way, as far as we know: of blocks that were asked for and are not whole. What did not come in time is
    /// not: it was lost, or its sender does not have it yet.
    in_flight: u32,
    /// Frames that are to be asked for: the first, and how many.
    questions: VecDeque<(u32, u32)>,
    /// When the last frame came, or something was asked for while nothing was.
    last: Time,
    /// The same, or when everything was asked for again.
    heard: Time,
    /// Times that everything was asked for in vain since.
    in_vain: u32,
    round_trip: RoundTrip,
    /// Frames that were asked for again and not counted yet, and those of them that were lost, as is seen by what came later.
    again: (u32, u32),
}

impl Pulling {
    pub(crate) fn new(
        now: Time,
        cut: Cut,
        block_frames: u32,
        (length, limit): (u32, u32),
        tuning: &Tuning,
        known: RoundTrip,
    ) -> Self {
        Self {
            cut,
            block_frames,
            length,
            blocks: VecDeque::new(),
            blocks_in_flight: tuning.blocks_in_flight.clamp(1, (256 / block_frames.max(1)) as usize),
            next_block: 0,
            limit,
            in_flight: 0,
            questions: VecDeque::new(),
            last: now,
            heard: now,
            in_vain: 0,
            round_trip: known,
            again: (0, 0),
        }
    }

    /// Bytes that are on their way, as far as we know.
    pub(crate) const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Bytes of the transfer.
    pub(crate) const fn length(&self) -> u32 {
        self.length
    }

    /// Whether every byte is here.
    pub(crate) fn is_over(&self) -> bool {
        self.blocks.is_empty() && self.next_block == self.cut.blocks()
    }

    /// Bytes up to this one may be asked for.
    pub(crate) fn allow(&mut self, limit: u32) {
        self.limit = self.limit.max(limit);
    }

    /// The next question to send.
    pub(crate) fn question(&mut self) -> Option<Ask> {
        let (first, frames) = self.questions.pop_front()?;
        Some(self.cut.ask(first, frames))
    }

    /// Whether there is a question to send.
    pub(crate) fn has_question(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Frames that were asked for again since the last call, and those of them that were lost, as is seen by what came later.
    pub(crate) fn take_again(&mut self) -> (u32, u32) {
        core::mem::take(&mut self.again)
    }

    /// What replies take was learned.
    pub(crate) const fn learn(&mut self, round_trip: RoundTrip) {
        self.round_trip = round_trip;
    }

    /// A frame has come: where its bytes belong. If it tells what replies take, when it was asked for.
    pub(crate) fn accept(&mut self, now: Time, frame_seqnum: u8, slice: Slice) -> Result<Option<Time>, Ignored> {
        let window = self.blocks.front().ok_or(Ignored::NoSuchPull)?.first;
        let ahead = u32::from(frame_seqnum.wrapping_sub(window as u8));
        let index = (ahead / self.block_frames) as usize;
        let block = self.blocks.get_mut(index).ok_or(Ignored::NotAskedFor)?;
        let frame = ahead % self.block_frames;
        if frame >= block.frames || self.cut.slice(window + ahead) != slice {
            return Err(Ignored::NotAskedFor);
        }
        if block.missing >> frame & 1 == 0 {
            return Err(Ignored::Duplicate);
        }
        block.missing &= !(1 << frame);
        let sample = core::mem::replace(&mut block.fresh, false).then_some(block.asked);
        (self.heard, self.last, self.in_vain) = (now, now, 0);
        if block.missing == 0 || frame + 1 == block.frames {
            let (whole, last) = (block.missing == 0, index);
            self.mend(now, if whole { last } else { last + 1 });
        }
        while let Some(block) = self.blocks.pop_front_if(|block| block.missing == 0) {
            let bytes = self.cut.ask(block.first, block.frames).block_length;
            self.in_flight = self.in_flight.saturating_sub(bytes);
        }
        Ok(sample)
    }

    /// When something is to be done if nothing comes.
    pub(crate) fn deadline(&self, tuning: &Tuning) -> Time {
        if self.blocks.is_empty() {
            return Time::from_us(u64::MAX); // Nothing was asked for.
        }
        let us = self.round_trip.overdue_us(tuning.pull_idle_us_min, tuning.pull_idle_us);
        let us = us.saturating_mul(1 << self.in_vain.min(20)).min(tuning.pull_idle_us);
        self.heard.after_us(us)
    }

    /// For so long nothing has come of what was asked for.
    pub(crate) fn silent_us(&self, now: Time) -> u64 {
        if self.in_vain == 0 { 0 } else { now.since_us(self.last) }
    }

    /// Time is up: asks for everything that is missing.
    pub(crate) fn expire(&mut self, now: Time) {
        self.heard = now;
        self.in_vain += 1;
        if self.in_vain >= AWAY {
            self.in_flight = 0;
        }
        self.questions.clear();
        for index in 0..self.blocks.len() {
            let Block { frames, missing, .. } = self.blocks[index];
            if self.in_vain == 1 && missing != Block::bits(frames) {
                self.again.1 += missing.count_ones(); // Its end was lost.
            }
            self.ask_again(now, index);
        }
    }

    /// Asks for what is missing in the first blocks, unless the answer may still be on its way.
    fn mend(&mut self, now: Time, blocks: usize) {
        let patience_us = self.round_trip.mean_us().unwrap_or(0);
        for index in 0..blocks {
            let block = &self.blocks[index];
            if block.missing != 0 && now.since_us(block.asked) >= patience_us {
                self.again.1 += block.missing.count_ones();
                self.ask_again(now, index);
            }
        }
    }

    fn ask_again(&mut self, now: Time, index: usize) {
        let Some(block) = self.blocks.get_mut(index) else { return };
        (block.asked, block.fresh) = (now, false);
        let (first, mut missing) = (block.first, block.missing);
        while missing != 0 {
            let from = missing.trailing_zeros();
            let run = (missing >> from).trailing_ones();
            if self.questions.len() == QUESTIONS_MAX {
                return;
            }
            self.questions.push_back((first + from, run));
            self.again.0 += run;
            missing &= !(Block::bits(run) << from);
        }
    }

    /// Asks for one more block, if it may be asked for by now: whoever calls has seen to it that there is room on the way.
    pub(crate) fn ask_for_more(&mut self, now: Time) -> bool {
        if self.blocks.len() >= self.blocks_in_flight || self.next_block >= self.cut.blocks() {
            return false;
        }
        let (first, frames) = self.cut.block(self.next_block);
        if self.cut.slice(first).msg_offset >= self.limit {
            return false;
        }
        if self.blocks.is_empty() {
            (self.heard, self.last, self.in_vain) = (now, now, 0); // It was we who were silent.
        }
        self.next_block += 1;
        self.in_flight += self.cut.ask(first, frames).block_length;
        self.questions.push_back((first, frames));
        self.blocks.push_back(Block { first, frames, missing: Block::bits(frames), asked: now, fresh: true });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const FRAME: u32 = 100;

    fn pull(blocks: u32) -> (Cut, Pulling) {
        let length = blocks * 8 * FRAME;
        let cut = Cut::new(FRAME, 8, 0, length);
        (cut, Pulling::new(Time::ZERO, cut, 8, (length, length), &Tuning::default(), RoundTrip::default()))
    }

    fn asked(pulling: &mut Pulling) -> Vec<(u32, u32)> {
        while pulling.ask_for_more(pulling.heard) {}
        core::iter::from_fn(|| pulling.question()).map(|ask| (ask.frame_index, ask.block_length / FRAME)).collect()
    }

    #[test]
    fn a_hole_is_asked_for_when_the_end_of_its_block_comes() {
        let (cut, mut pulling) = pull(2);
        assert_eq!(asked(&mut pulling), [(0, 8), (8, 8)]);
        let now = Time::from_us(50);
        for frame in [0, 1, 4, 5, 7] {
            assert_eq!(pulling.accept(now, frame, cut.slice(frame.into())), Ok((frame == 0).then_some(Time::ZERO)));
        }
        assert_eq!(asked(&mut pulling), [(2, 2), (6, 1)]);
        assert_eq!(pulling.accept(now, 7, cut.slice(7)), Err(Ignored::Duplicate));
        assert_eq!(pulling.accept(now, 9, cut.slice(10)), Err(Ignored::NotAskedFor));
        assert_eq!(pulling.accept(now, 17, cut.slice(15)), Err(Ignored::NotAskedFor));
    }

    #[test]
    fn more_is_asked_for_as_blocks_become_whole() {
        let (cut, mut pulling) = pull(40);
        let mut frames = 0_u32;
        assert_eq!(pulling.in_flight(), 0);
        while !pulling.is_over() {
            let asked = asked(&mut pulling);
            assert!(!asked.is_empty());
            for (first, run) in asked {
                for frame in first..first + run {
                    assert!(pulling.accept(Time::from_us(9), frame as u8, cut.slice(frame)).is_ok());
                    frames += 1;
                }
            }
        }
        assert_eq!((frames, pulling.in_flight()), (320, 0));
    }

    #[test]
    fn nothing_is_asked_for_beyond_what_is_allowed() {
        let length = 40 * 8 * FRAME;
        let cut = Cut::new(FRAME, 8, 0, length);
        let mut pulling = Pulling::new(Time::ZERO, cut, 8, (length, 1), &Tuning::default(), RoundTrip::default());
        assert_eq!(asked(&mut pulling), [(0, 8)]);
        (0..8).for_each(|frame| _ = pulling.accept(Time::from_us(1), frame, cut.slice(frame.into())).unwrap());
        assert_eq!((asked(&mut pulling), pulling.is_over()), (vec![], false));
        assert_eq!(pulling.deadline(&Tuning::default()), Time::from_us(u64::MAX), "the silence is ours");
        pulling.allow(16 * FRAME + 1);
        assert_eq!(asked(&mut pulling), [(8, 8), (16, 8)]);
    }

    #[test]
    fn silence_is_answered_by_asking_again_and_ends() {
        let (_, mut pulling) = pull(1);
        let tuning = Tuning { resends_max: 10, ..Tuning::default() };
        let mut times = 0;
        loop {
            assert_eq!(asked(&mut pulling), [(0, 8)]);
            let now = pulling.deadline(&tuning);
            if pulling.silent_us(now) >= tuning.give_up_us() {
                assert!(now.us() >= 5_000_000 && now.us() < 7_000_000, "{now:?}");
                break;
            }
            pulling.expire(now);
            times += 1;
        }
        assert!(times >= 5, "{times}");
    }
}
