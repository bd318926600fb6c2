//! The buffers which one cache has migrated: which, how many, which one goes when there are too many.

use std::ops::Range;

use std::os::fd::OwnedFd;

use super::maps::Maps;
use super::region::{Locking, Region};
use super::reuse_stats::ReuseStats;
use super::{CacheConfig, ColdReason, MigrationTarget, RegionKey, eligibility, fork};
use crate::window_extent::PrivateExtent;

/// Maximum number of regions that have not been reused since their migration. Short-lived buffers at recurring addresses look like
/// buffers that are reused. The limit bounds the number of migrations that such a program pays for.
const UNPROVEN_MAX: usize = 8;

/// A region that was warm this often is no accident: buffers of this program are used again.
const PROVEN_HITS: u64 = 4;

/// Maximum number of extents that were requested and are not used yet.
const PENDING_EXTENTS_MAX: usize = 4;

/// After this number of uses of other buffers, a buffer that has an extent and was not reused is taken for unused.
const EXTENT_UNUSED_AFTER: u64 = 512;

/// A region which was warm this often was worth its price, whatever becomes of it.
const PAYS_OFF_AFTER_HITS: u64 = 64;

#[derive(Debug)]
pub(super) struct Table {
    config: CacheConfig,
    entries: Vec<CachedRegion>,
    pending_extents: Vec<PendingExtent>,
    reuse_stats: ReuseStats,
    released: Vec<RegionKey>,
    clock: u64,
    /// This is the copy of the table that a child got by `fork`.
    in_child: bool,
    pub(super) counts: CacheCounters,
}

#[derive(Debug)]
struct CachedRegion {
    region: Region,
    /// Number of messages in progress that were prepared from the region.
    in_use: u32,
    granted: bool,
    hits: u64,
    last: u64,
}

/// The extent that a buffer is to be moved onto, once the extent is there and the buffer is used again.
#[derive(Debug)]
struct PendingExtent {
    key: RegionKey,
    range: Range<usize>,
    extent_file: Option<PrivateExtent>,
    /// When it was asked for, by the table's clock.
    since: u64,
}

/// The reason that a buffer is not in a region.
#[derive(Debug)]
pub(super) enum NotInRegion {
    /// The buffer is to be copied, for this reason.
    Cold(ColdReason),
    /// The buffer is to be copied, and the caller has to provide an extent for it.
    NeedsExtent(RegionKey),
}

impl From<ColdReason> for NotInRegion {
    fn from(reason: ColdReason) -> Self {
        Self::Cold(reason)
    }
}

/// The counters of a cache, and its current size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Buffers moved onto regions.
    pub migrated: u64,
    /// Uses that found their region as it was.
    pub warm: u64,
    /// Regions forgotten because other memory was found at their addresses.
    pub stale: u64,
    /// Regions given back to make room for others.
    pub evicted: u64,
    /// Regions given back because a buffer overlapped them.
    pub overlapped: u64,
    /// Regions given back because the program forked.
    pub forked: u64,
    /// Current number of regions.
    pub entries: usize,
    /// Current number of bytes in regions.
    pub bytes: usize,
}

impl Table {
    pub(super) fn new(config: CacheConfig) -> Self {
        let (reuse_stats, counts) = (ReuseStats::new(config.misses_per_doubling), CacheCounters::default());
        let (entries, pending_extents, released) = (Vec::new(), Vec::new(), Vec::new());
        Self { config, entries, pending_extents, reuse_stats, released, clock: 0, in_child: false, counts }
    }

    /// The region and offset in its file of a buffer's whole pages; migrates them if their time has come.
    ///
    /// # Safety
    ///
    /// As for [`UserRange::new`](super::UserRange::new), for `range`, which consists of whole pages.
    pub(super) unsafe fn prepare(
        &mut self,
        maps: &Maps,
        range: &Range<usize>,
        (page, onto): (usize, MigrationTarget),
    ) -> Result<(RegionKey, u64), NotInRegion> {
        if self.in_child {
            return Err(ColdReason::ForkChild.into());
        }
        self.clock += 1;
        if let Some(index) = self.entries.iter().position(|entry| contains(&entry.region.range, range)) {
            if self.entries[index].region.is_still_mapped(maps, range)? {
                self.counts.warm += 1;
                return Ok(self.acquire(index, range.start));
            }
            self.counts.stale += 1;
            self.drop_region(index, maps);
            self.reuse_stats.count(range.start, self.config.uses_before_migration);
            return Err(ColdReason::Stale.into());
        }
        if !self.reuse_stats.count(range.start, self.config.uses_before_migration) {
            return Err(ColdReason::FirstUse.into());
        }
        if self.entries.iter().filter(|entry| entry.hits <= 1).count() >= UNPROVEN_MAX {
            return Err(ColdReason::FirstUse.into());
        }
        let extent = match onto {
            MigrationTarget::Memfds => None,
            MigrationTarget::Extents => Some(self.extent_for(maps, range, page)?),
        };
        // SAFETY: the caller's promise, passed on.
        match unsafe { self.migrate(maps, range, page, extent) } {
            Ok(index) => {
                self.reuse_stats.record_migrated(range.start);
                self.counts.migrated += 1;
                Ok(self.acquire(index, range.start))
            }
            Err(reason) => {
                self.reuse_stats.record_miss(range.start);
                Err(reason.into())
            }
        }
    }

