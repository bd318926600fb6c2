//! Migration: large buffers of the program moved onto pages which may be granted to a peer.
//!
//! ```text
//!   the buffer   ├─ head ─┼──────────── body: whole pages ────────────┼─ tail ─┤
//!   cold         anonymous pages of the program                                     copied through the slab
//!   warm         anonymous│ a region: a sealed memfd, mapped shared,   │anonymous   one copy
//!                         │ at the very same addresses                 │
//!                         └► the peer maps it too, read-only, and copies out of it
//! ```
//!
//! A buffer which is sent for the second time ([`CacheConfig::uses_before_migration`]) is probably sent again. Its whole pages are
//! copied to a memfd, which then takes their place under the same addresses; bytes around them travel with the
//! descriptor. At every later use the kernel is asked whether these addresses still show that file
//! ([`ColdReason::Stale`] if not), so nothing needs to be known about `free`, `munmap`, `mremap` or `brk`. In doubt, memory
//! stays as it is: [`RegistrationCache::prepare`] then names a [`ColdReason`] and the message takes the cold path.
//!
//! # Example
//!
//! ```
//! use isthmus_shm::regcache::{RegistrationCache, CacheConfig, PeerRegion, Prepared, UserRange};
//!
//! let cache = RegistrationCache::new(CacheConfig::default());
//! let buffer = vec![7u8; 1 << 20];
//! for _ in 0..3 {
//!     // SAFETY: the vector is neither written nor freed before the use ends.
//!     let range = unsafe { UserRange::new(buffer.as_ptr(), buffer.len()) };
//!     match cache.prepare(&range) {
//!         Prepared::Cold(reason) => println!("copied through the slab: {reason}"),
//!         Prepared::Warm(warm) => {
//!             let grant = cache.grant(warm.region).unwrap();
//!             let theirs = PeerRegion::map(&grant.fd, grant.start, grant.len, 1 << 30).unwrap();
//!             let mut copy = vec![0; warm.body.len()];
//!             theirs.copy_out(warm.offset, &mut copy).unwrap();
//!             assert_eq!(copy, buffer[warm.body]);
//!         } // The use ends here.
//!         Prepared::NeedsExtent { .. } => unreachable!("files are the cache's own to make"),
//!     }
//! }
//! ```
//!
//! # What is kept, and what is not
//!
//! Kept: the contents at every moment; rights (`mprotect`); private memory after `fork` (all regions are given back
//! before); a process that locks or pins memory, or has asked for anything special about the range, is left alone
//! (and memory that its allocator has named: `[anon:…]`); limits of descriptors and memory lead to the cold path;
//! nothing outlives the process; core dumps have the pages (bit 1 of `coredump_filter`, which is set by default).
//!
//! Not kept, for migrated pages:
//! * `madvise(MADV_DONTNEED)` is refused, with EINVAL, where it would make zeroes of private pages: regions are
//!   locked in memory for the sake of that refusal. It cannot be made to work for shared pages; if it merely did
//!   nothing, allocators which use it to clear (jemalloc does for each large `calloc`) would hand out old bytes as
//!   zeroes. With the refusal they clear the memory themselves. So migrated memory, and what was given back and is
//!   still mapped, counts against RLIMIT_MEMLOCK (of which an eighth is left to the program) and is not swapped;
//!   beyond it buffers are cold, unless [`CacheConfig::allow_unlocked`] vouches for the program. `MADV_FREE` is refused as well.
//! * `mremap` with an old size of 0, and mappings moved or enlarged by `mremap`: they stay shared memory until the
//!   next use, fork or end of the cache.
//! * Memory accounting calls them shared memory (`RssShmem`, `shmem` of the cgroup); transparent huge pages are lost
//!   where the system does not grant them to shared memory; memory policies (`mbind`) are not carried over.
//! * Marks set *after* migration (`MADV_DONTDUMP`, `MADV_DONTFORK`) are lost when the region is given back; and a
//!   device for which pages were pinned after migration goes on seeing the region. While anything is pinned nothing
//!   is evicted.
//! * After a region was given back, pages which the program then writes exist twice until it unmaps them, and pages
//!   which it does not write are not in core dumps.
//! * A waiter on a futex which is not process-private and lies in the buffer when it is migrated is not woken any more.
//! * A child made by a bare `clone` or `_Fork` shares them with its parent.
//!
//! # In guests
//!
//! A region is an extent of a window that the guest shares with its host, or with another guest ([`MigrationTarget::Extents`]): the host gives the
//! extent, the driver says at each use whether it is still shown, on every kernel, and whatever becomes of window and device, the bytes
//! stay ([`PrivateExtent`](crate::window_extent::PrivateExtent)). While a buffer is such a region its pages are a device's: `O_DIRECT`, `vmsplice`,
//! `process_vm_readv`, futexes that are not process-private and registration for other devices fail there with EFAULT, a debugger cannot
//! read them, core dumps do not have them, and they cannot be made executable. So this is for programs that ask for it.
//!
//! A grant lets the peer read what the program writes into that buffer *later*, until the region is given back. That
//! is for domains of one owner only (docs/security/threat-model.md).

