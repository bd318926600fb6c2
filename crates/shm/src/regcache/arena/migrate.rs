//! Moves memory of the program onto the arena's file and back, while other threads may use it.
//!
//! Onto the file, a chunk at a time:
//!
//! ```text
//!   a thread that wants to write waits    [`WriteProtection`]: the kernel makes it, or there is none
//!   its bytes are copied to the file      pwrite
//!   the file takes their place            mmap(MAP_FIXED), which nobody sees halfway
//!   a thread that waited writes           to the file's pages
//! ```
//!
//! So no thread sees anything of it, whatever it does: no write is lost or late, and a lock or a counter that lies there works all the
//! while. That matters, because MPIs register whole pages in which their buffers lie, together with whatever else is there.
//!
//! Back: a private mapping of the file takes the place of the shared one; then, a part at a time, every page is written to (and so copied) by
//! the kernel, and the file's pages are thrown away. Nothing is copied by us, so nothing can be missed.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use rustix::process::{Resource, getrlimit};

use super::super::ColdReason;
use super::super::eligibility::{self, Registrable};
use super::super::maps::{FileId, Maps, Vma};
use super::super::region::{pointer, refusal};
use super::super::serving::ServingThreads;
use super::write_protect::WriteProtection;

/// The name that `/proc/self/maps` shows for pages that are or were registered.
pub(in super::super) const NAME_IN_MAPS: &str = "/memfd:isthmus-registered (deleted)";
const NAME: &str = "isthmus-registered";

/// Bytes of the file, which is sparse: no place in it is ever used twice.
const FILE_SIZE: u64 = 1 << 62;

/// Seals that prevent every resize. Peers write the file, so it is not sealed against writes.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Bytes that are moved at once: so long others may have to wait.
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes that are there twice for a moment on their way back.
const RESTORE_CHUNK_BYTES: usize = 4 << 20;

/// The arena's file.
#[derive(Debug)]
pub(super) struct ArenaFile {
    memfd: OwnedFd,
    id: FileId,
}

impl ArenaFile {
    pub(super) fn new() -> Result<Self, ColdReason> {
        // Asked before, because ftruncate would not only fail: it would send SIGXFSZ.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < FILE_SIZE) {
            return Err(ColdReason::FileSizeLimit);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
        let memfd = memfd_create(NAME, flags).map_err(refusal)?;
        ftruncate(&memfd, FILE_SIZE).map_err(refusal)?;
        fcntl_add_seals(&memfd, SEALS).map_err(refusal)?;
        let id = FileId::of(&fstat(&memfd).map_err(refusal)?);
        Ok(Self { memfd, id })
    }

    pub(super) const fn fd(&self) -> &OwnedFd {
        &self.memfd
    }

    pub(super) const fn id(&self) -> FileId {
        self.id
    }
}

/// Moves `range`, which was found to be plain memory, onto the file from `start` on, and locks it. After an error it is the program's
/// alone. Children do not get the parts of it in `not_forked`, before and after.
pub(super) fn move_to_file(
    file: &ArenaFile,
    maps: &Maps,
    (range, start): (&Range<usize>, u64),
    Registrable { not_forked, threads, .. }: &Registrable,
    serving: &ServingThreads,
) -> Result<(), ColdReason> {
    let protection = WriteProtection::new(maps, range, *threads, serving)?;
    let moved = move_chunks(file, maps, &protection, (range, start));
    // Nothing forks before this: the lock of all arenas is held. After an error some mappings are new, too.
    let kept = not_forked.iter().try_for_each(keep_from_children);
    moved?;
    if kept.is_ok() && maps.is_mapped_as(range, file.id, start) == Ok(true) {
        return Ok(());
    }
    restore(file, maps, (range, start), !not_forked.is_empty());
    Err(ColdReason::Refused)
}

fn move_chunks(
    file: &ArenaFile,
    maps: &Maps,
    protection: &WriteProtection,
    (range, start): (&Range<usize>, u64),
) -> Result<(), ColdReason> {
    let mut at = range.start;
    while at < range.end {
        let chunk = at..range.end.min(at + CHUNK_BYTES);
        if let Err(reason) = move_chunk(file, maps, protection, &chunk, start + (at - range.start) as u64) {
            restore(file, maps, (&(range.start..at), start), false);
            return Err(reason);
        }
        at = chunk.end;
    }
    Ok(())
}

/// Asks the kernel that children do not get this part of a mapping.
fn keep_from_children(range: &Range<usize>) -> rustix::io::Result<()> {
    // SAFETY: has no effect but on fork.
    unsafe { madvise(pointer(range.start), range.len(), Advice::LinuxDontFork) }
}

