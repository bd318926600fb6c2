//! Calls that make, change and end sockets.

use core::ffi::{c_int, c_void};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::BorrowedFd;

use isthmus_platform::tcp_socket;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::connection::{self, Connection, Stage};
use crate::epoll_set::EpollSet;
use crate::inside::is_inside;
use crate::leave::leave_fd;
use crate::table::{self, Tracked};
use crate::{copy, errno, fork, kernel, not_here, real, session, settings, signals};

/// Requests of `ioctl` that set the receiver of signals (asm-generic/sockios.h).
const FIOSETOWN: libc::c_ulong = 0x8901;
const SIOCSPGRP: libc::c_ulong = 0x8902;

/// Reads an address of IPv4 or IPv6. An IPv4 address in IPv6 form is IPv4.
///
/// # Safety
///
/// `address` has `len` bytes, or cannot be reached.
unsafe fn ip_address(address: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    let len = len as usize;
    if len < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the caller's promise. The family lies in the first bytes, and the lengths of the others are checked.
    unsafe {
        match c_int::from(copy::read(address.cast::<libc::sa_family_t>()).ok()?) {
            libc::AF_INET if len >= size_of::<sockaddr_in>() => {
                let v4 = copy::read(address.cast::<sockaddr_in>()).ok()?;
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 if len >= size_of::<sockaddr_in6>() => {
                let v6 = copy::read(address.cast::<sockaddr_in6>()).ok()?;
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr).to_canonical();
                Some(SocketAddr::new(ip, u16::from_be(v6.sin6_port)))
            }
            _ => None,
        }
    }
}

/// Begins to track a TCP socket that is new.
fn track(fd: c_int, stage: Stage) {
    let errno = errno::get();
    connection::forget_stale(fd);
    fork::register();
    signals::guard_copies();
    // The C library's stdio uses the standard descriptors past this library.
    if fd > libc::STDERR_FILENO
        && let Some(tracked) = Connection::table().insert(fd)
    {
        tracked.start(stage);
    }
    errno::set(errno);
}

/// # Safety
///
/// As the C library's `socket`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: a call without pointers.
    let fd = unsafe { real::socket(family, kind, protocol) };
    if fd < 0 || is_inside() || fork::is_borrowed() {
        return fd;
    }
    let is_tcp = matches!(family, libc::AF_INET | libc::AF_INET6)
        && kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if is_tcp && settings::get().enabled {
        track(fd, Stage::Unconnected);
    } else {
        let errno = errno::get();
        connection::forget_stale(fd);
        errno::set(errno);
    }
    fd
}

/// # Safety
///
/// As the C library's `connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    let Some(tracked) = (if is_inside() { None } else { table::connection(fd) }) else {
        // SAFETY: the caller's contract is the C library's.
        return unsafe { real::connect(fd, to, len) };
    };
    // SAFETY: as above.
    let address = unsafe { ip_address(to, len) };
    let is_worth = tracked.stage() == Stage::Unconnected
        && address.is_some_and(|address| session::is_listed(address) && !not_here::has(address));
    if let Some(address) = address.filter(|_| is_worth) {
        tracked.start_connecting(kernel::now_ms(), address);
    }
    // SAFETY: as above.
    let done = unsafe { real::connect(fd, to, len) };
    let errno = errno::get();
    // SAFETY: as above; the kernel has read the family.
    let is_reset = done == 0 && address.is_none() && unsafe { (*to).sa_family } == libc::AF_UNSPEC as libc::sa_family_t;
    if is_worth && done == 0 {
        tracked.connected();
    } else if is_worth && errno != libc::EINPROGRESS {
        tracked.move_stage(Stage::Plain, Stage::Unconnected); // The program may try again.
    } else if is_reset && tracked.stage() != Stage::Unconnected {
        Connection::dissolve(&tracked);
    }
    errno::set(errno);
    done
}

/// # Safety
///
/// As the C library's `listen`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    let done = unsafe { real::listen(fd, backlog) };
    if done != 0 || is_inside() {
        return done;
    }
    listens(fd, true);
    done
}

/// A thread tracks a listening socket.
static ADOPTING: AtomicBool = AtomicBool::new(false);

