//! Memory that another domain may change between any two of our loads.

use core::sync::atomic::Ordering;

/// Words of shared memory, reached one at a time.
///
/// One body of code runs over three memories: a [`Window`](crate::Window), which is the real thing; loom's atomics, which try
/// every order that the hardware may choose; and [`Liar`](crate::liar::Liar), which answers each load with whatever it likes.
///
/// Indices count 4-byte words from the start of the region. They are ours: an implementation may panic on one outside.
pub trait Words {
    /// Reads a word.
    fn load(&self, at: u32, order: Ordering) -> u32;
    /// Writes a word.
    fn store(&self, at: u32, value: u32, order: Ordering);
    /// Writes a word and answers what was there.
    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32;
    /// Sets bits of a word.
    fn or(&self, at: u32, bits: u32, order: Ordering);
    /// A sequentially consistent fence.
    fn fence(&self);
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
    fn store(&self, at: u32, value: u32, order: Ordering) {
        (**self).store(at, value, order);
    }
    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32 {
        (**self).swap(at, value, order)
    }
    fn or(&self, at: u32, bits: u32, order: Ordering) {
        (**self).or(at, bits, order);
    }
    fn fence(&self) {
        (**self).fence();
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
