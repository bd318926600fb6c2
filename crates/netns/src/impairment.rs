//! The effect of an impaired wire on each frame. The code is pure: the caller counts the time, in nanoseconds.
//!
//! ```text
//!   push(now, bytes) ─► full? ─► serialise at the rate ─► lost? ─► delay + jitter ─► due ─► hold back? ─► pop(now)
//!                       drop     (frame + 24 octets)      drop     order is kept             overtaken by 1..=8
//! ```
//!
//! Chance is a function of the seed and of the frame's number in its direction ([`FrameFate::of`]), so which frames are lost does
//! not depend on time, and changing one probability does not move the others' choices.

use std::collections::VecDeque;

/// Octets each frame takes on the line beside those that a packet socket sees: preamble and start delimiter (8), frame check
/// sequence (4), gap between frames (12).
pub const LINE_OVERHEAD_BYTES: u32 = 24;

/// The shortest frame of Ethernet without its check sequence: shorter ones are padded on the line.
pub const FRAME_BYTES_MIN: u32 = 60;

/// The most frames by which one that is held back is overtaken.
pub const OVERTAKEN_MAX: u8 = 8;

/// The time for which a frame is held back if no later frame overtakes it.
pub const HOLD_NS: u64 = 2_000_000;

/// Frames under way in one direction, whatever the delay: a bound of memory.
const FRAMES_MAX: usize = 65_536;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// The impairments of a wire, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairments {
    /// Probability that a frame is lost on the way (0.01 is 1 %); it has taken its time on the line.
    pub loss: f64,
    /// Probability that a frame comes twice; the copy takes its own time on the line.
    pub duplicate: f64,
    /// Probability that a frame is held back until 1 to [`OVERTAKEN_MAX`] later ones have overtaken it, or [`HOLD_NS`] passed.
    pub reorder: f64,
    /// Delay in one direction: a round trip takes twice that.
    pub delay_us: u32,
    /// Up to this much more delay, by chance; the order is kept.
    pub jitter_us: u32,
    /// Bits per second on the line, where a frame of n bytes takes n + [`LINE_OVERHEAD_BYTES`]; `None`: as fast as it goes.
    pub rate_bits: Option<u64>,
    /// The number of bytes that may wait for the line, as in the buffer of a switch. Frames beyond it are dropped.
    pub queue_bytes: u32,
    /// Chance starts from here.
    pub seed: u64,
}

/// The random outcome for one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameFate {
    /// The frame does not arrive.
    pub is_lost: bool,
    /// The frame arrives twice, if it arrives.
    pub is_doubled: bool,
    /// The number of later frames that overtake the frame, 0 if it stays in order.
    pub overtaken_by: u8,
    /// The frame's share of the jitter, in units of 2^-32.
    jitter: u32,
}

/// The direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireDirection {
    /// The direction from the first host of the wire to the second.
    Forth,
    /// The direction from the second host to the first.
    Back,
}

/// Counters of the frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that entered.
    pub offered: u64,
    /// Bytes of those, from the Ethernet header on.
    pub offered_bytes: u64,
    /// Frames that left, copies included.
    pub delivered: u64,
    /// Frames lost by chance.
    pub lost: u64,
    /// Copies made by chance.
    pub duplicated: u64,
    /// Frames that others overtook.
    pub reordered: u64,
    /// Frames for which the queue had no room.
    pub queue_full: u64,
    /// Frames that the far end refused: it was down, or its MTU too small.
    pub rejected: u64,
    /// Frames that the wire was too slow to take in: they are in none of the other counts. Exact once all is quiet.
    pub overrun: u64,
    /// The longest frame that entered.
    pub longest_bytes: u64,
}

/// When the last bit of each frame has left, at a rate: exact, nothing is rounded away between frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shaper {
    free_at: u64,
    /// The remainder that did not fill a nanosecond yet, in units of 1/rate nanosecond.
    remainder: u64,
}

