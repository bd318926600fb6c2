//! The slab: message bytes too many for a record, as a ring of bytes.
//!
//! The producer reserves a *piece*, copies into it, and sends its place in a record. The consumer copies out and gives the piece
//! back; pieces come back in the order in which they went. Positions run free, a piece never wraps: where the end is too near,
//! the producer starts over at offset 0, and the consumer sees the gap from the offset.

use crate::fault::PeerFault;
use crate::words::Words;
use core::sync::atomic::Ordering::{Acquire, Release};
use isthmus_layout::channel::{DirectionLayout, SLAB_HEAD, SlabSize};
use isthmus_layout::limits::CACHE_LINE_BYTES;
use isthmus_layout::record::Piece;
use isthmus_layout::{Len, Offset, RegionSize, Span};

/// Bytes from the slab's start within which a producer with little traffic stays: beyond, it looks whether everything came
/// back, and if so starts over at 0. So a channel's pages grow with its traffic and not with its age.
const NEAR: u32 = 16 << 10;

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
    /// The sending side of the direction at `at`, from the start.
    pub fn new(memory: M, at: DirectionLayout, size: SlabSize) -> Self {
        Self { memory, at, size, tail: 0, head: 0, dirty: 0 }
    }

    /// Reserves a piece of at most `len` bytes (and a quarter of the slab), at least `least`; None if there is no room for that now.
    pub fn reserve(&mut self, least: u32, len: u32) -> Result<Option<Piece>, PeerFault> {
        let len = len.min(self.size.bytes() / 4);
        if self.tail % self.size.bytes() + len > NEAR && self.head != self.tail {
            self.head_again()?;
        }
        if let Some(piece) = self.fit(len) {
            return Ok(Some(piece));
        }
        self.head_again()?;
        Ok(self.fit(len).or_else(|| self.fit(least.min(len))))
    }

    /// True if a piece of `least` bytes (or a quarter of the slab, if that is less) can be reserved now.
    pub fn has_room(&mut self, least: u32) -> Result<bool, PeerFault> {
        self.head_again()?;
        Ok(self.start(least.min(self.size.bytes() / 4)).is_some())
    }

    /// Where the bytes of a piece lie in the region.
    pub fn byte(&self, piece: Piece) -> u64 {
        self.at.slab + u64::from(piece.offset)
    }

    /// If everything was given back and more than `keep` bytes were used since last time: the bytes of the region, offset and
    /// length, whose pages nobody needs any more.
    pub fn idle_pages(&mut self, keep: u32) -> Result<Option<(u64, u64)>, PeerFault> {
        if self.dirty <= keep {
            return Ok(None);
        }
        self.head_again()?;
        if self.head != self.tail {
            return Ok(None);
        }
        let used = u64::from(core::mem::take(&mut self.dirty));
        Ok(Some((self.at.slab, used.next_multiple_of(u64::from(isthmus_layout::limits::PAGE_BYTES)))))
    }

    /// Bytes used since the pages were given back last.
    pub fn dirty(&self) -> u32 {
        self.dirty
    }

    fn fit(&mut self, len: u32) -> Option<Piece> {
        let start = self.start(len)?;
        if self.head == self.tail {
            self.head = start; // The skipped bytes are nobody's: the consumer's head has yet to pass them, we need not wait.
        }
        self.tail = start.wrapping_add(rounded(len));
        let offset = start % self.size.bytes();
        self.dirty = self.dirty.max(offset + len);
        Some(Piece { offset, len })
    }

    /// The position at which `len` bytes would begin.
    fn start(&self, len: u32) -> Option<u32> {
        let size = self.size.bytes();
        let to_end = size - self.tail % size;
        let nothing_out = self.head == self.tail;
        // The consumer sees from the offset that we skipped the bytes up to the end.
        let gap = if nothing_out || rounded(len) > to_end { to_end % size } else { 0 };
        let start = self.tail.wrapping_add(gap);
        let filled = start.wrapping_sub(self.head);
        (nothing_out || filled + rounded(len) <= size).then_some(start)
    }

    fn head_again(&mut self) -> Result<(), PeerFault> {
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

fn rounded(len: u32) -> u32 {
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
    /// What the producer was told of our head, fence and all. Between two tellings it may see less than what is published.
    told: u32,
}

impl<M: Words> SlabConsumer<M> {
    /// The receiving side of the direction at `at`, from the start.
    pub fn new(memory: M, at: DirectionLayout, size: SlabSize) -> Self {
        Self { memory, at, size, head: 0, published: 0, told: 0 }
    }

    /// Checks a piece that a record named; the span counts from the start of the region.
    pub fn span(&self, piece: Piece) -> Result<Span, PeerFault> {
        let slab = RegionSize(u64::from(self.size.bytes()));
        slab.span(Offset(u64::from(piece.offset)), Len(u64::from(piece.len)))?;
        let region = RegionSize(self.at.slab + slab.0);
        Ok(region.span(Offset(self.at.slab + u64::from(piece.offset)), Len(u64::from(piece.len)))?)
    }

    /// Gives a piece back, once its bytes were copied. True if the producer must be told of it now: the caller publishes, here and
    /// then the ring, whose `publish` fences and looks whether the producer waits. That is once a quarter of the slab, and no
    /// publishing in between puts it off: a producer that has no room for a quarter has more than half of the slab outstanding,
    /// even by the last head it was told of, so the telling that wakes it is still to come.
    pub fn give_back(&mut self, piece: Piece) -> bool {
        let size = self.size.bytes();
        let gap = piece.offset.wrapping_sub(self.head % size) % size;
        self.head = self.head.wrapping_add(gap).wrapping_add(rounded(piece.len.min(size)));
        let due = self.head.wrapping_sub(self.told) >= size / 4;
        if due {
            self.told = self.head;
        }
        due
    }

    /// True if the producer does not know yet how far we are.
    pub fn is_ahead(&self) -> bool {
        self.head != self.published
    }

    /// Tells the producer how far we are. Where it may be waiting, the ring's `publish` follows, which fences and looks.
    pub fn publish(&mut self) {
        // I, with J in `head_again` (modelled): our copies are complete before the producer may write the bytes again.
        self.memory.store(self.at.consumer + SLAB_HEAD, self.head, Release);
        self.published = self.head;
    }
}

#[cfg(test)]
mod tests;
