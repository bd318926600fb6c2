//! Commands to the connection manager.
//!
//! librdmacm opens `/dev/infiniband/rdma_cm` for each channel of events, and writes its commands to that descriptor. Where the kernel has no
//! such device, the file is a link to `/dev/full`. The provider puts a descriptor of its own in the place of such a file, and carries
//! the commands out. The descriptor is marked here, so that other descriptors cost a load.

use super::{next, set_errno};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Puts a descriptor of the provider in the place of one that librdmacm has opened. False if the file is not the one above.
type Adopt = unsafe extern "C" fn(c_int) -> bool;

/// Carries a command out, and stores what `write()` returns. False if the descriptor is not the provider's any more.
type Command = unsafe extern "C-unwind" fn(c_int, *const c_void, usize, *mut isize) -> bool;

type CreateChannel = unsafe extern "C" fn() -> *mut EventChannel;
type Write = unsafe extern "C-unwind" fn(c_int, *const c_void, usize) -> isize;

/// `struct rdma_event_channel`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct EventChannel {
    fd: c_int,
}

/// The descriptors that may be the provider's. Higher ones are never adopted.
const FDS: usize = 1 << 16;

/// The command that asks for an event: its number, the length of its body, and the length of the whole.
const ASK: [u8; 6] = [12, 0, 0, 0, 8, 0];
const ASK_BYTES: usize = 16;

static MARKED: [AtomicU64; FDS / 64] = [const { AtomicU64::new(0) }; FDS / 64];

static ADOPT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static COMMAND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The next `write()`, or null before it was looked up.
static WRITE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The word and the bit of a descriptor.
fn mark(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((MARKED.get(fd / 64)?, 1 << (fd % 64)))
}

/// Sets the functions of the provider.
///
/// # Safety
///
/// The functions may be called for ever: the first with the descriptor of a new channel, the second with the arguments of `write()`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn isthmus_verbs_set_connections(adopt: Adopt, command: Command) {
    COMMAND.store(command as *mut c_void, Ordering::Release);
    ADOPT.store(adopt as *mut c_void, Ordering::Release);
}

/// Creates a channel of events.
///
/// # Safety
///
/// As for the function of librdmacm.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut EventChannel {
    let Some(next) = next(c"rdma_create_event_channel", c"librdmacm.so.1", Some(c"RDMACM_1.0")) else {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    };
    // SAFETY: the function of librdmacm has this type.
    let next: CreateChannel = unsafe { std::mem::transmute(next) };
    // SAFETY: by the caller's promise.
    let channel = unsafe { next() };
    // SAFETY: null, or a channel that only this thread knows.
    let Some(fd) = (unsafe { channel.as_ref() }).map(|channel| channel.fd) else { return channel };
    let adopt = ADOPT.load(Ordering::Acquire);
    if let Some((word, bit)) = mark(fd)
        && !adopt.is_null()
    {
        // SAFETY: only `isthmus_verbs_set_connections` stores the pointer, from a function of this type.
        let adopt: Adopt = unsafe { std::mem::transmute(adopt) };
        // SAFETY: the descriptor is that of the channel.
        if unsafe { adopt(fd) } {
            word.fetch_or(bit, Ordering::Release);
        }
    }
    channel
}

/// Writes to a descriptor. A thread may be cancelled in here, so no frame has anything to drop.
///
/// # Safety
///
/// As for the function of libc.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, len: usize) -> isize {
    if let Some((word, bit)) = mark(fd)
        && word.load(Ordering::Acquire) & bit != 0
    {
        // SAFETY: a descriptor is marked after `isthmus_verbs_set_connections` has stored a function of this type.
        let command: Command = unsafe { std::mem::transmute(COMMAND.load(Ordering::Acquire)) };
        let mut result = 0;
        // SAFETY: by the caller's promise.
        if unsafe { command(fd, from, len, &raw mut result) } {
            return result;
        }
        // The program has closed the channel, and the descriptor is another file. A thread of librdmacm that asks for an event all the same
        // must not write to it.
        // SAFETY: by the caller's promise, `len` bytes can be read.
        if len == ASK_BYTES && unsafe { from.cast::<[u8; 6]>().read_unaligned() } == ASK {
            set_errno(libc::EBADF);
            return -1;
        }
        word.fetch_and(!bit, Ordering::Release);
    }
    let mut write = WRITE.load(Ordering::Relaxed);
    if write.is_null() {
        let Some(found) = next(c"write", c"libc.so.6", None) else {
            set_errno(libc::ENOSYS);
            return -1;
        };
        WRITE.store(found, Ordering::Relaxed);
        write = found;
    }
    // SAFETY: the function of libc, or of another library in its place, has this type.
    let write: Write = unsafe { std::mem::transmute(write) };
    // SAFETY: by the caller's promise.
    unsafe { write(fd, from, len) }
}
