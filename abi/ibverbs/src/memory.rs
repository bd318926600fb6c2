//! The memory of the program, as the engine uses it.

use isthmus_verbs::{AtomicOperation, Memory, Operation};
use rustix::io::Errno;
use rustix::mm::{Advice, MsyncFlags};
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// The memory of this process.
///
/// The engine passes only addresses in regions that the program has registered, or, for inline bytes, in lists that the program posts. The
/// program promises in both cases that the memory is there: `ibv_reg_mr(3)`, `ibv_post_send(3)`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgramMemory;

impl Memory for ProgramMemory {
    fn is_mapped(&self, addr: u64, len: u64) -> bool {
        is_mapped(addr, len)
    }

    #[inline]
    fn read(&self, addr: u64, into: &mut [u8]) {
        // SAFETY: the program promised that the bytes are readable, as the type says. `into` is ours, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, into.as_mut_ptr(), into.len()) }
    }

    #[inline]
    fn write(&mut self, addr: u64, bytes: &[u8]) {
        // SAFETY: the engine has checked that the region may be written, and the program promised that it is writable. `bytes` lie in a
        // ring or in memory of ours, so the two do not overlap.
        unsafe { copy_last_word_last(bytes.as_ptr(), addr as *mut u8, bytes.len()) }
    }

    fn atomic(&mut self, addr: u64, operation: AtomicOperation) -> u64 {
        // SAFETY: as for `write`; the engine passes multiples of 8 only. Peers and the program reach these bytes by atomic operations.
        let word = unsafe { AtomicU64::from_ptr(addr as *mut u64) };
        apply(word, operation)
    }
}

/// Performs an atomic operation. Returns the number before it.
fn apply(word: &AtomicU64, operation: AtomicOperation) -> u64 {
    match operation {
        AtomicOperation::FetchAdd(number) => word.fetch_add(number, Ordering::AcqRel),
        AtomicOperation::CompareSwap { compare, swap } => {
            match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                Ok(before) | Err(before) => before,
            }
        }
    }
}

/// Copies bytes so that the last one becomes visible last: programs poll it to see that a write is complete. Some poll the last word
/// instead, so the last word of up to 8 bytes becomes visible as a whole, if it is aligned.
///
/// # Safety
///
/// As for [`std::ptr::copy_nonoverlapping`], except that others may read or write the destination at any time.
#[inline]
pub(crate) unsafe fn copy_last_word_last(from: *const u8, to: *mut u8, len: usize) {
    let aligned = to.addr().wrapping_add(len).trailing_zeros().min(3);
    let Some(fits) = len.checked_ilog2() else { return };
    let word = 1 << aligned.min(fits);
    let rest = len - word;
    // SAFETY: passed on; the last word lies inside, and its destination is aligned. Its source need not be.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, rest);
        let (from, to) = (from.add(rest), to.add(rest));
        // A, with the program's load of the last word (argued): all other bytes were stored before.
        match word {
            8 => AtomicU64::from_ptr(to.cast()).store(from.cast::<u64>().read_unaligned(), Ordering::Release),
            4 => AtomicU32::from_ptr(to.cast()).store(from.cast::<u32>().read_unaligned(), Ordering::Release),
            2 => AtomicU16::from_ptr(to.cast()).store(from.cast::<u16>().read_unaligned(), Ordering::Release),
            _ => AtomicU8::from_ptr(to).store(from.read(), Ordering::Release),
        }
    }
}

/// A range of the program's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Range {
    pub(crate) addr: u64,
    pub(crate) len: usize,
}

/// Performs an operation between ranges of the program and memory of a peer. False, and nothing is done, if the place does not suit.
///
/// # Safety
///
/// The ranges together have as many bytes as the place; an atomic operation has 8. The program's memory may be used as the operation does.
pub(crate) unsafe fn perform(operation: &Operation, ranges: &[Range], place: *mut u8) -> bool {
    match operation {
        Operation::Send { .. } => return false,
        Operation::Write { .. } => {
            let mut at = place;
            for range in ranges {
                // SAFETY: as promised.
                unsafe {
                    copy_last_word_last(range.addr as *const u8, at, range.len);
                    at = at.add(range.len);
                }
            }
        }
        Operation::Read { .. } => {
            let mut at = place.cast_const();
            for range in ranges {
                // SAFETY: as promised.
                unsafe {
                    std::ptr::copy_nonoverlapping(at, range.addr as *mut u8, range.len);
                    at = at.add(range.len);
                }
            }
        }
        Operation::Atomic { atomic, .. } => {
            if !place.addr().is_multiple_of(8) {
                return false;
            }
            // SAFETY: as promised, and aligned.
            let before = apply(unsafe { AtomicU64::from_ptr(place.cast()) }, *atomic).to_ne_bytes();
            let mut rest = &before[..];
            for range in ranges {
                let (now, later) = rest.split_at(range.len.min(rest.len()));
                // SAFETY: as promised.
                unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), range.addr as *mut u8, now.len()) };
                rest = later;
            }
        }
    }
    true
}

