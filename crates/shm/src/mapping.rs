//! Our mapping of a region: the one place where a foreign page becomes loads and stores.
//!
//! A [`Mapping`] owns the addresses; [`SharedMapping`]s share it. Neither ever makes a reference to the memory, but for a moment's
//! `&AtomicU32`, which may change behind its `&`. Everything else goes by [`Payload`]: bytes are copied and the copy is used.

use crate::asymmetric_fence::{self, FenceScope};
use crate::copy::copy;
use crate::window_extent;
use crate::words::{Payload, Words, padded};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use isthmus_layout::RegionSize;
use rustix::fd::AsFd;
use rustix::fs::SealFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::Arc;

/// What we may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Load only.
    Read,
    /// Load and store.
    ReadWrite,
}

/// The file system that memory files of plain pages belong to (linux/magic.h).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Why a region cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Its owner could shrink it and have us killed by SIGBUS.
    #[error(
        "the memory is no memory file of plain pages sealed against shrinking, nor an extent of a guest's window; its owner could end \
         this process with SIGBUS"
    )]
    NotSealed,
    /// It is smaller than was said.
    #[error("the memory has {have} bytes, {need} were offered")]
    TooSmall {
        /// What was offered.
        need: u64,
        /// What is there.
        have: u64,
    },
    /// The kernel refused.
    #[error("mapping {bytes} bytes: {source}")]
    Refused {
        /// How much.
        bytes: u64,
        /// What it said; `NOMEM` means RLIMIT_AS, the cgroup's limit, or the number of mappings (vm.max_map_count).
        source: rustix::io::Errno,
    },
}

/// Addresses of ours behind which shared memory lies. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    backing: MappingBacking,
}

#[derive(Debug)]
enum MappingBacking {
    /// A memory file that is this kernel's alone.
    File,
    /// A platform's, which another kernel sees too, with what has to go after them.
    CrossKernel(Option<Box<dyn core::any::Any + Send + Sync>>),
    Heap(std::alloc::Layout),
}

// SAFETY: the addresses belong to the mapping and not to a thread; all access goes by atomics and by `Payload`'s copies,
// whose callers expect the memory to change at any time anyway.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes of a sealed memory file, or of an extent of a guest's window (`kmod/`), from its start. Where it could shrink or is
    /// too small it is not touched.
    pub fn new(memory: impl AsFd, size: RegionSize, access: Access) -> Result<Self, MapError> {
        Self::map_part(memory, 0, size, access, MappingBacking::File)
    }

    /// Maps `size` bytes at `at` of a window that another kernel sees too: whoever is there cannot be made to fence from here. It is a sealed
    /// memory file, or a device's memory as sysfs shows it; that one is not to be unplugged meanwhile, or whoever touches it is ended with
    /// SIGBUS. `at` is a multiple of the page size.
    pub fn window(memory: impl AsFd, at: u64, size: RegionSize, access: Access) -> Result<Self, MapError> {
        match window_extent::device_memory_bytes(&memory) {
            Some(have) => Self::map(memory, at, size, access, (have, MappingBacking::CrossKernel(None))),
            None => Self::map_part(memory, at, size, access, MappingBacking::CrossKernel(None)),
        }
    }

    /// The same of a memory file that is this kernel's alone.
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
        let found = match window_extent::extent(&memory) {
            // What others write there they may write under another kernel, which no heavy fence of this one reaches.
            Some(extent) => (extent.bytes, MappingBacking::CrossKernel(None)),
            // Its driver does not say how many pages there are. It maps as many as it is asked for, or none.
            None if window_extent::is_xen_grant_file(&memory) => (u64::MAX, MappingBacking::CrossKernel(None)),
            None => (sealed_bytes(&memory)?, backing),
        };
        Self::map(memory, at, size, access, found)
    }

    /// Of a file that has, and keeps, so many bytes.
    fn map(
        memory: impl AsFd,
        at: u64,
        size: RegionSize,
        access: Access,
        (have, backing): (u64, MappingBacking),
    ) -> Result<Self, MapError> {
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
    /// `base` is the start of `bytes` bytes that are mapped readable and writable, stay so until `munmap`, which is left to
    /// the new owner, and are used by nobody else in this process. Where they are readable only, storing is stopped by a signal.
    pub unsafe fn from_raw(base: NonNull<u8>, bytes: usize) -> Self {
        Self { base, bytes, backing: MappingBacking::CrossKernel(None) }
    }

    /// The same; `owner` is dropped when nothing is mapped there any more.
    ///
    /// # Safety
    ///
    /// As of [`Self::from_raw`].
    pub unsafe fn from_raw_with(base: NonNull<u8>, bytes: usize, owner: Box<dyn core::any::Any + Send + Sync>) -> Self {
        Self { base, bytes, backing: MappingBacking::CrossKernel(Some(owner)) }
    }

    /// Zeroed memory of this process alone: the same code runs over it in tests, under miri too.
    pub fn private(size: RegionSize) -> Self {
        let bytes = usize::try_from(size.0).expect("a test's region fits into memory");
        let layout = std::alloc::Layout::from_size_align(bytes, 4096).expect("pages are a valid alignment");
        assert!(bytes > 0);
        // SAFETY: the layout has a size, asserted above.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(base).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Self { base, bytes, backing: MappingBacking::Heap(layout) }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never: a mapping has pages.
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
            drop(owner.take()); // Now that nothing is mapped.
        }
    }
}