    /// The extent that was provided for this range; otherwise requests one.
    fn extent_for(
        &mut self,
        maps: &Maps,
        range: &Range<usize>,
        page: usize,
    ) -> Result<(RegionKey, PrivateExtent), NotInRegion> {
        match self.pending_extents.iter().position(|extent| extent.range == *range) {
            Some(index) if self.pending_extents[index].extent_file.is_none() => return Err(ColdReason::FirstUse.into()),
            Some(index) => {
                let PendingExtent { key, extent_file, .. } = self.pending_extents.remove(index);
                return Ok((key, extent_file.expect("seen above")));
            }
            None => {}
        }
        if let Err(reason) = eligibility::check_plain(maps, range, page) {
            self.reuse_stats.record_miss(range.start);
            return Err(reason.into());
        }
        if let Some(oldest) = self.pending_extents.first().filter(|_| self.pending_extents.len() >= PENDING_EXTENTS_MAX)
        {
            // Many buffers may come in turn: each is to keep its extent until then.
            if self.clock - oldest.since < EXTENT_UNUSED_AFTER {
                return Err(ColdReason::FirstUse.into());
            }
            self.released.push(oldest.key);
            self.pending_extents.remove(0);
        }
        let key = RegionKey::next_id();
        self.pending_extents.push(PendingExtent { key, range: range.clone(), extent_file: None, since: self.clock });
        Err(NotInRegion::NeedsExtent(key))
    }

    /// An extent that was requested. What is none, or is not awaited any more, is given back.
    pub(super) fn provide_extent(&mut self, key: RegionKey, file: OwnedFd) {
        let awaited = self.pending_extents.iter().position(|extent| extent.key == key && extent.extent_file.is_none());
        match (awaited, PrivateExtent::new(file)) {
            (Some(index), Some(extent_file)) => self.pending_extents[index].extent_file = Some(extent_file),
            (Some(index), None) => {
                let extent = self.pending_extents.remove(index);
                self.reuse_stats.record_miss(extent.range.start);
                self.released.push(key);
            }
            // It was given up meanwhile, or there is a region in it: its file is the same.
            (None, _) => {}
        }
    }

    /// There is no extent. Where that is for want of room, another region makes some, if that can be.
    pub(super) fn reject_extent(&mut self, maps: &Maps, key: RegionKey, room: bool) {
        let Some(index) =
            self.pending_extents.iter().position(|extent| extent.key == key && extent.extent_file.is_none())
        else {
            return;
        };
        let extent = self.pending_extents.remove(index);
        self.reuse_stats.record_miss(extent.range.start);
        if room {
            return;
        }
        let idle = self.entries.iter().enumerate().filter(|(_, entry)| entry.in_use == 0);
        if let Some((oldest, _)) = idle.min_by_key(|(_, entry)| entry.last) {
            self.counts.evicted += 1;
            self.drop_region(oldest, maps);
        }
    }

    /// # Safety
    ///
    /// As for `prepare`.
    unsafe fn migrate(
        &mut self,
        maps: &Maps,
        range: &Range<usize>,
        page: usize,
        extent: Option<(RegionKey, PrivateExtent)>,
    ) -> Result<usize, ColdReason> {
        let key = extent.as_ref().map(|(key, _)| *key);
        // SAFETY: the caller's promise, passed on.
        let migrated = unsafe { self.try_migrate(maps, range, page, extent) };
        if migrated.is_err() {
            self.released.extend(key); // Its peer knows of it already.
        }
        migrated
    }

    /// # Safety
    ///
    /// As for `prepare`.
    unsafe fn try_migrate(
        &mut self,
        maps: &Maps,
        range: &Range<usize>,
        page: usize,
        extent: Option<(RegionKey, PrivateExtent)>,
    ) -> Result<usize, ColdReason> {
        fork::register_fork_handlers()?;
        let ours = |entry: &CachedRegion| overlap(&entry.region.range, range);
        if self.entries.iter().any(|entry| ours(entry) && entry.in_use > 0) {
            return Err(ColdReason::InUse);
        }
        let vmas = if self.entries.iter().any(ours) {
            Vec::new()
        } else {
            eligibility::check_plain(maps, range, page)? // The cheaper question first.
        };
        let room = eligibility::check_unencumbered(maps, range, &vmas)?;
        while let Some(index) = self.entries.iter().position(ours) {
            self.counts.overlapped += 1;
            self.drop_region(index, maps);
        }
        eligibility::check_plain(maps, range, page)?;
        self.make_room(maps, range.len())?;
        let granted = extent.is_some();
        let may_lock = room.0 >= range.len();
        let region = match extent {
            // SAFETY: mapped (`check_plain` found it), not written and not mapped anew meanwhile by the caller's promise.
            Some(extent) if may_lock => unsafe {
                Region::migrate_to_extent(maps, range.clone(), extent, Locking::Locked)?
            },
            Some(extent) if self.config.allow_unlocked => {
                // SAFETY: as above.
                unsafe { Region::migrate_to_extent(maps, range.clone(), extent, Locking::Unlocked)? }
            }
            Some(_) => return Err(ColdReason::LockLimit),
            None => {
                // SAFETY: as above.
                let migrate = |locking| unsafe { Region::migrate(maps, range.clone(), locking) };
                match if may_lock { migrate(Locking::Locked) } else { Err(ColdReason::LockLimit) } {
                    Err(ColdReason::LockLimit) if self.config.allow_unlocked => migrate(Locking::Unlocked)?,
                    locked => locked?,
                }
            }
        };
        self.entries.push(CachedRegion { region, in_use: 0, granted, hits: 0, last: 0 });
        Ok(self.entries.len() - 1)
    }

