//! Pages for frames, at a fixed address, zeroed when they are allocated.

use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Anonymous pages, owned by one link. The kernel accesses them only in that link's system calls.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Result<Self, Errno> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new pages at a place of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, rights, MapFlags::PRIVATE)? };
        Ok(Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, bytes })
    }

    /// The address of a range, for the kernel.
    pub(crate) fn address(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.bytes)); // Offsets come from our own arithmetic.
        // SAFETY: inside the pages (asserted).
        unsafe { self.base.add(at) }
    }

    /// Returns the bytes of a range for writing. The kernel is not asked to access them meanwhile.
    #[cfg(feature = "af-xdp")]
    pub(crate) fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: inside the pages; no other reference in this process reaches them, because `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address(at, len).as_ptr(), len) }
    }

    /// Returns the bytes of a range. They do not change while they are borrowed: the kernel writes them only when it is asked to, or given
    /// them (AF_XDP), and either takes `&mut` of the owner of these pages.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: inside the pages, which were zeroed and so are initialised; not written meanwhile, see above.
        unsafe { std::slice::from_raw_parts(self.address(at, len).as_ptr(), len) }
    }
}

// SAFETY: the pages belong to no thread, and nothing is written through `&self`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; slices of it borrow from `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
