//! The pulling side of a transfer: which frames have been requested, and which are still missing (mxoe-wire 10.2, 10.3).
//!
//! ```text
//!   blocks      done │ asked for: 4 at a time                 │ not yet
//!   frames      ████ │ ██░█ ████ █░░░ ░░░░                    │
//!                      ▲ its last frame is here: the hole is asked for at once, not when time is up
//! ```
//!
//! Frames of a block travel in order on most wires. So the last frame of a block, or a later block that is complete, shows that
//! the frames missing before it were lost. Only the missing frames are requested again. A timeout finds the other losses: of the
//! end of the transfer, or of the request.

use super::blocks::{BlockRequest, FrameSlice, TransferLayout};
use super::tuning::{EndpointTuning, RoundTrip};
use super::{Ignored, Time};
use alloc::collections::VecDeque;

/// Limit of the requests that wait to be sent: a block with every other frame missing has 32 holes.
const REQUESTS_MAX: usize = 64;

/// Consecutive timeouts after which every pending frame counts as lost, not as late.
const LOST_AFTER_TIMEOUTS: u32 = 3;

#[derive(Debug)]
struct Block {
    first: u32,
    frames: u32,
    /// A bit for each missing frame.
    missing: u64,
    /// When the block was last requested.
    requested_at: Time,
    /// The block was requested only once, and no frame of it has arrived.
    is_first_request: bool,
}

impl Block {
    const fn bits(frames: u32) -> u64 {
        if frames >= 64 { u64::MAX } else { (1 << frames) - 1 }
    }
}

/// A transfer in progress.
#[derive(Debug)]
pub(crate) struct PullTransfer {
    layout: TransferLayout,
    block_frames: u32,
    length: u32,
    blocks: VecDeque<Block>,
    blocks_in_flight: usize,
    next_block: u32,
    /// No bytes beyond this one are requested.
    limit: u32,
    /// The estimate of the bytes in flight, of blocks that were requested and are not complete. Bytes that did not arrive in time do not
    /// count: they were lost, or their sender does not have them yet.
    in_flight: u32,
    /// The requests to send: the first frame, and the number of frames.
    requests: VecDeque<(u32, u32)>,
    /// When the last frame arrived, or when a request was made with none pending.
    last: Time,
    /// When the last frame arrived, or when everything was requested again.
    last_seen: Time,
    /// The number of timeouts since then after which everything was requested again.
    timeouts: u32,
    round_trip: RoundTrip,
    /// The number of re-requested frames that are not counted yet, and the number of those that later frames show to be
    /// lost.
    rerequested: (u32, u32),
}

impl PullTransfer {
    pub(crate) fn new(
        now: Time,
        layout: TransferLayout,
        block_frames: u32,
        (length, limit): (u32, u32),
        tuning: &EndpointTuning,
        known: RoundTrip,
    ) -> Self {
        Self {
            layout,
            block_frames,
            length,
            blocks: VecDeque::new(),
            blocks_in_flight: tuning.blocks_in_flight.clamp(1, (256 / block_frames.max(1)) as usize),
            next_block: 0,
            limit,
            in_flight: 0,
            requests: VecDeque::new(),
            last: now,
            last_seen: now,
            timeouts: 0,
            round_trip: known,
            rerequested: (0, 0),
        }
    }

    /// Returns the estimate of the bytes in flight.
    pub(crate) const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the length of the transfer in bytes.
    pub(crate) const fn length(&self) -> u32 {
        self.length
    }

    /// Returns true if every byte has arrived.
    pub(crate) fn is_over(&self) -> bool {
        self.blocks.is_empty() && self.next_block == self.layout.blocks()
    }

    /// Permits requests up to this byte.
    pub(crate) fn allow(&mut self, limit: u32) {
        self.limit = self.limit.max(limit);
    }

    /// Returns the next request to send.
    pub(crate) fn next_request(&mut self) -> Option<BlockRequest> {
        let (first, frames) = self.requests.pop_front()?;
        Some(self.layout.ask(first, frames))
    }