    fn acquire(&mut self, index: usize, address: usize) -> (RegionKey, u64) {
        let entry = &mut self.entries[index];
        entry.in_use += 1;
        entry.hits += 1;
        entry.last = self.clock;
        if entry.hits == PROVEN_HITS {
            self.reuse_stats.clear_misses();
        }
        (entry.region.key, entry.region.offset(address))
    }

    /// Ends the use of a region by a message that was prepared from `key`.
    pub(super) fn release(&mut self, key: RegionKey) {
        // Gone meanwhile if the program forked, or freed the buffer too early.
        if let Some(entry) = self.entry(key) {
            entry.in_use -= 1;
        }
    }

    /// The region, which from now on some peer knows.
    pub(super) fn grant(&mut self, key: RegionKey) -> Option<&Region> {
        let entry = self.entry(key)?;
        entry.granted = true;
        Some(&entry.region)
    }

    pub(super) fn bytes_of(&mut self, key: RegionKey) -> Option<u64> {
        self.entry(key).map(|entry| entry.region.range.len() as u64)
    }

    pub(super) fn take_released(&mut self) -> Vec<RegionKey> {
        std::mem::take(&mut self.released)
    }

    /// Gives back what overlaps memory that is about to be registered.
    pub(super) fn release_overlapping(&mut self, maps: &Maps, range: &Range<usize>) -> Result<(), ColdReason> {
        let ours = |entry: &CachedRegion| overlap(&entry.region.range, range);
        if self.entries.iter().any(|entry| ours(entry) && entry.in_use > 0) {
            return Err(ColdReason::InUse);
        }
        while let Some(index) = self.entries.iter().position(ours) {
            self.counts.overlapped += 1;
            self.drop_region(index, maps);
        }
        Ok(())
    }

    /// Gives all regions back: permanently, or because the program is about to fork.
    pub(super) fn restore_all(&mut self, maps: &Maps) {
        while !self.entries.is_empty() {
            self.counts.forked += 1;
            self.restore(0, maps);
        }
    }

    /// Called in a child: the regions are the parent's.
    pub(super) fn disown_in_child(&mut self) {
        self.entries.clear();
        self.pending_extents.clear();
        self.released.clear();
        self.in_child = true;
    }

    pub(super) fn counts(&self) -> CacheCounters {
        CacheCounters { entries: self.entries.len(), bytes: self.bytes(), ..self.counts }
    }

    fn make_room(&mut self, maps: &Maps, bytes: usize) -> Result<(), ColdReason> {
        let held = self.entries.iter().filter(|entry| entry.in_use > 0);
        let (entries_held, bytes_held) =
            held.fold((0, 0), |(n, bytes), entry| (n + 1, bytes + entry.region.range.len()));
        if entries_held >= self.config.entries_max || bytes_held.saturating_add(bytes) > self.config.bytes_max {
            return Err(ColdReason::CacheFull);
        }
        let full = |table: &Self| {
            table.entries.len() >= table.config.entries_max || table.bytes() + bytes > table.config.bytes_max
        };
        while full(self) {
            let idle = self.entries.iter().enumerate().filter(|(_, entry)| entry.in_use == 0);
            let (oldest, _) =
                idle.min_by_key(|(_, entry)| entry.last).expect("what is held leaves room, as seen above");
            self.counts.evicted += 1;
            self.drop_region(oldest, maps);
        }
        Ok(())
    }

    fn drop_region(&mut self, index: usize, maps: &Maps) {
        let entry = &self.entries[index];
        let address = entry.region.range.start;
        if entry.hits >= PAYS_OFF_AFTER_HITS {
            self.reuse_stats.record_hit(address)
        } else {
            self.reuse_stats.record_miss(address)
        }
        self.restore(index, maps);
    }

    fn restore(&mut self, index: usize, maps: &Maps) {
        let entry = self.entries.swap_remove(index);
        entry.region.restore(maps);
        if entry.granted {
            self.released.push(entry.region.key);
        }
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.region.range.len()).sum()
    }

    fn entry(&mut self, key: RegionKey) -> Option<&mut CachedRegion> {
        self.entries.iter_mut().find(|entry| entry.region.key == key)
    }
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}
