//! Whether memory is as plain as it looks: the questions asked once, before a range is migrated.
//!
//! `PROCMAP_QUERY` tells private anonymous memory from all else, but not what the program has asked of it since:
//! locked, wiped on fork, kept out of core dumps, watched by userfaultfd, sealed, under a protection key. A new
//! mapping would lose all that without a word, so any such wish means: leave it alone.
//!
//! Where the address space has room beside the range, the kernel answers in a few microseconds, whatever the size of the process: it merges a
//! new page with the mapping beside it only if all these wishes are the same, and the new page has none ([`has_no_advice`]). Elsewhere
//! `/proc/self/smaps` is read, which costs some 30 µs for a small process and 3 µs more for each resident MiB before the range.

use std::io::{BufRead, BufReader, Read};
use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap_anonymous, msync, munmap};
use rustix::process::{Resource, getrlimit};

use super::maps::{Maps, Vma, open};
use super::{ColdReason, arena, region};

/// Refuses all memory but private anonymous pages which the program may read and write (or pages which we gave back
/// earlier). Returns the mappings that cover the range.
pub(super) fn check_plain(maps: &Maps, range: &Range<usize>, page_size: usize) -> Result<Vec<Vma>, ColdReason> {
    let vmas = maps.covering(range)?.ok_or(ColdReason::Unmapped)?;
    vmas.iter().try_for_each(|vma| check_plain_mapping(maps, vma, page_size))?;
    Ok(vmas)
}

fn check_plain_mapping(maps: &Maps, vma: &Vma, page_size: usize) -> Result<(), ColdReason> {
    if vma.shared {
        return Err(ColdReason::Shared);
    }
    if !(vma.readable && vma.writable) {
        return Err(ColdReason::NotWritable);
    }
    if vma.executable {
        return Err(ColdReason::SpecialMemory);
    }
    if vma.page_size != page_size {
        return Err(ColdReason::NotAnonymous);
    }
    let mut room = [0; _];
    let name = maps.name_at(vma.range.start, &mut room)?;
    let plain = match vma.file {
        None => name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon: glibc"),
        // Private pages over a region of ours that does not change any more, or over registered memory that was closed.
        Some(_) => [region::NAME_IN_MAPS, region::EXTENT_NAME_IN_MAPS, arena::NAME_IN_MAPS]
            .iter()
            .any(|ours| name == ours.as_bytes()),
    };
    if plain {
        Ok(())
    } else if name.starts_with(b"[anon:") {
        Err(ColdReason::SpecialMemory)
    } else {
        Err(ColdReason::NotAnonymous)
    }
}

/// Refuses memory with which the program has something special in mind; says how much more may be locked. The mappings are those that
/// [`check_plain`] has found.
pub(super) fn check_unencumbered(maps: &Maps, range: &Range<usize>, vmas: &[Vma]) -> Result<LockableBytes, ColdReason> {
    let found = check_registrable(maps, range, vmas, 0)?;
    if found.not_forked.is_empty() { Ok(found.room) } else { Err(ColdReason::SpecialMemory) }
}

/// Memory that can be registered.
#[derive(Debug)]
pub(super) struct Registrable {
    /// How much more may be locked.
    pub(super) room: LockableBytes,
    /// The parts that children do not get (`MADV_DONTFORK`).
    pub(super) not_forked: Vec<Range<usize>>,
    /// The number of threads of the process.
    pub(super) threads: usize,
}

/// As [`check_unencumbered`], but accepts memory that children do not get, and says where it is. `registered` is the number of bytes in arenas.
pub(super) fn check_registrable(
    maps: &Maps,
    range: &Range<usize>,
    vmas: &[Vma],
    registered: usize,
) -> Result<Registrable, ColdReason> {
    let status = ThreadStatus::read()?;
    let room = check_unpinned(maps, &status, registered)?;
    let not_forked = if !vmas.is_empty() && vmas.iter().all(|vma| has_no_advice(maps, vma)) {
        Vec::new()
    } else {
        MemoryAdvice::read(open_smaps()?, range)?.check(range)?
    };
    Ok(Registrable { room, not_forked, threads: status.threads })
}

