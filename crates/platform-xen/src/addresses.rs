//! Maps ranges of several files at consecutive addresses.

use isthmus_shm::{Access, Mapping};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::any::Any;
use std::ptr::NonNull;

/// A range of a file, in bytes.
pub(crate) struct FileRange<'a> {
    pub(crate) file: BorrowedFd<'a>,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
}

/// Maps these ranges one behind the other. All sizes and offsets are whole pages. `owner` is dropped when no page of the mapping is mapped
/// any more.
///
/// # Safety
///
/// What the files show cannot vanish from under a mapping of it (no file that could be shortened).
pub(crate) unsafe fn map(
    ranges: &[FileRange<'_>],
    access: Access,
    owner: Box<dyn Any + Send + Sync>,
) -> Result<Mapping, Errno> {
    let protection = match access {
        Access::Read => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    };
    let bytes: usize = ranges.iter().map(|range| range.bytes).sum();
    // SAFETY: fresh addresses of the kernel's choice disturb no memory of ours.
    let base = unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            bytes,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    };
    let base = NonNull::new(base.cast::<u8>()).expect("the kernel maps nothing at address zero unasked");
    // SAFETY: the mappings that replace these addresses below are readable (and writable, where stores are meant to happen); no other code
    // knows the addresses; by our caller's promise the memory behind them stays. If the kernel refuses a range, dropping the mapping unmaps
    // all addresses.
    let mapping = unsafe { Mapping::from_raw_with(base, bytes, owner) };
    let mut at = 0;
    for range in ranges {
        // SAFETY: inside the addresses reserved above (the ranges' sizes add up to `bytes`), which no other code uses yet.
        unsafe {
            let there = base.as_ptr().add(at).cast();
            rustix::mm::mmap(
                there,
                range.bytes,
                protection,
                MapFlags::SHARED | MapFlags::FIXED,
                range.file,
                range.offset,
            )?;
        }
        at += range.bytes;
    }
    Ok(mapping)
}
