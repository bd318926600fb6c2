//! Attaching and leaving.

use crate::domain::{self, Handle, code, panic_text};
use crate::text;
use crate::types::{self, IsthOptions};
use isthmus_client::{AttachError, Domain, Reason, Refusal};
use isthmus_layout::environment::{self, Variable};
use rustix::io::Errno;
use std::error::Error;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

/// Longer than any program runs, and short enough for clocks to add.
const FOREVER: Duration = Duration::from_secs(1 << 32);

/// Initializes options, so that the environment decides about all of them.
///
/// # Safety
///
/// 'options' is null or points to writable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_options_init(options: *mut IsthOptions) -> i32 {
    if options.is_null() {
        return code(Reason::RequestInvalid);
    }
    // SAFETY: not null, so writable by the caller's promise.
    unsafe { options.write(IsthOptions::DEFAULT) };
    0
}

/// Attaches to the daemon. If no daemon answers, starts one for this user, unless 'options' or the environment forbids
/// it. If 'options' is null, the environment decides about all options. After a failure '*domain' is null, and
/// isth_last_error(NULL) returns the details.
///
/// # Safety
///
/// 'options' is null or of isth_options_init(), and its strings end with a zero byte. 'domain' is null or points to
/// writable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_attach(options: *const IsthOptions, domain: *mut *mut Handle) -> i32 {
    if domain.is_null() {
        return code(Reason::RequestInvalid);
    }
    // SAFETY: null, or options by the caller's promise.
    let attached = catch_unwind(AssertUnwindSafe(|| attach(unsafe { options.as_ref() })));
    let attached = attached.unwrap_or_else(|panic| Err(Refusal::new(Reason::LibraryPanicked, panic_text(&*panic))));
    let (handle, answer) = match attached {
        Ok(handle) => (Box::into_raw(Box::new(handle)), 0),
        Err(refusal) => {
            text::store_attach_error(&refusal);
            (std::ptr::null_mut(), code(refusal.reason))
        }
    };
    // SAFETY: not null, so writable by the caller's promise.
    unsafe { domain.write(handle) };
    answer
}

/// Detaches: waits up to 'timeout_ms' milliseconds (-1: without a limit) until all sent messages are delivered, then
/// frees the domain, whatever it returns. Operations that are still pending end without a completion, and their buffers
/// belong to the program again. In the child of a fork, frees only the child's copy; the parent stays attached.
///
/// # Safety
///
/// 'domain' is null or of isth_attach(), and no other call on it is under way or comes later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_detach(domain: *mut Handle, timeout_ms: i32) -> i32 {
    if domain.is_null() {
        return code(Reason::RequestInvalid);
    }
    // SAFETY: not null, so from `Box::into_raw` in `isth_attach`, and not used by any other thread, now or later.
    let handle = unsafe { Box::from_raw(domain) };
    let limit = u64::try_from(timeout_ms).map_or(FOREVER, Duration::from_millis);
    let only_frees = handle.is_child() || handle.is_broken();
    let left = catch_unwind(AssertUnwindSafe(|| {
        handle.free(|domain| if only_frees { drop(domain) } else { drop(domain.detach(limit)) });
    }));
    if left.is_ok() { 0 } else { code(Reason::LibraryPanicked) }
}

/// Stores the number of the domain, to which others send, in '*id'.
///
/// # Safety
///
/// 'domain' is null or attached. 'id' is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_domain_id(domain: *const Handle, id: *mut u32) -> i32 {
    // SAFETY: `domain` is null or attached by the caller's promise, `id` is null or writable.
    unsafe { domain::call_locked(domain, |inner| crate::message::store_result(id, inner.domain.id().number())) }
}

/// Returns the name of the domain. The string is valid until isth_detach(). Null for a null domain.
///
/// # Safety
///
/// 'domain' is null or attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_domain_name(domain: *const Handle) -> *const c_char {
    // SAFETY: null, or a live handle by the caller's promise.
    unsafe { domain.as_ref() }.map_or(std::ptr::null(), |handle| handle.name().as_ptr())
}

fn attach(options: Option<&IsthOptions>) -> Result<Handle, Refusal> {
    let options = match options {
        None => isthmus_client::Options::from_environment().map_err(|error| refusal(error.into()))?,
        Some(options) => to_client_options(options)?,
    };
    let domain = Domain::attach_with(&options).map_err(refusal)?;
    Handle::new(domain, options.wait)
}

/// Converts the options of the program, as if the environment had set them. The environment decides what the program
/// leaves open.
fn to_client_options(options: &IsthOptions) -> Result<isthmus_client::Options, Refusal> {
    let known = crate::ISTH_NO_AUTOSTART | crate::ISTH_NO_REGCACHE | crate::ISTH_NO_CHANNELS;
    if options.flags & !known != 0 || options.reserved0 != 0 || options.reserved != [0; 4] {
        return Err(Refusal::new(Reason::RequestInvalid, "unknown flags or reserved fields of the options"));
    }
    let wait = match options.wait {
        crate::ISTH_WAIT_DEFAULT => None,
        crate::ISTH_WAIT_ADAPTIVE => Some("adaptive"),
        crate::ISTH_WAIT_SPIN => Some("spin"),
        crate::ISTH_WAIT_SLEEP => Some("sleep"),
        other => return Err(Refusal::new(Reason::RequestInvalid, format!("options.wait is {other}"))),
    };
    // SAFETY: null, or a string by the promise of `isth_attach`'s caller.
    let (name, socket) = unsafe { (types::string(options.name), types::string(options.socket)) };
    let name = name.map(types::utf8).transpose()?;
    let off = |flag| (options.flags & flag != 0).then(|| "0".to_owned());
    let said = |variable: Variable| match variable {
        environment::DOMAIN => name.map(str::to_owned),
        environment::WAIT => wait.map(str::to_owned),
        environment::SPIN_US => (options.spin_us != 0).then(|| options.spin_us.to_string()),
        environment::AUTOSTART => off(crate::ISTH_NO_AUTOSTART),
        environment::RCACHE => off(crate::ISTH_NO_REGCACHE),
        environment::CHANNELS => off(crate::ISTH_NO_CHANNELS),
        _ => None,
    };
    let in_environment =
        |variable: Variable| std::env::var_os(variable.name).map(|value| value.to_string_lossy().into_owned());
    let read = isthmus_client::Options::from_variables(|variable| said(variable).or_else(|| in_environment(variable)));
    let mut read = read.map_err(|error| refusal(error.into()))?;
    if let Some(socket) = socket.filter(|socket| !socket.is_empty()) {
        read.socket = Some(path(socket));
    }
    Ok(read)
}

fn path(text: &CStr) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(text.to_bytes()))
}

/// The reason of the table, and the text.
fn refusal(error: AttachError) -> Refusal {
    let exhausted = match error.source().and_then(|source| source.downcast_ref()) {
        Some(&(Errno::MFILE | Errno::NFILE)) => Reason::OutOfFds,
        _ => Reason::OutOfMemory,
    };
    match error {
        AttachError::Refused(refusal) => refusal,
        AttachError::Options(error) => Refusal::new(Reason::RequestInvalid, error.to_string()),
        AttachError::Platform(error) => Refusal::new(exhausted, error.to_string()),
    }
}