/// A child after `fork` has no such thread.
pub(crate) fn forget_adoption() {
    ADOPTING.store(false, Ordering::Relaxed);
}

/// Tracks a listening socket that was not one before for this library: `listen` was called now, or by another process, or past the
/// library. Returns true if connections that it accepts may become streams. `waits`: until the daemon has listed its address.
fn listens(fd: c_int, waits: bool) -> bool {
    match table::connection(fd).map(|tracked| tracked.stage()) {
        Some(Stage::Listener) => return true,
        Some(Stage::Unconnected) | None => {}
        Some(_) => return false,
    }
    // The C library's stdio uses the standard descriptors past this library. A child after `vfork` changes no table.
    if fd <= libc::STDERR_FILENO || !settings::get().enabled || fork::is_borrowed() {
        return false;
    }
    let errno = errno::get();
    // One thread at a time. The connections of the others stay on TCP.
    let is_listener = kernel::is_tcp_listener(fd) && !ADOPTING.swap(true, Ordering::Acquire);
    if is_listener {
        if !Connection::table().has(fd) {
            track(fd, Stage::Unconnected);
        }
        if let Some(tracked) = table::connection(fd) {
            // SAFETY: the program's descriptor, in a call of the program about it.
            let listener = unsafe { BorrowedFd::borrow_raw(fd) };
            // With `sockets.across`, the daemon reads the SYN's timestamp.
            let _ = tcp_socket::save_syns(listener);
            if tracked.stage() == Stage::Unconnected {
                session::listen(&tracked, fd, waits);
            }
        }
        ADOPTING.store(false, Ordering::Release);
    }
    errno::set(errno);
    table::connection(fd).is_some_and(|tracked| tracked.stage() == Stage::Listener)
}

fn accepted(listener: c_int, fd: c_int) -> c_int {
    if fd >= 0 && !is_inside() {
        if listens(listener, false) {
            let errno = errno::get();
            session::prepare();
            errno::set(errno);
            track(fd, Stage::Plain);
        } else {
            let errno = errno::get();
            connection::forget_stale(fd);
            errno::set(errno);
        }
    }
    fd
}

/// # Safety
///
/// As the C library's `accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    accepted(fd, unsafe { real::accept(fd, from, len) })
}

/// # Safety
///
/// As the C library's `accept4`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(fd: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    accepted(fd, unsafe { real::accept4(fd, from, len, flags) })
}

/// # Safety
///
/// As the C library's `shutdown`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match table::connection(fd) {
        Some(tracked) if tracked.stage().is_followed() => {
            Connection::progress(&tracked, fd);
            tracked.shut(fd, how)
        }
        // SAFETY: the caller's contract is the C library's.
        _ => unsafe { real::shutdown(fd, how) },
    }
}

/// Ends the tracking of a descriptor that is about to be closed.
pub(super) fn forget(fd: c_int) {
    if is_inside() || !Connection::table().has(fd) && !EpollSet::table().has(fd) || fork::is_borrowed() {
        return;
    }
    if let Some(tracked) = Connection::table().remove(fd) {
        Connection::closing(tracked, fd, false);
    }
    if let Some(tracked) = EpollSet::table().remove(fd) {
        EpollSet::closing(&tracked, fd, false);
    }
}

/// # Safety
///
/// As the C library's `close`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    forget(fd);
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::close(fd) }
}

/// # Safety
///
/// As the C library's `fclose`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(file: *mut libc::FILE) -> c_int {
    if !file.is_null() {
        // SAFETY: the caller's contract is the C library's: an open file. The C library closes its descriptor by a call of its own.
        forget(unsafe { libc::fileno(file) });
    }
    // SAFETY: as above.
    unsafe { real::fclose(file) }
}

/// Moves a connection back to TCP that gets a standard descriptor, which the C library's stdio uses past this library.
fn leave_for_stdio(fd: c_int, to: c_int) {
    if (libc::STDIN_FILENO..=libc::STDERR_FILENO).contains(&to) {
        leave_fd(fd);
    }
}

