//! Registered memory that peers access themselves, or the reason why they cannot.

use crate::port::Port;
use isthmus_client::arena::{Arena, ColdReason, RegisteredMemory, Registration};
use isthmus_client::{Domain, Reason};
use isthmus_layout::arena::{ATOMIC, READ, WRITE};
use isthmus_verbs::{Access, Direct, Key, Pd};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The regions of a device that peers may access.
#[derive(Debug)]
pub(crate) struct Exposures {
    /// By key.
    regions: Mutex<HashMap<u32, Result<RegisteredMemory, Reason>>>,
    /// Memory never moves to the arena.
    is_off: bool,
}

/// The rights by which peers change memory.
const CHANGED: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// A region as the engine describes it: its protection domain, address and length, the name of its first byte, and its rights.
pub(crate) type Region = (Pd, (u64, u64), u64, Access);

/// The arena of the process, which all its devices share.
fn arena() -> Result<&'static Arc<Arena>, ColdReason> {
    static ARENA: OnceLock<Result<Arc<Arena>, ColdReason>> = OnceLock::new();
    ARENA.get_or_init(|| Arena::new().map(Arc::new)).as_ref().map_err(|reason| *reason)
}

impl Exposures {
    /// No regions. If `is_off`, memory never moves to the arena.
    pub(crate) fn new(is_off: bool) -> Self {
        Self { regions: Mutex::default(), is_off }
    }

    /// Grants the arena to the peers, if a region with these rights may lie in it.
    pub(crate) fn share_arena(&self, domain: &mut Domain<Port>, access: Access) {
        if access.intersects(CHANGED)
            && !self.is_off
            && let Ok(arena) = arena()
        {
            domain.share_arena(arena);
        }
    }

    /// Moves a region to the arena, if peers may change it and the memory can be moved. That may take long, so the caller does not hold the
    /// lock of the device.
    pub(crate) fn expose(&self, key: Key, region: Region) {
        if region.3.intersects(CHANGED | Access::REMOTE_READ) {
            let exposed = if self.is_off { Err(Reason::BufferCacheDisabled) } else { register(key, region) };
            self.regions().insert(key.0, exposed);
        }
    }

    /// Ends direct access to a region. Waits for peers that are writing, so the caller does not hold the lock of the device.
    pub(crate) fn close(&self, key: Key) {
        let exposed = self.regions().remove(&key.0);
        drop(exposed); // Without the lock.
    }

    /// Why a peer needed help to access bytes of a region, as far as that is to be seen from the memory.
    pub(crate) fn assist_reason(&self, key: Key, offset: u64, len: u64) -> Reason {
        match self.regions().get(&key.0) {
            Some(Err(reason)) => *reason,
            Some(Ok(registered)) if !registered.is_in_place() => Reason::MemoryForked,
            Some(Ok(registered)) if !registered.covers(offset, len) => Reason::MemoryPageShared,
            Some(Ok(_)) | None => Reason::MemoryNotReady,
        }
    }

    fn regions(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Result<RegisteredMemory, Reason>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn register(key: Key, (pd, (addr, len), iova, access): Region) -> Result<RegisteredMemory, Reason> {
    // Peers map the whole file for writing, so memory that they may only read stays outside of it.
    if !access.intersects(CHANGED) {
        return Err(Reason::MemoryReadOnly);
    }
    let mut rights = 0;
    for (allowed, right) in
        [(Access::REMOTE_READ, READ), (Access::REMOTE_WRITE, WRITE), (Access::REMOTE_ATOMIC, ATOMIC)]
    {
        rights |= if access.contains(allowed) { right } else { 0 };
    }
    let arena = arena().map_err(ColdReason::reason)?;
    // SAFETY: `ibv_reg_mr(3)` makes the program promise that the memory stays until the region is deregistered, and that peers may write
    // it.
    let registration = unsafe { Registration::new(addr as *const u8, len as usize, Direct::name(pd, key), rights) };
    arena.register(&registration.named_from(iova)).map_err(ColdReason::reason)
}
