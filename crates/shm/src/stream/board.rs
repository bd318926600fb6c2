//! The board of a process: a ready map for each of its waiters, in one region.

use crate::ready_map::{PeerReadyBit, ReadyMap};
use crate::words::Words;
use core::sync::atomic::Ordering::{self, Relaxed};
use isthmus_layout::ready_map::SLEEPING;
use isthmus_layout::sockets::{WAITER_WORDS, WaiterIndex, Want};

/// A board: a page for each waiter.
#[derive(Clone, Debug)]
pub struct Board<M> {
    memory: M,
}

impl<M: Words> Board<M> {
    /// Creates a view of the board in memory of [`BOARD_SIZE`](isthmus_layout::sockets::BOARD_SIZE) bytes.
    pub fn new(memory: M) -> Self {
        Self { memory }
    }

    /// The ready map of a waiter of this process.
    pub fn ready_map(&self, waiter: WaiterIndex) -> ReadyMap<WaiterPage<&M>> {
        ReadyMap::new(WaiterPage::new(&self.memory, waiter))
    }

    /// Grants a wish of the peer that this board belongs to. Returns true if the caller must ring the doorbell of the waiter.
    #[inline]
    pub fn notify(&self, want: Want) -> bool {
        match want {
            Want::Hot(waiter) => self.wake_hot(waiter),
            Want::Parked { waiter, ready_bit } => {
                PeerReadyBit::new(WaiterPage::new(&self.memory, waiter), ready_bit).set()
            }
        }
    }

    /// Returns true if a waiter of the peer sleeps and its doorbell must be rung. Called after
    /// [`StreamMemory::peer_wants`](super::StreamMemory::peer_wants), which has fenced. Only one caller gets true.
    #[inline]
    pub fn wake_hot(&self, waiter: WaiterIndex) -> bool {
        let at = waiter.page() + SLEEPING;
        self.memory.load(at, Relaxed) != 0 && self.memory.swap(at, 0, Relaxed) != 0
    }
}

/// The page of one waiter, as the memory of a [`ReadyMap`].
#[derive(Clone, Debug)]
pub struct WaiterPage<M> {
    memory: M,
    first: u32,
}

impl<M> WaiterPage<M> {
    /// Creates a view of the page of `waiter` in a board.
    pub fn new(memory: M, waiter: WaiterIndex) -> Self {
        Self { memory, first: waiter.page() }
    }

    #[inline(always)]
    fn word(&self, at: u32) -> u32 {
        assert!(at < WAITER_WORDS); // Ours.
        self.first + at
    }
}

impl<M: Words> Words for WaiterPage<M> {
    #[inline(always)]
    fn load(&self, at: u32, order: Ordering) -> u32 {
        self.memory.load(self.word(at), order)
    }
    #[inline(always)]
    fn store(&self, at: u32, value: u32, order: Ordering) {
        self.memory.store(self.word(at), value, order);
    }
    #[inline(always)]
    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32 {
        self.memory.swap(self.word(at), value, order)
    }
    #[inline(always)]
    fn or(&self, at: u32, bits: u32, order: Ordering) {
        self.memory.or(self.word(at), bits, order);
    }
    #[inline(always)]
    fn compare_exchange(&self, at: u32, from: u32, to: u32, order: Ordering) -> bool {
        self.memory.compare_exchange(self.word(at), from, to, order)
    }
    #[inline(always)]
    fn fence(&self) {
        self.memory.fence();
    }
}
