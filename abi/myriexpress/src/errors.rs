//! Errors: the results of calls, and the error handlers.
//!
//! ```text
//!   call ── Ok ──────────────────────────────────────────────────────────────► MX_SUCCESS
//!     └─ Failure, panic ─► handler of the endpoint, or else of the process ──► the result of the handler
//! ```
//!
//! Handlers run after all work of the call, without a lock: they may call the library, and may never return.

use crate::codes::Return;
use crate::types::{EndpointHandle, ErrorHandler};
use crate::{environment, library, table};
use isthmus_client::{AttachError, Reason, Refusal};
use std::ffi::{CStr, CString, c_char};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The error of a failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Return,
    /// Details for the user, in addition to the text of the code.
    detail: Option<Box<str>>,
}

impl From<Return> for Failure {
    fn from(code: Return) -> Self {
        Self { code, detail: None }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self { code: code_of(refusal.reason), detail: Some(with_remedy(refusal.to_string(), Some(refusal.reason))) }
    }
}

impl From<AttachError> for Failure {
    fn from(error: AttachError) -> Self {
        let code = error.reason().map_or(Return::NO_RESOURCES, code_of);
        Self { code, detail: Some(with_remedy(error.to_string(), error.reason())) }
    }
}

/// Adds what the user can do about a refusal by the policy.
fn with_remedy(text: String, reason: Option<Reason>) -> Box<str> {
    match reason.filter(|reason| code_of(*reason) == Return::NO_PERM) {
        Some(reason) => format!("{text}. {}", reason.remedy()).into(),
        None => text.into(),
    }
}

/// Returns the MX code of a reason.
pub(crate) fn code_of(reason: Reason) -> Return {
    match reason {
        Reason::DaemonUnreachable | Reason::DaemonNotStarted | Reason::DaemonConnectionLost | Reason::NotIsthmus => {
            Return::NO_DRIVER
        }
        Reason::SocketDenied
        | Reason::SocketUntrusted
        | Reason::AttachForbidden
        | Reason::TalkForbidden
        | Reason::NameForbidden
        | Reason::NotYours => Return::NO_PERM,
        Reason::NameTaken => Return::BUSY,
        Reason::NameInvalid => Return::BAD_PARAM_VAL,
        Reason::VersionTooOld | Reason::VersionTooNew | Reason::VersionOtherMajor | Reason::UnsupportedRequest => {
            Return::BAD_KERNEL_VERSION
        }
        Reason::MxBoardUnknown => Return::BOARD_UNKNOWN,
        Reason::MxNicUnknown => Return::NIC_NOT_FOUND,
        Reason::MxEndpointOutOfRange => Return::BAD_ENDPOINT_ID,
        Reason::MxEndpointTaken => Return::BUSY,
        Reason::MxEndpointClosed | Reason::MxDisconnected => Return::CONNECTION_FAILED,
        Reason::MxUnreachable => Return::TIMEOUT,
        Reason::MxBadKey => Return::BAD_CONNECTION_KEY,
        Reason::MxNumberMissing => Return::HOST_NOT_FOUND,
        Reason::StillAttached => Return::BAD_ENDPOINT,
        _ => Return::NO_RESOURCES,
    }
}

/// The handler that prints the error and ends the process.
#[unsafe(no_mangle)]
pub static MX_ERRORS_ARE_FATAL: ErrorHandler = fatal;

/// The handler that does nothing.
#[unsafe(no_mangle)]
pub static MX_ERRORS_RETURN: ErrorHandler = returns;

/// The handler of the process; null until the program sets one.
static HANDLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// The initial handler; null until `mx_init()` has read the environment.
static DEFAULT: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the handler of the process and returns the previous one; null sets the initial one.
#[unsafe(no_mangle)]
pub extern "C" fn mx_set_error_handler(handler: Option<ErrorHandler>) -> ErrorHandler {
    let handler = handler.map_or(std::ptr::null_mut(), to_pointer);
    from_pointer(HANDLER.swap(handler, Ordering::AcqRel)).unwrap_or_else(default_handler)
}

/// Sets the initial handler according to the environment.
pub(crate) fn choose_default() {
    let handler = if environment::errors_are_fatal() { fatal } else { returns };
    DEFAULT.store(to_pointer(handler), Ordering::Release);
}

fn default_handler() -> ErrorHandler {
    from_pointer(DEFAULT.load(Ordering::Acquire)).unwrap_or(fatal)
}

/// Converts a handler to a pointer, for storage in an atomic.
pub(crate) fn to_pointer(handler: ErrorHandler) -> *mut () {
    handler as *mut ()
}

