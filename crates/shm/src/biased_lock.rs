//! A lock that costs almost no atomic operation in the one thread that mostly uses it.
//!
//! Most programs use the guarded value from one thread, and an uncontended mutex is expensive beside what it guards here: its two
//! atomic operations wait until all earlier stores of this CPU are visible, above all those of the message just sent. The
//! first thread that locks therefore becomes the *owner*, and marks with plain stores when it is inside. The first other thread
//! revokes this permanently: it marks the lock as shared, has all threads of the process fence (`membarrier`), and waits until the
//! owner is outside. From then on every thread uses the mutex. A thread that needs the value rarely *visits* it instead: the owner is the
//! owner again when the visit ends.
//!
//! ```text
//!   owner: busy = 1, (compiler's fence), still the owner? ── yes: inside ── busy = 0
//!   other: owner = SHARED, heavy fence, wait for busy = 0, inside by the mutex
//!   visit: the same, and owner = the thread that it was before the mutex is released
//! ```

use crate::asymmetric_fence::{self, FenceScope};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Value of `owner` before any thread has locked.
const UNOWNED: usize = 0;
/// Value of `owner` once the mutex decides.
const SHARED: usize = usize::MAX;

/// The lock.
#[derive(Debug)]
pub struct BiasedLock<T> {
    owner: AtomicUsize,
    /// The owner is inside.
    busy: AtomicBool,
    poisoned: AtomicBool,
    /// The owner before a visit. Changed under the mutex.
    displaced: AtomicUsize,
    mutex: Mutex<()>,
    /// The mutex guard of the thread that is inside; None if that thread is the owner. It is stored here and not in the
    /// `BiasedLockGuard`, so that this guard has two words, which are passed in registers. Only a `BiasedLockGuard` releases it, and
    /// that guard borrows from this lock. A guard that was forgotten leaves the mutex locked for ever.
    mutex_guard: UnsafeCell<ManuallyDrop<Option<MutexGuard<'static, ()>>>>,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock reaches the value and the mutex's guard, and there is one holder at a time. A mutex guard is
// dropped by the thread that made it, because a `BiasedLockGuard` does not move between threads either.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

// SAFETY: moving the lock requires that nothing borrows it, so there is no guard, or one was forgotten. The mutex guard that a
// forgotten one left is not touched again: the mutex stays locked, and a `ManuallyDrop` is not dropped.
unsafe impl<T: Send> Send for BiasedLock<T> {}

/// The way in which a lock is held. As wide as a register, because a guard with padding is copied field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum HeldBy {
    Ownership,
    Mutex,
    Visit,
}

/// The guard of a held lock.
#[derive(Debug)]
pub struct BiasedLockGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    held_by: HeldBy,
    _not_send: PhantomData<*mut ()>,
}

/// Returns a number that no other living thread has: the address of the thread's control block. It takes one instruction to read, also
/// in code that is loaded after the program started.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#[inline(always)]
fn this_thread() -> usize {
    let block: usize;
    // SAFETY: on this platform `fs` is the thread's own, and the first word behind it is its address (the ABI's thread-local storage
    // rests on that). Nothing is written.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) block, options(pure, readonly, nostack, preserves_flags)) };
    block
}

/// Returns a number that no other living thread has.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
#[inline]
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

impl<T> BiasedLock<T> {
    /// Creates a lock without an owner.
    pub const fn new(value: T) -> Self {
        Self {
            owner: AtomicUsize::new(UNOWNED),
            busy: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            displaced: AtomicUsize::new(UNOWNED),
            mutex: Mutex::new(()),
            mutex_guard: UnsafeCell::new(ManuallyDrop::new(None)),
            value: UnsafeCell::new(value),
        }
    }

