//! A lock that costs the one thread that uses it no atomic operation worth the name.
//!
//! Most programs use an endpoint from one thread, and an uncontended mutex is dear beside what it guards here: its two atomic
//! operations wait until everything this processor has written is visible to all, the message just sent first of all. So the
//! first thread that locks becomes the *owner*, and says with plain stores when it is inside. The first other thread takes that
//! away for good: it says so, has all threads of the process fence (`membarrier`), waits until the owner is outside, and from then
//! on everybody uses the mutex.
//!
//! ```text
//!   owner: busy = 1, (compiler's fence), still the owner? ── yes: inside ── busy = 0
//!   other: owner = SHARED, barrier for all, wait for busy = 0, inside by the mutex
//! ```

use isthmus_shm::barrier::{self, Reach};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// In place of an owner: nobody has locked yet.
const NOBODY: usize = 0;
/// In place of an owner: the mutex decides.
const SHARED: usize = usize::MAX;

/// The lock.
#[derive(Debug)]
pub(crate) struct Biased<T> {
    owner: AtomicUsize,
    /// The owner is inside.
    busy: AtomicBool,
    poisoned: AtomicBool,
    mutex: Mutex<()>,
    /// The mutex, held by whoever is inside; None where that is the owner. It is kept here and not in the guard so that a guard is two
    /// words, which travel in registers.
    held: UnsafeCell<Option<MutexGuard<'static, ()>>>,
    value: UnsafeCell<T>,
}

// SAFETY: the value, and the mutex's guard, are reached only by whoever holds the lock, one thread at a time; a guard is dropped by the
// thread that made it, because guards of ours do not move between threads either.
unsafe impl<T: Send> Sync for Biased<T> {}

/// By what a lock is held. As wide as a register: a guard with holes in it is copied piece by piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum By {
    Ownership,
    Mutex,
}

/// The lock, held.
#[derive(Debug)]
pub(crate) struct Guard<T: 'static> {
    lock: &'static Biased<T>,
    by: By,
    _not_send: PhantomData<*mut ()>,
}

/// A number that no other living thread has.
#[inline]
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

impl<T> Biased<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            owner: AtomicUsize::new(NOBODY),
            busy: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            mutex: Mutex::new(()),
            held: UnsafeCell::new(None),
            value: UnsafeCell::new(value),
        }
    }

    /// True if a thread panicked inside.
    #[inline(always)]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Takes the lock if this thread is the owner, or if the mutex decides and is free.
    #[inline(always)]
    pub(crate) fn try_lock(&'static self) -> Option<Guard<T>> {
        let me = this_thread();
        if self.owner.load(Ordering::Relaxed) != me {
            return self.try_lock_shared();
        }
        self.busy.store(true, Ordering::Relaxed);
        // The barrier of whoever takes the ownership away is our fence.
        compiler_fence(Ordering::SeqCst);
        if self.owner.load(Ordering::Relaxed) == me {
            return Some(Guard { lock: self, by: By::Ownership, _not_send: PhantomData });
        }
        self.busy.store(false, Ordering::Release);
        None
    }

    #[inline(never)]
    fn try_lock_shared(&'static self) -> Option<Guard<T>> {
        if self.owner.load(Ordering::Relaxed) != SHARED {
            return None;
        }
        self.mutex.try_lock().ok().map(|mutex| self.inside(mutex))
    }

    fn inside(&'static self, mutex: MutexGuard<'static, ()>) -> Guard<T> {
        // SAFETY: we hold the mutex and nobody is the owner, so nobody else looks at this.
        unsafe { *self.held.get() = Some(mutex) };
        Guard { lock: self, by: By::Mutex, _not_send: PhantomData }
    }

    /// Takes the lock, waiting for it.
    #[cold]
    pub(crate) fn lock(&'static self) -> Guard<T> {
        let mutex = self.mutex.lock().unwrap_or_else(PoisonError::into_inner); // The poison is ours to tell.
        let me = this_thread();
        let first = if barrier::is_registered(Reach::Process) { me } else { SHARED };
        match self.owner.load(Ordering::Relaxed) {
            SHARED => self.inside(mutex),
            NOBODY if first == SHARED => {
                self.owner.store(SHARED, Ordering::Relaxed);
                self.inside(mutex)
            }
            // Still under the mutex: whoever comes next finds an owner.
            owner if owner == NOBODY || owner == me => {
                self.busy.store(true, Ordering::Relaxed);
                self.owner.store(me, Ordering::Relaxed);
                Guard { lock: self, by: By::Ownership, _not_send: PhantomData }
            }
            _ => {
                self.take_ownership_away();
                self.inside(mutex)
            }
        }
    }

    /// Called under the mutex.
    fn take_ownership_away(&self) {
        self.owner.store(SHARED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !barrier::barrier(Reach::Process) {
            // Allowed before and refused now. The owner has long seen the store by the time that we wake.
            std::thread::sleep(Duration::from_millis(1));
        }
        while self.busy.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

impl<T> Guard<T> {
    fn take_mutex(&self) -> Option<MutexGuard<'static, ()>> {
        // SAFETY: we hold the lock, so nobody else looks at this.
        unsafe { (*self.lock.held.get()).take() }
    }

    #[cold]
    fn leave_mutex(&self) {
        drop(self.take_mutex());
    }
}

impl<T> Drop for Guard<T> {
    #[inline(always)]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.lock.poisoned.store(true, Ordering::Relaxed);
        }
        if self.by == By::Mutex {
            self.leave_mutex();
        } else {
            self.lock.busy.store(false, Ordering::Release);
        }
    }
}

impl<T> Deref for Guard<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock, as the owner or by the mutex, and nobody else can until the guard is gone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leak<T>(value: T) -> &'static Biased<T> {
        Box::leak(Box::new(Biased::new(value)))
    }

    #[test]
    fn one_thread_never_touches_the_mutex() {
        let lock = leak(0);
        assert!(lock.try_lock().is_none(), "nobody is the owner yet");
        *lock.lock() += 1;
        for _ in 0..10 {
            let mut guard = lock.try_lock().expect("ours");
            assert_eq!(guard.by == By::Ownership, barrier::is_registered(Reach::Process));
            *guard += 1;
        }
        assert_eq!(*lock.try_lock().unwrap(), 11);
    }

    #[test]
    fn threads_that_join_later_count_without_losing_any() {
        const EACH: u64 = 20_000;
        let lock = leak(0_u64);
        drop(lock.lock());
        let count = |times: u64| {
            for _ in 0..times {
                let mut guard = lock.try_lock().unwrap_or_else(|| lock.lock());
                *guard = std::hint::black_box(*guard) + 1;
            }
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (0..3).map(|_| scope.spawn(|| count(EACH))).collect();
            count(EACH);
            others.into_iter().for_each(|other| other.join().unwrap());
        });
        assert_eq!(*lock.lock(), 4 * EACH);
        assert_eq!(lock.owner.load(Ordering::Relaxed), SHARED);
    }

    #[test]
    fn a_panic_inside_poisons_it() {
        let lock = leak(0);
        let inside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("inside");
        }));
        assert!(inside.is_err());
        assert!(lock.is_poisoned());
        drop(lock.lock()); // And nobody hangs.
    }
}