pub mod arena;
mod eligibility;
mod fork;
mod maps;
mod peer;
mod region;
mod reuse_stats;
pub mod serving;
mod table;

use isthmus_layout::reason::Reason;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

pub use peer::{OutsideRegion, PeerRegion, RegionRefused};
pub use table::CacheCounters;
use table::{NotInRegion, Table};

/// The migrated buffers of this process. A process should have one cache, because to a second one the pages of the first are
/// [shared memory](ColdReason::Shared), which it does not migrate.
///
/// Dropping the cache gives all regions back.
#[derive(Debug)]
pub struct RegistrationCache {
    id: CacheId,
    config: CacheConfig,
    page_size: usize,
    cold: [AtomicU64; ColdReason::ALL.len()],
}

/// Selects which buffers are migrated, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// If false, every buffer takes the cold path.
    pub enabled: bool,
    /// The use of a buffer at which it is migrated; 0 and 1 mean the first use.
    pub uses_before_migration: u32,
    /// After this number of migrations that were never reused, the required number of uses doubles for every buffer, until one is reused.
    pub misses_per_doubling: u32,
    /// Maximum number of regions, each of which holds a file descriptor.
    pub entries_max: usize,
    /// Maximum number of bytes in all regions.
    pub bytes_max: usize,
    /// Smallest buffer that is migrated, in bytes.
    pub bytes_min: usize,
    /// Also migrate what cannot be locked because RLIMIT_MEMLOCK is used up. Only for programs that are known not to rely,
    /// themselves or in their allocators, on `madvise(MADV_DONTNEED)` to get zeroes (see above).
    pub allow_unlocked: bool,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            uses_before_migration: 2,
            misses_per_doubling: 2,
            entries_max: 64,
            bytes_max: 1 << 30,
            bytes_min: 64 << 10,
            allow_unlocked: false,
        }
    }
}

/// A buffer of the program which is about to be sent.
#[derive(Debug)]
pub struct UserRange {
    start: usize,
    len: usize,
}

impl UserRange {
    /// Names the `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// From this call until the range and each [`RegionUse`] prepared from it are dropped, all these bytes are readable, nothing
    /// writes them, and nothing unmaps, moves or replaces them. Any program promises this about a buffer that it
    /// sends.
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self { start: start.expose_provenance(), len }
    }

    /// Returns the pages that lie in the buffer entirely.
    fn whole_pages(&self, page_size: usize) -> Range<usize> {
        let end = self.start.saturating_add(self.len) & !(page_size - 1);
        let start = self.start.checked_next_multiple_of(page_size).unwrap_or(end);
        start.min(end)..end
    }
}

/// The result of preparing a buffer.
#[derive(Debug)]
pub enum Prepared {
    /// The body lies in a region.
    Warm(Warm),
    /// The buffer is to be copied, for this reason.
    Cold(ColdReason),
    /// The buffer is to be copied. Before its next use, the caller has to [provide](RegistrationCache::provide_extent) an extent for this
    /// region, or [reject](RegistrationCache::reject_extent) it.
    NeedsExtent {
        /// The region.
        region: RegionKey,
        /// The size of the extent.
        bytes: u64,
    },
}

/// The kind of memory that buffers are moved onto.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationTarget {
    /// Files of our own, which are granted to peers.
    Memfds,
    /// Extents of a guest's window, which the host shows to peers.
    Extents,
}

/// A buffer with whole pages that lie in a region.
#[derive(Debug)]
pub struct Warm {
    /// The region, which may have to be [granted](RegistrationCache::grant) to the peer first.
    pub region: RegionKey,
    /// Offset of the body in the region's file.
    pub offset: u64,
    /// Bytes of the buffer before its first whole page.
    pub head: Range<usize>,
    /// Bytes of the buffer which lie in the region.
    pub body: Range<usize>,
    /// Bytes of the buffer after its last whole page.
    pub tail: Range<usize>,
    /// The use of the region, to be kept until the peer has copied.
    pub region_use: RegionUse,
}

/// The key of a region of this process. A key is never reused for another region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionKey(NonZeroU64);

impl RegionKey {
    fn next_id() -> Self {
        Self(next_id())
    }

