//! Bytes between a stream and a pipe.

use core::ffi::{c_int, c_short, c_void};

use libc::{pollfd, ssize_t};

use super::{poll, receive, send};
use crate::{errno, kernel, real};

/// Bytes that a pipe takes at a time without waiting, once it has room.
const PIECE: usize = libc::PIPE_BUF;

/// Waits until a descriptor has an event. Returns false with `errno` if it has not.
fn wait(fd: c_int, events: c_short, is_nonblocking: bool) -> bool {
    let mut polled = pollfd { fd, events, revents: 0 };
    // SAFETY: one entry.
    let count = unsafe { poll::poll(&raw mut polled, 1, if is_nonblocking { 0 } else { -1 }) };
    if count == 0 {
        errno::set(libc::EAGAIN);
    }
    count > 0
}

/// Moves bytes from a stream to a pipe. They leave the stream once the pipe has them.
///
/// # Safety
///
/// As the C library's `splice`.
pub(super) unsafe fn splice_from(from: c_int, to: c_int, len: usize, is_nonblocking: bool) -> ssize_t {
    let mut bytes = [0u8; PIECE];
    let into: *mut c_void = bytes.as_mut_ptr().cast();
    // SAFETY: descriptors of the caller, and a buffer of this function.
    unsafe {
        // `SPLICE_F_NONBLOCK` is about the pipe, which the kernel looks at first. The socket blocks unless it is `O_NONBLOCK`.
        if !wait(to, libc::POLLOUT, is_nonblocking || kernel::is_nonblocking(to)) {
            return -1;
        }
        let found = receive::recv(from, into, len.min(PIECE), libc::MSG_PEEK);
        let Ok(found @ 1..) = usize::try_from(found) else { return found };
        let moved = real::write(to, into, found);
        if let Ok(moved @ 1..) = usize::try_from(moved) {
            receive::recv(from, into, moved, libc::MSG_DONTWAIT);
        }
        moved
    }
}

/// Moves bytes from a pipe to a stream.
///
/// # Safety
///
/// As the C library's `splice`.
pub(super) unsafe fn splice_to(from: c_int, to: c_int, len: usize, is_nonblocking: bool) -> ssize_t {
    let mut bytes = [0u8; PIECE];
    let into: *mut c_void = bytes.as_mut_ptr().cast();
    if !wait(from, libc::POLLIN, is_nonblocking || kernel::is_nonblocking(from)) {
        return -1;
    }
    if send::takes_reset(to) {
        errno::set(libc::ECONNRESET); // The bytes stay in the pipe.
        return -1;
    }
    if !wait(to, libc::POLLOUT, kernel::is_nonblocking(to)) {
        return -1;
    }
    // SAFETY: as above.
    let found = unsafe { real::read(from, into, len.min(PIECE)) };
    let Ok(total @ 1..) = usize::try_from(found) else { return found };
    let mut done = 0;
    while done < total {
        // SAFETY: as above.
        let sent = unsafe { send::send(to, into.wrapping_byte_add(done), total - done, 0) };
        match usize::try_from(sent) {
            Ok(count) => done += count,
            // The pipe has lost the bytes, so they must be sent. A ring that stays full spills.
            Err(_) if errno::get() == libc::EAGAIN => _ = wait(to, libc::POLLOUT, false),
            Err(_) if errno::get() == libc::EINTR => {}
            // The kernel would have sent a part of the bytes before, and dropped the error that it met then.
            Err(_) if errno::get() == libc::ECONNRESET => return total as ssize_t,
            Err(_) => return if done > 0 { done as ssize_t } else { -1 },
        }
    }
    total as ssize_t
}
