//! The listed pages: the addresses of listening sockets, as bits that programs read before they show a socket.
//!
//! Each owner has a page, so a program learns nothing about the ports of other owners. It has the listeners of that owner: without records of
//! connections, streams of different owners are rare. Where the kernel records connections, all bits are set: the other end of a
//! connection may be behind a translated address, so each connection is shown once it is worth a stream.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

use isthmus_layout::Refusal;
use isthmus_layout::control::Owner;
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{
    LISTED_BITS, LISTED_BITS_COUNT, LISTED_KEY, LISTED_KEY_WORDS, LISTED_SIZE, listed_bit, listed_mask, listed_word,
};
use isthmus_platform::local;
use isthmus_shm::{SharedMapping, Words as _};
use rustix::rand::{GetRandomFlags, getrandom};

use isthmus_window::Resource;

/// The pages of all owners with a session.
#[derive(Debug, Default)]
pub(super) struct ListedPages {
    pages: BTreeMap<Owner, ListedPage>,
    has_all: bool,
}

impl ListedPages {
    /// Sets all bits of all pages, also of later ones, if the kernel records connections.
    pub(super) fn set_all(&mut self, has_all: bool) {
        if has_all && !self.has_all {
            self.has_all = true;
            self.pages.values().for_each(ListedPage::set_all);
        }
    }

    /// Returns the page for another session of an owner.
    pub(super) fn join(&mut self, owner: Owner) -> Result<Resource, Refusal> {
        if let Some(page) = self.pages.get_mut(&owner) {
            page.sessions += 1;
            return Ok(page.memory.clone());
        }
        let page = ListedPage::new()?;
        if self.has_all {
            page.set_all();
        }
        let memory = page.memory.clone();
        self.pages.insert(owner, page);
        Ok(memory)
    }

    /// Forgets a session of an owner, after its addresses were removed.
    pub(super) fn leave(&mut self, owner: Owner) {
        if let Some(page) = self.pages.get_mut(&owner) {
            page.sessions -= 1;
            if page.sessions == 0 {
                self.pages.remove(&owner);
            }
        }
    }

    /// Lists an address of an owner with a session. Returns its bit.
    pub(super) fn add(&mut self, owner: Owner, address: SocketAddr) -> Option<u16> {
        Some(self.pages.get_mut(&owner)?.add(address, self.has_all))
    }

    /// Removes a listed address of an owner by its bit.
    pub(super) fn remove(&mut self, owner: Owner, bit: u16) {
        if let Some(page) = self.pages.get_mut(&owner) {
            page.remove(bit, self.has_all);
        }
    }
}

/// The page of an owner, and the number of listeners of each bit.
#[derive(Debug)]
struct ListedPage {
    memory: Resource,
    mapping: SharedMapping,
    key: [u32; LISTED_KEY_WORDS as usize],
    counts: BTreeMap<u16, u32>,
    sessions: usize,
}

impl ListedPage {
    /// Creates the page for one session, without listeners, with a random key.
    fn new() -> Result<Self, Refusal> {
        let mut bytes = [0; 4 * LISTED_KEY_WORDS as usize];
        let refused = |error| Refusal::new(Reason::KernelRefused, format!("drawing a random key: {error}"));
        if getrandom(&mut bytes, GetRandomFlags::empty()).map_err(refused)? < bytes.len() {
            return Err(Reason::KernelRefused.into());
        }
        let (file, mapping) = local::published_memory(LISTED_SIZE)?;
        let mapping = SharedMapping::new(mapping);
        let key = std::array::from_fn(|word| u32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * word + byte])));
        for (word, &value) in (LISTED_KEY..).zip(&key) {
            mapping.store(word, value, Relaxed);
        }
        Ok(Self { memory: file.into(), mapping, key, counts: BTreeMap::new(), sessions: 1 })
    }

    fn set_all(&self) {
        for word in LISTED_BITS..LISTED_BITS + LISTED_BITS_COUNT / 32 {
            self.mapping.store(word, u32::MAX, Relaxed);
        }
    }

    fn add(&mut self, address: SocketAddr, has_all: bool) -> u16 {
        let bit = listed_bit(self.key, address.ip(), address.port());
        let count = self.counts.entry(bit).or_default();
        *count += 1;
        if *count == 1 && !has_all {
            self.write(bit, true);
        }
        bit
    }

    fn remove(&mut self, bit: u16, has_all: bool) {
        let Some(count) = self.counts.get_mut(&bit) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&bit);
            if !has_all {
                self.write(bit, false);
            }
        }
    }

    fn write(&self, bit: u16, is_listed: bool) {
        let (word, mask) = (listed_word(bit), listed_mask(bit));
        let others = self.mapping.load(word, Relaxed) & !mask; // Only this thread writes.
        self.mapping.store(word, others | if is_listed { mask } else { 0 }, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    const OWNER: Owner = Owner(7);

    fn is_set(pages: &ListedPages, owner: Owner, bit: u16) -> bool {
        pages.pages[&owner].mapping.load(listed_word(bit), Relaxed) & listed_mask(bit) != 0
    }

    #[test]
    fn bit_is_set_while_a_listener_has_it() {
        let mut pages = ListedPages::default();
        let address: SocketAddr = ([10, 0, 0, 1], 80).into();
        assert_eq!(pages.add(OWNER, address), None);
        pages.join(OWNER).unwrap();
        let bit = pages.add(OWNER, address).unwrap();
        assert_eq!((pages.add(OWNER, address), is_set(&pages, OWNER, bit)), (Some(bit), true));
        pages.remove(OWNER, bit);
        assert!(is_set(&pages, OWNER, bit));
        pages.remove(OWNER, bit);
        pages.remove(OWNER, bit);
        assert!(!is_set(&pages, OWNER, bit) && pages.pages[&OWNER].counts.is_empty());
    }

    #[test]
    fn owners_have_pages_of_their_own_while_they_have_sessions() {
        let (mut pages, other) = (ListedPages::default(), Owner(8));
        let [a, again, _] = [OWNER, OWNER, other].map(|owner| pages.join(owner).unwrap());
        assert!(a.file().unwrap().as_raw_fd() == again.file().unwrap().as_raw_fd(), "one page for both sessions");
        let address: SocketAddr = ([10, 0, 0, 1], 80).into();
        pages.add(OWNER, address).unwrap();
        let words = LISTED_BITS..LISTED_BITS + LISTED_BITS_COUNT / 32;
        let is_empty = |pages: &ListedPages, owner: Owner| {
            words.clone().all(|word| pages.pages[&owner].mapping.load(word, Relaxed) == 0)
        };
        assert_eq!([OWNER, other].map(|owner| is_empty(&pages, owner)), [false, true]);
        pages.leave(OWNER);
        assert!(pages.pages.contains_key(&OWNER));
        pages.leave(OWNER);
        pages.leave(OWNER);
        assert_eq!(pages.pages.keys().collect::<Vec<_>>(), [&other]);
    }

    #[test]
    fn all_bits_are_set_where_connections_are_recorded() {
        let mut pages = ListedPages::default();
        pages.join(OWNER).unwrap();
        let bit = pages.add(OWNER, ([10, 0, 0, 1], 80).into()).unwrap();
        pages.set_all(false);
        assert!(!is_set(&pages, OWNER, bit ^ 1));
        pages.set_all(true);
        pages.join(Owner(8)).unwrap();
        pages.remove(OWNER, bit);
        for owner in [OWNER, Owner(8)] {
            assert!((0..=u16::MAX).all(|bit| is_set(&pages, owner, bit)));
        }
    }
}
