//! The memory of a program, which knows for each byte who may touch it.

use isthmus_verbs::{AtomicOperation, Memory};
use std::ops::Range;

/// The adapter may read the byte.
pub(crate) const READ: u8 = 1;
/// The adapter may write the byte.
pub(crate) const WRITE: u8 = 2;

/// Bytes at `base`. An access to a byte that the adapter may not touch fails the test.
pub(crate) struct Program {
    base: u64,
    bytes: Vec<u8>,
    rights: Vec<u8>,
    unused: u64,
}

impl Program {
    pub(crate) fn new(base: u64, len: usize) -> Self {
        Self { base, bytes: vec![0; len], rights: vec![0; len], unused: base }
    }

    /// Returns the address of `len` bytes that nobody has used, with 8 bytes between them and the next ones.
    pub(crate) fn take(&mut self, len: u64, rights: u8) -> u64 {
        let addr = self.unused.next_multiple_of(8);
        self.unused = addr + len + 8;
        assert!(self.unused <= self.base + self.bytes.len() as u64, "the test needs more memory");
        self.allow(addr, len, rights);
        addr
    }

    /// From now on, the adapter has these rights and no others.
    pub(crate) fn allow(&mut self, addr: u64, len: u64, rights: u8) {
        let range = self.range(addr, len as usize);
        self.rights[range].fill(rights);
    }

    /// What the program itself finds.
    pub(crate) fn look(&self, addr: u64, len: u64) -> &[u8] {
        &self.bytes[self.range(addr, len as usize)]
    }

    /// What the program itself writes.
    pub(crate) fn fill(&mut self, addr: u64, bytes: &[u8]) {
        let range = self.range(addr, bytes.len());
        self.bytes[range].copy_from_slice(bytes);
    }

    /// The whole memory, as (address, length).
    pub(crate) fn whole(&self) -> (u64, u64) {
        (self.base, self.bytes.len() as u64)
    }

    fn range(&self, addr: u64, len: usize) -> Range<usize> {
        let start = addr.checked_sub(self.base).expect("an address of the program") as usize;
        assert!(start + len <= self.bytes.len(), "{addr:#x} + {len} lies outside of the program");
        start..start + len
    }

    fn check(&self, range: &Range<usize>, right: u8) {
        let forbidden = self.rights[range.clone()].iter().position(|rights| rights & right == 0);
        assert_eq!(forbidden, None, "right {right} is missing in {range:x?} of {:#x}", self.base);
    }
}

impl Memory for Program {
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
