//! The process at the other end of a local socket, as the kernel recorded it when the connection was made. The user is in `SO_PEERCRED`.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};

use rustix::io::Errno;

/// The largest number of groups of a process (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65536;

/// Returns a descriptor of the process. Unlike a PID, it never refers to a later process. Linux before 6.5 refuses.
pub fn process(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    let mut fd = [-1];
    option(socket, libc::SO_PEERPIDFD, &mut fd)?;
    // SAFETY: the kernel has created this descriptor for us, and nothing else refers to it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd[0]) })
}

/// Returns the groups of the process: its own one, then the supplementary ones.
pub fn groups(socket: impl AsFd) -> Result<Vec<u32>, Errno> {
    let own = rustix::net::sockopt::socket_peercred(&socket)?.gid.as_raw();
    for len in [64, GROUPS_MAX] {
        let mut groups = vec![0; len];
        match option(&socket, libc::SO_PEERGROUPS, &mut groups) {
            Ok(count) => return Ok([&[own], &groups[..count]].concat()),
            Err(Errno::RANGE) => {}
            Err(refused) => return Err(refused),
        }
    }
    Err(Errno::RANGE)
}

/// Reads an option that is a list of numbers. Returns the length of the list.
fn option<T: Number>(socket: impl AsFd, name: c_int, into: &mut [T]) -> Result<usize, Errno> {
    let mut bytes = libc::socklen_t::try_from(size_of_val(into)).map_err(|_| Errno::INVAL)?;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `bytes` bytes, which `into` has, and any bytes are numbers. It keeps nothing of it.
    let got = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, name, into.as_mut_ptr().cast(), &raw mut bytes) };
    if got != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    Ok(bytes as usize / size_of::<T>())
}

/// A number of 32 bits, of which every value is valid.
trait Number {}
impl Number for c_int {}
impl Number for u32 {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seqpacket;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn peer_of_an_own_pair_is_this_process() {
        let (one, _other) = seqpacket::pair().unwrap();
        let mut expected: Vec<u32> = rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        expected.insert(0, rustix::process::getegid().as_raw());
        assert_eq!(groups(&one).unwrap(), expected);
        let Ok(process) = process(&one) else { return eprintln!("skipped: Linux before 6.5") };
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0), "it runs");
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).unwrap();
        assert!(info.contains(&format!("\nPid:\t{}\n", std::process::id())), "{info}");
    }
}