    /// Returns true if there is a request to send.
    pub(crate) fn has_request(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Returns the number of frames re-requested since the last call, and the number of those that later frames show to
    /// be lost.
    pub(crate) fn take_rerequest_counts(&mut self) -> (u32, u32) {
        core::mem::take(&mut self.rerequested)
    }

    /// Sets the round trip of replies.
    pub(crate) const fn learn(&mut self, round_trip: RoundTrip) {
        self.round_trip = round_trip;
    }

    /// Receives a frame, and returns the position of its bytes. Returns also the time of the request, if the frame
    /// measures a round trip.
    pub(crate) fn accept(&mut self, now: Time, frame_seqnum: u8, slice: FrameSlice) -> Result<Option<Time>, Ignored> {
        let window = self.blocks.front().ok_or(Ignored::NoSuchPull)?.first;
        let ahead = u32::from(frame_seqnum.wrapping_sub(window as u8));
        let index = (ahead / self.block_frames) as usize;
        let block = self.blocks.get_mut(index).ok_or(Ignored::Unrequested)?;
        let frame = ahead % self.block_frames;
        if frame >= block.frames || self.layout.slice(window + ahead) != slice {
            return Err(Ignored::Unrequested);
        }
        if block.missing >> frame & 1 == 0 {
            return Err(Ignored::Duplicate);
        }
        block.missing &= !(1 << frame);
        let sample = core::mem::replace(&mut block.is_first_request, false).then_some(block.requested_at);
        (self.last_seen, self.last, self.timeouts) = (now, now, 0);
        if block.missing == 0 || frame + 1 == block.frames {
            let (whole, last) = (block.missing == 0, index);
            self.rerequest_missing(now, if whole { last } else { last + 1 });
        }
        while let Some(block) = self.blocks.pop_front_if(|block| block.missing == 0) {
            let bytes = self.layout.ask(block.first, block.frames).block_length;
            self.in_flight = self.in_flight.saturating_sub(bytes);
        }
        Ok(sample)
    }

    /// Returns when the transfer has to be checked if no frame arrives.
    pub(crate) fn deadline(&self, tuning: &EndpointTuning) -> Time {
        if self.blocks.is_empty() {
            return Time::from_us(u64::MAX); // No request is pending.
        }
        let us = self.round_trip.overdue_us(tuning.pull_idle_us_min, tuning.pull_idle_us);
        let us = us.saturating_mul(1 << self.timeouts.min(20)).min(tuning.pull_idle_us);
        self.last_seen.after_us(us)
    }

    /// Returns the time without any requested frame.
    pub(crate) fn idle_us(&self, now: Time) -> u64 {
        if self.timeouts == 0 { 0 } else { now.since_us(self.last) }
    }

    /// Handles a timeout: requests everything that is missing again.
    pub(crate) fn expire(&mut self, now: Time) {
        self.last_seen = now;
        self.timeouts += 1;
        if self.timeouts >= LOST_AFTER_TIMEOUTS {
            self.in_flight = 0;
        }
        self.requests.clear();
        for index in 0..self.blocks.len() {
            let Block { frames, missing, .. } = self.blocks[index];
            if self.timeouts == 1 && missing != Block::bits(frames) {
                self.rerequested.1 += missing.count_ones(); // The end of the transfer was lost.
            }
            self.rerequest_block(now, index);
        }
    }

    /// Requests what is missing in the first blocks, unless the reply may still be in flight.
    fn rerequest_missing(&mut self, now: Time, blocks: usize) {
        let patience_us = self.round_trip.mean_us().unwrap_or(0);
        for index in 0..blocks {
            let block = &self.blocks[index];
            if block.missing != 0 && now.since_us(block.requested_at) >= patience_us {
                self.rerequested.1 += block.missing.count_ones();
                self.rerequest_block(now, index);
            }
        }
    }

    fn rerequest_block(&mut self, now: Time, index: usize) {
        let Some(block) = self.blocks.get_mut(index) else { return };
        (block.requested_at, block.is_first_request) = (now, false);
        let (first, mut missing) = (block.first, block.missing);
        while missing != 0 {
            let from = missing.trailing_zeros();
            let run = (missing >> from).trailing_ones();
            if self.requests.len() == REQUESTS_MAX {
                return;
            }
            self.requests.push_back((first + from, run));
            self.rerequested.0 += run;
            missing &= !(Block::bits(run) << from);
        }
    }

    /// Requests one more block, if the transfer permits it. The caller has ensured that the window has room.
    pub(crate) fn request_next_block(&mut self, now: Time) -> bool {
        if self.blocks.len() >= self.blocks_in_flight || self.next_block >= self.layout.blocks() {
            return false;
        }
        let (first, frames) = self.layout.block(self.next_block);
        if self.layout.slice(first).msg_offset >= self.limit {
            return false;
        }
        if self.blocks.is_empty() {
            (self.last_seen, self.last, self.timeouts) = (now, now, 0); // The pause was on our side.
        }
        self.next_block += 1;
        self.in_flight += self.layout.ask(first, frames).block_length;
        self.requests.push_back((first, frames));
        self.blocks.push_back(Block {
            first,
            frames,
            missing: Block::bits(frames),
            requested_at: now,
            is_first_request: true,
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const FRAME: u32 = 100;

    fn pull(blocks: u32) -> (TransferLayout, PullTransfer) {
        let length = blocks * 8 * FRAME;
        let layout = TransferLayout::new(FRAME, 8, 0, length);
        (
            layout,
            PullTransfer::new(
                Time::ZERO,
                layout,
                8,
                (length, length),
                &EndpointTuning::default(),
                RoundTrip::default(),
            ),
        )
    }

    fn asked(transfer: &mut PullTransfer) -> Vec<(u32, u32)> {
        while transfer.request_next_block(transfer.last_seen) {}
        core::iter::from_fn(|| transfer.next_request()).map(|ask| (ask.frame_index, ask.block_length / FRAME)).collect()
    }

    #[test]
    fn rerequests_missing_frames_when_the_last_frame_of_the_block_arrives() {
        let (layout, mut transfer) = pull(2);
        assert_eq!(asked(&mut transfer), [(0, 8), (8, 8)]);
        let now = Time::from_us(50);
        for frame in [0, 1, 4, 5, 7] {
            assert_eq!(transfer.accept(now, frame, layout.slice(frame.into())), Ok((frame == 0).then_some(Time::ZERO)));
        }
        assert_eq!(asked(&mut transfer), [(2, 2), (6, 1)]);
        assert_eq!(transfer.accept(now, 7, layout.slice(7)), Err(Ignored::Duplicate));
        assert_eq!(transfer.accept(now, 9, layout.slice(10)), Err(Ignored::Unrequested));
        assert_eq!(transfer.accept(now, 17, layout.slice(15)), Err(Ignored::Unrequested));
    }

    #[test]
    fn requests_more_blocks_as_blocks_complete() {
        let (layout, mut transfer) = pull(40);
        let mut frames = 0_u32;
        assert_eq!(transfer.in_flight(), 0);
        while !transfer.is_over() {
            let asked = asked(&mut transfer);
            assert!(!asked.is_empty());
            for (first, run) in asked {
                for frame in first..first + run {
                    assert!(transfer.accept(Time::from_us(9), frame as u8, layout.slice(frame)).is_ok());
                    frames += 1;
                }
            }
        }
        assert_eq!((frames, transfer.in_flight()), (320, 0));
    }

    #[test]
    fn requests_nothing_beyond_the_limit() {
        let length = 40 * 8 * FRAME;
        let layout = TransferLayout::new(FRAME, 8, 0, length);
        let mut transfer =
            PullTransfer::new(Time::ZERO, layout, 8, (length, 1), &EndpointTuning::default(), RoundTrip::default());
        assert_eq!(asked(&mut transfer), [(0, 8)]);
        (0..8).for_each(|frame| _ = transfer.accept(Time::from_us(1), frame, layout.slice(frame.into())).unwrap());
        assert_eq!((asked(&mut transfer), transfer.is_over()), (vec![], false));
        assert_eq!(transfer.deadline(&EndpointTuning::default()), Time::from_us(u64::MAX), "the silence is ours");
        transfer.allow(16 * FRAME + 1);
        assert_eq!(asked(&mut transfer), [(8, 8), (16, 8)]);
    }

    #[test]
    fn rerequests_after_a_timeout_and_gives_up_in_the_end() {
        let (_, mut transfer) = pull(1);
        let tuning = EndpointTuning { resends_max: 10, ..EndpointTuning::default() };
        let mut times = 0;
        loop {
            assert_eq!(asked(&mut transfer), [(0, 8)]);
            let now = transfer.deadline(&tuning);
            if transfer.idle_us(now) >= tuning.give_up_us() {
                assert!(now.us() >= 5_000_000 && now.us() < 7_000_000, "{now:?}");
                break;
            }
            transfer.expire(now);
            times += 1;
        }
        assert!(times >= 5, "{times}");
    }
}
