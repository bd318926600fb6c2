//! The memory of a stream, as one end uses it: rings of bytes, switches between paths, and wishes to be notified.
//!
//! Layout in [`isthmus_layout::sockets`], rules in `docs/spec/stream.md`. [`StreamMemory`] keeps no positions. The caller keeps its own in memory
//! that the peer cannot write, and checks those of the peer against them. Whatever the peer writes, no access leaves the rings and the words.
//!
//! The sender of a direction copies bytes into a ring and publishes its tail. The receiver copies them out and publishes its head. A switch is
//! announced after the last byte of the old path was published, and before the first byte of the new path is. The receiver therefore
//! fetches the tail first and the number of switches second ([`StreamMemory::peer_progress`]): a byte behind a switch is never seen without
//! that switch.
//!
//! Waiting follows one rule, for data and for room. The end that waits sets its wish, fences, and checks again. The other end publishes, fences,
//! and checks the wish. An end has two wishes, one for data and one for room ([`Interest`]), so two threads may wait at once. Each wish names one
//! waiter: a second thread that waits for the same shares the waiter of the first, or waits for it.
//!
//! The orderings. Each letter stands in two places.
//!
//! | letters | store | load | proved |
//! | --- | --- | --- | --- |
//! | S1, S2 | the tail (S1) | the same (S2) | modelled |
//! | S3, S4 | the head (S3) | the same (S4) | modelled, on bytes that must not race |
//! | S5, S6 | the number of switches announced (S5) | the same (S6) | modelled |
//! | S7, S8 | the number of switches taken (S7) | the same (S8) | modelled, on words that must not race |
//! | S9, S10 | the state (S9) | the same (S10) | modelled |
//! | S11, S12 | a wish and its fence (S11), what is published and its fence (S12) | each the other's | modelled, for both wishes |
//! | S13, S14 | the end of a call that reads TCP (S13) | the same (S14) | modelled |
//! | S15, S16 | the start of such a call and its fence (S15), a switch and its fence (S16) | each the other's | modelled |

use crate::words::{Payload, Words};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use isthmus_layout::sockets::{
    HEAD, HEAD_HIGH, Interest, READS_TCP, SLEEPS, STATE, SWITCH_AT, SWITCH_PATH, SWITCHES, StreamEndIndex, StreamPath,
    TAIL, TAIL_HIGH, TAKEN, TCP_BYTES, Want,
};

mod board;
mod report;

pub use board::{Board, WaiterPage};
pub use report::{EndReport, StreamReport};

/// Times that a wish is read and cleared before the peer is notified without clearing it. Other threads of this end clear a wish once.
/// Only a peer that changes the word all the time makes more tries fail.
const WANT_TRIES: u32 = 8;

/// Times that a state is changed by compare and exchange before it is stored. Only a peer that changes it all the time makes them fail.
const STATE_TRIES: u32 = 8;

/// The memory of a stream, as one of its ends uses it.
#[derive(Clone, Debug)]
pub struct StreamMemory<M> {
    memory: M,
    end: StreamEndIndex,
    /// First word of this end's block.
    own: u32,
    /// First word of the peer's block.
    peer: u32,
}

/// The words of a sender that say where its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProgress {
    /// The position behind the last byte in a ring, low 32 bits.
    pub tail: u32,
    /// The number of switches announced. It covers every byte before `tail`.
    pub switches: u32,
}

impl<M: Words> StreamMemory<M> {
    /// Creates the view of `end` over memory of [`STREAM_SIZE`](isthmus_layout::sockets::STREAM_SIZE) bytes.
    pub fn new(memory: M, end: StreamEndIndex) -> Self {
        Self { memory, end, own: end.block(), peer: end.peer().block() }
    }

