//! A ring shared with the kernel: entries, and the position of each side.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The offsets in the mapping of a ring, as the kernel reports them (`struct xdp_ring_offset`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    pub(super) producer: u64,
    pub(super) consumer: u64,
    pub(super) entries: u64,
    pub(super) flags: u64,
}

/// This process's end of a ring. The other end is the kernel, which is trusted.
#[derive(Debug)]
pub(super) struct Ring<T> {
    base: NonNull<u8>,
    bytes: usize,
    at: Offsets,
    size: u32,
    /// The own position; the kernel sees it after [`publish`](Self::publish).
    own: u32,
    entries: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries, a power of two.
    pub(super) fn map(socket: impl AsFd, page_offset: u64, at: Offsets, size: u32) -> Result<Self, Errno> {
        let bytes = at.entries as usize + size as usize * size_of::<T>();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, rights, flags, socket, page_offset)? };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, bytes, at, size, own: 0, entries: std::marker::PhantomData })
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        assert!(at as usize + 4 <= self.bytes);
        // SAFETY: inside the mapping (asserted), which lives as long as `self`; aligned, as the kernel laid it out; used by
        // both sides as an atomic word.
        unsafe { AtomicU32::from_ptr(self.base.add(at as usize).as_ptr().cast()) }
    }

    fn entry(&self, position: u32) -> *mut T {
        let slot = (position & (self.size - 1)) as usize;
        // SAFETY: inside the mapping, which has room for `size` entries from there on.
        unsafe { self.base.add(self.at.entries as usize + slot * size_of::<T>()).as_ptr().cast() }
    }

    /// Returns the number of entries that may be written, in a ring that the kernel empties.
    pub(super) fn room(&self) -> u32 {
        let consumed = self.word(self.at.consumer).load(Ordering::Acquire); // The kernel has read what we overwrite.
        self.size - self.own.wrapping_sub(consumed)
    }

    /// Writes the next entry. The caller has checked that there is room.
    pub(super) fn push(&mut self, entry: T) {
        // SAFETY: a place of the ring that is ours until we publish it; callers have asked for room.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
    }

    /// Publishes the pushed entries to the kernel.
    pub(super) fn publish(&mut self) {
        self.word(self.at.producer).store(self.own, Ordering::Release); // Entries before the position.
    }

    /// Returns the number of entries that may be read, in a ring that the kernel fills.
    pub(super) fn filled(&self) -> u32 {
        self.word(self.at.producer).load(Ordering::Acquire).wrapping_sub(self.own) // The position before entries.
    }

    /// Returns filled entry `ahead`.
    pub(super) fn peek(&self, ahead: u32) -> T {
        // SAFETY: a filled place, which the kernel leaves alone until we release it; its bytes are a `T`: plain numbers.
        unsafe { self.entry(self.own.wrapping_add(ahead)).read() }
    }

    /// Returns `count` entries to the kernel.
    pub(super) fn release(&mut self, count: u32) {
        self.own = self.own.wrapping_add(count);
        self.word(self.at.consumer).store(self.own, Ordering::Release); // We have read them.
    }

    /// Returns true if the kernel has to be called after a publish.
    pub(super) fn wants_a_kick(&self) -> bool {
        self.word(self.at.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

// SAFETY: a mapping that belongs to no thread, used by one value.
unsafe impl<T: Copy + Send> Send for Ring<T> {}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
