//! A fence that only one of two parties pays for.
//!
//! Two parties that each store a word and then look at the other's need a fence each, between store and look, and the party
//! that does this all the time pays for something that matters once in a long while. `membarrier` (Linux 4.16) lets the other one,
//! who is about to sleep or to take something away, make all running threads in its reach fence at that moment.

/// The threads that a heavy fence reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceScope {
    /// This process's.
    Process,
    /// Those of every registered process of this machine.
    Machine,
}

/// True if this process is registered, so that heavy fences of this scope fence its threads, and it may itself ask for one.
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

/// A full fence in every running thread in scope, ours first. False if the kernel refuses what it allowed before.
#[cfg(not(miri))]
pub fn heavy_fence(scope: FenceScope) -> bool {
    use rustix::thread::{MembarrierCommand as Command, membarrier};

    let command = match scope {
        FenceScope::Process => Command::PrivateExpedited,
        FenceScope::Machine => Command::GlobalExpedited,
    };
    membarrier(command).is_ok()
}

/// Miri has no such system call.
#[cfg(miri)]
pub fn is_registered(_: FenceScope) -> bool {
    false
}

/// Miri has no such system call.
#[cfg(miri)]
pub fn heavy_fence(_: FenceScope) -> bool {
    false
}
