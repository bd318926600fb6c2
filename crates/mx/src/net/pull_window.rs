//! Congestion window for pulled data: the number of requested bytes that may be in flight, adapted to the slowest link on the path.
//!
//! ```text
//!   bytes ▲      ╱╲    ╱╲    ╱╲        a round: as many bytes come as may be on their way
//!         │    ╱   ╲ ╱   ╲ ╱   ╲       frames are missing, and answers take long: less of it
//!         │  ╱                         next to none is missing, and it was all in use: more of it
//!         └──────────────────────►
//! ```
//!
//! A full queue drops the excess and delays replies. A wire that loses frames on its own loses no fewer when less is in flight: a
//! smaller window would only be slower there, so its loss is taken as the baseline.

/// The initial window of a new endpoint.
const INITIAL_BYTES: u32 = 3 << 19;

/// The smallest window. A window of no more than one block already means one request at a time, so less would change nothing.
const BYTES_MIN: u32 = 1 << 16;

/// Lost frames of 1024 beyond the baseline that shrink the window if replies are late as well: a queue is full.
const LOSS_HIGH: u32 = 64;

/// Lost frames of 1024 beyond the baseline that shrink the window however fast replies are.
const LOSS_EXTREME: u32 = 256;

/// Lost frames of 1024 beyond the baseline that are as good as none.
const LOSS_NEGLIGIBLE: u32 = 16;

/// The highest baseline loss, of 1024 frames, because no wire loses more on its own.
const BASELINE_LOSS_MAX: u32 = 192;

/// The minimum number of frames in a round. Fewer are no reliable sample.
const ROUND_FRAMES_MIN: u32 = 128;

/// The phase after the window shrank. The values are the lost frames of 1024 before that.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Steady,
    /// The frames of this round were requested before the window shrank.
    Settling(u32),
    /// The loss of this round shows whether the smaller window helps.
    Probing(u32),
}

/// The estimate of the path's capacity.
#[derive(Debug)]
pub(crate) struct PullWindow {
    bytes: u32,
    /// No loss has occurred yet: the window doubles each round, until replies are delayed.
    is_slow_start: bool,
    /// The number of bytes left in this round.
    round_left: u32,
    /// The number of frames received in this round.
    received: u32,
    /// The number of frames found missing in this round.
    missing: u32,
    /// The window delayed a request.
    is_limited: bool,
    /// The frames of 1024 that the network loses regardless of the window.
    baseline_loss: u32,
    phase: Phase,
}

impl PullWindow {
    pub(crate) const fn new() -> Self {
        let (is_slow_start, is_limited) = (true, false);
        Self {
            bytes: INITIAL_BYTES,
            is_slow_start,
            round_left: INITIAL_BYTES,
            received: 0,
            missing: 0,
            is_limited,
            baseline_loss: 0,
            phase: Phase::Steady,
        }
    }

    /// Returns the window in bytes.
    pub(crate) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Records that the window delays a request.
    pub(crate) const fn mark_limited(&mut self) {
        self.is_limited = true;
    }

    /// Records that `frames` frames were lost.
    pub(crate) const fn record_lost(&mut self, frames: u32) {
        self.missing = self.missing.saturating_add(frames);
    }

    /// Records the arrival of a frame of `bytes` bytes. `is_late` says whether replies take much longer than the shortest. The window
    /// never exceeds `limit` bytes.
    pub(crate) fn record_frame(&mut self, bytes: u32, is_late: bool, limit: u32) {
        self.received += 1;
        self.round_left = self.round_left.saturating_sub(bytes);
        if self.round_left == 0 && self.received.saturating_add(self.missing) >= ROUND_FRAMES_MIN {
            self.end_round(is_late, limit);
        }
    }

