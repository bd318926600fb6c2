//! The table of open endpoints, by handle.
//!
//! ```text
//!   handle = uses of the slot << 16 | slot + 1          a handle that was closed never means another endpoint
//!   slot   = lock [ endpoint ] + waiting threads
//! ```
//!
//! A handle that a program passes is looked up and compared, never dereferenced.

use crate::change_count::ChangeCount;
use crate::codes::Return;
use crate::endpoint::Endpoint;
use crate::errors::{Failure, from_pointer, to_pointer};
use crate::library;
use crate::types::{EndpointHandle, ErrorHandler, RequestHandle};
use isthmus_mx::RequestId;
use isthmus_shm::biased_lock::{BiasedLock, BiasedLockGuard};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// The maximum number of open endpoints of a process.
const SLOTS: usize = 1024;

/// The width of a slot number in an endpoint handle, in bits.
const SLOT_BITS: u32 = 16;

/// The width of the engine's identifier in a request handle, in bits.
const REQUEST_BITS: u32 = 48;

const _: () = assert!(SLOTS < 1 << SLOT_BITS && SLOT_BITS + REQUEST_BITS == usize::BITS);

static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];

/// The number of open endpoints.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A slot for an endpoint. Two slots share no cache line, nor a pair of adjacent lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot {
    /// The handle of the endpoint; 0 if the slot is empty.
    handle: AtomicUsize,
    /// The slot is in use or reserved.
    taken: AtomicBool,
    uses: AtomicUsize,
    error_handler: AtomicPtr<()>,
    endpoint: BiasedLock<Option<Box<Endpoint>>>,
    /// Notified when an event occurred that a sleeper may be waiting for.
    change_count: ChangeCount,
    /// The number of threads that wait for the lock.
    queued: AtomicU32,
    /// The number of sends that may have had to wait (wrapping).
    posts: AtomicU32,
}

impl Slot {
    const fn new() -> Self {
        Self {
            handle: AtomicUsize::new(0),
            taken: AtomicBool::new(false),
            uses: AtomicUsize::new(0),
            error_handler: AtomicPtr::new(std::ptr::null_mut()),
            endpoint: BiasedLock::new(None),
            change_count: ChangeCount::new(),
            queued: AtomicU32::new(0),
            posts: AtomicU32::new(0),
        }
    }

    /// Returns the error handler of the endpoint, if one is set.
    pub(crate) fn error_handler(&self) -> Option<ErrorHandler> {
        from_pointer(self.error_handler.load(Ordering::Acquire))
    }

    /// Returns the number of sends that may have had to wait (wrapping).
    pub(crate) fn posts(&self) -> u32 {
        self.posts.load(Ordering::Relaxed)
    }

