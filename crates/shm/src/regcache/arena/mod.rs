//! Registered memory: what a program lets its peers read and write by themselves, whether it makes calls or not.
//!
//! ```text
//!   fi_mr_reg'd     ├─ head ─┼──────────── body: whole pages ────────────┼─ tail ─┤
//!                   the       pages of the arena's file, shared, at the   the
//!                   program's very same addresses                         program's
//!                             ▲
//!   arena's file    header: entries, writers │ ... body ... │   nothing for a GiB   │ ... body ... │
//!                             └── a peer maps the header once, and a body when it first wants it
//! ```
//!
//! There is one file for all registered memory, and a peer gets it once: so also memory that is registered later can be reached
//! without a word from the owner. The bytes of the file that two domains agree on are in [`isthmus_layout::arena`].
//!
//! Unlike a buffer that is sent, registered memory may be used by the program's other threads while it is moved onto the file, and
//! while it is taken back: none of them notices. When a registration is closed, no peer writes in it any more, or what it
//! writes is not seen: the program's pages are its own again. Memory that two registrations share stays until both are closed, but where
//! a writer of one would not end.
//!
//! Before a fork memory is taken back, and what was registered then has to be asked for until it is registered again. Memory that a child
//! does not get (`MADV_DONTFORK`, as libibverbs marks it after `ibv_fork_init`) stays in the file, and registered. Moving keeps that mark.
//!
//! Registered memory is locked, so that `madvise(MADV_DONTNEED)` on it is refused, as it is for buffers (see [`regcache`](super)): an MPI may
//! keep memory registered that the program has given back to an allocator which takes that for a way to get zeroes. Once it is closed it is as
//! good as anonymous memory: what lies behind it in the file is gone, and reads as zeroes.

mod header;
mod mapping;
mod migrate;
mod registrations;
mod write_protect;

use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isthmus_layout::DomainId;

pub use super::ColdReason;
use super::{fork, next_id, serving};
pub use header::{ArenaEntry, ArenaHeader};
pub use mapping::{AccessRights, ArenaAccess, ArenaMapping, Evicted};
pub(super) use migrate::NAME_IN_MAPS;
pub(super) use registrations::Registrations;
pub(super) use write_protect::SignalsBlocked;

/// How long peers may go on writing what is being closed, or is taken back before a fork.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes in all arenas of a process at most.
const BYTES_MAX: usize = 1 << 30;

/// The registered memory of this process, for its peers. When it is dropped all of it is the program's alone again.
#[derive(Debug)]
pub struct Arena {
    id: ArenaId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArenaId(NonZeroU64);

/// Memory to be registered.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    start: usize,
    len: usize,
    key: u64,
    rights: u32,
    base: u64,
}

impl Registration {
    /// Names the `len` bytes at `start`, for peers that name `key`. The peers may do what `rights` says:
    /// [`READ`](isthmus_layout::arena::READ) and [`WRITE`](isthmus_layout::arena::WRITE).
    ///
    /// # Safety
    ///
    /// From this call until the registration is closed, nothing unmaps, moves or replaces this memory. All code that depends on the
    /// memory tolerates that others write there.
    pub unsafe fn new(start: *const u8, len: usize, key: u64, rights: u32) -> Self {
        Self { start: start.expose_provenance(), len, key, rights, base: 0 }
    }

    /// Requests name the first byte by this number, in place of 0.
    pub fn named_from(self, base: u64) -> Self {
        Self { base, ..self }
    }

    fn whole_pages(&self) -> Range<usize> {
        super::UserRange { start: self.start, len: self.len }.whole_pages(rustix::param::page_size())
    }
}

/// Memory that was registered. Closed when it is dropped.
#[derive(Debug)]
pub struct RegisteredMemory {
    arena: Arc<Arena>,
    entry: u32,
    serial: NonZeroU64,
    /// The part of the registration that lies in the file, in bytes from the registration's start.
    body: Range<u64>,
}

impl Arena {
    /// An empty arena.
    pub fn new() -> Result<Self, ColdReason> {
        let id = ArenaId(next_id());
        let registrations = Registrations::new()?;
        fork::lock().add_arena(id, registrations)?;
        Ok(Self { id })
    }

    /// Moves memory onto the file, but what shares its first or last page with something else, and shows it to peers. After an error
    /// all is as it was.
    ///
    /// The caller must not hold a lock for which a [serving thread](serving) waits inside of the gate: this waits until that thread is
    /// outside.
    pub fn register(self: &Arc<Self>, registration: &Registration) -> Result<RegisteredMemory, ColdReason> {
        let pages = registration.whole_pages();
        if pages.is_empty() || registration.start.checked_add(registration.len).is_none() {
            return Err(ColdReason::TooSmall);
        }
        let serial = next_id();
        let _parked = serving::park();
        let entry = fork::lock().register(self.id, registration, &pages, serial)?;
        let body = (pages.start - registration.start) as u64..(pages.end - registration.start) as u64;
        Ok(RegisteredMemory { arena: Arc::clone(self), entry, serial, body })
    }

    /// The file, for a peer of the same owner.
    pub fn grant(&self) -> Result<OwnedFd, rustix::io::Errno> {
        let mut registry = fork::lock();
        rustix::io::fcntl_dupfd_cloexec(registry.arena(self.id).file(), 3)
    }

    /// Removes a peer that is gone. The owner does not wait for any write of that peer.
    pub fn remove_peer(&self, peer: DomainId) {
        fork::lock().arena(self.id).free_writer_of(peer);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        fork::lock().remove_arena(self.id);
    }
}

impl RegisteredMemory {
    /// Whether these bytes of it lie in whole pages of its own.
    pub fn covers(&self, offset: u64, len: u64) -> bool {
        offset >= self.body.start && offset.checked_add(len).is_some_and(|end| end <= self.body.end)
    }

    /// Whether it lies in the file still: a fork ends that.
    pub fn is_in_place(&self) -> bool {
        fork::lock().arena(self.arena.id).is_in_place(self.entry, self.serial)
    }

    /// Hides it from peers: they have to ask for everything. The memory stays where it is.
    pub fn unpublish(&self) {
        fork::lock().arena(self.arena.id).invalidate(self.entry, self.serial);
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        let mut registry = fork::lock();
        let registrations = registry.arena(self.arena.id);
        registrations.invalidate(self.entry, self.serial);
        let header = registrations.header();
        drop(registry); // Others go on meanwhile; one that forks does the rest of this.
        let alone = header
            .is_none_or(|header| registrations::wait_for_writers(&header, self.entry, Instant::now() + CLOSE_TIMEOUT));
        fork::lock().close(self.arena.id, self.entry, self.serial, !alone);
    }
}
