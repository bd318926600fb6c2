//! Blocks writes to a memory range for a short time, while threads of the program may want to write it.
//!
//! Without other threads there is nothing to block; [serving threads](super::super::serving) are parked meanwhile. Otherwise the kernel makes every writing thread wait, also within a system call
//! (`userfaultfd(2)`, write protection). This needs `vm.unprivileged_userfaultfd = 1` or CAP_SYS_PTRACE; where it is refused, the memory
//! stays where it is. A userfaultfd that handles only faults from user mode is not enough, because system calls that write there would fail.
//!
//! The thread that holds the memory must not write it either. It therefore blocks its signals, and memory with its stack is refused.
//!
//! A device, or the kernel on behalf of one, that was earlier told to write into this memory (`O_DIRECT`, `io_uring`) does not wait. A
//! program must not have such an operation under way in memory that it registers.

use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use super::super::ColdReason;
use super::super::maps::Maps;
use super::super::region::refusal;
use super::super::serving::ServingThreads;

/// Write-protects a range, one chunk at a time. Dropping it undoes that.
pub(super) struct WriteProtection {
    userfaultfd: Option<Userfaultfd>,
    _signals_blocked: SignalsBlocked,
}

impl WriteProtection {
    /// `threads` is the number of threads of the process, counted since the serving threads are parked.
    pub(super) fn new(
        maps: &Maps,
        range: &Range<usize>,
        threads: usize,
        serving: &ServingThreads,
    ) -> Result<Self, ColdReason> {
        let here = 0_u8;
        let stack = maps.at(ptr::from_ref(&here).addr())?.ok_or(ColdReason::NoProc)?.range;
        if stack.start < range.end && range.start < stack.end || serving.write_in(range) {
            return Err(ColdReason::SpecialMemory);
        }
        // Only another thread could create a thread, and serving threads are outside of their gate: so this thread stays alone.
        let is_alone = threads == 1 + serving.count();
        let userfaultfd = if is_alone { None } else { Some(Userfaultfd::new(range)?) };
        Ok(Self { userfaultfd, _signals_blocked: SignalsBlocked::new() })
    }

    /// Protects the chunk: nothing writes it until the result is dropped.
    pub(super) fn protect(&self, chunk: &Range<usize>) -> Result<ProtectedRange<'_>, ColdReason> {
        if let Some(userfaultfd) = &self.userfaultfd {
            userfaultfd.protect(chunk)?;
        }
        Ok(ProtectedRange { protection: self, chunk: chunk.clone() })
    }
}

pub(super) struct ProtectedRange<'a> {
    protection: &'a WriteProtection,
    chunk: Range<usize>,
}

impl Drop for ProtectedRange<'_> {
    fn drop(&mut self) {
        if let Some(userfaultfd) = &self.protection.userfaultfd {
            userfaultfd.release(&self.chunk);
        }
    }
}

/// Makes every thread that writes wait. Dropping it lets all of them continue.
struct Userfaultfd(OwnedFd);

impl Userfaultfd {
    fn new(range: &Range<usize>) -> Result<Self, ColdReason> {
        let forbidden = |error| match error {
            Errno::PERM | Errno::NOSYS => ColdReason::Threads,
            error => refusal(error),
        };
        // SAFETY: the descriptor is used as below.
        let fd = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) }.map_err(forbidden)?;
        let mut api = UffdioApi { api: API, features: WP_UNPOPULATED, ioctls: 0 };
        // SAFETY: the request has this number and this layout.
        unsafe { ioctl(&fd, Updater::<{ UFFDIO_API }, UffdioApi>::new(&mut api)) }.map_err(refusal)?;
        let mut register = UffdioRegister { range: UffdioRange::of(range), mode: REGISTER_WP, ioctls: 0 };
        // SAFETY: as above. Changes nothing for any thread until a range is protected.
        unsafe { ioctl(&fd, Updater::<{ UFFDIO_REGISTER }, UffdioRegister>::new(&mut register)) }.map_err(refusal)?;
        Ok(Self(fd))
    }

    fn protect(&self, chunk: &Range<usize>) -> Result<(), ColdReason> {
        self.write_protect(chunk, WRITEPROTECT_WP).map_err(refusal)
    }

    /// Lets the waiting threads continue, in whatever pages are mapped now.
    fn release(&self, chunk: &Range<usize>) {
        if self.write_protect(chunk, 0).is_err() {
            // The old pages are replaced already.
            let mut woken = UffdioRange::of(chunk);
            // SAFETY: as above. It cannot fail: the range is one.
            let _ = unsafe { ioctl(&self.0, Updater::<{ UFFDIO_WAKE }, UffdioRange>::new(&mut woken)) };
        }
    }

    fn write_protect(&self, chunk: &Range<usize>, mode: u64) -> rustix::io::Result<()> {
        let mut protect = UffdioWriteprotect { range: UffdioRange::of(chunk), mode };
        // SAFETY: as above. A thread that writes there waits until it is released, or this is dropped.
        unsafe { ioctl(&self.0, Updater::<{ UFFDIO_WRITEPROTECT }, UffdioWriteprotect>::new(&mut protect)) }
    }
}

// linux/userfaultfd.h.

const API: u64 = 0xaa;
/// Covers pages that are not populated yet, too.
const WP_UNPOPULATED: u64 = 1 << 13;
const REGISTER_WP: u64 = 1 << 1;
const WRITEPROTECT_WP: u64 = 1 << 0;

const UFFDIO_API: Opcode = opcode::read_write::<UffdioApi>(0xaa, 0x3f);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<UffdioRegister>(0xaa, 0);
const UFFDIO_WAKE: Opcode = opcode::read::<UffdioRange>(0xaa, 2);
const UFFDIO_WRITEPROTECT: Opcode = opcode::read_write::<UffdioWriteprotect>(0xaa, 6);

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioRange {
    start: u64,
    len: u64,
}

impl UffdioRange {
    fn of(range: &Range<usize>) -> Self {
        Self { start: range.start as u64, len: range.len() as u64 }
    }
}

#[repr(C)]
struct UffdioRegister {
    range: UffdioRange,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioWriteprotect {
    range: UffdioRange,
    mode: u64,
}

/// Blocks all signals of this thread until it is dropped.
pub(in super::super) struct SignalsBlocked(SignalSet);

impl SignalsBlocked {
    pub(in super::super) fn new() -> Self {
        let (mut all, mut before) = (SignalSet([0; _]), SignalSet([0; _]));
        // SAFETY: both sets are ours and as large as any libc's.
        unsafe {
            sigfillset(&mut all);
            pthread_sigmask(SIG_SETMASK, &all, &mut before);
        }
        Self(before)
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was there before.
        unsafe { pthread_sigmask(SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

/// `sigset_t` of glibc and musl.
#[repr(C, align(8))]
struct SignalSet([u8; 128]);

const SIG_SETMASK: c_int = 2;

// libc keeps a few signals to itself, so these are its functions and not system calls.
unsafe extern "C" {
    fn sigfillset(set: *mut SignalSet) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const SignalSet, before: *mut SignalSet) -> c_int;
}