    /// Counts a send that may have to wait. Called by the thread that has the lock.
    #[inline]
    pub(crate) fn count_post(&self) {
        self.posts.store(self.posts().wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns true while another thread wants the lock.
    pub(crate) fn is_contended(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > 0
    }

    #[inline(always)]
    fn lock(&'static self) -> BiasedLockGuard<'static, Option<Box<Endpoint>>> {
        match self.endpoint.try_lock() {
            Some(guard) => guard,
            None => self.lock_contended(),
        }
    }

    #[cold]
    fn lock_contended(&'static self) -> BiasedLockGuard<'static, Option<Box<Endpoint>>> {
        self.queued.fetch_add(1, Ordering::Relaxed);
        let locked = self.endpoint.lock();
        self.queued.fetch_sub(1, Ordering::Relaxed);
        locked
    }
}

/// Returns the slot of a handle, if the endpoint is open.
#[inline(always)]
pub(crate) fn slot(handle: EndpointHandle) -> Option<&'static Slot> {
    // The index is out of range for a handle without a slot.
    let slot = TABLE.get((handle & ((1 << SLOT_BITS) - 1)).wrapping_sub(1))?;
    if slot.handle.load(Ordering::Acquire) == handle { Some(slot) } else { None }
}

/// A locked endpoint. Unlocking notifies the sleeping threads of what happened.
#[derive(Debug)]
pub(crate) struct Locked {
    handle: EndpointHandle,
    slot: &'static Slot,
    /// None only while this is dropped.
    guard: Option<BiasedLockGuard<'static, Option<Box<Endpoint>>>>,
}

/// Locks the endpoint with a handle.
#[inline(always)]
pub(crate) fn lock(handle: EndpointHandle) -> Result<Locked, Failure> {
    library::check_own()?;
    let slot = slot(handle).ok_or(Return::BAD_ENDPOINT)?;
    let guard = slot.lock();
    if slot.endpoint.is_poisoned() || slot.handle.load(Ordering::Relaxed) != handle {
        return Err(unusable_code(Locked { handle, slot, guard: Some(guard) }).into());
    }
    Ok(Locked { handle, slot, guard: Some(guard) })
}

/// Locks the endpoint with a handle, unless another thread is using it now. For threads that use it rarely.
pub(crate) fn try_visit(handle: EndpointHandle) -> Option<Locked> {
    library::check_own().ok()?;
    let slot = slot(handle)?;
    let guard = slot.endpoint.try_visit()?;
    let usable = !slot.endpoint.is_poisoned() && slot.handle.load(Ordering::Relaxed) == handle;
    usable.then(|| Locked { handle, slot, guard: Some(guard) })
}

/// Returns the reason why a locked endpoint cannot be used.
#[cold]
fn unusable_code(locked: Locked) -> Return {
    if locked.slot.endpoint.is_poisoned() { Return::BAD_BAD_BAD } else { Return::BAD_ENDPOINT }
}

/// Locks the endpoint of a request.
pub(crate) fn lock_of(request: RequestHandle) -> Result<(Locked, RequestId), Failure> {
    let index = (request >> REQUEST_BITS).checked_sub(1).ok_or(Return::BAD_REQUEST)?;
    let handle = TABLE.get(index).map_or(0, |slot| slot.handle.load(Ordering::Acquire));
    let locked = lock(handle).map_err(|failure| match failure.code {
        Return::BAD_ENDPOINT => Return::BAD_REQUEST.into(),
        _ => failure,
    })?;
    let id = locked.request_id(request)?;
    Ok((locked, id))
}

/// Returns the handles of all endpoints of the process.
pub(crate) fn handles() -> impl Iterator<Item = EndpointHandle> {
    TABLE.iter().map(|slot| slot.handle.load(Ordering::Acquire)).filter(|handle| *handle != 0)
}

/// Returns true if the process has more than one endpoint.
pub(crate) fn has_several() -> bool {
    OPEN.load(Ordering::Relaxed) > 1
}

/// Returns the handle of a request of this endpoint.
#[inline]
pub(crate) fn request_handle(endpoint: EndpointHandle, request: RequestId) -> RequestHandle {
    let index = endpoint & ((1 << SLOT_BITS) - 1);
    index << REQUEST_BITS | request.to_bits() as usize
}

/// A slot reserved for an endpoint that is being opened.
#[derive(Debug)]
pub(crate) struct ReservedSlot(&'static Slot);

impl ReservedSlot {
    pub(crate) fn new() -> Result<Self, Failure> {
        let free = |slot: &&Slot| slot.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        TABLE.iter().find(free).map(Self).ok_or_else(|| Return::BUSY.into())
    }

    /// Stores the endpoint, and returns its handle.
    pub(crate) fn fill(
        self,
        endpoint: Box<Endpoint>,
        error_handler: Option<ErrorHandler>,
    ) -> Result<EndpointHandle, Failure> {
        let slot = self.0;
        let index = TABLE.iter().position(|other| std::ptr::eq(other, slot)).expect("slots are of the table");
        let uses = slot.uses.fetch_add(1, Ordering::Relaxed) + 1;
        let handle = (uses << SLOT_BITS) | (index + 1);
        *slot.lock() = Some(endpoint);
        slot.error_handler.store(error_handler.map_or(std::ptr::null_mut(), to_pointer), Ordering::Release);
        slot.handle.store(handle, Ordering::Release);
        OPEN.fetch_add(1, Ordering::Relaxed);
        std::mem::forget(self);
        Ok(handle)
    }
}

impl Drop for ReservedSlot {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

/// Abandons the inherited endpoints in the child of a fork: no handle is valid any more, and slots that the parent used
/// are never reused. A thread of the parent may be counted as waiting for the lock of such a slot, or may have held it.
/// The child does not have that thread, and would wait for it forever.
pub(crate) fn abandon_inherited_slots() {
    for slot in &TABLE {
        if slot.uses.load(Ordering::Relaxed) > 0 {
            slot.taken.store(true, Ordering::Relaxed);
        }
        slot.handle.store(0, Ordering::Release);
    }
    OPEN.store(0, Ordering::Relaxed);
}

impl Locked {
    pub(crate) fn handle(&self) -> EndpointHandle {
        self.handle
    }

    pub(crate) fn slot(&self) -> &'static Slot {
        self.slot
    }

    /// Returns the handle of a request.
    #[inline]
    pub(crate) fn request_handle(&self, request: RequestId) -> RequestHandle {
        request_handle(self.handle, request)
    }

    /// Returns the request of this endpoint with a handle.
    #[inline]
    pub(crate) fn request_id(&self, request: RequestHandle) -> Result<RequestId, Failure> {
        let own = request >> REQUEST_BITS == self.handle & ((1 << SLOT_BITS) - 1);
        let bits = (request & ((1 << REQUEST_BITS) - 1)) as u64;
        RequestId::from_bits(bits).filter(|_| own).ok_or_else(|| Return::BAD_REQUEST.into())
    }

    /// Removes the endpoint. Its handle becomes invalid, and the slot is free.
    pub(crate) fn take(mut self) -> Option<Box<Endpoint>> {
        let endpoint = self.guard.as_mut().and_then(|guard| guard.take());
        self.slot.handle.store(0, Ordering::Release);
        OPEN.fetch_sub(1, Ordering::Relaxed);
        self.slot.error_handler.store(std::ptr::null_mut(), Ordering::Release);
        self.slot.change_count.notify();
        self.slot.taken.store(false, Ordering::Release);
        endpoint
    }

    /// Releases the lock while `meanwhile` runs. Returns an error if the endpoint has been closed meanwhile.
    pub(crate) fn unlocked<R>(self, meanwhile: impl FnOnce() -> R) -> Result<(Self, R), Failure> {
        let handle = self.handle;
        drop(self);
        let answer = meanwhile();
        Ok((lock(handle)?, answer))
    }

    /// Like [`Self::unlocked`], for a leader that goes to sleep: the domain stays armed.
    pub(crate) fn unlocked_asleep<R>(mut self, meanwhile: impl FnOnce() -> R) -> Result<(Self, R), Failure> {
        self.notify_followers();
        self.guard = None;
        let answer = meanwhile();
        Ok((lock(self.handle)?, answer))
    }

    /// Sleeps until the next change, or for `limit`. Returns an error if the endpoint has been closed meanwhile.
    pub(crate) fn sleep(mut self, limit: Option<Duration>) -> Result<Self, Failure> {
        let (events, calls) = (self.events(), self.must_call_handler());
        self.notify();
        if self.events() != events || self.must_call_handler() != calls {
            return Ok(self); // The caller may be waiting for this event, and there is no second notification.
        }
        let (slot, handle) = (self.slot, self.handle);
        let seen = slot.change_count.count();
        self.guard = None;
        slot.change_count.wait(seen, limit);
        // Takes the lock as every other thread does: a leader that never sleeps sees the contention and yields the lock.
        lock(handle)
    }

    /// Wakes all sleeping threads.
    pub(crate) fn wake_all(&self) {
        self.slot.change_count.notify();
        self.wake_leader();
    }

    /// Wakes the followers of the leader.
    pub(crate) fn wake_followers(&self) {
        self.slot.change_count.notify();
    }

    /// Notifies the followers of the leader if an event occurred.
    pub(crate) fn notify_followers(&mut self) {
        if self.has_followers() && self.take_event_flag() {
            self.slot.change_count.notify();
        }
    }

    /// Notifies the sleeping threads of events.
    #[inline(always)]
    fn notify(&mut self) {
        if let Some(endpoint) = self.guard.as_mut().and_then(|guard| guard.as_deref_mut())
            && endpoint.sleepers > 0
        {
            Self::notify_sleepers(endpoint, &self.slot.change_count);
        }
    }

    #[cold]
    fn notify_sleepers(endpoint: &mut Endpoint, change_count: &ChangeCount) {
        if std::thread::panicking() {
            // Each thread that wakes finds the lock poisoned.
            endpoint.wake_fd.wake();
            change_count.notify();
        } else {
            endpoint.notify(change_count);
        }
    }
}

impl Locked {
    /// Releases the lock like a drop, but inlined: for calls that programs make for each message.
    #[inline(always)]
    pub(crate) fn leave(self) {
        let mut this = std::mem::ManuallyDrop::new(self);
        this.notify();
        drop(this.guard.take());
    }
}

impl Drop for Locked {
    #[inline(always)]
    fn drop(&mut self) {
        self.notify();
    }
}

impl Deref for Locked {
    type Target = Endpoint;

    #[inline]
    fn deref(&self) -> &Endpoint {
        self.guard.as_ref().and_then(|guard| guard.as_deref()).expect("the handle was compared under the lock")
    }
}

impl DerefMut for Locked {
    #[inline]
    fn deref_mut(&mut self) -> &mut Endpoint {
        self.guard.as_mut().and_then(|guard| guard.as_deref_mut()).expect("the handle was compared under the lock")
    }
}
