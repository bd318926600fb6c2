//! The registrations of one arena: its entries, and the ranges of the program that lie in its file.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Instant;

use isthmus_layout::DomainId;
use isthmus_layout::arena::{ENTRIES, HEADER, WRITERS};

use super::super::maps::Maps;
use super::super::serving::ServingThreads;
use super::super::{ColdReason, eligibility};
use super::header::{self, ArenaHeader};
use super::migrate::{self, ArenaFile};
use super::{BYTES_MAX, CLOSE_TIMEOUT, Registration};
use crate::mapping::{Access, Mapping, SharedMapping};

/// Bodies lie so far apart in the file, so that a program which enlarges a mapping finds nothing there, and no two become one.
const BODY_GAP_BYTES: u64 = 1 << 30;

/// Addresses and file offsets agree below this, so that huge pages fit wherever the memory lies.
const HUGE_PAGE: u64 = 2 << 20;

#[derive(Debug)]
pub(in super::super) struct Registrations {
    file: ArenaFile,
    header: ArenaHeader<SharedMapping>,
    /// Where the file was never used.
    next: u64,
    entries: Vec<Option<RegisteredEntry>>,
    /// Indices of `entries` that are not in use.
    free: Vec<u32>,
    /// By first address. No two overlap.
    page_ranges: BTreeMap<usize, RegisteredPages>,
    /// Bytes in `page_ranges`.
    bytes: usize,
    /// This is the copy that a child got by `fork`: the file is the parent's.
    in_child: bool,
}

#[derive(Clone, Copy, Debug)]
struct RegisteredEntry {
    serial: NonZeroU64,
    /// The first address of the pages that it lies in. None after all were restored.
    pages: Option<usize>,
}

/// Whole pages of the program that lie in the file.
#[derive(Debug)]
struct RegisteredPages {
    range: Range<usize>,
    start: u64,
    /// Entries that lie in it.
    users: Vec<u32>,
    /// Some of it had `MADV_DONTFORK` when it was registered.
    has_advice: bool,
}

impl Registrations {
    pub(super) fn new() -> Result<Self, ColdReason> {
        let file = ArenaFile::new()?;
        let mapping = Mapping::new(file.fd(), HEADER, Access::ReadWrite).map_err(|_| ColdReason::MemoryLimit)?;
        let header = ArenaHeader::new(SharedMapping::new(mapping));
        header.init();
        let (entries, free, page_ranges) = (Vec::new(), Vec::new(), BTreeMap::new());
        Ok(Self { file, header, next: BODY_GAP_BYTES, entries, free, page_ranges, bytes: 0, in_child: false })
    }

    pub(super) fn file(&self) -> &OwnedFd {
        self.file.fd()
    }

    /// The header, in which peers say what they write. None in a child, which owns no arena.
    pub(super) fn header(&self) -> Option<ArenaHeader<SharedMapping>> {
        (!self.in_child).then(|| self.header.clone())
    }