    /// The end that this view belongs to.
    pub fn end(&self) -> StreamEndIndex {
        self.end
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    // The sender of this end's direction.

    /// Publishes the bytes before `position`. [`Self::peer_wants`] of data must follow, after this or after the last of several.
    #[inline(always)]
    pub fn publish_tail(&self, position: u64) {
        self.memory.store(self.own + TAIL_HIGH, (position >> 32) as u32, Relaxed);
        // S1, with S2 in `peer_tail` (modelled): a receiver that sees the tail sees the bytes before it and the switches that they need.
        self.memory.store(self.own + TAIL, position as u32, Release);
    }

    /// Returns the receiver's position, low 32 bits: bytes before it were copied out.
    #[inline(always)]
    pub fn peer_head(&self) -> u32 {
        // S4, with S3 in `publish_head` (modelled): bytes before the head were copied before we write their places again.
        self.memory.load(self.peer + HEAD, Acquire)
    }

    /// Returns the number of switches that the receiver has taken. The caller fetches the head afterwards.
    #[inline(always)]
    pub fn peer_taken(&self) -> u32 {
        // S8, with S7 in `take` (modelled): the words of a switch that was taken were read before we write the next one.
        self.memory.load(self.peer + TAKEN, Acquire)
    }

    /// Announces a switch, the `count`-th of this direction: bytes from position `at` on go by `path`. All earlier bytes of the old path are
    /// published, and the receiver has taken all switches but the last one. [`Self::peer_wants`] of data must follow.
    pub fn announce(&self, count: u32, at: u64, path: StreamPath, tcp_bytes: u64) {
        self.memory.store(self.own + SWITCH_AT + count % 2, at as u32, Relaxed);
        self.memory.store(self.own + SWITCH_PATH + count % 2, path.word(), Relaxed);
        self.memory.store(self.own + TCP_BYTES, tcp_bytes as u32, Relaxed);
        self.memory.store(self.own + TCP_BYTES + 1, (tcp_bytes >> 32) as u32, Relaxed);
        // S5, with S6 in `peer_switches` (modelled): a receiver that sees the number sees the switch, and all bytes of the old path.
        self.memory.store(self.own + SWITCHES, count, Release);
    }

    // The receiver of the peer's direction.

    /// Returns the sender's position, low 32 bits: bytes before it are in a ring, unless they went by TCP. The caller fetches the switches
    /// afterwards ([`Self::peer_progress`] does both) and reads no byte behind a switch that it has not taken.
    #[inline(always)]
    pub fn peer_tail(&self) -> u32 {
        // S2, with S1 in `publish_tail` (modelled): the bytes before the tail are there, and the switches that they need.
        self.memory.load(self.peer + TAIL, Acquire)
    }

    /// Returns the number of switches that the sender has announced.
    #[inline(always)]
    pub fn peer_switches(&self) -> u32 {
        // S6, with S5 in `announce` (modelled): the words of the switch are there, and all bytes of the old path.
        self.memory.load(self.peer + SWITCHES, Acquire)
    }

    /// Returns the sender's tail and its number of switches, in the order that matters.
    #[inline(always)]
    pub fn peer_progress(&self) -> PeerProgress {
        let tail = self.peer_tail();
        PeerProgress { tail, switches: self.peer_switches() }
    }

    /// Returns the `count`-th switch: its position, low 32 bits, and the word of its path. The caller has seen that it is announced, and has
    /// not taken it.
    pub fn peer_switch(&self, count: u32) -> (u32, u32) {
        let at = self.memory.load(self.peer + SWITCH_AT + count % 2, Relaxed);
        (at, self.memory.load(self.peer + SWITCH_PATH + count % 2, Relaxed))
    }

    /// Says whether a call reads TCP that began without a limit. Before such a call, the receiver looks at the switches once more.
    pub fn set_reads_tcp(&self, reads: bool) {
        // S13, with S14 in `peer_reads_tcp` (modelled): a sender that sees the end of the call sends after it.
        self.memory.store(self.own + READS_TCP, u32::from(reads), Release);
        if reads {
            // S15, with S16 in `peer_reads_tcp` (modelled): either the sender sees the call, or we see its switch.
            self.memory.fence();
        }
    }

    /// Returns what this end has said about calls that read TCP. The peer can write the word, so the caller decides nothing else by it.
    #[inline(always)]
    pub fn reads_tcp(&self) -> bool {
        self.memory.load(self.own + READS_TCP, Relaxed) != 0
    }

    /// Returns whether the receiver reads TCP in a call that began without a limit. This end has announced its last switch.
    pub fn peer_reads_tcp(&self) -> bool {
        // S16, with S15 in `set_reads_tcp` (modelled): either we see the call, or the receiver sees our last switch.
        self.memory.fence();
        // S14, with S13 in `set_reads_tcp` (modelled).
        self.memory.load(self.peer + READS_TCP, Acquire) != 0
    }

    /// Publishes the receiver's position: the sender may overwrite what lies before it. [`Self::peer_wants`] of room must follow, after this
    /// or after the last of several, if the sender may wait for room.
    #[inline(always)]
    pub fn publish_head(&self, position: u64) {
        self.memory.store(self.own + HEAD_HIGH, (position >> 32) as u32, Relaxed);
        // S3, with S4 in `peer_head` (modelled): our copies are complete before the sender may write the places again.
        self.memory.store(self.own + HEAD, position as u32, Release);
    }

    /// Takes the `count`-th switch: everything before it was read, and the head was published. [`Self::peer_wants`] of room must follow,
    /// because the sender may wait for this.
    pub fn take(&self, count: u32) {
        // S7, with S8 in `peer_taken` (modelled): we have read the words of the switch, and published the head that belongs to it.
        self.memory.store(self.own + TAKEN, count, Release);
    }

    // Both ends.

    /// Returns the peer's state, bits of [`StreamState`](isthmus_layout::sockets::StreamState).
    #[inline(always)]
    pub fn peer_state(&self) -> u32 {
        // S10, with S9 in `add_state` and `clear_state` (modelled): what the peer published before it set the bits is there.
        self.memory.load(self.peer + STATE, Acquire)
    }

    /// Returns this end's state. The peer can write the word, so the caller decides nothing by it.
    pub fn state(&self) -> u32 {
        self.memory.load(self.own + STATE, Relaxed)
    }

    /// Sets bits of this end's state. [`Self::peer_wants`] of data and of room must follow.
    pub fn add_state(&self, bits: u32) {
        // S9, with S10 in `peer_state` (modelled): the peer that sees the bits sees what we published before.
        self.memory.or(self.own + STATE, bits, Release);
    }

    /// Clears bits of this end's state.
    pub fn clear_state(&self, bits: u32) {
        let at = self.own + STATE;
        for _ in 0..STATE_TRIES {
            let state = self.memory.load(at, Relaxed);
            // S9, with S10 in `peer_state` (modelled).
            if self.memory.compare_exchange(at, state, state & !bits, Release) {
                return;
            }
        }
        let state = self.memory.load(at, Relaxed) & !bits;
        // S9, with S10 in `peer_state` (argued): the store does for the peer what the exchange above does.
        self.memory.store(at, state, Release);
    }

    /// Asks the peer to notify this end of data, or of room. The wish replaces the last one for the same, not the other. The caller then
    /// checks again what it waits for, and sleeps only if nothing has changed.
    #[inline]
    pub fn set_want(&self, of: Interest, want: Want) {
        self.memory.store(self.own + of.want_word(), want.word(), Relaxed);
        // S11, with S12 in `peer_wants` (modelled): either the peer sees the wish, or we see what it published.
        self.memory.fence();
    }

    /// Withdraws the wish for data, or for room. A notification may still come.
    #[inline]
    pub fn clear_want(&self, of: Interest) {
        self.memory.store(self.own + of.want_word(), 0, Relaxed);
    }

    /// Returns the word of this end's wish for data, or for room. It is 0 when the peer has granted it.
    #[inline]
    pub fn want_raw(&self, of: Interest) -> u32 {
        self.memory.load(self.own + of.want_word(), Relaxed)
    }

    /// Returns the wish of the peer for data, or for room. Called after publishing. A wish for a ready bit is cleared, so that it is
    /// returned once. The caller then notifies the waiter ([`Board::notify`]).
    #[inline(always)]
    pub fn peer_wants(&self, of: Interest) -> Option<Want> {
        // S12, with S11 in `set_want` (modelled): either we see the wish, or the peer sees what we published.
        self.memory.fence();
        let word = self.memory.load(self.peer + of.want_word(), Relaxed);
        if word == 0 { None } else { self.accept_want(word, of) }
    }

    #[inline(never)]
    fn accept_want(&self, mut word: u32, of: Interest) -> Option<Want> {
        let at = self.peer + of.want_word();
        let mut last = None;
        for _ in 0..WANT_TRIES {
            let want = Want::from_word(word)?;
            if matches!(want, Want::Hot(_)) || self.memory.compare_exchange(at, word, 0, Relaxed) {
                return Some(want);
            }
            last = Some(want);
            word = self.memory.load(at, Relaxed);
        }
        last // One notification too many does no harm.
    }

    /// Publishes how often this end has slept, for display.
    pub fn publish_sleeps(&self, count: u32) {
        self.memory.store(self.own + SLEEPS, count, Relaxed);
    }

    /// Reads the counters of both ends, for display only, because the peer may write anything.
    pub fn report(&self) -> StreamReport {
        StreamReport::read(&self.memory)
    }
}

impl<M: Words + Payload> StreamMemory<M> {
    /// Copies `bytes` into the ring of this end's direction, from position `at` on. The caller knows that there is room for them, so they
    /// are no more than the ring has. `path` is a ring.
    #[inline]
    pub fn write(&self, path: StreamPath, at: u64, bytes: &[u8]) {
        let span = RingSpan::new(path, self.end, at, bytes.len());
        let (first, rest) = bytes.split_at(span.first_len);
        self.memory.copy_in(span.first, first);
        if !rest.is_empty() {
            self.memory.copy_in(span.start, rest);
        }
    }