/// Makes a copy of a descriptor refer to the same object.
fn copied(from: c_int, to: c_int) -> c_int {
    if to >= 0 && from != to && !is_inside() && !fork::is_borrowed() {
        let errno = errno::get();
        connection::forget_stale(to);
        errno::set(errno);
        if let Some(tracked) = table::connection(from) {
            tracked.add_fd();
            Connection::table().share(to, tracked);
        }
        if let Some(tracked) = table::set(from) {
            tracked.add_fd();
            EpollSet::table().share(to, tracked);
        }
    }
    to
}

/// # Safety
///
/// As the C library's `dup`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    let to = unsafe { real::dup(fd) };
    leave_for_stdio(fd, to);
    copied(fd, to)
}

/// # Safety
///
/// As the C library's `dup2`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd != to {
        forget(to);
        leave_for_stdio(fd, to);
    }
    // SAFETY: the caller's contract is the C library's.
    copied(fd, unsafe { real::dup2(fd, to) })
}

/// # Safety
///
/// As the C library's `dup3`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if fd != to {
        forget(to);
        leave_for_stdio(fd, to);
    }
    // SAFETY: the caller's contract is the C library's.
    copied(fd, unsafe { real::dup3(fd, to, flags) })
}

/// # Safety
///
/// As the C library's `fcntl`. The argument is an integer or a pointer, and travels in the same register.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        leave_for_stdio(fd, argument as c_int);
    }
    if command == libc::F_SETOWN || command == libc::F_SETFL && argument as c_int & libc::O_ASYNC != 0 {
        leave_fd(fd); // The kernel signals bytes of TCP only.
    }
    // SAFETY: the caller's contract is the C library's.
    let result = unsafe { real::fcntl(fd, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, result),
        libc::F_SETFL if result == 0 => {
            if let Some(tracked) = table::connection(fd) {
                tracked.nonblocking.store(argument as c_int & libc::O_NONBLOCK != 0, Ordering::Relaxed);
            }
            result
        }
        _ => result,
    }
}

/// # Safety
///
/// As the C library's `fcntl64`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    unsafe { fcntl(fd, command, argument) }
}

/// # Safety
///
/// As the C library's `getsockopt`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let is_error = (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) && !is_inside();
    let tracked = if is_error { table::connection(fd) } else { None };
    if let Some(tracked) = &tracked
        && let Some(stream) = tracked.stream()
    {
        tracked.look_for_end(fd, stream);
    }
    // SAFETY: the caller's contract is the C library's.
    let done = unsafe { real::getsockopt(fd, level, name, value, len) };
    if done == 0
        && let Some(tracked) = tracked.filter(|tracked| tracked.stream().is_some())
    {
        // SAFETY: the kernel has written the error and its length there.
        unsafe {
            let error: *mut c_int = value.cast();
            let is_whole = *len as usize == size_of::<c_int>();
            if is_whole {
                // A call reports a reset once, whichever it is.
                let is_due = tracked.take_flag(connection::flags::RESET_DUE);
                // The kernel had the FIN before the reset, and calls that a broken pipe.
                let is_reset = match error.read_unaligned() {
                    0 => is_due,
                    libc::EPIPE => tracked.has_flag(connection::flags::WAS_RESET),
                    _ => false,
                };
                if is_reset {
                    tracked.set_flag(connection::flags::RESET_TOLD);
                    error.write_unaligned(libc::ECONNRESET);
                }
            }
        }
    }
    done
}

/// # Safety
///
/// As the C library's `ioctl`. The argument is an integer or a pointer, and travels in the same register.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int {
    if matches!(request, libc::FIOASYNC | SIOCSPGRP | FIOSETOWN) {
        leave_fd(fd); // As in `fcntl`.
    }
    // SAFETY: the caller's contract is the C library's.
    let result = unsafe { real::ioctl(fd, request, argument) };
    let Some(tracked) = table::connection(fd).filter(|_| result == 0) else { return result };
    let value: *mut c_int = core::ptr::with_exposed_provenance_mut(argument);
    match (request, tracked.stream()) {
        (libc::FIONBIO, _) => {
            // SAFETY: the request has a pointer to an int.
            tracked.nonblocking.store(unsafe { *value } != 0, Ordering::Relaxed);
        }
        (libc::FIONREAD, Some(stream)) => {
            // SAFETY: as above.
            unsafe { *value += tracked.data_len(stream) as c_int };
        }
        _ => {}
    }
    result
}
