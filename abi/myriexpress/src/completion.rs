//! Completed requests: test, wait, peek.

use crate::codes::{Return, StatusNumber};
use crate::errors::{Failure, call, call_error_handler};
use crate::receive::filter;
use crate::table::{self, Locked};
use crate::types::{EndpointHandle, MxEndpointAddr, MxStatus, RequestHandle};
use crate::{boards, wait};
use isthmus_mx::{RequestId, StatusCode};
use std::ffi::c_void;

impl Locked {
    /// Converts a status to the form that programs read.
    #[inline(always)]
    pub(crate) fn status(&self, status: &isthmus_mx::Status) -> MxStatus {
        to_c_status(self.handle(), status)
    }

    /// Consumes a request that is over, and returns its status.
    #[inline(always)]
    fn test(&mut self, request: RequestId) -> Result<Option<MxStatus>, Failure> {
        let endpoint = self.handle();
        self.test_as(request, |status| to_c_status(endpoint, status))
    }

    #[inline(always)]
    fn test_as<S>(
        &mut self,
        request: RequestId,
        make: impl FnOnce(&isthmus_mx::Status) -> S,
    ) -> Result<Option<S>, Failure> {
        self.engine().test_as(request, make).map_err(|_| Return::BAD_REQUEST.into())
    }
}

/// Converts the status of an endpoint's request, or of a message that waits there.
#[inline(always)]
fn to_c_status(endpoint: EndpointHandle, status: &isthmus_mx::Status) -> MxStatus {
    let source = status.source;
    let source = source
        .map_or(MxEndpointAddr::default(), |source| MxEndpointAddr { stuff: [endpoint as u64, source.to_bits()] });
    MxStatus {
        code: StatusNumber(status.code.number()),
        source,
        match_info: status.match_info,
        msg_length: status.msg_length,
        xfer_length: status.xfer_length,
        context: status.context as *mut c_void,
    }
}

/// Reads the request that a program points to.
///
/// # Safety
///
/// `request` is null or readable.
#[inline(always)]
pub(crate) unsafe fn read(request: *const RequestHandle) -> Result<RequestHandle, Failure> {
    if request.is_null() {
        return Err(Return::BAD_REQUEST.into());
    }
    // SAFETY: not null, so readable as promised.
    Ok(unsafe { request.read() })
}

/// Writes whether a result was found, and the result.
///
/// # Safety
///
/// `status` and `result` are null or writable.
#[inline(always)]
pub(crate) unsafe fn answer(found: Option<MxStatus>, status: *mut MxStatus, result: *mut u32) -> Result<(), Failure> {
    // SAFETY: as promised.
    unsafe {
        boards::put(result, u32::from(found.is_some()))?;
        match found {
            Some(found) => boards::put(status, found),
            None => Ok(()),
        }
    }
}

/// Like `answer`, and sets the handle of a completed request to 0.
///
/// # Safety
///
/// `request`, `status` and `result` are null or writable.
#[inline(always)]
unsafe fn answer_request(
    found: Option<MxStatus>,
    request: *mut RequestHandle,
    status: *mut MxStatus,
    result: *mut u32,
) -> Result<(), Failure> {
    // SAFETY: as promised.
    unsafe {
        if found.is_some() {
            boards::put(request, 0)?;
        }
        answer(found, status, result)
    }
}

/// Ends a call that may have found a failed request. The error handler is called for the request, which is no error of the call.
#[inline]
fn report_if_failed(name: &'static str, endpoint: EndpointHandle, code: u32, answer: Return) -> Return {
    if code != 0 && answer == Return::SUCCESS {
        report_status(name, endpoint, code);
    }
    answer
}

#[cold]
fn report_status(name: &'static str, endpoint: EndpointHandle, code: u32) {
    if let Some(code) = StatusCode::ALL.get(code as usize) {
        call_error_handler(endpoint, format!("{name}: a request has ended with an error"), Return::of_status(*code));
    }
}

#[inline]
fn code_of(found: &Option<MxStatus>) -> u32 {
    found.as_ref().map_or(0, |found| found.code.0)
}

/// Returns whether a request is over, with its status if it is.
///
/// # Safety
///
/// `request` is null, or can be read and written. `status` and `result` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_test(
    endpoint: EndpointHandle,
    request: *mut RequestHandle,
    status: *mut MxStatus,
    result: *mut u32,
) -> Return {
    let mut code = 0;
    let answer = call("mx_test", endpoint, || {
        // SAFETY: as the caller promised.
        let handle = unsafe { read(request)? };
        let mut locked = table::lock(endpoint)?;
        let id = locked.request_id(handle)?;
        let tell = |seen: &isthmus_mx::Status| {
            // SAFETY: as the caller promised.
            unsafe { answer_request(Some(to_c_status(endpoint, seen)), request, status, result)? };
            Ok::<_, Failure>(seen.code.number())
        };
        let mut over = locked.test_as(id, tell)?;
        if over.is_none() && !locked.is_progress_disabled() {
            let idle = locked.poll();
            if idle.is_some() || locked.must_call_handler() {
                locked = wait::after_poll(locked, idle)?;
            }
            over = locked.test_as(id, tell)?;
        }
        match over {
            Some(ended) => code = ended?,
            // SAFETY: as the caller promised.
            None => unsafe { boards::put(result, 0)? },
        }
        locked.leave();
        Ok(())
    });
    report_if_failed("mx_test", endpoint, code, answer)
}

