//! An incomplete message: its bytes, and which of them have come.

use alloc::vec::Vec;
use core::ops::Range;

use super::header::{ChunkError, ChunkHeader};

/// An incomplete message.
#[derive(Debug)]
pub(super) struct Pending {
    /// The header of the first chunk that came.
    pub(super) header: ChunkHeader,
    pub(super) started_ms: u64,
    /// Newer messages that were complete before this one.
    pub(super) newer: u8,
    /// At least as long as the message. Bytes outside of `ranges` are those of earlier messages.
    bytes: Vec<u8>,
    /// The bytes that have come, in order; neighbours do not touch.
    ranges: Vec<Range<usize>>,
}

/// The memory of a message that ended, for the next one.
#[derive(Debug, Default)]
pub(super) struct Spare {
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
}

impl Pending {
    pub(super) fn new(header: ChunkHeader, now_ms: u64, spare: Spare) -> Self {
        let Spare { mut bytes, mut ranges } = spare;
        if bytes.len() < header.total {
            bytes.resize(header.total, 0);
        }
        ranges.clear();
        Self { header, started_ms: now_ms, newer: 0, bytes, ranges }
    }

    pub(super) fn into_spare(self) -> Spare {
        Spare { bytes: self.bytes, ranges: self.ranges }
    }

    /// Adds a chunk. Returns false for a duplicate.
    pub(super) fn add(&mut self, offset: usize, chunk: &[u8]) -> Result<bool, ChunkError> {
        let (start, end) = (offset, offset + chunk.len());
        // The first range that ends after the start of the chunk.
        let next = self.ranges.partition_point(|range| range.end <= start);
        match self.ranges.get(next) {
            Some(range) if range.start <= start && end <= range.end => return Ok(false),
            Some(range) if range.start < end => return Err(ChunkError::Overlap),
            _ => {}
        }
        self.bytes[start..end].copy_from_slice(chunk);
        let touches_next = self.ranges.get(next).is_some_and(|range| range.start == end);
        let touches_last = next > 0 && self.ranges[next - 1].end == start;
        match (touches_last, touches_next) {
            (true, true) => self.ranges[next - 1].end = self.ranges.remove(next).end,
            (true, false) => self.ranges[next - 1].end = end,
            (false, true) => self.ranges[next].start = start,
            (false, false) => self.ranges.insert(next, start..end),
        }
        Ok(true)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.prefix_bytes() == self.header.total
    }

    /// The bytes before the first hole.
    pub(super) fn prefix(&mut self) -> &mut [u8] {
        let bytes = self.prefix_bytes();
        &mut self.bytes[..bytes]
    }

    fn prefix_bytes(&self) -> usize {
        self.ranges.first().filter(|range| range.start == 0).map_or(0, |range| range.end)
    }
}
