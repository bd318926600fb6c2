//! Messages and limits of verbs, the interface of RDMA programs.
//!
//! The number of a queue pair has 24 bits, and one space of numbers serves the whole host. The daemon gives them out in blocks.

mod messages;
mod variables;

pub use messages::*;
pub use variables::*;

/// The name of the virtual RDMA device. It is a part of paths, so tools take it from here and from no report.
pub const DEVICE: &str = "isthmus0";

/// The type of each GID, as sysfs names it.
pub const GID_KIND: &str = "RoCE v2";

/// The maximum number of GIDs, as of a large adapter.
pub const GIDS_MAX: usize = 256;

/// The number of queue pair numbers of a block. The first number of a block is a multiple of it.
pub const BLOCK_NUMBERS: u32 = 256;

/// The maximum number of blocks of one domain.
pub const BLOCKS_MAX: usize = 64;

/// The first block that the daemon gives out. The block before it has the numbers of management queue pairs.
pub const FIRST_BLOCK: u16 = 1;

/// The last block that the daemon gives out. The block after it has the number that stands for multicast, 0xFFFFFF.
pub const LAST_BLOCK: u16 = u16::MAX - 1;

// A number has 24 bits, so a block is known by the upper 16 of them.
const _: () = assert!(BLOCK_NUMBERS == 1 << 8);

/// Returns the block of a queue pair number. None for a number of more than 24 bits, and for one that the daemon never gives out.
pub const fn block_of(number: u32) -> Option<u16> {
    let block = number / BLOCK_NUMBERS;
    if block >= FIRST_BLOCK as u32 && block <= LAST_BLOCK as u32 { Some(block as u16) } else { None }
}

/// Returns the first number of a block.
pub const fn first_number(block: u16) -> u32 {
    block as u32 * BLOCK_NUMBERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_its_numbers_and_reserved_numbers_have_none() {
        assert_eq!([255, 256, 511, 512].map(block_of), [None, Some(1), Some(1), Some(2)]);
        assert_eq!(
            [0xFF_FEFF, 0xFF_FF00, 0xFF_FFFF, 0x100_0000, u32::MAX].map(block_of),
            [Some(LAST_BLOCK), None, None, None, None]
        );
        assert_eq!(block_of(first_number(LAST_BLOCK)), Some(LAST_BLOCK));
    }
}
