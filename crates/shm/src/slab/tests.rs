//! The slab as a channel uses it, with stores that arrive late and positions that wrap; and against forged memory.
#![cfg(not(loom))]

use super::*;
use crate::delayed_stores::{DelayedStores, affordable, cases, positions};
use crate::ring::{Consumer, Producer, RecordBuffer};
use crate::words::Payload;
use crate::{Mapping, SharedMapping};
use core::sync::atomic::Ordering::Relaxed;
use isthmus_layout::channel::{ChannelGeometry, Direction};
use isthmus_layout::limits::{PAGE_BYTES, SLAB_BYTES_MIN};
use proptest::prelude::*;
use std::collections::VecDeque;

const SLAB: u32 = SLAB_BYTES_MIN;
const QUARTER: u32 = SLAB / 4;

fn geometry() -> ChannelGeometry {
    ChannelGeometry { slab: SlabSize::new(SLAB).unwrap() }
}

fn slab_at<M: Words>(
    position: u32,
    [sending, receiving]: [M; 2],
    at: DirectionLayout,
) -> (SlabProducer<M>, SlabConsumer<M>) {
    let position = position / CACHE_LINE_BYTES * CACHE_LINE_BYTES;
    sending.store(at.consumer + SLAB_HEAD, position, Relaxed);
    sending.fence();
    let mut producer = SlabProducer::new(sending, at, geometry().slab);
    let mut consumer = SlabConsumer::new(receiving, at, geometry().slab);
    (producer.tail, producer.head) = (position, position);
    (consumer.head, consumer.published, consumer.notified_head) = (position, position, position);
    (producer, consumer)
}

fn slab() -> (SharedMapping, SlabProducer<SharedMapping>, SlabConsumer<SharedMapping>) {
    let memory = SharedMapping::new(Mapping::private(geometry().size()));
    let (producer, consumer) = slab_at(0, [memory.clone(), memory.clone()], geometry().direction(Direction::Zero));
    (memory, producer, consumer)
}

#[test]
fn fragments_are_a_quarter_at_most_and_never_wrap() {
    let (_, mut producer, mut consumer) = slab();
    assert_eq!(producer.reserve(1, u32::MAX), Ok(Some(Fragment { offset: 0, len: QUARTER })));
    let odd = producer.reserve(1, QUARTER - 1).unwrap().unwrap();
    assert_eq!(odd, Fragment { offset: QUARTER, len: QUARTER - 1 });
    for _ in 0..2 {
        assert!(producer.reserve(1, QUARTER).unwrap().is_some());
    }
    assert_eq!(producer.reserve(1, 1), Ok(None), "the slab is full");
    assert_eq!(producer.has_room(1), Ok(false));
    assert!(consumer.release(Fragment { offset: 0, len: QUARTER }));
    consumer.publish();
    assert_eq!(producer.has_room(u32::MAX), Ok(true));
    assert_eq!(producer.reserve(1, 100), Ok(Some(Fragment { offset: 0, len: 100 })));
    assert_eq!(producer.reserve(QUARTER, QUARTER), Ok(None));
    let rest = QUARTER - 128;
    assert_eq!(producer.reserve(rest, QUARTER), Ok(Some(Fragment { offset: 128, len: rest })), "less than asked for");
}

#[test]
fn a_slab_with_nothing_out_starts_over_and_has_all_its_room() {
    let (_, mut producer, mut consumer) = slab();
    for _ in 0..10 {
        let fragments: Vec<Fragment> = (0..4).map(|_| producer.reserve(QUARTER, QUARTER).unwrap().unwrap()).collect();
        assert_eq!(fragments[0].offset, 0);
        for fragment in fragments {
            consumer.release(fragment);
        }
        consumer.publish();
        // One that does not end with the slab: what is skipped when the slab starts over is no loss.
        let fragment = producer.reserve(LOW_TRAFFIC_BYTES, LOW_TRAFFIC_BYTES).unwrap().unwrap();
        consumer.release(fragment);
        consumer.publish();
    }
    assert_eq!(producer.dirty_bytes(), SLAB);
}

