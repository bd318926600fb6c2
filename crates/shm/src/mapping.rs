//! Our mapping of a region: the one place where memory shared with others becomes loads and stores.
//!
//! A [`Mapping`] owns the addresses; [`SharedMapping`]s share it. Neither ever makes a reference to the memory, except a short-lived
//! `&AtomicU32`, which may change behind its `&`. Everything else uses [`Payload`]: the bytes are copied and the copy is used.

use crate::asymmetric_fence::{self, FenceScope};
use crate::copy::copy;
use crate::window_extent;
use crate::words::{Payload, Words, padded};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use isthmus_layout::reason::Reason;
use isthmus_layout::{Refusal, RegionSize};
use rustix::fd::AsFd;
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::Arc;

/// The rights with which a region is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Load only.
    Read,
    /// Load and store.
    ReadWrite,
}

/// The file system of memory files with ordinary pages (linux/magic.h).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The reason that a region cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The memory's owner could shrink it, and SIGBUS would end this process.
    #[error(
        "the memory is no memory file of plain pages sealed against shrinking, nor an extent of a guest's window; its owner could end \
         this process with SIGBUS"
    )]
    NotSealed,
    /// The memory is smaller than offered.
    #[error("the memory has {have} bytes, {need} were offered")]
    TooSmall {
        /// The size that was offered.
        need: u64,
        /// The size of the memory.
        have: u64,
    },
    /// The kernel refused.
    #[error("mapping {bytes} bytes: {source}")]
    Refused {
        /// The number of bytes to map.
        bytes: u64,
        /// The kernel's error; `NOMEM` means RLIMIT_AS, the cgroup's limit, or the number of mappings (vm.max_map_count).
        source: rustix::io::Errno,
    },
}

impl From<MapError> for Refusal {
    fn from(error: MapError) -> Self {
        let reason = match error {
            MapError::NotSealed => Reason::RegionNotSealed,
            MapError::TooSmall { .. } => Reason::RegionTooSmall,
            MapError::Refused { source: Errno::ACCESS | Errno::PERM, .. } => Reason::RequestInvalid,
            MapError::Refused { .. } => Reason::OutOfMemory,
        };
        Self::new(reason, error.to_string())
    }
}

/// A range of our address space that shows shared memory. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    backing: MappingBacking,
}

#[derive(Debug)]
enum MappingBacking {
    /// A memory file that only processes of this kernel map.
    File,
    /// A platform's memory, which another kernel sees too. The value is dropped after the addresses were unmapped.
    CrossKernel(Option<Box<dyn core::any::Any + Send + Sync>>),
    Heap(std::alloc::Layout),
}

