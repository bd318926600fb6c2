//! Registered memory: which ranges the adapter may touch, on behalf of which party.

use crate::types::{Access, Key, Pd, Sge};
use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashMap;
use siphasher::sip::SipHasher24;

/// The memory of the program. The engine passes addresses only after it has found them in a registered region with the needed rights.
pub trait Memory {
    /// Returns whether the program still has the memory that it has registered. Asked before each access of a peer.
    fn is_mapped(&self, addr: u64, len: u64) -> bool;
    /// Copies bytes out of the program's memory.
    fn read(&self, addr: u64, into: &mut [u8]);
    /// Copies bytes into the program's memory.
    fn write(&mut self, addr: u64, bytes: &[u8]);
    /// Performs an atomic operation on the 8 bytes at `addr`, which is a multiple of 8. Returns the number before it.
    fn atomic(&mut self, addr: u64, operation: crate::types::AtomicOperation) -> u64;
}

/// A registered range of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pd: Pd,
    /// The address by which requests name the first byte.
    iova: u64,
    /// The address of the first byte in the program.
    addr: u64,
    len: u64,
    access: Access,
}

impl Region {
    /// The address in the program of `len` bytes that requests call `at`, if they lie inside and the rights suffice.
    #[inline]
    fn locate(&self, at: u64, len: u64, access: Access) -> Option<u64> {
        let offset = at.checked_sub(self.iova)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        (inside && self.access.contains(access)).then(|| self.addr.wrapping_add(offset))
    }
}

/// A fast hash for keys that no peer chooses: keys of regions are random, and numbers of domains come from the daemon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FastHasher(u64);

/// A hash map with [`FastHasher`].
pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// All regions of an open device.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_key: FastMap<u32, Region>,
    /// The region that was used last: most programs use few.
    last: Option<(u32, Region)>,
    /// Makes the keys unguessable.
    seed: u64,
    /// Keys made so far.
    made: u64,
}

impl Regions {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The next number of a sequence that a peer cannot continue from the numbers that it knows: a keyed hash of a counter.
    fn next_random(&mut self) -> u64 {
        self.made += 1;
        let mut hasher = SipHasher24::new_with_keys(self.seed, !self.seed);
        hasher.write_u64(self.made);
        hasher.finish()
    }

    pub(crate) fn insert(&mut self, pd: Pd, addr: u64, len: u64, iova: u64, access: Access) -> Key {
        let mut key = 0;
        while key == 0 || self.by_key.contains_key(&key) {
            key = self.next_random() as u32;
        }
        self.by_key.insert(key, Region { pd, iova, addr, len, access });
        Key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn remove(&mut self, key: Key) -> bool {
        self.last = None;
        self.by_key.remove(&key.0).is_some()
    }

    /// Changes a region under its key. False if there is none.
    pub(crate) fn change(&mut self, key: Key, change: impl FnOnce(&mut Pd, &mut (u64, u64), &mut Access)) -> bool {
        self.last = None;
        let Some(region) = self.by_key.get_mut(&key.0) else { return false };
        let mut range = (region.addr, region.len);
        change(&mut region.pd, &mut range, &mut region.access);
        if range != (region.addr, region.len) {
            (region.addr, region.len) = range;
            region.iova = range.0;
        }
        true
    }

    /// The protection domain, the range, the name of the first byte and the rights of a region.
    pub(crate) fn describe(&self, key: Key) -> Option<(Pd, (u64, u64), u64, Access)> {
        let region = self.by_key.get(&key.0)?;
        Some((region.pd, (region.addr, region.len), region.iova, region.access))
    }

    pub(crate) fn uses_pd(&self, pd: Pd) -> bool {
        self.by_key.values().any(|region| region.pd == pd)
    }

    #[inline]
    fn find(&mut self, key: u32) -> Option<Region> {
        if let Some((last, region)) = self.last
            && last == key
        {
            return Some(region);
        }
        let region = *self.by_key.get(&key)?;
        self.last = Some((key, region));
        Some(region)
    }

    /// The program's address of `len` bytes at `at`, if the key has them for this protection domain with these rights.
    #[inline]
    pub(crate) fn locate(&mut self, pd: Pd, key: Key, at: u64, len: u64, access: Access) -> Option<u64> {
        self.find(key.0).filter(|region| region.pd == pd)?.locate(at, len, access)
    }

    /// The range of a list as the program's address. None if the adapter may not use it so.
    #[inline]
    pub(crate) fn locate_sge(&mut self, pd: Pd, sge: &Sge, access: Access) -> Option<Sge> {
        if sge.len == 0 {
            return Some(*sge);
        }
        let addr = self.locate(pd, Key(sge.lkey), sge.addr, u64::from(sge.len), access)?;
        Some(Sge { addr, ..*sge })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locate_checks_bounds_rights_and_protection_domain() {
        let mut regions = Regions::new(1);
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let key = regions.insert(Pd(1), 0x1000, 0x100, 0x5000, access);
        let mut at = |pd, at, len, access| regions.locate(Pd(pd), key, at, len, access);
        assert_eq!(at(1, 0x5000, 0x100, Access::REMOTE_READ), Some(0x1000));
        assert_eq!(at(1, 0x5080, 0x80, Access::LOCAL_WRITE), Some(0x1080));
        assert_eq!(at(1, 0x5081, 0x80, Access::LOCAL_WRITE), None);
        assert_eq!(at(1, 0x4fff, 1, Access::empty()), None);
        assert_eq!(at(1, u64::MAX, 2, Access::empty()), None);
        assert_eq!(at(1, 0x5000, 1, Access::REMOTE_WRITE), None);
        assert_eq!(at(2, 0x5000, 1, Access::empty()), None);
        assert!(regions.uses_pd(Pd(1)) && !regions.uses_pd(Pd(2)));
        assert!(regions.change(key, |pd, range, access| {
            *pd = Pd(2);
            *range = (0x2000, 0x10);
            *access = Access::REMOTE_WRITE;
        }));
        assert_eq!(regions.locate(Pd(2), key, 0x2008, 8, Access::REMOTE_WRITE), Some(0x2008));
        assert_eq!(regions.locate(Pd(2), key, 0x2008, 9, Access::REMOTE_WRITE), None);
        assert!(regions.remove(key) && !regions.remove(key));
        assert_eq!(regions.locate(Pd(2), key, 0x2008, 8, Access::REMOTE_WRITE), None);
    }

    #[test]
    fn keys_differ_between_devices_and_registrations() {
        let (mut one, mut other) = (Regions::new(1), Regions::new(2));
        let mut keys = alloc::collections::BTreeSet::new();
        for _ in 0..1000 {
            keys.insert(one.insert(Pd(1), 0, 1, 0, Access::empty()).0);
            keys.insert(other.insert(Pd(1), 0, 1, 0, Access::empty()).0);
        }
        assert_eq!((keys.len(), keys.contains(&0)), (2000, false));
    }
}
