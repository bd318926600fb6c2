//! An epoll set of a worker's doorbells and of its pollers' sources: it ends a sleep, and finds ready sources with one system call.
//!
//! ```text
//!   doorbells ─┐               ┌─ sleep: until a doorbell rings, a source changes, or the time is over
//!              ├─► epoll set ──┤
//!   sources ───┘               └─ check: never waits          ──► events: which sources changed
//! ```
//!
//! Edge-triggered: each ring is one event, so the doorbell need not be read to silence it. A source is reported when something comes, and
//! not again for what is left in it. The cost of a call does not grow with the number of silent sources.

use crate::pollers::PollerKind;
use isthmus_platform::{Doorbell, PlatformError};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The number of events that one call takes. Others are reported by the next call.
const EVENTS_MAX: usize = 64;

/// A descriptor that a poller watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) poller: PollerKind,
    /// The poller's own number for the source.
    pub(crate) number: u32,
}

/// A change of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceEvent {
    pub(crate) source: Source,
    /// Something came, or the source has an error, which the next receive finds.
    pub(crate) is_readable: bool,
    /// There is room to send.
    pub(crate) is_writable: bool,
}

/// The cause that ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A doorbell, or a source.
    Event,
    /// The time limit has passed.
    Timer,
}

/// The event data of doorbells. That of sources is not 0.
const DOORBELL: u64 = 0;

impl Source {
    fn event_data(self) -> epoll::EventData {
        epoll::EventData::new_u64((self.poller as u64 + 1) << 32 | u64::from(self.number))
    }

    fn parse(data: epoll::EventData) -> Option<Self> {
        let poller = (data.u64() >> 32).checked_sub(1)?;
        let poller = *PollerKind::ALL.get(usize::try_from(poller).ok()?)?;
        Some(Self { poller, number: data.u64() as u32 }) // The lower half.
    }
}

/// An epoll set of doorbells and sources.
#[derive(Debug)]
pub(crate) struct Sleeper {
    epoll: OwnedFd,
    /// The number of sources in the set.
    sources: usize,
    /// Events that no poller has seen yet.
    events: Vec<SourceEvent>,
    /// True if a poller left frames in a source, so the others are to be checked before its next turn.
    pub(crate) is_check_due: bool,
}

impl Sleeper {
    pub(crate) fn new() -> Result<Self, PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "creating an epoll set", source };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        Ok(Self { epoll, sources: 0, events: Vec::with_capacity(EVENTS_MAX), is_check_due: false })
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

    /// Watches a source for input and, with `writable`, for room to send. Each call reports the source once more if it is readable, or
    /// writable, at that time.
    pub(crate) fn watch(&mut self, fd: &impl AsFd, source: Source, writable: bool) -> Result<(), PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "adding a source to an epoll set", source };
        let out = if writable { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let (data, flags) = (source.event_data(), epoll::EventFlags::IN | epoll::EventFlags::ET | out);
        match epoll::add(&self.epoll, fd, data, flags) {
            Err(Errno::EXIST) => epoll::modify(&self.epoll, fd, data, flags).map_err(refused),
            added => {
                self.sources += usize::from(added.is_ok());
                added.map_err(refused)
            }
        }
    }

    /// Ends the watch of a source. Called before its descriptor is closed.
    pub(crate) fn unwatch(&mut self, fd: &impl AsFd) {
        self.sources -= usize::from(epoll::delete(&self.epoll, fd).is_ok());
    }

    /// Finds the sources that have changed; never waits, and makes no system call if there are no sources. True if there are events.
    pub(crate) fn check(&mut self) -> bool {
        if self.sources > 0 {
            self.wait(Some(&Timespec::default()));
        }
        !self.events.is_empty()
    }

    /// Sleeps until a doorbell rings or a source changes, for `limit` at most.
    pub(crate) fn sleep(&mut self, limit: Option<Duration>) -> Woken {
        self.wait(limit.and_then(|limit| Timespec::try_from(limit).ok()).as_ref())
    }

    /// Takes one event.
    pub(crate) fn pop_event(&mut self) -> Option<SourceEvent> {
        self.events.pop()
    }

    fn wait(&mut self, limit: Option<&Timespec>) -> Woken {
        // The ready maps show which rings to poll, so the doorbells that rang do not matter.
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let came = match epoll::wait(&self.epoll, &mut events, limit) {
            Ok(([], _)) => return Woken::Timer,
            Ok((events, _)) => events,
            Err(_) => return Woken::Event, // Only an interruption: the worker polls once and sleeps again.
        };
        for event in came {
            let Some(source) = Source::parse(event.data) else { continue };
            let flags = event.flags;
            let is_readable = !flags.difference(epoll::EventFlags::OUT).is_empty();
            self.events.push(SourceEvent { source, is_readable, is_writable: flags.contains(epoll::EventFlags::OUT) });
        }
        Woken::Event
    }
}
