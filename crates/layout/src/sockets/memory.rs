//! The memory of a stream: one file with the words of both ends, and two rings of bytes for each direction.
//!
//! ```text
//! byte 0         words: end 0 writes the block of words 0..256, end 1 that of words 256..512
//! byte 4096      small ring of direction 0: 64 KiB
//! byte 69632     small ring of direction 1
//! byte 135168    large ring of direction 0: 1 MiB
//! byte 1183744   large ring of direction 1
//! ```
//!
//! Direction 0 carries the bytes that end 0, the connector, sends. A *position* counts the bytes of a direction since the connection began,
//! on every path. It has 64 bits, of which a word holds the low 32. The byte at a position lies at that position modulo the size of the ring.
//! A file of zeroes is a valid stream on which no end is attached. `docs/spec/stream.md` has the rules.

use crate::limits::{DESTRUCTIVE_INTERFERENCE_BYTES, PAGE_BYTES, READY_MAP_BITS};
use crate::ready_map::ReadyBit;
use crate::span::RegionSize;

/// The number of bytes of a small ring.
pub const SMALL_RING_BYTES: u32 = 64 << 10;
/// The number of bytes of a large ring.
pub const LARGE_RING_BYTES: u32 = 1 << 20;
/// The size of a stream's memory in bytes. The file is sparse: a page takes memory from its first use on.
pub const STREAM_SIZE: RegionSize =
    RegionSize(PAGE_BYTES as u64 + 2 * SMALL_RING_BYTES as u64 + 2 * LARGE_RING_BYTES as u64);

/// The maximum number of waiters of a process.
pub const WAITERS_MAX: u8 = 64;
/// The index of a process's alarm, which is no waiter: its doorbell is a socket, of which the kernel tells the process by a signal.
pub const ALARM: u8 = WAITERS_MAX - 1;
/// The size of a board in bytes. It has a page for each waiter, which is a ready map ([`crate::ready_map`]).
pub const BOARD_SIZE: RegionSize = RegionSize(WAITERS_MAX as u64 * PAGE_BYTES as u64);
/// The number of words of a waiter's page in a board.
pub const WAITER_WORDS: u32 = PAGE_BYTES / 4;

/// The number of words in the block of an end.
pub const BLOCK_WORDS: u32 = 256;
/// Word of a block, of the sender: the position behind the last byte that was written to a ring, low 32 bits.
pub const TAIL: u32 = 0;
/// Word of a block, of the sender: the high 32 bits of that position, for display only.
pub const TAIL_HIGH: u32 = 1;
/// Word of a block, of the sender: the number of switches announced, free-running.
pub const SWITCHES: u32 = 32;
/// Words of a block, of the sender: the positions of the last two switches, low 32 bits. A switch with an even number has the first word.
pub const SWITCH_AT: u32 = 33;
/// Words of a block, of the sender: the paths from those positions on, a [`StreamPath`] each.
pub const SWITCH_PATH: u32 = 35;
/// Words of a block, of the sender, low half first: bytes that went by TCP up to the last switch, for display only.
pub const TCP_BYTES: u32 = 37;
/// Word of a block, of the receiver: the position behind the last byte that was read, on any path, low 32 bits.
pub const HEAD: u32 = 64;
/// Word of a block, of the receiver: the high 32 bits of that position, for display only.
pub const HEAD_HIGH: u32 = 65;
/// Word of a block, of the receiver: 1 while a call reads TCP that began without a limit.
pub const READS_TCP: u32 = 66;
/// Word of a block, of the receiver: the number of switches taken, free-running.
pub const TAKEN: u32 = 96;
/// Word of a block: bits of [`StreamState`].
pub const STATE: u32 = 128;
/// Word of a block: the [`Want`] of this end for data, or 0. The other end clears it.
pub const WANT_DATA: u32 = 160;
/// Word of a block: the number of times that this end slept, free-running, for display only.
pub const SLEEPS: u32 = 161;
/// Word of a block: the [`Want`] of this end for room, or 0. The other end clears it.
pub const WANT_ROOM: u32 = 162;
/// The first words of the lines of a block. Each line is written by one end only, but that of [`WANT_DATA`] and [`WANT_ROOM`].
pub const LINES: [u32; 6] = [TAIL, SWITCHES, HEAD, TAKEN, STATE, WANT_DATA];

/// One of the two ends of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamEndIndex {
    /// The end that connected. It sends on direction 0.
    Connector,
    /// The end that accepted. It sends on direction 1.
    Acceptor,
}

impl StreamEndIndex {
    /// Both, in order.
    pub const ALL: [Self; 2] = [Self::Connector, Self::Acceptor];

