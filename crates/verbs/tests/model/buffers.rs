//! The program and its own memory.

use crate::memory::Program;

impl Program {
    /// The bytes that the program finds.
    pub(crate) fn look(&self, addr: u64, len: u64) -> &[u8] {
        &self.bytes[self.range(addr, len as usize)]
    }

    /// The program writes bytes.
    pub(crate) fn fill(&mut self, addr: u64, bytes: &[u8]) {
        let range = self.range(addr, bytes.len());
        self.bytes[range].copy_from_slice(bytes);
    }

    /// The whole memory, as (address, length).
    pub(crate) fn whole(&self) -> (u64, u64) {
        (self.base, self.bytes.len() as u64)
    }
}
