//! The buffers which one cache has re-homed: which, how many, which one goes when there are too many.

use std::ops::Range;

use std::os::fd::OwnedFd;

use super::maps::Maps;
use super::region::{Locking, Region};
use super::uses::Uses;
use super::{ColdReason, Config, Onto, RegionKey, fork, survey};
use crate::piece::Home;

/// Regions at once that nobody has used again yet: a program whose buffers come and go at the same addresses, which look like
/// buffers that are used again, shows it before we have paid for many.
const UNPROVEN_MAX: usize = 8;

/// A region that was warm this often is no accident: buffers of this program are used again.
const PROVEN: u64 = 4;

/// Pieces at once that were asked for and are not used yet.
const PIECES_MAX: usize = 4;

/// After so many uses of other buffers, a buffer that has a piece and was not used again may never be.
const FORGOTTEN: u64 = 512;

/// A region which was warm this often was worth its price, whatever becomes of it.
const WORTH_IT: u64 = 64;

#[derive(Debug)]
pub(super) struct Table {
    config: Config,
    entries: Vec<Entry>,
    pieces: Vec<Piece>,
    uses: Uses,
    released: Vec<RegionKey>,
    clock: u64,
    /// This is the copy of the table that a child got by `fork`.
    in_child: bool,
    pub(super) counts: Counts,
}

#[derive(Debug)]
struct Entry {
    region: Region,
    /// Messages under way which were prepared from it.
    in_use: u32,
    granted: bool,
    hits: u64,
    last: u64,
}

/// What a buffer is to be moved onto, once it is there and the buffer is used again.
#[derive(Debug)]
struct Piece {
    key: RegionKey,
    range: Range<usize>,
    home: Option<Home>,
    /// When it was asked for, by the table's clock.
    since: u64,
}

/// Why a buffer is not in a region.
#[derive(Debug)]
pub(super) enum Not {
    /// It is to be copied, for this reason.
    Cold(ColdReason),
    /// The same, and somebody has to give a piece for it.
    Wanted(RegionKey),
}

impl From<ColdReason> for Not {
    fn from(reason: ColdReason) -> Self {
        Self::Cold(reason)
    }
}

