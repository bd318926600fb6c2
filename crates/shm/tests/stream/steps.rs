//! The life of a stream, as bytes. The peer overwrites any word at any time. The fuzz target and the tests run the same lives.
//!
//! [`Guarded`] is the memory: it fails on an access that a view must not make, whatever the words say.

use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::{
    BLOCK_WORDS, BOARD_SIZE, Interest, LARGE_RING_BYTES, STREAM_SIZE, StreamEndIndex, StreamPath, WAITER_WORDS,
    WAITERS_MAX, WaiterIndex, Want,
};
use isthmus_shm::{Board, Mapping, Payload, SharedMapping, StreamMemory, Words};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering::{self, Relaxed};

/// The maximum number of operations on words that one call makes.
const OPERATIONS_MAX: u32 = 64;

/// Memory of a stream, as one end may use it.
pub(crate) struct Guarded {
    mapping: SharedMapping,
    end: StreamEndIndex,
    operations: Cell<u32>,
}

impl Guarded {
    fn new(mapping: SharedMapping, end: StreamEndIndex) -> Self {
        Self { mapping, end, operations: Cell::new(0) }
    }

    /// Counts an operation, and checks that the word belongs to a block.
    fn any(&self, at: u32) -> u32 {
        self.operations.set(self.operations.get() + 1);
        assert!(self.operations.get() <= OPERATIONS_MAX, "a call that does not end");
        assert!(at < 2 * BLOCK_WORDS, "word {at} is outside of the blocks");
        at
    }

    /// Checks a word that is written: this end writes its own block, and the wishes of the other.
    fn own(&self, at: u32) -> u32 {
        let first = self.end.block();
        let is_own = (first..first + BLOCK_WORDS).contains(&at);
        let is_wish = Interest::ALL.into_iter().any(|of| at == self.end.peer().block() + of.want_word());
        assert!(is_own || is_wish, "word {at} belongs to the peer");
        self.any(at)
    }

    /// Checks that bytes lie in one ring of a sender.
    fn in_ring(at: u64, len: usize, sender: StreamEndIndex) -> u64 {
        let ring = |path: StreamPath| -> Option<Range<u64>> {
            let start = path.ring_start(sender)?;
            Some(start..start + u64::from(path.bytes()))
        };
        let rings = [StreamPath::Small, StreamPath::Large].into_iter().filter_map(ring);
        let end = at + len as u64;
        assert!(rings.into_iter().any(|ring| ring.start <= at && end <= ring.end), "{at}..{end} is in no ring");
        at
    }
}

impl Words for Guarded {
    fn load(&self, at: u32, order: Ordering) -> u32 {
        self.mapping.load(self.any(at), order)
    }
    fn store(&self, at: u32, value: u32, order: Ordering) {
        self.mapping.store(self.own(at), value, order);
    }
    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32 {
        self.mapping.swap(self.own(at), value, order)
    }
    fn or(&self, at: u32, bits: u32, order: Ordering) {
        self.mapping.or(self.own(at), bits, order);
    }
    fn compare_exchange(&self, at: u32, from: u32, to: u32, order: Ordering) -> bool {
        self.mapping.compare_exchange(self.own(at), from, to, order)
    }
    fn fence(&self) {}
}

impl Payload for Guarded {
    fn copy_in(&self, at: u64, from: &[u8]) {
        self.mapping.copy_in(Self::in_ring(at, from.len(), self.end), from);
    }
    fn copy_out(&self, at: u64, into: &mut [u8]) {
        self.mapping.copy_out(Self::in_ring(at, into.len(), self.end.peer()), into);
    }
}

/// A board that is a ready map for each waiter and nothing else.
struct GuardedBoard(SharedMapping);

impl GuardedBoard {
    fn inside(at: u32) -> u32 {
        assert!(at < u32::from(WAITERS_MAX) * WAITER_WORDS, "word {at} is outside of the board");
        at
    }
}

impl Words for GuardedBoard {
    fn load(&self, at: u32, order: Ordering) -> u32 {
        self.0.load(Self::inside(at), order)
    }
    fn store(&self, at: u32, value: u32, order: Ordering) {
        self.0.store(Self::inside(at), value, order);
    }
    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32 {
        self.0.swap(Self::inside(at), value, order)
    }
    fn or(&self, at: u32, bits: u32, order: Ordering) {
        self.0.or(Self::inside(at), bits, order);
    }
    fn compare_exchange(&self, at: u32, from: u32, to: u32, order: Ordering) -> bool {
        self.0.compare_exchange(Self::inside(at), from, to, order)
    }
    fn fence(&self) {}
}

/// The memories of a life. They are kept for the next life, because 2 MiB of zeroes for each would take most of the time.
struct Stage {
    stream: SharedMapping,
    board: SharedMapping,
    scratch: Vec<u8>,
}

