//! The handle of a domain: what lies between a C program's call and the client library.
//!
//! ```text
//!   isth_x(domain, …) ─► null? ─► child of a fork? ─► lock ─► call ─► re-arm for sleepers ─► 0, 1 or -reason
//!                                                       │ panic
//!                                                       └──► poisoned: every later call answers the same
//! ```
//!
//! A thread in `isth_wait` sleeps without the lock, on the domain's descriptor. Any other call may take the event that this
//! thread sleeps for, or end the state in which doorbells ring at all; so each call that leaves while another thread sleeps arms the
//! domain again and, if there is something to be done already, wakes the sleepers by the `wake_fd`.

use crate::pending::Pending;
use crate::types::IsthCompletion;
use isthmus_client::{Domain, Outcome, Reason, Refusal, WaitMode};
use isthmus_shm::ForkGuard;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::any::Any;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// A domain: the program, as it is attached to its daemon. Created by isth_attach(), freed by isth_detach().
///
/// Threads may share it: calls take turns, and a thread that waits in isth_wait() does not block others. A process that
/// forks keeps its domains; in the child every call on them is refused with ISTH_REASON_STILL_ATTACHED, and the child
/// may attach anew.
#[derive(Debug)]
pub struct Handle {
    guard: ForkGuard,
    inner: Mutex<Inner>,
    name: CString,
    fd: RawFd,
    /// Wakes the threads that sleep in `isth_wait`.
    wake_fd: OwnedFd,
    /// Threads that wait for the lock.
    queued: AtomicU32,
    last_error: Mutex<String>,
}

/// The state that the lock guards.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) domain: Domain,
    pub(crate) pending: Pending,
    spin: bool,
    sleepers: u32,
}

/// Any thread may use a handle and any may end it.
const fn is_shared<T: Send + Sync>() {}
const _: () = is_shared::<Handle>();

/// Returns a refusal's reason as C programs get it.
pub(crate) const fn code(reason: Reason) -> i32 {
    -(reason.code() as i32)
}

/// A call on a domain: `call` gets it locked, and what it answers is returned.
///
/// # Safety
///
/// `domain` is null, or of `isth_attach` and not yet of `isth_detach`.
pub(crate) unsafe fn call_locked(domain: *const Handle, call: impl FnOnce(&mut Inner) -> Result<i32, Refusal>) -> i32 {
    // SAFETY: passed on.
    unsafe { call_handle(domain, |handle| handle.locked(call)) }
}

