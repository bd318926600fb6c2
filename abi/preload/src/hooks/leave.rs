//! Calls that use a descriptor past the library. Connections of such descriptors go back to TCP first.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{
    FILE, iovec, loff_t, off_t, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t, size_t, socklen_t, ssize_t,
};

use crate::leave::{before_exec, leave_fd, pass_fd, send_by_tcp};
use crate::{copy, kernel, real, signals};

macro_rules! exec {
    ($($name:ident ( $($argument:ident : $type:ty),* );)*) => {$(
        /// # Safety
        ///
        #[doc = concat!("As the C library's `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            before_exec();
            // SAFETY: the caller's contract is the C library's.
            unsafe { real::$name($($argument),*) }
        }
    )*};
}

exec! {
    execve(path: *const c_char, words: *const *const c_char, variables: *const *const c_char);
    execv(path: *const c_char, words: *const *const c_char);
    execvp(file: *const c_char, words: *const *const c_char);
    execvpe(file: *const c_char, words: *const *const c_char, variables: *const *const c_char);
    fexecve(fd: c_int, words: *const *const c_char, variables: *const *const c_char);
    execveat(
        at: c_int,
        path: *const c_char,
        words: *const *const c_char,
        variables: *const *const c_char,
        flags: c_int
    );
}

/// # Safety
///
/// As the C library's `system`. The shell inherits what an executed program would.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    if !command.is_null() {
        before_exec();
    }
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::system(command) }
}

/// # Safety
///
/// As the C library's `popen`. The shell inherits what an executed program would.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    before_exec();
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::popen(command, mode) }
}

macro_rules! spawn {
    ($($name:ident)*) => {$(
        /// # Safety
        ///
        #[doc = concat!("As the C library's `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            pid: *mut pid_t,
            path: *const c_char,
            actions: *const posix_spawn_file_actions_t,
            attributes: *const posix_spawnattr_t,
            words: *const *mut c_char,
            variables: *const *mut c_char,
        ) -> c_int {
            (0..=2).for_each(leave_fd);
            // SAFETY: the caller's contract is the C library's.
            unsafe { real::$name(pid, path, actions, attributes, words, variables) }
        }
    )*};
}

spawn! { posix_spawn posix_spawnp }

/// # Safety
///
/// As the C library's `posix_spawn_file_actions_adddup2`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    to: c_int,
) -> c_int {
    leave_fd(fd);
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, to) }
}

/// # Safety
///
/// As the C library's `fdopen`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    leave_fd(fd);
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::fdopen(fd, mode) }
}

/// # Safety
///
/// As the C library's `vdprintf`. `list` is a `va_list`, which is passed by its address.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    send_by_tcp(fd);
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::vdprintf(fd, format, list) }
}

/// # Safety
///
/// As the C library's `__vdprintf_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    send_by_tcp(fd);
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::__vdprintf_chk(fd, flag, format, list) }
}

macro_rules! reopen {
    ($($name:ident)*) => {$(
        /// # Safety
        ///
        #[doc = concat!("As the C library's `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
            if !path.is_null() && !file.is_null() {
                // SAFETY: the caller's contract is the C library's: an open file. The C library closes its descriptor by a call of its own.
                super::socket::forget(unsafe { libc::fileno(file) });
            }
            // SAFETY: as above.
            unsafe { real::$name(path, mode, file) }
        }
    )*};
}

reopen! { freopen freopen64 }

