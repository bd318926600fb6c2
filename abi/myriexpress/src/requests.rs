//! Pending requests: cancel, forget, and their properties.

use crate::codes::Return;
use crate::completion::read;
use crate::errors::{call, call_at_any_time};
use crate::table::{self, Locked};
use crate::types::{EndpointHandle, RequestHandle};
use crate::{boards, library, wait};
use isthmus_mx::{Cancelled, RequestId};
use std::ffi::c_void;
use std::time::Duration;

/// Cancels a receive or a connect, unless a message or reply has come for it.
///
/// # Safety
///
/// `request` is null, or can be read and written. `result` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_cancel(endpoint: EndpointHandle, request: *mut RequestHandle, result: *mut u32) -> Return {
    call("mx_cancel", endpoint, || {
        // SAFETY: as the caller promised.
        let handle = unsafe { read(request)? };
        let mut locked = wait::progress(table::lock(endpoint)?)?;
        let id = locked.request_id(handle)?;
        let cancelled = match locked.engine().cancel(id) {
            Cancelled::Receive(_) | Cancelled::Connect => true,
            Cancelled::TooLate => false,
            Cancelled::WrongKind | Cancelled::Unknown => return Err(Return::BAD_REQUEST.into()),
        };
        drop(locked);
        // SAFETY: as the caller promised.
        unsafe {
            if cancelled {
                boards::put(request, 0)?;
            }
            boards::put(result, u32::from(cancelled))
        }
    })
}

/// Returns whether the memory of a send may be reused. `None` if the request is no send.
fn is_buffered(locked: &mut Locked, request: RequestId) -> Option<bool> {
    locked.engine().is_buffered(request).ok()
}

/// Returns whether the memory of a send may be reused. Does not call the error handler if the request is no send.
///
/// # Safety
///
/// `request` is null or readable. `result` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_ibuffered(
    endpoint: EndpointHandle,
    request: *mut RequestHandle,
    result: *mut u32,
) -> Return {
    let mut is_send = true;
    let answer = call("mx_ibuffered", endpoint, || {
        let mut locked = table::lock(endpoint)?;
        // SAFETY: as the caller promised.
        let id = unsafe { read(request) }.and_then(|handle| locked.request_id(handle));
        let mut found = id.as_ref().ok().and_then(|id| is_buffered(&mut locked, *id));
        if let (Some(false), Ok(id)) = (found, id) {
            locked = wait::poll(locked)?;
            found = is_buffered(&mut locked, id);
        }
        drop(locked);
        is_send = found.is_some();
        // SAFETY: as the caller promised.
        unsafe { boards::put(result, u32::from(found == Some(true))) }
    });
    if is_send { answer } else { Return::BAD_REQUEST }
}

/// Like [`mx_ibuffered`], but waits until the buffer may be used again.
///
/// # Safety
///
/// As for [`mx_ibuffered`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_buffered(
    endpoint: EndpointHandle,
    request: *mut RequestHandle,
    timeout_ms: u32,
    result: *mut u32,
) -> Return {
    call("mx_buffered", endpoint, || {
        // SAFETY: as the caller promised.
        let handle = unsafe { read(request)? };
        let locked = table::lock(endpoint)?;
        let id = locked.request_id(handle)?;
        let look = |locked: &mut Locked| match is_buffered(locked, id) {
            Some(false) => None,
            other => Some(other.is_some()),
        };
        let (over, locked) = wait::until(locked, timeout_ms, look)?;
        drop(locked);
        let found = over.found();
        if found == Some(false) {
            return Err(Return::BAD_REQUEST.into());
        }
        // SAFETY: as the caller promised.
        unsafe { boards::put(result, u32::from(found.is_some())) }
    })
}

/// Forgets a request: it continues, and its end is not reported.
///
/// # Safety
///
/// `request` is null, or can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_forget(endpoint: EndpointHandle, request: *mut RequestHandle) -> Return {
    call("mx_forget", endpoint, || {
        // SAFETY: as the caller promised.
        let handle = unsafe { read(request)? };
        let mut locked = table::lock(endpoint)?;
        let id = locked.request_id(handle)?;
        locked.engine().forget(id).map_err(|_| Return::BAD_REQUEST)?;
        // SAFETY: as the caller promised.
        unsafe { boards::put(request, 0) }
    })
}

/// Returns the context that was given with a request.
///
/// # Safety
///
/// `request` is null or readable. `context` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_context(request: *mut RequestHandle, context: *mut *mut c_void) -> Return {
    call_at_any_time("mx_context", 0, || {
        // SAFETY: as the caller promised.
        let handle = unsafe { read(request)? };
        library::check()?;
        let (mut locked, id) = table::lock_of(handle)?;
        let found = locked.engine().context_of(id).map_err(|_| Return::BAD_REQUEST)?;
        // SAFETY: as the caller promised.
        unsafe { boards::put(context, found as *mut c_void) }
    })
}

/// Sets the timeout of a request, or, for request 0, of each later request of the endpoint. 0 means no timeout. A send
/// that its receiver has not taken by then, and a connect without a reply, end with `MX_STATUS_TIMEOUT`. A receive has
/// no timeout.
#[unsafe(no_mangle)]
pub extern "C" fn mx_set_request_timeout(endpoint: EndpointHandle, request: RequestHandle, timeout_ms: u32) -> Return {
    call("mx_set_request_timeout", endpoint, || {
        let mut locked = table::lock(endpoint)?;
        let limit = (timeout_ms != 0).then(|| Duration::from_millis(timeout_ms.into()));
        if request == 0 {
            locked.deadlines.default = limit;
            return Ok(());
        }
        let id = locked.request_id(request)?;
        locked.engine().kind(id).map_err(|_| Return::BAD_REQUEST)?;
        locked.set_deadline(id, limit);
        locked.wake_all(); // A thread that sleeps may have to wake earlier.
        Ok(())
    })
}
