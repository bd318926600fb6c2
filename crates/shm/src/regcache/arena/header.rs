//! The first pages of an arena, which its owner and its writers share.
//!
//! ```text
//!   owner                                         peer
//!   open         words, odd generation ───────►   read_entry    odd generation, words, the same generation
//!   invalidate   even generation, fence           begin_write   "I am in", fence, still the same generation?
//!   is_writing   waits for the writers            end_write     "I am out", unless the owner has given up waiting
//! ```
//!
//! The owner either sees a writer inside and waits for it, or the writer sees that the entry is closed. A reader announces nothing:
//! it checks the generation again after reading, and discards what it read if the generation has changed.
//!
//! Letters as in [`ring`](crate::ring), with models in `tests/loom_models/arena.rs`:
//!
//! | | here | partner |
//! | --- | --- | --- |
//! | Q, R | the generation, opened (Q) | and seen (R): the entry is whole |
//! | S, T | the count of changes (S) | and seen (T): the entry it was counted for is open |
//! | U, V | the owner's fence (U) | a writer's (V): one of them sees the other |
//! | U, W | the owner's fence (U) | a reader's (W): a reader that has read something later sees that it was shut |
//! | X, Y | a writer is out (X) | and is seen to be (Y): what it wrote is there |
//! | Z1, Z2 | a writer slot is empty (Z1) | and taken (Z2): argued, it only matters where a domain dies |
//!
//! Writers have the same owner as the arena, and may lie. They can then deceive domains of that owner, or delay the owner for a bounded time.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use isthmus_layout::DomainId;
use isthmus_layout::arena::{
    BASE, BODY, CHANGES, DOMAIN, ENTRIES, EVICTED, GENERATION, HEAD, HEADER, KEY, MAGIC, MAGIC_VALUE, RIGHTS, START,
    WRITERS, WRITING_ENTRY, entry, writer,
};
use isthmus_layout::limits::PAGE_BYTES;

use crate::words::Words;

/// Largest plausible size of an entry, in bytes.
const BODY_MAX: u64 = 64 << 30;

/// The content of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaEntry {
    /// The key that requests name.
    pub key: u64,
    /// The permitted access: [`READ`](isthmus_layout::arena::READ), [`WRITE`](isthmus_layout::arena::WRITE).
    pub rights: u32,
    /// Number of bytes of the registration before its first whole page, which are not in the file.
    pub head: u64,
    /// Number of bytes in the file.
    pub body: u64,
    /// Offset of these bytes in the file.
    pub start: u64,
    /// The number by which requests name the first byte of the registration.
    pub base: u64,
}

impl ArenaEntry {
    /// Returns true if the entry names whole pages behind the header.
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
    /// Wraps memory that begins with a header.
    pub const fn new(memory: M) -> Self {
        Self(memory)
    }

    /// Initializes a header in zeroed memory, before a peer gets it.
    pub fn init(&self) {
        self.0.store(MAGIC, MAGIC_VALUE, Relaxed);
    }

    /// Returns true if this is an initialized header.
    pub fn is_initialized(&self) -> bool {
        self.0.load(MAGIC, Relaxed) == MAGIC_VALUE
    }

    /// Opens an entry that was closed.
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
        long(BASE, what.base);
        let generation = self.0.load(at + GENERATION, Relaxed) | 1;
        // Q, with R in `read_entry`: a reader that sees the odd number sees the words above.
        self.0.store(at + GENERATION, generation, Release);
        self.bump_changes();
    }

    fn bump_changes(&self) {
        let changes = self.0.load(CHANGES, Relaxed).wrapping_add(1);
        // S, with T in `change_count`: a reader that sees the new count sees the entry.
        self.0.store(CHANGES, changes, Release);
    }

    /// Closes an entry: no writer may enter any more.
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

    /// Returns true if the writer in this slot writes in an entry that was closed.
    pub fn is_writing(&self, writer_index: u32, index: u32) -> bool {
        // Y, with X in `end_write`: what the writer wrote is there.
        self.0.load(writer(writer_index) + WRITING_ENTRY, Acquire) == index + 1
    }

    /// Stops waiting for the writer in this slot. The writer learns at the end of its write that what it wrote was not seen.
    /// Returns false if the write has ended.
    pub fn evict(&self, writer_index: u32, index: u32) -> bool {
        self.0.compare_exchange(writer(writer_index) + WRITING_ENTRY, index + 1, EVICTED, Relaxed)
    }

    /// Frees the writer slot of a domain that is gone.
    pub fn free_writer_of(&self, domain: DomainId) {
        for at in (0..WRITERS).map(writer) {
            if self.0.load(at + DOMAIN, Relaxed) == domain.number() {
                self.0.store(at + WRITING_ENTRY, 0, Relaxed);
                // Z1, with Z2 in `claim_writer`: stores of the next owner of the slot do not come before this.
                self.0.store(at + DOMAIN, 0, Release);
            }
        }
    }

    /// Returns a writer slot: the one this domain already has, or a free one.
    pub fn claim_writer(&self, me: DomainId) -> Option<u32> {
        let has = |writer_index: &u32| self.0.load(writer(*writer_index) + DOMAIN, Relaxed) == me.number();
        // Z2, with Z1 in `free_writer_of`.
        let takes =
            |writer_index: &u32| self.0.compare_exchange(writer(*writer_index) + DOMAIN, 0, me.number(), Acquire);
        (0..WRITERS).find(has).or_else(|| (0..WRITERS).find(takes))
    }

    /// Returns how often an entry was opened or closed.
    pub fn change_count(&self) -> u32 {
        // T, with S in `bump_changes`.
        self.0.load(CHANGES, Acquire)
    }

    /// Reads an entry and its generation, if it is open. All of its content is fetched once and checked.
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
        let (head, body, start, base) = (long(HEAD), long(BODY), long(START), long(BASE));
        let found = ArenaEntry { key, rights, head, body, start, base };
        (self.is_still_open(index, generation) && found.is_plausible()).then_some((generation, found))
    }

    /// Returns true if everything read before this call was read while the entry was open.
    pub fn is_still_open(&self, index: u32, generation: u32) -> bool {
        // W, with U in `invalidate`.
        self.0.load_fence();
        self.is_open(index, generation)
    }

    /// Returns true if an entry is open now.
    pub fn is_open(&self, index: u32, generation: u32) -> bool {
        self.0.load(entry(index) + GENERATION, Relaxed) == generation
    }

    /// Announces that the domain of this writer slot writes in an entry. Returns false, and withdraws this, if the entry was closed.
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

    /// Ends a write. Returns false if the owner has not waited for it.
    pub fn end_write(&self, writer_index: u32, index: u32) -> bool {
        let at = writer(writer_index) + WRITING_ENTRY;
        // X, with Y in `is_writing`.
        if self.0.compare_exchange(at, index + 1, 0, Release) {
            return true;
        }
        // The slot is free again. (If another domain has written there, it lies to the owner, not to us.)
        self.0.store(at, 0, Relaxed);
        false
    }
}

const _: () = assert!(ENTRIES < EVICTED);
