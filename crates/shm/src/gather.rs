//! Bytes that the kernel is to read for us: a frame's data, which goes from where it lies onto the wire without a copy of ours.
//!
//! The bytes are either ours, borrowed, or a peer's ([`PeerRegion::gather`](crate::regcache::PeerRegion::gather)), who may change
//! them at any time. So nobody looks at them through a [`Gather`]: what there is of it is an address for a system call, and a
//! copy. What the kernel then reads is some mix of old and new bytes, as with every buffer that is sent while it is written.

use crate::copy::copy;
use core::marker::PhantomData;
use core::ops::Range;

/// Bytes of ours or of a peer's, for a system call that reads them.
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a> {
    /// Invariant: readable for `len` bytes as long as `'a`. Others may write them meanwhile.
    start: *const u8,
    len: usize,
    from: PhantomData<&'a [u8]>,
}

impl<'a> Gather<'a> {
    /// No bytes.
    pub const EMPTY: Gather<'static> = Gather { start: core::ptr::dangling(), len: 0, from: PhantomData };

    /// # Safety
    ///
    /// `len` bytes from `start` on are mapped readable as long as `'a`, and cannot vanish.
    pub(crate) unsafe fn from_raw_parts(start: *const u8, len: usize) -> Self {
        Self { start, len, from: PhantomData }
    }

    /// How many bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they begin, for a system call that reads [`len`](Self::len) bytes, and for nothing else: the bytes may be a
    /// peer's, who writes them when it likes, so a reference to them, or a load of ours, has no meaning. The kernel may read
    /// them as long as the lifetime lasts.
    pub const fn as_ptr_for_syscall(&self) -> *const u8 {
        self.start
    }

    /// Some of them.
    ///
    /// # Panics
    ///
    /// If the range does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len); // Ours: whoever cuts a message knows its length.
        // SAFETY: inside the bytes of `self` (asserted), which are readable as long as `'a` (invariant).
        unsafe { Self::from_raw_parts(self.start.add(range.start), range.end - range.start) }
    }

    /// Copies them, for links whose frames lie in memory shared with the kernel.
    ///
    /// # Panics
    ///
    /// If `to` has another length.
    pub fn copy_out(&self, to: &mut [u8]) {
        assert_eq!(to.len(), self.len);
        // The bytes may change while they are copied; the argument is that of `Payload for SharedMapping`: a torn copy is a wrong
        // payload, and no length or place is read from it.
        // SAFETY: readable (invariant); `to` is exclusively borrowed, so it is neither a peer's mapping, to which nobody has
        // references, nor memory of ours that is borrowed by `self`.
        unsafe { copy(self.start, to.as_mut_ptr(), self.len) };
    }
}

impl<'a> From<&'a [u8]> for Gather<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { start: bytes.as_ptr(), len: bytes.len(), from: PhantomData }
    }
}

// SAFETY: an address of bytes that any thread may read, as those of a shared slice, or of a `PeerRegion`, which is `Sync`.
unsafe impl Send for Gather<'_> {}
// SAFETY: as above; it has no state that changes.
unsafe impl Sync for Gather<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_bytes_they_name() {
        let bytes: Vec<u8> = (0..100).collect();
        let all = Gather::from(&bytes[..]);
        let mut copy = [0; 30];
        all.slice(50..90).slice(5..35).copy_out(&mut copy);
        assert_eq!(copy[..], bytes[55..85]);
        assert!(all.slice(100..100).is_empty() && Gather::EMPTY.is_empty());
        Gather::EMPTY.copy_out(&mut []);
    }

    #[test]
    #[should_panic(expected = "range.end <= self.len")]
    fn a_part_beyond_the_end_is_refused() {
        let _ = Gather::from(&[0; 10][..]).slice(5..11);
    }
}
