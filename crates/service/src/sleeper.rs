//! An epoll set of a worker's doorbells and links, on which the worker sleeps.
//!
//! Edge-triggered: each ring is one event, so the doorbell need not be read to silence it.

use isthmus_platform::{Doorbell, PlatformError};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The cause that ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A doorbell.
    Rung,
    /// A link has frames, or room for some; perhaps a doorbell, too.
    Frames,
    /// The time limit has passed.
    Timer,
}

/// The event data of doorbells. `LINK` is that of links.
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

    /// Adds a doorbell to the set.
    pub(crate) fn add(&mut self, doorbell: &Doorbell) -> Result<(), PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "adding a doorbell to an epoll set", source };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, doorbell, epoll::EventData::new_u64(DOORBELL), flags).map_err(refused)
    }

    /// Removes a doorbell from the set. Closing it is not enough: the set keeps a doorbell as long as other processes have it open.
    pub(crate) fn remove(&mut self, doorbell: &Doorbell) {
        let _ = epoll::delete(&self.epoll, doorbell);
    }

    /// Watches a link for received frames and, with `writable`, for room to send.
    pub(crate) fn watch(&mut self, link: &impl AsFd, writable: bool) -> Result<(), PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "adding a link to an epoll set", source };
        let out = if writable { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let (data, flags) = (epoll::EventData::new_u64(LINK), epoll::EventFlags::IN | epoll::EventFlags::ET | out);
        match epoll::add(&self.epoll, link, data, flags) {
            Err(Errno::EXIST) => epoll::modify(&self.epoll, link, data, flags).map_err(refused),
            added => added.map_err(refused),
        }
    }

    /// Sleeps until a doorbell rings or a link has an event, for `limit` at most.
    pub(crate) fn sleep(&self, limit: Option<Duration>) -> Woken {
        // The ready maps show which rings to poll, so the doorbells that rang do not matter. Events that do not fit end the next sleep.
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut events = [const { MaybeUninit::uninit() }; 16];
        match epoll::wait(&self.epoll, &mut events, limit.as_ref()) {
            Ok(([], _)) => Woken::Timer,
            Ok((events, _)) if events.iter().any(|event| event.data.u64() == LINK) => Woken::Frames,
            // An error can only be an interruption: the worker polls once and sleeps again.
            Ok(_) | Err(_) => Woken::Rung,
        }
    }
}
