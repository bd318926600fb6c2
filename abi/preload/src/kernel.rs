//! Questions to the kernel about a TCP connection.

use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, size_of};
use core::net::SocketAddr;

use isthmus_platform::Doorbell;
use rustix::fd::{AsFd as _, OwnedFd};
use std::sync::OnceLock;

/// The bytes that the kernel has carried for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelCounts {
    /// Bytes that the program has sent.
    pub(crate) sent: u64,
    /// Bytes that the program has received.
    pub(crate) received: u64,
}

/// Offsets in `struct tcp_info` (linux/tcp.h).
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;
const TCP_INFO_BYTES: usize = 232;
const ESTABLISHED: u8 = 1;
/// States after the FIN of the peer, or after a reset.
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// Makes a call of the kernel, which is no cancellation point of the C library.
///
/// # Safety
///
/// As the call.
unsafe fn call(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: the caller's promise.
    let result = unsafe { crate::real::syscall(number, a, b, c, d, e, f) };
    usize::try_from(result).map_err(|_| crate::errno::get())
}

/// Returns what the kernel has carried, if the connection is established in both directions. `connector`: this end sent the SYN, which
/// the kernel counts as an acknowledged byte.
pub(crate) fn carried(fd: c_int, connector: bool) -> Option<KernelCounts> {
    let mut info = [0u8; TCP_INFO_BYTES];
    let mut len = TCP_INFO_BYTES as libc::socklen_t;
    // SAFETY: the buffer has `len` bytes.
    let done =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len) };
    if done != 0 || (len as usize) < BYTES_RECEIVED + 8 || info[0] != ESTABLISHED {
        return None;
    }
    let word = |at: usize| u64::from_ne_bytes(core::array::from_fn(|byte| info[at + byte]));
    let unsent_and_unacked = int_ioctl(fd, libc::TIOCOUTQ)?;
    let unread = int_ioctl(fd, libc::FIONREAD)?;
    let acked = word(BYTES_ACKED).checked_sub(u64::from(connector))?;
    Some(KernelCounts { sent: acked + unsent_and_unacked, received: word(BYTES_RECEIVED).checked_sub(unread)? })
}

fn int_ioctl(fd: c_int, request: libc::c_ulong) -> Option<u64> {
    let mut value: c_int = 0;
    // SAFETY: both requests write one int.
    let done = unsafe { crate::real::ioctl(fd, request, (&raw mut value) as usize) };
    (done == 0).then_some(value as u64)
}

/// Returns the bytes that have arrived and were not read.
pub(crate) fn unread(fd: c_int) -> Option<u64> {
    int_ioctl(fd, libc::FIONREAD)
}

/// The largest number from which descriptors of the library are placed.
const OWN_FIRST_MAX: u64 = 3072;

/// The number from which descriptors of the library are placed: near the end of those that the process may have.
pub(crate) fn own_first() -> c_int {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    (limit / 4 * 3).min(OWN_FIRST_MAX) as c_int
}

/// Moves a descriptor of the library's to a high number. Programs choose low ones for `dup2`, which closes what has them.
pub(crate) fn placed(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, own_first()).unwrap_or(fd)
}

/// Moves a doorbell to a high number.
pub(crate) fn placed_doorbell(doorbell: Doorbell) -> Doorbell {
    rustix::io::fcntl_dupfd_cloexec(doorbell.as_fd(), own_first()).map_or(doorbell, Doorbell::from)
}

/// Copies a descriptor of the program for the library's use. Returns -1 without one.
pub(crate) fn kept_copy(fd: c_int) -> c_int {
    // SAFETY: a command without pointers.
    unsafe { crate::real::fcntl(fd, libc::F_DUPFD_CLOEXEC, own_first() as usize) }
}

/// Closes a descriptor of the library's.
pub(crate) fn close(fd: c_int) {
    // SAFETY: the caller owns the descriptor, and gives it away.
    unsafe { rustix::io::close(fd) };
}

/// Resets a connection, as TCP does when bytes are lost.
pub(crate) fn disconnect(fd: c_int) {
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    let address = (&raw const nowhere) as usize;
    // SAFETY: an address of that length. Without a family, it ends the connection of the socket.
    let _ = unsafe { call(libc::SYS_connect, [fd as usize, address, size_of::<libc::sockaddr>(), 0, 0, 0]) };
}

