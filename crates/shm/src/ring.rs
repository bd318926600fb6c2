//! The ring: records from one producer to one consumer, in cells of half a cache line.
//!
//! ```text
//!               head (consumer's)                     tail (producer's, private)
//!                 ▼                                     ▼
//!   ┌──────┬──────┬──────┬──────┬──────┬──────┬──────┬──────┬──────┐
//!   │ free │ free │ rec. │ rec…. …cont.│ rec. │ rec. │ free │ free │   256 cells, two to a line
//!   └──────┴──────┴──────┴──────┴──────┴──────┴──────┴──────┴──────┘
//!     stamp: lap     lap+1                         lap
//! ```
//!
//! There is no shared tail. The *stamp* of a cell marks it as full. Stamp and message share a cache line, so a small message
//! moves between two CPUs as one line, and so do two messages that follow each other closely. The stamp is the number of laps
//! begun, so a stamp left by the lap before means "empty".
//! The consumer publishes its head once per quarter of a ring. The producer reads it only when its cached copy says "full".
//!
//! Two words make polling unnecessary. `PARKED`: the consumer does not poll and wants its bit set in the ready map. `BLOCKED`: the
//! producer waits for room. Both follow one rule: set the word, fence, check again; and after publishing: fence, check whether the
//! other side has set its word. A consumer that has been busy for a while marks this too ([`ASYMMETRIC`]). Its producer's
//! fence is then free, and parking costs the consumer a [heavy fence](Words::heavy_fence) for both.
//!
//! The orderings. Each letter stands in two places.
//!
//! | letters | store | load | proved |
//! | --- | --- | --- | --- |
//! | A, B | a full cell's stamp (B) | the same (A) | modelled |
//! | C, D | the head (C) | the same (D) | modelled, on cells that must not race: a store that overtakes the copy is no order that loom tries |
//! | E, F | `PARKED` and its fence (E), the stamp and its fence (F) | each the other's | modelled |
//! | Q, R | the stamp and no fence but the compiler's (Q), `PARKED` and a heavy fence (R) | each the other's | by memory with late stores |
//! | G, H | `BLOCKED` and its fence (G), the head and its fence (H) | each the other's | modelled |

use crate::fault::PeerFault;
use crate::words::Words;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use isthmus_layout::channel::{
    ASYMMETRIC, BLOCKED, BYTES, CELL_WORDS, DIRECT_ACCESSES, DOORBELLS, DirectionLayout, FIRST_BODY_WORDS, HEAD,
    IS_PARKED, MESSAGES, NEXT_BODY_WORDS, PARKED, RECORD_HEADER, REFUSED_ACCESSES, RecordHeader, SERVED_ACCESSES,
    SLOW_PATH_REASONS, STAMP, SlowPathReasons, empty_stamp, full_stamp,
};
use isthmus_layout::limits::{FINAL_RECORD_CELLS, RECORD_CELLS_MAX, RING_CELLS};
use isthmus_layout::record::BODY_WORDS_MAX;

/// Number of cells for records, without those kept for the final record.
const USABLE_CELLS: u32 = RING_CELLS - FINAL_RECORD_CELLS;

/// Number of consumed cells after which the producer must be notified ([`Consumer::publish`]). It is never notified later, so a
/// producer that waits for room in a full ring is notified while there is still something left to consume. A blocked producer has more
/// cells outstanding than this, even by the last head that it was notified of, so the notification that wakes it is still to come.
const HEAD_PUBLISH_INTERVAL: u32 = RING_CELLS / 4;
const _: () = assert!(HEAD_PUBLISH_INTERVAL + RECORD_CELLS_MAX <= USABLE_CELLS - HEAD_PUBLISH_INTERVAL);

/// Number of records after which a consumer counts as busy, and of fences after which a producer does. From then on one heavy fence
/// at the end is cheaper than a fence for each record.
const LIGHT_FENCE_AFTER: u32 = 256;

/// Distance of the cell that a producer prefetches, in cells. It is large enough that the consumer does not poll that cell yet.
const PREFETCH_CELLS: u32 = 8;

/// The reason that a record was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// No room for this record now.
    #[error("the ring is full")]
    Full,
    /// The consumer violated the protocol.
    #[error(transparent)]
    Fault(#[from] PeerFault),
}

/// The sending side of a ring.
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    at: DirectionLayout,
    tail: u32,
    /// The consumer's head when the producer read it last.
    head: u32,
    /// Light fences suffice. Not requested before the producer has been busy, because the registration can take some milliseconds, once,
    /// in a program with many threads.
    light_fence_active: bool,
    /// Number of full fences so far (saturating).
    fence_count: u32,
    counters: RingCounters,
    slow_path_reasons: SlowPathReasons,
}

