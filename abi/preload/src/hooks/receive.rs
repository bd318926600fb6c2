//! Calls that receive.

use core::ffi::{c_int, c_void};

use isthmus_layout::sockets::Interest;
use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::to_c;
use crate::connection::{Connection, Stage};
use crate::stream_io::Parts;
use crate::table::{InUse, connection};
use crate::wait::{deadline, restarts_calls};
use crate::{errno, real};

/// Receives on a tracked connection. `kernel` makes the program's own call.
fn receive(
    connection: &InUse<Connection>,
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    kernel: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if connection.stage() == Stage::Off || connection.stage() == Stage::Listener {
        return kernel();
    }
    Connection::progress(connection, fd);
    let special = libc::MSG_OOB | libc::MSG_ERRQUEUE;
    let Some(stream) = connection.stream() else { return plain(connection, fd, flags, kernel) };
    if flags & special != 0 {
        return kernel();
    }
    let mut left = Parts::new(parts);
    let (total, mut done, mut until) = (left.len(), 0, None);
    if total == 0 {
        // The kernel answers as long as it would not wait for bytes that come by the ring.
        let waits = flags & libc::MSG_DONTWAIT == 0 && !connection.is_nonblocking();
        return if waits || connection.has_data(stream) { 0 } else { kernel() };
    }
    let peek = flags & libc::MSG_PEEK != 0;
    let blocks = flags & libc::MSG_DONTWAIT == 0 && !connection.is_nonblocking();
    let all = flags & libc::MSG_WAITALL != 0 && blocks && !peek;
    let result = loop {
        match connection.try_receive(fd, stream, left, peek) {
            Ok(0) => break Ok(done),
            Ok(count) => {
                done += count;
                if !all || done == total {
                    break Ok(done);
                }
                left.skip(count);
            }
            Err(libc::EAGAIN) if blocks => {
                let until = *until.get_or_insert_with(|| deadline(fd, Interest::Data));
                if let Err(code) = connection.wait(fd, stream, Interest::Data, until) {
                    if code == libc::EINTR && done == 0 && until.is_none() && restarts_calls() {
                        continue;
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
fn plain(connection: &InUse<Connection>, fd: c_int, flags: c_int, kernel: impl FnOnce() -> ssize_t) -> ssize_t {
    let shared = connection.shared();
    shared.with_receiver(|receiver| receiver.begin_tcp());
    let result = kernel();
    let errno = errno::get();
    let counted = if flags & (libc::MSG_PEEK | libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 { 0 } else { result.max(0) };
    shared.with_receiver(|receiver| receiver.end_tcp(counted as u64));
    if counted > 0 {
        Connection::count(connection, fd, false, counted as u64);
    }
    errno::set(errno);
    result
}

impl Connection {
    fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(core::sync::atomic::Ordering::Relaxed)
    }
}

fn one(into: *mut c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: into, iov_len: len }]
}

/// The parts of a call with vectors. None for what the kernel refuses.
///
/// # Safety
///
/// `parts` has `count` entries.
pub(super) unsafe fn parts<'a>(parts: *const iovec, count: usize) -> Option<&'a [iovec]> {
    // SAFETY: the caller's contract.
    (!parts.is_null() && count <= 1024).then(|| unsafe { core::slice::from_raw_parts(parts, count) })
}

macro_rules! hook {
    ($fd:ident, $parts:expr, $flags:expr, $kernel:expr) => {
        match (connection($fd), $parts) {
            (Some(connection), Some(parts)) => receive(&connection, $fd, parts.as_ref(), $flags, || $kernel),
            _ => $kernel,
        }
    };
}

/// # Safety
///
/// As the C library's `read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller's contract is the C library's.
    hook!(fd, Some(one(into, len)), 0, unsafe { real::read(fd, into, len) })
}

/// # Safety
///
/// As the C library's `__read_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, into: *mut c_void, len: size_t, size: size_t) -> ssize_t {
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
pub unsafe extern "C" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's contract is the C library's.
    hook!(fd, usize::try_from(count).ok().and_then(|count| unsafe { parts(vector, count) }), 0, unsafe {
        real::readv(fd, vector, count)
    })
}

/// # Safety
///
/// As the C library's `recv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract is the C library's.
    hook!(fd, Some(one(into, len)), flags, unsafe { real::recv(fd, into, len, flags) })
}

/// # Safety
///
/// As the C library's `__recv_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(fd: c_int, into: *mut c_void, len: size_t, size: size_t, flags: c_int) -> ssize_t {
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
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let result = hook!(fd, Some(one(into, len)), flags, {
        // SAFETY: the caller's contract is the C library's.
        unsafe { real::recvfrom(fd, into, len, flags, from, from_len) }
    });
    if result >= 0 && connection(fd).is_some_and(|connection| connection.stream().is_some()) && !from_len.is_null() {
        // SAFETY: as above. TCP reports no address.
        unsafe { *from_len = 0 };
    }
    result
}

/// # Safety
///
/// As the C library's `__recvfrom_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
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
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let (Some(connection), false) = (connection(fd), message.is_null()) else {
        // SAFETY: the caller's contract is the C library's.
        return unsafe { real::recvmsg(fd, message, flags) };
    };
    // SAFETY: the caller's contract is the C library's.
    let Some(parts) = (unsafe { parts((*message).msg_iov, (*message).msg_iovlen) }) else {
        // SAFETY: as above.
        return unsafe { real::recvmsg(fd, message, flags) };
    };
    let mut was_kernel = false;
    let result = receive(&connection, fd, parts, flags, || {
        was_kernel = true;
        // SAFETY: as above.
        unsafe { real::recvmsg(fd, message, flags) }
    });
    if result >= 0 && !was_kernel {
        // SAFETY: as above. TCP reports no address, and rings carry no control messages.
        unsafe { ((*message).msg_namelen, (*message).msg_controllen, (*message).msg_flags) = (0, 0, 0) };
    }
    result
}

/// # Safety
///
/// As the C library's `recvmmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if connection(fd).is_none() || messages.is_null() {
        // SAFETY: the caller's contract is the C library's.
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
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
        unsafe { (*messages.add(done as usize)).msg_len = result as u32 };
    }
    count as c_int
}
