//! The memory that the messages of a stream lie in, on either side.

use std::hint::black_box;

use crate::job::Buffers;

/// Buffers that are used again and again; at most [`WARM_BYTES_MAX`] together.
const WARM_SLOTS: u64 = 4;
const WARM_BYTES_MAX: usize = 16 << 20;
/// The memory that one step of never-used buffers may take.
const COLD_BYTES_MAX: usize = 128 << 20;
/// Allocations from here on are always fresh pages: beyond the largest threshold that glibc's malloc grows to.
const FRESH_BYTES_MIN: usize = 64 << 20;

/// Buffers of one size for a number of messages, in one allocation.
#[derive(Debug)]
pub(crate) struct Pool {
    bytes: Vec<u8>,
    size: usize,
    slots: u64,
    messages: u64,
    rewrite: bool,
}

impl Pool {
    pub(crate) fn new(size: usize, buffers: Buffers, messages: u64) -> Self {
        let (slots, room) = match buffers {
            Buffers::Cold => (messages, FRESH_BYTES_MIN),
            Buffers::Warm | Buffers::Rewritten => (Self::warm_slots(size), 0),
        };
        let used = size * usize::try_from(slots).expect("a pool is smaller than the address space");
        let mut bytes = vec![0; used.max(room)];
        // Page faults are taken here.
        bytes[..used].fill(0xff);
        Self { bytes, size, slots, messages, rewrite: buffers == Buffers::Rewritten }
    }

    /// The most messages one step may have, so that cold buffers fit into memory.
    pub(crate) fn messages_max(size: usize, buffers: Buffers) -> u64 {
        match buffers {
            Buffers::Cold => (COLD_BYTES_MAX / size.max(1)).max(1) as u64,
            Buffers::Warm | Buffers::Rewritten => u64::MAX,
        }
    }

    fn warm_slots(size: usize) -> u64 {
        WARM_SLOTS.min((WARM_BYTES_MAX / size.max(1)).max(1) as u64)
    }

    /// The number of messages that this pool was made for.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }

    /// The number of messages that can be under way at once. Message `n` lies in slot `n % slots`.
    pub(crate) fn slots(&self) -> u64 {
        self.slots
    }

    fn start(&self, message: u64) -> usize {
        (message % self.slots) as usize * self.size
    }

    /// The buffer of a message.
    pub(crate) fn slot(&self, message: u64) -> &[u8] {
        let start = self.start(message);
        &self.bytes[start..start + self.size]
    }

    /// The buffer of a message, to receive into.
    pub(crate) fn slot_mut(&mut self, message: u64) -> &mut [u8] {
        let start = self.start(message);
        &mut self.bytes[start..start + self.size]
    }

    /// The buffer of a message, just before it is sent: written anew, if that is what is measured.
    pub(crate) fn fill(&mut self, message: u64) -> &[u8] {
        if self.rewrite {
            let slot = self.slot_mut(message);
            slot.fill(message as u8);
            black_box(slot);
        }
        self.slot(message)
    }

    /// Writes into every slot what [`Pool::holds_pattern`] expects.
    pub(crate) fn write_pattern(&mut self) {
        for slot in 0..self.slots {
            write_pattern(self.slot_mut(slot));
        }
    }

    /// Returns true if each slot that received a message holds the pattern.
    pub(crate) fn holds_pattern(&self) -> bool {
        (0..self.slots.min(self.messages)).all(|slot| holds_pattern(self.slot(slot)))
    }
}

/// Fills a message with bytes that depend on their position, modulo 251, so that a missing, doubled or moved part is found.
pub(crate) fn write_pattern(message: &mut [u8]) {
    for (position, byte) in message.iter_mut().enumerate() {
        *byte = pattern(position);
    }
}

/// Returns true if a message is as it was written.
pub(crate) fn holds_pattern(message: &[u8]) -> bool {
    message.iter().enumerate().all(|(position, &byte)| byte == pattern(position))
}

/// Never 0 at the start, because a count of 0 does not wake the reader of an eventfd.
const fn pattern(position: usize) -> u8 {
    (position % 251) as u8 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_buffers_are_reused_and_cold_ones_are_not() {
        let warm = Pool::new(4096, Buffers::Warm, 100);
        assert_eq!(warm.slot(0).as_ptr(), warm.slot(warm.slots()).as_ptr());
        let cold = Pool::new(4096, Buffers::Cold, 100);
        assert_eq!(cold.slots(), 100);
        assert_ne!(cold.slot(0).as_ptr(), cold.slot(99).as_ptr());
    }

    #[test]
    fn the_pattern_notices_pieces_that_moved() {
        let mut message = vec![0; 1000];
        write_pattern(&mut message);
        assert!(holds_pattern(&message));
        message.rotate_left(64);
        assert!(!holds_pattern(&message));
    }

    #[test]
    fn messages_of_no_bytes_have_a_place() {
        let mut pool = Pool::new(0, Buffers::Warm, 10);
        pool.write_pattern();
        assert!(pool.slot_mut(9).is_empty() && pool.holds_pattern());
    }

    #[test]
    fn only_rewritten_buffers_are_written_before_a_send() {
        let mut pool = Pool::new(8, Buffers::Warm, 10);
        assert_eq!(pool.fill(3), [0xff; 8]);
        let mut pool = Pool::new(8, Buffers::Rewritten, 10);
        assert_eq!(pool.fill(3), [3; 8]);
    }
}