/// A call on a domain that looks after the lock itself.
///
/// # Safety
///
/// As for [`call_locked`].
pub(crate) unsafe fn call_handle(domain: *const Handle, call: impl FnOnce(&Handle) -> Result<i32, Refusal>) -> i32 {
    // SAFETY: null, or a live `Handle` by the promise of our caller; handles are only ever shared, never borrowed mutably.
    let Some(handle) = (unsafe { domain.as_ref() }) else { return code(Reason::RequestInvalid) };
    match catch_unwind(AssertUnwindSafe(|| call(handle))) {
        Ok(Ok(answer)) => answer,
        Ok(Err(refusal)) => handle.record_refusal(&refusal),
        Err(panic) => {
            handle.wake_sleepers();
            handle.record_refusal(&Refusal::new(Reason::LibraryPanicked, panic_text(&*panic)))
        }
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or_default().to_owned()
}

impl Handle {
    pub(crate) fn new(domain: Domain, wait: WaitMode) -> Result<Self, Refusal> {
        let name = CString::new(domain.name()).map_err(|_| Refusal::from(Reason::NameInvalid))?;
        let guard = ForkGuard::new().map_err(|errno| Refusal::new(Reason::OutOfAddressSpace, errno.to_string()))?;
        let wake_fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Refusal::new(Reason::OutOfFds, errno.to_string()))?;
        let fd = domain.fd().as_raw_fd();
        let inner =
            Mutex::new(Inner { domain, pending: Pending::default(), spin: wait == WaitMode::Spin, sleepers: 0 });
        Ok(Self { guard, inner, name, fd, wake_fd, queued: AtomicU32::new(0), last_error: Mutex::default() })
    }

    /// Calls with the domain locked; see the picture above.
    pub(crate) fn locked<R>(&self, call: impl FnOnce(&mut Inner) -> Result<R, Refusal>) -> Result<R, Refusal> {
        let mut inner = self.lock()?;
        let answer = call(&mut inner);
        self.rearm(&mut inner);
        answer
    }

    /// The next completion, waiting for it at most `limit`.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Result<Option<IsthCompletion>, Refusal> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let mut inner = self.lock()?;
            // Without time to sleep, the client looks for as long as looking is worth it.
            let found = inner.domain.wait(Some(Duration::ZERO));
            if found.is_some() || left.is_some_and(|left| left.is_zero()) {
                let found = found.map(|found| inner.translate(found));
                self.rearm(&mut inner);
                return Ok(found);
            }
            if inner.spin {
                self.rearm(&mut inner);
                drop(inner);
                self.yield_to_waiters();
            } else if inner.domain.arm() {
                inner.sleepers += 1;
                drop(inner);
                self.sleep(left);
                self.lock()?.sleepers -= 1;
            }
        }
    }

    /// Frees it after `call`, which gets the domain unless another thread was using it when this process was forked.
    pub(crate) fn free(self, call: impl FnOnce(Domain)) {
        let in_use = matches!(self.inner.try_lock(), Err(TryLockError::WouldBlock));
        if in_use && self.guard.is_child() {
            std::mem::forget(self);
        } else {
            call(self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).domain);
        }
    }

    /// True where another thread's panic, or ours, left the domain in a state that nothing is known of.
    pub(crate) fn is_broken(&self) -> bool {
        self.inner.is_poisoned()
    }

    pub(crate) fn is_child(&self) -> bool {
        self.guard.is_child()
    }

    pub(crate) fn name(&self) -> &CString {
        &self.name
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    /// Details of the last refusal.
    pub(crate) fn last_error(&self) -> String {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> Result<MutexGuard<'_, Inner>, Refusal> {
        if self.guard.is_child() {
            return Err(Refusal::new(Reason::StillAttached, "this process is a child of the one that attached"));
        }
        let locked = match self.inner.try_lock() {
            Ok(inner) => return Ok(inner),
            Err(TryLockError::Poisoned(poisoned)) => Err(poisoned),
            Err(TryLockError::WouldBlock) => {
                self.queued.fetch_add(1, Ordering::Relaxed);
                let locked = self.inner.lock();
                self.queued.fetch_sub(1, Ordering::Relaxed);
                locked
            }
        };
        locked.map_err(|_| {
            self.wake_sleepers(); // Each one that wakes and finds this wakes the next.
            Refusal::new(Reason::LibraryPanicked, "an earlier call found it")
        })
    }

    /// Leaves the domain as the sleeping threads need it.
    fn rearm(&self, inner: &mut Inner) {
        if inner.sleepers > 0 && !inner.domain.arm() {
            self.wake_sleepers();
        }
    }

    fn wake_sleepers(&self) {
        // Refused where the counter is full: then it is readable, which is all that is wanted.
        let _ = rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes());
    }

    /// Sleeps until the domain's descriptor or `wake_fd` is readable, or `limit` is over.
    fn sleep(&self, limit: Option<Duration>) {
        // SAFETY: the descriptor is the domain's, which keeps it open for as long as it lives, and it lives as long as `self`.
        let domain = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let mut fds = [PollFd::from_borrowed_fd(domain, PollFlags::IN), PollFd::new(&self.wake_fd, PollFlags::IN)];
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // A signal ends it early, and our caller comes back.
        let _ = rustix::event::poll(&mut fds, limit.as_ref());
        let _ = rustix::io::read(&self.wake_fd, &mut [0; 8]);
    }

    /// A spinning thread unlocks for too short a time for others to notice, so this waits until they had their turn.
    fn yield_to_waiters(&self) {
        while self.queued.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
    }

    /// Keeps what `isth_last_error` will say.
    fn record_refusal(&self, refusal: &Refusal) -> i32 {
        // In a child the lock may be held for ever, by a thread that does not exist there.
        if !self.guard.is_child() {
            *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = refusal.to_string();
        }
        code(refusal.reason)
    }
}

