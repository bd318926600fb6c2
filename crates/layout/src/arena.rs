//! The arena: the file in which a program keeps memory that peers may read and write directly.
//!
//! ```text
//! page 0         MAGIC, CHANGES
//! pages 1..17    entries     written by the owner: what is registered, under which key, where it lies in the file
//! pages 17..33   writers     a slot for each domain that writes here: which entry it is writing now
//! beyond         memory      whole pages of the program, wherever an entry says; nothing lies in between
//! ```
//!
//! An entry is open while its generation is odd. A writer first stores the entry in its slot, fences, and checks the generation. To close an
//! entry, the owner makes its generation even, fences, and waits until no slot names the entry. A reader checks the generation before and
//! after it reads.

use crate::ids::RegionId;
use crate::limits::PAGE_BYTES;
use crate::span::RegionSize;

/// The number of an arena in grants. No other region has it.
pub const REGION: RegionId = RegionId(1 << 63);

/// Word: [`MAGIC_VALUE`].
pub const MAGIC: u32 = 0;
/// The value that marks an arena of this layout.
pub const MAGIC_VALUE: u32 = u32::from_le_bytes(*b"ISA1");
/// Word: counts what is opened and shut.
pub const CHANGES: u32 = 32;

/// Entries of an arena.
pub const ENTRIES: u32 = 1024;
/// First word of the entries.
pub const ENTRIES_AT: u32 = PAGE_BYTES / 4;
/// Words of an entry.
pub const ENTRY_WORDS: u32 = 16;

/// Word of an entry: odd while it is open.
pub const GENERATION: u32 = 0;
/// Word of an entry: what may be done, [`READ`] and [`WRITE`].
pub const RIGHTS: u32 = 1;
/// Two words of an entry, the lower half first: the key that requests name.
pub const KEY: u32 = 2;
/// Two words: bytes before the first whole page, which are not here.
pub const HEAD: u32 = 4;
/// Two words: bytes that are here.
pub const BODY: u32 = 6;
/// Two words: where they begin in the file.
pub const START: u32 = 8;
/// Two words: the number by which requests name the first byte of the head.
pub const BASE: u32 = 10;

/// May be read.
pub const READ: u32 = 1;
/// May be written.
pub const WRITE: u32 = 2;
/// Atomic operations of verbs are allowed.
pub const ATOMIC: u32 = 4;

/// Slots for domains that write.
pub const WRITERS: u32 = 1024;
/// First word of the writer slots.
pub const WRITERS_AT: u32 = ENTRIES_AT + ENTRIES * ENTRY_WORDS;
/// Words of a writer slot.
pub const WRITER_WORDS: u32 = 16;

/// Word of a writer slot: the number of its domain, or 0.
pub const DOMAIN: u32 = 0;
/// Word of a writer slot: the entry that its domain is writing, counted from 1; 0 for none.
pub const WRITING_ENTRY: u32 = 1;
/// The mark of a writer that took too long. The owner ignores what it writes from now on.
pub const EVICTED: u32 = u32::MAX;

/// Bytes before the memory.
pub const HEADER: RegionSize = RegionSize(4 * (WRITERS_AT + WRITERS * WRITER_WORDS) as u64);

/// The first word of an entry.
pub const fn entry(index: u32) -> u32 {
    ENTRIES_AT + index * ENTRY_WORDS
}

/// The first word of a writer slot.
pub const fn writer(index: u32) -> u32 {
    WRITERS_AT + index * WRITER_WORDS
}

const _: () = assert!(HEADER.0.is_multiple_of(PAGE_BYTES as u64) && BASE + 2 <= ENTRY_WORDS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_writers_lie_apart_and_inside() {
        assert_eq!(entry(0), 1024);
        assert_eq!(entry(ENTRIES), writer(0));
        assert_eq!(4 * u64::from(writer(WRITERS)), HEADER.0);
    }
}