/// One direction of a wire and the frames on it.
#[derive(Debug)]
pub struct ImpairedLine<F> {
    conditions: Impairments,
    direction: WireDirection,
    next: u64,
    shaper: Shaper,
    last_due: u64,
    in_flight: VecDeque<InFlight<F>>,
    reordered: Vec<ReorderedFrame<F>>,
    counters: Counters,
}

#[derive(Debug)]
struct InFlight<F> {
    due: u64,
    overtaken_by: u8,
    frame: F,
}

#[derive(Debug)]
struct ReorderedFrame<F> {
    until: u64,
    remaining: u8,
    is_overtaken: bool,
    frame: F,
}

impl Default for Impairments {
    /// A good wire: nothing lost, no delay, no limit of its rate.
    fn default() -> Self {
        let (loss, duplicate, reorder) = (0.0, 0.0, 0.0);
        let (delay_us, jitter_us, rate_bits) = (0, 0, None);
        Self { loss, duplicate, reorder, delay_us, jitter_us, rate_bits, queue_bytes: 4 << 20, seed: 1 }
    }
}

impl FrameFate {
    /// Returns the fate of frame `number` (from 0) in this direction.
    pub fn of(conditions: &Impairments, direction: WireDirection, number: u64) -> Self {
        let stream = match direction {
            WireDirection::Forth => 0,
            WireDirection::Back => 0x5851_F42D_4C95_7F2D,
        };
        let base = mix(conditions.seed ^ stream).wrapping_add(number);
        let draw = |which: u64| mix(mix(base) ^ which);
        let happens = |which: u64, probability: f64| unit(draw(which)) < probability;
        let depth = 1 + (draw(3) % u64::from(OVERTAKEN_MAX)) as u8;
        Self {
            is_lost: happens(0, conditions.loss),
            is_doubled: happens(1, conditions.duplicate),
            overtaken_by: if happens(2, conditions.reorder) { depth } else { 0 },
            jitter: (draw(4) >> 32) as u32,
        }
    }
}

/// Steele, Lea and Flood's finaliser of SplitMix64: each input gives another output, and no pattern shows.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Returns a number from 0 to just below 1.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

impl Shaper {
    /// Returns the time at which a frame of `bytes` that comes at `now` has left a line of `rate_bits`.
    pub fn leave(&mut self, now: u64, bytes: u32, rate_bits: u64) -> u64 {
        if self.free_at < now {
            (self.free_at, self.remainder) = (now, 0);
        }
        let bits = 8 * u64::from(bytes.max(FRAME_BYTES_MIN) + LINE_OVERHEAD_BYTES);
        let parts = u128::from(bits) * u128::from(NS_PER_SECOND) + u128::from(self.remainder);
        let rate = u128::from(rate_bits.max(1));
        self.free_at = self.free_at.saturating_add(u64::try_from(parts / rate).unwrap_or(u64::MAX));
        self.remainder = (parts % rate) as u64; // Below the rate, which is a u64.
        self.free_at
    }

    /// Returns the number of bytes that have come and not left, at `now`.
    pub fn backlog_bytes(&self, now: u64, rate_bits: u64) -> u64 {
        let wait = u128::from(self.free_at.saturating_sub(now));
        (wait * u128::from(rate_bits) / u128::from(8 * NS_PER_SECOND)).try_into().unwrap_or(u64::MAX)
    }
}

impl<F: Clone> ImpairedLine<F> {
    /// An empty line.
    pub fn new(conditions: Impairments, direction: WireDirection) -> Self {
        let (shaper, counters) = (Shaper::default(), Counters::default());
        let (in_flight, reordered) = (VecDeque::new(), Vec::new());
        Self { conditions, direction, next: 0, shaper, last_due: 0, in_flight, reordered, counters }
    }

    /// Other conditions for frames that come from now on. Another seed starts chance anew: the next frame has number 0.
    pub fn change(&mut self, conditions: Impairments) {
        if conditions.seed != self.conditions.seed {
            self.next = 0;
        }
        self.conditions = conditions;
    }