    /// Reads the number of an end in control messages. None if it is neither 0 nor 1.
    pub const fn new(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Connector),
            1 => Some(Self::Acceptor),
            _ => None,
        }
    }

    /// The number of the end, which is that of the direction that it sends on.
    pub const fn number(self) -> u8 {
        match self {
            Self::Connector => 0,
            Self::Acceptor => 1,
        }
    }

    /// The other end.
    pub const fn peer(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }

    /// The first word of the block of this end.
    pub const fn block(self) -> u32 {
        self.number() as u32 * BLOCK_WORDS
    }
}

/// The path of the bytes of a direction from some position on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum StreamPath {
    /// The connection of the kernel.
    #[default]
    Tcp = 0,
    /// The ring of 64 KiB.
    Small = 1,
    /// The ring of 1 MiB.
    Large = 2,
}

impl StreamPath {
    /// Reads the word in [`SWITCH_PATH`]. None for any other number.
    pub const fn from_word(word: u32) -> Option<Self> {
        match word {
            0 => Some(Self::Tcp),
            1 => Some(Self::Small),
            2 => Some(Self::Large),
            _ => None,
        }
    }

    /// The word.
    pub const fn word(self) -> u32 {
        self as u32
    }

    /// The number of bytes of the ring; 0 for TCP.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Tcp => 0,
            Self::Small => SMALL_RING_BYTES,
            Self::Large => LARGE_RING_BYTES,
        }
    }

    /// The first byte, in the memory of the stream, of the ring on which `sender` sends. None for TCP.
    pub const fn ring_start(self, sender: StreamEndIndex) -> Option<u64> {
        let first = match self {
            Self::Tcp => return None,
            Self::Small => PAGE_BYTES as u64,
            Self::Large => PAGE_BYTES as u64 + 2 * SMALL_RING_BYTES as u64,
        };
        Some(first + sender.number() as u64 * self.bytes() as u64)
    }
}

/// Bits of the word [`STATE`].
#[derive(Clone, Copy, Debug)]
pub enum StreamState {}

impl StreamState {
    /// The end maps the memory and checks its words.
    pub const ATTACHED: u32 = 1;
    /// The end sends no more. It sets the bit before `shutdown(SHUT_WR)`.
    pub const HALF_CLOSED: u32 = 2;
    /// The last process with the end, as far as it knows, has closed it. A hint: only the kernel's FIN or reset is the end.
    pub const CLOSED: u32 = 4;
    /// The end asks the sender of the other end to go back to TCP.
    pub const TCP_PLEASE: u32 = 8;
    /// The end has stopped reading rings, at the position that it published last. It reads TCP from there on.
    pub const LEFT: u32 = 16;
    /// After `LEFT` of the peer: this end has sent the bytes by TCP that the peer had not read.
    pub const RETURNED: u32 = 32;
    /// The end belongs to several processes since `fork`. Some of them may lack doorbells of the other end, and all use the same waiters,
    /// so a thread of either end sleeps for a short time only.
    pub const FORKED: u32 = 64;
}

/// The change that an end waits for. Each has a word of its own, because one thread may wait for data while another waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// Data, the end of the data, a switch, or a state.
    Data,
    /// Room in the ring, a switch that was taken, or a state.
    Room,
}

impl Interest {
    /// Both, in order.
    pub const ALL: [Self; 2] = [Self::Data, Self::Room];

    /// The word of a block that holds the wish: [`WANT_DATA`] or [`WANT_ROOM`].
    pub const fn want_word(self) -> u32 {
        match self {
            Self::Data => WANT_DATA,
            Self::Room => WANT_ROOM,
        }
    }
}

/// A waiter's page in a board: an epoll set, or a blocked thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterIndex(u8);

impl WaiterIndex {
    /// None beyond the board.
    pub const fn new(number: u8) -> Option<Self> {
        if number < WAITERS_MAX { Some(Self(number)) } else { None }
    }

    /// The number as it stands in control messages.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The first word of the page in the board.
    pub const fn page(self) -> u32 {
        self.0 as u32 * WAITER_WORDS
    }
}

/// The wish of an end to be notified, as [`WANT_DATA`] or [`WANT_ROOM`] holds it. Without a wish the word is 0. Each word names one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The waiter checks the stream before it sleeps. It needs a doorbell while it sleeps, and no ready bit.
    Hot(WaiterIndex),
    /// The waiter does not check the stream. It needs its ready bit, once.
    Parked {
        /// The waiter.
        waiter: WaiterIndex,
        /// The stream's bit in the page of the waiter.
        ready_bit: ReadyBit,
    },
}

