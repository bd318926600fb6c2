//! What one arena holds: its entries, and the ranges of the program that lie in its file.

use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Instant;

use isthmus_layout::DomainId;
use isthmus_layout::arena::{ENTRIES, FRONT, VISITORS};

use super::super::maps::Maps;
use super::super::{ColdReason, survey};
use super::front::{self, Front};
use super::shift::{self, File};
use super::{BYTES_MAX, PATIENCE, Registration};
use crate::window::{Access, Mapping, Window};

/// Bodies lie so far apart in the file, so that a program which enlarges a mapping finds nothing there, and no two become one.
const APART: u64 = 1 << 30;

/// Addresses and file offsets agree below this, so that huge pages fit wherever the memory lies.
const HUGE_PAGE: u64 = 2 << 20;

#[derive(Debug)]
pub(in super::super) struct Holdings {
    file: File,
    front: Front<Window>,
    /// Where the file was never used.
    next: u64,
    entries: Vec<Option<Entry>>,
    extents: Vec<Extent>,
    /// This is the copy that a child got by `fork`: the file is the parent's.
    in_child: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    serial: NonZeroU64,
    /// Where the extent begins that it lies in. None after all was given back.
    extent: Option<u64>,
}

/// Whole pages of the program that lie in the file.
#[derive(Debug)]
struct Extent {
    range: Range<usize>,
    start: u64,
    /// Entries that lie in it.
    users: u32,
}

impl Holdings {
    pub(super) fn new() -> Result<Self, ColdReason> {
        let file = File::new()?;
        let mapping = Mapping::new(file.fd(), FRONT, Access::ReadWrite).map_err(|_| ColdReason::MemoryLimit)?;
        let front = Front::new(Window::new(mapping));
        front.found();
        let (entries, extents) = (Vec::new(), Vec::new());
        Ok(Self { file, front, next: APART, entries, extents, in_child: false })
    }

    pub(super) fn file(&self) -> &OwnedFd {
        self.file.fd()
    }

    /// Where visitors say what they are at. None in a child, which is nobody's owner.
    pub(super) fn front(&self) -> Option<Front<Window>> {
        (!self.in_child).then(|| self.front.clone())
    }

    pub(in super::super) fn bytes(&self) -> usize {
        self.extents.iter().map(|extent| extent.range.len()).sum()
    }

    /// Registers `pages`, which are those of `what`. `held` is how many bytes lie in arenas already.
    pub(in super::super) fn register(
        &mut self,
        maps: &Maps,
        what: &Registration,
        pages: &Range<usize>,
        serial: NonZeroU64,
        held: usize,
    ) -> Result<u32, ColdReason> {
        if self.in_child {
            return Err(ColdReason::ForkChild);
        }
        let free = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        if free >= ENTRIES as usize {
            return Err(ColdReason::CacheFull);
        }
        let extent = match self.containing(maps, pages)? {
            Some(extent) => extent,
            None => self.adopt(maps, pages, held)?,
        };
        self.extents[extent].users += 1;
        let (range, start) = (&self.extents[extent].range, self.extents[extent].start);
        let shown = front::Entry {
            key: what.key,
            rights: what.rights,
            head: (pages.start - what.start) as u64,
            body: pages.len() as u64,
            start: start + (pages.start - range.start) as u64,
        };
        if free == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[free] = Some(Entry { serial, extent: Some(start) });
        self.front.open(free as u32, &shown);
        Ok(free as u32)
    }

    /// The extent that these pages lie in already, if they still do.
    fn containing(&self, maps: &Maps, pages: &Range<usize>) -> Result<Option<usize>, ColdReason> {
        let overlaps = |extent: &Extent| extent.range.start < pages.end && pages.start < extent.range.end;
        let Some(at) = self.extents.iter().position(overlaps) else { return Ok(None) };
        let Extent { range, start, .. } = &self.extents[at];
        let inside = range.start <= pages.start && pages.end <= range.end;
        let offset = start + pages.start.saturating_sub(range.start) as u64;
        // What was unmapped while it was registered stays of no use until that is closed.
        if inside && maps.shows(pages, self.file.id(), offset)? { Ok(Some(at)) } else { Err(ColdReason::InUse) }
    }

