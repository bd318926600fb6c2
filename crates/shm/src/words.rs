//! Memory that another domain may change between any two of our loads.

use core::sync::atomic::Ordering;

/// Words of shared memory, accessed one at a time.
///
/// The same code runs over three kinds of memory: a [`SharedMapping`](crate::SharedMapping), which is the real one; loom's atomics, which
/// try every order that the hardware may choose; and [`Liar`](crate::liar::Liar), which returns arbitrary values for each load.
///
/// Indices count 4-byte words from the start of the region. The caller has checked them: an implementation may panic on one outside.
pub trait Words {
    /// Reads a word.
    fn load(&self, at: u32, order: Ordering) -> u32;
    /// Reads the words from `at` on, in any order.
    fn load_words<const N: usize>(&self, at: u32) -> [u32; N] {
        core::array::from_fn(|word| self.load(at + word as u32, Ordering::Relaxed))
    }
    /// Announces that the cache line of word `at` will be written soon. It affects only the timing.
    fn prefetch(&self, at: u32) {
        let _ = at;
    }
    /// Writes a word.
    fn store(&self, at: u32, value: u32, order: Ordering);
    /// Writes a word, further words, and bytes one after another from `at` on, in any order. The last word of the bytes is padded with
    /// zeroes.
    fn store_words(&self, at: u32, first: u32, words: &[u32], bytes: &[u8]) {
        let words = core::iter::once(first).chain(words.iter().copied());
        let words = words.chain(bytes.chunks(4).map(padded));
        for (at, word) in (at..).zip(words) {
            self.store(at, word, Ordering::Relaxed);
        }
    }
    /// Writes a word and returns its previous value.
    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32;
    /// Sets bits of a word.
    fn or(&self, at: u32, bits: u32, order: Ordering);
    /// Writes a word if it still is `from`. Otherwise returns false and orders nothing.
    fn compare_exchange(&self, at: u32, from: u32, to: u32, order: Ordering) -> bool;
    /// A sequentially consistent fence.
    fn fence(&self);
    /// A fence between loads before it and loads after it.
    fn load_fence(&self) {
        self.fence();
    }
    /// A fence that pairs with a [`Self::heavy_fence`] of the other side, and with no other fence.
    fn light_fence(&self) {
        self.fence();
    }
    /// Fences this side and every side that [`Self::has_heavy_fence`]. Returns false if the other sides were not fenced.
    fn heavy_fence(&self) -> bool {
        self.fence();
        false
    }
    /// Returns true if this side's light fences work, and it can itself issue a heavy fence.
    fn has_heavy_fence(&self) -> bool {
        false
    }
}

/// Packs at most four bytes into a word.
#[inline]
pub(crate) fn padded(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

/// Payload in shared memory: bytes that are copied, never read in place.
pub trait Payload {
    /// Copies `from` into the region at byte `at`.
    fn copy_in(&self, at: u64, from: &[u8]);
    /// Copies out of the region at byte `at`. The copy may be a mixture of bytes written before, during and after the call.
    /// Only the copy may be used.
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
