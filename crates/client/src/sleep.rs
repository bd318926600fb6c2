//! The epoll set that a domain sleeps on; a program may put its descriptor into an epoll set of its own.

use crate::control::Control;
use isthmus_platform::{Doorbell, PlatformError};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::time::Duration;

/// Marks events of the daemon's socket, and all others.
pub(crate) const NOTIFICATIONS: u64 = 1;
const OTHER: u64 = 0;

/// An epoll set over doorbells, the daemon's socket and a timer.
///
/// Doorbells are in it edge-triggered: a ring is an event, and what was rung need not be read.
#[derive(Debug)]
pub(crate) struct Sleeper {
    set: OwnedFd,
    timer: OwnedFd,
    armed: bool,
    needs_clearing: Vec<Doorbell>,
}

impl Sleeper {
    pub(crate) fn new() -> Result<Self, PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "creating an epoll set", source };
        let set = epoll::create(CreateFlags::CLOEXEC).map_err(refused)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(refused)?;
        epoll::add(&set, &timer, EventData::new_u64(OTHER), EventFlags::IN | EventFlags::ET).map_err(refused)?;
        Ok(Self { set, timer, armed: false, needs_clearing: Vec::new() })
    }

    pub(crate) fn watch_doorbell(&mut self, doorbell: &Doorbell) -> Result<(), PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "watching a doorbell", source };
        epoll::add(&self.set, doorbell, EventData::new_u64(OTHER), EventFlags::IN | EventFlags::ET).map_err(refused)?;
        if doorbell.needs_clearing() {
            self.needs_clearing.push(doorbell.clone());
        }
        Ok(())
    }

    pub(crate) fn unwatch_doorbell(&mut self, doorbell: &Doorbell) {
        // The set refuses only a descriptor that it does not have.
        let _ = epoll::delete(&self.set, doorbell);
        self.needs_clearing.retain(|other| other.as_fd().as_raw_fd() != doorbell.as_fd().as_raw_fd());
    }

    /// Forgets doorbells after their descriptors were closed, because an epoll set drops a closed descriptor.
    pub(crate) fn forget_doorbells(&mut self) {
        self.needs_clearing.clear();
    }

    pub(crate) fn watch_control(&self, control: &Control) {
        // Where it cannot be watched, polling the domain finds its notifications all the same.
        let _ = epoll::add(&self.set, control.as_fd(), EventData::new_u64(NOTIFICATIONS), EventFlags::IN);
    }

    /// Wakes the sleeper once after `after`.
    pub(crate) fn set_alarm(&mut self, after: Duration) {
        if !std::mem::replace(&mut self.armed, true) {
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let value = Timespec::try_from(after).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
            let _ = timerfd_settime(
                &self.timer,
                TimerfdTimerFlags::empty(),
                &Itimerspec { it_interval: zero, it_value: value },
            );
        }
    }

    /// True once after the alarm.
    pub(crate) fn take_alarm(&mut self) -> bool {
        let rang = self.armed && matches!(rustix::io::read(&self.timer, &mut [0; 8]), Ok(8));
        if rang {
            self.armed = false;
        }
        rang
    }

    /// Sleeps until something happens, or `limit` is over. Zero only takes what has happened. True if the daemon has notifications.
    pub(crate) fn sleep(&self, limit: Option<Duration>) -> bool {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 8];
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let notification = match epoll::wait(&self.set, &mut events[..], limit.as_ref()) {
            Ok((happened, _)) => happened.iter().any(|event| event.data.u64() == NOTIFICATIONS),
            Err(_) => false,
        };
        self.clear();
        notification
    }

    /// Has doorbells that fill up ring again.
    pub(crate) fn clear(&self) {
        self.needs_clearing.iter().for_each(Doorbell::clear);
    }
}

impl AsFd for Sleeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
