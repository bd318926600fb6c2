//! A fence that only one of two parties pays for.
//!
//! Two parties that each store a word and then look at the other's need a fence each, between store and look, and the party
//! that does this for every message pays for something that matters once in a long while. `membarrier` (Linux 4.16) lets the
//! other one, who is about to sleep, make all running threads of all registered processes fence at that moment.

#[cfg(not(miri))]
use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
#[cfg(not(miri))]
use std::sync::OnceLock;

/// True if this process is registered, so that a [`barrier`] of any other process fences its threads too, and may itself ask
/// for one.
#[cfg(not(miri))]
pub(crate) fn is_registered() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| {
        let query = membarrier_query();
        let known = query.contains(MembarrierQuery::GLOBAL_EXPEDITED)
            && query.contains(MembarrierQuery::REGISTER_GLOBAL_EXPEDITED);
        known && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
    })
}

/// A full fence in every running thread of every registered process of this machine, ours first. False if the kernel refuses
/// what it allowed before.
#[cfg(not(miri))]
pub(crate) fn barrier() -> bool {
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// Miri has no such system call.
#[cfg(miri)]
pub(crate) fn is_registered() -> bool {
    false
}

/// Miri has no such system call.
#[cfg(miri)]
pub(crate) fn barrier() -> bool {
    false
}