    /// Returns true if a thread panicked while it held the lock.
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
        // A, with B in `mark_shared` (argued): the heavy fence of the thread that revokes the ownership is our fence.
        compiler_fence(Ordering::SeqCst);
        // E, with F in `BiasedLockGuard::drop` (argued): an owner that is back after a visit sees all that happened during the visit.
        if self.owner.load(Ordering::Acquire) == me {
            return Some(BiasedLockGuard { lock: self, held_by: HeldBy::Ownership, _not_send: PhantomData });
        }
        // C, with D in `revoke_bias` and `try_visit` (argued): as when a guard is dropped.
        self.busy.store(false, Ordering::Release);
        None
    }

    #[inline(never)]
    fn try_lock_shared(&self) -> Option<BiasedLockGuard<'_, T>> {
        if self.owner.load(Ordering::Relaxed) != SHARED {
            return None;
        }
        self.mutex.try_lock().ok().map(|mutex| self.guard(mutex, HeldBy::Mutex))
    }

    /// Takes the lock, if it is free, for a thread that needs it rarely. The owner remains the owner afterwards. Costs a system call if
    /// there is an owner.
    #[cold]
    pub fn try_visit(&self) -> Option<BiasedLockGuard<'_, T>> {
        let mutex = match self.mutex.try_lock() {
            Ok(mutex) => mutex,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let owner = self.owner.load(Ordering::Relaxed);
        if owner == UNOWNED || owner == SHARED {
            return Some(self.guard(mutex, HeldBy::Mutex)); // Others wait for the mutex.
        }
        self.mark_shared();
        // D, with C in `BiasedLockGuard::drop` (argued): we see all that the owner did inside.
        if self.busy.load(Ordering::Acquire) {
            // F, with E in `try_lock` (argued).
            self.owner.store(owner, Ordering::Release);
            return None;
        }
        self.displaced.store(owner, Ordering::Relaxed);
        Some(self.guard(mutex, HeldBy::Visit))
    }

    fn guard<'a>(&'a self, mutex: MutexGuard<'a, ()>, held_by: HeldBy) -> BiasedLockGuard<'a, T> {
        // SAFETY: only the lifetime changes. The mutex guard is dropped by the guard made here, which borrows this lock, or never.
        let mutex = unsafe { std::mem::transmute::<MutexGuard<'a, ()>, MutexGuard<'static, ()>>(mutex) };
        // SAFETY: we hold the mutex and there is no owner, so no other thread accesses this cell.
        unsafe { *self.mutex_guard.get() = ManuallyDrop::new(Some(mutex)) };
        BiasedLockGuard { lock: self, held_by, _not_send: PhantomData }
    }

    /// Takes the lock, and waits for it if necessary.
    #[cold]
    pub fn lock(&self) -> BiasedLockGuard<'_, T> {
        let mutex = self.mutex.lock().unwrap_or_else(PoisonError::into_inner); // `BiasedLock` reports poison itself.
        let me = this_thread();
        let first = if asymmetric_fence::is_registered(FenceScope::Process) { me } else { SHARED };
        match self.owner.load(Ordering::Relaxed) {
            SHARED => self.guard(mutex, HeldBy::Mutex),
            UNOWNED if first == SHARED => {
                self.owner.store(SHARED, Ordering::Relaxed);
                self.guard(mutex, HeldBy::Mutex)
            }
            // Still under the mutex, so the next thread that locks finds an owner.
            owner if owner == UNOWNED || owner == me => {
                self.busy.store(true, Ordering::Relaxed);
                self.owner.store(me, Ordering::Relaxed);
                BiasedLockGuard { lock: self, held_by: HeldBy::Ownership, _not_send: PhantomData }
            }
            _ => {
                self.revoke_bias();
                self.guard(mutex, HeldBy::Mutex)
            }
        }
    }

    /// Makes the lock shared and waits until the owner is outside. Called under the mutex.
    fn revoke_bias(&self) {
        self.mark_shared();
        // D, with C in `BiasedLockGuard::drop` (argued): we see all that the owner did inside.
        while self.busy.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Makes the lock shared, visibly for the owner. Called under the mutex.
    fn mark_shared(&self) {
        self.owner.store(SHARED, Ordering::Relaxed);
        // B, with A in `try_lock` (argued): either the owner sees that it is none, or we see that it is inside.
        fence(Ordering::SeqCst);
        if !asymmetric_fence::heavy_fence(FenceScope::Process) {
            // The kernel allowed it before and refuses it now. The owner has seen the store long before we wake.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl<T> BiasedLockGuard<'_, T> {
    fn take_mutex(&self) -> Option<MutexGuard<'_, ()>> {
        // SAFETY: we hold the lock, so no other thread accesses this cell.
        unsafe { (*self.lock.mutex_guard.get()).take() }
    }

    #[cold]
    fn release_mutex(&self) {
        let mutex = self.take_mutex();
        if self.held_by == HeldBy::Visit {
            // F, with E in `try_lock` (argued). The mutex guard was taken out before, because the owner may be inside from here on.
            self.lock.owner.store(self.lock.displaced.load(Ordering::Relaxed), Ordering::Release);
        }
        drop(mutex);
    }
}

impl<T> Drop for BiasedLockGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.lock.poisoned.store(true, Ordering::Relaxed);
        }
        if self.held_by == HeldBy::Ownership {
            // C, with D in `revoke_bias` and `try_visit` (argued): the next thread that enters sees all that we did inside.
            self.lock.busy.store(false, Ordering::Release);
        } else {
            self.release_mutex();
        }
    }
}

impl<T> Deref for BiasedLockGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock, as the owner or by the mutex, and no other thread can hold it until the guard is gone.
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
        assert!(lock.try_lock().is_none(), "the lock has no owner yet");
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
    fn visits_count_without_losing_any_and_leave_the_owner() {
        const EACH: u64 = 20_000;
        let lock = BiasedLock::new(0_u64);
        drop(lock.try_visit().expect("no thread has locked"));
        drop(lock.lock());
        let owner = lock.owner.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            let others: [_; 2] = std::array::from_fn(|_| {
                scope.spawn(|| {
                    for _ in 0..EACH / 100 {
                        let mut guard = loop {
                            match lock.try_visit() {
                                Some(guard) => break guard,
                                None => std::thread::yield_now(),
                            }
                        };
                        *guard = std::hint::black_box(*guard) + 1;
                    }
                })
            });
            for _ in 0..EACH {
                let mut guard = lock.try_lock().unwrap_or_else(|| lock.lock());
                *guard = std::hint::black_box(*guard) + 1;
            }
            others.into_iter().for_each(|other| other.join().unwrap());
        });
        assert_eq!(*lock.lock(), EACH + 2 * (EACH / 100));
        assert_eq!(lock.owner.load(Ordering::Relaxed), owner);
        std::thread::scope(|scope| scope.spawn(|| drop(lock.lock())).join()).expect("no panic");
        drop(lock.try_visit().expect("free"));
        let inside = lock.lock();
        std::thread::scope(|scope| scope.spawn(|| assert!(lock.try_visit().is_none())).join()).expect("no panic");
        drop(inside);
        assert_eq!(lock.owner.load(Ordering::Relaxed), SHARED, "another thread that locks ends the ownership");
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
        drop(lock.lock()); // This lock call must not hang.
    }
}
