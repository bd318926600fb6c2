//! A lock in memory that a process shares with its children.
//!
//! The lock is robust: a process that dies while it holds the lock stops no other one. A thread with a lock holds signals.

use core::cell::UnsafeCell;

use crate::inside::Held;

/// A value behind a robust, process-shared lock of the C library.
#[repr(C)]
pub(crate) struct SharedLock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only under the lock.
unsafe impl<T: Send> Sync for SharedLock<T> {}

impl<T: Copy> SharedLock<T> {
    /// Prepares a lock in place.
    ///
    /// # Safety
    ///
    /// `at` is aligned, writable memory that nothing else uses yet. It stays mapped, at this address, as long as the lock is used.
    pub(crate) unsafe fn init(at: *mut Self, value: T) {
        // SAFETY: the caller gives us the memory. The attributes live on the stack during the calls, which cannot fail for them.
        unsafe {
            let mut attributes = core::mem::zeroed();
            libc::pthread_mutexattr_init(&raw mut attributes);
            libc::pthread_mutexattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init((*at).mutex.get(), &raw const attributes);
            libc::pthread_mutexattr_destroy(&raw mut attributes);
            (*at).value.get().write(value);
        }
    }

    /// Calls `f` with the value. `f` neither blocks nor takes this lock.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let held = Held::begin();
        // SAFETY: `init` has prepared the mutex, at this address.
        unsafe {
            if libc::pthread_mutex_lock(self.mutex.get()) == libc::EOWNERDEAD {
                // The engine's values have no state between two stores that another call could not read.
                libc::pthread_mutex_consistent(self.mutex.get());
            }
        }
        let unlock = Unlock(&self.mutex);
        // SAFETY: the lock is held until `unlock` is dropped.
        let result = f(unsafe { &mut *self.value.get() });
        drop(unlock);
        drop(held);
        result
    }
}

struct Unlock<'a>(&'a UnsafeCell<libc::pthread_mutex_t>);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the lock.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}
