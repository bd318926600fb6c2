//! The check of memory that a program has sent, before the daemon passes it on or maps it.

use isthmus_layout::Refusal;
use isthmus_layout::reason::Reason;

use crate::fd_reaper::ReceivedFd;

/// The kernel's magic number of the file system of memory files with plain pages.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Refuses memory that could shrink under its reader, or that ends before `end`.
pub(crate) fn sealed(memory: &ReceivedFd, end: Option<u64>) -> Result<(), Refusal> {
    let seals = rustix::fs::fcntl_get_seals(memory).unwrap_or(rustix::fs::SealFlags::empty());
    if !seals.contains(rustix::fs::SealFlags::SHRINK) {
        return Err(Reason::RegionNotSealed.into());
    }
    if rustix::fs::fstatfs(memory).is_ok_and(|system| system.f_type != TMPFS_MAGIC) {
        let text = "huge pages, sealed or not, may be missing when they are touched";
        return Err(Refusal::new(Reason::RegionNotSealed, text));
    }
    let have = rustix::fs::fstat(memory).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    match end {
        Some(end) if end <= have => Ok(()),
        _ => Err(Refusal::new(Reason::RegionTooSmall, format!("the memory has {have} bytes, more were offered"))),
    }
}