/// Like [`mx_test`], but waits until the request is over.
///
/// # Safety
///
/// As for [`mx_test`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_wait(
    endpoint: EndpointHandle,
    request: *mut RequestHandle,
    timeout_ms: u32,
    status: *mut MxStatus,
    result: *mut u32,
) -> Return {
    let mut code = 0;
    let answer = call("mx_wait", endpoint, || {
        // SAFETY: as the caller promised.
        let handle = unsafe { read(request)? };
        let locked = table::lock(endpoint)?;
        let id = locked.request_id(handle)?;
        let (over, locked) = wait::until(locked, timeout_ms, |locked| locked.test(id).transpose())?;
        drop(locked);
        let found = over.found().transpose()?;
        code = code_of(&found);
        // SAFETY: as the caller promised.
        unsafe { answer_request(found, request, status, result) }
    });
    report_if_failed("mx_wait", endpoint, code, answer)
}

/// Returns the oldest completed request that matches.
///
/// # Safety
///
/// `status` and `result` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_test_any(
    endpoint: EndpointHandle,
    match_info: u64,
    match_mask: u64,
    status: *mut MxStatus,
    result: *mut u32,
) -> Return {
    let mut code = 0;
    let answer = call("mx_test_any", endpoint, || {
        let filter = filter(match_info, match_mask)?;
        let mut locked = table::lock(endpoint)?;
        let mut found = locked.engine().test_any(filter);
        if found.is_none() {
            locked = wait::poll(locked)?;
            found = locked.engine().test_any(filter);
        }
        let found = found.map(|found| locked.status(&found));
        drop(locked);
        code = code_of(&found);
        // SAFETY: as the caller promised.
        unsafe { self::answer(found, status, result) }
    });
    report_if_failed("mx_test_any", endpoint, code, answer)
}

/// Like [`mx_test_any`], but waits for a request.
///
/// # Safety
///
/// `status` and `result` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_wait_any(
    endpoint: EndpointHandle,
    timeout_ms: u32,
    match_info: u64,
    match_mask: u64,
    status: *mut MxStatus,
    result: *mut u32,
) -> Return {
    let mut code = 0;
    let answer = call("mx_wait_any", endpoint, || {
        let filter = filter(match_info, match_mask)?;
        let look = |locked: &mut Locked| {
            let found = locked.engine().test_any(filter)?;
            Some(locked.status(&found))
        };
        let (over, locked) = wait::until(table::lock(endpoint)?, timeout_ms, look)?;
        drop(locked);
        let found = over.found();
        code = code_of(&found);
        // SAFETY: as the caller promised.
        unsafe { self::answer(found, status, result) }
    });
    report_if_failed("mx_wait_any", endpoint, code, answer)
}

fn peek(locked: &mut Locked) -> Option<RequestHandle> {
    let request = locked.engine().peek()?;
    Some(locked.request_handle(request))
}

/// # Safety
///
/// `request` and `result` are null or writable.
unsafe fn answer_peek(found: Option<RequestHandle>, request: *mut RequestHandle, result: *mut u32) {
    // SAFETY: as promised.
    let _ = unsafe { boards::put(result, u32::from(found.is_some())) };
    if let Some(found) = found {
        // SAFETY: as promised.
        let _ = unsafe { boards::put(request, found) };
    }
}

/// Returns the oldest completed request.
///
/// # Safety
///
/// `request` and `result` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_ipeek(endpoint: EndpointHandle, request: *mut RequestHandle, result: *mut u32) -> Return {
    call("mx_ipeek", endpoint, || {
        let mut locked = table::lock(endpoint)?;
        let mut found = peek(&mut locked);
        if found.is_none() {
            locked = wait::poll(locked)?;
            found = peek(&mut locked);
        }
        drop(locked);
        // SAFETY: as the caller promised.
        unsafe { answer_peek(found, request, result) };
        Ok(())
    })
}

/// Like [`mx_ipeek`], but waits for a request.
///
/// # Safety
///
/// `request` and `result` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_peek(
    endpoint: EndpointHandle,
    timeout_ms: u32,
    request: *mut RequestHandle,
    result: *mut u32,
) -> Return {
    call("mx_peek", endpoint, || {
        let (over, locked) = wait::until(table::lock(endpoint)?, timeout_ms, peek)?;
        drop(locked);
        // SAFETY: as the caller promised.
        unsafe { answer_peek(over.found(), request, result) };
        Ok(())
    })
}
