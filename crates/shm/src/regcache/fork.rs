//! The state that exists once per process: the lock over all caches, and the handling of forks.
//!
//! ```text
//!   fork() ─ before_fork: lock, give every region back ─ the process is copied ─┬─ parent: unlock
//!                                                                               └─ child: unlock; its caches stay cold
//! ```
//!
//! Migrated pages are shared. A child would go on sharing them, where `fork` promises it a copy, so they are made private before
//! the fork. `vfork`, `posix_spawn` and `system` do not run these handlers and do not need them: their child only starts
//! another program. A bare `clone` or `_Fork` system call does not run them either. Such a child shares the migrated pages with
//! its parent. It detects, by a page that the kernel clears in children, that the caches are not its own.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::num::NonZeroU64;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLockWriteGuard};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::arena::{ArenaId, Registration, Registrations};
use super::maps::Maps;
use super::serving::{self, ServingThreads};
use super::table::Table;
use super::{CacheId, ColdReason, RegionKey, region};

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { tables: Vec::new(), arenas: Vec::new(), serving: ServingThreads::new(), process_maps: None });

/// All caches and arenas of the process.
pub(super) struct Registry {
    tables: Vec<(CacheId, Table)>,
    arenas: Vec<(ArenaId, Registrations)>,
    serving: ServingThreads,
    process_maps: Option<ProcessMaps>,
}

/// The state that every query about memory needs.
struct ProcessMaps {
    maps: Maps,
    fork_detector: ForkDetector,
}

/// Takes the one lock. It is held while the program runs only during a fork.
pub(super) fn lock() -> MutexGuard<'static, Registry> {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    if registry.process_maps.as_ref().is_some_and(|process_maps| process_maps.fork_detector.in_child()) {
        registry.tables.iter_mut().for_each(|(_, table)| table.disown_in_child());
        registry.arenas.iter_mut().for_each(|(_, registrations)| registrations.disown_in_child());
        registry.serving.disown_in_child();
        // Also closes `/proc/self/maps`, which was opened by the parent and tells about the parent.
        registry.process_maps = None;
    }
    registry
}

impl Registry {
    pub(super) fn add(&mut self, id: CacheId, table: Table) {
        self.tables.push((id, table));
    }

    pub(super) fn remove(&mut self, id: CacheId) {
        if let Some(index) = self.tables.iter().position(|(of, _)| *of == id) {
            let (_, mut table) = self.tables.swap_remove(index);
            if let Some(process_maps) = &self.process_maps {
                table.restore_all(&process_maps.maps);
            }
        }
    }

    /// Ends a use. Its cache may be gone already.
    pub(super) fn release(&mut self, id: CacheId, region: RegionKey) {
        if let Some((_, table)) = self.tables.iter_mut().find(|(of, _)| *of == id) {
            table.release(region);
        }
    }

    pub(super) fn table(&mut self, id: CacheId) -> &mut Table {
        let found = self.tables.iter_mut().find(|(of, _)| *of == id);
        &mut found.expect("a table stays as long as its cache").1
    }

    pub(super) fn table_and_maps(&mut self, id: CacheId) -> Result<(&mut Table, &Maps), ColdReason> {
        let maps = maps(&mut self.process_maps)?;
        let found = self.tables.iter_mut().find(|(of, _)| *of == id);
        Ok((&mut found.expect("a table stays as long as its cache").1, maps))
    }

    /// Adds an arena. From now on a child detects that it is one, and that the content of the file is its parent's.
    pub(super) fn add_arena(&mut self, id: ArenaId, registrations: Registrations) -> Result<(), ColdReason> {
        register_fork_handlers()?;
        maps(&mut self.process_maps)?.require_query()?;
        self.arenas.push((id, registrations));
        Ok(())
    }

    pub(super) fn remove_arena(&mut self, id: ArenaId) {
        if let Some(index) = self.arenas.iter().position(|(of, _)| *of == id) {
            let (_, mut registrations) = self.arenas.swap_remove(index);
            if let Some(process_maps) = &self.process_maps {
                registrations.restore_all(&process_maps.maps);
            }
        }
    }

    pub(super) fn arena(&mut self, id: ArenaId) -> &mut Registrations {
        let found = self.arenas.iter_mut().find(|(of, _)| *of == id);
        &mut found.expect("registrations stay as long as their arena").1
    }

    /// Lists the calling thread, which has `on_the_stack` on its stack.
    pub(super) fn add_serving_thread(&mut self, id: NonZeroU64, on_the_stack: usize) -> Result<(), ColdReason> {
        register_fork_handlers()?;
        let stack = maps(&mut self.process_maps)?.at(on_the_stack)?.ok_or(ColdReason::NoProc)?.range;
        self.serving.add(id, stack);
        Ok(())
    }

    pub(super) fn remove_serving_thread(&mut self, id: NonZeroU64) {
        self.serving.remove(id);
    }

