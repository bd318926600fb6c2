//! The memory of a channel: one region, two directions that do not touch each other's lines.
//!
//! ```text
//! byte 0      head page: for each direction a consumer block and a producer block, 128 bytes apart
//! byte 4096   ring of direction 0: 256 cells of 32 bytes
//! byte 12288  ring of direction 1
//! byte 20480  slab of direction 0 (64 KiB to 4 MiB, a power of two; its pages appear when they are first used)
//!             slab of direction 1
//! ```
//!
//! A region of zeroes is a valid, empty channel. Sizes are agreed on over the control socket and kept in private memory;
//! nothing in the region says how large it is, because the other side could change it.

use crate::limits::{
    CACHE_LINE_BYTES, CELL_BYTES, DESTRUCTIVE_INTERFERENCE_BYTES, PAGE_BYTES, RING_CELLS, SLAB_BYTES_MAX,
    SLAB_BYTES_MIN,
};
use crate::reason::Reason;
use crate::span::RegionSize;

/// One of the two directions of a channel. The side that asked for the channel sends on `Zero`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the connector to the listener.
    Zero,
    /// From the listener to the connector.
    One,
}

impl Direction {
    /// The way back.
    pub const fn other(self) -> Self {
        match self {
            Self::Zero => Self::One,
            Self::One => Self::Zero,
        }
    }

    const fn index(self) -> u32 {
        match self {
            Self::Zero => 0,
            Self::One => 1,
        }
    }
}

/// Bytes of a slab: a power of two within the limits, so that a free-running position becomes an offset by masking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlabSize(u32);

impl SlabSize {
    /// The smallest.
    pub const MIN: Self = Self(SLAB_BYTES_MIN);

    /// None for what is no power of two or outside the limits.
    pub const fn new(bytes: u32) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= SLAB_BYTES_MIN && bytes <= SLAB_BYTES_MAX {
            Some(Self(bytes))
        } else {
            None
        }
    }

    /// Bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }

    /// Half of it; none where that is less than a slab may have.
    pub const fn half(self) -> Option<Self> {
        Self::new(self.0 / 2)
    }
}

/// Where the parts of one direction lie, as word (4-byte) indices into the region, but the slab, which is in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectionLayout {
    /// First word of the consumer's block: [`HEAD`], [`SLAB_HEAD`], [`PARKED`].
    pub consumer: u32,
    /// First word of the producer's block: [`BLOCKED`] and the counters.
    pub producer: u32,
    /// First word of the ring.
    pub ring: u32,
    /// First byte of the slab.
    pub slab: u64,
}

/// Word of the consumer's block: cells consumed so far, free-running.
pub const HEAD: u32 = 0;
/// Word of the consumer's block: slab bytes given back so far, free-running.
pub const SLAB_HEAD: u32 = 1;
/// Word of the consumer's block: 1 while the consumer does not poll this ring and wants its bit set in the ready map instead.
pub const PARKED: u32 = 2;
/// In [`PARKED`]: the consumer polls elsewhere and wants its bit set in the ready map. The producer sets the word back to 0 when it sets the bit.
pub const IS_PARKED: u32 = 1;
/// In [`PARKED`]: the consumer polls this ring. Before it stops, it makes all processes that are registered with the kernel for that
/// (`membarrier`) fence. A registered producer need not fence while the word has this value.
pub const ASYMMETRIC: u32 = 2;
/// Word of the producer's block: 1 while the producer sleeps until the consumer has given something back.
pub const BLOCKED: u32 = 0;
/// Word of the producer's block: why its side takes slower ways than there are, see [`SlowPathReasons`]; for display only.
pub const SLOW_PATH_REASONS: u32 = 1;
/// Words of the producer's block, low half first: messages sent, for display only.
pub const MESSAGES: u32 = 2;
/// Words of the producer's block, low half first: message bytes sent, for display only.
pub const BYTES: u32 = 4;
/// Words of the producer's block, low half first: doorbells rung, for display only.
pub const DOORBELLS: u32 = 6;
/// Words of the producer's block, low half first: accesses of this side to memory of the other side, made in that memory itself, for
/// display only.
pub const DIRECT_ACCESSES: u32 = 8;
/// Words of the producer's block, low half first: accesses of the other side that this side performed at its request, for display only.
pub const SERVED_ACCESSES: u32 = 10;
/// Words of the producer's block, low half first: requests of the other side for memory that it may not access, for display only.
pub const REFUSED_ACCESSES: u32 = 12;
/// Words of a block that carry something.
pub const BLOCK_WORDS: u32 = 14;

