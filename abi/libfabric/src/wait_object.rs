//! The wait object of a domain.

use crate::errno::Errno;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

const WAKE_EVENT: u64 = 1;

/// The descriptor that threads sleep on: an epoll set with the descriptors of all endpoints and an eventfd that other
/// threads write to.
#[derive(Debug)]
pub(crate) struct WaitObject {
    set: OwnedFd,
    wake_fd: OwnedFd,
}

impl WaitObject {
    pub(crate) fn new() -> Result<Self, Errno> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let wake_fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&set, &wake_fd, EventData::new_u64(WAKE_EVENT), EventFlags::IN)?;
        Ok(Self { set, wake_fd })
    }

    /// Adds the descriptor of an endpoint, until that is closed.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        Ok(epoll::add(&self.set, fd, EventData::new_u64(0), EventFlags::IN)?)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Wakes the sleeping threads.
    pub(crate) fn wake(&self) {
        // The write fails if the counter is full. The eventfd is readable then, as intended.
        let _ = rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes());
    }

    /// Resets the eventfd after a wake-up.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.wake_fd, &mut [0; 8]);
    }

    /// Sleeps until an event occurs or `limit` is over.
    pub(crate) fn sleep(&self, limit: Duration) {
        let mut events = [const { MaybeUninit::uninit() }; 4];
        let limit = Timespec::try_from(limit).ok();
        if let Ok((happened, _)) = epoll::wait(&self.set, &mut events[..], limit.as_ref())
            && happened.iter().any(|event| event.data.u64() == WAKE_EVENT)
        {
            self.clear();
        }
    }
}

/// Returns the deadline of a wait; `None` for a negative timeout, which means forever.
pub(crate) fn deadline(timeout_ms: i32) -> Option<Instant> {
    u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms))
}

/// Returns the time left until `deadline`; an hour if there is none.
pub(crate) fn time_left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::from_secs(3600), |deadline| deadline.saturating_duration_since(Instant::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_before_sleep_ends_the_sleep() {
        let wait_object = WaitObject::new().expect("descriptors");
        wait_object.wake();
        wait_object.sleep(Duration::from_secs(3600));
    }
}
