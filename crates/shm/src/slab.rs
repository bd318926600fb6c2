//! The slab: a ring of bytes for messages that are too long for a record.
//!
//! The producer reserves a *fragment*, copies into it, and sends its position in a record. The consumer copies out and gives the fragment
//! back; fragments are given back in the order in which they were sent. Positions run free, and a fragment never wraps: if the end is
//! too near, the producer starts over at offset 0, and the consumer detects the gap from the offset.

use crate::fault::PeerFault;
use crate::words::Words;
use core::sync::atomic::Ordering::{Acquire, Release};
use isthmus_layout::channel::{DirectionLayout, SLAB_HEAD, SlabSize};
use isthmus_layout::limits::CACHE_LINE_BYTES;
use isthmus_layout::record::Fragment;
use isthmus_layout::{Len, Offset, RegionSize, Span};

/// Bytes from the slab's start within which a producer with little traffic stays: beyond, it looks whether everything came
/// back, and if so starts over at 0. So a channel's pages grow with its traffic and not with its age.
const LOW_TRAFFIC_BYTES: u32 = 16 << 10;

/// The sending side of a slab.
#[derive(Debug)]
pub struct SlabProducer<M> {
    memory: M,
    at: DirectionLayout,
    size: SlabSize,
    tail: u32,
    /// Bytes before this are not outstanding: the consumer's head when we looked last, or where we started over since.
    head: u32,
    /// Highest offset used since the pages were given back last.
    dirty: u32,
}

impl<M: Words> SlabProducer<M> {
    /// Creates the sending side of the direction at `at`, with an empty slab.
    pub fn new(memory: M, at: DirectionLayout, size: SlabSize) -> Self {
        Self { memory, at, size, tail: 0, head: 0, dirty: 0 }
    }

    /// Reserves a fragment of at most `len` bytes (and a quarter of the slab), at least `min_len`; None if there is no room for that now.
    pub fn reserve(&mut self, min_len: u32, len: u32) -> Result<Option<Fragment>, PeerFault> {
        let len = len.min(self.size.bytes() / 4);
        if self.tail % self.size.bytes() + len > LOW_TRAFFIC_BYTES && self.head != self.tail {
            self.refresh_head()?;
        }
        if let Some(fragment) = self.try_reserve(len) {
            return Ok(Some(fragment));
        }
        self.refresh_head()?;
        Ok(self.try_reserve(len).or_else(|| self.try_reserve(min_len.min(len))))
    }

    /// Returns true if a fragment of `min_len` bytes (or a quarter of the slab, if that is less) can be reserved now.
    pub fn has_room(&mut self, min_len: u32) -> Result<bool, PeerFault> {
        self.refresh_head()?;
        Ok(self.start(min_len.min(self.size.bytes() / 4)).is_some())
    }

    /// Returns the position of a fragment's bytes in the region.
    pub fn region_offset(&self, fragment: Fragment) -> u64 {
        self.at.slab + u64::from(fragment.offset)
    }

    /// Returns the pages that are not needed any more, as offset and length in the region, if everything was given back and more than
    /// `keep` bytes were used since the last call.
    pub fn idle_pages(&mut self, keep: u32) -> Result<Option<(u64, u64)>, PeerFault> {
        if self.dirty <= keep {
            return Ok(None);
        }
        self.refresh_head()?;
        if self.head != self.tail {
            return Ok(None);
        }
        let used = u64::from(core::mem::take(&mut self.dirty));
        Ok(Some((self.at.slab, used.next_multiple_of(u64::from(isthmus_layout::limits::PAGE_BYTES)))))
    }

    /// Number of bytes used since the pages were given back last.
    pub fn dirty_bytes(&self) -> u32 {
        self.dirty
    }

    fn try_reserve(&mut self, len: u32) -> Option<Fragment> {
        let start = self.start(len)?;
        if self.head == self.tail {
            self.head = start; // No side uses the skipped bytes. The consumer's head has yet to pass them, and we need not wait.
        }
        self.tail = start.wrapping_add(round_up_to_line(len));
        let offset = start % self.size.bytes();
        self.dirty = self.dirty.max(offset + len);
        Some(Fragment { offset, len })
    }

