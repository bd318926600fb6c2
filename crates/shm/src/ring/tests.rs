//! The ring against a queue, with stores that arrive late and positions that wrap; and against forged memory.
#![cfg(not(loom))]

use super::*;
use crate::delayed_stores::{DelayedStores, affordable, cases, positions};
use crate::{Mapping, SharedMapping};
use isthmus_layout::channel::{BODY_BYTES_MAX, ChannelGeometry, Direction, RecordTooLong, SlabSize};
use isthmus_layout::limits::SLAB_BYTES_MIN;
use proptest::prelude::*;
use std::collections::VecDeque;

fn geometry() -> ChannelGeometry {
    ChannelGeometry { slab: SlabSize::new(SLAB_BYTES_MIN).unwrap() }
}

/// Both sides of an empty ring that has come as far as `position`.
pub(crate) fn ring_at<M: Words + Clone>(
    position: u32,
    [sending, receiving]: [M; 2],
    at: DirectionLayout,
) -> (Producer<M>, Consumer<M>) {
    let mut producer = Producer::new(sending.clone(), at);
    let mut consumer = Consumer::new(receiving, at);
    for ahead in 0..RING_CELLS {
        let position = position.wrapping_add(ahead);
        sending.store(producer.cell(position) + STAMP, empty_stamp(position), Relaxed);
    }
    sending.store(at.consumer + HEAD, position, Relaxed);
    sending.fence();
    (producer.tail, producer.head) = (position, position);
    (consumer.head, consumer.published, consumer.notified_head) = (position, position, position);
    (producer, consumer)
}

fn ring() -> (SharedMapping, Producer<SharedMapping>, Consumer<SharedMapping>) {
    let memory = SharedMapping::new(Mapping::private(geometry().size()));
    let at = geometry().direction(Direction::Zero);
    let (producer, consumer) = ring_at(0, [memory.clone(), memory.clone()], at);
    (memory, producer, consumer)
}

fn bytes(record: &RecordBuffer) -> Vec<u8> {
    let bytes = record.words().iter().flat_map(|word| word.to_le_bytes());
    bytes.take(usize::from(record.bytes())).collect()
}

#[test]
fn a_record_of_every_length_crosses_and_takes_no_more_cells_than_it_says() {
    let (_, mut producer, mut consumer) = ring();
    let mut record = RecordBuffer::default();
    for len in (0..=BODY_BYTES_MAX as usize).step_by(if cfg!(miri) { 7 } else { 1 }) {
        let message: Vec<u8> = (0..len).map(|at| (at ^ len) as u8).collect();
        let words = [0, 1, FIRST_CELL_WORDS, FIRST_CELL_WORDS + 1, FIRST_CELL_WORDS + NEXT_CELL_WORDS, BODY_WORDS_MAX];
        for words in words.into_iter().filter(|words| 4 * words <= len) {
            let own: Vec<u32> =
                message[..4 * words].as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
            producer.push(9, &own, &message[4 * words..]).unwrap();
            assert!(consumer.pop(&mut record).unwrap());
            assert_eq!((record.kind(), &bytes(&record)), (9, &message));
            assert_eq!(consumer.head, producer.tail);
            assert!(!consumer.pop(&mut record).unwrap());
        }
    }
}

#[test]
fn peek_reports_records_to_take_and_a_peer_to_notify() {
    let (_, mut producer, mut consumer) = ring();
    let mut record = RecordBuffer::default();
    for lap in 0..3 * RING_CELLS {
        assert!(consumer.is_idle(), "{lap}");
        producer.push(1, &[lap], &[]).unwrap();
        assert!(!consumer.is_idle() && consumer.pop(&mut record).unwrap());
        assert!(!consumer.is_idle(), "the producer does not know of it");
        assert!(!consumer.pop(&mut record).unwrap());
    }
}

#[test]
fn push_says_full_before_it_writes_what_was_not_taken() {
    let (_, mut producer, mut consumer) = ring();
    let mut record = RecordBuffer::default();
    for number in 0..USABLE_CELLS {
        producer.push(1, &[number], &[]).unwrap();
    }
    assert_eq!(producer.push(1, &[], &[]), Err(PushError::Full));
    assert_eq!(producer.has_room(), Ok(false));
    for number in 0..USABLE_CELLS {
        assert!(consumer.pop(&mut record).unwrap());
        assert_eq!(record.words(), [number]);
    }
    assert!(!producer.is_drained());
    assert!(!consumer.publish());
    assert!(producer.is_drained());
    assert_eq!(producer.has_room(), Ok(true));
}