/// Checks that a range can be registered: an adapter in hardware would pin its pages, which fails where the program has no memory or may
/// not access it. No page but the first and the last one is touched, because a sparse region may be larger than the memory of the machine.
/// A mapping in the middle with fewer rights is not noticed.
pub(crate) fn check(addr: u64, len: u64, is_written: bool) -> Result<(), Errno> {
    let page = rustix::param::page_size() as u64;
    let Some(end) = addr.checked_add(len).filter(|end| *end > addr) else { return Ok(()) }; // The engine refuses it.
    let (first, last) = (addr / page * page, (end - 1) / page * page);
    if !is_mapped(addr, len) {
        return Err(Errno::FAULT);
    }
    let advice = if is_written { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    for at in [first, last] {
        // SAFETY: does what a thread of the program does that reads or writes the page, and changes no contents.
        let touched = unsafe { rustix::mm::madvise(at as *mut c_void, page as usize, advice) };
        if touched.is_err_and(|errno| errno != Errno::INVAL || has_populate()) {
            return Err(Errno::FAULT);
        }
    }
    Ok(())
}

/// Returns whether something is mapped at each address of a range, which has at least one byte and does not wrap around. Costs a fraction of
/// a microsecond, whatever the size.
fn is_mapped(addr: u64, len: u64) -> bool {
    let start = addr / rustix::param::page_size() as u64 * rustix::param::page_size() as u64;
    // SAFETY: with `MS_ASYNC` nothing is written: the kernel looks for gaps. The length is rounded up to whole pages.
    let asked = unsafe { rustix::mm::msync(start as *mut c_void, (addr - start + len) as usize, MsyncFlags::ASYNC) };
    asked != Err(Errno::NOMEM) // A filter of system calls may forbid the question.
}

/// Returns true if the kernel knows the advice by which pages are touched: Linux 5.14.
fn has_populate() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let page = rustix::param::page_size();
        let here = std::ptr::from_ref(&KNOWN).addr() / page * page;
        // SAFETY: reads a page of this library.
        unsafe { rustix::mm::madvise(here as *mut c_void, page, Advice::LinuxPopulateRead) }.is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    /// Three pages with these rights, the middle one of which is unmapped if `has_gap`.
    fn pages(rights: ProtFlags, has_gap: bool) -> u64 {
        let page = rustix::param::page_size();
        // SAFETY: new memory, which nothing else uses.
        unsafe {
            let start = mmap_anonymous(std::ptr::null_mut(), 3 * page, rights, MapFlags::PRIVATE).expect("memory");
            if has_gap {
                munmap(start.byte_add(page), page).expect("a part of it");
            }
            start as u64
        }
    }

    #[test]
    fn memory_that_a_kernel_could_not_pin_is_refused() {
        let page = rustix::param::page_size() as u64;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let (plain, read_only) = (pages(both, false), pages(ProtFlags::READ, false));
        for (addr, len, is_written, expected) in [
            (plain, 3 * page, true, Ok(())),
            (plain + 1, 1, true, Ok(())),
            (plain + page - 1, 2, true, Ok(())),
            (read_only, 3 * page, false, Ok(())),
            (read_only, 1, true, Err(Errno::FAULT)),
            (pages(ProtFlags::empty(), false), page, false, Err(Errno::FAULT)),
            (pages(both, true), 3 * page, true, Err(Errno::FAULT)),
            (pages(both, true) + page, 8, true, Err(Errno::FAULT)),
            (0, 8192, false, Err(Errno::FAULT)),
            (0xffff_8000_0000_0000, 8192, true, Err(Errno::FAULT)),
            (u64::MAX - 4096, 8192, true, Ok(())),
            (plain, 0, true, Ok(())),
        ] {
            assert_eq!(check(addr, len, is_written), expected, "{len} bytes at {addr:#x}, written: {is_written}");
        }
        // SAFETY: the last page of memory that nothing else uses.
        unsafe { mprotect((plain + 2 * page) as *mut c_void, page as usize, MprotectFlags::READ).expect("our memory") };
        assert_eq!(check(plain, 3 * page, true), Err(Errno::FAULT), "the last page may not be written");
        assert_eq!(check(plain, 3 * page, false), Ok(()));
    }

    #[test]
    fn copies_reach_exactly_their_bytes_at_every_alignment() {
        let from: Vec<u8> = (1..=40).collect();
        for start in 0..8 {
            for len in 0..=24 {
                for skip in 0..3 {
                    let mut words = [0_u64; 8];
                    let to = words.as_mut_ptr().cast::<u8>();
                    // SAFETY: both ranges lie inside of their memory.
                    unsafe { copy_last_word_last(from.as_ptr().add(skip), to.add(start), len) };
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                    assert_eq!(bytes[start..start + len], from[skip..skip + len]);
                    assert!(bytes[..start].iter().chain(&bytes[start + len..]).all(|byte| *byte == 0));
                }
            }
        }
    }

    #[test]
    fn atomic_operations_return_the_number_before() {
        let mut word = 5_u64;
        let addr = &raw mut word as u64;
        assert_eq!(ProgramMemory.atomic(addr, AtomicOperation::FetchAdd(u64::MAX)), 5);
        assert_eq!(ProgramMemory.atomic(addr, AtomicOperation::CompareSwap { compare: 5, swap: 1 }), 4);
        assert_eq!(ProgramMemory.atomic(addr, AtomicOperation::CompareSwap { compare: 4, swap: 9 }), 4);
        let mut bytes = [0; 8];
        ProgramMemory.read(addr, &mut bytes);
        assert_eq!(u64::from_ne_bytes(bytes), 9);
    }
}