thread_local! {
    static STAGE: std::cell::RefCell<Stage> = std::cell::RefCell::new(Stage {
        stream: SharedMapping::new(Mapping::private(STREAM_SIZE)),
        board: SharedMapping::new(Mapping::private(BOARD_SIZE)),
        scratch: vec![0; LARGE_RING_BYTES as usize],
    });
}

/// Lives through `life`: steps of ten bytes, which say the operation, the end, a word and its value, or a position.
pub(crate) fn live(life: &[u8]) {
    STAGE.with_borrow_mut(|stage| {
        for word in 0..2 * BLOCK_WORDS {
            stage.stream.store(word, 0, Relaxed);
        }
        for step in life.as_chunks::<10>().0 {
            stage.step(step);
        }
    });
}

impl Stage {
    fn step(&mut self, &[operation, end, a, b, c, d, e, f, g, h]: &[u8; 10]) {
        let end = StreamEndIndex::ALL[usize::from(end % 2)];
        let memory = StreamMemory::new(Guarded::new(self.stream.clone(), end), end);
        let value = u32::from_le_bytes([a, b, c, d]);
        let position = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let of = Interest::ALL[usize::from(e % 2)];
        match operation % 16 {
            0 => self.stream.store(u32::from(u16::from_le_bytes([e, f])) % (2 * BLOCK_WORDS), value, Relaxed),
            1 => self.copy(&memory, position, usize::from(h) << (g % 13)),
            2 => memory.publish_tail(position),
            3 => memory.publish_head(position),
            4 => drop((memory.peer_progress(), memory.peer_switch(value), memory.peer_reads_tcp())),
            5 => drop((memory.peer_head(), memory.peer_taken(), memory.peer_state(), memory.want_raw(of))),
            6 => {
                memory.announce(value, position, StreamPath::from_word(u32::from(h % 3)).unwrap_or_default(), position)
            }
            7 => memory.take(value),
            8 => memory.add_state(value),
            9 => clear_state(&memory, value),
            10 => set_want(&memory, of, value),
            11 => memory.clear_want(of),
            12..15 => self.notify(&memory, of),
            _ => drop((memory.report(), memory.state())),
        }
    }

    /// Writes bytes, and reads them at the other end.
    fn copy(&mut self, memory: &StreamMemory<Guarded>, at: u64, len: usize) {
        for path in [StreamPath::Small, StreamPath::Large] {
            let len = len.min(path.bytes() as usize);
            self.scratch[..len].fill(at as u8 ^ len as u8);
            memory.write(path, at, &self.scratch[..len]);
            self.scratch[..len].fill(0);
            let peer = memory.end().peer();
            StreamMemory::new(Guarded::new(self.stream.clone(), peer), peer).read(path, at, &mut self.scratch[..len]);
            assert!(self.scratch[..len].iter().all(|&byte| byte == at as u8 ^ len as u8));
        }
    }

    /// Notifies the peer as its wish for data or for room says. The wish names a waiter of the board, and is granted once. The other wish
    /// stays.
    fn notify(&self, memory: &StreamMemory<Guarded>, of: Interest) {
        let words = || Interest::ALL.map(|of| self.stream.load(memory.end().peer().block() + of.want_word(), Relaxed));
        let before = words();
        let wanted = memory.peer_wants(of);
        let after = words();
        assert_eq!(wanted, Want::from_word(before[of as usize]));
        if let Some(want) = wanted {
            assert!(want.waiter().number() < WAITERS_MAX);
            Board::new(GuardedBoard(self.board.clone())).notify(want);
        }
        match wanted {
            Some(Want::Parked { .. }) => {
                let mut granted = before;
                granted[of as usize] = 0;
                assert_eq!(after, granted, "one wish is granted, once");
            }
            Some(Want::Hot(_)) | None => assert_eq!(after, before),
        }
    }
}

fn clear_state(memory: &StreamMemory<Guarded>, bits: u32) {
    memory.clear_state(bits);
    assert_eq!(memory.state() & bits, 0);
}

fn set_want(memory: &StreamMemory<Guarded>, of: Interest, word: u32) {
    let waiter = WaiterIndex::new((word >> 4) as u8 % WAITERS_MAX);
    let ready_bit = ReadyBit::new((word >> 16) as u16 % 4096);
    let (Some(waiter), Some(ready_bit)) = (waiter, ready_bit) else { unreachable!("both are in range") };
    let want = if word & 4 == 0 { Want::Parked { waiter, ready_bit } } else { Want::Hot(waiter) };
    memory.set_want(of, want);
    assert_eq!(Want::from_word(memory.want_raw(of)), Some(want));
}
