//! The count of changes that threads sleep for.
//!
//! A thread that wakes from a condition variable waits for the mutex inside of it, where the endpoint's slot does not
//! count the thread as waiting. So this is not a condition variable: sleepers take the lock again as every other thread
//! does.

use rustix::event::Timespec;
use rustix::thread::futex::{self, Flags};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A counter of changes.
#[derive(Debug)]
pub(crate) struct ChangeCount(AtomicU32);

impl ChangeCount {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Returns the number of changes so far. Callers read it before they release the lock, so that they miss no change.
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
        // The result does not matter: after a change, a signal or the time limit, the caller checks its condition
        // again.
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
