//! The first pages of an arena, which its owner and its writers share.
//!
//! ```text
//!   owner                                         peer
//!   open         words, odd generation ───────►   read_entry    odd generation, words, the same generation
//!   invalidate   even generation, fence           begin_write   "I am in", fence, still the same generation?
//!   is_writing   waits for the writers            end_write     "I am out", unless the owner has given up waiting
//! ```
//!
//! A writer is either seen inside, and waited for, or sees that it is shut. A reader says nothing: it looks at the generation again when
//! it has read, and throws away what it read if that has changed.
//!
//! Letters as in [`ring`](crate::ring), with models in `tests/loom_models/arena.rs`:
//!
//! | | here | partner |
//! | --- | --- | --- |
//! | Q, R | the generation, opened (Q) | and seen (R): the entry is whole |
//! | S, T | the count of changes (S) | and seen (T): the entry it was counted for is open |
//! | U, V | the owner's fence (U) | a writer's (V): one of them sees the other |
//! | U, W | the owner's fence (U) | a reader's (W): who has read something later sees that it was shut |
//! | X, Y | a writer is out (X) | and is seen to be (Y): what he wrote is there |
//! | Z1, Z2 | a writer slot is empty (Z1) | and taken (Z2): argued, it only matters where a domain dies |
//!
//! Writers have the same owner as the arena, and may lie: then others of that owner are lied to, or the owner waits for nothing, for a bounded time.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use isthmus_layout::DomainId;
use isthmus_layout::arena::{
    BODY, CHANGES, DOMAIN, ENTRIES, EVICTED, GENERATION, HEAD, HEADER, KEY, MAGIC, MAGIC_VALUE, RIGHTS, START, WRITERS,
    WRITING_ENTRY, entry, writer,
};
use isthmus_layout::limits::PAGE_BYTES;

use crate::words::Words;

/// Bytes of one entry, an end of the plausible.
const BODY_MAX: u64 = 64 << 30;

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaEntry {
    /// What requests call it.
    pub key: u64,
    /// What may be done: [`READ`](isthmus_layout::arena::READ), [`WRITE`](isthmus_layout::arena::WRITE).
    pub rights: u32,
    /// Bytes of the registration before the first whole page, which are not in the file.
    pub head: u64,
    /// Bytes that are.
    pub body: u64,
    /// Where they begin in the file.
    pub start: u64,
}

impl ArenaEntry {
    /// Whether it names whole pages behind the header.
    fn is_plausible(&self) -> bool {
        let pages = [self.start, self.body].into_iter().all(|bytes| bytes.is_multiple_of(u64::from(PAGE_BYTES)));
        let bytes = (1..=BODY_MAX).contains(&self.body);
        pages && bytes && self.start >= HEADER.0 && self.start.checked_add(self.body).is_some()
    }
}

/// The header of an arena, in some memory.
#[derive(Clone, Debug)]
pub struct ArenaHeader<M>(M);

impl<M: Words> ArenaHeader<M> {
    /// Of memory that begins with one.
    pub const fn new(memory: M) -> Self {
        Self(memory)
    }

    /// Makes a header out of zeroes, before a peer gets it.
    pub fn init(&self) {
        self.0.store(MAGIC, MAGIC_VALUE, Relaxed);
    }

    /// Whether this is one.
    pub fn is_initialized(&self) -> bool {
        self.0.load(MAGIC, Relaxed) == MAGIC_VALUE
    }

    /// Shows an entry that was shut.
    pub fn open(&self, index: u32, what: &ArenaEntry) {
        let at = entry(index);
        let long = |word: u32, value: u64| {
            self.0.store(at + word, value as u32, Relaxed);
            self.0.store(at + word + 1, (value >> 32) as u32, Relaxed);
        };
        self.0.store(at + RIGHTS, what.rights, Relaxed);
        long(KEY, what.key);
        long(HEAD, what.head);
        long(BODY, what.body);
        long(START, what.start);
        let generation = self.0.load(at + GENERATION, Relaxed) | 1;
        // Q, with R in `read_entry`: who sees the odd number sees the words above.
        self.0.store(at + GENERATION, generation, Release);
        self.bump_changes();
    }

    fn bump_changes(&self) {
        let changes = self.0.load(CHANGES, Relaxed).wrapping_add(1);
        // S, with T in `change_count`: who sees the new count sees the entry.
        self.0.store(CHANGES, changes, Release);
    }

