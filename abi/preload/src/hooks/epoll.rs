//! Calls of epoll.

use core::ffi::c_int;

use libc::{epoll_event, sigset_t, timespec};

use super::poll::ms_of;
use crate::epoll_set::{EpollSet, track};
use crate::real;
use crate::table::{connection, set};

/// # Safety
///
/// As the C library's `epoll_ctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let known = connection(fd).filter(|connection| connection.stage() != crate::connection::Stage::Listener);
    match known.and_then(|connection| Some((track(epoll)?, connection))) {
        Some((set, connection)) => {
            // SAFETY: the caller's contract is the C library's: null or an event.
            let event = unsafe { event.as_ref() }.copied();
            EpollSet::control(&set, operation, fd, &connection, event)
        }
        // SAFETY: as above.
        None => unsafe { real::epoll_ctl(epoll, operation, fd, event) },
    }
}

/// # Safety
///
/// As the C library's `epoll_pwait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let tracked = if max > 0 && !events.is_null() { set(epoll) } else { None };
    let Some(tracked) = tracked else {
        // SAFETY: the caller's contract is the C library's.
        return unsafe { real::epoll_pwait(epoll, events, max, timeout, mask) };
    };
    // SAFETY: the caller has room for `max` events, and gives it to the call.
    let events = unsafe { core::slice::from_raw_parts_mut(events, max as usize) };
    tracked.wait(events, timeout, |events, timeout| {
        // SAFETY: a slice of events, and the caller's mask.
        unsafe { real::epoll_pwait(epoll, events.as_mut_ptr(), events.len() as c_int, timeout, mask) }
    })
}

/// # Safety
///
/// As the C library's `epoll_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    unsafe { epoll_pwait(epoll, events, max, timeout, core::ptr::null()) }
}

/// # Safety
///
/// As the C library's `epoll_pwait2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null or a time.
    let timeout = unsafe { timeout.as_ref() }.map_or(-1, ms_of);
    // SAFETY: the caller's contract is the C library's.
    unsafe { epoll_pwait(epoll, events, max, timeout, mask) }
}
