//! A window that is one memory file, which a device shows to the guest.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_layout::Refusal;
use isthmus_layout::RegionSize;
use isthmus_layout::proxy::{EXTENTS_OFFSET, RevokedExtent, WINDOW_BYTES_MIN, WindowId};
use isthmus_shm::{Access, Mapping, SharedMapping};

use super::extents::ExtentMap;
use super::{WindowBacking, WindowFull};
use crate::broker::OrRefuse as _;

/// The file, and the map of its extents.
#[derive(Debug)]
pub(crate) struct FileBacking {
    file: OwnedFd,
    extents: Mutex<ExtentMap>,
}

impl FileBacking {
    /// Creates the backing over a sealed memory file of `bytes`.
    pub(crate) fn new(file: OwnedFd, bytes: u64) -> Self {
        assert!(bytes >= WINDOW_BYTES_MIN); // The configuration's limit.
        Self { file, extents: Mutex::new(ExtentMap::new(WindowId::OWN, EXTENTS_OFFSET, bytes - EXTENTS_OFFSET)) }
    }

    fn extents(&self) -> MutexGuard<'_, ExtentMap> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WindowBacking for FileBacking {
    fn map(&self, at: u64, size: RegionSize) -> Result<SharedMapping, Refusal> {
        let mapping = Mapping::window(&self.file, at, size, Access::ReadWrite);
        mapping.map(SharedMapping::new).or_refuse()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> bool {
        rustix::io::pread(&self.file, &mut *into, at) == Ok(into.len())
    }

    fn alloc(&self, bytes: u64) -> Result<(u64, u32), WindowFull> {
        self.extents().alloc(bytes).ok_or(WindowFull)
    }

    fn clear(&self, at: u64, bytes: u64) -> Result<(), Refusal> {
        self.map(at, RegionSize(bytes))?.discard_pages(0, bytes);
        Ok(())
    }

    fn free(&self, at: u64, bytes: u64) {
        self.extents().free(at, bytes);
    }

    fn is_live(&self, at: u64, generation: u32) -> bool {
        self.extents().is_live(at, generation)
    }

    fn revoked(&self, reported: usize) -> Option<RevokedExtent> {
        self.extents().revoked(reported)
    }

    fn reclaim_first(&self) {
        self.extents().reclaim_first();
    }

    fn bytes(&self) -> u64 {
        EXTENTS_OFFSET + self.extents().bytes()
    }

    fn supports_regions(&self) -> bool {
        true
    }

    fn used(&self) -> u64 {
        EXTENTS_OFFSET + self.extents().used()
    }
}
