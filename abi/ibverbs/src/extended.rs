//! The extended interface: requests that a program builds call by call ([`post`]), and completions that it reads one value at a time
//! ([`poll`]).
//!
//! Both form a critical section of a queue pair or completion queue between two calls: `ibv_wr_start()` enters it, and
//! `ibv_wr_complete()` or `ibv_wr_abort()` leaves it; `ibv_start_poll()` and `ibv_end_poll()` likewise. The lock of the device is held for
//! single calls only, so a program may do anything else within its critical section.

pub(crate) mod poll;
pub(crate) mod post;

use std::cell::UnsafeCell;

/// A value that belongs to one thread of the program between two calls.
pub(crate) struct CriticalSection<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

impl<T> CriticalSection<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }

    /// Enters. Waits while another thread is inside.
    ///
    /// # Safety
    ///
    /// This thread is not inside. The object does not move any more.
    unsafe fn enter(&self) {
        // SAFETY: an initialised mutex, which stays where it is.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
    }

    /// Leaves.
    ///
    /// # Safety
    ///
    /// This thread is inside.
    unsafe fn leave(&self) {
        // SAFETY: this thread holds the mutex, by the caller's promise.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }

    /// The value.
    ///
    /// # Safety
    ///
    /// This thread is inside, and has no other reference to the value.
    #[expect(clippy::mut_from_ref, reason = "the critical section excludes other references")]
    unsafe fn value(&self) -> &mut T {
        // SAFETY: by the caller's promise.
        unsafe { &mut *self.value.get() }
    }
}

#[cfg(test)]
mod tests;
