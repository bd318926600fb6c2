//! The copy of a payload.
//!
//! The C library's `memcpy` uses `rep movsb` for 2 KiB and more where the CPU reports that it is fast. AMD's Zen 4 reports
//! this (Zen 3 is said to be alike), but is slow where the destination begins 1 to 31 bytes after the source modulo 4096.
//! Copying 16 KiB at a time from cold memory into a ring of 256 KiB, it reaches 3.2 GB/s at 1 to 15 bytes, 7.8 at 16 to 31, and
//! 16 at others. That is not rare: an allocator's buffers begin 16 bytes into a page, and fragments of a slab often at a page.
//! Only the difference of the two addresses matters. Such copies therefore use vectors, which are not affected (14.6 GB/s;
//! `isthmus-bench baselines --only memcpy.behind --only channel_copy.behind`).

/// Smallest copy for which the C library uses `rep movsb`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LONG_COPY_BYTES: usize = 2 << 10;

/// Copies bytes as `core::ptr::copy_nonoverlapping` does. Others may write the bytes meanwhile.
///
/// # Safety
///
/// See there: both pointers are valid for `len` bytes, and the ranges do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= LONG_COPY_BYTES && is_just_behind(from, to) {
        // SAFETY: as the caller says.
        return unsafe { copy_by_vectors(from, to, len) };
    }
    // SAFETY: as the caller says.
    unsafe { core::ptr::copy_nonoverlapping(from, to, len) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn is_just_behind(from: *const u8, to: *mut u8) -> bool {
    (1..32).contains(&(to.addr().wrapping_sub(from.addr()) & 0xfff))
}

/// Copies bytes as [`copy`] does, a cache line at a time.
///
/// # Safety
///
/// See [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(never)] // With what a caller knows of its pointers the compiler could make a `memcpy` of the loop.
unsafe fn copy_by_vectors(from: *const u8, to: *mut u8, len: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};

    let whole = len - len % 64;
    for at in (0..whole).step_by(64) {
        // SAFETY: `at + 64` is at most `len`, as long as both are valid; these loads and stores need no alignment, and every
        // processor of this architecture has them.
        unsafe {
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let line: [__m128i; 4] = core::array::from_fn(|part| _mm_loadu_si128(from.add(part)));
            for (part, vector) in line.into_iter().enumerate() {
                _mm_storeu_si128(to.add(part), vector);
            }
        }
    }
    // SAFETY: the rest of both.
    unsafe { core::ptr::copy_nonoverlapping(from.add(whole), to.add(whole), len - whole) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths around a line and around what goes by vectors, at differences around what does, both ways round a page's end.
    #[test]
    fn copy_is_complete_at_any_alignment() {
        let from: Vec<u8> = (0..16_384_u32).map(|at| (at * 31 / 7) as u8).collect();
        for len in [0, 1, 63, 64, 2047, 2048, 2049, 2111, 4096, 5000] {
            for start in [0, 16, 4090] {
                for behind in [0, 1, 16, 31, 32, 64, 4095] {
                    let mut to = vec![0; 16_384];
                    let aligned = |bytes: &[u8]| bytes.as_ptr().align_offset(4096);
                    let (a, b) = (aligned(&from) + start, aligned(&to) + (start + behind) % 4096);
                    // SAFETY: 4096 + 4096 + 5000 bytes at most lie inside each, and they are two allocations.
                    unsafe { copy(from.as_ptr().add(a), to.as_mut_ptr().add(b), len) };
                    assert_eq!(to[b..b + len], from[a..a + len], "{len} bytes at {start}, {behind} behind");
                    assert!(to[..b].iter().chain(&to[b + len..]).all(|&byte| byte == 0), "nothing beside them");
                }
            }
        }
    }
}