// SAFETY: the addresses belong to the mapping and not to a thread; all access uses atomics or the copies of `Payload`,
// and callers of `Payload` expect the memory to change at any time anyway.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes from the start of a sealed memory file, or of an extent of a guest's window (`kmod/`). Memory that could shrink or
    /// is too small is not touched.
    pub fn new(memory: impl AsFd, size: RegionSize, access: Access) -> Result<Self, MapError> {
        Self::map_part(memory, 0, size, access, MappingBacking::File)
    }

    /// Maps `size` bytes at `at` of a window that another kernel sees too. Threads of that kernel cannot be made to fence from here. The
    /// window is a sealed memory file. `at` is a multiple of the page size.
    pub fn window(memory: impl AsFd, at: u64, size: RegionSize, access: Access) -> Result<Self, MapError> {
        Self::map_part(memory, at, size, access, MappingBacking::CrossKernel(None))
    }

    /// Maps `size` bytes at `at` of a memory file that only processes of this kernel map.
    pub fn at_offset(memory: impl AsFd, at: u64, size: RegionSize, access: Access) -> Result<Self, MapError> {
        Self::map_part(memory, at, size, access, MappingBacking::File)
    }

    fn map_part(
        memory: impl AsFd,
        at: u64,
        size: RegionSize,
        access: Access,
        backing: MappingBacking,
    ) -> Result<Self, MapError> {
        let (have, backing) = match window_extent::extent(&memory) {
            // Other programs may write there under another kernel, which no heavy fence of this one reaches.
            Some(extent) => (extent.bytes, MappingBacking::CrossKernel(None)),
            // The driver does not report the number of pages. It maps as many as requested, or none.
            None if window_extent::is_xen_grant_file(&memory) => (u64::MAX, MappingBacking::CrossKernel(None)),
            None => (sealed_bytes(&memory)?, backing),
        };
        let refused = |source| MapError::Refused { bytes: size.0, source };
        if at.checked_add(size.0).is_none_or(|end| have < end) {
            return Err(MapError::TooSmall { need: at.saturating_add(size.0), have });
        }
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let bytes = usize::try_from(size.0).map_err(|_| refused(rustix::io::Errno::NOMEM))?;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs no memory of ours.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &memory, at) };
        let base =
            NonNull::new(base.map_err(refused)?.cast()).expect("the kernel maps nothing at address zero unasked");
        Ok(Self { base, bytes, backing })
    }

    /// Takes over a mapping that a platform made.
    ///
    /// # Safety
    ///
    /// `base` is the start of `bytes` bytes that are mapped readable and writable. They stay so until `munmap`, which is left to
    /// the new owner, and nothing else in this process uses them. Where they are readable only, a signal stops a store.
    pub unsafe fn from_raw(base: NonNull<u8>, bytes: usize) -> Self {
        Self { base, bytes, backing: MappingBacking::CrossKernel(None) }
    }

    /// Takes over a mapping that a platform made; `owner` is dropped once the addresses are unmapped.
    ///
    /// # Safety
    ///
    /// See [`Self::from_raw`].
    pub unsafe fn from_raw_with(base: NonNull<u8>, bytes: usize, owner: Box<dyn core::any::Any + Send + Sync>) -> Self {
        Self { base, bytes, backing: MappingBacking::CrossKernel(Some(owner)) }
    }

    /// Allocates zeroed memory of this process alone, so that tests can run the same code over it, under miri too.
    pub fn private(size: RegionSize) -> Self {
        let bytes = usize::try_from(size.0).expect("a test's region fits into memory");
        let layout = std::alloc::Layout::from_size_align(bytes, 4096).expect("pages are a valid alignment");
        assert!(bytes > 0);
        // SAFETY: the layout has a size, asserted above.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Self { base, bytes, backing: MappingBacking::Heap(layout) }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Always false, because a mapping has pages.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let MappingBacking::Heap(layout) = self.backing {
            // SAFETY: allocated with this layout in `private`.
            return unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) };
        }
        // SAFETY: base and bytes are those of a mapping which only we know (constructors), and no `SharedMapping` is left, because each
        // holds the Arc that is being dropped.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        if let MappingBacking::CrossKernel(owner) = &mut self.backing {
            drop(owner.take()); // Only now, because nothing is mapped any more.
        }
    }
}

/// Returns the size of a memory file that cannot shrink.
fn sealed_bytes(memory: impl AsFd) -> Result<u64, MapError> {
    let seals = rustix::fs::fcntl_get_seals(&memory).map_err(|_| MapError::NotSealed)?;
    // Huge pages can be sealed too, but a peer may punch holes into them, and our next access may then find no free page.
    let plain = rustix::fs::fstatfs(&memory).is_ok_and(|found| found.f_type as u64 == TMPFS_MAGIC);
    if !seals.contains(SealFlags::SHRINK) || !plain {
        return Err(MapError::NotSealed);
    }
    let found = rustix::fs::fstat(&memory).map_err(|source| MapError::Refused { bytes: 0, source })?;
    Ok(found.st_size as u64)
}

