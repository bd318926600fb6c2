//! Calls by number, and children that the C library's own `fork` does not make.

use core::ffi::{c_int, c_long, c_uint, c_void};

use libc::pid_t;

use super::{epoll, leave, poll, process, receive, send, socket};
use crate::inside::is_inside;
use crate::{fork, leave as leaving, real};

/// The flag of `clone` that shares memory with the parent: a thread, or a child that borrows it.
const SHARES_MEMORY: c_int = libc::CLONE_VM;

/// # Safety
///
/// As the C library's `syscall`. A call that this library covers is as the function of its name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if !is_inside() {
        // SAFETY: the caller's contract is the C library's.
        if let Some(result) = unsafe { by_name(number, [a, b, c, d, e, f]) } {
            return result;
        }
    }
    // SAFETY: as above.
    unsafe { real::syscall(number, a, b, c, d, e, f) }
}

/// Calls the function of the library that covers a call. None if no function does.
///
/// # Safety
///
/// As the C library's `syscall`.
unsafe fn by_name(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let fd = a as c_int;
    // SAFETY: the caller's contract. The arguments are those of the functions, in the same order, but where it says.
    let result: isize = unsafe {
        match number {
            libc::SYS_read => receive::read(fd, b as _, c),
            libc::SYS_readv => receive::readv(fd, b as _, c as c_int),
            libc::SYS_recvfrom => receive::recvfrom(fd, b as _, c, d as c_int, e as _, f as _),
            libc::SYS_recvmsg => receive::recvmsg(fd, b as _, c as c_int),
            libc::SYS_recvmmsg => receive::recvmmsg(fd, b as _, c as c_uint, d as c_int, e as _) as isize,
            libc::SYS_write => send::write(fd, b as _, c),
            libc::SYS_writev => send::writev(fd, b as _, c as c_int),
            libc::SYS_sendto => send::sendto(fd, b as _, c, d as c_int, e as _, f as _),
            libc::SYS_sendmsg => send::sendmsg(fd, b as _, c as c_int),
            libc::SYS_sendmmsg => send::sendmmsg(fd, b as _, c as c_uint, d as c_int) as isize,
            libc::SYS_sendfile => send::sendfile(fd, b as c_int, c as _, d),
            libc::SYS_splice => leave::splice(fd, b as _, c as c_int, d as _, e, f as c_uint),
            // The kernel takes the position in two halves, of which the first is the whole one here.
            libc::SYS_preadv2 => leave::preadv2(fd, b as _, c as c_int, d as i64, f as c_int),
            libc::SYS_pwritev2 => leave::pwritev2(fd, b as _, c as c_int, d as i64, f as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => poll::poll(a as _, b as _, c as c_int) as isize,
            libc::SYS_ppoll => poll::ppoll(a as _, b as _, c as _, d as _) as isize,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => poll::select(fd, b as _, c as _, d as _, e as _) as isize,
            libc::SYS_pselect6 => {
                // The sixth argument points to the mask's address and size.
                let mask = match f {
                    0 => core::ptr::null(),
                    _ => crate::copy::read(f as *const *const libc::sigset_t).ok()?,
                };
                poll::pselect(fd, b as _, c as _, d as _, e as _, mask) as isize
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => epoll::epoll_create(fd) as isize,
            libc::SYS_epoll_create1 => epoll::epoll_create1(fd) as isize,
            libc::SYS_epoll_ctl => epoll::epoll_ctl(fd, b as c_int, c as c_int, d as _) as isize,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => epoll::epoll_wait(fd, b as _, c as c_int, d as c_int) as isize,
            libc::SYS_epoll_pwait => epoll::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _) as isize,
            libc::SYS_epoll_pwait2 => epoll::epoll_pwait2(fd, b as _, c as c_int, d as _, e as _) as isize,
            _ => return by_name_of_descriptors(number, [a, b, c, d, e, f]),
        }
    };
    Some(result as c_long)
}

/// As [`by_name`], for calls that make, copy and end descriptors and processes.
///
/// # Safety
///
/// As the C library's `syscall`.
unsafe fn by_name_of_descriptors(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let fd = a as c_int;
    // SAFETY: as above.
    let result: isize = unsafe {
        match number {
            libc::SYS_socket => socket::socket(fd, b as c_int, c as c_int) as isize,
            libc::SYS_connect => socket::connect(fd, b as _, c as _) as isize,
            libc::SYS_listen => socket::listen(fd, b as c_int) as isize,
            libc::SYS_accept => socket::accept(fd, b as _, c as _) as isize,
            libc::SYS_accept4 => socket::accept4(fd, b as _, c as _, d as c_int) as isize,
            libc::SYS_shutdown => socket::shutdown(fd, b as c_int) as isize,
            libc::SYS_getsockopt => socket::getsockopt(fd, b as c_int, c as c_int, d as _, e as _) as isize,
            libc::SYS_setsockopt => leave::setsockopt(fd, b as c_int, c as c_int, d as _, e as _) as isize,
            libc::SYS_close => socket::close(fd) as isize,
            libc::SYS_close_range => process::close_range(a as c_uint, b as c_uint, c as c_int) as isize,
            libc::SYS_dup => socket::dup(fd) as isize,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => socket::dup2(fd, b as c_int) as isize,
            libc::SYS_dup3 => socket::dup3(fd, b as c_int, c as c_int) as isize,
            libc::SYS_fcntl => socket::fcntl(fd, b as c_int, c as _) as isize,
            libc::SYS_ioctl => socket::ioctl(fd, b as _, c as _) as isize,
            libc::SYS_execve => leave::execve(a as _, b as _, c as _) as isize,
            libc::SYS_execveat => leave::execveat(fd, b as _, c as _, d as _, e as c_int) as isize,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => forked(|| real::syscall(number, 0, 0, 0, 0, 0, 0)) as isize,
            // With a stack of its own, the child does not return here.
            libc::SYS_clone if fd & SHARES_MEMORY == 0 && b == 0 => {
                forked(|| real::syscall(number, a, b, c, d, e, f)) as isize
            }
            libc::SYS_io_uring_setup => {
                // The kernel would read and write past the library, and close, and wait.
                leaving::all_stay_on_tcp();
                return None;
            }
            _ => return None,
        }
    };
    Some(result as c_long)
}

/// Makes a child by `fork`, which goes on in both processes.
fn forked(fork: impl FnOnce() -> c_long) -> c_long {
    fork::register();
    fork::before();
    let result = fork();
    let errno = crate::errno::get();
    if result == 0 {
        fork::in_child()
    } else {
        fork::in_parent()
    }
    crate::errno::set(errno);
    result
}

/// # Safety
///
/// As the C library's `_Fork`. It is not safe in a signal handler that may have interrupted the library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Fork() -> pid_t {
    // SAFETY: the caller's contract is the C library's.
    forked(|| c_long::from(unsafe { real::fork_alone() })) as pid_t
}

/// The program's function for a child, and its argument.
struct Start {
    function: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
}

/// # Safety
///
/// As the C library's `clone`. The last three arguments may be missing.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn clone(
    function: extern "C" fn(*mut c_void) -> c_int,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: usize,
    tls: usize,
    child_tid: usize,
) -> c_int {
    extern "C" fn start(start: *mut c_void) -> c_int {
        fork::in_child();
        // SAFETY: the child has a copy of its parent's memory, where the value lies on the stack.
        let start = unsafe { &*start.cast::<Start>() };
        (start.function)(start.argument)
    }
    if flags & SHARES_MEMORY != 0 {
        // SAFETY: the caller's contract is the C library's.
        return unsafe { real::clone(function, stack, flags, argument, parent_tid, tls, child_tid) };
    }
    fork::register();
    fork::before();
    let mut child = Start { function, argument };
    // SAFETY: as above.
    let pid = unsafe { real::clone(start, stack, flags, (&raw mut child).cast(), parent_tid, tls, child_tid) };
    let errno = crate::errno::get();
    fork::in_parent();
    crate::errno::set(errno);
    pid
}