impl Inner {
    /// As C programs see it.
    pub(crate) fn translate(&mut self, over: isthmus_client::Completion) -> IsthCompletion {
        let operation = self.pending.remove(&over.token.number());
        let mut completion = IsthCompletion {
            context: operation.map_or(std::ptr::null_mut(), |operation| operation.context.0),
            token: over.token.number(),
            endpoint: u32::from(over.endpoint.number()),
            ..IsthCompletion::EMPTY
        };
        match over.outcome {
            Outcome::Sent { .. } => completion.kind = crate::ISTH_SENT,
            Outcome::Received { from, tag, len } => {
                completion.kind = crate::ISTH_RECEIVED;
                completion.from = from.into();
                (completion.tag, completion.len) = (tag, len);
            }
            Outcome::Cancelled => completion.kind = crate::ISTH_CANCELLED,
            Outcome::Failed(reason) => {
                completion.kind = crate::ISTH_FAILED;
                completion.reason = u32::from(reason.code());
            }
        }
        completion
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{isth_attach, isth_detach, isth_domain_id, isth_last_error, isth_options_init, isth_poll, isth_wait};
    use isthmus_testbed::{DaemonProcess, Deadline, Scratch, binary};
    use std::ffi::CStr;
    use std::os::unix::ffi::OsStrExt;

    const CONFIG: &str = "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{state}\"\n";

    /// A handle that may be used in two threads, as the header says.
    #[derive(Clone, Copy)]
    struct Shared(*mut Handle);

    // SAFETY: this is what the lock is for.
    unsafe impl Send for Shared {}

    fn attach(daemon: &DaemonProcess) -> Shared {
        let socket = CString::new(daemon.socket().as_os_str().as_bytes()).unwrap();
        let mut domain = std::ptr::null_mut();
        let mut options = crate::IsthOptions::DEFAULT;
        // SAFETY: live places, and a string that lives as long as the call.
        unsafe {
            assert_eq!(isth_options_init(&raw mut options), 0);
            options.socket = socket.as_ptr();
            assert_eq!(isth_attach(&raw const options, &raw mut domain), 0);
        }
        Shared(domain)
    }

    #[test]
    fn panic_poisons_only_its_domain() {
        let scratch = Scratch::new().unwrap();
        binary("isthmusd", "isthmusd").unwrap(); // Built before the time limit of a test starts.
        let daemon = DaemonProcess::on(&scratch).config(CONFIG).start(Deadline::secs(60)).unwrap();
        let (broken, whole) = (attach(&daemon), attach(&daemon));
        let answer = code(Reason::LibraryPanicked);
        let (mut completion, mut id) = (IsthCompletion::EMPTY, 0);
        // SAFETY: live handles and places; no thread uses the domains after they are detached.
        unsafe {
            let waiting = std::thread::spawn(move || {
                let (domain, mut completion) = (broken, IsthCompletion::EMPTY);
                isth_wait({ domain }.0, &raw mut completion, -1)
            });
            assert_eq!(call_locked(broken.0, |_| panic!("a mistake")), answer);
            assert_eq!(
                CStr::from_ptr(isth_last_error(broken.0)).to_str().unwrap().matches("library-panicked").count(),
                1
            );
            assert_eq!(waiting.join().unwrap(), answer);
            assert_eq!(isth_poll(broken.0, &raw mut completion), answer);
            assert_eq!(isth_domain_id(broken.0, &raw mut id), answer);
            assert_eq!(isth_domain_id(whole.0, &raw mut id), 0);
            assert_eq!(isth_detach(broken.0, -1), 0);
            assert_eq!(isth_detach(whole.0, -1), 0);
        }
    }
}