/// Nothing in here writes to memory that may lie in the chunk: it would wait for itself.
fn move_chunk(
    file: &ArenaFile,
    maps: &Maps,
    protection: &WriteProtection,
    chunk: &Range<usize>,
    offset: u64,
) -> Result<(), ColdReason> {
    let held = protection.protect(chunk)?;
    let (start, len) = (pointer::<u8>(chunk.start), chunk.len());
    // SAFETY: mapped and readable, as was found, and nothing writes it while it is held.
    let bytes = unsafe { std::slice::from_raw_parts(start, len) };
    write_all(&file.memfd, bytes, offset)?;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE | MapFlags::LOCKED;
    // SAFETY: the new pages hold what the old ones hold, so no observer can tell the difference.
    if let Err(error) = unsafe { mmap(start.cast(), len, rights, flags, &file.memfd, offset) } {
        repair_mapping(file, maps, chunk, offset);
        return Err(if matches!(error, Errno::AGAIN | Errno::PERM) { ColdReason::LockLimit } else { refusal(error) });
    }
    drop(held);
    Ok(())
}

/// After an error: older kernels may have taken the old pages away before they found that out.
fn repair_mapping(file: &ArenaFile, maps: &Maps, chunk: &Range<usize>, offset: u64) {
    if matches!(maps.at(chunk.start), Ok(None)) {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
        let (start, len) = (pointer(chunk.start), chunk.len());
        // SAFETY: nothing is mapped there, and what was there is in the file.
        let healed = unsafe { mmap(start, len, rights, flags, &file.memfd, offset) };
        assert!(
            healed.is_ok(),
            "the kernel took {len} bytes of the program at {start:p} and does not let us put them back"
        );
    }
}

/// Makes whatever shows this part of the file the program's alone, wherever the program may have moved it meanwhile. With
/// `keep_advice`, children still do not get what they would not have got before.
pub(super) fn restore(file: &ArenaFile, maps: &Maps, (range, start): (&Range<usize>, u64), keep_advice: bool) {
    let part = start..start + range.len() as u64;
    let in_place = restore_within(file, maps, &part, range.clone(), keep_advice);
    let done = if in_place.bytes == range.len() {
        in_place
    } else {
        restore_within(file, maps, &part, 0..usize::MAX, keep_advice)
    };
    if done.private {
        discard(file, start, range.len()); // Also what the program has unmapped.
    }
}

/// Throws pages of the file away that nothing needs any more.
fn discard(file: &ArenaFile, start: u64, len: usize) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // Where it is refused, memory stays in use until the file goes.
    let _ = fallocate(&file.memfd, flags, start, len as u64);
}

/// The result of restoring pages.
struct Restored {
    bytes: usize,
    /// Nothing of it needs the file any more.
    private: bool,
}

fn restore_within(
    file: &ArenaFile,
    maps: &Maps,
    part: &Range<u64>,
    bounds: Range<usize>,
    keep_advice: bool,
) -> Restored {
    // Where the kernel does not answer, children get a copy.
    let not_forked = if keep_advice { eligibility::not_forked(&bounds).unwrap_or_default() } else { Vec::new() };
    let mut done = Restored { bytes: 0, private: true };
    let mut at = bounds.start;
    while at < bounds.end {
        let vma = match maps.file_from(at) {
            Ok(Some(vma)) => vma,
            Ok(None) => break,
            Err(_) => return Restored { private: false, ..done }, // Where the kernel no longer answers, nothing is changed.
        };
        at = vma.range.end;
        if vma.range.start < bounds.end && vma.file == Some(file.id) && part.contains(&vma.offset) && vma.shared {
            done.bytes += vma.range.len();
            done.private &= make_private(file, &vma);
            if not_forked.iter().any(|part| part.contains(&vma.range.start)) {
                let _ = keep_from_children(&vma.range);
            }
        }
    }
    done
}

/// True if every page of it is the program's own afterwards.
fn make_private(file: &ArenaFile, vma: &Vma) -> bool {
    let (start, len) = (pointer(vma.range.start), vma.range.len());
    let rights = [(vma.readable, ProtFlags::READ), (vma.writable, ProtFlags::WRITE), (vma.executable, ProtFlags::EXEC)];
    let rights = rights.into_iter().filter(|(has, _)| *has).map(|(_, right)| right).collect();
    // Not accounted, so that no overcommit policy but the strictest can refuse it.
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the kernel has just said that these addresses show this file from this offset: the same bytes appear at the same
    // addresses with the same rights. Memory of the program is reached by its own pointers as before.
    if unsafe { mmap(start, len, rights, flags, file.memfd.as_fd(), vma.offset) }.is_err() {
        // It stays shared. Then a child must not have it at all, rather than write into its parent's memory.
        let _ = keep_from_children(&vma.range);
        return false;
    }
    (0..len).step_by(RESTORE_CHUNK_BYTES).all(|at| {
        let len = RESTORE_CHUNK_BYTES.min(len - at);
        // SAFETY: inside the mapping; changes no contents: the kernel does what it does when a page is written.
        let copied = unsafe { madvise(start.byte_add(at), len, Advice::LinuxPopulateWrite) }.is_ok();
        if copied {
            discard(file, vma.offset + at as u64, len);
        }
        copied
    })
}

fn write_all(memfd: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), ColdReason> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(memfd, bytes, at) {
            Ok(0) => return Err(ColdReason::MemoryLimit),
            Ok(written) => {
                bytes = &bytes[written..];
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(refusal(error)),
        }
    }
    Ok(())
}