/// Counters of a producer, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounters {
    /// Messages sent.
    pub messages: u64,
    /// Message bytes sent.
    pub bytes: u64,
    /// Doorbells rung.
    pub doorbells: u64,
}

/// Counts of accesses between the two sides to each other's memory, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessCounters {
    /// Accesses of this side, made in the other side's memory itself.
    pub direct: u64,
    /// Accesses of the other side that this side performed at its request.
    pub served: u64,
    /// Requests of the other side for memory that it may not access.
    pub refused: u64,
}

/// A private copy of one record.
#[derive(Clone, Debug)]
pub struct RecordBuffer {
    head: RecordHeader,
    words: [u32; BODY_WORDS_MAX],
}

impl Default for RecordBuffer {
    fn default() -> Self {
        Self { head: RecordHeader { kind: 0, body_bytes: 0 }, words: [0; BODY_WORDS_MAX] }
    }
}

impl RecordBuffer {
    /// The record's kind.
    #[inline]
    pub fn kind(&self) -> u8 {
        self.head.kind
    }

    /// Number of bytes of the body.
    #[inline]
    pub fn bytes(&self) -> u16 {
        self.head.body_bytes
    }

    /// The body, with the last word padded.
    #[inline]
    pub fn words(&self) -> &[u32] {
        &self.words[..usize::from(self.head.body_bytes).div_ceil(4)]
    }
}

impl<M: Words> Producer<M> {
    /// Creates the sending side of the direction at `at`, with an empty ring.
    pub fn new(memory: M, at: DirectionLayout) -> Self {
        let (counters, slow_path_reasons) = (RingCounters::default(), SlowPathReasons::default());
        Self { memory, at, tail: 0, head: 0, light_fence_active: false, fence_count: 0, counters, slow_path_reasons }
    }

    /// Writes a record into the ring: `words`, then `message`. The consumer may see it at once. [`Self::wake`] must follow,
    /// after this record or after the last of several.
    #[inline(always)]
    pub fn push(&mut self, kind: u8, words: &[u32], message: &[u8]) -> Result<(), PushError> {
        if words.len() > FIRST_CELL_WORDS || message.len() > 4 * (FIRST_CELL_WORDS - words.len()) {
            return self.push_multi_cell(kind, words, message);
        }
        self.ensure_room(1)?;
        crate::step!("push");
        self.write_first(record_header(kind, words, message), (words, message));
        self.publish_record(1);
        Ok(())
    }

    /// Writes the final record of the ring, which has a single cell. Room for it is left when there is none for any other record.
    #[cold]
    pub fn push_final(&mut self, kind: u8, words: &[u32]) -> Result<(), PushError> {
        assert!(words.len() <= FIRST_CELL_WORDS); // Ours.
        if self.tail.wrapping_sub(self.head) == RING_CELLS {
            return Err(PushError::Full); // A final record was written before.
        }
        self.write_first(record_header(kind, words, &[]), (words, &[]));
        self.publish_record(1);
        Ok(())
    }

    /// Writes a record of more than one cell.
    #[inline(never)]
    fn push_multi_cell(&mut self, kind: u8, words: &[u32], message: &[u8]) -> Result<(), PushError> {
        assert!(4 * words.len() + message.len() <= 4 * BODY_WORDS_MAX); // Ours.
        let head = record_header(kind, words, message);
        let cells = head.cells();
        self.ensure_room(cells)?;
        crate::step!("push");
        let (here, further) = split((words, message), FIRST_CELL_WORDS);
        self.write_first(head, here);
        self.write_next_cells(cells, further);
        self.publish_record(cells);
        Ok(())
    }

    /// Writes a record's first cell, without the stamp.
    #[inline(always)]
    fn write_first(&self, head: RecordHeader, (words, bytes): Body<'_>) {
        self.memory.store_words(self.cell(self.tail) + RECORD_HEADER, head.emit(), words, bytes);
    }

    /// Publishes a record of `cells` cells that was written.
    #[inline(always)]
    fn publish_record(&mut self, cells: u32) {
        // B, with A in `is_cell_full` (modelled): a consumer that sees the stamp sees the record.
        self.memory.store(self.cell(self.tail) + STAMP, full_stamp(self.tail), Release);
        self.tail = self.tail.wrapping_add(cells);
        self.memory.prefetch(self.cell(self.tail.wrapping_add(PREFETCH_CELLS)));
    }