#[test]
fn the_last_record_finds_room_where_no_other_does() {
    let (_, mut producer, mut consumer) = ring();
    let mut record = RecordBuffer::default();
    for number in 0..USABLE_CELLS {
        producer.push(1, &[number], &[]).unwrap();
    }
    assert_eq!(producer.push(1, &[], &[]), Err(PushError::Full));
    producer.push_final(2, &[7; FIRST_CELL_WORDS]).unwrap();
    assert_eq!(producer.push_final(2, &[]), Err(PushError::Full));
    for _ in 0..USABLE_CELLS {
        assert!(consumer.pop(&mut record).unwrap() && record.kind() == 1);
    }
    assert!(consumer.pop(&mut record).unwrap());
    assert_eq!((record.kind(), record.words()), (2, &[7; FIRST_CELL_WORDS][..]));
    assert!(!consumer.pop(&mut record).unwrap());
}

#[test]
fn what_was_counted_can_be_read_by_the_other_side() {
    let (_, mut producer, consumer) = ring();
    producer.count(u64::from(u32::MAX));
    producer.count(7);
    producer.count_doorbell();
    let counters = RingCounters { messages: 2, bytes: u64::from(u32::MAX) + 7, doorbells: 1 };
    assert_eq!((producer.counters(), consumer.counters()), (counters, counters));
}

#[test]
fn look_refuses_a_stamp_of_another_lap() {
    for stamp in [2, 3, u32::MAX] {
        let (memory, producer, mut consumer) = ring();
        memory.store(producer.cell(0) + STAMP, stamp, Relaxed);
        let fault = PeerFault::Stamp { position: 0, found: stamp };
        assert_eq!(consumer.has_record(), Err(fault));
        assert_eq!(consumer.pop(&mut RecordBuffer::default()), Err(fault));
        assert_eq!(consumer.park(), Err(fault));
        assert_eq!(memory.load(consumer.at.consumer + PARKED, Relaxed), 0, "a ring with a fault is not parked");
    }
}

#[test]
fn pop_refuses_a_record_longer_than_any() {
    let (memory, mut producer, mut consumer) = ring();
    producer.push(1, &[], &[]).unwrap();
    for body_bytes in [BODY_BYTES_MAX as u16 + 1, u16::MAX] {
        memory.store(producer.cell(0) + RECORD_HEADER, RecordHeader { kind: 1, body_bytes }.emit(), Relaxed);
        let fault = PeerFault::RecordTooLong(RecordTooLong { body_bytes });
        assert_eq!(consumer.pop(&mut RecordBuffer::default()), Err(fault));
    }
}

#[test]
fn room_refuses_a_head_that_cannot_be_and_does_not_keep_it() {
    let (memory, mut producer, consumer) = ring();
    for _ in 0..USABLE_CELLS {
        producer.push(1, &[], &[]).unwrap();
    }
    let tail = USABLE_CELLS;
    for head in [tail + 1, tail + RING_CELLS, u32::MAX - 1, u32::MAX - 3, 1 << 31] {
        memory.store(consumer.at.consumer + HEAD, head, Relaxed);
        let fault = PeerFault::HeadOverrun { head, tail };
        producer.block();
        assert!(!producer.is_drained());
        assert_eq!(producer.has_room(), Err(fault));
        assert_eq!(producer.push(1, &[], &[0; 100]), Err(PushError::Fault(fault)));
    }
    memory.store(consumer.at.consumer + HEAD, RECORD_CELLS_MAX, Relaxed);
    assert_eq!(producer.has_room(), Ok(true));
}

#[test]
fn a_parked_consumer_is_told_once_and_a_blocked_producer_too() {
    let (_, mut producer, mut consumer) = ring();
    assert_eq!(consumer.park(), Ok(true));
    producer.push(1, &[], &[]).unwrap();
    assert_eq!((producer.wake(), producer.wake()), (true, false));
    assert_eq!(consumer.park(), Ok(false), "parked with a record waiting");
    assert!(!producer.wake());
    assert!(consumer.pop(&mut RecordBuffer::default()).unwrap());
    assert_eq!(consumer.park(), Ok(true));
    consumer.unpark();
    assert!(!producer.wake());
    producer.block();
    assert_eq!((consumer.publish(), consumer.publish()), (true, false));
}