    /// Returns the position at which `len` bytes would begin.
    fn start(&self, len: u32) -> Option<u32> {
        let size = self.size.bytes();
        let to_end = size - self.tail % size;
        let nothing_out = self.head == self.tail;
        // The consumer sees from the offset that we skipped the bytes up to the end.
        let gap = if nothing_out || round_up_to_line(len) > to_end { to_end % size } else { 0 };
        let start = self.tail.wrapping_add(gap);
        let filled = start.wrapping_sub(self.head);
        (nothing_out || filled + round_up_to_line(len) <= size).then_some(start)
    }

    fn refresh_head(&mut self) -> Result<(), PeerFault> {
        // J, with I in `publish` (modelled): bytes below the head were copied before we write them again.
        let head = self.memory.load(self.at.consumer + SLAB_HEAD, Acquire);
        let outstanding = self.tail.wrapping_sub(head);
        if outstanding > 2 * self.size.bytes() {
            return Err(PeerFault::SlabOverrun { head, tail: self.tail });
        }
        if outstanding < self.tail.wrapping_sub(self.head) {
            self.head = head;
        }
        Ok(())
    }
}

fn round_up_to_line(len: u32) -> u32 {
    len.max(1).next_multiple_of(CACHE_LINE_BYTES)
}

/// The receiving side of a slab.
#[derive(Debug)]
pub struct SlabConsumer<M> {
    memory: M,
    at: DirectionLayout,
    size: SlabSize,
    head: u32,
    published: u32,
    /// The head that the producer was notified of, with a fence. Between two notifications it may see less than what is published.
    notified_head: u32,
}

impl<M: Words> SlabConsumer<M> {
    /// Creates the receiving side of the direction at `at`, with an empty slab.
    pub fn new(memory: M, at: DirectionLayout, size: SlabSize) -> Self {
        Self { memory, at, size, head: 0, published: 0, notified_head: 0 }
    }

    /// Checks a fragment that a record named; the span counts from the start of the region.
    pub fn span(&self, fragment: Fragment) -> Result<Span, PeerFault> {
        let slab = RegionSize(u64::from(self.size.bytes()));
        slab.span(Offset(u64::from(fragment.offset)), Len(u64::from(fragment.len)))?;
        let region = RegionSize(self.at.slab + slab.0);
        Ok(region.span(Offset(self.at.slab + u64::from(fragment.offset)), Len(u64::from(fragment.len)))?)
    }

    /// Gives a fragment back after its bytes were copied. Returns true if the producer must be notified now. The caller then publishes
    /// here and on the ring, because the ring's `publish` fences and checks whether the producer waits. That happens once per quarter of
    /// the slab, and publishing in between does not postpone it. A producer that has no room for a quarter has more than half of the slab
    /// outstanding, even by the last head it was notified of, so the notification that wakes it is still to come.
    pub fn release(&mut self, fragment: Fragment) -> bool {
        let size = self.size.bytes();
        let gap = fragment.offset.wrapping_sub(self.head % size) % size;
        self.head = self.head.wrapping_add(gap).wrapping_add(round_up_to_line(fragment.len.min(size)));
        let due = self.head.wrapping_sub(self.notified_head) >= size / 4;
        if due {
            self.notified_head = self.head;
        }
        due
    }

    /// Returns true if the current head is not published yet.
    pub fn has_unpublished(&self) -> bool {
        self.head != self.published
    }

    /// Publishes the head. If the producer may be waiting, the ring's `publish` must follow, which fences and checks.
    pub fn publish(&mut self) {
        // I, with J in `refresh_head` (modelled): our copies are complete before the producer may write the bytes again.
        self.memory.store(self.at.consumer + SLAB_HEAD, self.head, Release);
        self.published = self.head;
    }
}

#[cfg(test)]
mod tests;