const WANT_PARKED: u32 = 1;
const WANT_HOT: u32 = 4;
const WANT_WAITER_SHIFT: u32 = 4;
const WANT_READY_BIT_SHIFT: u32 = 16;

impl Want {
    /// Reads the word. None without a wish, or with a waiter beyond the board. Unused bits are ignored.
    #[inline]
    pub const fn from_word(word: u32) -> Option<Self> {
        let Some(waiter) = WaiterIndex::new((word >> WANT_WAITER_SHIFT) as u8) else { return None };
        if word & WANT_HOT != 0 {
            return Some(Self::Hot(waiter));
        }
        let number = (word >> WANT_READY_BIT_SHIFT) % READY_MAP_BITS;
        match ReadyBit::new(number as u16) {
            Some(ready_bit) if word & WANT_PARKED != 0 => Some(Self::Parked { waiter, ready_bit }),
            _ => None,
        }
    }

    /// The word.
    pub const fn word(self) -> u32 {
        match self {
            Self::Hot(waiter) => WANT_HOT | (waiter.0 as u32) << WANT_WAITER_SHIFT,
            Self::Parked { waiter, ready_bit } => {
                let ready_bit = (ready_bit.number() as u32) << WANT_READY_BIT_SHIFT;
                WANT_PARKED | (waiter.0 as u32) << WANT_WAITER_SHIFT | ready_bit
            }
        }
    }

    /// The waiter.
    pub const fn waiter(self) -> WaiterIndex {
        match self {
            Self::Hot(waiter) | Self::Parked { waiter, .. } => waiter,
        }
    }
}

const _: () = assert!(READY_MAP_BITS == 1 << 12); // The ready bit has 12 bits in a `Want`.
const _: () = assert!(2 * 4 * BLOCK_WORDS <= PAGE_BYTES);
const _: () = {
    let mut line = 0;
    while line < LINES.len() {
        assert!(LINES[line] == line as u32 * DESTRUCTIVE_INTERFERENCE_BYTES / 4);
        line += 1;
    }
};
const _: () = assert!(WANT_ROOM / 32 == WANT_DATA / 32); // The line that both ends write.

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_a_stream_do_not_overlap() {
        let mut end = u64::from(PAGE_BYTES);
        for path in [StreamPath::Small, StreamPath::Large] {
            for sender in StreamEndIndex::ALL {
                assert_eq!(path.ring_start(sender), Some(end));
                end += u64::from(path.bytes());
            }
            assert!(path.bytes().is_power_of_two());
        }
        assert_eq!((end, STREAM_SIZE.0), (STREAM_SIZE.0, (2 << 20) + (132 << 10)));
        assert_eq!((StreamPath::Tcp.bytes(), StreamPath::Tcp.ring_start(StreamEndIndex::Connector)), (0, None));
    }

    #[test]
    fn numbers_round_trip() {
        for end in StreamEndIndex::ALL {
            assert_eq!((StreamEndIndex::new(end.number()), end.peer().peer()), (Some(end), end));
        }
        assert_eq!((StreamEndIndex::new(2), StreamEndIndex::Acceptor.block()), (None, 256));
        for path in [StreamPath::Tcp, StreamPath::Small, StreamPath::Large] {
            assert_eq!(StreamPath::from_word(path.word()), Some(path));
        }
        assert_eq!((StreamPath::from_word(3), StreamPath::from_word(u32::MAX)), (None, None));
    }

    #[test]
    fn want_round_trips() {
        let waiter = WaiterIndex::new(63).unwrap();
        let want = Want::Parked { waiter, ready_bit: ReadyBit::new(4095).unwrap() };
        assert_eq!((want.word(), Want::from_word(want.word())), (1 | 63 << 4 | 4095 << 16, Some(want)));
        assert_eq!(Want::Hot(waiter).word(), 4 | 63 << 4);
        assert_eq!(Want::from_word(Want::Hot(waiter).word() | 3), Some(Want::Hot(waiter)));
        assert_eq!((want.waiter(), Want::Hot(waiter).waiter()), (waiter, waiter));
    }

    #[test]
    fn want_of_no_waiter_is_none() {
        assert_eq!(WaiterIndex::new(64), None);
        assert_eq!((Want::from_word(0), Want::from_word(3 << 4)), (None, None));
        assert_eq!((Want::from_word(4 | 64 << 4), Want::from_word(u32::MAX)), (None, None));
        let unused = 1 << 1 | 1 << 3 | 0xf << 12 | 0xf << 28;
        assert_eq!(Want::from_word(unused), None);
        assert_eq!(Want::from_word(unused | 1).map(Want::waiter), WaiterIndex::new(0));
    }
}