    /// Registers memory; `pages` are its whole pages. The caller has [parked](serving::park) the serving threads.
    pub(super) fn register(
        &mut self,
        id: ArenaId,
        what: &Registration,
        pages: &Range<usize>,
        serial: NonZeroU64,
    ) -> Result<u32, ColdReason> {
        let maps = maps(&mut self.process_maps)?.require_query()?;
        self.tables.iter_mut().try_for_each(|(_, table)| table.release_overlapping(maps, pages))?;
        let held = self.arenas.iter().map(|(_, registrations)| registrations.bytes()).sum();
        let found = self.arenas.iter_mut().find(|(of, _)| *of == id);
        let registrations = &mut found.expect("registrations stay as long as their arena").1;
        registrations.register(maps, what, pages, serial, held, &self.serving)
    }

    /// Closes an entry that was registered; `has_writer` says that a peer may still write there.
    pub(super) fn close(&mut self, id: ArenaId, entry: u32, serial: NonZeroU64, has_writer: bool) {
        // In a child the memory is the child's already.
        if let (Some(process_maps), Some((_, registrations))) =
            (&self.process_maps, self.arenas.iter_mut().find(|(of, _)| *of == id))
        {
            registrations.close(&process_maps.maps, entry, serial, has_writer);
        }
    }
}

fn maps(process_maps: &mut Option<ProcessMaps>) -> Result<&Maps, ColdReason> {
    if process_maps.is_none() {
        *process_maps = Some(ProcessMaps { maps: Maps::open()?, fork_detector: ForkDetector::new()? });
    }
    Ok(&process_maps.as_ref().expect("made above").maps)
}

/// Registers the fork handlers. Called when the first buffer of the process is about to be migrated.
pub(super) fn register_fork_handlers() -> Result<(), ColdReason> {
    static WATCHING: OnceLock<bool> = OnceLock::new();
    // SAFETY: the three functions live as long as the program (or library: libc forgets them when it is unloaded) and
    // follow the rules of fork handlers: they run in the forking thread, and `after_fork` in the child only drops a
    // lock.
    let registered = || unsafe { pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) == 0 };
    if *WATCHING.get_or_init(registered) { Ok(()) } else { Err(ColdReason::MemoryLimit) }
}

// The only thing here that is not a system call, and the only one rustix cannot offer: libc runs these handlers.
unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
}

/// The locks during a fork, so that no other thread migrates anything before the kernel has copied the process, and so
/// that the child finds them free. No serving thread is inside of the gate, so the child finds no lock that such a thread took there.
static LOCK_DURING_FORK: LockDuringFork = LockDuringFork(UnsafeCell::new(None));

struct LockDuringFork(UnsafeCell<Option<(MutexGuard<'static, Registry>, RwLockWriteGuard<'static, ()>)>>);

// SAFETY: the cell is touched by `before_fork` after it took the lock, and by `after_fork`, which runs in the same
// thread and gives the lock up: only the holder of the lock touches it.
unsafe impl Sync for LockDuringFork {}

unsafe extern "C" fn before_fork() {
    let parked = serving::park();
    let mut guard = lock();
    let Registry { tables, arenas, process_maps, .. } = &mut *guard;
    if let Some(process_maps) = process_maps {
        arenas.iter_mut().for_each(|(_, registrations)| registrations.restore_before_fork(&process_maps.maps));
        tables.iter_mut().for_each(|(_, table)| table.restore_all(&process_maps.maps));
    }
    // SAFETY: we hold the lock (see `LockDuringFork`).
    unsafe { *LOCK_DURING_FORK.0.get() = Some((guard, parked)) };
}

unsafe extern "C" fn after_fork() {
    // SAFETY: `before_fork` ran in this thread (or in its original, for a child), and took the lock, which still is
    // ours.
    drop(unsafe { (*LOCK_DURING_FORK.0.get()).take() });
}

/// Locks are not inherited, but the reason for them is (see [`region::lock`]). No other thread exists, nothing is
/// allocated.
unsafe extern "C" fn after_fork_in_child() {
    if region::ANY_LOCKED.load(Ordering::Relaxed)
        && let Ok(maps) = Maps::open()
    {
        let _ = maps.for_each_named(|name, vma| {
            if [region::NAME_IN_MAPS, region::EXTENT_NAME_IN_MAPS].contains(&name) {
                region::lock(vma);
            }
        });
    }
    // SAFETY: we are that child.
    unsafe { after_fork() };
}

/// A page that says whether this process still is the one that made it: the kernel clears it in every child.
struct ForkDetector(NonNull<AtomicU32>);

// SAFETY: it is an address of memory that lives as long as the detector, and is only read after it was made.
unsafe impl Send for ForkDetector {}

impl ForkDetector {
    fn new() -> Result<Self, ColdReason> {
        let page = rustix::param::page_size();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), page, rights, MapFlags::PRIVATE) };
        let detector = Self(start.ok().and_then(|start| NonNull::new(start.cast())).ok_or(ColdReason::MemoryLimit)?);
        // SAFETY: the page is ours and holds nothing.
        unsafe { madvise(detector.0.as_ptr().cast(), page, Advice::LinuxWipeOnFork) }
            .map_err(|_| ColdReason::NoProcmapQuery)?;
        detector.word().store(1, Ordering::Relaxed);
        Ok(detector)
    }

    fn in_child(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: a page starts aligned and is as large as a word; it is unmapped by `drop` only, and touched by
        // atomics only.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for ForkDetector {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no reference into it is kept beyond a call.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), rustix::param::page_size()) };
    }
}