/// Returns true if the kernel treats this anonymous mapping as it treats new memory. Returns false if there is no room beside it, too.
fn has_no_advice(maps: &Maps, vma: &Vma) -> bool {
    let page = rustix::param::page_size();
    let below = vma.range.start.checked_sub(page);
    vma.file.is_none() && !is_locked(vma) && below.into_iter().chain([vma.range.end]).any(|at| merges(maps, at, vma))
}

/// Returns true if a new page at `at`, which touches a mapping, becomes a part of that mapping. The page is gone when this returns.
fn merges(maps: &Maps, at: usize, vma: &Vma) -> bool {
    let (page, rights) = (rustix::param::page_size(), ProtFlags::READ | ProtFlags::WRITE);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: a new mapping that replaces nothing. No other thread depends on this address: the kernel may give it to any call of `mmap`.
    let Ok(new) = (unsafe { mmap_anonymous(region::pointer(at), page, rights, flags) }) else { return false };
    let merged = maps.at(vma.range.start).ok().flatten().is_some_and(|found| found.range.contains(&new.addr()));
    // SAFETY: the page from above, which nothing refers to.
    let removed = unsafe { munmap(new, page) };
    merged && removed.is_ok()
}

/// Returns true if a part of a mapping is locked. A new page would be, too, where the program has locked all future memory.
fn is_locked(vma: &Vma) -> bool {
    // SAFETY: without another flag the kernel only looks for locks.
    let asked = unsafe { msync(region::pointer(vma.range.start), vma.range.len(), MsyncFlags::INVALIDATE) };
    asked == Err(Errno::BUSY)
}

/// The parts of `range` that children of this process do not get (`MADV_DONTFORK`).
pub(super) fn not_forked(range: &Range<usize>) -> Result<Vec<Range<usize>>, ColdReason> {
    Ok(MemoryAdvice::read(open_smaps()?, range)?.not_forked)
}

