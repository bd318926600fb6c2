//! Shared memory out of loom's atomics, and ways to take one ordering out of it.
//!
//! Memory is a sparse table: a model names the words it touches, all others read as zero and may not be written. Several regions
//! lie in one table, each where its number begins. Stamps, heads
//! and flags are atomics. What else lies in a cell, and the slab, can be *plain*: loom then fails where an access is not
//! ordered after the one before it, by whatever thread, though every order of loads and stores that loom tries has the right outcome.

use isthmus_layout::channel::{
    BLOCKED, CELL_WORDS, ChannelGeometry, Direction, DirectionLayout, HEAD, PARKED, SLAB_HEAD, STAMP, SlabSize,
};
use isthmus_layout::limits::{RING_CELLS, SLAB_BYTES_MIN};
use isthmus_layout::ready_map::{ReadyBit, SLEEPING, SUMMARY};
use isthmus_shm::{Consumer, Payload, Producer, SlabConsumer, SlabProducer, Words};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// How the words of cells behave that no ordering is ever asked of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bodies {
    /// As the real ones do: each load answers with some store.
    Atomic,
    /// As memory on which nothing may race.
    Plain,
}

/// One ordering that a handle leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Weaken {
    /// Loads of these words are relaxed.
    Load(RangeInclusive<u32>),
    /// Stores to these words are relaxed.
    Store(RangeInclusive<u32>),
    /// Swaps of these words are relaxed.
    Swap(RangeInclusive<u32>),
    /// `or`s on these words are relaxed.
    Or(RangeInclusive<u32>),
    /// `or`s on these words are stores: right for a word of one bit, but for what reading it as well is worth.
    OrIsStore(RangeInclusive<u32>),
    /// `compare_exchange`s of these words are relaxed.
    CompareExchange(RangeInclusive<u32>),
    /// There are no fences.
    Fence,
    /// There are no fences between loads.
    LoadFence,
}

enum Word {
    Atomic(AtomicU32),
    /// Stored by one side, swapped by the other, all relaxed. Loom forgets that what was swapped out comes before what is stored
    /// later, and would answer a load behind two fences with the older. So stores are swaps too, which loom keeps in order.
    Flag(AtomicU32),
    Plain(UnsafeCell<u32>),
}

#[derive(Default)]
struct Memory {
    words: BTreeMap<u32, Word>,
    /// Payload, by the byte at which each copy begins.
    copies: BTreeMap<u64, UnsafeCell<u8>>,
    /// Swapped before each fence. Loom only reorders threads where they touch the same thing, and a fence touches nothing: without
    /// this it does not try one of two fences first if all that lies between them is a load that may answer with an old value.
    fences: AtomicU32,
}

// SAFETY: loom runs one thread at a time, and itself checks which accesses to the cells would have raced.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Words of a region's number in the table.
const REGION_WORDS: u32 = 1 << 16;

/// Makes a [`Handle`]. Words are made in order and before any thread starts, as loom wants it.
#[derive(Default)]
pub(super) struct Builder(Memory);

impl Builder {
    /// Words of region 0 that start as zero.
    pub(super) fn atomics(mut self, words: impl IntoIterator<Item = u32>) -> Self {
        self.0.words.extend(words.into_iter().map(|at| (at, Word::Atomic(AtomicU32::new(0)))));
        self
    }

    /// Words of region 0 that are only loaded and stored, on which nothing may race.
    pub(super) fn plains(mut self, words: impl IntoIterator<Item = u32>) -> Self {
        self.0.words.extend(words.into_iter().map(|at| (at, Word::Plain(UnsafeCell::new(0)))));
        self
    }

    /// Words of region 0 that one side stores and the other one swaps.
    pub(super) fn flags(mut self, words: impl IntoIterator<Item = u32>) -> Self {
        self.0.words.extend(words.into_iter().map(|at| (at, Word::Flag(AtomicU32::new(0)))));
        self
    }

    /// A ready map, of which a model uses `bits`.
    pub(super) fn ready_map(mut self, region: u32, bits: &[ReadyBit]) -> Self {
        let first = region * REGION_WORDS;
        for at in bits.iter().map(|bit| bit.word()).chain([SUMMARY]) {
            self.0.words.insert(first + at, Word::Atomic(AtomicU32::new(0)));
        }
        self.0.words.insert(first + SLEEPING, Word::Flag(AtomicU32::new(0)));
        self
    }

    /// Adds a ring. A model uses the first `words` words of each cell.
    pub(super) fn ring(mut self, words: u32, bodies: Bodies) -> Self {
        let at = layout();
        for cell in 0..RING_CELLS {
            let first = at.ring + cell * CELL_WORDS;
            self = self.atomics([first + STAMP]);
            for word in first + STAMP + 1..first + words {
                let made = match bodies {
                    Bodies::Atomic => Word::Atomic(AtomicU32::new(0)),
                    Bodies::Plain => Word::Plain(UnsafeCell::new(0)),
                };
                self.0.words.insert(word, made);
            }
        }
        for flag in [at.consumer + PARKED, at.producer + BLOCKED] {
            self.0.words.insert(flag, Word::Flag(AtomicU32::new(0)));
        }
        self.atomics([at.consumer + HEAD])
    }

    /// A slab, of which a model copies one byte at each of `starts`.
    pub(super) fn slab(mut self, starts: impl IntoIterator<Item = u64>) -> Self {
        self.0.copies = starts.into_iter().map(|at| (layout().slab + at, UnsafeCell::new(0))).collect();
        self.atomics([layout().consumer + SLAB_HEAD])
    }