/// What has happened so far, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Buffers moved onto regions.
    pub rehomed: u64,
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
    /// Regions there are.
    pub entries: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Table {
    pub(super) fn new(config: Config) -> Self {
        let (uses, counts) = (Uses::new(config.doubts_each), Counts::default());
        let (entries, pieces, released) = (Vec::new(), Vec::new(), Vec::new());
        Self { config, entries, pieces, uses, released, clock: 0, in_child: false, counts }
    }

    /// The region and offset in its file of a buffer's whole pages; re-homes them if their time has come.
    ///
    /// # Safety
    ///
    /// As for [`UserRange::new`](super::UserRange::new), for `range`, which consists of whole pages.
    pub(super) unsafe fn prepare(
        &mut self,
        maps: &Maps,
        range: &Range<usize>,
        (page, onto): (usize, Onto),
    ) -> Result<(RegionKey, u64), Not> {
        if self.in_child {
            return Err(ColdReason::ForkChild.into());
        }
        self.clock += 1;
        if let Some(index) = self.entries.iter().position(|entry| contains(&entry.region.range, range)) {
            if self.entries[index].region.still_at(maps, range)? {
                self.counts.warm += 1;
                return Ok(self.hold(index, range.start));
            }
            self.counts.stale += 1;
            self.lose(index, maps);
            self.uses.count(range.start, self.config.uses_before);
            return Err(ColdReason::Stale.into());
        }
        if !self.uses.count(range.start, self.config.uses_before) {
            return Err(ColdReason::FirstUse.into());
        }
        if self.entries.iter().filter(|entry| entry.hits <= 1).count() >= UNPROVEN_MAX {
            return Err(ColdReason::FirstUse.into());
        }
        let piece = match onto {
            Onto::Files => None,
            Onto::Pieces => Some(self.piece_for(maps, range, page)?),
        };
        // SAFETY: the caller's promise, passed on.
        match unsafe { self.rehome(maps, range, page, piece) } {
            Ok(index) => {
                self.uses.rehomed(range.start);
                self.counts.rehomed += 1;
                Ok(self.hold(index, range.start))
            }
            Err(reason) => {
                self.uses.disappointed(range.start);
                Err(reason.into())
            }
        }
    }

    /// The piece that was given for this range; otherwise asks for one.
    fn piece_for(&mut self, maps: &Maps, range: &Range<usize>, page: usize) -> Result<(RegionKey, Home), Not> {
        match self.pieces.iter().position(|piece| piece.range == *range) {
            Some(index) if self.pieces[index].home.is_none() => return Err(ColdReason::FirstUse.into()),
            Some(index) => {
                let Piece { key, home, .. } = self.pieces.remove(index);
                return Ok((key, home.expect("seen above")));
            }
            None => {}
        }
        if let Err(reason) = survey::plain(maps, range, page) {
            self.uses.disappointed(range.start);
            return Err(reason.into());
        }
        if let Some(oldest) = self.pieces.first().filter(|_| self.pieces.len() >= PIECES_MAX) {
            // Many buffers may come in turn: each is to keep its piece until then.
            if self.clock - oldest.since < FORGOTTEN {
                return Err(ColdReason::FirstUse.into());
            }
            self.released.push(oldest.key);
            self.pieces.remove(0);
        }
        let key = RegionKey::fresh();
        self.pieces.push(Piece { key, range: range.clone(), home: None, since: self.clock });
        Err(Not::Wanted(key))
    }

    /// A piece that was asked for. What is none, or is not awaited any more, is given back.
    pub(super) fn give(&mut self, key: RegionKey, file: OwnedFd) {
        let awaited = self.pieces.iter().position(|piece| piece.key == key && piece.home.is_none());
        match (awaited, Home::new(file)) {
            (Some(index), Some(home)) => self.pieces[index].home = Some(home),
            (Some(index), None) => {
                let piece = self.pieces.remove(index);
                self.uses.disappointed(piece.range.start);
                self.released.push(key);
            }
            // It was given up meanwhile, or there is a region in it: its file is the same.
            (None, _) => {}
        }
    }

    /// There is no piece. Where that is for want of room, another region makes some, if that can be.
    pub(super) fn deny(&mut self, maps: &Maps, key: RegionKey, room: bool) {
        let Some(index) = self.pieces.iter().position(|piece| piece.key == key && piece.home.is_none()) else { return };
        let piece = self.pieces.remove(index);
        self.uses.disappointed(piece.range.start);
        if room {
            return;
        }
        let idle = self.entries.iter().enumerate().filter(|(_, entry)| entry.in_use == 0);
        if let Some((oldest, _)) = idle.min_by_key(|(_, entry)| entry.last) {
            self.counts.evicted += 1;
            self.lose(oldest, maps);
        }
    }

    /// # Safety
    ///
    /// As for `prepare`.
    unsafe fn rehome(
        &mut self,
        maps: &Maps,
        range: &Range<usize>,
        page: usize,
        piece: Option<(RegionKey, Home)>,
    ) -> Result<usize, ColdReason> {
        let key = piece.as_ref().map(|(key, _)| *key);
        // SAFETY: the caller's promise, passed on.
        let rehomed = unsafe { self.try_rehome(maps, range, page, piece) };
        if rehomed.is_err() {
            self.released.extend(key); // Its peer knows of it already.
        }
        rehomed
    }

    /// # Safety
    ///
    /// As for `prepare`.
    unsafe fn try_rehome(
        &mut self,
        maps: &Maps,
        range: &Range<usize>,
        page: usize,
        piece: Option<(RegionKey, Home)>,
    ) -> Result<usize, ColdReason> {
        fork::watch()?;
        let ours = |entry: &Entry| overlap(&entry.region.range, range);
        if self.entries.iter().any(|entry| ours(entry) && entry.in_use > 0) {
            return Err(ColdReason::InUse);
        }
        if !self.entries.iter().any(ours) {
            survey::plain(maps, range, page)?; // The cheaper question first.
        }
        let room = survey::unencumbered(maps, range)?;
        while let Some(index) = self.entries.iter().position(ours) {
            self.counts.overlapped += 1;
            self.lose(index, maps);
        }
        survey::plain(maps, range, page)?;
        self.make_room(maps, range.len())?;
        let granted = piece.is_some();
        let may_lock = room.0 >= range.len();
        let region = match piece {
            // SAFETY: mapped (the survey found it), not written and not mapped anew meanwhile by the caller's promise.
            Some(piece) if may_lock => unsafe { Region::adopt_piece(maps, range.clone(), piece, Locking::Locked)? },
            Some(piece) if self.config.unlocked => {
                // SAFETY: as above.
                unsafe { Region::adopt_piece(maps, range.clone(), piece, Locking::Unlocked)? }
            }
            Some(_) => return Err(ColdReason::LockLimit),
            None => {
                // SAFETY: as above.
                let adopt = |locking| unsafe { Region::adopt(maps, range.clone(), locking) };
                match if may_lock { adopt(Locking::Locked) } else { Err(ColdReason::LockLimit) } {
                    Err(ColdReason::LockLimit) if self.config.unlocked => adopt(Locking::Unlocked)?,
                    locked => locked?,
                }
            }
        };
        self.entries.push(Entry { region, in_use: 0, granted, hits: 0, last: 0 });
        Ok(self.entries.len() - 1)
    }

    fn hold(&mut self, index: usize, address: usize) -> (RegionKey, u64) {
        let entry = &mut self.entries[index];
        entry.in_use += 1;
        entry.hits += 1;
        entry.last = self.clock;
        if entry.hits == PROVEN {
            self.uses.reassured();
        }
        (entry.region.key, entry.region.offset(address))
    }

    /// A message that was prepared from `key` is through.
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
    pub(super) fn yield_to(&mut self, maps: &Maps, range: &Range<usize>) -> Result<(), ColdReason> {
        let ours = |entry: &Entry| overlap(&entry.region.range, range);
        if self.entries.iter().any(|entry| ours(entry) && entry.in_use > 0) {
            return Err(ColdReason::InUse);
        }
        while let Some(index) = self.entries.iter().position(ours) {
            self.counts.overlapped += 1;
            self.lose(index, maps);
        }
        Ok(())
    }

    /// Gives all regions back, for good or because the program is about to fork.
    pub(super) fn give_all_back(&mut self, maps: &Maps) {
        while !self.entries.is_empty() {
            self.counts.forked += 1;
            self.give_back(0, maps);
        }
    }

    /// Called in a child: the regions are the parent's.
    pub(super) fn orphan(&mut self) {
        self.entries.clear();
        self.pieces.clear();
        self.released.clear();
        self.in_child = true;
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { entries: self.entries.len(), bytes: self.bytes(), ..self.counts }
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
            self.lose(oldest, maps);
        }
        Ok(())
    }

    fn lose(&mut self, index: usize, maps: &Maps) {
        let entry = &self.entries[index];
        let address = entry.region.range.start;
        if entry.hits >= WORTH_IT {
            self.uses.content(address)
        } else {
            self.uses.disappointed(address)
        }
        self.give_back(index, maps);
    }

    fn give_back(&mut self, index: usize, maps: &Maps) {
        let entry = self.entries.swap_remove(index);
        entry.region.give_back(maps);
        if entry.granted {
            self.released.push(entry.region.key);
        }
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.region.range.len()).sum()
    }

    fn entry(&mut self, key: RegionKey) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.region.key == key)
    }
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}