/// Sends on a socket without waiting and without `SIGPIPE`.
pub(crate) fn send_now(fd: c_int, bytes: &[u8]) -> Result<usize, c_int> {
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    // SAFETY: a slice of bytes.
    unsafe { call(libc::SYS_sendto, [fd as usize, bytes.as_ptr() as usize, bytes.len(), flags, 0, 0]) }
}

/// Receives from a socket without waiting. `flags` are further ones.
///
/// # Safety
///
/// As `recvmsg`.
pub(crate) unsafe fn receive_now(fd: c_int, message: &mut libc::msghdr, flags: c_int) -> Result<usize, c_int> {
    let flags = (flags | libc::MSG_DONTWAIT) as usize;
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_recvmsg, [fd as usize, core::ptr::from_mut(message) as usize, flags, 0, 0, 0]) }
}

/// Sends a message without waiting. `flags` are further ones.
///
/// # Safety
///
/// As `sendmsg`.
pub(crate) unsafe fn send_message_now(fd: c_int, message: &libc::msghdr, flags: c_int) -> Result<usize, c_int> {
    let flags = (flags | libc::MSG_DONTWAIT) as usize;
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_sendmsg, [fd as usize, core::ptr::from_ref(message) as usize, flags, 0, 0, 0]) }
}

/// Sets something of a descriptor of the library's by `fcntl`. Returns false if the kernel refuses it.
pub(crate) fn control_fd(fd: c_int, command: c_int, argument: usize) -> bool {
    // SAFETY: the callers' commands have no pointers.
    unsafe { call(libc::SYS_fcntl, [fd as usize, command as usize, argument, 0, 0, 0]) }.is_ok()
}

/// Discards what a socket of the library's has received.
pub(crate) fn discard(fd: c_int) {
    let mut packet = [0u8; 16];
    let (into, len) = (packet.as_mut_ptr() as usize, packet.len());
    // SAFETY: a buffer of this length.
    while unsafe { call(libc::SYS_recvfrom, [fd as usize, into, len, libc::MSG_DONTWAIT as usize, 0, 0]) }
        .is_ok_and(|count| count > 0)
    {}
}

/// Sleeps for a millisecond, which is how long other threads and processes get before the next look.
pub(crate) fn pause() {
    let _ = rustix::thread::nanosleep(&rustix::fs::Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
}

/// Polls descriptors for `time` nanoseconds, or without end. It is a cancellation point.
pub(crate) fn poll_ns(fds: &mut [libc::pollfd], time: Option<u64>) -> c_int {
    let time = time.map(timespec_of);
    let pointer = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: a slice of entries, and null or a time.
    unsafe { crate::real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, pointer, core::ptr::null()) }
}

/// Returns nanoseconds as the kernel's calls take them.
pub(crate) fn timespec_of(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Returns the events of a socket now, of those in `events`, without waiting.
pub(crate) fn events_now(fd: c_int, events: i16) -> i16 {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let (entry, time) = ((&raw mut poll) as usize, (&raw const no_time) as usize);
    // SAFETY: one entry, a time, and no mask.
    let _ = unsafe { call(libc::SYS_ppoll, [entry, 1, time, 0, 0, 0]) };
    poll.revents
}

/// Returns whether the peer's FIN or reset has arrived. Events do not tell that from the program's own end of receiving.
pub(crate) fn has_fin(fd: c_int) -> bool {
    let state = socket_option::<u8>(fd, libc::IPPROTO_TCP, libc::TCP_INFO); // It comes first in the answer.
    matches!(state, Some(TIME_WAIT | CLOSE | CLOSE_WAIT | LAST_ACK | CLOSING))
}

/// Returns the number of bytes that a socket has to read.
pub(crate) fn unread_bytes(fd: c_int) -> u64 {
    // SAFETY: the descriptor is used for this call only.
    rustix::io::ioctl_fionread(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }).unwrap_or(0)
}

/// Returns the inode of a connected socket, its address, and that of the other end.
pub(crate) fn name_of_socket(fd: c_int) -> Option<(u64, [SocketAddr; 2])> {
    // SAFETY: the descriptor is used for these calls only.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let inode = rustix::fs::fstat(socket).ok()?.st_ino;
    let [local, peer] = [rustix::net::getsockname(socket).ok()?, rustix::net::getpeername(socket).ok()??];
    Some((inode, [local.try_into().ok()?, peer.try_into().ok()?]))
}

