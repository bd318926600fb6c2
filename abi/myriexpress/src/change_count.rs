//! Changes that threads sleep for.
//!
//! A condition variable would do, too. But a thread that wakes from it waits for the mutex inside the condition variable, where the
//! slot of the endpoint does not count it as waiting. Here sleepers take the lock again as every other thread does.

use rustix::event::Timespec;
use rustix::thread::futex::{self, Flags};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Counts changes.
#[derive(Debug)]
pub(crate) struct ChangeCount(AtomicU32);

impl ChangeCount {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Changes so far. To be asked for before the lock is let go, so that none is missed.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts another change, and wakes all sleepers.
    pub(crate) fn notify(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        // Waking no sleeper counts as success.
        let _ = futex::wake(&self.0, Flags::PRIVATE, u32::MAX >> 1);
    }

    /// Sleeps while the count is `count`, for at most `limit`. May return early without a change.
    pub(crate) fn wait(&self, count: u32, limit: Option<Duration>) {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // Refused where there has been another one, ended early by a signal, over by the limit: the caller looks for itself.
        let _ = futex::wait(&self.0, Flags::PRIVATE, count, limit.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_before_the_wait_ends_the_wait() {
        let changes = ChangeCount::new();
        let before = changes.count();
        changes.notify();
        changes.wait(before, None);
        assert_ne!(changes.count(), before);
    }

    #[test]
    fn a_change_wakes_all() {
        let changes = ChangeCount::new();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while changes.count() == 0 {
                        changes.wait(0, None);
                    }
                });
            }
            changes.notify();
        });
    }
}
