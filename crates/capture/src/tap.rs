//! A bounded single-producer, single-consumer ring: from a worker that must not wait to a reader that may be slow.
//!
//! ```text
//!   words   … │ time │ interface, direction │ kept, had │ bytes of the frame… │ time │ …
//!               ▲ head: what is before it has been taken                       ▲ tail: what is before it has been put
//! ```
//!
//! The ring consists of atomic words, so that it needs no unsafe code. A frame is copied once into the producer's own memory and then word
//! by word into the ring. Positions count words and never wrap. Both sides are in one process and trust each other.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use crossbeam_utils::CachePadded;

use crate::{CaptureDirection, CapturedFrame, InterfaceIndex, InterfaceStatistics, SNAP_BYTES_MAX};

/// The number of words before a frame's bytes.
const HEAD_WORDS: usize = 3;

/// The result of offering a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum OfferResult {
    /// The frame is queued.
    Queued,
    /// The frame is queued and the reader sleeps: the caller must wake it.
    QueuedWakeReader,
    /// The frame was dropped: there was no room, or the interface does not exist.
    Dropped,
    /// The reader is gone. Further offers are useless.
    Closed,
}

/// Creates both sides of a buffer of about `buffer_bytes`, for frames of `interfaces` interfaces. At most `snap_bytes` of each frame are
/// kept. The buffer always has room for two frames of this size.
pub fn tap(interfaces: u16, snap_bytes: u32, buffer_bytes: usize) -> (Tap, TapReader) {
    let snap_bytes = snap_bytes.min(SNAP_BYTES_MAX);
    let least = 2 * (HEAD_WORDS + (snap_bytes as usize).div_ceil(8));
    let words = (buffer_bytes / 8).clamp(least, usize::MAX / 2).next_power_of_two();
    let shared = Arc::new(TapRing {
        words: std::iter::repeat_with(|| AtomicU64::new(0)).take(words).collect(),
        head: CachePadded::new(AtomicU64::new(0)),
        tail: CachePadded::new(AtomicU64::new(0)),
        asleep: AtomicBool::new(false),
        producer_closed: AtomicBool::new(false),
        reader_closed: AtomicBool::new(false),
        counters: (0..interfaces).map(|_| TapCounters::default()).collect(),
    });
    let scratch = Vec::with_capacity((snap_bytes as usize).next_multiple_of(8));
    let tap = Tap { shared: shared.clone(), snap_bytes, scratch, tail: 0, head_seen: 0 };
    (tap, TapReader { shared, bytes: Vec::new(), head: 0, tail_seen: 0 })
}

#[derive(Debug, Default)]
struct TapCounters {
    seen: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct TapRing {
    words: Box<[AtomicU64]>,
    head: CachePadded<AtomicU64>,
    tail: CachePadded<AtomicU64>,
    /// True while the consumer waits to be woken.
    asleep: AtomicBool,
    /// True if the producer is gone.
    producer_closed: AtomicBool,
    /// True if the consumer is gone.
    reader_closed: AtomicBool,
    counters: Box<[TapCounters]>,
}

impl TapRing {
    /// Returns `count` words from a position on, continuing at the start of the ring.
    fn words(&self, position: u64, count: usize) -> impl Iterator<Item = &AtomicU64> {
        let start = position as usize & (self.words.len() - 1);
        let (before, after) = self.words.split_at(start);
        let first = &after[..count.min(after.len())];
        first.iter().chain(&before[..count - first.len()])
    }
}

/// The producer's side.
#[derive(Debug)]
pub struct Tap {
    shared: Arc<TapRing>,
    snap_bytes: u32,
    scratch: Vec<u8>,
    /// The position of the next record.
    tail: u64,
    /// The consumer's last known position.
    head_seen: u64,
}

impl Tap {
    /// Queues a frame of several parts. Never waits and never allocates. A frame without room is dropped and counted.
    pub fn offer(
        &mut self,
        time_ns: u64,
        interface: InterfaceIndex,
        direction: CaptureDirection,
        parts: &[&[u8]],
    ) -> OfferResult {
        self.offer_truncated(time_ns, interface, direction, parts, 0)
    }

    /// Queues the beginning of a frame with `original_bytes` bytes. A number below the length of the parts counts as that length.
    pub fn offer_truncated(
        &mut self,
        time_ns: u64,
        interface: InterfaceIndex,
        direction: CaptureDirection,
        parts: &[&[u8]],
        original_bytes: u32,
    ) -> OfferResult {
        if !self.is_watched() {
            return OfferResult::Closed;
        }
        let Some(counters) = self.shared.counters.get(usize::from(interface.0)) else { return OfferResult::Dropped };
        count(&counters.seen);
        let here = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
        let had = u32::try_from(here).unwrap_or(u32::MAX).max(original_bytes);
        let kept = here.min(self.snap_bytes as usize);
        let need = (HEAD_WORDS + kept.div_ceil(8)) as u64;
        if !self.has_room(need) {
            count(&self.shared.counters[usize::from(interface.0)].dropped);
            return OfferResult::Dropped;
        }
        self.gather(parts, kept);
        let place = u64::from(interface.0) << 8 | direction_bits(direction);
        let head = [time_ns, place, (kept as u64) << 32 | u64::from(had)];
        let bytes = self.scratch.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let record = head.into_iter().chain(bytes);
        self.shared.words(self.tail, need as usize).zip(record).for_each(|(word, value)| word.store(value, Relaxed));
        self.tail += need;
        // A, with B in `refill` (argued): the consumer sees a tail only with the words before it. And C, with D in `begin_sleep` (argued):
        // of this store and the load below, and the consumer's of `asleep` and of the tail, all in one order, either we see it asleep
        // or it sees the record.
        self.shared.tail.store(self.tail, SeqCst);
        if self.shared.asleep.load(SeqCst) && self.shared.asleep.swap(false, SeqCst) {
            return OfferResult::QueuedWakeReader;
        }
        OfferResult::Queued
    }