/// Words of a cell.
pub const CELL_WORDS: u32 = CELL_BYTES / 4;
/// Word of a cell: its stamp, see [`full_stamp`]; written last.
pub const STAMP: u32 = 0;
/// Word of a record's first cell: see [`RecordHeader`].
pub const RECORD_HEADER: u32 = 1;
/// Words of body in a record's first cell, and in each further one.
pub const FIRST_BODY_WORDS: u32 = CELL_WORDS - 2;
/// See [`FIRST_BODY_WORDS`].
pub const NEXT_BODY_WORDS: u32 = CELL_WORDS - 1;
/// Bytes of body in the largest record.
pub const BODY_BYTES_MAX: u32 = 4 * (FIRST_BODY_WORDS + (crate::limits::RECORD_CELLS_MAX - 1) * NEXT_BODY_WORDS);

const RING_WORDS: u32 = RING_CELLS * CELL_WORDS;
const HEAD_PAGE_WORDS: u32 = PAGE_BYTES / 4;

/// Laps of the ring before positions wrap at 2^32.
const LAPS: u32 = 1 << (32 - RING_CELLS.ilog2());

/// The stamp of the cell at free-running `position` once it is full: the number of laps begun. What the lap before left
/// there is its [`empty_stamp`] stamp, and so is zero in the first lap, so zeroed memory is an empty ring.
pub const fn full_stamp(position: u32) -> u32 {
    (position / RING_CELLS + 1) % LAPS
}

/// The stamp of the same cell while it is still empty.
pub const fn empty_stamp(position: u32) -> u32 {
    position / RING_CELLS
}

/// The sizes of a channel's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelGeometry {
    /// Of each slab.
    pub slab: SlabSize,
}

impl ChannelGeometry {
    /// Bytes of the whole region.
    pub const fn size(self) -> RegionSize {
        RegionSize(self.slab_start(2))
    }

    /// Where the parts of `direction` lie.
    pub const fn direction(self, direction: Direction) -> DirectionLayout {
        let index = direction.index();
        DirectionLayout {
            consumer: (2 * index + 1) * DESTRUCTIVE_INTERFERENCE_BYTES / 4,
            producer: (2 * index + 2) * DESTRUCTIVE_INTERFERENCE_BYTES / 4,
            ring: HEAD_PAGE_WORDS + index * RING_WORDS,
            slab: self.slab_start(index),
        }
    }

    const fn slab_start(self, index: u32) -> u64 {
        PAGE_BYTES as u64 + 2 * 4 * RING_WORDS as u64 + index as u64 * self.slab.0 as u64
    }
}

/// The second word of a record's first cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The kind of the record. The ring ignores it.
    pub kind: u8,
    /// Bytes of body, at most [`BODY_BYTES_MAX`].
    pub body_bytes: u16,
}

/// A record header with an impossible length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record of {body_bytes} body bytes; the largest has {BODY_BYTES_MAX}")]
pub struct RecordTooLong {
    /// The length in the header.
    pub body_bytes: u16,
}

impl RecordHeader {
    /// Reads the word: kind in bits 0 to 7, bits 8 to 15 zero, body bytes in bits 16 to 31.
    pub const fn parse(word: u32) -> Result<Self, RecordTooLong> {
        let body_bytes = (word >> 16) as u16;
        if body_bytes as u32 > BODY_BYTES_MAX {
            return Err(RecordTooLong { body_bytes });
        }
        Ok(Self { kind: word as u8, body_bytes })
    }

    /// The word.
    pub const fn emit(self) -> u32 {
        (self.body_bytes as u32) << 16 | self.kind as u32
    }