/// # Safety
///
/// As the C library's `splice`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut loff_t,
    to: c_int,
    to_at: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let has_stream = |fd| crate::table::connection(fd).is_some_and(|connection| connection.stream().is_some());
    // Without a pipe, or with a place in a socket or a pipe, the kernel refuses the call before it moves a byte.
    let has_place = !from_at.is_null() || !to_at.is_null();
    if has_stream(from) && (has_place || !kernel::is_pipe(to))
        || has_stream(to) && (has_place || !kernel::is_pipe(from))
    {
        // SAFETY: the caller's contract is the C library's.
        return unsafe { real::splice(from, from_at, to, to_at, len, flags) };
    }
    if from_at.is_null() && to_at.is_null() && len > 0 {
        let is_nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0;
        if has_stream(from) {
            // SAFETY: descriptors of the caller.
            return unsafe { super::pipe::splice_from(from, to, len, is_nonblocking) };
        }
        if has_stream(to) {
            // SAFETY: as above.
            return unsafe { super::pipe::splice_to(from, to, len, is_nonblocking) };
        }
    }
    leave_fd(from);
    leave_fd(to);
    // SAFETY: the caller's contract is the C library's.
    unsafe { real::splice(from, from_at, to, to_at, len, flags) }
}

/// Calls with vectors, a position and flags. Without a position and with no flag but `RWF_NOWAIT`, they read or write a stream. The kernel
/// refuses a position of a socket before it moves a byte.
macro_rules! vectors_at {
    ($($name:ident through $served:path;)*) => {$(
        /// # Safety
        ///
        #[doc = concat!("As the C library's `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            parts: *const iovec,
            count: c_int,
            at: off_t,
            flags: c_int,
        ) -> ssize_t {
            // The kernel refuses other counts, and returns at once without a part.
            let is_count = usize::try_from(count).is_ok_and(|count| (1..=super::receive::PARTS_MAX).contains(&count));
            if at == -1 && is_count && crate::table::connection(fd).is_some() {
                if flags & !libc::RWF_NOWAIT == 0 {
                    // SAFETY: a message of zeroes is an empty one.
                    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
                    message.msg_iov = parts.cast_mut();
                    message.msg_iovlen = count as _;
                    let flags = if flags == 0 { 0 } else { libc::MSG_DONTWAIT };
                    // SAFETY: the caller's contract is the C library's.
                    return unsafe { $served(fd, &raw mut message, flags) };
                }
                leave_fd(fd);
            }
            // SAFETY: the caller's contract is the C library's.
            unsafe { real::$name(fd, parts, count, at, flags) }
        }
    )*};
}

vectors_at! {
    preadv2 through super::receive::recvmsg;
    pwritev2 through super::send::sendmsg;
    preadv64v2 through super::receive::recvmsg;
    pwritev64v2 through super::send::sendmsg;
}

/// # Safety
///
/// As the C library's `setsockopt`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if needs_tcp(level, name) {
        leave_fd(fd);
    }
    // SAFETY: the caller's contract is the C library's.
    let done = unsafe { real::setsockopt(fd, level, name, value, len) };
    if done == 0
        && (level, name) == (libc::IPPROTO_TCP, libc::TCP_INQ)
        && let Some(connection) = crate::table::connection(fd)
    {
        connection.note_inq(fd);
    }
    done
}

/// Returns true for an option that changes how the kernel gives bytes to the program. `SO_ZEROCOPY` alone changes nothing: a call with
/// `MSG_ZEROCOPY` goes by TCP.
fn needs_tcp(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_RCVLOWAT
                | libc::SO_PEEK_OFF
                | libc::SO_ATTACH_FILTER
                | libc::SO_ATTACH_BPF
                | libc::SO_TIMESTAMP
                | libc::SO_TIMESTAMPNS
                | libc::SO_TIMESTAMPING
        ),
        libc::IPPROTO_TCP => matches!(name, libc::TCP_ULP | libc::TCP_REPAIR),
        _ => false,
    }
}

