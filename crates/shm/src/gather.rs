//! Bytes that the kernel reads for us: the data of a frame, which is sent from where it lies without a copy of ours.
//!
//! The bytes are either ours, borrowed, or a peer's ([`PeerRegion::gather`](crate::regcache::PeerRegion::gather)). A peer may change
//! its bytes at any time. A [`Gather`] therefore never gives access to the bytes, only an address for a system call, and a
//! copy. The kernel may read a mix of old and new bytes, as with every buffer that is written while it is sent.

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

    /// Number of bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The start address, for a system call that reads [`len`](Self::len) bytes, and for nothing else. The bytes may be a
    /// peer's, and the peer may write them at any time, so a reference to them or a load of ours would be undefined. The kernel may read
    /// them for as long as the lifetime lasts.
    pub const fn as_ptr_for_syscall(&self) -> *const u8 {
        self.start
    }

    /// Returns a part of the bytes.
    ///
    /// # Panics
    ///
    /// Panics if the range does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len); // Ours: the caller that splits a message knows its length.
        // SAFETY: inside the bytes of `self` (asserted), which are readable as long as `'a` (invariant).
        unsafe { Self::from_raw_parts(self.start.add(range.start), range.end - range.start) }
    }

    /// Copies the bytes, for links with frames in memory shared with the kernel.
    ///
    /// # Panics
    ///
    /// Panics if `to` has another length.
    pub fn copy_out(&self, to: &mut [u8]) {
        assert_eq!(to.len(), self.len);
        // The bytes may change while they are copied; the argument is that of `Payload for SharedMapping`: a torn copy is a wrong
        // payload, and no length or position is read from it.
        // SAFETY: readable (invariant); `to` is exclusively borrowed, so it is neither a peer's mapping, into which no references
        // exist, nor memory of ours that is borrowed by `self`.
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
