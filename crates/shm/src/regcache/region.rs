//! One migrated range: its memfd (in a guest, its extent of a window), how the range gets onto it and how it gets off again.
//!
//! Both ways are one `mmap(MAP_FIXED)`, which the kernel carries out under its own lock: another thread of the
//! program sees the old pages or the new ones, never a gap. Both ways keep the bytes: the copy is made beforehand, of
//! a buffer that is not written while it is sent; and giving back copies nothing (see [`Region::restore`]).

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap, munmap};
use rustix::process::{Resource, getrlimit};

use super::maps::{FileId, Maps, Vma};
use super::{ColdReason, RegionKey};
use crate::window_extent::{PrivateExtent, WRITE_BACK};

/// The name that `/proc/self/maps` shows for pages of a region.
pub(super) const NAME_IN_MAPS: &str = "/memfd:isthmus-migrated (deleted)";
const NAME: &str = "isthmus-migrated";
/// The name that `/proc/self/maps` shows for pages of a region in a guest's window.
pub(super) const EXTENT_NAME_IN_MAPS: &str = "/isthmus-home (deleted)";

/// Size of each region's file, which is sparse: memory is used for the pages of the buffer only. The room above keeps a
/// program alive which enlarges a mapping of its own by `mremap`: beyond the end of a file it would get SIGBUS.
const FILE_SIZE: u64 = 1 << 40;

/// Addresses and file offsets agree below this, so that huge pages fit wherever the buffer lies.
const HUGE_PAGE: usize = 2 << 20;

/// Seals that stop every holder of the file from writing it, mapping it writable, punching holes into it, resizing it, or unsealing it.
pub(super) const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Memory of the program which lies on a file of ours, and may be granted.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) key: RegionKey,
    pub(super) range: Range<usize>,
    backing: RegionBacking,
    file: FileId,
    locking: Locking,
}

/// The memory that holds the bytes.
#[derive(Debug)]
enum RegionBacking {
    /// A file of ours, which others get from us.
    Memfd(OwnedFd),
    /// An extent of a guest's window, as large as the range, which others get from the host.
    Extent(PrivateExtent),
}

impl AsFd for RegionBacking {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Memfd(memfd) => memfd.as_fd(),
            Self::Extent(extent) => extent.as_fd(),
        }
    }
}

/// Whether the pages are locked. `madvise(MADV_DONTNEED)` promises zeroes, which shared pages do not become; the
/// kernel refuses it for locked pages, so that an allocator which relies on it clears them itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locking {
    Locked,
    Unlocked,
}

/// A region of this process (or of its parent) was locked.
pub(super) static ANY_LOCKED: AtomicBool = AtomicBool::new(false);