    /// Payload that belongs to nothing else: a byte at each of `places`.
    pub(super) fn bytes(mut self, places: impl IntoIterator<Item = u64>) -> Self {
        self.0.copies = places.into_iter().map(|at| (at, UnsafeCell::new(0))).collect();
        self
    }

    /// A first handle, which weakens nothing.
    pub(super) fn build(self) -> Handle {
        Handle { memory: Arc::new(self.0), region: 0, weak: None }
    }
}

/// Where the models' ring and slab lie.
pub(super) fn layout() -> DirectionLayout {
    ChannelGeometry { slab: slab_size() }.direction(Direction::Zero)
}

fn slab_size() -> SlabSize {
    SlabSize::new(SLAB_BYTES_MIN).unwrap()
}

/// One side's view of the memory, which may leave out one ordering.
#[derive(Clone)]
pub(super) struct Handle {
    memory: Arc<Memory>,
    region: u32,
    weak: Option<Weaken>,
}

impl Handle {
    /// Returns the same memory, weakened.
    pub(super) fn weakened(&self, weak: Option<Weaken>) -> Self {
        Self { memory: self.memory.clone(), region: self.region, weak }
    }

    /// Another region of the same table.
    pub(super) fn in_region(&self, region: u32) -> Self {
        Self { memory: self.memory.clone(), region, weak: None }
    }

    pub(super) fn producer(&self) -> Producer<Self> {
        Producer::new(self.clone(), layout())
    }

    pub(super) fn consumer(&self) -> Consumer<Self> {
        Consumer::new(self.clone(), layout())
    }

    pub(super) fn slab_producer(&self) -> SlabProducer<Self> {
        SlabProducer::new(self.clone(), layout(), slab_size())
    }

    pub(super) fn slab_consumer(&self) -> SlabConsumer<Self> {
        SlabConsumer::new(self.clone(), layout(), slab_size())
    }

    fn word(&self, at: u32) -> Option<&Word> {
        self.memory.words.get(&(self.region * REGION_WORDS + at))
    }

    fn atomic(&self, at: u32) -> &AtomicU32 {
        match self.word(at) {
            Some(Word::Atomic(word) | Word::Flag(word)) => word,
            Some(Word::Plain(_)) => panic!("word {at} is only ever loaded and stored"),
            None => panic!("word {at} is not part of the model"),
        }
    }

    /// The ordering that is left of `order` for an operation that `weakens` tells.
    fn left(&self, order: Ordering, weakens: impl Fn(&Weaken) -> bool) -> Ordering {
        if self.weak.as_ref().is_some_and(weakens) { Ordering::Relaxed } else { order }
    }
}

impl Words for Handle {
    fn load(&self, at: u32, order: Ordering) -> u32 {
        let order = self.left(order, |weak| matches!(weak, Weaken::Load(words) if words.contains(&at)));
        match self.word(at) {
            None => 0,
            Some(Word::Atomic(word) | Word::Flag(word)) => word.load(order),
            Some(Word::Plain(word)) => {
                assert_eq!(order, Ordering::Relaxed);
                // SAFETY: loom has just checked that no thread writes; the value is copied before the next access.
                word.with(|word| unsafe { *word })
            }
        }
    }

    fn store(&self, at: u32, value: u32, order: Ordering) {
        let order = self.left(order, |weak| matches!(weak, Weaken::Store(words) if words.contains(&at)));
        match self.word(at) {
            Some(Word::Plain(word)) => {
                assert_eq!(order, Ordering::Relaxed);
                // SAFETY: loom has just checked that no other thread reads or writes.
                word.with_mut(|word| unsafe { *word = value });
            }
            Some(Word::Flag(word)) => {
                assert_eq!(order, Ordering::Relaxed);
                word.swap(value, order);
            }
            _ => self.atomic(at).store(value, order),
        }
    }

    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32 {
        let order = self.left(order, |weak| matches!(weak, Weaken::Swap(words) if words.contains(&at)));
        self.atomic(at).swap(value, order)
    }

    fn or(&self, at: u32, bits: u32, order: Ordering) {
        if matches!(&self.weak, Some(Weaken::OrIsStore(words)) if words.contains(&at)) {
            return self.atomic(at).store(bits, order);
        }
        let order = self.left(order, |weak| matches!(weak, Weaken::Or(words) if words.contains(&at)));
        self.atomic(at).fetch_or(bits, order);
    }

    fn compare_exchange(&self, at: u32, from: u32, to: u32, order: Ordering) -> bool {
        let order = self.left(order, |weak| matches!(weak, Weaken::CompareExchange(words) if words.contains(&at)));
        self.atomic(at).compare_exchange(from, to, order, Ordering::Relaxed).is_ok()
    }

    fn load_fence(&self) {
        if self.weak != Some(Weaken::LoadFence) {
            fence(Ordering::Acquire);
        }
    }

    fn fence(&self) {
        if self.weak != Some(Weaken::Fence) {
            self.memory.fences.fetch_or(0, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }
}

impl Payload for Handle {
    fn copy_in(&self, at: u64, from: &[u8]) {
        // SAFETY: loom has just checked that no other thread reads or writes.
        self.memory.copies[&at].with_mut(|byte| unsafe { *byte = from[0] });
    }

    fn copy_out(&self, at: u64, into: &mut [u8]) {
        // SAFETY: loom has just checked that no thread writes.
        into[0] = self.memory.copies[&at].with(|byte| unsafe { *byte });
    }
}