/// Moves the connections back to TCP that a message passes to another process.
///
/// # Safety
///
/// `message` is null, or a message with its control bytes.
pub(super) unsafe fn before_passing(message: *const libc::msghdr) {
    if !signals::are_copies_guarded() {
        return; // No connection has a stream.
    }
    // SAFETY: the caller's contract, or the guard catches a fault. The macros stay inside the control bytes, which the copy has.
    unsafe {
        let Ok(mut message) = copy::read(message) else { return };
        let Ok(control) = copy::read_all(message.msg_control.cast::<u8>(), message.msg_controllen) else {
            return;
        };
        message.msg_control = control.as_ptr().cast_mut().cast();
        let message: *const libc::msghdr = &raw const message;
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = header.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                let bytes = control.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds: *const c_int = libc::CMSG_DATA(header).cast();
                (0..bytes / size_of::<c_int>()).for_each(|index| pass_fd(fds.add(index).read_unaligned()));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// The calls with any number of arguments. Their definitions keep all registers with arguments, ask this function, and go on there.
extern "C" fn before_variadic(call: c_uint, first: usize) -> *mut c_void {
    match call {
        0..=2 => before_exec(),
        _ => send_by_tcp(first as c_int),
    }
    match call {
        0 => real::execl.get(),
        1 => real::execlp.get(),
        2 => real::execle.get(),
        3 => real::dprintf.get(),
        _ => real::__dprintf_chk.get(),
    }
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".macro isthmus_variadic name, call",
    ".globl \\name",
    ".type \\name, @function",
    "\\name:",
    "mov r11d, \\call",
    "jmp isthmus_variadic_call",
    ".size \\name, . - \\name",
    ".endm",
    "isthmus_variadic execl, 0",
    "isthmus_variadic execlp, 1",
    "isthmus_variadic execle, 2",
    "isthmus_variadic dprintf, 3",
    "isthmus_variadic __dprintf_chk, 4",
    ".type isthmus_variadic_call, @function",
    "isthmus_variadic_call:",
    "push rbp",
    "mov rbp, rsp",
    "sub rsp, 192",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdx",
    "mov [rsp + 24], rcx",
    "mov [rsp + 32], r8",
    "mov [rsp + 40], r9",
    "mov [rsp + 48], rax",
    "movaps [rsp + 64], xmm0",
    "movaps [rsp + 80], xmm1",
    "movaps [rsp + 96], xmm2",
    "movaps [rsp + 112], xmm3",
    "movaps [rsp + 128], xmm4",
    "movaps [rsp + 144], xmm5",
    "movaps [rsp + 160], xmm6",
    "movaps [rsp + 176], xmm7",
    "mov rsi, rdi",
    "mov edi, r11d",
    "call {before}",
    "mov r11, rax",
    "mov rdi, [rsp]",
    "mov rsi, [rsp + 8]",
    "mov rdx, [rsp + 16]",
    "mov rcx, [rsp + 24]",
    "mov r8, [rsp + 32]",
    "mov r9, [rsp + 40]",
    "mov rax, [rsp + 48]",
    "movaps xmm0, [rsp + 64]",
    "movaps xmm1, [rsp + 80]",
    "movaps xmm2, [rsp + 96]",
    "movaps xmm3, [rsp + 112]",
    "movaps xmm4, [rsp + 128]",
    "movaps xmm5, [rsp + 144]",
    "movaps xmm6, [rsp + 160]",
    "movaps xmm7, [rsp + 176]",
    "leave",
    "jmp r11",
    ".size isthmus_variadic_call, . - isthmus_variadic_call",
    before = sym before_variadic,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_without_effect_on_bytes_need_no_tcp() {
        // gRPC sets the first two on every socket.
        for (level, name) in [
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
            (libc::IPPROTO_TCP, libc::TCP_INQ),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY),
            (libc::IPPROTO_TCP, libc::SO_RCVLOWAT),
        ] {
            assert!(!needs_tcp(level, name), "{level} {name}");
        }
        for (level, name) in [(libc::SOL_SOCKET, libc::SO_RCVLOWAT), (libc::IPPROTO_TCP, libc::TCP_ULP)] {
            assert!(needs_tcp(level, name), "{level} {name}");
        }
    }
}
