//! Letters A to H: records, cells used again, parking and blocking.

use super::words::{Bodies, Builder, Handle, Weaken, layout};
use super::{FORGOTTEN, RACE, Setting, TORN, WHOLE, only, receives, sends};
use isthmus_layout::channel::{CELL_WORDS, HEAD};
use isthmus_layout::limits::RING_CELLS;
use isthmus_shm::{Consumer, Producer, RecordBuffer};
use loom::sync::atomic::AtomicU32;
use loom::thread;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

fn stamps() -> RangeInclusive<u32> {
    layout().ring..=layout().ring + RING_CELLS * CELL_WORDS - 1
}

// A and B.

/// A record of one cell, and one with a second cell that is the ring's first again.
fn records_cross(setting: &Setting) {
    let memory = Builder::default().ring(CELL_WORDS, setting.bodies).build();
    let mut producer = memory.weakened(setting.sends.clone()).producer();
    let mut consumer = memory.weakened(setting.receives.clone()).consumer();
    fill(&mut producer, &mut consumer, RING_CELLS - 2);
    let message: Vec<u8> = (100..164).collect();
    let sent = message.clone();
    let sender = thread::spawn(move || {
        producer.push(3, &[7, 8], &[]).unwrap();
        producer.push(4, &[9], &sent).unwrap();
    });
    let mut record = RecordBuffer::default();
    if consumer.pop(&mut record).unwrap() {
        assert_eq!((record.kind(), record.words()), (3, &[7, 8][..]));
        if consumer.pop(&mut record).unwrap() {
            assert_eq!((record.kind(), record.bytes(), record.words()[0]), (4, 4 + 64, 9));
            let bytes: Vec<u8> = record.words()[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(bytes, message);
        }
    }
    sender.join().unwrap();
}

/// Moves both sides of a ring forward, before any other thread accesses it.
fn fill(producer: &mut Producer<Handle>, consumer: &mut Consumer<Handle>, cells: u32) {
    for _ in 0..cells {
        producer.push(1, &[0], &[]).unwrap();
        assert!(consumer.pop(&mut RecordBuffer::default()).unwrap());
    }
    consumer.publish();
}

#[test]
fn records_cross_whole() {
    WHOLE.passes(records_cross);
    WHOLE.atomic().passes(records_cross);
}

#[test]
fn records_do_not_cross_whole_without_a() {
    receives(Weaken::Load(stamps())).fails(RACE, records_cross);
    receives(Weaken::Load(stamps())).atomic().fails(TORN, records_cross);
}

#[test]
fn records_do_not_cross_whole_without_b() {
    sends(Weaken::Store(stamps())).fails(RACE, records_cross);
    sends(Weaken::Store(stamps())).atomic().fails(TORN, records_cross);
}

// C and D.

/// A full ring: its first cell is written again while it is taken.
fn a_cell_is_used_again(setting: &Setting) {
    let memory = Builder::default().ring(3, setting.bodies).build();
    let mut producer = memory.weakened(setting.sends.clone()).producer();
    let mut consumer = memory.weakened(setting.receives.clone()).consumer();
    for number in 0..RING_CELLS {
        producer.push(1, &[number], &[]).unwrap();
    }
    let sender = thread::spawn(move || producer.push(1, &[100], &[]).is_ok());
    let mut record = RecordBuffer::default();
    assert!(consumer.pop(&mut record).unwrap());
    assert_eq!(record.words(), [0]);
    consumer.publish();
    let sent = sender.join().unwrap();
    for number in 1..RING_CELLS {
        assert!(consumer.pop(&mut record).unwrap());
        assert_eq!(record.words(), [number]);
    }
    assert_eq!(consumer.pop(&mut record).unwrap(), sent);
}

#[test]
fn a_cell_is_not_written_before_it_was_copied() {
    WHOLE.passes(a_cell_is_used_again);
    WHOLE.atomic().passes(a_cell_is_used_again);
}

#[test]
fn a_cell_is_written_before_it_was_copied_without_c() {
    let weak = receives(Weaken::Store(only(layout().consumer + HEAD)));
    weak.clone().fails(RACE, a_cell_is_used_again);
    weak.atomic().passes(a_cell_is_used_again); // Would need load buffering.
}

#[test]
fn a_cell_is_written_before_it_was_copied_without_d() {
    let weak = sends(Weaken::Load(only(layout().consumer + HEAD)));
    weak.clone().fails(RACE, a_cell_is_used_again);
    weak.atomic().passes(a_cell_is_used_again); // Would need load buffering.
}

// E and F.

fn a_consumer_parks(setting: &Setting) {
    let memory = Builder::default().ring(3, setting.bodies).build();
    let mut producer = memory.weakened(setting.sends.clone()).producer();
    let mut consumer = memory.weakened(setting.receives.clone()).consumer();
    let sender = thread::spawn(move || {
        producer.push(1, &[7], &[]).unwrap();
        (producer.wake(), producer.wake())
    });
    let parked = consumer.park().unwrap();
    let (woken, again) = sender.join().unwrap();
    assert!(woken || again || !parked, "asleep, and nothing will say that a record waits");
    assert!(!(woken && again), "told twice");
    let mut record = RecordBuffer::default();
    assert!(consumer.pop(&mut record).unwrap());
}

#[test]
fn a_parked_consumer_is_woken() {
    WHOLE.passes(a_consumer_parks);
}

#[test]
fn a_parked_consumer_is_forgotten_without_e() {
    receives(Weaken::Fence).fails(FORGOTTEN, a_consumer_parks);
}

#[test]
fn a_parked_consumer_is_forgotten_without_f() {
    sends(Weaken::Fence).fails(FORGOTTEN, a_consumer_parks);
}

// G and H.

fn a_producer_blocks(setting: &Setting) {
    let memory = Builder::default().ring(3, setting.bodies).build();
    let mut producer = memory.weakened(setting.sends.clone()).producer();
    let mut consumer = memory.weakened(setting.receives.clone()).consumer();
    for number in 0..RING_CELLS {
        producer.push(1, &[number], &[]).unwrap();
    }
    let sender = thread::spawn(move || {
        producer.block();
        producer.has_room().unwrap()
    });
    let mut told = 0;
    for _ in 0..RING_CELLS {
        assert!(consumer.pop(&mut RecordBuffer::default()).unwrap());
        if consumer.needs_publish() && consumer.publish() {
            told += 1;
        }
    }
    let room = sender.join().unwrap();
    assert!(room || told > 0, "asleep, and nothing will say that there is room");
    assert!(told <= 1, "told twice");
}

#[test]
fn a_blocked_producer_is_told() {
    WHOLE.passes(a_producer_blocks);
}

#[test]
fn a_blocked_producer_is_forgotten_without_g() {
    sends(Weaken::Fence).fails(FORGOTTEN, a_producer_blocks);
}

#[test]
fn a_blocked_producer_is_forgotten_without_h() {
    receives(Weaken::Fence).fails(FORGOTTEN, a_producer_blocks);
}

/// A consumer that empties the ring again and again and publishes without a fence each time; none of that need have reached
/// the producer when it blocks. The two take turns by a variable that orders nothing.
fn a_producer_blocks_behind_an_eager_consumer(_: &Setting) {
    const RECORDS: u32 = RING_CELLS - 3;
    let memory = Builder::default().ring(3, Bodies::Atomic).build();
    let (mut producer, mut consumer) = (memory.producer(), memory.consumer());
    let turn = Arc::new(AtomicU32::new(0));
    let theirs = turn.clone();
    let until = |turn: &AtomicU32, at| {
        while turn.load(Relaxed) != at {
            thread::yield_now();
        }
    };
    let sender = thread::spawn(move || {
        for number in 0..RECORDS {
            until(&theirs, 2 * number);
            producer.push(1, &[number], &[]).unwrap();
            theirs.store(2 * number + 1, Relaxed);
        }
        until(&theirs, 2 * RECORDS);
        producer.block();
        producer.has_room().unwrap()
    });
    let mut told = false;
    let mut record = RecordBuffer::default();
    for number in 0..RECORDS {
        until(&turn, 2 * number + 1);
        while !consumer.pop(&mut record).unwrap() {
            thread::yield_now();
        }
        told |= consumer.needs_publish() && consumer.publish();
        assert!(!consumer.pop(&mut record).unwrap());
        turn.store(2 * number + 2, Relaxed);
    }
    assert!(consumer.park().unwrap());
    let room = sender.join().unwrap();
    assert!(room || told, "asleep, and nothing will say that there is room");
}

#[test]
fn a_blocked_producer_is_told_by_an_eager_consumer() {
    WHOLE.passes(a_producer_blocks_behind_an_eager_consumer);
}
