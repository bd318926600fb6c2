//! Descriptors from a service manager (`LISTEN_FDS`): sockets that it opened, and descriptors that it kept while this program was not running.
//! Also notifications to it (`NOTIFY_SOCKET`): that the program is ready, that it works, and what to keep.

use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FIRST_FD: RawFd = 3;

/// Maximum number of descriptors that are accepted, which is more than any configuration needs.
const FDS_MAX: RawFd = 1 << 16;

/// The descriptors that this process inherited when it was started.
#[derive(Debug, Default)]
pub struct InheritedFds {
    /// Listening sockets.
    pub sockets: Vec<OwnedFd>,
    /// All other descriptors, with the names under which they were kept.
    pub stored: Vec<(String, OwnedFd)>,
}

/// Takes the inherited descriptors. Later calls return nothing.
///
/// Programs call this first in `main`, before they open anything of their own.
pub fn take_inherited() -> InheritedFds {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok()?.parse::<RawFd>().ok();
    let ours = number("LISTEN_PID") == i32::try_from(std::process::id()).ok();
    let count = number("LISTEN_FDS").filter(|count| ours && (1..=FDS_MAX).contains(count)).unwrap_or(0);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return InheritedFds::default();
    }
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut given = InheritedFds::default();
    for number in FIRST_FD..FIRST_FD + count {
        let name = names.next().unwrap_or_default();
        let Some(fd) = take_fd(number) else { continue };
        match rustix::net::sockopt::socket_acceptconn(&fd) {
            Ok(true) => given.sockets.push(fd),
            _ => given.stored.push((name.to_owned(), fd)),
        }
    }
    given
}

fn take_fd(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the borrow ends with this function; a number that is not open gives an error and nothing else.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC).ok()?;
    rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd).ok()? | rustix::fs::OFlags::NONBLOCK).ok()?;
    // SAFETY: the descriptor is open (checked just now). By the protocol of LISTEN_FDS it was left to this process, which LISTEN_PID names,
    // and nothing in the process owns it; `take_inherited` comes here once for each number.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Sends a state such as `READY=1` to the service manager. Returns false if there is none.
pub fn notify(state: &str) -> io::Result<bool> {
    let Some(address) = notify_address()? else { return Ok(false) };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(true)
}

/// A way to the service manager on which descriptors can be sent ([`crate::seqpacket::send`]), and which does not block. None where there is
/// no service manager that keeps descriptors: it says so by `FDSTORE`, how many it keeps.
pub fn fd_store_socket() -> io::Result<Option<OwnedFd>> {
    let keeps = std::env::var("FDSTORE").ok().and_then(|most| most.parse::<u32>().ok()).is_some_and(|most| most > 0);
    if keeps { notify_socket() } else { Ok(None) }
}

/// A service manager that ends the program if [`WATCHDOG`] does not come in time.
#[derive(Debug)]
pub struct Watchdog {
    /// A datagram socket of the service manager, which does not block.
    pub socket: OwnedFd,
    /// The time within which the next message must come.
    pub timeout: Duration,
}

/// The message that says that the program works.
pub const WATCHDOG: &[u8] = b"WATCHDOG=1";

/// Returns the service manager, if it expects [`WATCHDOG`] of this process (`WATCHDOG_USEC`, `WATCHDOG_PID`).
pub fn watchdog() -> io::Result<Option<Watchdog>> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let Some(timeout) = number("WATCHDOG_USEC").filter(|&us| is_ours && us > 0) else { return Ok(None) };
    Ok(notify_socket()?.map(|socket| Watchdog { socket, timeout: Duration::from_micros(timeout) }))
}

/// A socket that is connected to the service manager, if there is one. It does not block.
fn notify_socket() -> io::Result<Option<OwnedFd>> {
    let Some(address) = notify_address()? else { return Ok(None) };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(Some(socket.into()))
}

fn notify_address() -> io::Result<Option<SocketAddr>> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
    Ok(Some(match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&path)?,
    }))
}
