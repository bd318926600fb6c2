//! A lock that costs the one thread that uses it no atomic operation worth the name.
//!
//! Most programs use what a lock guards from one thread, and an uncontended mutex is dear beside what it guards here: its two atomic
//! operations wait until everything this processor has written is visible to all, the message just sent first of all. So the
//! first thread that locks becomes the *owner*, and says with plain stores when it is inside. The first other thread takes that
//! away for good: it says so, has all threads of the process fence (`membarrier`), waits until the owner is outside, and from then
//! on everybody uses the mutex.
//!
//! ```text
//!   owner: busy = 1, (compiler's fence), still the owner? ── yes: inside ── busy = 0
//!   other: owner = SHARED, heavy fence, wait for busy = 0, inside by the mutex
//! ```

use crate::asymmetric_fence::{self, FenceScope};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// In place of an owner: no thread has locked yet.
const UNOWNED: usize = 0;
/// In place of an owner: the mutex decides.
const SHARED: usize = usize::MAX;

/// The lock.
#[derive(Debug)]
pub struct BiasedLock<T> {
    owner: AtomicUsize,
    /// The owner is inside.
    busy: AtomicBool,
    poisoned: AtomicBool,
    mutex: Mutex<()>,
    /// The mutex, held by whoever is inside; None where that is the owner. It is kept here and not in the guard so that a guard is two
    /// words, which travel in registers. Only a guard of ours lets go of it: it borrows from this lock, and a guard that was
    /// forgotten leaves it held for ever.
    mutex_guard: UnsafeCell<ManuallyDrop<Option<MutexGuard<'static, ()>>>>,
    value: UnsafeCell<T>,
}

// SAFETY: the value, and the mutex's guard, are reached only by whoever holds the lock, one thread at a time; a guard is dropped by the
// thread that made it, because guards of ours do not move between threads either.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

// SAFETY: who moves it borrows it from nobody, so no guard is there, or one was forgotten. What that left of the mutex's guard nobody
// touches again: the mutex stays locked, and a `ManuallyDrop` is not dropped.
unsafe impl<T: Send> Send for BiasedLock<T> {}

/// By what a lock is held. As wide as a register: a guard with holes in it is copied piece by piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum HeldBy {
    Ownership,
    Mutex,
}

/// The lock, held.
#[derive(Debug)]
pub struct BiasedLockGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    held_by: HeldBy,
    _not_send: PhantomData<*mut ()>,
}

/// A number that no other living thread has: where its control block lies, which is one instruction away, also for code that is loaded
/// later than the program.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#[inline(always)]
fn this_thread() -> usize {
    let block: usize;
    // SAFETY: on this platform `fs` is the thread's own, and the first word behind it is its address (the ABI's thread-local storage
    // rests on that). Nothing is written.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) block, options(pure, readonly, nostack, preserves_flags)) };
    block
}

/// A number that no other living thread has.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
#[inline]
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

impl<T> BiasedLock<T> {
    /// A lock that nobody owns yet.
    pub const fn new(value: T) -> Self {
        Self {
            owner: AtomicUsize::new(UNOWNED),
            busy: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            mutex: Mutex::new(()),
            mutex_guard: UnsafeCell::new(ManuallyDrop::new(None)),
            value: UnsafeCell::new(value),
        }
    }

