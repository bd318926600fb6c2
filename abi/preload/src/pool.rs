//! The state of connections in memory that the process shares with its children.
//!
//! A child inherits the mapping at the same addresses. Both processes then use one state, under its locks. A child never takes a free place
//! of its parent's chunks, because the parent still hands them out.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Mutex;

use isthmus_layout::sockets::StreamPath;
use isthmus_shm::stream::PeerProgress;
use isthmus_sockets::{Receiver, Sender};
use rustix::mm::{MapFlags, ProtFlags};

use crate::lock::SharedLock;

/// States in one mapping.
const CHUNK: usize = 64;

/// The state that all processes with a descriptor of the connection share.
#[repr(C, align(128))]
pub(crate) struct SharedState {
    receive: SharedLock<Receiver>,
    send: SharedLock<Sender>,
    /// [`Receiver::awaited`] as of the last use of the receiver: the switches in the upper half, the position in the lower one.
    awaited: AtomicU64,
    /// Bits of [`room`], as of the last use of the sender.
    room: AtomicU32,
    /// Bits of [`crate::connection::flags`].
    pub(crate) flags: AtomicU32,
    /// Processes that have the connection.
    pub(crate) processes: AtomicU32,
}

/// No number of [`SharedState::awaited`]: a look under the lock must say.
const UNKNOWN: u64 = u64::MAX;

/// Bits of [`SharedState::room`].
mod room {
    /// Bytes go into a ring.
    pub(super) const RING: u32 = 1;
    /// The ring has room.
    pub(super) const SOME: u32 = 2;
}

impl SharedState {
    /// Calls `f` with the receiver, under its lock.
    #[inline]
    pub(crate) fn with_receiver<R>(&self, f: impl FnOnce(&mut Receiver) -> R) -> R {
        self.receive.with(|receiver| {
            let result = f(receiver);
            let awaited = receiver.awaited();
            let word = awaited.map_or(UNKNOWN, |(switches, position)| u64::from(switches) << 32 | u64::from(position));
            self.awaited.store(word, Ordering::Relaxed);
            result
        })
    }

    /// Calls `f` with the sender, under its lock.
    #[inline]
    pub(crate) fn with_sender<R>(&self, f: impl FnOnce(&mut Sender) -> R) -> R {
        self.send.with(|sender| {
            let result = f(sender);
            let ring = if sender.path() == StreamPath::Tcp { 0 } else { room::RING };
            let some = if sender.room() > 0 { room::SOME } else { 0 };
            self.room.store(ring | some, Ordering::Relaxed);
            result
        })
    }

    /// Returns whether the ring has data, by the peer's words. None if only a look under the lock can say.
    #[inline]
    pub(crate) fn has_data(&self, peer: impl FnOnce() -> PeerProgress) -> Option<bool> {
        let awaited = self.awaited.load(Ordering::Relaxed);
        if awaited == UNKNOWN {
            return None;
        }
        let seen = peer();
        (seen.switches == (awaited >> 32) as u32).then_some(seen.tail != awaited as u32)
    }

    /// True if the next bytes to read are in a ring.
    #[inline]
    pub(crate) fn reads_ring(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) != UNKNOWN
            || self.with_receiver(|receiver| receiver.path() != StreamPath::Tcp)
    }

    /// True if the next bytes to write go into a ring.
    #[inline]
    pub(crate) fn writes_ring(&self) -> bool {
        self.room.load(Ordering::Relaxed) & room::RING != 0
    }

    /// True if the ring certainly has room. False says nothing.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.room.load(Ordering::Relaxed) & room::SOME != 0
    }
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
        (&raw mut (*place).awaited).write(AtomicU64::new(UNKNOWN));
        (&raw mut (*place).room).write(AtomicU32::new(0));
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