    /// Returns the key with this number.
    pub fn from_number(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The number, for a message to the peer.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

/// A use of a region by a message in progress. The region is not evicted before this is dropped.
#[derive(Debug)]
pub struct RegionUse {
    cache: CacheId,
    region: RegionKey,
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        fork::lock().release(self.cache, self.region);
    }
}

/// The data that a peer needs to map a region.
#[derive(Debug)]
pub struct RegionGrant {
    /// The sealed file.
    pub fd: OwnedFd,
    /// Offset of the region in the file.
    pub start: u64,
    /// Number of bytes of the region.
    pub len: u64,
}

/// The reason that a region cannot be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionGrantError {
    /// The region was given back, because the program forked meanwhile.
    #[error("the region was given back")]
    Gone,
    /// The region is an extent of a window, which the host shows to peers.
    #[error("the region is an extent of a window")]
    HostOwned,
    /// No file descriptor is left.
    #[error("cannot duplicate the region's descriptor")]
    Descriptor(#[source] rustix::io::Errno),
}

impl RegistrationCache {
    /// Creates an empty cache.
    pub fn new(config: CacheConfig) -> Self {
        let id = CacheId(next_id());
        fork::lock().add(id, Table::new(config.clone()));
        Self { id, config, page_size: rustix::param::page_size(), cold: [const { AtomicU64::new(0) }; _] }
    }

    /// Finds the region of a buffer, or migrates the buffer if it has been used often enough.
    pub fn prepare(&self, buffer: &UserRange) -> Prepared {
        self.prepare_onto(buffer, MigrationTarget::Memfds)
    }

    /// Prepares a buffer, with a choice of the memory that it is moved onto. A buffer that has a region keeps it.
    pub fn prepare_onto(&self, buffer: &UserRange, onto: MigrationTarget) -> Prepared {
        let cold = |reason: ColdReason| self.cold[reason as usize].fetch_add(1, Ordering::Relaxed);
        match self.try_prepare(buffer, onto) {
            Ok(warm) => Prepared::Warm(warm),
            Err(NotInRegion::Cold(reason)) => {
                cold(reason);
                Prepared::Cold(reason)
            }
            Err(NotInRegion::NeedsExtent(region)) => {
                cold(ColdReason::FirstUse);
                Prepared::NeedsExtent { region, bytes: buffer.whole_pages(self.page_size).len() as u64 }
            }
        }
    }

    /// Gives a private extent of a guest's window to a region that [needs one](Prepared::NeedsExtent).
    pub fn provide_extent(&self, region: RegionKey, extent: OwnedFd) {
        fork::lock().table(self.id).provide_extent(region, extent);
    }

    /// Reports that there is no extent for a region that needs one. Without `room`, the least recently used region is given back to make room.
    pub fn reject_extent(&self, region: RegionKey, room: bool) {
        if let Ok((table, maps)) = fork::lock().table_and_maps(self.id) {
            table.reject_extent(maps, region, room);
        }
    }

    fn try_prepare(&self, buffer: &UserRange, onto: MigrationTarget) -> Result<Warm, NotInRegion> {
        if !self.config.enabled {
            return Err(ColdReason::Disabled.into());
        }
        let pages = buffer.whole_pages(self.page_size);
        if buffer.len < self.config.bytes_min || pages.is_empty() {
            return Err(ColdReason::TooSmall.into());
        }
        let mut registry = fork::lock();
        let (table, maps) = registry.table_and_maps(self.id)?;
        let maps = if onto == MigrationTarget::Memfds { maps.require_query()? } else { maps };
        // SAFETY: `pages` are whole pages inside `buffer`, for which its maker promised all that is asked here.
        let (region, offset) = unsafe { table.prepare(maps, &pages, (self.page_size, onto))? };
        let (body, tail) = (pages.start - buffer.start, pages.end - buffer.start);
        let region_use = RegionUse { cache: self.id, region };
        Ok(Warm { region, offset, head: 0..body, body: body..tail, tail: tail..buffer.len, region_use })
    }

    /// A descriptor of the region's file, to be sent to a peer of the same owner. From now on the region is listed by
    /// [`RegistrationCache::take_released`] when it is no more.
    pub fn grant(&self, region: RegionKey) -> Result<RegionGrant, RegionGrantError> {
        let mut registry = fork::lock();
        let region = registry.table(self.id).grant(region).ok_or(RegionGrantError::Gone)?;
        let memfd = region.memfd().ok_or(RegionGrantError::HostOwned)?;
        let fd = rustix::io::fcntl_dupfd_cloexec(memfd, 3).map_err(RegionGrantError::Descriptor)?;
        Ok(RegionGrant { fd, start: region.offset(region.range.start), len: region.range.len() as u64 })
    }

    /// Bytes of a region that is there.
    pub fn bytes_of(&self, region: RegionKey) -> Option<u64> {
        fork::lock().table(self.id).bytes_of(region)
    }