    fn adopt(&mut self, maps: &Maps, pages: &Range<usize>, held: usize) -> Result<usize, ColdReason> {
        let page = rustix::param::page_size();
        if held.saturating_add(pages.len()) > BYTES_MAX {
            return Err(ColdReason::CacheFull);
        }
        survey::plain(maps, pages, page)?; // The cheaper question first.
        if survey::unencumbered(maps, pages)?.0 < pages.len() {
            return Err(ColdReason::LockLimit);
        }
        let start = self.next + pages.start as u64 % HUGE_PAGE;
        self.next = (start + pages.len() as u64).next_multiple_of(APART) + APART;
        shift::onto(&self.file, maps, pages, start)?;
        self.extents.push(Extent { range: pages.clone(), start, users: 0 });
        Ok(self.extents.len() - 1)
    }

    /// Nobody may enter any more.
    pub(super) fn shut(&mut self, index: u32, serial: NonZeroU64) {
        if !self.in_child && self.of(index, serial).is_some() {
            self.front.shut(index);
        }
    }

    fn of(&mut self, index: u32, serial: NonZeroU64) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)?.as_mut().filter(|entry| entry.serial == serial)
    }

    /// Whether the memory of an entry lies in the file.
    pub(super) fn is_in_place(&mut self, index: u32, serial: NonZeroU64) -> bool {
        !self.in_child && self.of(index, serial).is_some_and(|entry| entry.extent.is_some())
    }

    /// An entry is over that was shut. The memory is the program's when no other entry has it, or when there is a visitor who may
    /// still write there: then the other entries have to be asked for from now on.
    pub(in super::super) fn close(&mut self, maps: &Maps, index: u32, serial: NonZeroU64, visited: bool) {
        let Some(closed) = self.of(index, serial).map(|entry| *entry) else { return };
        self.entries[index as usize] = None;
        let Some(at) = self.extents.iter().position(|extent| Some(extent.start) == closed.extent) else { return };
        self.extents[at].users -= 1;
        if visited || self.extents[at].users == 0 {
            self.give_back(maps, at, Instant::now() + PATIENCE);
        }
    }

    /// The memory of an extent is the program's again. Entries that lie in it stay, shut.
    fn give_back(&mut self, maps: &Maps, at: usize, deadline: Instant) {
        let extent = self.extents.swap_remove(at);
        for index in 0..self.entries.len() {
            let entry = self.entries[index].as_mut().filter(|entry| entry.extent == Some(extent.start));
            if let Some(entry) = entry {
                entry.extent = None;
                self.front.shut(index as u32);
                outwait(&self.front, index as u32, deadline);
            }
        }
        shift::back(&self.file, maps, &extent.range, extent.start);
    }

    /// All memory is the program's again, for good or because the program is about to fork.
    pub(in super::super) fn give_all_back(&mut self, maps: &Maps) {
        let deadline = Instant::now() + PATIENCE;
        while !self.in_child && !self.extents.is_empty() {
            self.give_back(maps, 0, deadline);
        }
    }

    /// Called in a child: the file is the parent's.
    pub(in super::super) fn orphan(&mut self) {
        self.extents.clear();
        self.in_child = true;
    }

    pub(super) fn forget(&self, peer: DomainId) {
        if !self.in_child {
            self.front.forget(peer);
        }
    }
}

/// Waits until nobody writes in an entry that was shut. False if somebody still does at the deadline: he is told, when he leaves, that
/// what he wrote was not seen.
pub(super) fn outwait(front: &Front<Window>, index: u32, deadline: Instant) -> bool {
    let mut alone = true;
    for place in 0..VISITORS {
        let mut looks = 0_u32;
        while front.is_inside(place, index) {
            if Instant::now() >= deadline && front.evict(place, index) {
                alone = false;
                break;
            }
            looks += 1;
            if looks < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
    alone
}