    /// Copies out of the ring of this end's direction what it has written there, from position `at` on. `path` is a ring.
    pub fn read_own(&self, path: StreamPath, at: u64, into: &mut [u8]) {
        self.read_of(self.end, path, at, into);
    }

    /// Copies out of the ring of the peer's direction, from position `at` on. The bytes are no more than the ring has. `path` is a ring.
    #[inline]
    pub fn read(&self, path: StreamPath, at: u64, into: &mut [u8]) {
        self.read_of(self.end.peer(), path, at, into);
    }

    #[inline(always)]
    fn read_of(&self, sender: StreamEndIndex, path: StreamPath, at: u64, into: &mut [u8]) {
        let span = RingSpan::new(path, sender, at, into.len());
        let (first, rest) = into.split_at_mut(span.first_len);
        self.memory.copy_out(span.first, first);
        if !rest.is_empty() {
            self.memory.copy_out(span.start, rest);
        }
    }
}

/// Bytes of a ring, which may go on at its start. The offsets count from the start of the stream's memory.
struct RingSpan {
    /// The first byte.
    first: u64,
    /// The number of bytes up to the end of the ring.
    first_len: usize,
    /// The start of the ring, where the others lie.
    start: u64,
}

impl RingSpan {
    #[inline(always)]
    fn new(path: StreamPath, sender: StreamEndIndex, at: u64, len: usize) -> Self {
        let start = path.ring_start(sender).expect("TCP has no ring"); // Ours.
        let bytes = path.bytes();
        assert!(len <= bytes as usize); // Ours.
        let offset = at as u32 % bytes;
        Self { first: start + u64::from(offset), first_len: len.min((bytes - offset) as usize), start }
    }
}

#[cfg(test)]
mod tests;