    /// Regions which were granted and are no more, since this was last asked: their peers may unmap them. A
    /// descriptor that names one and was sent before remains good.
    pub fn take_released(&self) -> Vec<RegionKey> {
        fork::lock().table(self.id).take_released()
    }

    /// The cache's counters, and the current number of regions and bytes.
    pub fn counts(&self) -> CacheCounters {
        fork::lock().table(self.id).counts()
    }

    /// How often each reason sent a buffer along the cold path.
    pub fn cold_counts(&self) -> impl Iterator<Item = (ColdReason, u64)> {
        ColdReason::ALL.into_iter().map(|reason| (reason, self.cold[reason as usize].load(Ordering::Relaxed)))
    }
}

impl Drop for RegistrationCache {
    fn drop(&mut self) {
        fork::lock().remove(self.id);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CacheId(NonZeroU64);

fn next_id() -> NonZeroU64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    NonZeroU64::MIN.saturating_add(LAST.fetch_add(1, Ordering::Relaxed))
}

macro_rules! cold_reasons {
    ($($(#[$doc:meta])* $name:ident, $reason:ident = $text:literal,)*) => {
        /// Why a buffer takes the cold path.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        pub enum ColdReason {
            $($(#[$doc])* #[error($text)] $name,)*
        }

        impl ColdReason {
            /// All of them.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$name),*];

            /// The entry of this reason in the table of reasons.
            pub const fn reason(self) -> Reason {
                match self {
                    $(Self::$name => Reason::$reason,)*
                }
            }
        }
    };
}

cold_reasons! {
    /// The cache is turned off.
    Disabled, BufferCacheDisabled = "the registration cache is turned off",
    /// Fewer bytes than [`CacheConfig::bytes_min`], or no whole page.
    TooSmall, BufferTooSmall = "the buffer is small",
    /// Not yet used as often as it takes. More often than [`CacheConfig::uses_before_migration`] for a buffer that was refused or
    /// lost before.
    FirstUse, BufferNew = "the buffer was not used often enough yet",
    /// The buffer was migrated, but other memory was found at its addresses. Counts as a first use.
    Stale, BufferReplaced = "the memory at these addresses was replaced",
    /// Memory of a file, of huge pages, or the stack.
    NotAnonymous, BufferNotAnonymous = "not anonymous memory",
    /// Some of it may not be written or not be read.
    NotWritable, BufferNotWritable = "not writable memory",
    /// Shared memory already.
    Shared, BufferShared = "shared memory already",
    /// Some of it is not mapped.
    Unmapped, BufferUnmapped = "not mapped",
    /// The program or its allocator has asked for something special about this memory, such as to keep it out of core
    /// dumps.
    SpecialMemory, BufferHasMemoryAdvice = "memory with special wishes",
    /// The process has locked pages, or pages pinned for a device.
    Pinned, BufferPinned = "the process has locked or pinned memory",
    /// The buffer overlaps a region that messages in progress use.
    InUse, BufferInUse = "overlaps a buffer that is being sent",
    /// All regions are in use, or the buffer is larger than all regions may be.
    CacheFull, BufferCacheFull = "the cache is full",
    /// Linux before 6.11.
    NoProcmapQuery, BufferNoProcmapQuery = "the kernel cannot say what lies at an address (PROCMAP_QUERY, Linux 6.11)",
    /// `/proc` is not there, not ours, or does not say enough.
    NoProc, BufferNoProc = "/proc/self is not available",
    /// No file descriptor is left.
    DescriptorLimit, BufferOutOfFds = "the limit of open files is reached",
    /// Memory, or the number of mappings, is at its limit.
    MemoryLimit, BufferOutOfMemory = "the limit of memory or mappings is reached",
    /// No more memory may be locked (RLIMIT_MEMLOCK), and [`CacheConfig::allow_unlocked`] is not set.
    LockLimit, BufferLockLimit = "the limit of locked memory (RLIMIT_MEMLOCK) is reached",
    /// The limit of file sizes is lower than a region's file.
    FileSizeLimit, BufferFileSize = "the limit of file sizes (RLIMIT_FSIZE) is too low",
    /// Registered memory is not moved while other threads may write it, and the kernel does not let us have them wait.
    Threads, MemoryThreads = "the process has other threads, and may not use userfaultfd",
    /// The cache was made by the parent of this process.
    ForkChild, BufferForked = "the cache belongs to the parent process",
    /// A guest's window, which the processor does not cache as it does other memory.
    Uncached, BufferUncached = "the guest's window is not cached as other memory is",
    /// The kernel refused a step for another reason, such as a security policy.
    Refused, BufferDenied = "the kernel refused",
}