#[derive(Clone, Debug)]
enum Step {
    Push {
        words: usize,
        bytes: usize,
    },
    Pop,
    Publish,
    Park,
    Wake,
    Block,
    /// These numbers of the producer's stores, and of the consumer's, arrive.
    Arrive(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..=2 * FIRST_CELL_WORDS + NEXT_CELL_WORDS, 0..=160_usize).prop_map(|(words, bytes)| Step::Push { words, bytes }),
        5 => Just(Step::Pop),
        1 => Just(Step::Publish),
        1 => Just(Step::Park),
        1 => Just(Step::Wake),
        1 => Just(Step::Block),
        2 => (0..50_usize, 0..3_usize).prop_map(|(ours, theirs)| Step::Arrive(ours, theirs)),
    ];
    prop::collection::vec(step, 1..affordable(600))
}

/// A ring, and the queue that it must be like.
struct Model {
    memory: [DelayedStores; 2],
    producer: Producer<DelayedStores>,
    consumer: Consumer<DelayedStores>,
    queue: VecDeque<Vec<u8>>,
    /// The producer waits for room, and was not notified that there is some.
    blocked: bool,
    /// The consumer waits for records, and was not notified that there is one.
    parked: bool,
}

impl Model {
    fn new(position: u32) -> Self {
        let memory = DelayedStores::pair(geometry().size());
        let (producer, consumer) = ring_at(position, memory.clone(), geometry().direction(Direction::One));
        Self { memory, producer, consumer, queue: VecDeque::new(), blocked: false, parked: false }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Push { .. } | Step::Wake | Step::Block if self.blocked => {}
            Step::Pop | Step::Publish | Step::Park if self.parked => {}
            Step::Push { words, bytes } => self.push(*words, *bytes),
            Step::Pop => drop(self.pop()),
            Step::Publish => self.blocked &= !self.consumer.publish(),
            Step::Park => self.parked = self.consumer.park().unwrap(),
            Step::Wake => self.parked &= !self.producer.wake(),
            Step::Block => {
                self.parked &= !self.producer.wake();
                self.producer.block();
                self.blocked = !self.producer.has_room().unwrap();
            }
            Step::Arrive(ours, theirs) => {
                self.memory[0].apply_oldest(*ours);
                self.memory[1].apply_oldest(*theirs);
            }
        }
        assert!(self.producer.tail.wrapping_sub(self.consumer.head) <= RING_CELLS, "written before it was taken");
    }

    fn push(&mut self, words: usize, bytes: usize) {
        let tail = self.producer.tail;
        let own: Vec<u32> = (0..words as u32).map(|word| tail ^ word).collect();
        let message: Vec<u8> = (0..bytes).map(|at| (tail as usize ^ at) as u8).collect();
        let body: Vec<u8> = own.iter().flat_map(|word| word.to_le_bytes()).chain(message.iter().copied()).collect();
        if body.len() > BODY_BYTES_MAX as usize {
            return;
        }
        match self.producer.push(3, &own, &message) {
            Ok(()) => self.queue.push_back(body),
            Err(error) => assert_eq!(error, PushError::Full),
        }
    }

    fn pop(&mut self) -> bool {
        let mut record = RecordBuffer::default();
        let came = self.consumer.pop(&mut record).unwrap();
        if came {
            assert_eq!(Some(bytes(&record)), self.queue.pop_front());
        }
        if self.consumer.needs_publish() {
            self.blocked &= !self.consumer.publish();
        }
        came
    }

    /// Brings both sides to rest: everything must have been transferred, and neither side may sleep with something to do.
    fn settle(&mut self) {
        self.step(&Step::Wake);
        assert!(!self.parked || self.queue.is_empty(), "asleep, and nothing will say that a record waits");
        while !self.parked {
            while self.pop() {}
            assert!(self.queue.is_empty());
            self.step(&Step::Park);
        }
        assert!(!self.blocked, "asleep, and nothing will say that there is room");
        assert!(self.producer.is_drained());
        assert_eq!(self.producer.has_room(), Ok(true));
    }
}

