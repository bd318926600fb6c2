//! Completions: by looking, by waiting, and by a descriptor.

use crate::domain::{self, Handle};
use crate::types::IsthCompletion;
use isthmus_client::{Reason, Refusal};
use std::time::Duration;

/// Takes the next completion: returns 1 and the completion, or 0 if there is none. Never waits. All work of a domain is
/// done in this call and in isth_wait().
///
/// # Safety
///
/// 'domain' is null or attached. 'completion' is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_poll(domain: *mut Handle, completion: *mut IsthCompletion) -> i32 {
    // SAFETY: as the caller promised.
    unsafe {
        domain::call_locked(domain, |inner| {
            check(completion)?;
            let found = inner.domain.poll().map(|over| inner.translate(over));
            Ok(store_completion(found, completion))
        })
    }
}

/// Waits for the next completion: returns 1 and the completion, or 0 after 'timeout_ms' milliseconds (-1: no limit). A
/// signal handler does not end the wait. Other threads may use the domain meanwhile.
///
/// # Safety
///
/// 'domain' is null or attached. 'completion' is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_wait(domain: *mut Handle, completion: *mut IsthCompletion, timeout_ms: i32) -> i32 {
    let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    // SAFETY: as the caller promised.
    unsafe {
        domain::call_handle(domain, |handle| {
            check(completion)?;
            Ok(store_completion(handle.wait(limit)?, completion))
        })
    }
}

/// Returns a descriptor for poll(2), epoll(7) or any event loop. After isth_arm() has returned 1, it is readable when
/// isth_poll() may find a completion. Do not read or close it. It stays the same until isth_detach().
///
/// # Safety
///
/// 'domain' is null or attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_fd(domain: *const Handle) -> i32 {
    // SAFETY: as the caller promised.
    unsafe { domain::call_handle(domain, |handle| handle.locked(|_| Ok(handle.fd()))) }
}

/// Prepares for a sleep on isth_fd(). Returns 1 if the program may sleep. Returns 0 if there is work already: call
/// isth_poll() until it returns 0, and try again. Any other call on the domain, by any thread, ends this state, so this
/// is the last call before each sleep.
///
/// # Safety
///
/// 'domain' is null or attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_arm(domain: *mut Handle) -> i32 {
    // SAFETY: as the caller promised.
    unsafe { domain::call_locked(domain, |inner| Ok(i32::from(inner.domain.arm()))) }
}

fn check(completion: *mut IsthCompletion) -> Result<(), Refusal> {
    if completion.is_null() { Err(Refusal::new(Reason::RequestInvalid, "completion is null")) } else { Ok(()) }
}

/// Hands a completion out and says how many that were.
///
/// # Safety
///
/// `place` is writable.
unsafe fn store_completion(found: Option<IsthCompletion>, place: *mut IsthCompletion) -> i32 {
    let Some(completion) = found else { return 0 };
    // SAFETY: as promised.
    unsafe { place.write(completion) };
    1
}
