//! Where a worker sleeps: an epoll set of all its doorbells.
//!
//! Edge-triggered: each ring is one event, so nobody has to read the doorbell to silence it.

use isthmus_platform::{Doorbell, PlatformError};
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use std::mem::MaybeUninit;

/// How long a worker sleeps before it looks for pages to give back, where there may be some.
const TRIM_AFTER: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A doorbell.
    Rung,
    /// Nothing happened for a while.
    Timer,
}

/// An epoll set of doorbells.
#[derive(Debug)]
pub(crate) struct Sleeper {
    epoll: OwnedFd,
}

impl Sleeper {
    pub(crate) fn new() -> Result<Self, PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "creating an epoll set", source };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        Ok(Self { epoll })
    }

    /// Sleeps on this doorbell too.
    pub(crate) fn add(&mut self, doorbell: &Doorbell) -> Result<(), PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "adding a doorbell to an epoll set", source };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, doorbell, epoll::EventData::new_u64(0), flags).map_err(refused)
    }

    /// No longer. Needed although we close it: others have the same doorbell, and the set would keep it for them.
    pub(crate) fn remove(&mut self, doorbell: &Doorbell) {
        let _ = epoll::delete(&self.epoll, doorbell);
    }

    /// Sleeps until a doorbell rings; with `limited`, not for long.
    pub(crate) fn sleep(&self, limited: bool) -> Woken {
        // Which doorbells rang does not matter: the boards tell more. Those that do not fit end the next sleep.
        let mut events = [const { MaybeUninit::uninit() }; 16];
        match epoll::wait(&self.epoll, &mut events, limited.then_some(&TRIM_AFTER)) {
            Ok(([], _)) => Woken::Timer,
            // A refusal can only be an interruption: the worker looks around and comes back.
            Ok(_) | Err(_) => Woken::Rung,
        }
    }
}
