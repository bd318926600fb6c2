//! A set of bytes of a message, as ranges.

use alloc::vec::Vec;
use core::ops::Range;

/// Ranges in order that do not touch. Their number is bounded by `CHUNK_BYTES_MIN`: between two there is a missing chunk.
#[derive(Debug, Default)]
pub(super) struct Ranges(Vec<Range<usize>>);

/// The relation of a range to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlap {
    None,
    Partial,
    Whole,
}

impl Ranges {
    pub(super) fn overlap(&self, range: &Range<usize>) -> Overlap {
        match self.0.get(self.position(range)) {
            Some(next) if next.start <= range.start && range.end <= next.end => Overlap::Whole,
            Some(next) if next.start < range.end => Overlap::Partial,
            _ => Overlap::None,
        }
    }

    /// Adds a range that overlaps no other.
    pub(super) fn insert(&mut self, range: Range<usize>) {
        let next = self.position(&range);
        let touches_next = self.0.get(next).is_some_and(|next| next.start == range.end);
        let touches_last = next > 0 && self.0[next - 1].end == range.start;
        match (touches_last, touches_next) {
            (true, true) => self.0[next - 1].end = self.0.remove(next).end,
            (true, false) => self.0[next - 1].end = range.end,
            (false, true) => self.0[next].start = range.start,
            (false, false) => self.0.insert(next, range),
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn as_slice(&self) -> &[Range<usize>] {
        &self.0
    }

    /// The first range that ends after the start of this one.
    fn position(&self, range: &Range<usize>) -> usize {
        self.0.partition_point(|other| other.end <= range.start)
    }
}