#[test]
fn little_traffic_stays_near_the_start() {
    let (_, mut producer, mut consumer) = slab();
    for _ in 0..affordable(1000) {
        let fragment = producer.reserve(3000, 3000).unwrap().unwrap();
        consumer.release(fragment);
        consumer.publish();
    }
    assert!(producer.dirty_bytes() <= LOW_TRAFFIC_BYTES, "{} bytes are in use", producer.dirty_bytes());
}

#[test]
fn the_producer_is_told_each_quarter_whatever_is_published_between() {
    let (_, mut producer, mut consumer) = slab();
    let mut given = 0;
    for _ in 0..100 {
        let fragment = producer.reserve(1000, 1000).unwrap().unwrap();
        let before = given;
        given += 1024;
        let told = consumer.release(fragment);
        let gap = fragment.offset == 0 && before > 0;
        assert!(told || gap || before / QUARTER == given / QUARTER, "not told between {before} and {given}");
        if told {
            given = 0;
        }
        consumer.publish();
    }
}

#[test]
fn pages_are_idle_once_all_is_given_back() {
    let (_, mut producer, mut consumer) = slab();
    let start = geometry().direction(Direction::Zero).slab;
    assert_eq!(producer.idle_pages(0), Ok(None), "nothing was used");
    let fragment = producer.reserve(5000, 5000).unwrap().unwrap();
    assert_eq!(producer.idle_pages(0), Ok(None), "a fragment is out");
    consumer.release(fragment);
    assert!(consumer.has_unpublished());
    consumer.publish();
    assert!(!consumer.has_unpublished());
    assert_eq!(producer.idle_pages(5000), Ok(None), "the caller keeps as much");
    assert_eq!(producer.idle_pages(4999), Ok(Some((start, u64::from(2 * PAGE_BYTES)))));
    assert_eq!((producer.idle_pages(0), producer.dirty_bytes()), (Ok(None), 0));
}

#[test]
fn span_refuses_a_fragment_outside() {
    let (_, _, consumer) = slab();
    let start = geometry().direction(Direction::Zero).slab;
    let span = consumer.span(Fragment { offset: SLAB - 10, len: 10 }).unwrap();
    assert_eq!((span.start(), span.len()), (start + u64::from(SLAB) - 10, 10));
    for (offset, len) in [(SLAB - 10, 11), (SLAB, 1), (0, SLAB + 1), (u32::MAX, u32::MAX), (1, u32::MAX)] {
        let fragment = Fragment { offset, len };
        assert!(matches!(consumer.span(fragment), Err(PeerFault::FragmentOutside(_))), "{fragment:?}");
    }
}

#[test]
fn release_accepts_any_fragment() {
    let (_, _, mut consumer) = slab();
    for (offset, len) in [(u32::MAX, u32::MAX), (SLAB, 0), (7, u32::MAX - 7), (0, 0)] {
        consumer.release(Fragment { offset, len });
        consumer.publish();
    }
}

#[test]
fn reserve_refuses_a_head_that_cannot_be_and_does_not_keep_it() {
    let (memory, mut producer, consumer) = slab();
    while producer.reserve(QUARTER, QUARTER).unwrap().is_some() {}
    for head in [SLAB + 64, u32::MAX - SLAB, 1 << 31] {
        memory.store(consumer.at.consumer + SLAB_HEAD, head, Relaxed);
        let fault = PeerFault::SlabOverrun { head, tail: SLAB };
        assert_eq!(producer.reserve(1, 1), Err(fault));
        assert_eq!(producer.has_room(1), Err(fault));
        assert_eq!(producer.idle_pages(0), Err(fault));
    }
    memory.store(consumer.at.consumer + SLAB_HEAD, SLAB, Relaxed);
    assert_eq!(producer.reserve(1, 1), Ok(Some(Fragment { offset: 0, len: 1 })));
}

