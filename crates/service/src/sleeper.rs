//! Where a worker sleeps: an epoll set of all its doorbells.
//!
//! Edge-triggered: each ring is one event, so the doorbell need not be read to silence it.

use isthmus_platform::{Doorbell, PlatformError};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::time::Duration;

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A doorbell.
    Rung,
    /// A link has frames, or room for some; perhaps a doorbell, too.
    Frames,
    /// Nothing happened for a while.
    Timer,
}

/// What the set says of doorbells, and of links.
const DOORBELL: u64 = 0;
const LINK: u64 = 1;

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
        epoll::add(&self.epoll, doorbell, epoll::EventData::new_u64(DOORBELL), flags).map_err(refused)
    }

    /// No longer. Needed although we close it: others have the same doorbell, and the set would keep it for them.
    pub(crate) fn remove(&mut self, doorbell: &Doorbell) {
        let _ = epoll::delete(&self.epoll, doorbell);
    }

    /// Sleeps until frames come by a link, too, or with `writable` until it has room for some.
    pub(crate) fn watch(&mut self, link: &impl AsFd, writable: bool) -> Result<(), PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "adding a link to an epoll set", source };
        let out = if writable { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let (data, flags) = (epoll::EventData::new_u64(LINK), epoll::EventFlags::IN | epoll::EventFlags::ET | out);
        match epoll::add(&self.epoll, link, data, flags) {
            Err(Errno::EXIST) => epoll::modify(&self.epoll, link, data, flags).map_err(refused),
            added => added.map_err(refused),
        }
    }

    /// Sleeps until a doorbell rings or frames come, or for so long.
    pub(crate) fn sleep(&self, limit: Option<Duration>) -> Woken {
        // Which doorbells rang does not matter: the ready maps tell more. Those events that do not fit end the next sleep.
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut events = [const { MaybeUninit::uninit() }; 16];
        match epoll::wait(&self.epoll, &mut events, limit.as_ref()) {
            Ok(([], _)) => Woken::Timer,
            Ok((events, _)) if events.iter().any(|event| event.data.u64() == LINK) => Woken::Frames,
            // A refusal can only be an interruption: the worker looks around and comes back.
            Ok(_) | Err(_) => Woken::Rung,
        }
    }
}