    /// True if a thread panicked inside.
    #[inline(always)]
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Takes the lock if this thread is the owner, or if the mutex decides and is free.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<BiasedLockGuard<'_, T>> {
        let me = this_thread();
        if self.owner.load(Ordering::Relaxed) != me {
            return self.try_lock_shared();
        }
        self.busy.store(true, Ordering::Relaxed);
        // A, with B in `revoke_bias` (argued): the heavy fence of whoever takes the ownership away is our fence.
        compiler_fence(Ordering::SeqCst);
        if self.owner.load(Ordering::Relaxed) == me {
            return Some(BiasedLockGuard { lock: self, held_by: HeldBy::Ownership, _not_send: PhantomData });
        }
        // C, with D in `revoke_bias` (argued): as when a guard is dropped.
        self.busy.store(false, Ordering::Release);
        None
    }

    #[inline(never)]
    fn try_lock_shared(&self) -> Option<BiasedLockGuard<'_, T>> {
        if self.owner.load(Ordering::Relaxed) != SHARED {
            return None;
        }
        self.mutex.try_lock().ok().map(|mutex| self.guard(mutex))
    }

    fn guard<'a>(&'a self, mutex: MutexGuard<'a, ()>) -> BiasedLockGuard<'a, T> {
        // SAFETY: only its lifetime changes. It is dropped by the guard made here, which borrows this lock, or never.
        let mutex = unsafe { std::mem::transmute::<MutexGuard<'a, ()>, MutexGuard<'static, ()>>(mutex) };
        // SAFETY: we hold the mutex and nobody is the owner, so nobody else looks at this.
        unsafe { *self.mutex_guard.get() = ManuallyDrop::new(Some(mutex)) };
        BiasedLockGuard { lock: self, held_by: HeldBy::Mutex, _not_send: PhantomData }
    }

    /// Takes the lock, waiting for it.
    #[cold]
    pub fn lock(&self) -> BiasedLockGuard<'_, T> {
        let mutex = self.mutex.lock().unwrap_or_else(PoisonError::into_inner); // The poison is ours to tell.
        let me = this_thread();
        let first = if asymmetric_fence::is_registered(FenceScope::Process) { me } else { SHARED };
        match self.owner.load(Ordering::Relaxed) {
            SHARED => self.guard(mutex),
            UNOWNED if first == SHARED => {
                self.owner.store(SHARED, Ordering::Relaxed);
                self.guard(mutex)
            }
            // Still under the mutex: whoever comes next finds an owner.
            owner if owner == UNOWNED || owner == me => {
                self.busy.store(true, Ordering::Relaxed);
                self.owner.store(me, Ordering::Relaxed);
                BiasedLockGuard { lock: self, held_by: HeldBy::Ownership, _not_send: PhantomData }
            }
            _ => {
                self.revoke_bias();
                self.guard(mutex)
            }
        }
    }

    /// Called under the mutex.
    fn revoke_bias(&self) {
        self.owner.store(SHARED, Ordering::Relaxed);
        // B, with A in `try_lock` (argued): either the owner sees that it is none, or we see that it is inside.
        fence(Ordering::SeqCst);
        if !asymmetric_fence::heavy_fence(FenceScope::Process) {
            // Allowed before and refused now. The owner has long seen the store by the time that we wake.
            std::thread::sleep(Duration::from_millis(1));
        }
        // D, with C in `BiasedLockGuard::drop` (argued): we see all that the owner did inside.
        while self.busy.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

impl<T> BiasedLockGuard<'_, T> {
    fn take_mutex(&self) -> Option<MutexGuard<'_, ()>> {
        // SAFETY: we hold the lock, so nobody else looks at this.
        unsafe { (*self.lock.mutex_guard.get()).take() }
    }

    #[cold]
    fn release_mutex(&self) {
        drop(self.take_mutex());
    }
}

impl<T> Drop for BiasedLockGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.lock.poisoned.store(true, Ordering::Relaxed);
        }
        if self.held_by == HeldBy::Mutex {
            self.release_mutex();
        } else {
            // C, with D in `revoke_bias` (argued): all that we did inside is seen by who enters next.
            self.lock.busy.store(false, Ordering::Release);
        }
    }
}

impl<T> Deref for BiasedLockGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock, as the owner or by the mutex, and nobody else can until the guard is gone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for BiasedLockGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_never_touches_the_mutex() {
        let lock = BiasedLock::new(0);
        assert!(lock.try_lock().is_none(), "nobody is the owner yet");
        *lock.lock() += 1;
        for _ in 0..10 {
            let mut guard = lock.try_lock().expect("ours");
            assert_eq!(guard.held_by == HeldBy::Ownership, asymmetric_fence::is_registered(FenceScope::Process));
            *guard += 1;
        }
        assert_eq!(*lock.try_lock().unwrap(), 11);
    }

    #[test]
    fn threads_that_join_later_count_without_losing_any() {
        const EACH: u64 = 20_000;
        let lock = BiasedLock::new(0_u64);
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
    fn a_lock_whose_guard_was_forgotten_can_be_moved_and_dropped() {
        let lock = BiasedLock::new(0);
        drop(lock.lock());
        std::thread::scope(|scope| scope.spawn(|| std::mem::forget(lock.lock())).join()).expect("no panic");
        let moved = Box::new(lock);
        assert!(moved.try_lock().is_none());
    }

    #[test]
    fn a_panic_inside_poisons_it() {
        let lock = BiasedLock::new(0);
        let inside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("inside");
        }));
        assert!(inside.is_err());
        assert!(lock.is_poisoned());
        drop(lock.lock()); // And nobody hangs.
    }
}
