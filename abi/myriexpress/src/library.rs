//! The state of the library: `mx_init()`, `mx_finalize()`, and the child of a fork.
//!
//! ```text
//!   not initialised ── mx_init ──► initialised ── mx_finalize ──► not initialised
//!                                     │ fork
//!                                     ▼
//!                       child: endpoints of the parent are none of its own; it may open others
//! ```

use crate::codes::Return;
use crate::errors::{Failure, call_at_any_time};
use crate::{boards, delivery, errors, open, table};
use isthmus_shm::ForkGuard;
use std::panic::catch_unwind;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The API level of this library: `MX_API >> 8` of the program's header.
const API_LEVEL: i32 = 3;

/// The guard of the process that has initialised the library; null while there is none.
static GUARD: AtomicPtr<ForkGuard> = AtomicPtr::new(std::ptr::null_mut());

/// The guard of the last process that initialised the library, kept for a later initialisation. Guards are never freed,
/// because another thread may use one.
static LAST: AtomicPtr<ForkGuard> = AtomicPtr::new(std::ptr::null_mut());

/// Registers, once, the exit handler that waits for the receivers of copied sends.
static REGISTERED: Once = Once::new();

fn guard() -> Option<&'static ForkGuard> {
    // SAFETY: null, or a guard that was leaked in `begin`.
    unsafe { GUARD.load(Ordering::Acquire).as_ref() }
}

/// Returns an error before initialisation, when only `mx_set_error_handler()` may be called.
#[inline]
pub(crate) fn check() -> Result<(), Return> {
    if GUARD.load(Ordering::Acquire).is_null() { Err(Return::NOT_INITIALIZED) } else { Ok(()) }
}

/// Returns an error unless this process has initialised the library.
#[inline]
pub(crate) fn check_own() -> Result<(), Return> {
    match guard() {
        None => Err(Return::NOT_INITIALIZED),
        Some(guard) if guard.is_child() => Err(Return::BAD_ENDPOINT),
        Some(_) => Ok(()),
    }
}

/// Initialises the library for this process. A child abandons the endpoints of its parent.
pub(crate) fn begin() -> Result<(), Failure> {
    let last = LAST.load(Ordering::Acquire);
    // SAFETY: as in `guard`.
    let known = unsafe { last.as_ref() };
    if known.is_none_or(ForkGuard::is_child) {
        if known.is_some() {
            table::abandon_inherited_slots();
        }
        let new = ForkGuard::new().map_err(|_| Return::NO_RESOURCES)?;
        let new = Box::into_raw(Box::new(new));
        if LAST.compare_exchange(last, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: ours, from `into_raw` above: another thread was first, and no other thread has seen this one.
            drop(unsafe { Box::from_raw(new) });
        }
    }
    GUARD.store(LAST.load(Ordering::Acquire), Ordering::Release);
    // SAFETY: the function takes no arguments, unwinds nowhere, and stays loaded until it was called: the C library calls it at the latest
    // when this library is unloaded.
    REGISTERED.call_once(|| _ = unsafe { libc::atexit(delivery::at_exit) });
    Ok(())
}

/// `mx_init()`.
#[unsafe(no_mangle)]
pub extern "C" fn mx__init_api(api: i32) -> Return {
    call_at_any_time("mx_init", 0, || {
        errors::choose_default();
        if api >> 8 != API_LEVEL {
            return Err(Return::BAD_LIB_VERSION.into());
        }
        if guard().is_some_and(|guard| !guard.is_child()) {
            return Err(Return::ALREADY_INITIALIZED.into());
        }
        boards::check()?;
        begin()
    })
}

/// `mx_finalize()`. Closes open endpoints. Succeeds also if the library is not initialised.
#[unsafe(no_mangle)]
pub extern "C" fn mx_finalize() -> Return {
    if check_own().is_ok() {
        // Endpoints that fail to close end with the process.
        let _ = catch_unwind(open::close_all);
    }
    GUARD.store(std::ptr::null_mut(), Ordering::Release);
    Return::SUCCESS
}
