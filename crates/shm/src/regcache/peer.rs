//! The other side: a region which a peer has granted to us.
//!
//! We map it for reading and copy out of it. Its owner may write it at any time, may be hostile, and may be gone;
//! what it cannot do is take the pages away under us, because we map nothing but a memfd which is sealed against
//! shrinking and has all its pages; or, in a guest, an extent of a window, which always shows some page.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{SealFlags, SeekFrom, fcntl_get_seals, fstat, fstatfs, seek};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::copy::copy;
use crate::{Gather, window_extent};

/// A part of a peer's memfd, or of an extent of a window, mapped read-only.
#[derive(Debug)]
pub struct PeerRegion {
    base: NonNull<u8>,
    /// The part of the file which is mapped at `base`.
    extent: Range<u64>,
    /// The descriptor of an extent of a window. That of a memfd is not needed any more.
    extent_fd: Option<OwnedFd>,
}

/// Why a granted region was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionRefused {
    /// The extent is empty, larger than allowed, or does not consist of pages.
    #[error("a region of {len} bytes from {start} is none (at most {len_max} bytes, whole pages)")]
    Extent {
        /// Where it was said to begin in the file.
        start: u64,
        /// How long it was said to be.
        len: u64,
        /// How long it may be.
        len_max: u64,
    },
    /// Not a memfd of plain pages: a file of another kind, or of huge pages, which can be short of memory at any time.
    #[error("not a memfd of plain pages")]
    NotMemfd,
    /// The owner could take pages away.
    #[error("not sealed against shrinking and writing")]
    NotSealed,
    /// The file ends before the extent does.
    #[error("the file has {have} bytes, the extent ends at {end}")]
    Short {
        /// Size of the file.
        have: u64,
        /// End of the extent.
        end: u64,
    },
    /// The extent has holes, which we would have to fill with memory of ours.
    #[error("the region has holes")]
    Holes,
    /// Our own process has no room for it.
    #[error("cannot map the region")]
    Map(#[source] Errno),
}

/// A place outside the mapped part of the region was named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} lie outside the region")]
pub struct OutsideRegion {
    /// Where the bytes were said to begin in the file.
    pub offset: u64,
    /// How many they were said to be.
    pub len: usize,
}

impl PeerRegion {
    /// Checks what a peer has sent and maps `len` bytes from `start` of it. Both may be the peer's words; `len_max`
    /// is ours.
    pub fn map(fd: &OwnedFd, start: u64, len: u64, len_max: u64) -> Result<Self, RegionRefused> {
        let page = rustix::param::page_size() as u64;
        let extent = match start.checked_add(len) {
            Some(end) if len > 0 && len <= len_max && start.is_multiple_of(page) && len.is_multiple_of(page) => {
                start..end
            }
            _ => return Err(RegionRefused::Extent { start, len, len_max }),
        };
        let is_extent = check_backing(fd, &extent)?;
        let extent_fd =
            if is_extent { Some(rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(RegionRefused::Map)?) } else { None };
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, at a place of the kernel's choice. It is within the file, which cannot shrink any
        // more (checked; an extent of a window never does).
        let base = unsafe { mmap(std::ptr::null_mut(), len as usize, ProtFlags::READ, flags, fd, start) };
        let base = NonNull::new(base.map_err(RegionRefused::Map)?.cast()).ok_or(RegionRefused::Map(Errno::NOMEM))?;
        Ok(Self { base, extent, extent_fd })
    }

    /// Returns true if the bytes copied until now were the peer's. An extent of a window that is revoked shows other pages from some moment
    /// on, and no process is notified of that moment; a memfd keeps its content.
    pub fn is_valid(&self) -> bool {
        self.extent_fd.as_ref().is_none_or(|fd| window_extent::extent(fd).is_some_and(|extent| !extent.gone))
    }

    /// Copies the bytes from `offset` of the file on. What they are is the peer's word: they may even change while we
    /// copy.
    pub fn copy_out(&self, offset: u64, to: &mut [u8]) -> Result<(), OutsideRegion> {
        // SAFETY: `copy_out_uninit` only ever stores initialised bytes.
        let to = unsafe { &mut *(std::ptr::from_mut(to) as *mut [MaybeUninit<u8>]) };
        self.copy_out_uninit(offset, to)
    }

