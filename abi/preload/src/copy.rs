//! Copies between memory of the program and memory of the library, which end with an error at an address that cannot be reached.
//!
//! The kernel answers `EFAULT` for such an address. A copy here notes where to go on, and the handler of the fault ([`crate::signals`]) goes
//! on there. Only frames without destructors lie between the two places.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use libc::ucontext_t;

use crate::inside::{self, ThreadState};
use crate::signals;

/// The program gave an address that cannot be reached: `EFAULT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault;

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".globl isthmus_guarded",
    ".hidden isthmus_guarded",
    ".globl isthmus_faulted",
    ".hidden isthmus_faulted",
    ".type isthmus_guarded, @function",
    "isthmus_guarded:", // (function, argument, place) -> 0, or 1 after a fault
    ".cfi_startproc",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rdx",
    ".cfi_def_cfa_offset 64",
    "mov [rdx], rsp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "xor eax, eax",
    "2:",
    "pop rdx",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    ".cfi_def_cfa_offset 8",
    "mov qword ptr [rdx], 0",
    "ret",
    "isthmus_faulted:", // with the stack pointer of the place
    ".cfi_def_cfa_offset 64",
    "mov eax, 1",
    "jmp 2b",
    ".cfi_endproc",
    ".size isthmus_guarded, . - isthmus_guarded",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn isthmus_guarded(function: extern "C" fn(*mut c_void), argument: *mut c_void, place: *mut usize) -> c_int;
    fn isthmus_faulted();
}

/// Calls `f`, which copies and owns nothing. Returns an error if an address of the program cannot be reached: then `f` has ended early.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn guarded<F: FnOnce()>(f: F) -> Result<(), Fault> {
    extern "C" fn call<F: FnOnce()>(argument: *mut c_void) {
        // SAFETY: the function below, which has moved the closure there, calls this once.
        unsafe { (*argument.cast::<MaybeUninit<F>>()).assume_init_read()() }
    }
    const { assert!(!core::mem::needs_drop::<F>(), "a fault would leave values behind") };
    let state = inside::state();
    let mut f = MaybeUninit::new(f);
    state.hold(); // A handler in between could use the place.
    // SAFETY: the function gets its own argument. The place is that of this thread, and no other copy is under way in it.
    let faulted = unsafe { isthmus_guarded(call::<F>, (&raw mut f).cast(), state.copy.as_ptr()) };
    state.release();
    if faulted == 0 { Ok(()) } else { Err(Fault) }
}

/// Goes on behind the copy that is under way. Returns false if none is.
#[cfg(target_arch = "x86_64")]
pub(crate) fn recover(state: &ThreadState, context: &mut ucontext_t) -> bool {
    let place = state.copy.load(Ordering::Relaxed);
    if place == 0 {
        return false;
    }
    context.uc_mcontext.gregs[libc::REG_RSP as usize] = place as i64;
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = isthmus_faulted as unsafe extern "C" fn() as usize as i64;
    context.uc_mcontext.gregs[libc::REG_EFL as usize] &= !(1 << 10); // Copies go forward.
    true
}

/// Calls `f`. A fault in it ends the program.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn guarded<F: FnOnce()>(f: F) -> Result<(), Fault> {
    f();
    Ok(())
}

/// Returns false: no copy goes on after a fault.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn recover(_: &ThreadState, _: &mut ucontext_t) -> bool {
    false
}

/// Copies bytes. No copy begins or ends at null.
fn copy_bytes(from: *const u8, to: *mut u8, count: usize) -> Result<(), Fault> {
    if count > 0 && (from.is_null() || to.is_null()) {
        return Err(Fault);
    }
    signals::guard_copies();
    // SAFETY: the callers' promises. The guard catches a fault.
    guarded(|| unsafe { core::ptr::copy_nonoverlapping(from, to, count) })
}

/// Reads a value from memory of the program. Programs align as they like.
///
/// # Safety
///
/// Any bytes are a value of the type. The address may be one that cannot be reached.
pub(crate) unsafe fn read<T: Copy>(from: *const T) -> Result<T, Fault> {
    let mut into = MaybeUninit::<T>::uninit();
    copy_bytes(from.cast(), into.as_mut_ptr().cast(), size_of::<T>())?;
    // SAFETY: all bytes were copied, and the caller's promise.
    Ok(unsafe { into.assume_init() })
}

/// Writes a value to memory of the program.
///
/// # Safety
///
/// The program lets the call write there, or the address cannot be reached.
pub(crate) unsafe fn write<T: Copy>(to: *mut T, value: T) -> Result<(), Fault> {
    copy_bytes((&raw const value).cast(), to.cast(), size_of::<T>())
}

/// Reads values from memory of the program, as many as there is room for.
///
/// # Safety
///
/// As [`read`].
pub(crate) unsafe fn read_into<T: Copy>(from: *const T, into: &mut [T]) -> Result<(), Fault> {
    copy_bytes(from.cast(), into.as_mut_ptr().cast(), size_of_val(into))
}

/// Reads `count` values from memory of the program.
///
/// # Safety
///
/// As [`read`].
pub(crate) unsafe fn read_all<T: Copy>(from: *const T, count: usize) -> Result<Vec<T>, Fault> {
    let mut all: Vec<T> = Vec::with_capacity(count);
    copy_bytes(from.cast(), all.as_mut_ptr().cast(), size_of::<T>() * count)?;
    // SAFETY: all values were copied.
    unsafe { all.set_len(count) };
    Ok(all)
}

/// Writes values to memory of the program.
///
/// # Safety
///
/// As [`write`].
pub(crate) unsafe fn write_all<T: Copy>(to: *mut T, values: &[T]) -> Result<(), Fault> {
    copy_bytes(values.as_ptr().cast(), to.cast(), size_of_val(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_between_addresses_that_are_there() {
        let from = [1u64, 2, 3];
        let mut to = [0u64; 3];
        // SAFETY: arrays of this test.
        unsafe {
            assert_eq!(read(&raw const from[1]), Ok(2));
            assert_eq!(read_all(from.as_ptr(), 3), Ok(vec![1, 2, 3]));
            assert_eq!(write_all(to.as_mut_ptr(), &from), Ok(()));
            assert_eq!(write(&raw mut to[0], 9), Ok(()));
        }
        assert_eq!(to, [9, 2, 3]);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn address_that_cannot_be_reached_is_an_error() {
        crate::signals::guard_copies();
        let nowhere: *mut u64 = core::ptr::without_provenance_mut(16);
        for _ in 0..3 {
            // SAFETY: the copies are guarded.
            unsafe {
                assert_eq!(read(nowhere), Err(Fault));
                assert_eq!(write(nowhere, 1), Err(Fault));
                assert_eq!(read_all(nowhere, 100), Err(Fault));
                assert_eq!(read(core::ptr::null::<u64>()), Err(Fault));
            }
        }
        assert!(!inside::state().is_held());
    }
}
