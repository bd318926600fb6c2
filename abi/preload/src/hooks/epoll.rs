//! Calls of epoll.

use core::ffi::c_int;

use libc::{epoll_event, sigset_t, timespec};

use crate::epoll_set::EpollSet;
use crate::inside::is_inside;
use crate::table::{Tracked, connection, set};
use crate::wait_limit::{Limit, time_of};
use crate::{connection, copy, errno, fork, kernel, real, settings};

/// The largest array of events that the kernel takes (`EP_MAX_EVENTS`).
const EVENTS_MAX: usize = c_int::MAX as usize / size_of::<epoll_event>();

/// Tracks a set that is new.
fn created(fd: c_int) -> c_int {
    if fd >= 0 && settings::get().enabled && !is_inside() && !fork::is_borrowed() {
        let errno = errno::get();
        connection::forget_stale(fd);
        fork::register();
        if let Some(set) = EpollSet::table().insert(fd) {
            set.start(fd);
        }
        errno::set(errno);
    }
    fd
}

/// # Safety
///
/// As the C library's `epoll_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    created(unsafe { real::epoll_create(size) })
}

/// # Safety
///
/// As the C library's `epoll_create1`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    created(unsafe { real::epoll_create1(flags) })
}

/// # Safety
///
/// As the C library's `epoll_ctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    match (connection(fd), set(epoll)) {
        (Some(connection), Some(set)) => {
            // SAFETY: the caller's contract is the C library's: an event, or an address that the kernel refuses. It reads none for a removal.
            return match unsafe { copy::read(event) } {
                Ok(event) => EpollSet::control(&set, operation, fd, &connection, Some(event)),
                Err(_) if operation == libc::EPOLL_CTL_DEL => EpollSet::control(&set, operation, fd, &connection, None),
                // SAFETY: as above.
                Err(_) => unsafe { real::epoll_ctl(epoll, operation, fd, event) },
            };
        }
        // The program waits in a set that it has not made through the library.
        (Some(connection), None) if operation == libc::EPOLL_CTL_ADD => {
            connection::Connection::leave(&connection, fd);
        }
        _ => {}
    }
    if operation != libc::EPOLL_CTL_DEL
        && let (Some(inner), Some(outer)) = (set(fd), set(epoll))
    {
        outer.contain(&inner);
    }
    // SAFETY: as above.
    unsafe { real::epoll_ctl(epoll, operation, fd, event) }
}

/// Waits in a tracked set. None if the C library's own call serves. `wait` has a time in nanoseconds, or None without an end.
///
/// # Safety
///
/// `events` has `max` entries, or the kernel refuses them.
unsafe fn wait_in(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    (limit, polls): (Limit, bool),
    wait: impl Fn(&mut [epoll_event], Option<u64>) -> c_int,
) -> Option<c_int> {
    let is_taken = max > 0 && max as usize <= EVENTS_MAX && !events.is_null();
    let tracked = if is_taken { set(epoll) } else { None }?;
    // SAFETY: the caller has room for `max` events, and gives it to the call.
    let events = unsafe { core::slice::from_raw_parts_mut(events, max as usize) };
    Some(tracked.wait(events, limit, polls, wait))
}

/// # Safety
///
/// As the C library's `epoll_pwait`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let wait = |events: &mut [epoll_event], time: Option<u64>| {
        let ms = time.map_or(-1, |ns| c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX));
        // SAFETY: a slice of events, and the caller's mask.
        unsafe { real::epoll_pwait(epoll, events.as_mut_ptr(), events.len() as c_int, ms, mask) }
    };
    // SAFETY: a mask, or an address that the kernel refuses.
    let is_refused = !mask.is_null() && unsafe { copy::read(mask.cast::<u64>()) }.is_err();
    let max_taken = if is_refused { 0 } else { max };
    // SAFETY: the caller's contract is the C library's.
    let waited = unsafe { wait_in(epoll, events, max_taken, (Limit::after_ms(timeout), timeout == 0), wait) };
    // SAFETY: as above.
    waited.unwrap_or_else(|| unsafe { real::epoll_pwait(epoll, events, max, timeout, mask) })
}

/// # Safety
///
/// As the C library's `epoll_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    unsafe { epoll_pwait(epoll, events, max, timeout, core::ptr::null()) }
}

/// # Safety
///
/// As the C library's `epoll_pwait2`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if let Some(time) = time_of(timeout) {
        let wait = |events: &mut [epoll_event], time: Option<u64>| {
            let time = time.map(kernel::timespec_of);
            let pointer = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
            // SAFETY: a slice of events, null or a time, and the caller's mask.
            unsafe { real::epoll_pwait2(epoll, events.as_mut_ptr(), events.len() as c_int, pointer, mask) }
        };
        let polls = time.as_ref().is_some_and(|time| time.tv_sec == 0 && time.tv_nsec == 0);
        // SAFETY: the caller's contract is the C library's.
        let waited = unsafe { wait_in(epoll, events, max, (Limit::after(time.as_ref()), polls), wait) };
        if let Some(count) = waited {
            return count;
        }
    }
    // SAFETY: as above.
    unsafe { real::epoll_pwait2(epoll, events, max, timeout, mask) }
}