    /// Returns true if the consumer is parked and its bit must be set in the ready map. Called after publishing. Returns true once per parking.
    #[inline(always)]
    pub fn wake(&mut self) -> bool {
        if self.light_fence_active {
            // Q, with R in `park` (by memory with late stores): the heavy fence is our fence.
            self.memory.light_fence();
            if self.memory.load(self.at.consumer + PARKED, Relaxed) == ASYMMETRIC {
                return false;
            }
        }
        self.wake_by_fence()
    }

    #[inline(never)]
    fn wake_by_fence(&mut self) -> bool {
        let parked = self.at.consumer + PARKED;
        // F, with E in `park` (modelled): either we see the consumer parked, or it sees our stamp.
        self.memory.fence();
        self.count_fence();
        self.memory.load(parked, Relaxed) & IS_PARKED != 0 && self.memory.swap(parked, 0, Relaxed) & IS_PARKED != 0
    }

    /// Counts a full fence. After enough of them, the following fences are light if the memory allows it.
    fn count_fence(&mut self) {
        self.fence_count = self.fence_count.saturating_add(1);
        if self.fence_count == LIGHT_FENCE_AFTER {
            self.light_fence_active = self.memory.has_heavy_fence();
        }
    }

    /// Returns true if a record of the largest size fits now.
    pub fn has_room(&mut self) -> Result<bool, PeerFault> {
        match self.ensure_room(RECORD_CELLS_MAX) {
            Ok(()) => Ok(true),
            Err(PushError::Full) => Ok(false),
            Err(PushError::Fault(fault)) => Err(fault),
        }
    }

    /// Tells the consumer that this producer waits for room. Called before sleeping. The caller checks again afterwards
    /// ([`Self::has_room`], the slab's `has_room`) and sleeps only if there is still none.
    pub fn block(&mut self) {
        self.memory.store(self.at.producer + BLOCKED, 1, Relaxed);
        // G, with H in `publish` (modelled): either the consumer sees us blocked, or we see its new head.
        self.memory.fence();
    }

    /// Counts a sent message, where the other side and the daemon can read the counters.
    #[inline]
    pub fn count(&mut self, bytes: u64) {
        self.counters.messages += 1;
        self.counters.bytes += bytes;
        let RingCounters { messages, bytes, .. } = self.counters;
        const { assert!(BYTES == MESSAGES + 2) };
        let further = [(messages >> 32) as u32, bytes as u32, (bytes >> 32) as u32];
        self.memory.store_words(self.at.producer + MESSAGES, messages as u32, &further, &[]);
    }

    /// Counts a rung doorbell.
    pub fn count_doorbell(&mut self) {
        self.counters.doorbells += 1;
        let doorbells = self.counters.doorbells;
        self.memory.store_words(self.at.producer + DOORBELLS, doorbells as u32, &[(doorbells >> 32) as u32], &[]);
    }

    /// Publishes why slower paths are taken, where the daemon can read it.
    #[inline]
    pub fn publish_slow_path_reasons(&mut self, slow_path_reasons: SlowPathReasons) {
        if self.slow_path_reasons != slow_path_reasons {
            self.slow_path_reasons = slow_path_reasons;
            self.memory.store(self.at.producer + SLOW_PATH_REASONS, slow_path_reasons.emit(), Relaxed);
        }
    }

    /// Publishes counts of accesses to memory, where the daemon can read them.
    pub fn publish_accesses(&mut self, counters: AccessCounters) {
        const { assert!(SERVED_ACCESSES == DIRECT_ACCESSES + 2 && REFUSED_ACCESSES == SERVED_ACCESSES + 2) };
        let halves = |count: u64| [count as u32, (count >> 32) as u32];
        let [[direct, direct_high], [served, served_high], [refused, refused_high]] =
            [counters.direct, counters.served, counters.refused].map(halves);
        let further = [direct_high, served, served_high, refused, refused_high];
        self.memory.store_words(self.at.producer + DIRECT_ACCESSES, direct, &further, &[]);
    }

    /// The producer's counters.
    pub fn counters(&self) -> RingCounters {
        self.counters
    }

    /// Returns true if the consumer has published that it consumed everything.
    pub fn is_drained(&mut self) -> bool {
        self.load_consumer_head() == self.tail
    }

    fn cell(&self, position: u32) -> u32 {
        self.at.ring + position % RING_CELLS * CELL_WORDS
    }

