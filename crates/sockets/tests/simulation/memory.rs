//! The memory of a stream: words of both ends, and rings. Each access is one step that both ends see at once.

use isthmus_layout::sockets::StreamPath;

use crate::kernel::Run;

/// The words that one end writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    pub(crate) tail: u32,
    pub(crate) switches: u32,
    pub(crate) switch_at: [u32; 2],
    pub(crate) switch_path: [u32; 2],
    pub(crate) head: u32,
    pub(crate) taken: u32,
    pub(crate) reads_tcp: bool,
    pub(crate) attached: bool,
    pub(crate) half_closed: bool,
    pub(crate) closed: bool,
    pub(crate) tcp_please: bool,
}

/// The period of the bytes. It is prime, so bytes that lie a ring's size apart differ.
const PERIOD: usize = 65_521;

/// The small and the large ring of one direction. They are not cleared between simulations.
#[derive(Debug)]
pub(crate) struct Rings {
    small: Vec<u8>,
    large: Vec<u8>,
    pattern: Vec<u8>,
}

impl Rings {
    pub(crate) fn new() -> Self {
        let ring = |path: StreamPath| vec![0; path.bytes() as usize];
        let byte = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[6];
        Self {
            small: ring(StreamPath::Small),
            large: ring(StreamPath::Large),
            pattern: (0..PERIOD).map(byte).collect(),
        }
    }

    /// Writes the bytes of a run.
    pub(crate) fn write(&mut self, path: StreamPath, run: Run) {
        for (at, from, len) in pieces(path, run) {
            let ring = if path == StreamPath::Small { &mut self.small } else { &mut self.large };
            ring[at..at + len].copy_from_slice(&self.pattern[from..from + len]);
        }
    }

    /// Checks that the ring has the bytes of a run.
    pub(crate) fn check(&self, path: StreamPath, run: Run) {
        for (at, from, len) in pieces(path, run) {
            let ring = if path == StreamPath::Small { &self.small } else { &self.large };
            assert!(ring[at..at + len] == self.pattern[from..from + len], "{run:?} of {path:?} has other bytes");
        }
    }
}

/// Splits a run where the ring or the pattern wraps: place in the ring, place in the pattern, length.
fn pieces(path: StreamPath, run: Run) -> impl Iterator<Item = (usize, usize, usize)> {
    let (size, mut at, end) = (path.bytes() as usize, run.at, run.at + run.len);
    std::iter::from_fn(move || {
        let (place, from) = (at as usize % size, at as usize % PERIOD);
        let len = ((end - at) as usize).min(size - place).min(PERIOD - from);
        at += len as u64;
        (len > 0).then_some((place, from, len))
    })
}
