//! The ready map: peers set their bits, the receiver checks one word, and sleeps only if no bit is set.
//!
//! Layout in [`isthmus_layout::ready_map`]. The letters pair as in [`ring`](crate::ring).

use crate::words::Words;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use isthmus_layout::ready_map::{
    ALL_GROUPS, ANY_GROUP, GROUP_WORDS, READY_BITS, ReadyBit, SLEEPING, SUMMARY, group_bit,
};

/// The receiver's side of a ready map.
#[derive(Debug)]
pub struct ReadyMap<M> {
    memory: M,
}

impl<M: Words> ReadyMap<M> {
    /// Creates the receiver's side over the ready map's memory.
    pub fn new(memory: M) -> Self {
        Self { memory }
    }

    /// Returns true if any bit is set. It loads one word, however many peers there are.
    #[inline]
    pub fn is_any_set(&self) -> bool {
        self.memory.load(SUMMARY, Relaxed) != 0
    }

    /// Clears all bits and calls `found` for each that was set. Peers can set any bit; the caller knows which bits are in use.
    pub fn drain(&self, mut found: impl FnMut(ReadyBit)) {
        // K, with L in `set` (modelled): a receiver that sees `SUMMARY` sees the bit, and what was published before it.
        let summary = self.memory.swap(SUMMARY, 0, Acquire);
        let mut groups = if summary & ANY_GROUP != 0 { u32::MAX } else { summary } & ALL_GROUPS;
        while groups != 0 {
            self.drain_group(groups.trailing_zeros() - group_bit(0).trailing_zeros(), &mut found);
            groups &= groups - 1;
        }
    }

    fn drain_group(&self, group: u32, found: &mut impl FnMut(ReadyBit)) {
        for word in GROUP_WORDS * group..GROUP_WORDS * (group + 1) {
            if self.memory.load(READY_BITS + word, Relaxed) == 0 {
                continue;
            }
            // M, with N in `set` (modelled): a bit seen early, before its `SUMMARY`, still comes after what was published.
            let mut bits = self.memory.swap(READY_BITS + word, 0, Acquire);
            while bits != 0 {
                let ready_bit = ReadyBit::new((32 * word + bits.trailing_zeros()) as u16);
                found(ready_bit.expect("the words hold no other bits"));
                bits &= bits - 1;
            }
        }
    }

    /// Marks the receiver as sleeping and checks again. Returns true if it may sleep until its doorbell rings.
    pub fn begin_sleep(&self) -> bool {
        self.memory.store(SLEEPING, 1, Relaxed);
        // O, with P in `set` (modelled): either the peer sees us asleep, or we see its bit.
        self.memory.fence();
        let quiet = !self.is_any_set();
        if !quiet {
            self.end_sleep();
        }
        quiet
    }

    /// Marks the receiver as awake, so that peers ring no more doorbells.
    pub fn end_sleep(&self) {
        self.memory.store(SLEEPING, 0, Relaxed);
    }
}

/// A peer's side of a ready map: one bit of it.
#[derive(Debug)]
pub struct PeerReadyBit<M> {
    memory: M,
    ready_bit: ReadyBit,
}

impl<M: Words> PeerReadyBit<M> {
    /// Creates the side of a peer that sets `ready_bit` of the ready map in `memory`.
    pub fn new(memory: M, ready_bit: ReadyBit) -> Self {
        Self { memory, ready_bit }
    }

    /// Sets our bit. Returns true if the receiver sleeps and its doorbell must be rung. Only one peer gets true.
    pub fn set(&self) -> bool {
        crate::step!("set");
        // N, with M in `drain`.
        self.memory.or(self.ready_bit.word(), self.ready_bit.bit(), Release);
        // L, with K in `drain`. A store would not do: of two peers' stores the receiver reads only the later one, and need not
        // see the bit that was set before the other. `or` reads as well, so a thread that reads it has what all before it released.
        self.memory.or(SUMMARY, self.ready_bit.group_bit(), Release);
        // P, with O in `begin_sleep`.
        self.memory.fence();
        self.memory.load(SLEEPING, Relaxed) != 0 && self.memory.swap(SLEEPING, 0, Relaxed) != 0
    }
}

#[cfg(test)]
mod tests;
