//! The other side: an arena that a peer of the same owner has granted to us.
//!
//! We reach its memory by raw pointers: bytes are copied, numbers changed by the processor's atomic operations. Its owner and other visitors may
//! write it at any time, and may lie in its front; what they cannot do is take the pages away under us, because the file is sealed
//! against shrinking, and have us touch anything else, because every place is checked against the file.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use isthmus_layout::arena::{ENTRIES, FRONT, READ, WRITE};
use isthmus_layout::{DomainId, RegionSize};

use super::front::{Entry, Front};
use crate::window::{Access, MapError, Mapping, Window};

/// A peer's arena.
#[derive(Debug)]
pub struct Visitor {
    file: OwnedFd,
    front: Front<Window>,
    me: DomainId,
    /// Our place among the visitors.
    place: Option<u32>,
    known: HashMap<u64, Known>,
    /// The count of changes at which all entries were looked through.
    seen: Option<u32>,
}

/// An entry as we have seen it.
#[derive(Debug)]
struct Known {
    index: u32,
    generation: u32,
    entry: Entry,
    window: Option<Window>,
}

/// What somebody wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Both, as atomic operations do.
    Both,
}

impl Want {
    const fn rights(self) -> u32 {
        match self {
            Self::Read => READ,
            Self::Write => WRITE,
            Self::Both => READ | WRITE,
        }
    }
}

/// The owner has closed the entry meanwhile, and did not wait: what was read may be anything, what was written may not be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory was closed by its owner meanwhile")]
pub struct Evicted;

impl Visitor {
    /// Looks at what a peer has sent, in the name of the domain `me`, to which it was sent.
    pub fn new(file: OwnedFd, me: DomainId) -> Result<Self, MapError> {
        let front = Front::new(Window::new(Mapping::new(&file, FRONT, Access::ReadWrite)?));
        if !front.is_founded() {
            return Err(MapError::NotSealed);
        }
        Ok(Self { file, front, me, place: None, known: HashMap::new(), seen: None })
    }

    /// Goes where `len` bytes at `offset` of what is registered under `key` lie, to do what is wanted. None if this has to be asked
    /// of the owner.
    pub fn enter(&mut self, key: u64, offset: u64, len: u64, want: Want) -> Option<Visit<'_>> {
        let open = |known: &Known| self.front.is_open(known.index, known.generation);
        if !self.known.get(&key).is_some_and(open) {
            self.find();
        }
        let Known { index, generation, entry, window } = self.known.get_mut(&key)?;
        let (index, generation) = (*index, *generation);
        let at = offset.checked_sub(entry.head)?;
        let inside = at.checked_add(len).is_some_and(|end| end <= entry.body);
        if !inside || len == 0 || entry.rights & want.rights() != want.rights() {
            return None;
        }
        if window.is_none() {
            let mapped = Mapping::within(&self.file, entry.start, RegionSize(entry.body), Access::ReadWrite);
            *window = Some(Window::new(mapped.ok()?));
        }
        let window = window.as_ref()?;
        let place = match want {
            Want::Read => None,
            Want::Write | Want::Both => {
                let place = match self.place {
                    Some(place) => place,
                    None => *self.place.insert(self.front.claim(self.me)?),
                };
                Some(place)
            }
        };
        let entered = match place {
            Some(place) => self.front.enter(place, index, generation),
            None => self.front.is_open(index, generation),
        };
        entered.then_some(Visit { front: &self.front, window, at, index, generation, place })
    }

    /// Looks through all entries again, if any has changed since that was done last.
    #[cold]
    fn find(&mut self) {
        let changes = self.front.changes();
        if self.seen == Some(changes) {
            return;
        }
        let mut before = std::mem::take(&mut self.known);
        for index in 0..ENTRIES {
            let Some((generation, entry)) = self.front.look(index) else { continue };
            let same = |old: &Known| (old.index, old.generation, old.entry) == (index, generation, entry);
            let window = before.remove(&entry.key).filter(same).and_then(|old| old.window);
            self.known.insert(entry.key, Known { index, generation, entry, window });
        }
        self.seen = Some(changes);
    }
}

/// Somebody is where he wanted to be. Leaves when it is dropped.
#[derive(Debug)]
pub struct Visit<'a> {
    front: &'a Front<Window>,
    window: &'a Window,
    at: u64,
    index: u32,
    generation: u32,
    /// Where it says that we are inside, if we are to write.
    place: Option<u32>,
}

impl Visit<'_> {
    /// Where the bytes lie: as many as were asked for, to be touched by copying and by atomic operations only. Others may
    /// change them between any two of our looks.
    pub fn place(&self) -> NonNull<u8> {
        self.window.place(self.at, 1).expect("it was seen to lie inside when it was entered")
    }

    /// Done. What was written is the owner's; what was read was there.
    pub fn leave(mut self) -> Result<(), Evicted> {
        let stayed = match self.place.take() {
            Some(place) => self.front.leave(place, self.index),
            None => self.front.is_still_open(self.index, self.generation),
        };
        if stayed { Ok(()) } else { Err(Evicted) }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.front.leave(place, self.index);
        }
    }
}