    /// Returns the maximum number of bytes kept of a frame.
    pub fn snap_bytes(&self) -> u32 {
        self.snap_bytes
    }

    /// Returns false once the reader is gone.
    pub fn is_watched(&self) -> bool {
        !self.shared.reader_closed.load(Relaxed)
    }

    fn has_room(&mut self, need: u64) -> bool {
        let size = self.shared.words.len() as u64;
        if self.tail + need - self.head_seen > size {
            // E, with F in `pop` (argued): the consumer has read the words before its head, and we write over them only now.
            self.head_seen = self.shared.head.load(Acquire);
        }
        self.tail + need - self.head_seen <= size
    }

    /// Copies the first `kept` bytes of the parts, padded with zeros to a whole word.
    fn gather(&mut self, parts: &[&[u8]], kept: usize) {
        self.scratch.clear();
        for part in parts {
            let room = kept - self.scratch.len();
            self.scratch.extend_from_slice(&part[..part.len().min(room)]);
        }
        self.scratch.resize(kept.next_multiple_of(8), 0);
    }
}

/// Increments a counter. Only this thread writes it.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

impl Drop for Tap {
    fn drop(&mut self) {
        // G, with H in `is_over` (argued): a consumer that sees this sees every record. SeqCst as in `offer`: a consumer that goes to sleep sees it.
        self.shared.producer_closed.store(true, SeqCst);
    }
}

/// The reader's side.
#[derive(Debug)]
pub struct TapReader {
    shared: Arc<TapRing>,
    bytes: Vec<u8>,
    /// The position of the next record.
    head: u64,
    /// The producer's last known position.
    tail_seen: u64,
}

impl TapReader {
    /// Returns the next frame, in the order of offers, or `None` if there is none now.
    pub fn pop(&mut self) -> Option<CapturedFrame<'_>> {
        if self.head == self.tail_seen && !self.refill() {
            return None;
        }
        let mut head = [0; HEAD_WORDS];
        self.shared.words(self.head, HEAD_WORDS).zip(&mut head).for_each(|(word, value)| *value = word.load(Relaxed));
        let [time_ns, place, lengths] = head;
        let (kept, original_bytes) = ((lengths >> 32) as usize, lengths as u32);
        let words = kept.div_ceil(8);
        self.bytes.clear();
        let bytes = self.shared.words(self.head + HEAD_WORDS as u64, words);
        bytes.for_each(|word| self.bytes.extend_from_slice(&word.load(Relaxed).to_le_bytes()));
        self.head += (HEAD_WORDS + words) as u64;
        // F, with E in `has_room` (argued): our copy is complete before the producer may write over it.
        self.shared.head.store(self.head, Release);
        let (interface, direction) = (InterfaceIndex((place >> 8) as u16), direction_of(place as u8));
        Some(CapturedFrame { time_ns, interface, direction, original_bytes, bytes: &self.bytes[..kept] })
    }

    /// Reads the producer's position. Returns true if there is a further record.
    fn refill(&mut self) -> bool {
        self.tail_seen = self.shared.tail.load(Acquire); // B, with A in `offer` (argued): the words come with it.
        self.head != self.tail_seen
    }

    /// Returns the numbers of seen and dropped frames of each interface.
    pub fn statistics(&self) -> Vec<InterfaceStatistics> {
        let statistics = |(index, counters): (u16, &TapCounters)| InterfaceStatistics {
            interface: InterfaceIndex(index),
            seen: counters.seen.load(Relaxed),
            dropped: counters.dropped.load(Relaxed),
        };
        (0..).zip(&self.shared.counters).map(statistics).collect()
    }

    /// Returns true once the producer is gone and all frames have been taken.
    pub fn is_over(&mut self) -> bool {
        // H, with G in `drop` (argued): looked at before the ring, so that nothing can have been put after it.
        self.shared.producer_closed.load(SeqCst) && self.head == self.tail_seen && !self.refill()
    }

    /// Prepares for sleeping. Returns true if there is no frame and the producer exists: the next offer then returns
    /// [`OfferResult::QueuedWakeReader`]. The end of the producer does not: the owner of the [`Tap`] wakes the reader after dropping it.
    pub fn begin_sleep(&mut self) -> bool {
        self.shared.asleep.store(true, SeqCst); // D, with C in `offer` (argued).
        self.tail_seen = self.shared.tail.load(SeqCst);
        let idle = self.head == self.tail_seen && !self.shared.producer_closed.load(SeqCst);
        if !idle {
            self.end_sleep();
        }
        idle
    }

    /// Ends the preparation for sleeping after another wake-up.
    pub fn end_sleep(&mut self) {
        self.shared.asleep.store(false, SeqCst);
    }
}

impl Drop for TapReader {
    fn drop(&mut self) {
        self.shared.reader_closed.store(true, Relaxed);
    }
}

const fn direction_bits(direction: CaptureDirection) -> u64 {
    match direction {
        CaptureDirection::Unknown => 0,
        CaptureDirection::Received => 1,
        CaptureDirection::Sent => 2,
    }
}

const fn direction_of(bits: u8) -> CaptureDirection {
    match bits {
        1 => CaptureDirection::Received,
        2 => CaptureDirection::Sent,
        _ => CaptureDirection::Unknown,
    }
}
