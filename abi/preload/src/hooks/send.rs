//! Calls that send.

use core::ffi::{c_int, c_void};

use isthmus_layout::sockets::Interest;
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::leave::before_passing;
use super::to_c;
use super::vector::Vector;
use crate::connection::{Connection, Path, flags};
use crate::copy;
use crate::plain::PlainCall;
use crate::stream_io::{BYTES_MAX, Parts, Sent};
use crate::table::{InUse, connection};
use crate::wait::Wait;
use crate::{errno, kernel, real};

/// Bytes that `sendfile` copies at a time.
const FILE_PIECE: usize = 64 << 10;

/// The flags that a stream serves. A call with any other one is the kernel's, and the connection leaves to TCP before.
const KNOWN_FLAGS: c_int =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR | libc::MSG_DONTROUTE;

/// Sends on a tracked connection. `kernel` makes the program's own call, which refuses what has no `parts`.
fn send_parts(
    connection: &InUse<Connection>,
    fd: c_int,
    parts: impl FnOnce() -> Option<Vector>,
    flags: c_int,
    kernel: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if !connection.stage().is_followed() {
        return kernel();
    }
    Connection::progress(connection, fd);
    let stream = match connection.path() {
        Path::Plain(call) => return plain(connection, &call, fd, kernel),
        Path::Kernel => return kernel(),
        Path::Stream(stream) => stream,
    };
    let Some(parts) = parts() else { return kernel() };
    let mut left = Parts::new(parts.as_ref());
    let (total, mut done, mut wait) = (left.len(), 0, None);
    if flags & !KNOWN_FLAGS != 0 {
        Connection::send_by_tcp(connection, fd);
        return kernel();
    }
    if total == 0 {
        return kernel();
    }
    let blocks = flags & libc::MSG_DONTWAIT == 0 && !connection.nonblocking.load(core::sync::atomic::Ordering::Relaxed);
    let result = loop {
        // A call that has sent something reports an end by its count, and not by a signal.
        let flags = if done > 0 { flags | libc::MSG_NOSIGNAL } else { flags };
        match connection.try_send(fd, stream, left, flags) {
            Ok(Sent { count, is_over }) => {
                done += count;
                if is_over || done == total {
                    break Ok(done);
                }
                left.skip(count);
            }
            Err(libc::EAGAIN) if blocks && connection.writes_ring() => {
                let wait = wait.get_or_insert_with(|| Wait::new(fd, Interest::Room));
                if let Err(code) = connection.wait(fd, stream, wait) {
                    if code == libc::EINTR && done == 0 && wait.restarts() {
                        if crate::table::connection(fd).as_ref() == Some(connection) {
                            continue;
                        }
                        return kernel(); // A handler has closed the descriptor, or made it another file.
                    }
                    break if done > 0 { Ok(done) } else { Err(code) };
                }
            }
            Err(code) => {
                if done > 0 && code == libc::ECONNRESET {
                    connection.take_flag(flags::RESET_TOLD);
                    connection.set_flag(flags::RESET_DUE); // The next call reports it.
                }
                break if done > 0 { Ok(done) } else { Err(code) };
            }
        }
    };
    to_c(result)
}

/// Sends on TCP, and counts.
fn plain(connection: &InUse<Connection>, call: &PlainCall<'_>, fd: c_int, kernel: impl FnOnce() -> ssize_t) -> ssize_t {
    let result = kernel();
    if result > 0 {
        let errno = errno::get();
        connection.plain.sent(result as u64);
        Connection::count(connection, fd, true, result as u64);
        errno::set(errno);
    }
    let _ = call;
    result
}

/// Returns true if the kernel reads this address, of which TCP has no use.
fn is_readable(to: *const sockaddr, len: socklen_t) -> bool {
    // SAFETY: an address of the program, or one that cannot be reached.
    to.is_null() || len == 0 || unsafe { copy::read(to.cast::<u8>()) }.is_ok()
}

macro_rules! hook {
    ($fd:ident, $parts:expr, $flags:expr, $kernel:expr) => {
        match connection($fd) {
            Some(connection) => send_parts(&connection, $fd, || $parts, $flags, || $kernel),
            None => $kernel,
        }
    };
}

/// # Safety
///
/// As the C library's `write`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller's contract is the C library's.
    hook!(fd, Vector::one(from.cast_mut(), len), 0, unsafe { real::write(fd, from, len) })
}

/// # Safety
///
/// As the C library's `writev`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's contract is the C library's.
    hook!(fd, unsafe { Vector::read(vector, count as usize) }, 0, unsafe { real::writev(fd, vector, count) })
}

/// # Safety
///
/// As the C library's `send`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract is the C library's.
    hook!(fd, Vector::one(from.cast_mut(), len.min(BYTES_MAX)), flags, unsafe { real::send(fd, from, len, flags) })
}

/// # Safety
///
/// As the C library's `sendto`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: the caller's contract is the C library's.
    let parts = || if is_readable(to, to_len) { Vector::one(from.cast_mut(), len.min(BYTES_MAX)) } else { None };
    // SAFETY: as above.
    hook!(fd, parts(), flags, unsafe { real::sendto(fd, from, len, flags, to, to_len) })
}