/// Miri sees a race if one copy is not ordered after the other.
#[test]
fn fragments_cross_between_two_threads() {
    const FRAGMENTS: usize = affordable(2000);
    let (memory, mut slab_out, mut slab_in) = slab();
    let at = geometry().direction(Direction::Zero);
    let (mut producer, mut consumer) = (Producer::new(memory.clone(), at), Consumer::new(memory.clone(), at));
    let theirs = memory.clone();
    let sender = std::thread::spawn(move || {
        for number in 0..FRAGMENTS {
            let len = (number as u32).wrapping_mul(7919) % QUARTER + 1;
            let fragment = loop {
                if producer.has_room().unwrap()
                    && let Some(fragment) = slab_out.reserve(len, len).unwrap()
                {
                    break fragment;
                }
                std::thread::yield_now();
            };
            theirs.copy_in(slab_out.region_offset(fragment), &vec![number as u8; len as usize]);
            producer.push(1, &[fragment.offset, fragment.len], &[]).unwrap();
        }
    });
    let mut record = RecordBuffer::default();
    for number in 0..FRAGMENTS {
        while !consumer.pop(&mut record).unwrap() {
            slab_in.publish();
            std::thread::yield_now();
        }
        let fragment = Fragment { offset: record.words()[0], len: record.words()[1] };
        let mut bytes = vec![0; fragment.len as usize];
        memory.copy_out(slab_in.span(fragment).unwrap().start(), &mut bytes);
        assert!(bytes == vec![number as u8; bytes.len()], "fragment {number} was changed before it was taken");
        if slab_in.release(fragment) {
            slab_in.publish();
        }
        if consumer.needs_publish() {
            consumer.publish();
        }
    }
    sender.join().unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    /// Sends a fragment of at most the first number of bytes, and at least the second.
    Send(u32, u32),
    /// Takes a record, and holds what it names.
    Receive,
    /// Copies the oldest fragment that is held and gives it back.
    Release,
    Park,
    /// Asks which pages are idle.
    Trim,
    /// These numbers of the sender's stores, and of the receiver's, arrive.
    Arrive(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![1..200_u32, 1..=QUARTER, Just(QUARTER), QUARTER..2 * SLAB];
    let step = prop_oneof![
        5 => (len, 1..=QUARTER).prop_map(|(len, min_len)| Step::Send(len, min_len.min(len))),
        5 => Just(Step::Receive),
        5 => Just(Step::Release),
        1 => Just(Step::Park),
        1 => Just(Step::Trim),
        2 => (0..20_usize, 0..3_usize).prop_map(|(ours, theirs)| Step::Arrive(ours, theirs)),
    ];
    prop::collection::vec(step, 1..affordable(600))
}

/// One direction of a channel, with the rules by which a channel moves it.
struct Model {
    memory: [DelayedStores; 2],
    producer: Producer<DelayedStores>,
    slab_out: SlabProducer<DelayedStores>,
    consumer: Consumer<DelayedStores>,
    slab_in: SlabConsumer<DelayedStores>,
    /// Fragments reserved and not given back, oldest first, each with the byte that fills it.
    out: VecDeque<(Fragment, u8)>,
    /// How many of them the consumer holds.
    held: usize,
    sent: u8,
    /// The producer waits for room for this number of bytes, and was not notified that there is some.
    blocked: Option<u32>,
    /// The consumer waits for records, and was not notified that there is one.
    parked: bool,
}

impl Model {
    fn new(cell: u32, byte: u32) -> Self {
        let at = geometry().direction(Direction::One);
        let memory = DelayedStores::pair(geometry().size());
        let (producer, consumer) = crate::ring::tests::ring_at(cell, memory.clone(), at);
        let (slab_out, slab_in) = slab_at(byte, memory.clone(), at);
        let (out, held, sent) = (VecDeque::new(), 0, 0);
        Self { memory, producer, slab_out, consumer, slab_in, out, held, sent, blocked: None, parked: false }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Send(..) if self.blocked.is_some() => {}
            Step::Receive | Step::Park if self.parked => {}
            Step::Send(len, min_len) => self.send(*len, *min_len),
            Step::Receive => drop(self.receive()),
            Step::Release => drop(self.release()),
            Step::Park if self.held == 0 => self.park(),
            Step::Park => {}
            Step::Trim => self.trim(),
            Step::Arrive(ours, theirs) => {
                self.memory[0].apply_oldest(*ours);
                self.memory[1].apply_oldest(*theirs);
            }
        }
    }

    /// As a client sends a fragment, and as it blocks if there is no room.
    fn send(&mut self, len: u32, min_len: u32) {
        if !self.try_send(len, min_len) {
            self.producer.block();
            self.blocked = (!self.has_room(min_len)).then_some(min_len);
        }
    }

    fn try_send(&mut self, len: u32, min_len: u32) -> bool {
        if !self.producer.has_room().unwrap() {
            return false;
        }
        let Some(fragment) = self.slab_out.reserve(min_len, len).unwrap() else { return false };
        assert!(fragment.len <= len && (fragment.len >= min_len || fragment.len == QUARTER));
        let end = fragment.offset + fragment.len;
        assert!(end <= SLAB);
        for (other, _) in &self.out {
            assert!(
                end <= other.offset || other.offset + other.len <= fragment.offset,
                "{fragment:?} overlaps {other:?}"
            );
        }
        self.sent = self.sent.wrapping_add(1);
        self.memory[0].copy_in(self.slab_out.region_offset(fragment), &vec![self.sent; fragment.len as usize]);
        self.out.push_back((fragment, self.sent));
        self.producer.push(2, &[fragment.offset, fragment.len], &[]).unwrap();
        self.parked &= !self.producer.wake();
        true
    }

    fn has_room(&mut self, min_len: u32) -> bool {
        self.producer.has_room().unwrap() && self.slab_out.has_room(min_len).unwrap()
    }

    /// The producer's bit was set: it looks again.
    fn notify(&mut self) {
        if let Some(min_len) = self.blocked.take() {
            self.send(min_len, min_len);
        }
    }

    fn publish_head(&mut self) {
        if self.consumer.publish() {
            self.notify();
        }
    }

    /// `Channel::receive`.
    fn receive(&mut self) -> bool {
        let mut record = RecordBuffer::default();
        let came = self.consumer.pop(&mut record).unwrap();
        if self.consumer.needs_publish() {
            self.publish_head();
        } else if !came && self.slab_in.has_unpublished() {
            self.slab_in.publish();
        }
        if came {
            let (fragment, _) = self.out[self.held];
            assert_eq!(record.words(), [fragment.offset, fragment.len]);
            self.held += 1;
        }
        came
    }

    /// `Channel::copy_out` and `Channel::release`.
    fn release(&mut self) -> bool {
        if self.held == 0 {
            return false;
        }
        let (fragment, fill) = self.out[0];
        let mut bytes = vec![0; fragment.len as usize];
        self.memory[1].copy_out(self.slab_in.span(fragment).unwrap().start(), &mut bytes);
        assert!(bytes == vec![fill; bytes.len()], "{fragment:?} was written before it was given back");
        self.out.pop_front();
        self.held -= 1;
        if self.slab_in.release(fragment) {
            self.slab_in.publish();
            self.publish_head();
        }
        true
    }

    /// `Channel::park`.
    fn park(&mut self) {
        if self.slab_in.has_unpublished() {
            self.slab_in.publish();
        }
        self.parked = self.consumer.park().unwrap();
    }

    fn trim(&mut self) {
        let pages = self.slab_out.idle_pages(0).unwrap();
        assert!(pages.is_none() || self.out.is_empty(), "pages in use were given back");
    }

    /// Everything is taken and given back, and both sides come to rest.
    fn settle(&mut self) {
        assert!(!self.parked || self.held == self.out.len(), "asleep, and nothing will say that a record waits");
        while !self.parked {
            while self.release() || self.receive() {}
            self.park();
        }
        assert!(self.out.is_empty());
        assert_eq!(self.blocked, None, "asleep, and nothing will say that there is room");
        assert!(self.has_room(QUARTER));
        assert!(self.try_send(QUARTER, QUARTER), "a quarter cannot be reserved though nothing is out");
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn fragments_never_overlap_and_waits_end(cell in positions(), byte in positions(), steps in steps()) {
        let mut model = Model::new(cell, byte);
        for step in &steps {
            model.step(step);
        }
        model.settle();
    }
}
