//! The C library's `errno`.

use core::ffi::c_int;

/// Reads `errno`.
pub(crate) fn get() -> c_int {
    // SAFETY: the C library returns the address of this thread's variable.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`.
pub(crate) fn set(value: c_int) {
    // SAFETY: as in `get`.
    unsafe { *libc::__errno_location() = value };
}
