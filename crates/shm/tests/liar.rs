//! Whatever a peer writes: no operation panics, loops without end, hands out more than there is, or asks twice.
//!
//! Memory is a [`Liar`] behind a [`Recorder`] that counts what is loaded. A liar is believed for as long as it makes sense, so its
//! scripts hold stamps, heads and lengths that a real peer might have written.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_layout::arena::{self, GENERATION};
use isthmus_layout::channel::{
    BODY_BYTES_MAX, ChannelGeometry, Direction, DirectionLayout, FIRST_BODY_WORDS, HEAD, NEXT_BODY_WORDS, RecordHeader,
    SLAB_HEAD, SlabSize, empty_stamp, full_stamp,
};
use isthmus_layout::limits::{READY_MAP_BITS, RING_CELLS, SLAB_BYTES_MIN};
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::record::{BODY_WORDS_MAX, Fragment};
use isthmus_shm::liar::Liar;
use isthmus_shm::regcache::arena::ArenaHeader;
use isthmus_shm::{
    Consumer, PeerFault, PeerReadyBit, Producer, PushError, ReadyMap, RecordBuffer, SlabConsumer, SlabProducer, Words,
};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

const SLAB: u32 = SLAB_BYTES_MIN;

fn geometry() -> ChannelGeometry {
    ChannelGeometry { slab: SlabSize::new(SLAB).unwrap() }
}

fn at() -> DirectionLayout {
    geometry().direction(Direction::One)
}

/// Counts the loads of each word since [`Recorder::forget`].
struct Recorder<M> {
    memory: M,
    loads: RefCell<BTreeMap<u32, u32>>,
}

impl<M> Recorder<M> {
    fn new(memory: M) -> Self {
        Self { memory, loads: RefCell::default() }
    }

    fn forget(&self) {
        self.loads.borrow_mut().clear();
    }

    fn loads_of(&self, at: u32) -> u32 {
        self.loads.borrow().get(&at).copied().unwrap_or(0)
    }

    /// Words loaded since; none of them twice.
    fn words_loaded_once(&self) -> usize {
        let loads = self.loads.borrow();
        for (word, times) in loads.iter() {
            assert_eq!(*times, 1, "word {word} was fetched twice");
        }
        loads.len()
    }
}

impl<M: Words> Words for Recorder<M> {
    fn load(&self, at: u32, order: Ordering) -> u32 {
        *self.loads.borrow_mut().entry(at).or_default() += 1;
        self.memory.load(at, order)
    }
    fn store(&self, at: u32, value: u32, order: Ordering) {
        self.memory.store(at, value, order);
    }
    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32 {
        self.memory.swap(at, value, order)
    }
    fn or(&self, at: u32, bits: u32, order: Ordering) {
        self.memory.or(at, bits, order);
    }
    fn compare_exchange(&self, at: u32, from: u32, to: u32, order: Ordering) -> bool {
        self.memory.compare_exchange(at, from, to, order)
    }
    fn fence(&self) {
        self.memory.fence();
    }
}

fn cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if cfg!(miri) { 1 } else { default.cases };
    ProptestConfig { cases, failure_persistence: None, ..default }
}

/// How much of `steps` a test can afford.
const fn affordable(steps: usize) -> usize {
    if cfg!(miri) { steps / 20 } else { steps }
}

fn liar(script: Vec<u32>, seed: u64) -> Recorder<Liar> {
    Recorder::new(Liar::new(script, seed))
}

/// A word that makes sense somewhere.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0..4_u32,
        2 => 0..3 * RING_CELLS,
        2 => (any::<u8>(), 0..BODY_BYTES_MAX as u16 + 8)
            .prop_map(|(kind, body_bytes)| RecordHeader { kind, body_bytes }.emit()),
        2 => 0..2 * SLAB,
        1 => (0..2 * SLAB).prop_map(u32::wrapping_neg),
        1 => any::<u32>(),
    ]
}

fn scripts() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(word(), 0..affordable(400))
}

/// Set in every kind, so that no head is the stamp before it: a liar does not say the same twice running.
const KIND: u8 = 0x80;

