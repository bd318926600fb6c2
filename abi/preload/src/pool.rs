//! The state of connections in memory that the process shares with its children.
//!
//! A child inherits the mapping at the same addresses. Both processes then use one state, under its locks. A child never takes a free place
//! of its parent's chunks, because the parent still hands them out.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use std::sync::Mutex;

use isthmus_sockets::{Receiver, Sender};
use rustix::mm::{MapFlags, ProtFlags};

use crate::lock::SharedLock;

/// States in one mapping.
const CHUNK: usize = 64;

/// The state that all processes with a descriptor of the connection share.
#[repr(C, align(128))]
pub(crate) struct SharedState {
    pub(crate) receive: SharedLock<Receiver>,
    pub(crate) send: SharedLock<Sender>,
    /// Bits of [`crate::connection::flags`].
    pub(crate) flags: AtomicU32,
    /// Processes that have the connection.
    pub(crate) processes: AtomicU32,
}

/// Free places.
static FREE: Mutex<Vec<Place>> = Mutex::new(Vec::new());

/// A place for one state. It stays mapped until the process ends.
pub(crate) struct Place(NonNull<SharedState>);

// SAFETY: a place is memory, and belongs to no thread.
unsafe impl Send for Place {}

/// Prepares a fresh state. None without memory.
pub(crate) fn allocate() -> Option<&'static SharedState> {
    let mut free = FREE.lock().ok()?;
    if free.is_empty() {
        free.extend(chunk()?);
    }
    let place = free.pop()?.0.as_ptr();
    // SAFETY: the place is mapped, aligned, and no one uses it: it was free. The locks are not held by any process.
    unsafe {
        SharedLock::init(&raw mut (*place).receive, Receiver::default());
        SharedLock::init(&raw mut (*place).send, Sender::default());
        (&raw mut (*place).flags).write(AtomicU32::new(0));
        (&raw mut (*place).processes).write(AtomicU32::new(1));
        Some(&*place)
    }
}

/// Returns a place that this process allocated and no process uses any more.
pub(crate) fn release(state: &'static SharedState) {
    if let Ok(mut free) = FREE.lock() {
        free.push(Place(NonNull::from(state)));
    }
}

/// Forgets the free places, in a child after `fork`.
pub(crate) fn forget_free() {
    if let Ok(mut free) = FREE.lock() {
        free.clear();
    }
}

fn chunk() -> Option<impl Iterator<Item = Place>> {
    let bytes = CHUNK * size_of::<SharedState>();
    // SAFETY: a new mapping at an address that the kernel chooses.
    let base = unsafe {
        rustix::mm::mmap_anonymous(core::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    }
    .ok()?;
    // SAFETY: each place lies in the mapping, which is aligned to pages and is never unmapped.
    let place = move |index| unsafe { NonNull::new_unchecked(base.cast::<SharedState>().add(index)) };
    Some((0..CHUNK).map(move |index| Place(place(index))))
}
