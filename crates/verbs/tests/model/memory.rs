//! The memory of a program, with the rights of the adapter to each byte.

use isthmus_verbs::{AtomicOperation, Memory};
use std::ops::Range;

/// The adapter may read the byte.
pub(crate) const READ: u8 = 1;
/// The adapter may write the byte.
pub(crate) const WRITE: u8 = 2;

/// Bytes at `base`. An access to a byte that the adapter may not touch fails the test.
pub(crate) struct Program {
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    rights: Vec<u8>,
    /// The addresses that the program has unmapped, although they are registered.
    pub(crate) unmapped: Range<u64>,
}

impl Program {
    pub(crate) fn new(base: u64, len: usize) -> Self {
        Self { base, bytes: vec![0; len], rights: vec![0; len], unmapped: 0..0 }
    }

    /// From now on, the adapter has these rights and no others.
    pub(crate) fn allow(&mut self, addr: u64, len: u64, rights: u8) {
        let range = self.range(addr, len as usize);
        self.rights[range].fill(rights);
    }

    pub(crate) fn range(&self, addr: u64, len: usize) -> Range<usize> {
        let start = addr.checked_sub(self.base).expect("an address of the program") as usize;
        assert!(start + len <= self.bytes.len(), "{addr:#x} + {len} lies outside of the program");
        start..start + len
    }

    fn check(&self, range: &Range<usize>, right: u8) {
        let forbidden = self.rights[range.clone()].iter().position(|rights| rights & right == 0);
        assert_eq!(forbidden, None, "right {right} is missing in {range:x?} of {:#x}", self.base);
        assert!(self.has(self.base + range.start as u64, range.len() as u64), "{range:x?} is not mapped");
    }

    /// Returns whether no part of a range was unmapped.
    fn has(&self, addr: u64, len: u64) -> bool {
        addr + len <= self.unmapped.start || self.unmapped.end <= addr
    }
}

impl Memory for Program {
    fn is_mapped(&self, addr: u64, len: u64) -> bool {
        self.has(addr, len)
    }

    fn read(&self, addr: u64, into: &mut [u8]) {
        if into.is_empty() {
            return;
        }
        let range = self.range(addr, into.len());
        self.check(&range, READ);
        into.copy_from_slice(&self.bytes[range]);
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let range = self.range(addr, bytes.len());
        self.check(&range, WRITE);
        self.bytes[range].copy_from_slice(bytes);
    }

    fn atomic(&mut self, addr: u64, operation: AtomicOperation) -> u64 {
        assert!(addr.is_multiple_of(8));
        let range = self.range(addr, 8);
        self.check(&range, READ);
        self.check(&range, WRITE);
        let old = u64::from_le_bytes(self.bytes[range.clone()].try_into().expect("8 bytes"));
        self.bytes[range].copy_from_slice(&changed(old, operation).to_le_bytes());
        old
    }
}

/// The number after an atomic operation.
pub(crate) fn changed(old: u64, operation: AtomicOperation) -> u64 {
    match operation {
        AtomicOperation::FetchAdd(add) => old.wrapping_add(add),
        AtomicOperation::CompareSwap { compare, swap } if compare == old => swap,
        AtomicOperation::CompareSwap { .. } => old,
    }
}
