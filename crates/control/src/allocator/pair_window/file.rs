//! A pair window that is one memory file, which a device shows to each guest.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isthmus_layout::Refusal;
use isthmus_layout::RegionSize;
use isthmus_layout::proxy::{ResourceRef, RevokedExtent, WindowId};
use isthmus_layout::reason::Reason;
use isthmus_shm::{Access, Mapping, SharedMapping};

use super::{PairBacking, ReclaimCounts};
use crate::allocator::GuestWindow;
use crate::allocator::extents::ExtentMap;
use crate::broker::OrRefuse as _;

/// The file, and the map of its extents.
#[derive(Debug)]
pub(crate) struct PairFileBacking {
    file: Arc<OwnedFd>,
    state: Mutex<FileState>,
}

#[derive(Debug)]
struct FileState {
    extents: ExtentMap,
    reclaimed: ReclaimCounts,
}

impl PairFileBacking {
    /// Creates the backing over a sealed memory file of `bytes`, in whole pages.
    pub(crate) fn new(number: WindowId, file: Arc<OwnedFd>, bytes: u64) -> Self {
        Self {
            file,
            state: Mutex::new(FileState {
                extents: ExtentMap::new(number, 0, bytes),
                reclaimed: ReclaimCounts::default(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PairBacking for PairFileBacking {
    fn alloc(&self, bytes: u64) -> Option<(u64, u32)> {
        self.state().extents.alloc(bytes)
    }

    fn clear(&self, at: u64, bytes: u64) -> Result<(), Refusal> {
        self.map(at, RegionSize(bytes))?.discard_pages(0, bytes);
        Ok(())
    }

    fn map(&self, at: u64, size: RegionSize) -> Result<SharedMapping, Refusal> {
        let mapping = Mapping::window(&self.file, at, size, Access::ReadWrite);
        mapping.map(SharedMapping::new).or_refuse()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> bool {
        rustix::io::pread(&self.file, &mut *into, at) == Ok(into.len())
    }

    fn free(&self, at: u64, bytes: u64) {
        self.state().extents.free(at, bytes);
    }

    fn is_live(&self, at: u64, generation: u32) -> bool {
        self.state().extents.is_live(at, generation)
    }

    fn revoked(&self, side: usize, reported: usize) -> Option<RevokedExtent> {
        let state = self.state();
        state.extents.revoked(state.reclaimed.beyond(side) + reported)
    }

    fn reclaimed(&self, side: usize) {
        let mut state = self.state();
        if state.reclaimed.count(side) {
            state.extents.reclaim_first();
        }
    }

    fn bytes(&self) -> u64 {
        self.state().extents.bytes()
    }

    fn supports_regions(&self) -> bool {
        true
    }

    /// Returns a doorbell of the guests' devices, which can ring each other.
    fn doorbell(&self, of: &GuestWindow, from: &GuestWindow, vector: u16) -> Result<ResourceRef, Refusal> {
        let beyond = |what: String| Refusal::new(Reason::GuestVectorsFull, what);
        let peer = of.peer().ok_or_else(|| beyond(format!("guest {} has come too often", of.name())))?;
        if vector >= from.vectors_max() {
            let text =
                format!("the device of guest {} cannot ring vector {vector} of guest {}", from.name(), of.name());
            return Err(beyond(text));
        }
        Ok(ResourceRef::Doorbell { peer, vector })
    }
}
