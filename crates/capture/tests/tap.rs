//! The hand-over between whoever sees frames and whoever looks at them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::VecDeque;
use std::thread;

use isthmus_capture::{Direction, InterfaceIndex, Offered, Record, SNAP_BYTES_MAX, Statistics, tap};
use proptest::collection::vec;
use proptest::prelude::*;

const WIRE: InterfaceIndex = InterfaceIndex(0);

#[test]
fn frames_in_parts_arrive_whole_and_in_order() {
    let (mut tap, mut tapped) = tap(2, 100, 4096);
    let long: Vec<u8> = (0..150).collect();
    assert_eq!(tap.offer(7, WIRE, Direction::Sent, &[b"abc", b"", b"defghijkl"]), Offered::Taken);
    assert_eq!(tap.offer(8, InterfaceIndex(1), Direction::Received, &[&long[..60], &long[60..]]), Offered::Taken);
    assert_eq!(tap.offer(9, WIRE, Direction::Unknown, &[]), Offered::Taken);
    let record = |time_ns, interface, direction, original_bytes, bytes| Record {
        time_ns,
        interface: InterfaceIndex(interface),
        direction,
        original_bytes,
        bytes,
    };
    assert_eq!(tapped.take(), Some(record(7, 0, Direction::Sent, 12, b"abcdefghijkl")));
    assert_eq!(tapped.take(), Some(record(8, 1, Direction::Received, 150, &long[..100])));
    assert_eq!(tapped.take(), Some(record(9, 0, Direction::Unknown, 0, b"")));
    assert_eq!(tapped.take(), None);
}

#[test]
fn a_full_buffer_drops_the_new_and_counts() {
    let (mut tap, mut tapped) = tap(1, 64, 0);
    let frame = [0x5a; 64];
    let mut taken = 0;
    while tap.offer(taken, WIRE, Direction::Sent, &[&frame]) == Offered::Taken {
        taken += 1;
    }
    assert!(taken >= 2, "room for two of the longest frames");
    assert_eq!(tap.offer(0, WIRE, Direction::Sent, &[&frame]), Offered::Dropped);
    assert_eq!(tapped.statistics(), [Statistics { interface: WIRE, seen: taken + 2, dropped: 2 }]);
    // What is in it is what came first; one that is taken makes room for one.
    assert_eq!(tapped.take().unwrap().time_ns, 0);
    assert_eq!(tap.offer(99, WIRE, Direction::Sent, &[&frame]), Offered::Taken);
    assert_eq!(tap.offer(99, WIRE, Direction::Sent, &[&frame]), Offered::Dropped);
    for time in (1..taken).chain([99]) {
        assert_eq!(tapped.take().unwrap().time_ns, time);
    }
    assert_eq!(tapped.take(), None);
    assert_eq!(tap.offer(0, InterfaceIndex(1), Direction::Sent, &[]), Offered::Dropped, "there is no such interface");
}

#[test]
fn who_sleeps_is_woken_once() {
    let (mut tap, mut tapped) = tap(1, 64, 4096);
    let mut offer = || tap.offer(0, WIRE, Direction::Sent, &[b"x"]);
    assert_eq!(offer(), Offered::Taken);
    assert!(!tapped.sleep(), "there is something to take");
    assert_eq!(offer(), Offered::Taken, "it did not fall asleep");
    while tapped.take().is_some() {}
    assert!(tapped.sleep());
    assert_eq!(offer(), Offered::Wake);
    assert_eq!(offer(), Offered::Taken);
    while tapped.take().is_some() {}
    assert!(tapped.sleep());
    tapped.awake();
    assert_eq!(offer(), Offered::Taken);
}

