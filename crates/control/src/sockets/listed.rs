//! The listed page: the addresses of all listening sockets, as bits that programs read before they show a socket.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

use isthmus_layout::Refusal;
use isthmus_layout::reason::Reason;
use isthmus_layout::sockets::{LISTED_KEY, LISTED_KEY_WORDS, LISTED_SIZE, listed_bit, listed_mask, listed_word};
use isthmus_platform::local;
use isthmus_shm::{SharedMapping, Words as _};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::allocator::Resource;
use crate::broker::OrRefuse as _;

/// The page, and the number of listeners of each bit.
#[derive(Debug)]
pub(super) struct ListedPage {
    memory: Resource,
    mapping: SharedMapping,
    key: [u32; LISTED_KEY_WORDS as usize],
    counts: BTreeMap<u16, u32>,
}

impl ListedPage {
    /// Creates the page without listeners, with a random key.
    pub(super) fn new() -> Result<Self, Refusal> {
        let mut bytes = [0; 4 * LISTED_KEY_WORDS as usize];
        let refused = |error| Refusal::new(Reason::KernelRefused, format!("drawing a random key: {error}"));
        if getrandom(&mut bytes, GetRandomFlags::empty()).map_err(refused)? < bytes.len() {
            return Err(Reason::KernelRefused.into());
        }
        let (file, mapping) = local::published_memory(LISTED_SIZE).or_refuse()?;
        let mapping = SharedMapping::new(mapping);
        let key = std::array::from_fn(|word| u32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * word + byte])));
        for (word, &value) in (LISTED_KEY..).zip(&key) {
            mapping.store(word, value, Relaxed);
        }
        Ok(Self { memory: file.into(), mapping, key, counts: BTreeMap::new() })
    }

    /// The page, for programs.
    pub(super) fn memory(&self) -> Resource {
        self.memory.clone()
    }

    /// Lists an address. Returns its bit.
    pub(super) fn add(&mut self, address: SocketAddr) -> u16 {
        let bit = listed_bit(self.key, address.ip(), address.port());
        let count = self.counts.entry(bit).or_default();
        *count += 1;
        if *count == 1 {
            self.write(bit, true);
        }
        bit
    }

    /// Removes a listed address by its bit.
    pub(super) fn remove(&mut self, bit: u16) {
        let Some(count) = self.counts.get_mut(&bit) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&bit);
            self.write(bit, false);
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

    #[test]
    fn bit_is_set_while_a_listener_has_it() {
        let mut page = ListedPage::new().unwrap();
        let address: SocketAddr = ([10, 0, 0, 1], 80).into();
        let is_set = |page: &ListedPage, bit| page.mapping.load(listed_word(bit), Relaxed) & listed_mask(bit) != 0;
        let bit = page.add(address);
        assert_eq!((page.add(address), is_set(&page, bit)), (bit, true));
        page.remove(bit);
        assert!(is_set(&page, bit));
        page.remove(bit);
        page.remove(bit);
        assert!(!is_set(&page, bit) && page.counts.is_empty());
    }
}
