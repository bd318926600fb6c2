//! The C library's own definitions of the calls that this library defines.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr, socklen_t};
use libc::{loff_t, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t, ssize_t, timespec, timeval};

/// A definition behind this library's, found when it is first used.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.find() } else { found }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name is a C string. The handle asks for the definition after this library's.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // The program itself was linked against this name, so only a broken C library lacks it.
            std::process::abort();
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls with any number of arguments, of which this library knows the address only.
macro_rules! addresses {
    ($($name:ident as $symbol:literal;)*) => {$(
        #[doc = concat!("The C library's `", stringify!($name), "`.")]
        #[expect(non_upper_case_globals, reason = "the name of the call")]
        pub(crate) static $name: Next = Next::new($symbol);
    )*};
}

addresses! {
    execl as c"execl";
    execlp as c"execlp";
    execle as c"execle";
    dprintf as c"dprintf";
    __dprintf_chk as c"__dprintf_chk";
}

macro_rules! real {
    ($($name:ident as $symbol:literal ( $($argument:ident : $type:ty),* ) -> $result:ty;)*) => {$(
        #[doc = concat!("The C library's `", $symbol, "`.")]
        ///
        /// # Safety
        ///
        /// As the C library's definition.
        #[inline]
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            static NEXT: Next = Next::new(
                // The literal has no NUL inside.
                match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name with a NUL"),
                },
            );
            // SAFETY: the symbol has this type in every C library; its value is never null.
            let function: unsafe extern "C-unwind" fn($($type),*) -> $result = unsafe { core::mem::transmute(NEXT.get()) };
            // SAFETY: the caller keeps the contract of the C library's call.
            unsafe { function($($argument),*) }
        }
    )*};
}

real! {
    read as "read" (fd: c_int, into: *mut c_void, len: size_t) -> ssize_t;
    write as "write" (fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    readv as "readv" (fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    writev as "writev" (fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    recv as "recv" (fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    send as "send" (fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom as "recvfrom" (fd: c_int, into: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t;
    sendto as "sendto" (fd: c_int, from: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t;
    recvmsg as "recvmsg" (fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    sendmsg as "sendmsg" (fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    recvmmsg as "recvmmsg" (fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int, timeout: *mut timespec) -> c_int;
    sendmmsg as "sendmmsg" (fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int;
    sendfile as "sendfile" (to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t;
    connect as "connect" (fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int;
    listen as "listen" (fd: c_int, backlog: c_int) -> c_int;
    accept as "accept" (fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4 as "accept4" (fd: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    shutdown as "shutdown" (fd: c_int, how: c_int) -> c_int;
    close as "close" (fd: c_int) -> c_int;
    syscall as "syscall" (number: libc::c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> libc::c_long;
    fork_alone as "_Fork" () -> pid_t;
    clone as "clone" (function: extern "C" fn(*mut c_void) -> c_int, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_tid: usize, tls: usize, child_tid: usize) -> c_int;
    execveat as "execveat" (at: c_int, path: *const c_char, words: *const *const c_char, variables: *const *const c_char, flags: c_int) -> c_int;
    vdprintf as "vdprintf" (fd: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    __vdprintf_chk as "__vdprintf_chk" (fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int;
    freopen as "freopen" (path: *const c_char, mode: *const c_char, file: *mut libc::FILE) -> *mut libc::FILE;
    freopen64 as "freopen64" (path: *const c_char, mode: *const c_char, file: *mut libc::FILE) -> *mut libc::FILE;
    sigaction as "sigaction" (signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    system as "system" (command: *const c_char) -> c_int;
    popen as "popen" (command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    fclose as "fclose" (file: *mut libc::FILE) -> c_int;
    closefrom as "closefrom" (first: c_int) -> ();
    dup as "dup" (fd: c_int) -> c_int;
    dup2 as "dup2" (fd: c_int, to: c_int) -> c_int;
    dup3 as "dup3" (fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl as "fcntl" (fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl as "ioctl" (fd: c_int, request: libc::c_ulong, argument: usize) -> c_int;
    socket as "socket" (family: c_int, kind: c_int, protocol: c_int) -> c_int;
    epoll_create as "epoll_create" (size: c_int) -> c_int;
    epoll_create1 as "epoll_create1" (flags: c_int) -> c_int;
    epoll_pwait2 as "epoll_pwait2" (set: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_ctl as "epoll_ctl" (set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_pwait as "epoll_pwait" (set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    poll as "poll" (fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll as "ppoll" (fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select as "select" (count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    execve as "execve" (path: *const c_char, words: *const *const c_char, variables: *const *const c_char) -> c_int;
    execv as "execv" (path: *const c_char, words: *const *const c_char) -> c_int;
    execvp as "execvp" (file: *const c_char, words: *const *const c_char) -> c_int;
    execvpe as "execvpe" (file: *const c_char, words: *const *const c_char, variables: *const *const c_char) -> c_int;
    fexecve as "fexecve" (fd: c_int, words: *const *const c_char, variables: *const *const c_char) -> c_int;
    posix_spawn as "posix_spawn" (pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, words: *const *mut c_char, variables: *const *mut c_char) -> c_int;
    posix_spawnp as "posix_spawnp" (pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, words: *const *mut c_char, variables: *const *mut c_char) -> c_int;
    posix_spawn_file_actions_adddup2 as "posix_spawn_file_actions_adddup2" (actions: *mut posix_spawn_file_actions_t, fd: c_int, to: c_int) -> c_int;
    fdopen as "fdopen" (fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    splice as "splice" (from: c_int, from_at: *mut loff_t, to: c_int, to_at: *mut loff_t, len: size_t, flags: u32) -> ssize_t;
    preadv2 as "preadv2" (fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    pwritev2 as "pwritev2" (fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    preadv64v2 as "preadv64v2" (fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    pwritev64v2 as "pwritev64v2" (fd: c_int, parts: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    getsockopt as "getsockopt" (fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt as "setsockopt" (fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    pselect as "pselect" (count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}