/// Converts a pointer back; `None` for null.
pub(crate) fn from_pointer(pointer: *mut ()) -> Option<ErrorHandler> {
    // SAFETY: an `Option` of a function pointer is as wide as a pointer, with null for None, and every pointer in these atomics
    // is null or of `to_pointer`.
    unsafe { std::mem::transmute::<*mut (), Option<ErrorHandler>>(pointer) }
}

/// Prints the error and ends the process, which is the default that MX programs expect.
///
/// # Safety
///
/// `message` is a string of C, or null.
unsafe extern "C-unwind" fn fatal(message: *mut c_char, code: Return) -> Return {
    // SAFETY: not null, and a string by the promise of our caller.
    let message = if message.is_null() { c"error" } else { unsafe { CStr::from_ptr(message) } };
    let line = format!("{}: {}\n", message.to_string_lossy(), code.text().to_string_lossy());
    // A write error is ignored: there is no other place to report it.
    let _ = std::io::stderr().write_all(line.as_bytes());
    std::process::exit(-1)
}

unsafe extern "C-unwind" fn returns(_message: *mut c_char, code: Return) -> Return {
    code
}

/// Runs a call of the library that is allowed before `mx_init()`. `endpoint` is 0 for a call without one.
#[inline]
pub(crate) fn call_at_any_time(
    name: &'static str,
    endpoint: EndpointHandle,
    body: impl FnOnce() -> Result<(), Failure>,
) -> Return {
    // The failure is returned beside the panic's result, so that a successful call returns one word only.
    let mut failure = None;
    let succeeds = AssertUnwindSafe(|| body().map_err(|found| failure = Some(found)).is_ok());
    match catch_unwind(succeeds) {
        Ok(true) => Return::SUCCESS,
        Ok(false) => report_failure(name, endpoint, failure.unwrap_or_else(|| Return::BAD_BAD_BAD.into())),
        Err(_) => report_failure(name, endpoint, Return::BAD_BAD_BAD.into()),
    }
}

/// Runs a call of the library that requires initialisation.
#[inline]
pub(crate) fn call(name: &'static str, endpoint: EndpointHandle, body: impl FnOnce() -> Result<(), Failure>) -> Return {
    call_at_any_time(name, endpoint, || {
        library::check()?;
        body()
    })
}

/// Runs a call without reporting its errors to a handler.
pub(crate) fn call_without_handler(body: impl FnOnce() -> Result<(), Failure>) -> Return {
    let checked = || library::check().map_err(Failure::from).and_then(|()| body());
    match catch_unwind(AssertUnwindSafe(checked)) {
        Ok(Ok(())) => Return::SUCCESS,
        Ok(Err(failure)) => failure.code,
        Err(_) => Return::BAD_BAD_BAD,
    }
}

#[cold]
fn report_failure(name: &str, endpoint: EndpointHandle, failure: Failure) -> Return {
    let message = match &failure.detail {
        Some(detail) => format!("{name} ({detail})"),
        None => name.to_owned(),
    };
    call_error_handler(endpoint, message, failure.code)
}

/// Calls the error handler. No lock is held and nothing has to be dropped, because a handler may jump out with
/// `longjmp`.
#[cold]
pub(crate) fn call_error_handler(endpoint: EndpointHandle, message: String, code: Return) -> Return {
    let own = table::slot(endpoint).and_then(|slot| slot.error_handler());
    let handler = own.or_else(|| from_pointer(HANDLER.load(Ordering::Acquire))).unwrap_or_else(default_handler);
    let message = CString::new(message).unwrap_or_default();
    // SAFETY: the program's function, called as its type permits, with a string that it may even overwrite.
    let answer = unsafe { handler(message.as_ptr().cast_mut(), code) };
    drop(message);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C-unwind" fn other(_message: *mut c_char, _code: Return) -> Return {
        Return::BUSY
    }

    #[test]
    fn set_error_handler_returns_the_previous_handler() {
        let first = mx_set_error_handler(Some(MX_ERRORS_RETURN));
        assert_eq!(to_pointer(first), to_pointer(MX_ERRORS_ARE_FATAL));
        assert_eq!(call_at_any_time("mx_test", 0, || Err(Return::FAILURE.into())), Return::FAILURE);
        assert_eq!(to_pointer(mx_set_error_handler(Some(other))), to_pointer(MX_ERRORS_RETURN));
        assert_eq!(call_at_any_time("mx_test", 0, || Err(Return::FAILURE.into())), Return::BUSY);
        assert_eq!(to_pointer(mx_set_error_handler(None)), to_pointer(other));
    }
}
