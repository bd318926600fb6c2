//! A lock in private memory that `fork` can hold.
//!
//! The standard library's lock cannot be taken in one function and released in another, in a child too. The handlers of `fork` do that, so
//! that a child never inherits a lock that a thread of its parent held. A thread with a lock holds signals.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

use crate::inside;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread may sleep for it.
const CONTENDED: u32 = 2;

/// Times that a thread looks at a held lock before it sleeps. Locks are held for less than a microsecond.
const LOOKS: u32 = 100;

/// A value behind a lock.
#[derive(Debug, Default)]
pub(crate) struct PrivateLock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only under the lock.
unsafe impl<T: Send> Sync for PrivateLock<T> {}

impl<T> PrivateLock<T> {
    /// Creates a lock that is free.
    pub(crate) const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Calls `f` with the value. `f` does not take this lock.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.lock();
        self.with_held(f)
    }

    /// As [`Self::with`], or None if another thread holds the lock.
    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let state = inside::state();
        state.hold();
        let is_free = self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !is_free {
            state.release();
        }
        is_free.then(|| self.with_held(f))
    }

    #[inline]
    fn with_held<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let unlock = Unlock(&self.word);
        // SAFETY: this thread holds the lock until `unlock` is dropped.
        let result = f(unsafe { &mut *self.value.get() });
        drop(unlock);
        result
    }

    /// Takes the lock.
    #[inline]
    pub(crate) fn lock(&self) {
        inside::state().hold();
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slowly();
        }
    }

    #[cold]
    fn lock_slowly(&self) {
        for _ in 0..LOOKS {
            if self.word.load(Ordering::Relaxed) == FREE
                && self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            // An error means that the word has changed or that a signal came, so the loop looks again.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, CONTENDED, None);
        }
    }

    /// Releases the lock, which this thread holds. After `fork`, the child's only thread releases its copy.
    pub(crate) fn unlock(&self) {
        drop(Unlock(&self.word));
    }
}

struct Unlock<'a>(&'a AtomicU32);

impl Drop for Unlock<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.swap(FREE, Ordering::Release) == CONTENDED {
            let _ = futex::wake(self.0, futex::Flags::PRIVATE, 1);
        }
        inside::state().release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns() {
        let lock = PrivateLock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| lock.with(|count| *count += 1)));
            }
        });
        assert_eq!(lock.with(|count| *count), 40_000);
    }

    #[test]
    fn held_lock_is_not_taken_again() {
        let lock = PrivateLock::new(1);
        lock.lock();
        assert_eq!(lock.try_with(|_| ()), None);
        assert!(inside::state().is_held());
        lock.unlock();
        assert!(!inside::state().is_held());
        assert_eq!(lock.try_with(|value| *value), Some(1));
    }
}
