//! Calls that concern the whole process.

use core::ffi::{c_int, c_uint};

use super::socket::forget;
use crate::connection::Connection;
use crate::epoll_set::EpollSet;
use crate::table::Tracked;
use crate::{fork, real};

/// # Safety
///
/// As the C library's `close_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let only_later = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
    if !only_later {
        forget_range(first, last);
    }
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::syscall(libc::SYS_close_range, first as usize, last as usize, flags as usize, 0, 0, 0) as c_int }
}

/// # Safety
///
/// As the C library's `closefrom`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    forget_range(first.max(0) as c_uint, c_uint::MAX);
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::closefrom(first) };
}

/// Ends the tracking of descriptors that are about to be closed.
fn forget_range(first: c_uint, last: c_uint) {
    if !fork::is_borrowed() {
        let is_in = |fd: c_int| u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd));
        let mut fds = Vec::new();
        Connection::table().for_each(|fd, _| fds.push(fd));
        EpollSet::table().for_each(|fd, _| fds.push(fd));
        fds.into_iter().filter(|fd| is_in(*fd)).for_each(forget);
    }
}
