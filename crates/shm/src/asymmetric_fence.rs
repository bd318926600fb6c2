//! A fence with a cost for only one of two sides.
//!
//! Two sides that each store a word and then load the other's word both need a fence between store and load. The side
//! that does this all the time then pays for something that matters rarely. `membarrier` (Linux 4.16) lets the other side,
//! which is about to sleep or to revoke something, make all running threads in its scope fence at that moment.

/// The threads that a heavy fence reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceScope {
    /// The threads of this process.
    Process,
    /// The threads of every registered process of this machine.
    Machine,
}

/// Returns true if this process is registered: heavy fences of this scope then fence its threads, and it may request one itself.
#[cfg(not(miri))]
pub fn is_registered(scope: FenceScope) -> bool {
    use rustix::thread::{MembarrierCommand as Command, MembarrierQuery as Query, membarrier, membarrier_query};
    use std::sync::OnceLock;

    static REGISTERED: [OnceLock<bool>; 2] = [const { OnceLock::new() }; 2];
    let (needed, register) = match scope {
        FenceScope::Process => {
            (Query::PRIVATE_EXPEDITED | Query::REGISTER_PRIVATE_EXPEDITED, Command::RegisterPrivateExpedited)
        }
        FenceScope::Machine => {
            (Query::GLOBAL_EXPEDITED | Query::REGISTER_GLOBAL_EXPEDITED, Command::RegisterGlobalExpedited)
        }
    };
    *REGISTERED[scope as usize].get_or_init(|| membarrier_query().contains(needed) && membarrier(register).is_ok())
}

/// Issues a full fence in every running thread in scope, including this one. Returns false if the kernel now refuses it.
#[cfg(not(miri))]
pub fn heavy_fence(scope: FenceScope) -> bool {
    use rustix::thread::{MembarrierCommand as Command, membarrier};

    let command = match scope {
        FenceScope::Process => Command::PrivateExpedited,
        FenceScope::Machine => Command::GlobalExpedited,
    };
    membarrier(command).is_ok()
}

/// Always false, because miri has no such system call.
#[cfg(miri)]
pub fn is_registered(_: FenceScope) -> bool {
    false
}

/// Always false, because miri has no such system call.
#[cfg(miri)]
pub fn heavy_fence(_: FenceScope) -> bool {
    false
}