/// A view of a mapped region; cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedMapping {
    /// Base and number of words of `mapping`. Copied here, because loads and stores then need one indirection less.
    base: NonNull<u8>,
    words: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: a mapping may be used by any thread, and the address and length are those of one.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Creates a view of a whole mapping.
    pub fn new(mapping: Mapping) -> Self {
        Self { base: mapping.base, words: mapping.bytes / 4, mapping: Arc::new(mapping) }
    }

    /// Returns true if another kernel sees the memory, too. Another user may then get the memory once it is given up.
    pub fn is_shared_across(&self) -> bool {
        matches!(self.mapping.backing, MappingBacking::CrossKernel(_))
    }

    /// Number of bytes.
    pub fn size(&self) -> RegionSize {
        RegionSize(self.mapping.bytes as u64)
    }

    #[inline(always)]
    fn word(&self, at: u32) -> &AtomicU32 {
        if at as usize >= self.words {
            out_of_bounds(); // Ours: offsets were checked before they came here.
        }
        // SAFETY: `at` is inside the mapping (both fields are the mapping's, from `new`), which outlives `self`, is page aligned and cannot
        // shrink (its file is sealed; or the driver of the guest's window says how large it is and never takes pages away without others in
        // their place, or that of granted pages leaves them to the process that maps them, see `window_extent`; or it belongs to a
        // platform that promised so in `from_raw`). Other domains reach these bytes by mappings of their own; this program reaches them by atomics, so no access of ours races with another of ours, and by
        // `Payload`. The spans of `Payload` are disjoint from the words that atomics are used on.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(4 * at as usize).cast()) }
    }

    /// Returns the address of `len` words from word `at` on.
    #[inline(always)]
    fn words(&self, at: u32, len: usize) -> *mut u32 {
        let (start, end) = (at as usize, (at as usize).saturating_add(len));
        if end > self.words {
            out_of_bounds(); // Ours, as above.
        }
        // SAFETY: `start` is inside the mapping or one past it, by what was just found.
        unsafe { self.base.as_ptr().cast::<u32>().add(start) }
    }

    #[inline(always)]
    fn bytes(&self, at: u64, len: usize) -> *mut u8 {
        let end = usize::try_from(at).ok().and_then(|at| at.checked_add(len));
        assert!(end.is_some_and(|end| end <= self.mapping.bytes)); // Ours, as above.
        // SAFETY: `at` is inside the mapping or one past it, by the assertion.
        unsafe { self.mapping.base.as_ptr().add(at as usize) }
    }

    /// Returns the address of `len` bytes at `at`, for callers that use raw pointers only; None outside of the mapping.
    pub fn pointer(&self, at: u64, len: u64) -> Option<NonNull<u8>> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.mapping.bytes as u64);
        // SAFETY: inside the mapping, by what was just found.
        inside.then(|| unsafe { self.mapping.base.add(at as usize) })
    }

    /// Returns the pages of `len` bytes at `at` to the system; they read as zeroes afterwards. `at` and `len` are multiples of the page
    /// size. The bytes are lost for every process that maps them, so only the owner of the bytes by the protocol calls this.
    pub fn discard_pages(&self, at: u64, len: u64) {
        let len = usize::try_from(len).expect("a span of the mapping fits into memory");
        let start = self.bytes(at, len);
        if matches!(self.mapping.backing, MappingBacking::File | MappingBacking::CrossKernel(_)) {
            // SAFETY: the range is inside the mapping (checked by `bytes`); nothing of ours holds a reference into it.
            // A refusal leaves the pages where they are, which costs memory and nothing else.
            let _ = unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxRemove) };
        }
    }
}

/// Panics. Kept out of line so that a caller that stays inside pays for the comparison only.
#[cold]
#[inline(never)]
fn out_of_bounds() -> ! {
    panic!("words outside of the mapping")
}