    fn end_round(&mut self, is_late: bool, limit: u32) {
        let before = self.bytes;
        let (came, all) = (u64::from(self.received), u64::from(self.received) + u64::from(self.missing));
        let lost = (1024 - 1024 * came / all) as u32;
        let phase = core::mem::replace(&mut self.phase, Phase::Steady);
        match phase {
            Phase::Probing(then) if 2 * lost >= then => self.baseline_loss = lost.min(BASELINE_LOSS_MAX),
            _ => self.baseline_loss -= self.baseline_loss.saturating_sub(lost) / 8,
        }
        let unusual = lost.saturating_sub(self.baseline_loss);
        if let Phase::Settling(then) = phase {
            self.phase = Phase::Probing(then);
        } else if unusual >= LOSS_EXTREME
            || is_late && unusual >= if self.is_slow_start { LOSS_NEGLIGIBLE } else { LOSS_HIGH }
        {
            // The received bytes show the capacity. A little less lets the queue drain.
            let kept = u64::from(before) * came / all;
            self.bytes = ((kept - kept / 8) as u32).max(BYTES_MIN); // Smaller than before.
            (self.is_slow_start, self.phase) = (false, Phase::Settling(lost));
        } else if self.is_limited && unusual < LOSS_NEGLIGIBLE {
            let more = if self.is_slow_start && !is_late { before } else { before / 16 };
            self.bytes = before.saturating_add(more).min(limit.max(BYTES_MIN));
        }
        (self.round_left, self.received, self.missing, self.is_limited) = (before.max(self.bytes), 0, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 4 << 20;
    const FRAME: u32 = 1 << 10;

    /// Simulates a round in which `missing` of 256 frames are lost.
    fn round(pull_window: &mut PullWindow, missing: u32, is_late: bool) -> u32 {
        pull_window.mark_limited();
        let frames = pull_window.round_left.div_ceil(FRAME).max(ROUND_FRAMES_MIN);
        pull_window.record_lost(frames * missing / (256 - missing.min(255)));
        (0..frames).for_each(|_| pull_window.record_frame(FRAME, is_late, MOST));
        pull_window.bytes()
    }

    #[test]
    fn window_grows_to_its_maximum_while_nothing_is_lost() {
        let mut pull_window = PullWindow::new();
        assert_eq!(round(&mut pull_window, 0, false), 2 * INITIAL_BYTES);
        assert_eq!(round(&mut pull_window, 0, true), 2 * INITIAL_BYTES + INITIAL_BYTES / 8, "more would only wait");
        assert_eq!([round(&mut pull_window, 0, false), round(&mut pull_window, 0, false)], [MOST; 2]);
    }

    #[test]
    fn window_does_not_grow_when_unused() {
        let mut pull_window = PullWindow::new();
        (0..4096).for_each(|_| pull_window.record_frame(FRAME, false, MOST));
        assert_eq!(pull_window.bytes(), INITIAL_BYTES);
    }

    #[test]
    fn window_shrinks_once_on_a_full_queue_then_grows_slowly() {
        let mut pull_window = PullWindow::new();
        let less = round(&mut pull_window, 128, true);
        assert!(less.abs_diff(INITIAL_BYTES / 2 - INITIAL_BYTES / 16) < INITIAL_BYTES / 256, "{less}");
        assert_eq!(round(&mut pull_window, 128, true), less, "that was asked for before");
        let more = round(&mut pull_window, 0, true);
        assert_eq!(more, less + less / 16);
        assert!(round(&mut pull_window, 20, true) < more);
    }

    #[test]
    fn window_keeps_its_size_under_low_loss_and_grows_without_delay() {
        let mut pull_window = PullWindow::new();
        round(&mut pull_window, 40, true);
        round(&mut pull_window, 0, true);
        let bytes = pull_window.bytes();
        assert_eq!(round(&mut pull_window, 10, true), bytes);
        assert_eq!(round(&mut pull_window, 26, false), bytes);
        assert!(round(&mut pull_window, 2, false) > bytes);
    }

    #[test]
    fn window_treats_loss_as_baseline_when_shrinking_does_not_help() {
        let mut pull_window = PullWindow::new();
        let least = (0..100).map(|_| round(&mut pull_window, 26, true)).min();
        assert!(least.is_some_and(|least| least > INITIAL_BYTES / 2), "{least:?}");
        assert_eq!(pull_window.bytes(), MOST);
        assert!(round(&mut pull_window, 128, true) < MOST, "this is more than it loses alone");
    }

    #[test]
    fn window_recovers_from_its_minimum() {
        let mut pull_window = PullWindow::new();
        (0..100).for_each(|_| _ = round(&mut pull_window, 255, true));
        assert_eq!(pull_window.bytes(), BYTES_MIN);
        (0..200).for_each(|_| _ = round(&mut pull_window, 0, false));
        assert_eq!(pull_window.bytes(), MOST);
    }
}