/// The memory that a consumer would read if records of these lengths were in the ring, except for the words at `lies`.
fn believable(lengths: &[u16], lies: &[(u16, u32)]) -> Vec<u32> {
    let mut script = Vec::new();
    let mut position = 0;
    for (number, body_bytes) in lengths.iter().enumerate() {
        let head = RecordHeader { kind: KIND | number as u8, body_bytes: *body_bytes };
        script.extend([full_stamp(position), head.emit()]);
        // Cells are read whole.
        let words = FIRST_BODY_WORDS + (head.cells() - 1) * NEXT_BODY_WORDS;
        script.extend((0..words).map(|word| 1_000_000 + word));
        position += head.cells();
    }
    script.push(empty_stamp(position));
    for (place, lie) in lies {
        let place = usize::from(*place) % script.len();
        script[place] = *lie;
    }
    script
}

fn pop(memory: &Recorder<Liar>, consumer: &mut Consumer<&Recorder<Liar>>) -> Result<bool, PeerFault> {
    let mut record = RecordBuffer::default();
    memory.forget();
    let came = consumer.pop(&mut record);
    assert!(memory.words_loaded_once() <= 2 + BODY_WORDS_MAX);
    assert!(u32::from(record.bytes()) <= BODY_BYTES_MAX);
    assert_eq!(record.words().len(), usize::from(record.bytes()).div_ceil(4));
    came
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn pop_reads_each_word_once(
        lengths in prop::collection::vec(0..=BODY_BYTES_MAX as u16, 0..affordable(200)),
        lies in prop::collection::vec((any::<u16>(), word()), 0..3),
        seed: u64,
    ) {
        let memory = liar(believable(&lengths, &lies), seed);
        let mut consumer = Consumer::new(&memory, at());
        let mut popped = 0;
        while popped <= lengths.len() && pop(&memory, &mut consumer) == Ok(true) {
            popped += 1;
        }
        prop_assert!(!lies.is_empty() || popped >= lengths.len(), "{popped} of {} believed", lengths.len());
    }

    #[test]
    fn arena_entry_is_read_once_and_lies_behind_the_header(
        words in [any::<u32>(), any::<u32>(), any::<u32>()],
        pages in [0..80_u32, 0..80_u32],
        high in [0..20_u32, 0..20_u32],
        lies in prop::collection::vec((any::<u16>(), word()), 0..2),
        index in 0..arena::ENTRIES,
        seed: u64,
    ) {
        let [key, key_high, head] = words;
        let generation = seed as u32 | 1;
        let body = [pages[0] << 12, high[0]];
        let start = [pages[1] << 12, high[1]];
        let mut script = vec![generation, key, key_high, 3, head, 0, body[0], body[1], start[0], start[1], generation];
        for (place, lie) in lies {
            let place = usize::from(place) % script.len();
            script[place] = lie;
        }
        let memory = liar(script, seed);
        let found = ArenaHeader::new(&memory).read_entry(index);
        let generations = memory.loads_of(arena::entry(index) + GENERATION);
        prop_assert!(generations <= 2, "it is looked at again on purpose");
        for word in GENERATION + 1..arena::ENTRY_WORDS {
            prop_assert!(memory.loads_of(arena::entry(index) + word) <= 1);
        }
        if let Some((generation, entry)) = found {
            prop_assert!(generation % 2 == 1 && generations == 2);
            prop_assert!(entry.start >= arena::HEADER.0 && entry.start % 4096 == 0);
            prop_assert!(entry.body % 4096 == 0 && (1..=64 << 30).contains(&entry.body));
        }
    }

    #[test]
    fn a_consumer_survives_every_answer(script in scripts(), steps in prop::collection::vec(0..7_u8, 1..affordable(200)), seed: u64) {
        let memory = liar(script, seed);
        let mut consumer = Consumer::new(&memory, at());
        for step in steps {
            memory.forget();
            match step {
                0..3 => drop(pop(&memory, &mut consumer)),
                3 => drop(consumer.has_record()),
                4 => drop(consumer.park()),
                5 => drop(consumer.publish()),
                _ => drop((consumer.counters(), consumer.needs_publish(), consumer.unpark())),
            }
            memory.words_loaded_once();
        }
    }

    #[test]
    fn a_producer_survives_every_answer(
        script in scripts(),
        steps in prop::collection::vec((0..8_u8, 0..=14_usize, 0..=108_usize), 1..affordable(400)),
        seed: u64,
    ) {
        let memory = liar(script, seed);
        let mut producer = Producer::new(&memory, at());
        for (step, words, bytes) in steps {
            memory.forget();
            match step {
                0..4 => match producer.push(1, &vec![7; words], &vec![9; bytes]) {
                    Ok(()) | Err(PushError::Full | PushError::Fault(PeerFault::HeadOverrun { .. })) => {}
                    Err(error) => prop_assert!(false, "{error}"),
                },
                4 => drop(producer.has_room()),
                5 => drop(producer.wake()),
                6 => producer.block(),
                _ => drop((producer.is_drained(), producer.count(9))),
            }
            prop_assert!(memory.loads_of(at().consumer + HEAD) <= 1);
            memory.words_loaded_once();
        }
    }

    #[test]
    fn a_slab_producer_stays_inside_whatever_the_head(
        script in scripts(),
        steps in prop::collection::vec((0..4_u8, word(), word()), 1..affordable(400)),
        seed: u64,
    ) {
        let memory = liar(script, seed);
        let mut slab = SlabProducer::new(&memory, at(), geometry().slab);
        for (step, min_len, len) in steps {
            memory.forget();
            match step {
                0..2 => if let Ok(Some(fragment)) = slab.reserve(min_len, len) {
                    prop_assert!(fragment.offset + fragment.len <= SLAB && fragment.len <= SLAB / 4 && fragment.len <= len);
                    prop_assert!(slab.region_offset(fragment) + u64::from(fragment.len) <= geometry().size().0);
                },
                2 => {
                    let _ = slab.has_room(min_len);
                    memory.words_loaded_once();
                }
                _ => if let Ok(Some((start, len))) = slab.idle_pages(min_len % SLAB) {
                    prop_assert!(start == at().slab && len <= u64::from(SLAB));
                },
            }
            // Two looks at most, each of which is checked and stands for itself.
            prop_assert!(memory.loads_of(at().consumer + SLAB_HEAD) <= 2);
        }
    }

    #[test]
    fn a_slab_consumer_hands_out_nothing_outside(fragments in prop::collection::vec((word(), word()), 1..affordable(200)), seed: u64) {
        let memory = liar(Vec::new(), seed);
        let mut slab = SlabConsumer::new(&memory, at(), geometry().slab);
        for (offset, len) in fragments {
            let fragment = Fragment { offset, len };
            if let Ok(span) = slab.span(fragment) {
                prop_assert!(span.start() >= at().slab);
                prop_assert!(span.start() + span.len() <= at().slab + u64::from(SLAB));
                prop_assert_eq!(span.len(), u64::from(len));
            }
            if slab.release(fragment) || slab.has_unpublished() {
                slab.publish();
            }
        }
        prop_assert_eq!(memory.words_loaded_once(), 0);
    }

    #[test]
    fn ready_map_drains_each_bit_at_most_once(script in scripts(), seed: u64) {
        let memory = liar(script, seed);
        let ready_map = ReadyMap::new(&memory);
        let last = ReadyBit::new(READY_MAP_BITS as u16 - 1).unwrap();
        for _ in 0..affordable(20) {
            let mut taken = Vec::new();
            ready_map.drain(|bit| taken.push(bit));
            prop_assert!(taken.len() <= READY_MAP_BITS as usize && taken.is_sorted());
            taken.dedup();
            prop_assert!(taken.len() <= READY_MAP_BITS as usize);
            let _ = (ready_map.is_any_set(), ready_map.begin_sleep(), PeerReadyBit::new(&memory, last).set());
            ready_map.end_sleep();
        }
    }
}

#[test]
fn consumer_accepts_a_liar_with_a_valid_script() {
    let lengths = [0, 4, 4 * FIRST_BODY_WORDS as u16, 4 * FIRST_BODY_WORDS as u16 + 1, BODY_BYTES_MAX as u16];
    let memory = liar(believable(&lengths, &[]), 1);
    let mut consumer = Consumer::new(&memory, at());
    let mut record = RecordBuffer::default();
    for (number, bytes) in lengths.into_iter().enumerate() {
        assert_eq!(consumer.pop(&mut record), Ok(true));
        assert_eq!((record.kind(), record.bytes()), (KIND | number as u8, bytes));
        assert!(record.words().iter().zip(1_000_000..).all(|(word, expected)| *word == expected));
    }
    assert_eq!(consumer.pop(&mut record), Ok(false));
    const { assert!(RING_CELLS > 11) }; // The records above lie in one lap.
}
