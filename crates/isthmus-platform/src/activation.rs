//! Sockets that systemd opened for us (`LISTEN_FDS`), and telling it that we are ready (`NOTIFY_SOCKET`).

use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};

const FIRST: RawFd = 3;

/// More than anybody configures.
const MOST: RawFd = 16;

/// The sockets that were opened for this process, once: whoever asks again gets none.
///
/// Programs call it first thing in `main`, before they open anything of their own.
pub fn sockets() -> Vec<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name: &str| std::env::var(name).ok()?.parse::<RawFd>().ok();
    let ours = number("LISTEN_PID") == i32::try_from(std::process::id()).ok();
    let count = number("LISTEN_FDS").filter(|count| ours && (1..=MOST).contains(count)).unwrap_or(0);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    (FIRST..FIRST + count).filter_map(take).collect()
}

fn take(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the borrow ends with this function; a number that is not open gives an error and nothing else.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::net::sockopt::socket_acceptconn(fd).ok().filter(|listens| *listens)?;
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC).ok()?;
    rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd).ok()? | rustix::fs::OFlags::NONBLOCK).ok()?;
    // SAFETY: the descriptor is open (asked just now), and by the protocol of LISTEN_FDS, whose LISTEN_PID names this process, it was left
    // to this process and to nobody in it; `sockets` comes here once for each number.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Tells the service manager something, such as `READY=1`. False if there is none.
pub fn notify(state: &str) -> io::Result<bool> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(false) };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(true)
}
