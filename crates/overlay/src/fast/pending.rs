//! An incomplete message: its bytes, which of them have come, and which of these were not delivered yet.

use alloc::vec::Vec;
use core::ops::Range;

use super::header::{ChunkError, ChunkHeader};
use super::ranges::{Overlap, Ranges};

/// An incomplete message.
#[derive(Debug)]
pub(super) struct Pending {
    /// The header of the first chunk that came.
    pub(super) header: ChunkHeader,
    pub(super) started_ms: u64,
    /// Newer messages that were complete before this one.
    pub(super) newer: u8,
    /// True if a part was delivered.
    pub(super) is_in_parts: bool,
    memory: Spare,
}

/// The memory of a message that ended, for the next one.
#[derive(Debug, Default)]
pub(super) struct Spare {
    /// At least as long as the message with its repeated head. Bytes outside of `received` are those of earlier messages.
    bytes: Vec<u8>,
    received: Ranges,
    /// The part of `received` that was not delivered.
    undelivered: Ranges,
}

impl Pending {
    pub(super) fn new(header: ChunkHeader, now_ms: u64, mut memory: Spare) -> Self {
        if memory.bytes.len() < header.extent() {
            memory.bytes.resize(header.extent(), 0);
        }
        memory.received.clear();
        memory.undelivered.clear();
        Self { header, started_ms: now_ms, newer: 0, is_in_parts: false, memory }
    }

    pub(super) fn into_spare(self) -> Spare {
        self.memory
    }

    /// Adds a chunk. Returns false for a duplicate.
    pub(super) fn add(&mut self, offset: usize, chunk: &[u8]) -> Result<bool, ChunkError> {
        let range = offset..offset + chunk.len();
        match self.memory.received.overlap(&range) {
            Overlap::Whole => return Ok(false),
            Overlap::Partial => return Err(ChunkError::Overlap),
            Overlap::None => {}
        }
        self.memory.bytes[range.clone()].copy_from_slice(chunk);
        self.memory.received.insert(range.clone());
        self.memory.undelivered.insert(range);
        Ok(true)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.prefix().len() == self.header.total
    }

    /// The first bytes of the message, from either end. They hold the headers, or are empty.
    pub(super) fn head(&self) -> &[u8] {
        let repeated = self.header.total..self.header.extent();
        match self.prefix() {
            [] if self.memory.received.overlap(&repeated) == Overlap::Whole => self.get(repeated),
            prefix => prefix,
        }
    }

    /// Returns true if the last chunk has come.
    pub(super) fn has_end(&self) -> bool {
        self.memory.received.as_slice().last().is_some_and(|range| range.end == self.header.extent())
    }

    /// The bytes of the message before the first hole.
    pub(super) fn prefix(&self) -> &[u8] {
        let first = self.memory.received.as_slice().first().filter(|range| range.start == 0);
        &self.memory.bytes[..first.map_or(0, |range| range.end.min(self.header.total))]
    }

    /// The bytes of a range that has come.
    pub(super) fn get(&self, range: Range<usize>) -> &[u8] {
        &self.memory.bytes[range]
    }

    pub(super) fn undelivered(&self) -> &[Range<usize>] {
        self.memory.undelivered.as_slice()
    }

    pub(super) fn set_delivered(&mut self) {
        self.memory.undelivered.clear();
    }
}