impl Region {
    /// Moves `range`, which was found to be plain memory, onto a file. After an error the range is as it was.
    ///
    /// # Safety
    ///
    /// `range` consists of whole pages, is mapped, and is neither written nor mapped anew until this
    /// returns.
    pub(super) unsafe fn migrate(maps: &Maps, range: Range<usize>, locking: Locking) -> Result<Self, ColdReason> {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            Self::migrate_onto(maps, range, (RegionKey::next_id(), RegionBacking::Memfd(sparse_file()?)), locking)
        }
    }

    /// Moves `range` onto an extent, as [`Self::migrate`] moves it onto a file.
    ///
    /// # Safety
    ///
    /// See [`Self::migrate`].
    pub(super) unsafe fn migrate_to_extent(
        maps: &Maps,
        range: Range<usize>,
        (key, extent): (RegionKey, PrivateExtent),
        locking: Locking,
    ) -> Result<Self, ColdReason> {
        // SAFETY: the caller's promise, passed on.
        unsafe { Self::migrate_onto(maps, range, (key, RegionBacking::Extent(extent)), locking) }
    }

    /// # Safety
    ///
    /// As of [`Self::migrate`].
    unsafe fn migrate_onto(
        maps: &Maps,
        range: Range<usize>,
        (key, backing): (RegionKey, RegionBacking),
        locking: Locking,
    ) -> Result<Self, ColdReason> {
        let file = FileId::of(&fstat(&backing).map_err(refusal)?);
        let region = Self { key, range, backing, file, locking };
        // SAFETY: mapped and not written meanwhile, by the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(pointer(region.range.start), region.range.len()) };
        region.fill(bytes)?;
        // SAFETY: the range holds the very bytes which the file now holds at this offset, and stays so by the caller's
        // promise: its pages can be replaced without a visible difference.
        if let Err(error) = unsafe { region.map_in_place() } {
            region.repair_mapping(maps);
            return Err(if matches!(error, Errno::AGAIN | Errno::PERM) {
                ColdReason::LockLimit
            } else {
                refusal(error)
            });
        }
        if locking == Locking::Locked {
            ANY_LOCKED.store(true, Ordering::Relaxed);
        }
        if region.is_suitable() && region.is_still_mapped(maps, &region.range)? {
            return Ok(region);
        }
        region.restore(maps);
        Err(ColdReason::Refused)
    }

    /// Where the byte at `address` lies in the file.
    pub(super) fn offset(&self, address: usize) -> u64 {
        match self.backing {
            RegionBacking::Memfd(_) => (address - (self.range.start & !(HUGE_PAGE - 1))) as u64,
            RegionBacking::Extent(_) => (address - self.range.start) as u64,
        }
    }

    /// The file, where it is ours to give.
    pub(super) fn memfd(&self) -> Option<&OwnedFd> {
        match &self.backing {
            RegionBacking::Memfd(memfd) => Some(memfd),
            RegionBacking::Extent(_) => None,
        }
    }

    /// Whether `part` of the range still shows this file, at the right place.
    pub(super) fn is_still_mapped(&self, maps: &Maps, part: &Range<usize>) -> Result<bool, ColdReason> {
        match &self.backing {
            RegionBacking::Memfd(_) => maps.is_mapped_as(part, self.file, self.offset(part.start)),
            RegionBacking::Extent(extent) => extent.is_mapped_at(part, self.offset(part.start)).map_err(refusal),
        }
    }

    /// Makes every mapping that still shows this file private again, wherever the program may have moved it meanwhile: a
    /// private mapping of the file replaces the shared one. The file itself never changes any more, so the
    /// bytes stay. The first write to a page makes a copy that is the program's alone. Other threads may write
    /// at any time, because no copy is made that could miss a write. The price: the file's pages remain until the
    /// program unmaps them, so pages written after this exist twice. An extent first keeps its bytes in pages of its own,
    /// which do not change any more either; the driver ensures that no write is lost meanwhile.
    ///
    /// Between the kernel's answer and the new mapping lies a microsecond in which another thread could free this
    /// memory and map something else at the same addresses; no request of the kernel closes it.
    pub(super) fn restore(&self, maps: &Maps) {
        self.make_extent_private();
        let in_place = self.restore_within(maps, self.range.clone());
        if in_place != Ok(self.range.len()) {
            // Some of it was moved or unmapped. Where the kernel no longer answers, nothing is changed.
            let _ = self.restore_within(maps, 0..usize::MAX);
        }
    }

    /// Gives back each mapping that begins in `bounds` or covers its start; says how many bytes these had.
    fn restore_within(&self, maps: &Maps, bounds: Range<usize>) -> Result<usize, ColdReason> {
        let mut at = bounds.start;
        let mut bytes = 0;
        while at < bounds.end {
            let Some(vma) = maps.file_from(at)? else { break };
            at = vma.range.end;
            if vma.range.start < bounds.end && vma.shared && vma.file == Some(self.file) {
                self.make_private(&vma);
                bytes += vma.range.len();
            }
        }
        Ok(bytes)
    }

    fn make_private(&self, vma: &Vma) {
        let rights =
            [(vma.readable, ProtFlags::READ), (vma.writable, ProtFlags::WRITE), (vma.executable, ProtFlags::EXEC)];
        let rights = rights.into_iter().filter(|(has, _)| *has).map(|(_, right)| right).collect();
        // Not accounted, so that no overcommit policy but the strictest can refuse it.
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the kernel has just said that these addresses show this file from this offset: the same bytes
        // appear at the same addresses with the same rights. Memory of the program is reached by its own pointers as
        // before.
        let private =
            unsafe { mmap(pointer(vma.range.start), vma.range.len(), rights, flags, &self.backing, vma.offset) };
        if private.is_ok() {
            if self.locking == Locking::Locked {
                lock(vma);
            }
        } else {
            // It stays shared. Then a child must not have it at all, rather than write into its parent's memory.
            // SAFETY: has no effect but on fork.
            let _ = unsafe { madvise(pointer(vma.range.start), vma.range.len(), Advice::LinuxDontFork) };
        }
    }

    /// The extent keeps its bytes from now on. It has the pages for them, so that is not refused.
    fn make_extent_private(&self) {
        if let RegionBacking::Extent(extent) = &self.backing {
            let _ = extent.make_private();
        }
    }

    fn fill(&self, bytes: &[u8]) -> Result<(), ColdReason> {
        match &self.backing {
            RegionBacking::Memfd(memfd) => write_all(memfd, bytes, self.offset(self.range.start)),
            RegionBacking::Extent(extent) => copy_into(extent, bytes),
        }
    }

    /// Puts the file's pages in the place of the range's.
    ///
    /// # Safety
    ///
    /// The file holds the bytes of the range, and these do not change meanwhile.
    unsafe fn map_in_place(&self) -> rustix::io::Result<()> {
        let (start, len) = (pointer(self.range.start), self.range.len());
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let mut flags = MapFlags::SHARED | MapFlags::FIXED;
        if self.memfd().is_some() {
            flags |= MapFlags::POPULATE;
            flags.set(MapFlags::LOCKED, self.locking == Locking::Locked); // A device's pages count as locked.
        }
        // SAFETY: by the caller's promise no observer can tell the new pages from the old ones.
        unsafe { mmap(start, len, rights, flags, &self.backing, self.offset(self.range.start))? };
        if len >= HUGE_PAGE && self.memfd().is_some() {
            // A wish, which most systems do not grant to shared memory.
            // SAFETY: changes no contents.
            let _ = unsafe { madvise(start, len, Advice::LinuxHugepage) };
        }
        Ok(())
    }

    /// After `map_in_place` failed: older kernels may have taken the old pages away before they found that out.
    fn repair_mapping(&self, maps: &Maps) {
        if matches!(maps.at(self.range.start), Ok(None)) {
            self.make_extent_private();
            let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
            let (start, len) = (pointer(self.range.start), self.range.len());
            // SAFETY: nothing is mapped there, and what was there is in the file.
            let healed = unsafe { mmap(start, len, rights, flags, &self.backing, self.offset(self.range.start)) };
            assert!(
                healed.is_ok(),
                "the kernel took {len} bytes of the program at {start:p} and does not let us put them back"
            );
        }
    }

    /// Whether peers may map it, and the program may have its memory there.
    fn is_suitable(&self) -> bool {
        match &self.backing {
            // FUTURE_WRITE comes only now: with it not even we could have mapped the file writable.
            RegionBacking::Memfd(memfd) => {
                fcntl_add_seals(memfd, SEALS).is_ok() && fcntl_get_seals(memfd).is_ok_and(|seals| seals.contains(SEALS))
            }
            RegionBacking::Extent(extent) => extent.extent().is_some_and(|extent| !extent.gone),
        }
    }
}