/// # Safety
///
/// As the C library's `sendmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some(connection) = connection(fd) else {
        // SAFETY: the caller's contract is the C library's.
        return unsafe {
            before_passing(message);
            real::sendmsg(fd, message, flags)
        };
    };
    // SAFETY: as above.
    let parts = || unsafe {
        let header = copy::read(message).ok()?;
        let is_complete = is_readable(header.msg_name.cast(), header.msg_namelen);
        if is_complete { Vector::read(header.msg_iov, header.msg_iovlen) } else { None }
    };
    // SAFETY: as above.
    send_parts(&connection, fd, parts, flags, || unsafe { real::sendmsg(fd, message, flags) })
}

/// # Safety
///
/// As the C library's `sendmmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    if connection(fd).is_none() || messages.is_null() {
        // SAFETY: the caller's contract is the C library's: null or `count` messages.
        unsafe {
            if !messages.is_null() {
                (0..count as usize).for_each(|index| before_passing(&raw const (*messages.add(index)).msg_hdr));
            }
            return real::sendmmsg(fd, messages, count, flags);
        }
    }
    for done in 0..count {
        // SAFETY: the caller has `count` messages.
        let result = unsafe { sendmsg(fd, &raw const (*messages.add(done as usize)).msg_hdr, flags) };
        if result < 0 {
            return if done > 0 { done as c_int } else { -1 };
        }
        // SAFETY: as above.
        let _ = unsafe { copy::write(&raw mut (*messages.add(done as usize)).msg_len, result as u32) };
    }
    count as c_int
}

/// # Safety
///
/// As the C library's `sendfile`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t {
    let is_stream = |fd| connection(fd).is_some_and(|connection| connection.stream().is_some());
    if at.is_null() && count > 0 && is_stream(from) && kernel::is_pipe(to) {
        // SAFETY: the caller's contract is the C library's.
        return unsafe { super::leave::splice(from, core::ptr::null_mut(), to, core::ptr::null_mut(), count, 0) };
    }
    let Some(connection) = connection(to) else {
        // SAFETY: the caller's contract is the C library's.
        return unsafe { real::sendfile(to, from, at, count) };
    };
    if !connection.stage().is_followed() {
        // SAFETY: as above.
        return unsafe { real::sendfile(to, from, at, count) };
    }
    Connection::progress(&connection, to);
    match connection.path() {
        // SAFETY: as above.
        Path::Plain(call) => return plain(&connection, &call, to, || unsafe { real::sendfile(to, from, at, count) }),
        // SAFETY: as above.
        Path::Kernel => return unsafe { real::sendfile(to, from, at, count) },
        // The kernel refuses a file without a position before it moves a byte.
        // SAFETY: as above.
        Path::Stream(_) if !kernel::has_position(from) => return unsafe { real::sendfile(to, from, at, count) },
        Path::Stream(_) => {}
    }
    // SAFETY: as above.
    if !at.is_null() && unsafe { copy::read(at) }.is_err() {
        // SAFETY: as above. The kernel refuses the address.
        return unsafe { real::sendfile(to, from, at, count) };
    }
    // SAFETY: as above.
    unsafe { copy_file(to, from, at, count) }
}

/// # Safety
///
/// As the C library's `sendfile64`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the caller's contract is the C library's. Both have offsets of 64 bits here.
    unsafe { sendfile(to, from, at, count) }
}

/// Copies from a file to a stream.
///
/// # Safety
///
/// `at` is null or an offset.
unsafe fn copy_file(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t {
    let mut piece = vec![0u8; FILE_PIECE.min(count.max(1))];
    let mut done = 0usize;
    while done < count {
        let len = piece.len().min(count - done);
        // SAFETY: the caller's contract, and a buffer of ours.
        let read = unsafe {
            if at.is_null() {
                // What a short write leaves must stay in the file, so it is read at its position and skipped later.
                let position = libc::lseek(from, 0, libc::SEEK_CUR);
                libc::pread(from, piece.as_mut_ptr().cast(), len, position)
            } else {
                libc::pread(from, piece.as_mut_ptr().cast(), len, *at)
            }
        };
        if read <= 0 {
            return if done > 0 { done as ssize_t } else { read };
        }
        // SAFETY: as above.
        let mut sent = unsafe { write(to, piece.as_ptr().cast(), read as usize) };
        if sent < 0 {
            return if done > 0 { done as ssize_t } else { sent };
        }
        if sent < read {
            // The kernel tries to send the rest, and drops the error that it meets then.
            let rest = &piece[sent as usize..read as usize];
            // SAFETY: as above.
            let more = unsafe { send(to, rest.as_ptr().cast(), rest.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
            sent += more.max(0);
        }
        // SAFETY: as above.
        unsafe {
            if at.is_null() {
                libc::lseek(from, sent as off_t, libc::SEEK_CUR);
            } else {
                *at += sent as off_t;
            }
        }
        done += sent as usize;
        if sent < read {
            break;
        }
    }
    done as ssize_t
}

/// Looks for the end of a connection. Returns true if this call has to report a reset.
pub(super) fn takes_reset(fd: c_int) -> bool {
    connection(fd).is_some_and(|connection| {
        if let Some(stream) = connection.stream() {
            connection.look_for_end(fd, stream);
        }
        connection.take_reset(connection.kernel_fd(fd))
    })
}
