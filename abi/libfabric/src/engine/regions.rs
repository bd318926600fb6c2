//! Memory that others may read and write: registered regions, by key.

use crate::abi::consts::{FI_REMOTE_READ, FI_REMOTE_WRITE};
use crate::engine::events::Counter;
use crate::errno::Errno;
use isthmus_client::Reason;
use isthmus_client::arena::{Arena, ColdReason, Registered, Registration};
use isthmus_layout::arena::{READ, WRITE};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A registered region. It lives until it is closed and nothing that is under way uses it any more.
#[derive(Debug)]
pub(crate) struct Region {
    start: *mut u8,
    len: u64,
    access: u64,
    /// Counts what others write.
    pub(crate) counter: Mutex<Option<Arc<Counter>>>,
    direct: Mutex<Direct>,
}

/// Whether others reach a region by themselves.
#[derive(Debug)]
enum Direct {
    /// They do.
    Shown(Registered),
    /// They do no more: somebody wants to hear of everything.
    Hidden(#[expect(dead_code, reason = "its memory stays where it is until the region is closed")] Registered),
    /// They have to ask for everything.
    Asked(Reason),
}

// SAFETY: the program registered the memory for whoever may access it; every access of ours is under the lock of its domain.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// What a request wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Both,
}

impl Region {
    pub(crate) fn new(start: *mut u8, len: usize, access: u64) -> Self {
        let direct = Mutex::new(Direct::Asked(Reason::BufferCacheOff)); // Where nothing is ever exposed.
        Self { start, len: len as u64, access, counter: Mutex::default(), direct }
    }

    fn direct(&self) -> MutexGuard<'_, Direct> {
        self.direct.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Others are to ask for everything from now on: somebody wants to hear of it.
    pub(crate) fn hide(&self) {
        let mut direct = self.direct();
        *direct = match std::mem::replace(&mut *direct, Direct::Asked(Reason::MemoryCounted)) {
            Direct::Shown(registered) => {
                registered.hide();
                Direct::Hidden(registered)
            }
            before => before,
        };
    }

    /// Why somebody had to ask for these bytes, as far as it is to be seen from here.
    pub(crate) fn why_asked(&self, offset: u64, len: u64) -> Reason {
        match &*self.direct() {
            Direct::Asked(reason) => *reason,
            Direct::Hidden(_) => Reason::MemoryCounted,
            Direct::Shown(registered) if !registered.is_in_place() => Reason::MemoryForked,
            Direct::Shown(registered) if !registered.has(offset, len) => Reason::MemoryEdge,
            Direct::Shown(_) => Reason::MemoryTurn,
        }
    }

    /// Nobody reaches it by himself any more when this is over.
    pub(crate) fn withdraw(&self) {
        let direct = std::mem::replace(&mut *self.direct(), Direct::Asked(Reason::MemoryTurn));
        drop(direct); // Without the lock: it waits for those who are there.
    }

    /// Where `len` bytes at `offset` lie, if they do and may be accessed so.
    fn place(&self, offset: u64, len: u64, access: Access) -> Result<*mut u8, Errno> {
        let wanted = match access {
            Access::Read => FI_REMOTE_READ,
            Access::Write => FI_REMOTE_WRITE,
            Access::Both => FI_REMOTE_READ | FI_REMOTE_WRITE,
        };
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside || self.access & wanted != wanted {
            return Err(Errno::ACCES);
        }
        // It lies inside, so the sum is an address of the region.
        Ok(self.start.wrapping_add(offset as usize))
    }
}

/// The regions of a domain.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    table: Mutex<HashMap<u64, Arc<Region>>>,
    /// Where peers find what they reach by themselves. None where there can be none.
    arena: OnceLock<Result<Arc<Arena>, ColdReason>>,
    /// An endpoint counts what others do.
    counted: AtomicBool,
}

impl Regions {
    fn table(&self) -> MutexGuard<'_, HashMap<u64, Arc<Region>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a region under a key.
    pub(crate) fn enter(&self, key: u64, region: Arc<Region>) -> Result<(), Errno> {
        match self.table().entry(key) {
            std::collections::hash_map::Entry::Occupied(_) => Err(Errno::NOKEY),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(region);
                Ok(())
            }
        }
    }

    /// Lets others reach a region by themselves that they may write, as far as that is possible.
    ///
    /// # Safety
    ///
    /// The memory of the region stays mapped until it is withdrawn.
    pub(crate) unsafe fn expose(&self, key: u64, region: &Region) {
        // SAFETY: passed on.
        let registered = unsafe { self.register(key, region) };
        *region.direct() = registered.map_or_else(Direct::Asked, Direct::Shown);
    }

    /// # Safety
    ///
    /// As for [`Self::expose`].
    unsafe fn register(&self, key: u64, region: &Region) -> Result<Registered, Reason> {
        if region.access & FI_REMOTE_WRITE == 0 {
            return Err(Reason::MemoryReadOnly);
        }
        if self.counted.load(Ordering::Relaxed) {
            return Err(Reason::MemoryCounted);
        }
        let arena = self.arena.get_or_init(|| Arena::new().map(Arc::new));
        let arena = arena.as_ref().map_err(|cold| cold.reason())?;
        let rights = WRITE | if region.access & FI_REMOTE_READ != 0 { READ } else { 0 };
        // SAFETY: passed on; that others write it is what the region is for.
        let registration = unsafe { Registration::new(region.start, region.len as usize, key, rights) };
        arena.register(&registration).map_err(ColdReason::reason)
    }

    /// Where peers find what they reach by themselves, if there is anything.
    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.get()?.as_ref().ok()
    }

    /// An endpoint counts what others do, so they have to ask for everything.
    pub(crate) fn count(&self) {
        self.counted.store(true, Ordering::Relaxed);
        self.table().values().for_each(|region| region.hide());
    }

    pub(crate) fn remove(&self, key: u64) {
        self.table().remove(&key);
    }

    /// The place that a request names.
    pub(crate) fn find(
        &self,
        key: u64,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<(Arc<Region>, *mut u8), Errno> {
        let region = self.table().get(&key).cloned().ok_or(Errno::KEYREJECTED)?;
        let place = region.place(offset, len, access)?;
        Ok((region, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_stays_inside_and_does_what_it_may() {
        let mut bytes = [0_u8; 16];
        let regions = Regions::default();
        let region = Arc::new(Region::new(bytes.as_mut_ptr(), 16, FI_REMOTE_READ));
        regions.enter(7, Arc::clone(&region)).expect("the key is free");
        assert_eq!(regions.enter(7, region), Err(Errno::NOKEY));
        let find = |key, offset, len, access| regions.find(key, offset, len, access).map(|_| ()).err();
        assert_eq!(find(7, 0, 16, Access::Read), None);
        assert_eq!(find(7, 16, 0, Access::Read), None);
        assert_eq!(find(7, 1, 16, Access::Read), Some(Errno::ACCES));
        assert_eq!(find(7, u64::MAX, 2, Access::Read), Some(Errno::ACCES));
        assert_eq!(find(7, 0, 1, Access::Write), Some(Errno::ACCES));
        assert_eq!(find(7, 0, 1, Access::Both), Some(Errno::ACCES));
        assert_eq!(find(8, 0, 1, Access::Read), Some(Errno::KEYREJECTED));
        regions.remove(7);
        assert_eq!(find(7, 0, 1, Access::Read), Some(Errno::KEYREJECTED));
    }
}
