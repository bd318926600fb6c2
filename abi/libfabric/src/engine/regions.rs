//! Registered memory that peers may read and write, by key.

use crate::abi::consts::{FI_REMOTE_READ, FI_REMOTE_WRITE};
use crate::engine::events::Counter;
use crate::errno::Errno;
use isthmus_client::Reason;
use isthmus_client::arena::{Arena, ColdReason, RegisteredMemory, Registration};
use isthmus_layout::arena::{READ, WRITE};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A registered region. It exists until it is closed and no operation uses it.
#[derive(Debug)]
pub(crate) struct Region {
    start: *mut u8,
    len: u64,
    access: u64,
    /// The counter of accesses by peers.
    pub(crate) counter: Mutex<Option<Arc<Counter>>>,
    direct: Mutex<DirectAccess>,
}

/// The state of a region's direct access by peers.
#[derive(Debug)]
enum DirectAccess {
    /// Peers access the region directly.
    Exposed(RegisteredMemory),
    /// Direct access has ended, because a counter has to count every access.
    Revoked(#[expect(dead_code, reason = "its memory stays where it is until the region is closed")] RegisteredMemory),
    /// Peers have to ask for every access, for this reason.
    Denied(Reason),
}

// SAFETY: the program registered the memory for access by peers; every access of ours is under the lock of its domain.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// The access that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionAccess {
    Read,
    Write,
    Both,
}

impl Region {
    pub(crate) fn new(start: *mut u8, len: usize, access: u64) -> Self {
        let direct = Mutex::new(DirectAccess::Denied(Reason::BufferCacheDisabled)); // Final where regions are never exposed.
        Self { start, len: len as u64, access, counter: Mutex::default(), direct }
    }

    fn direct(&self) -> MutexGuard<'_, DirectAccess> {
        self.direct.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends direct access, because a counter has to count every access.
    pub(crate) fn unpublish(&self) {
        let mut direct = self.direct();
        *direct = match std::mem::replace(&mut *direct, DirectAccess::Denied(Reason::MemoryHasCounter)) {
            DirectAccess::Exposed(registered) => {
                registered.unpublish();
                DirectAccess::Revoked(registered)
            }
            before => before,
        };
    }

    /// Returns the reason why a peer had to ask for these bytes, as far as the owner knows it.
    pub(crate) fn assist_reason(&self, offset: u64, len: u64) -> Reason {
        match &*self.direct() {
            DirectAccess::Denied(reason) => *reason,
            DirectAccess::Revoked(_) => Reason::MemoryHasCounter,
            DirectAccess::Exposed(registered) if !registered.is_in_place() => Reason::MemoryForked,
            DirectAccess::Exposed(registered) if !registered.covers(offset, len) => Reason::MemoryPageShared,
            DirectAccess::Exposed(_) => Reason::MemoryNotReady,
        }
    }

    /// Ends direct access. When this returns, no peer accesses the region directly any more.
    pub(crate) fn unexpose(&self) {
        let direct = std::mem::replace(&mut *self.direct(), DirectAccess::Denied(Reason::MemoryNotReady));
        drop(direct); // Not under the lock: ending the registration waits for peers.
    }

    /// Returns the address of `len` bytes at `offset`, if the region has these bytes and allows this access.
    fn resolve(&self, offset: u64, len: u64, access: RegionAccess) -> Result<*mut u8, Errno> {
        let wanted = match access {
            RegionAccess::Read => FI_REMOTE_READ,
            RegionAccess::Write => FI_REMOTE_WRITE,
            RegionAccess::Both => FI_REMOTE_READ | FI_REMOTE_WRITE,
        };
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside || self.access & wanted != wanted {
            return Err(Errno::ACCES);
        }
        // The range is inside the region, so the addition does not overflow.
        Ok(self.start.wrapping_add(offset as usize))
    }
}

/// The regions of a domain.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    table: Mutex<HashMap<u64, Arc<Region>>>,
    /// The arena in which peers find directly accessible memory, or the reason why there is none.
    arena: OnceLock<Result<Arc<Arena>, ColdReason>>,
    /// An endpoint has a counter of accesses by peers.
    has_counter: AtomicBool,
}