    /// Copies as [`Self::copy_out`] does, into uninitialised memory; after `Ok` all of it is initialised.
    pub fn copy_out_uninit(&self, offset: u64, to: &mut [MaybeUninit<u8>]) -> Result<(), OutsideRegion> {
        let from = self.pointer(offset, to.len())?;
        // SAFETY: inside the mapping (checked), which lives as long as `self` and cannot lose pages (sealed, or an extent of a window). `to` is
        // memory of our own and exclusively borrowed, so it cannot be the mapping, into which no references exist.
        unsafe { copy_foreign(from, to) };
        Ok(())
    }

    /// Names `len` bytes from `offset` of the file on to the kernel, which reads them for us: they may change until it has.
    pub fn gather(&self, offset: u64, len: usize) -> Result<Gather<'_>, OutsideRegion> {
        let from = self.pointer(offset, len)?;
        // SAFETY: inside the mapping (checked), which lives as long as `self` is borrowed and cannot lose pages (sealed, or an extent of a window).
        Ok(unsafe { Gather::from_raw_parts(from.as_ptr(), len) })
    }

    /// Where these bytes lie in our mapping, all of them.
    fn pointer(&self, offset: u64, len: usize) -> Result<NonNull<u8>, OutsideRegion> {
        let outside = OutsideRegion { offset, len };
        let end = offset.checked_add(len as u64).ok_or(outside)?;
        if offset < self.extent.start || end > self.extent.end {
            return Err(outside);
        }
        // SAFETY: the offset is inside the mapped extent, or its end (checked).
        Ok(unsafe { self.base.add((offset - self.extent.start) as usize) })
    }

    /// The part of the peer's file which is mapped.
    pub fn extent(&self) -> Range<u64> {
        self.extent.clone()
    }
}

/// True of an extent of a window.
fn check_backing(fd: &OwnedFd, extent: &Range<u64>) -> Result<bool, RegionRefused> {
    if let Some(found) = window_extent::extent(fd) {
        let short = RegionRefused::Short { have: found.bytes, end: extent.end };
        return if found.bytes < extent.end { Err(short) } else { Ok(true) };
    }
    let seals = fcntl_get_seals(fd).map_err(|_| RegionRefused::NotMemfd)?;
    // Huge pages can be sealed as well, but a page of them may be refused, by SIGBUS, long after it was mapped.
    if fstatfs(fd).map_err(|_| RegionRefused::NotMemfd)?.f_type != TMPFS_MAGIC {
        return Err(RegionRefused::NotMemfd);
    }
    // A write seal of either kind also forbids holes to be punched.
    if !seals.contains(SealFlags::SHRINK) || !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(RegionRefused::NotSealed);
    }
    // From here on all that we find out stays true.
    let have = fstat(fd).map_err(|_| RegionRefused::NotMemfd)?.st_size as u64;
    if have < extent.end {
        return Err(RegionRefused::Short { have, end: extent.end });
    }
    let hole = seek(fd, SeekFrom::Hole(extent.start)).map_err(|_| RegionRefused::NotMemfd)?;
    if hole < extent.end { Err(RegionRefused::Holes) } else { Ok(false) }
}

const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// # Safety
///
/// `from` is mapped for `to.len()` bytes, and no reference to these bytes exists.
unsafe fn copy_foreign(from: NonNull<u8>, to: &mut [MaybeUninit<u8>]) {
    // The bytes may change while they are copied, by writes of another process to a mapping of its own. The language
    // does not define such writes; to it they are a device's. The copy then stores some mix of old and new bytes, and
    // nothing here reads them: later code reads only the copy.
    // SAFETY: readable (the caller's promise), writable (borrowed), and apart (no references into the mapping).
    unsafe { copy(from.as_ptr(), to.as_mut_ptr().cast(), to.len()) };
}

// SAFETY: read-only memory at a fixed address, which any thread may copy from.
unsafe impl Send for PeerRegion {}
// SAFETY: as above.
unsafe impl Sync for PeerRegion {}

impl Drop for PeerRegion {
    fn drop(&mut self) {
        let len = (self.extent.end - self.extent.start) as usize;
        // SAFETY: mapped by `map` with this length; no references into it exist.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), len) };
    }
}
