//! The peer's side: an arena that a peer of the same owner has granted to us.
//!
//! We access its memory by raw pointers: bytes are copied, numbers are changed by atomic instructions. Its owner and other peers may
//! write it at any time, and may write false values into its header. They cannot remove the pages, because the file is sealed
//! against shrinking. They cannot make us touch anything else, because every position is checked against the file.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use isthmus_layout::arena::{ATOMIC, ENTRIES, HEADER, READ, WRITE};
use isthmus_layout::{DomainId, RegionSize};

use super::header::{ArenaEntry, ArenaHeader};
use crate::mapping::{Access, MapError, Mapping, SharedMapping};

/// A peer's arena.
#[derive(Debug)]
pub struct ArenaMapping {
    file: OwnedFd,
    header: ArenaHeader<SharedMapping>,
    own_domain: DomainId,
    /// Our writer slot.
    writer_index: Option<u32>,
    cached: Vec<CachedEntry>,
    /// The index in `cached` of each key.
    by_key: HashMap<u64, usize>,
    /// The index in `cached` of the last access: most programs use few registrations.
    last: usize,
    /// The count of changes at the last scan of all entries.
    seen_changes: Option<u32>,
    /// Accesses since [`ArenaMapping::take_accesses`].
    accesses: u64,
}

/// An entry as this side has read it.
#[derive(Debug)]
struct CachedEntry {
    index: u32,
    generation: u32,
    entry: ArenaEntry,
    mapping: Option<SharedMapping>,
}

/// The access that a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessRights {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Both, as atomic operations do.
    Both,
    /// Atomic operations, where the owner allows these apart from reading and writing.
    Atomic,
}

impl AccessRights {
    const fn rights(self) -> u32 {
        match self {
            Self::Read => READ,
            Self::Write => WRITE,
            Self::Both => READ | WRITE,
            Self::Atomic => ATOMIC,
        }
    }
}

/// The owner closed the entry meanwhile and did not wait: bytes read may be anything, bytes written may not be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory was closed by its owner meanwhile")]
pub struct Evicted;

impl ArenaMapping {
    /// Maps the header of an arena that a peer has sent to the domain `own_domain`.
    pub fn new(file: OwnedFd, own_domain: DomainId) -> Result<Self, MapError> {
        let header = ArenaHeader::new(SharedMapping::new(Mapping::new(&file, HEADER, Access::ReadWrite)?));
        if !header.is_initialized() {
            return Err(MapError::NotSealed);
        }
        let (cached, by_key) = (Vec::new(), HashMap::new());
        Ok(Self {
            file,
            header,
            own_domain,
            writer_index: None,
            cached,
            by_key,
            last: 0,
            seen_changes: None,
            accesses: 0,
        })
    }

    /// Begins an access to the `len` bytes that the registration with this `key` calls `named`. Returns None if the owner has to be
    /// asked to do it.
    pub fn access(&mut self, key: u64, named: u64, len: u64, rights: AccessRights) -> Option<ArenaAccess<'_>> {
        let cached = self.find(key).map(|at| &self.cached[at]);
        if !cached.is_some_and(|cached| self.header.is_open(cached.index, cached.generation)) {
            self.rescan();
        }
        let at = self.find(key)?;
        let CachedEntry { index, generation, entry, mapping } = &mut self.cached[at];
        let (index, generation) = (*index, *generation);
        let at = named.checked_sub(entry.base)?.checked_sub(entry.head)?;
        let inside = at.checked_add(len).is_some_and(|end| end <= entry.body);
        if !inside || len == 0 || entry.rights & rights.rights() != rights.rights() {
            return None;
        }
        if mapping.is_none() {
            let mapped = Mapping::at_offset(&self.file, entry.start, RegionSize(entry.body), Access::ReadWrite);
            *mapping = Some(SharedMapping::new(mapped.ok()?));
        }
        let mapping = mapping.as_ref()?;
        let writer_index = match rights {
            AccessRights::Read => None,
            AccessRights::Write | AccessRights::Both | AccessRights::Atomic => {
                let writer_index = match self.writer_index {
                    Some(writer_index) => writer_index,
                    None => *self.writer_index.insert(self.header.claim_writer(self.own_domain)?),
                };
                Some(writer_index)
            }
        };
        let entered = match writer_index {
            Some(writer_index) => self.header.begin_write(writer_index, index, generation),
            None => self.header.is_open(index, generation),
        };
        let accesses = &mut self.accesses;
        entered.then_some(ArenaAccess { header: &self.header, mapping, at, index, generation, writer_index, accesses })
    }

    /// The number of accesses that were finished since the last [`ArenaMapping::take_accesses`].
    #[inline]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Returns that number, and counts from 0 again.
    pub fn take_accesses(&mut self) -> u64 {
        std::mem::take(&mut self.accesses)
    }

    /// The index in `cached` of a key.
    #[inline]
    fn find(&mut self, key: u64) -> Option<usize> {
        if self.cached.get(self.last).is_none_or(|cached| cached.entry.key != key) {
            self.last = *self.by_key.get(&key)?;
        }
        Some(self.last)
    }

    /// Reads all entries again, if any has changed since the last scan.
    #[cold]
    fn rescan(&mut self) {
        let changes = self.header.change_count();
        if self.seen_changes == Some(changes) {
            return;
        }
        let before = std::mem::take(&mut self.cached).into_iter();
        let mut before: HashMap<u64, CachedEntry> = before.map(|cached| (cached.entry.key, cached)).collect();
        self.by_key.clear();
        self.last = usize::MAX; // Of two entries with one key, the later one counts.
        for index in 0..ENTRIES {
            let Some((generation, entry)) = self.header.read_entry(index) else { continue };
            let same = |old: &CachedEntry| (old.index, old.generation, old.entry) == (index, generation, entry);
            let mapping = before.remove(&entry.key).filter(same).and_then(|old| old.mapping);
            self.by_key.insert(entry.key, self.cached.len());
            self.cached.push(CachedEntry { index, generation, entry, mapping });
        }
        self.seen_changes = Some(changes);
    }
}

/// An access in progress. Dropping it ends the access.
#[derive(Debug)]
pub struct ArenaAccess<'a> {
    header: &'a ArenaHeader<SharedMapping>,
    mapping: &'a SharedMapping,
    at: u64,
    index: u32,
    generation: u32,
    /// The writer slot that says so, if we write.
    writer_index: Option<u32>,
    /// The count of finished accesses.
    accesses: &'a mut u64,
}

impl ArenaAccess<'_> {
    /// Where the bytes lie: as many as were asked for, to be touched by copying and by atomic operations only. Others may
    /// change them between any two of our looks.
    pub fn pointer(&self) -> NonNull<u8> {
        self.mapping.pointer(self.at, 1).expect("it was seen to lie inside when it was entered")
    }

    /// Done. What was written is the owner's; what was read was there.
    pub fn finish(mut self) -> Result<(), Evicted> {
        let stayed = match self.writer_index.take() {
            Some(writer_index) => self.header.end_write(writer_index, self.index),
            None => self.header.is_still_open(self.index, self.generation),
        };
        *self.accesses += u64::from(stayed);
        if stayed { Ok(()) } else { Err(Evicted) }
    }
}

impl Drop for ArenaAccess<'_> {
    fn drop(&mut self) {
        if let Some(writer_index) = self.writer_index.take() {
            self.header.end_write(writer_index, self.index);
        }
    }
}
