//! The state of an attached end, in memory that the process shares with its children.
//!
//! Each stream has a mapping of its own. A child inherits it, at the same address, by any kind of fork. The kernel keeps the memory as long
//! as any process maps it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use isthmus_layout::sockets::StreamPath;
use isthmus_shm::stream::PeerProgress;
use isthmus_sockets::{Receiver, Sender};
use rustix::mm::{MapFlags, ProtFlags};

use crate::lock::SharedLock;

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
    /// Several processes have had this end.
    pub(crate) has_forked: AtomicBool,
    /// The process that began to track the connection has closed it, so a child has it for itself.
    pub(crate) is_handed_over: AtomicBool,
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
    /// Maps a state for an end that has sent and received this number of bytes by TCP. None without memory.
    pub(crate) fn map(sent: u64, received: u64, flags: u32) -> Option<&'static Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(core::ptr::null_mut(), size_of::<Self>(), protection, MapFlags::SHARED)
        };
        let state: *mut Self = base.ok()?.cast();
        let (mut receiver, mut sender) = (Receiver::default(), Sender::default());
        receiver.begin_tcp();
        receiver.end_tcp(received);
        sender.begin_tcp();
        sender.end_tcp(sent);
        // SAFETY: the state is mapped, aligned to pages, and nothing else uses it yet.
        unsafe {
            SharedLock::init(&raw mut (*state).receive, receiver);
            SharedLock::init(&raw mut (*state).send, sender);
            (&raw mut (*state).awaited).write(AtomicU64::new(UNKNOWN));
            (&raw mut (*state).room).write(AtomicU32::new(0));
            (&raw mut (*state).flags).write(AtomicU32::new(flags));
            (&raw mut (*state).has_forked).write(AtomicBool::new(false));
            (&raw mut (*state).is_handed_over).write(AtomicBool::new(false));
            Some(&*state)
        }
    }

    /// Unmaps the state in this process.
    ///
    /// # Safety
    ///
    /// No reference to the state is used any more.
    pub(crate) unsafe fn unmap(state: *mut Self) {
        // SAFETY: the mapping is the whole one that `map` has made, and the caller's promise.
        let _ = unsafe { rustix::mm::munmap(state.cast(), size_of::<Self>()) };
    }

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