    pub(in super::super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Registers `pages`, which are those of `what`. `bytes_registered` is the number of bytes already registered in arenas.
    pub(in super::super) fn register(
        &mut self,
        maps: &Maps,
        what: &Registration,
        pages: &Range<usize>,
        serial: NonZeroU64,
        bytes_registered: usize,
        serving: &ServingThreads,
    ) -> Result<u32, ColdReason> {
        if self.in_child {
            return Err(ColdReason::ForkChild);
        }
        if self.free.is_empty() && self.entries.len() >= ENTRIES as usize {
            return Err(ColdReason::CacheFull);
        }
        let at = match self.containing(maps, pages)? {
            Some(at) => at,
            None => self.migrate(maps, pages, bytes_registered, serving)?,
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        let registered = self.page_ranges.get_mut(&at).expect("found or made above");
        registered.users.push(index);
        let shown = header::ArenaEntry {
            key: what.key,
            rights: what.rights,
            head: (pages.start - what.start) as u64,
            body: pages.len() as u64,
            start: registered.start + (pages.start - registered.range.start) as u64,
            base: what.base,
        };
        self.entries[index as usize] = Some(RegisteredEntry { serial, pages: Some(at) });
        self.header.open(index, &shown);
        Ok(index)
    }

    /// Returns the first address of the registered pages that contain these, if they are still mapped there.
    fn containing(&self, maps: &Maps, pages: &Range<usize>) -> Result<Option<usize>, ColdReason> {
        let below = self.page_ranges.range(..pages.end).next_back();
        let Some((at, RegisteredPages { range, start, .. })) = below.filter(|(_, last)| pages.start < last.range.end)
        else {
            return Ok(None);
        };
        let inside = range.start <= pages.start && pages.end <= range.end;
        let offset = start + pages.start.saturating_sub(range.start) as u64;
        // Pages that were unmapped while they were registered stay unusable until their registration is closed.
        if inside && maps.is_mapped_as(pages, self.file.id(), offset)? { Ok(Some(*at)) } else { Err(ColdReason::InUse) }
    }

    fn migrate(
        &mut self,
        maps: &Maps,
        pages: &Range<usize>,
        bytes_registered: usize,
        serving: &ServingThreads,
    ) -> Result<usize, ColdReason> {
        let page = rustix::param::page_size();
        if bytes_registered.saturating_add(pages.len()) > BYTES_MAX {
            return Err(ColdReason::CacheFull);
        }
        let vmas = eligibility::check_plain(maps, pages, page)?; // The cheaper check first.
        let found = eligibility::check_registrable(maps, pages, &vmas, bytes_registered)?;
        if found.room.0 < pages.len() {
            return Err(ColdReason::LockLimit);
        }
        let start = self.next + pages.start as u64 % HUGE_PAGE;
        self.next = (start + pages.len() as u64).next_multiple_of(BODY_GAP_BYTES) + BODY_GAP_BYTES;
        migrate::move_to_file(&self.file, maps, (pages, start), &found, serving)?;
        let has_advice = !found.not_forked.is_empty();
        let registered = RegisteredPages { range: pages.clone(), start, users: Vec::new(), has_advice };
        self.page_ranges.insert(pages.start, registered);
        self.bytes += pages.len();
        Ok(pages.start)
    }

    /// Closes an entry: no writer may enter any more.
    pub(super) fn invalidate(&mut self, index: u32, serial: NonZeroU64) {
        if !self.in_child && self.of(index, serial).is_some() {
            self.header.invalidate(index);
        }
    }

    fn of(&mut self, index: u32, serial: NonZeroU64) -> Option<&mut RegisteredEntry> {
        self.entries.get_mut(index as usize)?.as_mut().filter(|entry| entry.serial == serial)
    }

    /// Returns true if the memory of an entry lies in the file.
    pub(super) fn is_in_place(&mut self, index: u32, serial: NonZeroU64) -> bool {
        !self.in_child && self.of(index, serial).is_some_and(|entry| entry.pages.is_some())
    }

    /// Removes an entry that was closed. The program gets its memory back if no other entry uses it, or if a writer may still write
    /// there. In the latter case the remaining entries have to be accessed through the owner from now on.
    pub(in super::super) fn close(&mut self, maps: &Maps, index: u32, serial: NonZeroU64, has_writer: bool) {
        let Some(closed) = self.of(index, serial).map(|entry| *entry) else { return };
        self.entries[index as usize] = None;
        self.free.push(index);
        let Some(registered) = closed.pages.and_then(|at| self.page_ranges.get_mut(&at)) else { return };
        registered.users.retain(|user| *user != index);
        if has_writer || registered.users.is_empty() {
            let at = registered.range.start;
            self.restore(maps, at, Instant::now() + CLOSE_TIMEOUT);
        }
    }

    /// Gives the memory of these pages back to the program. Entries in it stay, closed.
    fn restore(&mut self, maps: &Maps, at: usize, deadline: Instant) {
        let Some(registered) = self.page_ranges.remove(&at) else { return };
        self.bytes -= registered.range.len();
        for index in registered.users {
            if let Some(entry) = &mut self.entries[index as usize] {
                entry.pages = None;
                self.header.invalidate(index);
                wait_for_writers(&self.header, index, deadline);
            }
        }
        migrate::restore(&self.file, maps, (&registered.range, registered.start), registered.has_advice);
    }

    /// Gives back to the program what a child would share with it otherwise. Memory that no child gets stays registered.
    pub(in super::super) fn restore_before_fork(&mut self, maps: &Maps) {
        if self.in_child {
            return;
        }
        let any_advice = self.page_ranges.values().any(|registered| registered.has_advice);
        let not_forked =
            if any_advice { eligibility::not_forked(&(0..usize::MAX)).unwrap_or_default() } else { vec![] };
        let (file, deadline) = (self.file.id(), Instant::now() + CLOSE_TIMEOUT);
        let stays = |registered: &RegisteredPages| {
            let RegisteredPages { range, start, .. } = registered;
            not_forked.iter().any(|part| part.start <= range.start && range.end <= part.end)
                && maps.is_mapped_as(range, file, *start) == Ok(true)
        };
        let ranges = self.page_ranges.iter();
        let taken: Vec<_> = ranges.filter(|(_, registered)| !stays(registered)).map(|(at, _)| *at).collect();
        for at in taken {
            self.restore(maps, at, deadline);
        }
    }

    /// Gives all memory back to the program permanently.
    pub(in super::super) fn restore_all(&mut self, maps: &Maps) {
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        while let Some(at) = self.page_ranges.keys().next().copied().filter(|_| !self.in_child) {
            self.restore(maps, at, deadline);
        }
    }

    /// Disowns the file, which belongs to the parent. Called in a child.
    pub(in super::super) fn disown_in_child(&mut self) {
        self.page_ranges.clear();
        self.bytes = 0;
        self.in_child = true;
    }

    pub(super) fn free_writer_of(&self, peer: DomainId) {
        if !self.in_child {
            self.header.free_writer_of(peer);
        }
    }
}

/// Waits until no writer is in an entry that was closed. Returns false if a peer still writes at the deadline. That peer learns, when it
/// ends its write, that what it wrote was not seen.
pub(super) fn wait_for_writers(header: &ArenaHeader<SharedMapping>, index: u32, deadline: Instant) -> bool {
    let mut alone = true;
    for writer in 0..WRITERS {
        let mut checks = 0_u32;
        while header.is_writing(writer, index) {
            if Instant::now() >= deadline && header.evict(writer, index) {
                alone = false;
                break;
            }
            checks += 1;
            if checks < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
    alone
}
