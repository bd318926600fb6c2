//! Calls that receive.

use core::ffi::{c_int, c_void};

use isthmus_layout::sockets::Interest;
use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::vector::Vector;
use super::{inq, to_c};
use crate::connection::{Connection, Path};
use crate::copy;
use crate::plain::PlainCall;
use crate::stream_io::{BYTES_MAX, Parts};
use crate::table::{InUse, connection};
use crate::wait::Wait;
use crate::{errno, real};

/// The flags that a stream serves. A call with any other one is the kernel's, and the connection leaves to TCP before.
const KNOWN_FLAGS: c_int = libc::MSG_PEEK
    | libc::MSG_WAITALL
    | libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC
    | libc::MSG_WAITFORONE
    | libc::MSG_OOB
    | libc::MSG_TRUNC
    | libc::MSG_ERRQUEUE;

/// The entries of a vector, at most (`UIO_MAXIOV`).
pub(super) const PARTS_MAX: usize = 1024;

/// The bytes that a call with `MSG_TRUNC` throws away at a time.
const SKIPPED_MAX: usize = 64 << 10;

/// Receives on a tracked connection. `kernel` makes the program's own call, which refuses what has no `parts`.
fn receive(
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
    let special = libc::MSG_OOB | libc::MSG_ERRQUEUE;
    let stream = match connection.path() {
        Path::Plain(call) => return plain(connection, &call, fd, flags, kernel),
        Path::Kernel => return kernel(),
        Path::Stream(stream) => stream,
    };
    if flags & special != 0 {
        return kernel();
    }
    if flags & !KNOWN_FLAGS != 0 {
        Connection::leave(connection, fd);
        return kernel();
    }
    let Some(parts) = parts() else { return kernel() };
    let total = Parts::new(parts.as_ref()).len();
    // TCP throws bytes away for this flag, and writes no buffer.
    let skips = flags & libc::MSG_TRUNC != 0 && total > 0;
    let mut skipped = vec![0u8; if skips { total.min(SKIPPED_MAX) } else { 0 }];
    let skipped = [iovec { iov_base: skipped.as_mut_ptr().cast(), iov_len: skipped.len() }];
    let mut left = Parts::new(if skips { &skipped } else { parts.as_ref() });
    let (total, mut done, mut wait) = (left.len(), 0, None);
    if total == 0 {
        // The kernel answers as long as it would not wait for bytes that come by the ring.
        let waits = flags & libc::MSG_DONTWAIT == 0 && !connection.is_nonblocking();
        return if waits || connection.has_data(stream) { 0 } else { kernel() };
    }
    let peek = flags & libc::MSG_PEEK != 0;
    let blocks = flags & libc::MSG_DONTWAIT == 0 && !connection.is_nonblocking();
    let all = flags & libc::MSG_WAITALL != 0 && blocks && !peek;
    let result = loop {
        match connection.try_receive(fd, stream, left, peek, blocks) {
            Ok(0) => break Ok(done),
            Ok(count) => {
                done += count;
                if !all || done == total {
                    break Ok(done);
                }
                left.skip(count);
            }
            Err(libc::EAGAIN) if blocks => {
                let wait = wait.get_or_insert_with(|| Wait::new(fd, Interest::Data));
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
            Err(code) => break if done > 0 { Ok(done) } else { Err(code) },
        }
    };
    to_c(result)
}

/// Receives on TCP, and counts.
fn plain(
    connection: &InUse<Connection>,
    call: &PlainCall<'_>,
    fd: c_int,
    flags: c_int,
    kernel: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let result = kernel();
    let is_counted = flags & (libc::MSG_PEEK | libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0;
    if result > 0 && is_counted {
        let errno = errno::get();
        connection.plain.received(result as u64);
        Connection::count(connection, fd, false, result as u64);
        errno::set(errno);
    }
    let _ = call;
    result
}

impl Connection {
    fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(core::sync::atomic::Ordering::Relaxed)
    }
}

macro_rules! hook {
    ($fd:ident, $parts:expr, $flags:expr, $kernel:expr) => {
        match connection($fd) {
            Some(connection) => receive(&connection, $fd, || $parts, $flags, || $kernel),
            None => $kernel,
        }
    };
}

/// # Safety
///
/// As the C library's `read`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller's contract is the C library's.
    hook!(fd, Vector::one(into, len), 0, unsafe { real::read(fd, into, len) })
}

