//! A fence that only one of two parties pays for.
//!
//! Two parties that each store a word and then look at the other's need a fence each, between store and look, and the party
//! that does this all the time pays for something that matters once in a long while. `membarrier` (Linux 4.16) lets the other one,
//! who is about to sleep or to take something away, make all running threads in its reach fence at that moment.

/// Whose threads a barrier fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// This process's.
    Process,
    /// Those of every registered process of this machine.
    Machine,
}

/// True if this process is registered, so that barriers of this reach fence its threads, and it may itself ask for one.
#[cfg(not(miri))]
pub fn is_registered(reach: Reach) -> bool {
    use rustix::thread::{MembarrierCommand as Command, MembarrierQuery as Query, membarrier, membarrier_query};
    use std::sync::OnceLock;

    static REGISTERED: [OnceLock<bool>; 2] = [const { OnceLock::new() }; 2];
    let (needed, register) = match reach {
        Reach::Process => {
            (Query::PRIVATE_EXPEDITED | Query::REGISTER_PRIVATE_EXPEDITED, Command::RegisterPrivateExpedited)
        }
        Reach::Machine => {
            (Query::GLOBAL_EXPEDITED | Query::REGISTER_GLOBAL_EXPEDITED, Command::RegisterGlobalExpedited)
        }
    };
    *REGISTERED[reach as usize].get_or_init(|| membarrier_query().contains(needed) && membarrier(register).is_ok())
}

/// A full fence in every running thread in reach, ours first. False if the kernel refuses what it allowed before.
#[cfg(not(miri))]
pub fn barrier(reach: Reach) -> bool {
    use rustix::thread::{MembarrierCommand as Command, membarrier};

    let command = match reach {
        Reach::Process => Command::PrivateExpedited,
        Reach::Machine => Command::GlobalExpedited,
    };
    membarrier(command).is_ok()
}

/// Miri has no such system call.
#[cfg(miri)]
pub fn is_registered(_: Reach) -> bool {
    false
}

/// Miri has no such system call.
#[cfg(miri)]
pub fn barrier(_: Reach) -> bool {
    false
}
