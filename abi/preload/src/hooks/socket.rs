//! Calls that make, change and end sockets.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::Ordering;
use std::os::fd::BorrowedFd;

use isthmus_platform::tcp_socket;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::connection::{Connection, Stage};
use crate::epoll_set::EpollSet;
use crate::leave::leave_fd;
use crate::table::{Tracked, connection, set};
use crate::{errno, fork, kernel, real, session, settings};

/// Requests of `ioctl` that set the receiver of signals (asm-generic/sockios.h).
const FIOSETOWN: libc::c_ulong = 0x8901;
const SIOCSPGRP: libc::c_ulong = 0x8902;

/// Reads an address of IPv4 or IPv6. An IPv4 address in IPv6 form is IPv4.
///
/// # Safety
///
/// `address` is null, or has `len` bytes.
unsafe fn ip_address(address: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    let len = len as usize;
    if address.is_null() || len < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the family lies in the first bytes.
    match c_int::from(unsafe { (*address).sa_family }) {
        libc::AF_INET if len >= size_of::<sockaddr_in>() => {
            // SAFETY: the length was checked; programs align addresses as they like.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 if len >= size_of::<sockaddr_in6>() => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr).to_canonical();
            Some(SocketAddr::new(ip, u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

/// # Safety
///
/// As the C library's `connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    let address = unsafe { ip_address(to, len) };
    let is_worth = address.is_some_and(|address| {
        settings::get().enabled && connection(fd).is_none() && session::is_listed(address) && kernel::is_tcp(fd)
    });
    let since = if is_worth { kernel::now_ms() } else { 0 };
    // SAFETY: as above.
    let done = unsafe { real::connect(fd, to, len) };
    let errno = errno::get();
    if is_worth && (done == 0 || errno == libc::EINPROGRESS) {
        fork::register();
        if let Some(tracked) = Connection::table().insert(fd) {
            if !tracked.start(Some(since)) {
                Connection::table().remove(fd);
            } else if done == 0 {
                tracked.connected();
            }
        }
        errno::set(errno);
    }
    done
}

/// # Safety
///
/// As the C library's `listen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    let done = unsafe { real::listen(fd, backlog) };
    if done == 0 && settings::get().enabled && connection(fd).is_none() && kernel::is_tcp(fd) {
        let errno = errno::get();
        // SAFETY: the program's descriptor, in a call of the program about it.
        let listener = unsafe { BorrowedFd::borrow_raw(fd) };
        // The daemon reads the SYN's timestamp. Without it, connections from other namespaces stay on TCP.
        let _ = tcp_socket::save_syns(listener);
        if let Some(token) = session::listen(fd) {
            fork::register();
            if let Some(tracked) = Connection::table().insert(fd) {
                tracked.start_listener(token);
            }
        }
        errno::set(errno);
    }
    done
}

fn accepted(listener: c_int, fd: c_int) -> c_int {
    if fd >= 0 && connection(listener).is_some_and(|listener| listener.stage() == Stage::Listener) {
        let errno = errno::get();
        forget(fd); // A descriptor that was closed without this library.
        if let Some(tracked) = Connection::table().insert(fd)
            && !tracked.start(None)
        {
            Connection::table().remove(fd);
        }
        errno::set(errno);
    }
    fd
}

/// # Safety
///
/// As the C library's `accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    accepted(fd, unsafe { real::accept(fd, from, len) })
}

/// # Safety
///
/// As the C library's `accept4`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(fd: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    accepted(fd, unsafe { real::accept4(fd, from, len, flags) })
}

/// # Safety
///
/// As the C library's `shutdown`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match connection(fd) {
        Some(tracked) if tracked.stage() != Stage::Listener => {
            Connection::progress(&tracked, fd);
            tracked.shut(fd, how)
        }
        // SAFETY: the caller's contract is the C library's.
        _ => unsafe { real::shutdown(fd, how) },
    }
}

/// Ends the tracking of a descriptor that is about to be closed.
fn forget(fd: c_int) {
    if !Connection::table().has(fd) && !EpollSet::table().has(fd) || fork::is_borrowed() {
        return;
    }
    if let Some(tracked) = Connection::table().remove(fd) {
        tracked.closing(fd);
    }
    if let Some(tracked) = EpollSet::table().remove(fd) {
        EpollSet::closing(&tracked);
    }
}

/// # Safety
///
/// As the C library's `close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    forget(fd);
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::close(fd) }
}

/// # Safety
///
/// As the C library's `fclose`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(file: *mut libc::FILE) -> c_int {
    if !file.is_null() {
        // SAFETY: the caller's contract is the C library's: an open file. The C library closes its descriptor by a call of its own.
        forget(unsafe { libc::fileno(file) });
    }
    // SAFETY: as above.
    unsafe { real::fclose(file) }
}

/// Makes a copy of a descriptor refer to the same object.
fn copied(from: c_int, to: c_int) -> c_int {
    if to >= 0 && from != to && !fork::is_borrowed() {
        if let Some(tracked) = connection(from) {
            tracked.add_fd();
            Connection::table().share(to, tracked);
        }
        if let Some(tracked) = set(from) {
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
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    copied(fd, unsafe { real::dup(fd) })
}

/// # Safety
///
/// As the C library's `dup2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd != to {
        forget(to);
    }
    // SAFETY: the caller's contract is the C library's.
    copied(fd, unsafe { real::dup2(fd, to) })
}

/// # Safety
///
/// As the C library's `dup3`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if fd != to {
        forget(to);
    }
    // SAFETY: the caller's contract is the C library's.
    copied(fd, unsafe { real::dup3(fd, to, flags) })
}

/// # Safety
///
/// As the C library's `fcntl`. The argument is an integer or a pointer, and travels in the same register.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if command == libc::F_SETOWN || command == libc::F_SETFL && argument as c_int & libc::O_ASYNC != 0 {
        leave_fd(fd); // The kernel signals bytes of TCP only.
    }
    // SAFETY: the caller's contract is the C library's.
    let result = unsafe { real::fcntl(fd, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, result),
        libc::F_SETFL if result == 0 => {
            if let Some(tracked) = connection(fd) {
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
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's contract is the C library's.
    unsafe { fcntl(fd, command, argument) }
}

/// # Safety
///
/// As the C library's `ioctl`. The argument is an integer or a pointer, and travels in the same register.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int {
    if matches!(request, libc::FIOASYNC | SIOCSPGRP | FIOSETOWN) {
        leave_fd(fd); // As in `fcntl`.
    }
    // SAFETY: the caller's contract is the C library's.
    let result = unsafe { real::ioctl(fd, request, argument) };
    let Some(tracked) = connection(fd).filter(|_| result == 0) else { return result };
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
