//! Memory that another domain may change between any two of our loads.

use core::sync::atomic::Ordering;

/// Words of shared memory, reached one at a time.
///
/// One body of code runs over three memories: a [`SharedMapping`](crate::SharedMapping), which is the real thing; loom's atomics, which try
/// every order that the hardware may choose; and [`Liar`](crate::liar::Liar), which answers each load with whatever it likes.
///
/// Indices count 4-byte words from the start of the region. They are ours: an implementation may panic on one outside.
pub trait Words {
    /// Reads a word.
    fn load(&self, at: u32, order: Ordering) -> u32;
    /// Reads the words from `at` on, in any order.
    fn load_words<const N: usize>(&self, at: u32) -> [u32; N] {
        core::array::from_fn(|word| self.load(at + word as u32, Ordering::Relaxed))
    }
    /// Says that the line of word `at` will be written soon. Changes nothing but times.
    fn prefetch(&self, at: u32) {
        let _ = at;
    }
    /// Writes a word.
    fn store(&self, at: u32, value: u32, order: Ordering);
    /// Writes a word, further words, and bytes behind each other from `at` on, in any order; the last word of the bytes has zeroes in
    /// what they leave.
    fn store_words(&self, at: u32, first: u32, words: &[u32], bytes: &[u8]) {
        let words = core::iter::once(first).chain(words.iter().copied());
        let words = words.chain(bytes.chunks(4).map(padded));
        for (at, word) in (at..).zip(words) {
            self.store(at, word, Ordering::Relaxed);
        }
    }
    /// Writes a word and answers what was there.
    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32;
    /// Sets bits of a word.
    fn or(&self, at: u32, bits: u32, order: Ordering);
    /// Writes a word if it still is `from`. False, and no order, if it was not.
    fn compare_exchange(&self, at: u32, from: u32, to: u32, order: Ordering) -> bool;
    /// A sequentially consistent fence.
    fn fence(&self);
    /// A fence between loads before it and loads after it.
    fn load_fence(&self) {
        self.fence();
    }
    /// A fence that holds against a party that uses [`Self::heavy_fence`], and against no other.
    fn light_fence(&self) {
        self.fence();
    }
    /// A fence of ours, and at the same moment one of every party that [`Self::has_heavy_fence`]. False if there was none for them.
    fn heavy_fence(&self) -> bool {
        self.fence();
        false
    }
    /// True if this party's light fences hold, and it can itself ask for a heavy fence.
    fn has_heavy_fence(&self) -> bool {
        false
    }
}

/// At most four bytes as a word.
#[inline]
pub(crate) fn padded(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

/// Payload in shared memory: bytes that are moved, never looked at in place.
pub trait Payload {
    /// Copies `from` into the region at byte `at`.
    fn copy_in(&self, at: u64, from: &[u8]);
    /// Copies out of the region at byte `at`. What arrives may be a mixture of what was written before, while and after we
    /// copied; only the copy means anything.
    fn copy_out(&self, at: u64, into: &mut [u8]);
}

impl<T: Words + ?Sized> Words for &T {
    fn load(&self, at: u32, order: Ordering) -> u32 {
        (**self).load(at, order)
    }
    fn load_words<const N: usize>(&self, at: u32) -> [u32; N] {
        (**self).load_words(at)
    }
    fn prefetch(&self, at: u32) {
        (**self).prefetch(at);
    }
    fn store(&self, at: u32, value: u32, order: Ordering) {
        (**self).store(at, value, order);
    }
    fn store_words(&self, at: u32, first: u32, words: &[u32], bytes: &[u8]) {
        (**self).store_words(at, first, words, bytes);
    }
    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32 {
        (**self).swap(at, value, order)
    }
    fn or(&self, at: u32, bits: u32, order: Ordering) {
        (**self).or(at, bits, order);
    }
    fn compare_exchange(&self, at: u32, from: u32, to: u32, order: Ordering) -> bool {
        (**self).compare_exchange(at, from, to, order)
    }
    fn fence(&self) {
        (**self).fence();
    }
    fn load_fence(&self) {
        (**self).load_fence();
    }
    fn light_fence(&self) {
        (**self).light_fence();
    }
    fn heavy_fence(&self) -> bool {
        (**self).heavy_fence()
    }
    fn has_heavy_fence(&self) -> bool {
        (**self).has_heavy_fence()
    }
}

impl<T: Payload + ?Sized> Payload for &T {
    fn copy_in(&self, at: u64, from: &[u8]) {
        (**self).copy_in(at, from);
    }
    fn copy_out(&self, at: u64, into: &mut [u8]) {
        (**self).copy_out(at, into);
    }
}