    /// Checks that `cells` cells are free.
    #[inline(always)]
    fn ensure_room(&mut self, cells: u32) -> Result<(), PushError> {
        if self.tail.wrapping_sub(self.head) + cells <= USABLE_CELLS { Ok(()) } else { self.ensure_room_slow(cells) }
    }

    #[inline(never)]
    fn ensure_room_slow(&mut self, cells: u32) -> Result<(), PushError> {
        self.refresh_head()?;
        if self.tail.wrapping_sub(self.head) + cells > USABLE_CELLS { Err(PushError::Full) } else { Ok(()) }
    }

    /// Reads the consumer's head. An impossible head is not stored, so later uses of `head` need no more checks.
    fn refresh_head(&mut self) -> Result<(), PeerFault> {
        let head = self.load_consumer_head();
        if self.tail.wrapping_sub(head) > RING_CELLS {
            return Err(PeerFault::HeadOverrun { head, tail: self.tail });
        }
        self.head = head;
        Ok(())
    }

    fn load_consumer_head(&self) -> u32 {
        // D, with C in `publish_head` (modelled): cells below the head were copied before we write them again.
        self.memory.load(self.at.consumer + HEAD, Acquire)
    }

    /// Writes all cells of a record of `cells` cells except the first.
    fn write_next_cells(&self, cells: u32, mut rest: Body<'_>) {
        for cell in 1..cells {
            let (words, bytes);
            ((words, bytes), rest) = split(rest, NEXT_CELL_WORDS);
            let position = self.tail.wrapping_add(cell);
            // This stamp belongs to the same record and is seen with it: B covers it too.
            self.memory.store_words(self.cell(position) + STAMP, full_stamp(position), words, bytes);
        }
    }
}

/// Number of body words in a record's first cell.
const FIRST_CELL_WORDS: usize = FIRST_BODY_WORDS as usize;

/// Number of body words in each further cell.
const NEXT_CELL_WORDS: usize = NEXT_BODY_WORDS as usize;

/// A record's body, or a part of it: words, and bytes behind them.
type Body<'a> = (&'a [u32], &'a [u8]);

/// Splits a body into the part that fits into `room` words, and the rest.
fn split((words, message): Body<'_>, room: usize) -> (Body<'_>, Body<'_>) {
    let (words, further) = words.split_at(words.len().min(room));
    let (message, behind) = message.split_at(message.len().min(4 * (room - words.len())));
    ((words, message), (further, behind))
}

#[inline(always)]
fn record_header(kind: u8, words: &[u32], message: &[u8]) -> RecordHeader {
    RecordHeader { kind, body_bytes: (4 * words.len() + message.len()) as u16 }
}

/// The receiving side of a ring.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    at: DirectionLayout,
    head: u32,
    /// The head that was published to the producer.
    published: u32,
    /// The head that the producer was notified of, with a fence. Between two notifications it may see less than what is published.
    notified_head: u32,
    parked: bool,
    /// Number of records since the consumer was parked last.
    busy: u32,
    /// The producer knows that a light fence suffices.
    light_fence_active: bool,
}

impl<M: Words> Consumer<M> {
    /// Creates the receiving side of the direction at `at`, with an empty ring.
    pub fn new(memory: M, at: DirectionLayout) -> Self {
        Self { memory, at, head: 0, published: 0, notified_head: 0, parked: false, busy: 0, light_fence_active: false }
    }

    /// Takes the next record, if there is one, as a private copy.
    #[inline(always)]
    pub fn pop(&mut self, record: &mut RecordBuffer) -> Result<bool, PeerFault> {
        let first = self.cell(self.head);
        if !self.is_cell_full(first)? {
            if self.head != self.published {
                self.publish_head();
            }
            return Ok(false);
        }
        let head = RecordHeader::parse(self.memory.load(first + RECORD_HEADER, Relaxed))?; // The one fetch.
        crate::step!("pop");
        record.head = head;
        let body: [u32; FIRST_BODY_WORDS as usize] = self.memory.load_words(first + RECORD_HEADER + 1);
        record.words[..body.len()].copy_from_slice(&body);
        let cells = head.cells();
        if cells > 1 {
            let words = usize::from(head.body_bytes).div_ceil(4);
            self.read_next_cells(&mut record.words[body.len()..words]);
        }
        self.head = self.head.wrapping_add(cells);
        self.busy = self.busy.saturating_add(1);
        if self.busy == LIGHT_FENCE_AFTER {
            self.enable_light_fence();
        }
        Ok(true)
    }