#[cfg(test)]
thread_local! {
    /// How often this thread has read `smaps`.
    static SMAPS_READ: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

fn open_smaps() -> Result<impl BufRead, ColdReason> {
    #[cfg(test)]
    SMAPS_READ.set(SMAPS_READ.get() + 1);
    Ok(BufReader::with_capacity(64 << 10, open("/proc/self/smaps")?))
}

/// Refuses when the program has locked pages, or has had any pinned for a device: other pages under the same addresses
/// would silently part the program from its device. The kernel counts these per process only. Where it counts as many as
/// the `registered` bytes, which we have locked ourselves, the mappings are not walked. (A program that has unmapped some of these, and locked
/// as many others, is not noticed here. Locks of the range itself are, by its flags.)
fn check_unpinned(maps: &Maps, status: &ThreadStatus, registered: usize) -> Result<LockableBytes, ColdReason> {
    let mut ours = 0;
    if status.locked == registered {
        ours = registered;
    } else {
        // Of a device's pages those that were given back are locked, of registered ones those that were not closed.
        maps.for_each_named(|name, vma| {
            let is_ours = match name {
                region::NAME_IN_MAPS => true,
                region::EXTENT_NAME_IN_MAPS => !vma.shared,
                arena::NAME_IN_MAPS => vma.shared,
                _ => false,
            };
            ours += if is_ours { vma.range.len() } else { 0 };
        })?;
    }
    if status.pinned > 0 || status.locked > ours {
        return Err(ColdReason::Pinned);
    }
    let limit = getrlimit(Resource::Memlock).current.filter(|_| !status.may_lock_all);
    // An eighth is left for the program's own keys and rings.
    Ok(LockableBytes(limit.map_or(usize::MAX, |limit| (limit - limit / 8) as usize).saturating_sub(status.locked)))
}

/// Bytes that may still be locked.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockableBytes(pub(super) usize);

/// The content of `/proc/thread-self/status`: counts of the process, capabilities of the thread.
#[derive(Debug, PartialEq, Eq)]
struct ThreadStatus {
    locked: usize,
    pinned: usize,
    threads: usize,
    /// CAP_IPC_LOCK, at least in this user namespace.
    may_lock_all: bool,
}

impl ThreadStatus {
    fn read() -> Result<Self, ColdReason> {
        // One call reads it all: it has 1.5 KiB, and more for a user with many groups.
        let mut text = Vec::with_capacity(4 << 10);
        open("/proc/thread-self/status")?.read_to_end(&mut text).map_err(|_| ColdReason::NoProc)?;
        Self::parse(&String::from_utf8_lossy(&text)).ok_or(ColdReason::NoProc)
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name| text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        let bytes = |name| Some(field(name)?.parse::<usize>().ok()? << 10);
        let capabilities = u64::from_str_radix(field("CapEff:")?, 16).ok()?;
        Some(Self {
            locked: bytes("VmLck:")?,
            pinned: bytes("VmPin:")?,
            threads: field("Threads:")?.parse().ok()?,
            may_lock_all: capabilities & (1 << 14) != 0,
        })
    }
}

/// The flags that `VmFlags` may have: rights (rd wr sh mr mw me ms), accounting (ac nr), soft-dirty (sd), hints without effect here
/// (hg nh mg sr rr). Memory with any flag that is not listed here is not migrated, so flags of later kernels are covered.
const HARMLESS_FLAGS: &[&[u8]] =
    &[b"rd", b"wr", b"sh", b"mr", b"mw", b"me", b"ms", b"ac", b"nr", b"sd", b"hg", b"nh", b"mg", b"sr", b"rr"];

/// More that they may say of pages of ours.
const OWN_FLAGS: &[&[u8]] = &[b"lo", b"lf"];

/// The flag of memory that children do not get.
const NOT_FORKED_FLAG: &[u8] = b"dc";

/// Advice that the program has given about a range, as `smaps` shows it.
#[derive(Debug, Default, PartialEq, Eq)]
struct MemoryAdvice {
    /// A mapping has a flag that is not harmless, or a protection key.
    special: bool,
    /// The parts with `MADV_DONTFORK`. Those that touch are one.
    not_forked: Vec<Range<usize>>,
    /// Bytes in mappings with flags.
    bytes_known: usize,
}

impl MemoryAdvice {
    /// Reads `smaps` up to the end of `range`.
    fn read(mut smaps: impl BufRead, range: &Range<usize>) -> Result<Self, ColdReason> {
        let mut advice = Self::default();
        let mut line = Vec::new();
        let (mut inside, mut ours) = (0..0, false);
        loop {
            line.clear();
            if smaps.read_until(b'\n', &mut line).map_err(|_| ColdReason::NoProc)? == 0 {
                break;
            }
            if let Some(header) = header(&line) {
                if header.start >= range.end {
                    break;
                }
                let line = line.trim_ascii_end();
                ours = [region::NAME_IN_MAPS, region::EXTENT_NAME_IN_MAPS]
                    .iter()
                    .any(|name| line.ends_with(name.as_bytes()));
                inside = header.start.max(range.start)..header.end.min(range.end);
            } else if inside.is_empty() {
                continue;
            } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
                advice.add(&inside, flags, ours);
            } else if let Some(key) = line.strip_prefix(b"ProtectionKey:") {
                advice.special |= key.trim_ascii() != b"0";
            }
        }
        Ok(advice)
    }

    /// Refuses memory with special advice; returns the parts that are not forked.
    fn check(self, range: &Range<usize>) -> Result<Vec<Range<usize>>, ColdReason> {
        if self.bytes_known != range.len() {
            return Err(ColdReason::NoProc); // A kernel that shows no flags has told us nothing.
        }
        if self.special { Err(ColdReason::SpecialMemory) } else { Ok(self.not_forked) }
    }

    fn add(&mut self, part: &Range<usize>, flags: &[u8], ours: bool) {
        self.bytes_known += part.len();
        for flag in flags.split(u8::is_ascii_whitespace).filter(|flag| !flag.is_empty()) {
            if flag != NOT_FORKED_FLAG {
                self.special |= !(HARMLESS_FLAGS.contains(&flag) || ours && OWN_FLAGS.contains(&flag));
                continue;
            }
            match self.not_forked.last_mut().filter(|last| last.end == part.start) {
                Some(last) => last.end = part.end,
                None => self.not_forked.push(part.clone()),
            }
        }
    }
}