impl Regions {
    fn table(&self) -> MutexGuard<'_, HashMap<u64, Arc<Region>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a region under a key.
    pub(crate) fn insert(&self, key: u64, region: Arc<Region>) -> Result<(), Errno> {
        match self.table().entry(key) {
            std::collections::hash_map::Entry::Occupied(_) => Err(Errno::NOKEY),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(region);
                Ok(())
            }
        }
    }

    /// Lets peers access a region directly where possible. The region must permit writes by peers.
    ///
    /// # Safety
    ///
    /// The memory of the region stays mapped until [`Region::unexpose`] has returned.
    pub(crate) unsafe fn expose(&self, key: u64, region: &Region) {
        // SAFETY: passed on.
        let registered = unsafe { self.register(key, region) };
        *region.direct() = registered.map_or_else(DirectAccess::Denied, DirectAccess::Exposed);
    }

    /// # Safety
    ///
    /// As for [`Self::expose`].
    unsafe fn register(&self, key: u64, region: &Region) -> Result<RegisteredMemory, Reason> {
        if region.access & FI_REMOTE_WRITE == 0 {
            return Err(Reason::MemoryReadOnly);
        }
        if self.has_counter.load(Ordering::Relaxed) {
            return Err(Reason::MemoryHasCounter);
        }
        let arena = self.arena.get_or_init(|| Arena::new().map(Arc::new));
        let arena = arena.as_ref().map_err(|cold| cold.reason())?;
        let rights = WRITE | if region.access & FI_REMOTE_READ != 0 { READ } else { 0 };
        // SAFETY: passed on; that others write it is what the region is for.
        let registration = unsafe { Registration::new(region.start, region.len as usize, key, rights) };
        arena.register(&registration).map_err(ColdReason::reason)
    }

    /// Returns the arena in which peers find directly accessible memory, if there is one.
    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.get()?.as_ref().ok()
    }

    /// Ends direct access to all regions, because an endpoint counts the accesses of peers.
    pub(crate) fn disable_direct(&self) {
        self.has_counter.store(true, Ordering::Relaxed);
        self.table().values().for_each(|region| region.unpublish());
    }

    pub(crate) fn remove(&self, key: u64) {
        self.table().remove(&key);
    }

    /// Returns the memory that a request names.
    pub(crate) fn find(
        &self,
        key: u64,
        offset: u64,
        len: u64,
        access: RegionAccess,
    ) -> Result<(Arc<Region>, *mut u8), Errno> {
        let region = self.table().get(&key).cloned().ok_or(Errno::KEYREJECTED)?;
        let place = region.resolve(offset, len, access)?;
        Ok((region, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_checks_bounds_and_access() {
        let mut bytes = [0_u8; 16];
        let regions = Regions::default();
        let region = Arc::new(Region::new(bytes.as_mut_ptr(), 16, FI_REMOTE_READ));
        regions.insert(7, Arc::clone(&region)).expect("the key is free");
        assert_eq!(regions.insert(7, region), Err(Errno::NOKEY));
        let find = |key, offset, len, access| regions.find(key, offset, len, access).map(|_| ()).err();
        assert_eq!(find(7, 0, 16, RegionAccess::Read), None);
        assert_eq!(find(7, 16, 0, RegionAccess::Read), None);
        assert_eq!(find(7, 1, 16, RegionAccess::Read), Some(Errno::ACCES));
        assert_eq!(find(7, u64::MAX, 2, RegionAccess::Read), Some(Errno::ACCES));
        assert_eq!(find(7, 0, 1, RegionAccess::Write), Some(Errno::ACCES));
        assert_eq!(find(7, 0, 1, RegionAccess::Both), Some(Errno::ACCES));
        assert_eq!(find(8, 0, 1, RegionAccess::Read), Some(Errno::KEYREJECTED));
        regions.remove(7);
        assert_eq!(find(7, 0, 1, RegionAccess::Read), Some(Errno::KEYREJECTED));
    }
}
