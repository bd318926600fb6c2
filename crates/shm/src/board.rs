//! The board: peers mark their places, the receiver looks at one word, and sleeps only if nobody marked anything.
//!
//! Layout in [`isthmus_layout::board`]. The letters pair as in [`ring`](crate::ring).

use crate::words::Words;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use isthmus_layout::board::{ALL_GROUPS, ANY, ANYWHERE, GROUP_WORDS, MARKS, Place, SLEEPING, group_bit};

/// The receiver's side of a board.
#[derive(Debug)]
pub struct Board<M> {
    memory: M,
}

impl<M: Words> Board<M> {
    /// Over the board's memory.
    pub fn new(memory: M) -> Self {
        Self { memory }
    }

    /// The one place to look at, however many peers there are.
    #[inline]
    pub fn any(&self) -> bool {
        self.memory.load(ANY, Relaxed) != 0
    }

    /// Takes all marks off and names their places. Peers can mark any bit: the caller knows which places mean something.
    pub fn take(&self, mut marked: impl FnMut(Place)) {
        // K, with L in `mark` (modelled): whoever sees ANY sees the mark, and what was published before it.
        let any = self.memory.swap(ANY, 0, Acquire);
        let mut groups = if any & ANYWHERE != 0 { u32::MAX } else { any } & ALL_GROUPS;
        while groups != 0 {
            self.take_group(groups.trailing_zeros() - group_bit(0).trailing_zeros(), &mut marked);
            groups &= groups - 1;
        }
    }

    fn take_group(&self, group: u32, marked: &mut impl FnMut(Place)) {
        for word in GROUP_WORDS * group..GROUP_WORDS * (group + 1) {
            if self.memory.load(MARKS + word, Relaxed) == 0 {
                continue;
            }
            // M, with N in `mark` (modelled): a mark seen early, before its ANY, still comes after what was published.
            let mut bits = self.memory.swap(MARKS + word, 0, Acquire);
            while bits != 0 {
                let place = Place::new((32 * word + bits.trailing_zeros()) as u16);
                marked(place.expect("marks and places are as many"));
                bits &= bits - 1;
            }
        }
    }

    /// Before sleeping: says so and looks again. True if the receiver may sleep until its doorbell rings.
    pub fn sleep(&self) -> bool {
        self.memory.store(SLEEPING, 1, Relaxed);
        // O, with P in `mark` (modelled): either the marker sees us asleep, or we see its mark.
        self.memory.fence();
        let quiet = !self.any();
        if !quiet {
            self.wake();
        }
        quiet
    }

    /// After sleeping: doorbells are not needed any more.
    pub fn wake(&self) {
        self.memory.store(SLEEPING, 0, Relaxed);
    }
}

/// A peer's side of a board: one place of it.
#[derive(Debug)]
pub struct Marker<M> {
    memory: M,
    place: Place,
}

impl<M: Words> Marker<M> {
    /// Marks `place` of the board in `memory`.
    pub fn new(memory: M, place: Place) -> Self {
        Self { memory, place }
    }

    /// Marks our place. True if the receiver sleeps and its doorbell must be rung; one marker hears so.
    pub fn mark(&self) -> bool {
        crate::step!("mark");
        // N, with M in `take`.
        self.memory.or(self.place.word(), self.place.bit(), Release);
        // L, with K in `take`. A store would not do: of two markers' stores the receiver reads only the later one, and need not
        // see the mark that came before the other. `or` reads as well, so whoever reads it has what all before it released.
        self.memory.or(ANY, self.place.group_bit(), Release);
        // P, with O in `sleep`.
        self.memory.fence();
        self.memory.load(SLEEPING, Relaxed) != 0 && self.memory.swap(SLEEPING, 0, Relaxed) != 0
    }
}

#[cfg(test)]
mod tests;