#[test]
fn a_consumer_that_finds_the_ring_empty_each_time_still_tells_a_blocked_producer() {
    let mut model = Model::new(0);
    for _ in 0..=USABLE_CELLS - RECORD_CELLS_MAX {
        model.push(1, 0);
        model.memory[0].apply_oldest(usize::MAX);
        assert!(model.pop());
        assert!(!model.pop());
    }
    model.step(&Step::Block);
    model.settle();
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_ring_is_a_queue(position in positions(), steps in steps()) {
        let mut model = Model::new(position);
        for step in &steps {
            model.step(step);
        }
        model.settle();
    }
}

/// A ring with a consumer that has been busy for so long that its producer need not fence.
fn busy_ring<M: Words + Clone>(sides: [M; 2]) -> (Producer<M>, Consumer<M>) {
    let (mut producer, mut consumer) = ring_at(0, sides, geometry().direction(Direction::Zero));
    let mut record = RecordBuffer::default();
    for _ in 0..LIGHT_FENCE_AFTER {
        producer.push(1, &[], &[]).unwrap();
        producer.memory.fence();
        assert!(!producer.wake());
        assert!(consumer.pop(&mut record).unwrap());
        consumer.memory.fence();
        if consumer.needs_publish() {
            assert!(!consumer.publish());
        }
    }
    assert!(consumer.light_fence_active && producer.light_fence_active);
    (producer, consumer)
}

#[test]
fn a_producer_that_does_not_fence_is_not_missed() {
    let (mut producer, mut consumer) = busy_ring(DelayedStores::pair(geometry().size()));
    producer.push(1, &[], &[]).unwrap();
    assert!(!producer.wake(), "the consumer looks here");
    assert_eq!(consumer.has_record(), Ok(false), "the record is still under way");
    assert_eq!(consumer.park(), Ok(false), "the heavy fence brings it");
    assert!(consumer.pop(&mut RecordBuffer::default()).unwrap());
    // And the other way round.
    assert_eq!(consumer.park(), Ok(true));
    producer.push(1, &[], &[]).unwrap();
    assert!(producer.wake());
}

/// A heavy fence that reaches its caller only, and what it answers.
#[derive(Clone)]
struct OneSided(DelayedStores, bool);

impl Words for OneSided {
    fn load(&self, at: u32, order: core::sync::atomic::Ordering) -> u32 {
        self.0.load(at, order)
    }
    fn store(&self, at: u32, value: u32, order: core::sync::atomic::Ordering) {
        self.0.store(at, value, order);
    }
    fn swap(&self, at: u32, value: u32, order: core::sync::atomic::Ordering) -> u32 {
        self.0.swap(at, value, order)
    }
    fn or(&self, at: u32, bits: u32, order: core::sync::atomic::Ordering) {
        self.0.or(at, bits, order);
    }
    fn compare_exchange(&self, at: u32, from: u32, to: u32, order: core::sync::atomic::Ordering) -> bool {
        self.0.compare_exchange(at, from, to, order)
    }
    fn fence(&self) {
        self.0.fence();
    }
    fn light_fence(&self) {}
    fn heavy_fence(&self) -> bool {
        self.0.fence();
        self.1
    }
    fn has_heavy_fence(&self) -> bool {
        true
    }
}

#[test]
fn a_heavy_fence_on_one_side_only_would_miss_it() {
    let (mut producer, mut consumer) =
        busy_ring(DelayedStores::pair(geometry().size()).map(|side| OneSided(side, true)));
    producer.push(1, &[], &[]).unwrap();
    assert!(!producer.wake());
    assert_eq!(consumer.park(), Ok(true), "parked over a record, and nothing will set its bit");
}

#[test]
fn without_heavy_fences_every_wake_fences() {
    let (_, mut producer, mut consumer) = ring();
    let mut record = RecordBuffer::default();
    for _ in 0..2 * LIGHT_FENCE_AFTER {
        producer.push(1, &[], &[]).unwrap();
        assert!(consumer.pop(&mut record).unwrap());
        if consumer.needs_publish() {
            consumer.publish();
        }
    }
    assert!(!consumer.light_fence_active && !producer.light_fence_active);
}

#[test]
fn consumer_parks_with_a_full_fence_after_a_refused_heavy_fence() {
    let (mut producer, mut consumer) =
        busy_ring(DelayedStores::pair(geometry().size()).map(|side| OneSided(side, false)));
    assert_eq!(consumer.park(), Ok(false));
    assert_eq!(consumer.park(), Ok(true));
    producer.push(1, &[], &[]).unwrap();
    assert!(producer.wake());
}