    /// Returns the impairments of this direction.
    pub fn conditions(&self) -> Impairments {
        self.conditions
    }

    /// Returns the counters of this direction.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// A frame of `bytes` (from the Ethernet header on, without the check sequence) enters.
    pub fn push(&mut self, now: u64, bytes: u32, frame: F) {
        let fate = FrameFate::of(&self.conditions, self.direction, self.next);
        self.next += 1;
        self.counters.offered += 1;
        self.counters.offered_bytes += u64::from(bytes);
        self.counters.longest_bytes = self.counters.longest_bytes.max(u64::from(bytes));
        let Some(left) = self.serialise(now, bytes) else {
            self.counters.queue_full += 1;
            return;
        };
        if fate.is_lost {
            self.counters.lost += 1;
            return;
        }
        let copy = fate.is_doubled.then(|| frame.clone());
        self.schedule(left, fate, frame);
        if let Some(copy) = copy
            && let Some(left) = self.serialise(now, bytes)
        {
            self.counters.duplicated += 1;
            self.schedule(left, FrameFate { overtaken_by: 0, ..fate }, copy);
        }
    }

    /// Returns the time at which the last bit of the frame is on the line, or `None` if there is no room for the frame before the line.
    fn serialise(&mut self, now: u64, bytes: u32) -> Option<u64> {
        if self.in_flight.len() + self.reordered.len() >= FRAMES_MAX {
            return None;
        }
        let Some(rate) = self.conditions.rate_bits else { return Some(now) };
        let waiting = self.shaper.backlog_bytes(now, rate);
        (waiting + u64::from(bytes) <= u64::from(self.conditions.queue_bytes))
            .then(|| self.shaper.leave(now, bytes, rate))
    }

    fn schedule(&mut self, left: u64, fate: FrameFate, frame: F) {
        let jitter = (u64::from(self.conditions.jitter_us) * 1000 * u64::from(fate.jitter)) >> 32;
        let due = left + u64::from(self.conditions.delay_us) * 1000 + jitter;
        self.last_due = self.last_due.max(due); // What came later arrives later, even when the delay was made shorter.
        self.in_flight.push_back(InFlight { due: self.last_due, overtaken_by: fate.overtaken_by, frame });
    }

    /// The next frame that has arrived by `now`.
    pub fn pop(&mut self, now: u64) -> Option<F> {
        loop {
            if let Some(at) =
                self.reordered.iter().position(|reordered| reordered.remaining == 0 || reordered.until <= now)
            {
                let reordered = self.reordered.remove(at);
                self.counters.reordered += u64::from(reordered.is_overtaken);
                return Some(self.deliver(reordered.frame));
            }
            let arrived = self.in_flight.pop_front_if(|first| first.due <= now)?;
            if arrived.overtaken_by > 0 {
                let (until, remaining) = (arrived.due.saturating_add(HOLD_NS), arrived.overtaken_by);
                self.reordered.push(ReorderedFrame { until, remaining, is_overtaken: false, frame: arrived.frame });
                continue;
            }
            for reordered in &mut self.reordered {
                (reordered.remaining, reordered.is_overtaken) = (reordered.remaining - 1, true); // None is at 0: that one went first.
            }
            return Some(self.deliver(arrived.frame));
        }
    }

    fn deliver(&mut self, frame: F) -> F {
        self.counters.delivered += 1;
        frame
    }

    /// The far end did not take the frame that [`ImpairedLine::pop`] gave.
    pub fn refuse(&mut self) {
        self.counters.delivered -= 1;
        self.counters.rejected += 1;
    }

    /// Returns the time at which [`ImpairedLine::pop`] will have a frame, as far as is known now.
    pub fn next_due(&self) -> Option<u64> {
        let reordered =
            self.reordered.iter().map(|reordered| if reordered.remaining == 0 { 0 } else { reordered.until }).min();
        let first = self.in_flight.front().map(|first| first.due);
        [reordered, first].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