fn write_all(memfd: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), ColdReason> {
    while !bytes.is_empty() {
        let written = match rustix::io::pwrite(memfd, bytes, at) {
            Ok(0) => return Err(ColdReason::MemoryLimit),
            Ok(written) => written,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(refusal(error)),
        };
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}

/// Fills an extent, of which the program has no mapping yet. Refused where it is not cached as other memory is: a program would not
/// know its own memory again.
fn copy_into(extent: &PrivateExtent, bytes: &[u8]) -> Result<(), ColdReason> {
    if extent.extent().is_none_or(|extent| extent.bytes != bytes.len() as u64) {
        return Err(ColdReason::Refused);
    }
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at a place of the kernel's choice.
    let there =
        unsafe { mmap(std::ptr::null_mut(), bytes.len(), rights, MapFlags::SHARED, extent, 0) }.map_err(refusal)?;
    // SAFETY: `there` is mapped writable for `bytes.len()` bytes, was made just now, and no reference into it exists. Others see it,
    // too, which does no harm because this function only stores there.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), there.cast(), bytes.len()) };
    // SAFETY: the mapping made above.
    let _ = unsafe { munmap(there, bytes.len()) };
    match extent.extent() {
        Some(extent) if extent.memory_type == WRITE_BACK => Ok(()),
        Some(_) => Err(ColdReason::Uncached),
        None => Err(ColdReason::Refused),
    }
}

/// Locks what is private over a file of ours: there `MADV_DONTNEED` would bring old bytes back.
pub(super) fn lock(vma: &Vma) {
    // Refused if the program took the room that we had. As it is freed or migrated again, nothing else is to be done.
    // SAFETY: changes no contents and no rights.
    let _ = unsafe { mlock_with(pointer(vma.range.start), vma.range.len(), MlockFlags::ONFAULT) };
}

fn sparse_file() -> Result<OwnedFd, ColdReason> {
    // Asked before, because ftruncate would not only fail: it would send SIGXFSZ.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < FILE_SIZE) {
        return Err(ColdReason::FileSizeLimit);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
    let memfd = memfd_create(NAME, flags).map_err(refusal)?;
    ftruncate(&memfd, FILE_SIZE).map_err(refusal)?;
    Ok(memfd)
}

pub(super) fn refusal(error: Errno) -> ColdReason {
    match error {
        Errno::MFILE | Errno::NFILE => ColdReason::DescriptorLimit,
        Errno::NOMEM | Errno::NOSPC => ColdReason::MemoryLimit,
        Errno::FBIG => ColdReason::FileSizeLimit,
        Errno::FAULT => ColdReason::Unmapped,
        _ => ColdReason::Refused,
    }
}

pub(super) fn pointer<T>(address: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address)
}