#[test]
fn each_side_sees_that_the_other_is_gone() {
    let (mut tap_a, mut tapped_a) = tap(1, 64, 4096);
    assert!(tap_a.is_watched() && !tapped_a.is_over());
    assert_eq!(tap_a.offer(3, WIRE, Direction::Sent, &[b"last"]), Offered::Taken);
    drop(tap_a);
    assert!(!tapped_a.is_over(), "a record is still there");
    assert_eq!(tapped_a.take().unwrap().bytes, b"last");
    assert!(tapped_a.is_over() && !tapped_a.sleep());

    let (mut tap_b, tapped_b) = tap(1, 64, 4096);
    drop(tapped_b);
    assert_eq!(tap_b.offer(0, WIRE, Direction::Sent, &[b"x"]), Offered::Unwatched);
}

/// A frame of the stress test says in each byte which one it is.
fn frame(number: u64) -> Vec<u8> {
    vec![number as u8; (number % 97) as usize]
}

/// A consumer that is now faster, now slower, in another thread: what is taken is whole and in order, and with what was dropped it
/// is all there was.
#[test]
fn two_threads_lose_only_what_they_count() {
    const FRAMES: u64 = 200_000;
    let (mut tap, mut tapped) = tap(1, 96, 2048);
    let producer = thread::spawn(move || {
        (0..FRAMES).filter(|&n| tap.offer(n, WIRE, Direction::Sent, &[&frame(n)]) == Offered::Dropped).count()
    });
    let (mut taken, mut last) = (0, None);
    while !tapped.is_over() {
        while let Some(record) = tapped.take() {
            assert!(last < Some(record.time_ns));
            assert_eq!(record.bytes, frame(record.time_ns));
            (taken, last) = (taken + 1, Some(record.time_ns));
        }
        thread::yield_now();
    }
    let dropped = producer.join().unwrap() as u64;
    assert_eq!(taken + dropped, FRAMES);
    assert_eq!(tapped.statistics(), [Statistics { interface: WIRE, seen: FRAMES, dropped }]);
}

/// One that sleeps whenever it may is woken for each record it would miss.
#[test]
fn no_record_is_slept_over() {
    let (mut tap, mut tapped) = tap(1, 16, 1 << 12);
    let consumer = thread::spawn(move || {
        let mut taken = 0;
        while !tapped.is_over() {
            while tapped.take().is_some() {
                taken += 1;
            }
            if tapped.sleep() {
                thread::park();
                tapped.awake();
            }
        }
        taken
    });
    let mut expected = 0;
    for number in 0..50_000 {
        match tap.offer(number, WIRE, Direction::Sent, &[b"0123456789"]) {
            Offered::Wake => consumer.thread().unpark(),
            Offered::Taken => {}
            other => {
                assert_eq!(other, Offered::Dropped);
                continue;
            }
        }
        expected += 1;
    }
    drop(tap);
    consumer.thread().unpark();
    assert_eq!(consumer.join().unwrap(), expected);
}

proptest! {
    /// Against a queue that everybody understands.
    #[test]
    fn it_is_a_queue(
        snap in prop_oneof![0..200u32, Just(SNAP_BYTES_MAX)],
        steps in vec((vec(vec(any::<u8>(), 0..90), 0..4), 0..3usize), 0..200),
    ) {
        let (mut tap, mut tapped) = tap(1, snap, 512);
        let (mut model, mut dropped) = (VecDeque::new(), 0);
        for (time, (parts, takes)) in (0..).zip(&steps) {
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let whole = parts.concat();
            match tap.offer(time, WIRE, Direction::Received, &slices) {
                Offered::Taken => model.push_back((time, whole)),
                other => {
                    prop_assert_eq!(other, Offered::Dropped);
                    prop_assert!(model.len() >= 2);
                    dropped += 1;
                }
            }
            for _ in 0..*takes {
                let expected = model.pop_front();
                let record = tapped.take();
                prop_assert_eq!(record.is_some(), expected.is_some());
                let (Some(record), Some((time, whole))) = (record, expected) else { break };
                prop_assert_eq!((record.time_ns, record.original_bytes as usize), (time, whole.len()));
                prop_assert_eq!(record.bytes, &whole[..whole.len().min(snap as usize)]);
            }
        }
        prop_assert_eq!(tapped.statistics()[0].dropped, dropped);
    }
}