/// Returns the type bits of an open file.
fn file_type(fd: c_int) -> Option<libc::mode_t> {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the call writes a `stat`, of which zeroes are a value.
    unsafe { (libc::fstat(fd, found.as_mut_ptr()) == 0).then(|| found.assume_init().st_mode & libc::S_IFMT) }
}

/// Returns true for a pipe.
pub(crate) fn is_pipe(fd: c_int) -> bool {
    file_type(fd) == Some(libc::S_IFIFO)
}

/// Returns true for a file with a position. Pipes and sockets have none.
pub(crate) fn has_position(fd: c_int) -> bool {
    // SAFETY: a call without pointers.
    unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) >= 0 }
}

/// Returns true for a TCP socket of IPv4 or IPv6.
pub(crate) fn is_tcp(fd: c_int) -> bool {
    let option = |name| socket_option::<c_int>(fd, libc::SOL_SOCKET, name);
    option(libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP) && option(libc::SO_TYPE) == Some(libc::SOCK_STREAM)
}

/// Returns true for a listening TCP socket of IPv4 or IPv6.
pub(crate) fn is_tcp_listener(fd: c_int) -> bool {
    socket_option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1) && is_tcp(fd)
}

/// Reads a socket option.
pub(crate) fn socket_option<T: Copy>(fd: c_int, level: c_int, name: c_int) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the buffer has `len` bytes.
    let done = unsafe { crate::real::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    // SAFETY: the callers' types are integers and structs of integers, of which zeroes are values.
    (done == 0).then(|| unsafe { value.assume_init() })
}

/// Sets a socket option.
pub(crate) fn set_socket_option<T: Copy>(fd: c_int, level: c_int, name: c_int, value: T) -> bool {
    let from: *const c_void = (&raw const value).cast();
    // SAFETY: the buffer has as many bytes as we say.
    unsafe { crate::real::setsockopt(fd, level, name, from, size_of::<T>() as libc::socklen_t) == 0 }
}

/// Returns true if calls on the descriptor do not block.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: the command has no argument.
    let flags = unsafe { crate::real::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Milliseconds of `CLOCK_MONOTONIC`.
pub(crate) fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// A clock that is read without a call: it ticks about every half microsecond, or every microsecond. It may jump, and stand still in a program that is traced.
#[inline]
pub(crate) fn ticks() -> u32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every such processor has the counter. The C library reads it as well.
    let count = unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    let count = now_ns();
    (count >> 10) as u32
}

/// Nanoseconds of `CLOCK_MONOTONIC`, by the C library's own function. A program may have replaced that by another of the same name.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let (clock, into) = (libc::CLOCK_MONOTONIC, &raw mut now);
    if let Some(own) = own_clock() {
        // SAFETY: the C library's function, which writes a time.
        unsafe { own(clock, into) };
    } else {
        // SAFETY: the call writes a time.
        unsafe { crate::real::syscall(libc::SYS_clock_gettime, clock as usize, into as usize, 0, 0, 0, 0) };
    }
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

type Clock = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

/// Returns the C library's `clock_gettime`, also where another library defines that name. The kernel's code for it, the vDSO, is not used
/// directly, because Valgrind has it not mapped.
fn own_clock() -> Option<Clock> {
    static CLOCK: OnceLock<Option<Clock>> = OnceLock::new();
    *CLOCK.get_or_init(|| {
        // SAFETY: C strings. The library is loaded already, and stays. Its symbol has this type.
        unsafe {
            let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            let found = if library.is_null() { library } else { libc::dlsym(library, c"clock_gettime".as_ptr()) };
            (!found.is_null()).then(|| core::mem::transmute::<*mut c_void, Clock>(found))
        }
    })
}

/// Returns the number of a socket in the kernel.
pub(crate) fn cookie(fd: c_int) -> Option<u64> {
    socket_option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// Returns true if the descriptor is closed by exec.
pub(crate) fn closes_on_exec(fd: c_int) -> bool {
    // SAFETY: the command has no argument.
    let flags = unsafe { crate::real::fcntl(fd, libc::F_GETFD, 0) };
    flags < 0 || flags & libc::FD_CLOEXEC != 0
}