impl Words for SharedMapping {
    #[inline(always)]
    fn load(&self, at: u32, order: Ordering) -> u32 {
        self.word(at).load(order)
    }
    #[inline(always)]
    fn prefetch(&self, at: u32) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if (at as usize) < self.words {
            // SAFETY: prefetching has no effect that a program can see; the address is inside the mapping all the same.
            unsafe {
                let address = self.base.as_ptr().add(4 * at as usize);
                core::arch::asm!("prefetchw [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = at;
    }
    /// Copies as [`Payload`] does: a correct peer writes a cell of the ring completely before it stores the stamp. The copy of a cell from
    /// any other peer is checked afterwards.
    #[inline(always)]
    fn load_words<const N: usize>(&self, at: u32) -> [u32; N] {
        let mut words = [0; N];
        let from = self.words(at, N);
        // SAFETY: the words are inside the mapping (checked by `words`) and our array is not; any bytes are words.
        unsafe { core::ptr::copy_nonoverlapping(from, words.as_mut_ptr(), N) };
        words
    }
    #[inline(always)]
    fn store(&self, at: u32, value: u32, order: Ordering) {
        self.word(at).store(value, order);
    }
    /// Copies as [`Payload`] does: a correct peer does not read the words before a later store says that they are complete. A peer that
    /// reads them earlier harms only itself.
    ///
    /// The words are stored one at a time, as the caller has just written them. A load of several together would have to wait until
    /// those stores, and all before them, have left the CPU, which takes as long as the cache lines of earlier messages take.
    #[inline(always)]
    fn store_words(&self, at: u32, first: u32, words: &[u32], bytes: &[u8]) {
        let to = self.words(at, 1 + words.len() + bytes.len().div_ceil(4));
        let (whole, rest) = bytes.as_chunks::<4>();
        // SAFETY: all words are inside the mapping (checked by `words`), which is not part of the slices, because no slice into a
        // mapping exists.
        unsafe {
            to.write(first);
            for (at, word) in words.iter().enumerate() {
                to.add(1 + at).write_volatile(*word);
            }
            let to = to.add(1 + words.len());
            for (word, bytes) in whole.iter().enumerate() {
                to.add(word).write(u32::from_le_bytes(*bytes));
            }
            if !rest.is_empty() {
                to.add(whole.len()).write(padded(rest));
            }
        }
    }
    #[inline(always)]
    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32 {
        self.word(at).swap(value, order)
    }
    #[inline(always)]
    fn or(&self, at: u32, bits: u32, order: Ordering) {
        self.word(at).fetch_or(bits, order);
    }
    #[inline(always)]
    fn compare_exchange(&self, at: u32, from: u32, to: u32, order: Ordering) -> bool {
        self.word(at).compare_exchange(from, to, order, Ordering::Relaxed).is_ok()
    }
    #[inline(always)]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    #[inline(always)]
    fn load_fence(&self) {
        fence(Ordering::Acquire);
    }
    #[inline(always)]
    fn light_fence(&self) {
        compiler_fence(Ordering::SeqCst);
    }
    fn heavy_fence(&self) -> bool {
        asymmetric_fence::heavy_fence(FenceScope::Machine)
    }
    /// Returns true if all processes that map the memory run under this kernel. A platform's memory may be shared with another one.
    fn has_heavy_fence(&self) -> bool {
        matches!(self.mapping.backing, MappingBacking::File) && asymmetric_fence::is_registered(FenceScope::Machine)
    }
}

impl Payload for SharedMapping {
    /// The argument for the whole project: foreign memory may change while we copy. The copy is made over raw pointers, nearly
    /// always by the system's `memcpy`. No reference to the foreign bytes exists, and the compiler sees neither side again
    /// through this pointer. A torn copy is a wrong payload, never a wrong program, because lengths and positions were fetched
    /// and checked before. In the abstract machine a racing plain read is undefined. No stable Rust operation expresses what is
    /// meant (a byte-wise atomic copy), and every virtual machine monitor depends on the same step.
    fn copy_in(&self, at: u64, from: &[u8]) {
        let to = self.bytes(at, from.len());
        // SAFETY: `to` has room for `from` inside the mapping (checked by `bytes`), and the mapping is not part of `from`,
        // because no slice into a mapping exists.
        unsafe { copy(from.as_ptr(), to, from.len()) }
    }

    fn copy_out(&self, at: u64, into: &mut [u8]) {
        let from = self.bytes(at, into.len());
        // SAFETY: as in `copy_in`, the other way round.
        unsafe { copy(from, into.as_mut_ptr(), into.len()) }
    }
}