    /// Nobody may enter any more.
    pub fn invalidate(&self, index: u32) {
        let at = entry(index) + GENERATION;
        let generation = self.0.load(at, Relaxed);
        if generation % 2 == 1 {
            self.0.store(at, generation.wrapping_add(1), Relaxed);
            self.bump_changes();
        }
        // U, with V and W in `begin_write` and `is_still_open`.
        self.0.fence();
    }

    /// Whether somebody writes in an entry that was shut.
    pub fn is_writing(&self, writer_index: u32, index: u32) -> bool {
        // Y, with X in `end_write`: what he wrote is there.
        self.0.load(writer(writer_index) + WRITING_ENTRY, Acquire) == index + 1
    }

    /// The owner waits no longer for the writer in this slot, which learns at the end of its write that what it wrote was not seen.
    /// False if the write has ended.
    pub fn evict(&self, writer_index: u32, index: u32) -> bool {
        self.0.compare_exchange(writer(writer_index) + WRITING_ENTRY, index + 1, EVICTED, Relaxed)
    }

    /// A domain is gone, and its writer slot free.
    pub fn free_writer_of(&self, domain: DomainId) {
        for at in (0..WRITERS).map(writer) {
            if self.0.load(at + DOMAIN, Relaxed) == domain.number() {
                self.0.store(at + WRITING_ENTRY, 0, Relaxed);
                // Z1, with Z2 in `claim_writer`: what the next one says does not come before this.
                self.0.store(at + DOMAIN, 0, Release);
            }
        }
    }

    /// A writer slot: this domain's from before, or a free one.
    pub fn claim_writer(&self, me: DomainId) -> Option<u32> {
        let has = |writer_index: &u32| self.0.load(writer(*writer_index) + DOMAIN, Relaxed) == me.number();
        // Z2, with Z1 in `free_writer_of`.
        let takes =
            |writer_index: &u32| self.0.compare_exchange(writer(*writer_index) + DOMAIN, 0, me.number(), Acquire);
        (0..WRITERS).find(has).or_else(|| (0..WRITERS).find(takes))
    }

    /// How often something was opened or shut.
    pub fn change_count(&self) -> u32 {
        // T, with S in `bump_changes`.
        self.0.load(CHANGES, Acquire)
    }

    /// An entry and its generation, if it is open. All that it says is fetched once and checked.
    pub fn read_entry(&self, index: u32) -> Option<(u32, ArenaEntry)> {
        let at = entry(index);
        let word = |word: u32| self.0.load(at + word, Relaxed);
        let long = |at: u32| u64::from(word(at)) | u64::from(word(at + 1)) << 32;
        // R, with Q in `open`.
        let generation = self.0.load(at + GENERATION, Acquire);
        if generation.is_multiple_of(2) {
            return None;
        }
        let (key, rights) = (long(KEY), word(RIGHTS));
        let found = ArenaEntry { key, rights, head: long(HEAD), body: long(BODY), start: long(START) };
        (self.is_still_open(index, generation) && found.is_plausible()).then_some((generation, found))
    }

    /// Whether all that was read before this was read while the entry was open.
    pub fn is_still_open(&self, index: u32, generation: u32) -> bool {
        // W, with U in `invalidate`.
        self.0.load_fence();
        self.is_open(index, generation)
    }

    /// Whether an entry is open now.
    pub fn is_open(&self, index: u32, generation: u32) -> bool {
        self.0.load(entry(index) + GENERATION, Relaxed) == generation
    }

    /// The domain of this writer slot says that it writes in an entry. False, and it does not, if the entry was shut.
    pub fn begin_write(&self, writer_index: u32, index: u32, generation: u32) -> bool {
        self.0.store(writer(writer_index) + WRITING_ENTRY, index + 1, Relaxed);
        // V, with U in `invalidate`: either it sees us, or we see that it is shut.
        self.0.fence();
        let open = self.is_open(index, generation);
        if !open {
            self.end_write(writer_index, index);
        }
        open
    }

    /// The write is over. False if the owner has not waited for it.
    pub fn end_write(&self, writer_index: u32, index: u32) -> bool {
        let at = writer(writer_index) + WRITING_ENTRY;
        // X, with Y in `is_writing`.
        if self.0.compare_exchange(at, index + 1, 0, Release) {
            return true;
        }
        // Our slot is ours again. (Should somebody else have written there, he is lying to the owner, not to us.)
        self.0.store(at, 0, Relaxed);
        false
    }
}

const _: () = assert!(ENTRIES < EVICTED);
