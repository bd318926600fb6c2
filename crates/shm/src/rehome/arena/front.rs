//! The first pages of an arena, where its owner and its visitors meet.
//!
//! ```text
//!   owner                                           visitor
//!   open   words of the entry, odd generation ──►   look    odd generation, words, the same generation
//!   shut   even generation, fence                   enter   "I am in", fence, still the same generation?
//!          is anybody in?  waits                    leave   "I am out", unless the owner has given up waiting
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
//! | Z1, Z2 | a place is empty (Z1) | and taken (Z2): argued, it only matters where a domain dies |
//!
//! Visitors are of one owner with it, and may lie: then others of that owner are lied to, or the owner waits in vain, for a bounded time.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use isthmus_layout::DomainId;
use isthmus_layout::arena::{
    BODY, CHANGES, DOMAIN, ENTRIES, EVICTED, FRONT, GENERATION, HEAD, INSIDE, KEY, MAGIC, MAGIC_VALUE, RIGHTS, START,
    VISITORS, entry, visitor,
};
use isthmus_layout::limits::PAGE_BYTES;

use crate::words::Words;

/// Bytes of one entry, an end of the plausible.
const BODY_MAX: u64 = 64 << 30;

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
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

impl Entry {
    /// Whether it names whole pages behind the front.
    fn is_plausible(&self) -> bool {
        let pages = [self.start, self.body].into_iter().all(|bytes| bytes.is_multiple_of(u64::from(PAGE_BYTES)));
        let bytes = (1..=BODY_MAX).contains(&self.body);
        pages && bytes && self.start >= FRONT.0 && self.start.checked_add(self.body).is_some()
    }
}

/// The front of an arena, in some memory.
#[derive(Clone, Debug)]
pub struct Front<M>(M);

impl<M: Words> Front<M> {
    /// Of memory that begins with one.
    pub const fn new(memory: M) -> Self {
        Self(memory)
    }

    /// Makes a front out of zeroes, before it is shown to anybody.
    pub fn found(&self) {
        self.0.store(MAGIC, MAGIC_VALUE, Relaxed);
    }

    /// Whether this is one.
    pub fn is_founded(&self) -> bool {
        self.0.load(MAGIC, Relaxed) == MAGIC_VALUE
    }

    /// Shows an entry that was shut.
    pub fn open(&self, index: u32, what: &Entry) {
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
        // Q, with R in `look`: who sees the odd number sees the words above.
        self.0.store(at + GENERATION, generation, Release);
        self.changed();
    }

    fn changed(&self) {
        let changes = self.0.load(CHANGES, Relaxed).wrapping_add(1);
        // S, with T in `changes`: who sees the new count sees the entry.
        self.0.store(CHANGES, changes, Release);
    }

    /// Nobody may enter any more.
    pub fn shut(&self, index: u32) {
        let at = entry(index) + GENERATION;
        let generation = self.0.load(at, Relaxed);
        if generation % 2 == 1 {
            self.0.store(at, generation.wrapping_add(1), Relaxed);
            self.changed();
        }
        // U, with V and W in `enter` and `is_still_open`.
        self.0.fence();
    }

    /// Whether somebody writes in an entry that was shut.
    pub fn is_inside(&self, place: u32, index: u32) -> bool {
        // Y, with X in `leave`: what he wrote is there.
        self.0.load(visitor(place) + INSIDE, Acquire) == index + 1
    }

    /// Nobody waits any longer for who is at this place: when he leaves, he learns that what he wrote was not seen. False if he has left.
    pub fn evict(&self, place: u32, index: u32) -> bool {
        self.0.replace(visitor(place) + INSIDE, index + 1, EVICTED, Relaxed)
    }

    /// A domain is gone, and its place free.
    pub fn forget(&self, domain: DomainId) {
        for at in (0..VISITORS).map(visitor) {
            if self.0.load(at + DOMAIN, Relaxed) == domain.number() {
                self.0.store(at + INSIDE, 0, Relaxed);
                // Z1, with Z2 in `claim`: what the next one says does not come before this.
                self.0.store(at + DOMAIN, 0, Release);
            }
        }
    }

    /// A place among the visitors: this domain's from before, or a free one.
    pub fn claim(&self, me: DomainId) -> Option<u32> {
        let has = |place: &u32| self.0.load(visitor(*place) + DOMAIN, Relaxed) == me.number();
        // Z2, with Z1 in `forget`.
        let takes = |place: &u32| self.0.replace(visitor(*place) + DOMAIN, 0, me.number(), Acquire);
        (0..VISITORS).find(has).or_else(|| (0..VISITORS).find(takes))
    }

    /// How often something was opened or shut.
    pub fn changes(&self) -> u32 {
        // T, with S in `changed`.
        self.0.load(CHANGES, Acquire)
    }

    /// An entry and its generation, if it is open. All that it says is fetched once and checked.
    pub fn look(&self, index: u32) -> Option<(u32, Entry)> {
        let at = entry(index);
        let word = |word: u32| self.0.load(at + word, Relaxed);
        let long = |at: u32| u64::from(word(at)) | u64::from(word(at + 1)) << 32;
        // R, with Q in `open`.
        let generation = self.0.load(at + GENERATION, Acquire);
        if generation.is_multiple_of(2) {
            return None;
        }
        let (key, rights) = (long(KEY), word(RIGHTS));
        let found = Entry { key, rights, head: long(HEAD), body: long(BODY), start: long(START) };
        (self.is_still_open(index, generation) && found.is_plausible()).then_some((generation, found))
    }

    /// Whether all that was read before this was read while the entry was open.
    pub fn is_still_open(&self, index: u32, generation: u32) -> bool {
        // W, with U in `shut`.
        self.0.load_fence();
        self.is_open(index, generation)
    }

    /// Whether an entry is open now.
    pub fn is_open(&self, index: u32, generation: u32) -> bool {
        self.0.load(entry(index) + GENERATION, Relaxed) == generation
    }

    /// Who has this place says that he writes in an entry. False, and he does not, if it was shut.
    pub fn enter(&self, place: u32, index: u32, generation: u32) -> bool {
        self.0.store(visitor(place) + INSIDE, index + 1, Relaxed);
        // V, with U in `shut`: either it sees us, or we see that it is shut.
        self.0.fence();
        let open = self.is_open(index, generation);
        if !open {
            self.leave(place, index);
        }
        open
    }

    /// He is out again. False if nobody has waited for that.
    pub fn leave(&self, place: u32, index: u32) -> bool {
        let at = visitor(place) + INSIDE;
        // X, with Y in `is_inside`.
        if self.0.replace(at, index + 1, 0, Release) {
            return true;
        }
        // Our place is ours again. (Should somebody else have written there, he is lying to the owner, not to us.)
        self.0.store(at, 0, Relaxed);
        false
    }
}

const _: () = assert!(ENTRIES < EVICTED);