    /// Cells that the record takes.
    pub const fn cells(self) -> u32 {
        if self.body_bytes as u32 <= 4 * FIRST_BODY_WORDS {
            return 1; // Nearly always.
        }
        let words = (self.body_bytes as u32).div_ceil(4);
        1 + (words - FIRST_BODY_WORDS).div_ceil(NEXT_BODY_WORDS)
    }
}

/// Why one side of a channel takes slower ways than there are: what stands in [`SLOW_PATH_REASONS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowPathReasons {
    /// Why its last long message was sent in fragments; none if it was not, or there was none.
    pub fragmented: Option<Reason>,
    /// Why the other side had to ask for what it last wanted of memory that this side has registered; none if it never had to.
    pub assisted: Option<Reason>,
}

impl SlowPathReasons {
    /// Reads the word: the code of `fragmented` in bits 0 to 15, that of `assisted` in bits 16 to 31. A code that is in no table is none.
    pub fn parse(word: u32) -> Self {
        Self { fragmented: Reason::from_code(word as u16), assisted: Reason::from_code((word >> 16) as u16) }
    }

    /// The word.
    pub fn emit(self) -> u32 {
        let code = |reason: Option<Reason>| reason.map_or(0, Reason::code);
        u32::from(code(self.assisted)) << 16 | u32::from(code(self.fragmented))
    }
}

const _: () = assert!(4 * BLOCK_WORDS <= CACHE_LINE_BYTES);
const _: () = assert!(5 * DESTRUCTIVE_INTERFERENCE_BYTES <= PAGE_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> ChannelGeometry {
        ChannelGeometry { slab: SlabSize::new(SLAB_BYTES_MIN).unwrap() }
    }

    #[test]
    fn parts_of_a_channel_do_not_overlap() {
        let (zero, one) = (geometry().direction(Direction::Zero), geometry().direction(Direction::One));
        let blocks = [zero.consumer, zero.producer, one.consumer, one.producer];
        assert!(blocks.windows(2).all(|pair| pair[1] - pair[0] == DESTRUCTIVE_INTERFERENCE_BYTES / 4));
        assert_eq!(zero.ring * 4, 4096);
        assert_eq!(one.ring * 4, 12288);
        assert_eq!(zero.slab, 20480);
        assert_eq!(one.slab, 20480 + u64::from(SLAB_BYTES_MIN));
        assert_eq!(geometry().size().0, 20480 + 2 * u64::from(SLAB_BYTES_MIN));
    }

    #[test]
    fn a_stamp_is_full_only_in_its_own_lap() {
        for position in [0, 1, 255, 256, 257, 1 << 20, u32::MAX - 255, u32::MAX] {
            assert_ne!(full_stamp(position), empty_stamp(position));
            assert_eq!(full_stamp(position), empty_stamp(position.wrapping_add(RING_CELLS)));
        }
    }

    #[test]
    fn slow_path_reasons_round_trip() {
        for fragmented in [None, Some(Reason::BufferNew), Some(Reason::MemoryNotReady)] {
            for assisted in [None, Some(Reason::MemoryPageShared)] {
                let reasons = SlowPathReasons { fragmented, assisted };
                assert_eq!(SlowPathReasons::parse(reasons.emit()), reasons);
            }
        }
        assert_eq!(SlowPathReasons::default().emit(), 0);
        assert_eq!(SlowPathReasons::parse(u32::MAX), SlowPathReasons::default());
    }

    #[test]
    fn record_header_round_trips() {
        const FIRST: u16 = 4 * FIRST_BODY_WORDS as u16;
        for body_bytes in [0, 1, FIRST, FIRST + 1, BODY_BYTES_MAX as u16] {
            let header = RecordHeader { kind: 9, body_bytes };
            assert_eq!(RecordHeader::parse(header.emit()), Ok(header));
        }
        assert_eq!(RecordHeader { kind: 0, body_bytes: FIRST }.cells(), 1);
        assert_eq!(RecordHeader { kind: 0, body_bytes: FIRST + 1 }.cells(), 2);
        assert_eq!(
            RecordHeader { kind: 0, body_bytes: BODY_BYTES_MAX as u16 }.cells(),
            crate::limits::RECORD_CELLS_MAX
        );
        assert!(RecordHeader::parse((BODY_BYTES_MAX + 1) << 16).is_err());
    }
}