/// Bytes of a memory file which cannot become less.
fn sealed_bytes(memory: impl AsFd) -> Result<u64, MapError> {
    let seals = rustix::fs::fcntl_get_seals(&memory).map_err(|_| MapError::NotSealed)?;
    // Huge pages can be sealed too, but a peer may punch holes into them, and then there may be none left for our next touch.
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
    /// Of `mapping`, and how many words are there: kept here as well, one step nearer to those who load and store.
    base: NonNull<u8>,
    words: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: a mapping may be used by any thread, and the address and length are those of one.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// All of a mapping.
    pub fn new(mapping: Mapping) -> Self {
        Self { base: mapping.base, words: mapping.bytes / 4, mapping: Arc::new(mapping) }
    }

    /// Whether another kernel sees it, too: then it may become somebody else's once it is given up.
    pub fn is_shared_across(&self) -> bool {
        matches!(self.mapping.backing, MappingBacking::CrossKernel(_))
    }

    /// Bytes.
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
        // their place, or that of granted pages leaves them to who maps them, see `window_extent`; or it is a device's, and what its end does
        // to us lets nothing be seen; or it belongs to a platform that promised so in `from_raw`). Other domains reach these bytes by mappings
        // of their own; this program reaches them by atomics, so no access of ours races with another of ours, and by
        // `Payload`, whose spans are disjoint from the words that atomics are used on.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(4 * at as usize).cast()) }
    }

    /// Where `len` words from `at` on lie.
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

    /// Where `len` bytes at `at` lie in this process, for those who may touch them by raw pointers only; None outside.
    pub fn pointer(&self, at: u64, len: u64) -> Option<NonNull<u8>> {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.mapping.bytes as u64);
        // SAFETY: inside the mapping, by what was just found.
        inside.then(|| unsafe { self.mapping.base.add(at as usize) })
    }

    /// Gives the pages of `len` bytes at `at` back to the system; they read as zeroes afterwards. Both in whole pages.
    /// What others wrote there is lost for all, so only who owns the bytes by the protocol calls this.
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

/// A panic that costs whoever does not panic nothing but the comparison.
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
    /// By a copy, as in [`Payload`]: a cell of the ring is written in full before its stamp says so, and what a peer that does
    /// not keep to that makes of it is checked afterwards.
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
    /// By copies, as in [`Payload`]: nobody is to look at the words before a store says so that comes after them, and what a peer
    /// that looks all the same makes of them is its own affair.
    ///
    /// The words go one at a time, as the caller has just written them: a load of several together would have to wait until
    /// those stores, and all before them, have left the processor, which is as long as the lines of earlier messages take.
    #[inline(always)]
    fn store_words(&self, at: u32, first: u32, words: &[u32], bytes: &[u8]) {
        let to = self.words(at, 1 + words.len() + bytes.len().div_ceil(4));
        let (whole, rest) = bytes.as_chunks::<4>();
        // SAFETY: all words are inside the mapping (checked by `words`), which is not part of the slices, because nobody holds a
        // slice into a mapping.
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
    /// Where all who map the memory run under this kernel. What a platform brought may be shared with another one.
    fn has_heavy_fence(&self) -> bool {
        matches!(self.mapping.backing, MappingBacking::File) && asymmetric_fence::is_registered(FenceScope::Machine)
    }
}

impl Payload for SharedMapping {
    /// The argument for the whole project: foreign memory may change while we copy. The copy is made over raw pointers, by
    /// the system's `memcpy` nearly always; no reference to the foreign bytes exists, the compiler sees neither side again
    /// through this pointer, and a torn copy is a wrong payload, never a wrong program, since lengths and places were fetched
    /// and checked before. In the abstract machine a racing plain read has no meaning; no stable Rust operation says what we
    /// mean (a byte-wise atomic copy), and every virtual machine monitor rests on the same step.
    fn copy_in(&self, at: u64, from: &[u8]) {
        let to = self.bytes(at, from.len());
        // SAFETY: `to` has room for `from` inside the mapping (checked by `bytes`), and the mapping is not part of `from`,
        // because nobody holds a slice into a mapping.
        unsafe { copy(from.as_ptr(), to, from.len()) }
    }

    fn copy_out(&self, at: u64, into: &mut [u8]) {
        let from = self.bytes(at, into.len());
        // SAFETY: as in `copy_in`, the other way round.
        unsafe { copy(from, into.as_mut_ptr(), into.len()) }
    }
}