/// The range of a line such as `7f0000000000-7f0000001000 rw-p …`; None for the indented facts below it.
fn header(line: &[u8]) -> Option<Range<usize>> {
    let range = line.split(|&byte| byte == b' ').next()?;
    let (start, end) = std::str::from_utf8(range).ok()?.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{Advice, MlockFlags, madvise, mlock_with, mprotect};

    /// Memory with room beside it. No two tests use the same place, which is far below all that the kernel gives to others.
    fn memory_with_room_beside_it(place: usize, len: usize) -> (Maps, Range<usize>) {
        let (start, rights) = ((16 << 40) + (place << 30), ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: new memory, which replaces nothing.
        unsafe { mmap_anonymous(region::pointer(start), len, rights, flags) }.unwrap();
        (Maps::open().unwrap(), start..start + len)
    }

    fn is_plain(maps: &Maps, range: &Range<usize>) -> bool {
        has_no_advice(maps, &maps.at(range.start).unwrap().unwrap())
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn memory_with_advice_is_not_taken_for_new_memory() {
        let advices = [
            (Advice::LinuxDontFork, Advice::LinuxDoFork),
            (Advice::LinuxWipeOnFork, Advice::LinuxKeepOnFork),
            (Advice::LinuxDontDump, Advice::LinuxDoDump),
        ];
        let (maps, range) = memory_with_room_beside_it(0, rustix::param::page_size());
        let (start, len) = (region::pointer(range.start), range.len());
        assert!(is_plain(&maps, &range));
        for (given, taken_back) in advices {
            // SAFETY: memory of this test.
            unsafe { madvise(start, len, given) }.unwrap();
            assert!(!is_plain(&maps, &range), "{given:?}");
            // SAFETY: as above.
            unsafe { madvise(start, len, taken_back) }.unwrap();
            assert!(is_plain(&maps, &range), "{taken_back:?}");
        }
        // SAFETY: as above.
        unsafe { mlock_with(start, len, MlockFlags::ONFAULT) }.unwrap();
        assert!(!is_plain(&maps, &range), "locked");
        let found = maps.at(range.start).unwrap().unwrap().range;
        assert_eq!(found, range, "no page stays behind");
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn memory_between_others_is_not_taken_for_new_memory() {
        let page = rustix::param::page_size();
        let (maps, range) = memory_with_room_beside_it(1, page);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: the pages beside that of this test, which are free.
        unsafe {
            mmap_anonymous(region::pointer(range.end), page, ProtFlags::READ, flags).unwrap();
            assert!(is_plain(&maps, &range), "there is room below");
            mmap_anonymous(region::pointer(range.start - page), page, ProtFlags::READ, flags).unwrap();
        }
        assert!(!is_plain(&maps, &range));
        // SAFETY: the page of this test, which becomes one mapping with the others.
        unsafe { mprotect(region::pointer(range.start), page, rustix::mm::MprotectFlags::READ) }.unwrap();
        assert!(!is_plain(&maps, &range), "it may not be written");
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn the_next_of_many_registrations_reads_no_smaps() {
        let page = rustix::param::page_size();
        let arena = std::sync::Arc::new(arena::Arena::new().unwrap());
        let before = SMAPS_READ.get();
        let mut held = Vec::new();
        for at in 0..50 {
            let (_, range) = memory_with_room_beside_it(2 + at, 4 * page);
            // SAFETY: it stays to the end of the process, and nothing depends on what it holds.
            let what = unsafe { arena::Registration::new(region::pointer(range.start), range.len(), 1, 3) };
            match arena.register(&what) {
                Err(ColdReason::Threads) => return, // The test runner has threads, and this kernel refuses to make them wait.
                registered => held.push(registered.unwrap()),
            }
        }
        assert_eq!(SMAPS_READ.get(), before);
        let (_, range) = memory_with_room_beside_it(52, 4 * page);
        // SAFETY: memory of this test.
        unsafe { madvise(region::pointer(range.start), range.len(), Advice::LinuxDontDump) }.unwrap();
        // SAFETY: as above.
        let what = unsafe { arena::Registration::new(region::pointer(range.start), range.len(), 1, 3) };
        assert_eq!(arena.register(&what).err(), Some(ColdReason::SpecialMemory));
        assert_eq!(SMAPS_READ.get(), before + 1);
    }

    const SMAPS: &str = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nProtectionKey: 0\nVmFlags: rd wr mr mw me ac \n\
                         3000-4000 rw-p 00000000 00:00 0 \nSize: 4 kB\nProtectionKey: 0\nVmFlags: rd wr mr mw me dd \n\
                         4000-5000 rw-p 00000000 00:00 0 \nSize: 4 kB\nProtectionKey: 3\nVmFlags: rd wr mr mw me ac \n\
                         5000-6000 rw-p 00000000 00:00 0 \nSize: 4 kB\n";

    fn check(smaps: &str, range: Range<usize>) -> Result<Vec<Range<usize>>, ColdReason> {
        MemoryAdvice::read(smaps.as_bytes(), &range).unwrap().check(&range)
    }

    const SPECIAL: Result<Vec<Range<usize>>, ColdReason> = Err(ColdReason::SpecialMemory);

    #[test]
    fn advice_about_the_range_only_is_read() {
        assert_eq!(check(SMAPS, 0x1000..0x3000), Ok(vec![]));
        assert_eq!(check(SMAPS, 0x2000..0x3000), Ok(vec![]));
        assert_eq!(check(SMAPS, 0x2000..0x4000), SPECIAL, "kept out of core dumps");
        assert_eq!(check(SMAPS, 0x4000..0x5000), SPECIAL, "under a protection key");
    }

    #[test]
    fn memory_without_flags_is_refused() {
        assert_eq!(check(SMAPS, 0x5000..0x6000), Err(ColdReason::NoProc), "no flags");
        assert_eq!(check(SMAPS, 0x4800..0x6000), Err(ColdReason::NoProc), "no flags in a part of it");
        assert_eq!(check(SMAPS, 0x7000..0x8000), Err(ColdReason::NoProc), "no such mapping");
    }

    #[test]
    fn locks_of_our_own_are_not_special() {
        let flags = "VmFlags: rd wr mr mw me lo lf \n";
        let [ours, other] =
            ["/memfd:isthmus-migrated (deleted)", ""].map(|name| format!("1000-2000 rw-p 0 00:01 7   {name}\n{flags}"));
        assert_eq!(check(&ours, 0x1000..0x2000), Ok(vec![]));
        assert_eq!(check(&other, 0x1000..0x2000), SPECIAL);
    }

    #[test]
    fn parts_that_are_not_forked_are_listed() {
        let mapping = |range, flags| format!("{range} rw-p 00000000 00:00 0 \nSize: 4 kB\nVmFlags: rd wr {flags}\n");
        let smaps = [
            mapping("1000-3000", "dc ac"),
            mapping("3000-4000", "nh dc"),
            mapping("4000-5000", "ac"),
            mapping("5000-6000", "dd dc"),
            mapping("7000-8000", "dc"),
        ]
        .concat();
        let not_forked = |range| MemoryAdvice::read(smaps.as_bytes(), &range).unwrap().not_forked;
        assert_eq!(not_forked(0..usize::MAX), [0x1000..0x4000, 0x5000..0x6000, 0x7000..0x8000]);
        let parts = check(&smaps, 0x2000..0x4800).unwrap();
        assert_eq!((parts.len(), &parts[0]), (1, &(0x2000..0x4000)));
        assert_eq!(check(&smaps, 0x4000..0x5000), Ok(vec![]));
        assert_eq!(check(&smaps, 0x4000..0x6000), SPECIAL);
    }

    #[test]
    fn status_is_read_or_refused() {
        let text = "Name:\tx\nVmLck:\t       4 kB\nVmPin:\t      16 kB\nThreads:\t3\nCapEff:\t0000000000004000\n";
        let status = ThreadStatus { locked: 4096, pinned: 16384, threads: 3, may_lock_all: true };
        assert_eq!(ThreadStatus::parse(text), Some(status));
        assert_eq!(ThreadStatus::parse(&text.replace("VmPin", "VmPan")), None);
    }
}