    /// Reads the body of a record in the cells after its first.
    #[inline(never)]
    fn read_next_cells(&self, words: &mut [u32]) {
        for (cell, chunk) in words.chunks_mut(NEXT_BODY_WORDS as usize).enumerate() {
            let next = self.cell(self.head.wrapping_add(1 + cell as u32));
            let body: [u32; NEXT_BODY_WORDS as usize] = self.memory.load_words(next + STAMP + 1);
            chunk.copy_from_slice(&body[..chunk.len()]);
        }
    }

    /// Tells the producer that light fences suffice from now on. The producer may use full fences until it sees this.
    #[cold]
    fn enable_light_fence(&mut self) {
        if self.memory.has_heavy_fence() {
            self.memory.store(self.at.consumer + PARKED, ASYMMETRIC, Relaxed);
            self.light_fence_active = true;
        }
    }

    /// Returns true if a record waits.
    #[inline]
    pub fn has_record(&self) -> Result<bool, PeerFault> {
        self.is_cell_full(self.cell(self.head))
    }

    /// Returns true if the next cell, `cell`, is full.
    #[inline(always)]
    fn is_cell_full(&self, cell: u32) -> Result<bool, PeerFault> {
        // A, with B in `publish_record` (modelled): a cell that is stamped was written in full before.
        let stamp = self.memory.load(cell + STAMP, Acquire);
        if stamp == full_stamp(self.head) {
            Ok(true)
        } else if stamp == empty_stamp(self.head) {
            Ok(false)
        } else {
            Err(PeerFault::Stamp { position: self.head, found: stamp })
        }
    }

    /// Returns true if no record waits and the producer can see the current head. This is the cheapest check. [`Self::pop`] checks again
    /// before it takes a record.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.head == self.published && self.memory.load(self.cell(self.head) + STAMP, Relaxed) == empty_stamp(self.head)
    }

    /// Returns true if the producer should be notified of the head now.
    #[inline]
    pub fn needs_publish(&self) -> bool {
        self.head.wrapping_sub(self.notified_head) >= HEAD_PUBLISH_INTERVAL
    }

    /// Publishes the head. Returns true if the producer is blocked and its bit must be set in the ready map. Returns true once per block.
    pub fn publish(&mut self) -> bool {
        self.publish_head();
        self.notified_head = self.head;
        // H, with G in `block` (modelled): either we see the producer blocked, or it sees our head.
        self.memory.fence();
        let blocked = self.at.producer + BLOCKED;
        self.memory.load(blocked, Relaxed) != 0 && self.memory.swap(blocked, 0, Relaxed) != 0
    }

    fn publish_head(&mut self) {
        // C, with D in `load_consumer_head` (modelled): our copies are complete before the producer may write the cells again.
        self.memory.store(self.at.consumer + HEAD, self.head, Release);
        self.published = self.head;
    }

    /// Stops polling: from now on the producer sets our bit in the ready map. Returns false, without parking, if a record arrived meanwhile.
    pub fn park(&mut self) -> Result<bool, PeerFault> {
        (self.parked, self.busy) = (true, 0);
        self.memory.store(self.at.consumer + PARKED, IS_PARKED, Relaxed);
        // E, with F in `wake` (modelled): either the producer sees us parked, or we see its stamp.
        self.memory.fence();
        // R, with Q in `wake`: the same for a producer that we have spared its fence.
        if std::mem::take(&mut self.light_fence_active) && !self.memory.heavy_fence() {
            // The kernel no longer allows heavy fences. No promise of ours is out any more: the next time a fence will do.
            self.unpark();
            return Ok(false);
        }
        let came = self.has_record();
        if !matches!(came, Ok(false)) {
            self.unpark();
        }
        came.map(|came| !came)
    }

    /// Resumes polling if the consumer is parked.
    pub fn unpark(&mut self) {
        if std::mem::take(&mut self.parked) {
            self.memory.store(self.at.consumer + PARKED, 0, Relaxed);
        }
    }

    /// The counters that the producer wrote. For display only, because the producer may write anything.
    pub fn counters(&self) -> RingCounters {
        let shown = |at: u32| {
            let at = self.at.producer + at;
            u64::from(self.memory.load(at, Relaxed)) | u64::from(self.memory.load(at + 1, Relaxed)) << 32
        };
        RingCounters { messages: shown(MESSAGES), bytes: shown(BYTES), doorbells: shown(DOORBELLS) }
    }

    fn cell(&self, position: u32) -> u32 {
        self.at.ring + position % RING_CELLS * CELL_WORDS
    }
}

#[cfg(test)]
pub(crate) mod tests;
