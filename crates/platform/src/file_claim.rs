//! Claims on bytes of a file, which last as long as any process has the open file that made them.
//!
//! ```text
//!   open ── claim ──► descriptor ── sent ──► in a socket ── received ──► mapped ── closed, unmapped ──► claimed no more
//! ```
//!
//! They are locks of an open file description (`F_OFD_SETLK`). The kernel counts the references: a descriptor that is copied, in transit in
//! a socket, or inherited is the same open file, and so is a mapping made through it. A process that opens the file itself sees the
//! claims, also if it is started later. Claims restrict no access.

use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;

/// Claims bytes of a file that was opened for this, for reading and writing. [`Errno::AGAIN`] if another open file has a claim on any of them.
pub fn claim(file: impl AsFd, at: u64, bytes: u64) -> Result<(), Errno> {
    control(file, libc::F_OFD_SETLK, at, bytes).map(drop)
}

/// Returns true if an open file other than this one has a claim on any of these bytes.
pub fn is_claimed(file: impl AsFd, at: u64, bytes: u64) -> Result<bool, Errno> {
    control(file, libc::F_OFD_GETLK, at, bytes).map(|found| found != libc::F_UNLCK)
}

/// Returns the kind of lock that the kernel reports.
fn control(file: impl AsFd, command: libc::c_int, at: u64, bytes: u64) -> Result<libc::c_int, Errno> {
    let number = |value: u64| libc::off_t::try_from(value).map_err(|_| Errno::OVERFLOW);
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: number(at)?,
        l_len: number(bytes)?,
        l_pid: 0,
    };
    // SAFETY: both commands read this structure and write nothing else; it lasts until the call is over, as does the descriptor.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw mut lock) } {
        0 => Ok(lock.l_type.into()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use isthmus_layout::RegionSize;
    use isthmus_shm::{Access, Mapping};
    use rustix::fd::OwnedFd;
    use std::fs::OpenOptions;

    use super::*;
    use crate::{local, seqpacket};

    const PAGE: u64 = 4096;

    /// Opens the file again, as another open file description.
    fn opened(memory: &OwnedFd) -> OwnedFd {
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        OpenOptions::new().read(true).write(true).open(path).unwrap().into()
    }

    #[test]
    fn claim_lasts_while_the_open_file_is_held_or_mapped() {
        let memory = local::memory(RegionSize(4 * PAGE)).unwrap();
        let is_claimed = || is_claimed(&memory, PAGE, PAGE).unwrap();
        let file = opened(&memory);
        claim(&file, PAGE, 2 * PAGE).unwrap();
        assert!(is_claimed() && !super::is_claimed(&file, PAGE, PAGE).unwrap());
        // A copy that exists only in a socket's queue.
        let (ours, theirs) = seqpacket::pair().unwrap();
        seqpacket::send(&ours, b"claim", &[file.as_fd()]).unwrap();
        drop(file);
        assert!(is_claimed());
        let (mut packet, mut fds) = ([0; 8], Vec::new());
        seqpacket::receive(&theirs, &mut packet, &mut fds, true).unwrap();
        let mapping = Mapping::new(&fds[0], RegionSize(4 * PAGE), Access::ReadWrite).unwrap();
        drop(fds);
        assert!(is_claimed());
        drop(mapping);
        assert!(!is_claimed());
    }

    #[test]
    fn claim_fails_for_another_open_file() {
        let memory = local::memory(RegionSize(4 * PAGE)).unwrap();
        let (file, next) = (opened(&memory), opened(&memory));
        claim(&file, PAGE, PAGE).unwrap();
        assert_eq!(claim(&next, 0, 2 * PAGE), Err(Errno::AGAIN));
        claim(&next, 0, PAGE).unwrap();
        claim(&next, 2 * PAGE, PAGE).unwrap();
        drop(file);
        claim(&next, PAGE, PAGE).unwrap();
    }
}
