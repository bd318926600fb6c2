//! Pages of our own for frames, at a fixed place, zeroed when they are made.

use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Anonymous pages. Owned by one link; what the kernel does to them it does in that link's system calls.
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
        assert!(at.checked_add(len).is_some_and(|end| end <= self.bytes)); // Ours: places come from our own arithmetic.
        // SAFETY: inside the pages (asserted).
        unsafe { self.base.add(at) }
    }

    /// The same to write. The kernel is not asked to read or write them meanwhile.
    #[cfg(feature = "af-xdp")]
    pub(crate) fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: inside the pages; nobody of this process has references to them, because `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address(at, len).as_ptr(), len) }
    }

    /// The bytes of a range. Nothing writes them while they are borrowed: the kernel only does when it is asked to, or given
    /// them (AF_XDP), either of which takes `&mut` of whoever owns these pages.
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
