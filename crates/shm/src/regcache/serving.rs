//! Serving threads: threads of a library of ours that act in the program's memory, and do not keep it from being moved.
//!
//! ```text
//!   serving thread    asleep │ enter │ writes the program's memory │ leave │ asleep
//!   a move, a fork           │       │      waits for the gate     │ moves pages, or copies the process │
//! ```
//!
//! Registered memory that cannot move, such as pages that it shares with something else, is read and written by a thread of its
//! owner's process. Without more, that thread would end all later moves, because memory moves only if no other thread may write
//! it. So all serving threads share one gate. Such a thread writes program memory inside of the gate only, and a move holds
//! the gate alone. A serving thread that is outside is as good as no thread, and is not counted.
//!
//! Outside of the gate a serving thread may be at any instruction of its loop, asleep or just woken. What is written then lies in
//! three places, and memory with any of them is not moved:
//!
//! * its own stack: also the buffer that the kernel fills when it ends the wait (`epoll_wait`, `poll`, `read`);
//! * what libc keeps at the end of that stack: `errno` and other thread-local variables, and `rseq`, which the kernel
//!   writes whenever it schedules the thread;
//! * the gate itself.
//!
//! What the thread reads outside may be moved: a read before, during and after a move gives the same bytes.
//!
//! The count is exact. The thread adds itself to a list and removes itself from it. Before and after that it is a thread like any
//! other, and memory does not move. The list is cleared in a child, which has none of these threads.
//!
//! The gate is a [`RwLock`]: its fences order what the thread wrote before the copy of a move, and the copy before what the
//! thread writes next. There is nothing here for a model to check.
//!
//! Locks are taken in this order: the gate, the lock of all caches and arenas, all others. So inside of the gate a serving thread may
//! close registrations and make queries. It must not register memory or fork there, because both wait until it is outside. For the same reason
//! the caller of either must not hold a lock for which a serving thread waits inside.

use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ops::Range;
use std::ptr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::arena::SignalsBlocked;
use super::{ColdReason, fork, next_id};

/// Shared by the serving threads inside; exclusive to a move or a fork.
static GATE: RwLock<()> = RwLock::new(());

/// Runs `serve` as a serving thread, with all signals blocked.
///
/// Memory does not move from the creation of the thread to the call of `serve`, and from its return to the end of the thread. A library
/// that creates a thread because it could not move some memory waits for that call, so that the next memory can move.
///
/// ```
/// # use isthmus_shm::regcache::serving;
/// # use std::io::Read;
/// # let (mut requests, peer) = std::io::pipe().unwrap();
/// # let perform = |_request: u8| {};
/// let thread = std::thread::spawn(move || {
///     let serve = |thread: &mut serving::ServingThread| {
///         let mut request = [0]; // On the stack, because the kernel writes it before `enter`.
///         while requests.read(&mut request).is_ok_and(|len| len == 1) {
///             let _inside = thread.enter();
///             perform(request[0]);
///         }
///     };
///     // SAFETY: a thread of `std`, which outside of the gate only reads from a pipe.
///     unsafe { serving::run(serve) }
/// });
/// # drop(peer);
/// thread.join().unwrap();
/// ```
///
/// # Safety
///
/// The calling thread has a stack of libc's making, so it is not the main thread. While it is not
/// [inside](ServingThread::enter), `serve` does nothing but wait in system calls. It neither allocates nor frees memory, does not panic, and
/// writes to nothing but its own stack; nor does any system call of this thread.
pub unsafe fn run<R>(serve: impl FnOnce(&mut ServingThread) -> R) -> R {
    let _signals = SignalsBlocked::new(); // A handler of the program would write anywhere.
    let id = next_id();
    let on_the_stack = 0_u8;
    let refusal = fork::lock().add_serving_thread(id, ptr::from_ref(&on_the_stack).addr()).err();
    serve(&mut ServingThread { id, refusal, not_send: PhantomData })
}

/// A thread that serves peers in this process.
#[derive(Debug)]
pub struct ServingThread {
    id: NonZeroU64,
    refusal: Option<ColdReason>,
    not_send: PhantomData<*const ()>,
}

impl ServingThread {
    /// The reason that this thread keeps memory from moving, as any other thread does. None if it does not.
    pub fn refusal(&self) -> Option<ColdReason> {
        self.refusal
    }

    /// Waits until no memory is being moved and nothing forks. Neither begins before the result is dropped.
    pub fn enter(&mut self) -> InsideGate<'_> {
        InsideGate { _gate: enter(), thread: self }
    }

    fn remove(&self) {
        fork::lock().remove_serving_thread(self.id);
    }
}

impl Drop for ServingThread {
    fn drop(&mut self) {
        let _gate = enter(); // The lock of all caches may lie in memory that is being moved.
        self.remove();
    }
}

/// A serving thread that may write the program's memory.
#[derive(Debug)]
pub struct InsideGate<'a> {
    thread: &'a ServingThread,
    /// Released last.
    _gate: RwLockReadGuard<'static, ()>,
}

impl Drop for InsideGate<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.thread.remove(); // Unwinding writes to the heap.
        }
    }
}

fn enter() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until every serving thread is outside of the gate, and keeps them there until the result is dropped.
pub(super) fn park() -> RwLockWriteGuard<'static, ()> {
    GATE.write().unwrap_or_else(PoisonError::into_inner)
}

/// The serving threads of this process, each with the mapping that has its stack.
#[derive(Debug)]
pub(super) struct ServingThreads(Vec<(NonZeroU64, Range<usize>)>);

impl ServingThreads {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn add(&mut self, id: NonZeroU64, stack: Range<usize>) {
        self.0.push((id, stack));
    }

    pub(super) fn remove(&mut self, id: NonZeroU64) {
        self.0.retain(|(of, _)| *of != id);
    }

    pub(super) fn disown_in_child(&mut self) {
        self.0.clear();
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether serving threads that are outside of the gate may write in `range`.
    pub(super) fn write_in(&self, range: &Range<usize>) -> bool {
        let overlaps = |other: &Range<usize>| other.start < range.end && range.start < other.end;
        let gate = ptr::from_ref(&GATE).addr();
        overlaps(&(gate..gate + size_of_val(&GATE))) || self.0.iter().any(|(_, stack)| overlaps(stack))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serving_threads_write_their_stacks_and_the_gate() {
        let mut threads = ServingThreads::new();
        let id = next_id();
        threads.add(id, 0x3000..0x5000);
        threads.add(next_id(), 0x8000..0x9000);
        assert!(!threads.write_in(&(0x2000..0x3000)) && !threads.write_in(&(0x5000..0x8000)));
        assert!(threads.write_in(&(0x2000..0x3001)) && threads.write_in(&(0x4fff..0x8000)));
        threads.remove(id);
        assert!(!threads.write_in(&(0x3000..0x5000)) && threads.write_in(&(0x8fff..0x9000)));
        assert_eq!(threads.count(), 1);
        threads.disown_in_child();
        assert_eq!(threads.count(), 0);
        let gate = ptr::from_ref(&GATE).addr();
        let last = gate + size_of_val(&GATE) - 1;
        assert!(threads.write_in(&(last..last + 1)) && threads.write_in(&(gate..gate + 1)));
        assert!(!threads.write_in(&(last + 1..last + 2)) && !threads.write_in(&(gate - 1..gate)));
    }
}