/// # Safety
///
/// As the C library's `__read_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(fd: c_int, into: *mut c_void, len: size_t, size: size_t) -> ssize_t {
    if len > size {
        std::process::abort();
    }
    // SAFETY: the caller's contract is the C library's.
    unsafe { read(fd, into, len) }
}

/// # Safety
///
/// As the C library's `readv`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's contract is the C library's.
    hook!(fd, unsafe { Vector::read(vector, count as usize) }, 0, unsafe { real::readv(fd, vector, count) })
}

/// # Safety
///
/// As the C library's `recv`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract is the C library's.
    hook!(fd, Vector::one(into, len.min(BYTES_MAX)), flags, unsafe { real::recv(fd, into, len, flags) })
}

/// # Safety
///
/// As the C library's `__recv_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    if len > size {
        std::process::abort();
    }
    // SAFETY: the caller's contract is the C library's.
    unsafe { recv(fd, into, len, flags) }
}

/// # Safety
///
/// As the C library's `recvfrom`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let result = hook!(fd, Vector::one(into, len.min(BYTES_MAX)), flags, {
        // SAFETY: the caller's contract is the C library's.
        unsafe { real::recvfrom(fd, into, len, flags, from, from_len) }
    });
    if result >= 0 && connection(fd).is_some_and(|connection| connection.stream().is_some()) && !from_len.is_null() {
        // SAFETY: as above. TCP reports no address.
        let _ = unsafe { copy::write(from_len, 0) };
    }
    result
}

/// # Safety
///
/// As the C library's `__recvfrom_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    size: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    if len > size {
        std::process::abort();
    }
    // SAFETY: the caller's contract is the C library's.
    unsafe { recvfrom(fd, into, len, flags, from, from_len) }
}

/// # Safety
///
/// As the C library's `recvmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(connection) = connection(fd) else {
        // SAFETY: the caller's contract is the C library's.
        return unsafe { real::recvmsg(fd, message, flags) };
    };
    // SAFETY: the caller's contract is the C library's.
    let parts = || unsafe {
        let header = copy::read(message).ok()?;
        Vector::read(header.msg_iov, header.msg_iovlen)
    };
    let mut was_kernel = false;
    let result = receive(&connection, fd, parts, flags, || {
        was_kernel = true;
        // SAFETY: as above.
        unsafe { real::recvmsg(fd, message, flags) }
    });
    if result >= 0 && !was_kernel {
        // SAFETY: as above. TCP reports no address.
        let _ = copy::guarded(|| unsafe { ((*message).msg_namelen, (*message).msg_flags) = (0, 0) });
        // SAFETY: as above.
        unsafe { inq::put(&connection, fd, message) };
    }
    result
}

/// # Safety
///
/// As the C library's `recvmmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: a time, or an address that the kernel refuses.
    let is_refused = !timeout.is_null() && unsafe { copy::read(timeout) }.is_err();
    if is_refused || connection(fd).is_none() || messages.is_null() {
        // SAFETY: the caller's contract is the C library's.
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    }
    if let Some(connection) = connection(fd)
        && let Some(stream) = connection.stream()
        && let Err(error) = connection.take_error(fd, stream)
    {
        errno::set(error);
        return -1;
    }
    for done in 0..count {
        let first_only = if done == 0 { flags } else { flags | libc::MSG_DONTWAIT };
        // SAFETY: the caller has `count` messages.
        let result =
            unsafe { recvmsg(fd, &raw mut (*messages.add(done as usize)).msg_hdr, first_only & !libc::MSG_WAITFORONE) };
        if result <= 0 {
            return if done > 0 { done as c_int } else { result as c_int };
        }
        // SAFETY: as above.
        let _ = unsafe { copy::write(&raw mut (*messages.add(done as usize)).msg_len, result as u32) };
    }
    count as c_int
}
