//! Knows, for the price of a load, whether this process is the one that made it or a child of its `fork`.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags};

const BYTES: usize = 4096;

/// A page which the kernel wipes in children (`MADV_WIPEONFORK`, Linux 4.14).
#[derive(Debug)]
pub struct ForkGuard {
    page: NonNull<u8>,
}

// SAFETY: the page is reached by atomics only and belongs to no thread.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// In the process that is to be told apart from its children.
    pub fn new() -> Result<Self, rustix::io::Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs no memory of ours.
        let page = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), BYTES, protection, MapFlags::PRIVATE)? };
        let guard = Self { page: NonNull::new(page.cast()).expect("the kernel maps nothing at address zero unasked") };
        // SAFETY: the page is ours, and losing its content in a child is what it is for.
        unsafe { rustix::mm::madvise(page, BYTES, Advice::LinuxWipeOnFork)? };
        guard.word().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    /// True in a child of the process that made the guard.
    #[inline]
    pub fn is_child(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped as long as `self` lives and used as this one atomic.
        unsafe { AtomicU32::from_ptr(self.page.as_ptr().cast()) }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and no reference to it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), BYTES) };
    }
}
