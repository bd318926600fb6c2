//! The tap between a worker that sees frames and a reader.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::VecDeque;
use std::thread;

use isthmus_capture::{
    CaptureDirection, CapturedFrame, InterfaceIndex, InterfaceStatistics, OfferResult, SNAP_BYTES_MAX, tap,
};
use proptest::collection::vec;
use proptest::prelude::*;

const WIRE: InterfaceIndex = InterfaceIndex(0);

#[test]
fn frames_in_parts_arrive_whole_and_in_order() {
    let (mut tap, mut reader) = tap(2, 100, 4096);
    let long: Vec<u8> = (0..150).collect();
    assert_eq!(tap.offer(7, WIRE, CaptureDirection::Sent, &[b"abc", b"", b"defghijkl"]), OfferResult::Queued);
    assert_eq!(
        tap.offer(8, InterfaceIndex(1), CaptureDirection::Received, &[&long[..60], &long[60..]]),
        OfferResult::Queued
    );
    assert_eq!(tap.offer(9, WIRE, CaptureDirection::Unknown, &[]), OfferResult::Queued);
    let record = |time_ns, interface, direction, original_bytes, bytes| CapturedFrame {
        time_ns,
        interface: InterfaceIndex(interface),
        direction,
        original_bytes,
        bytes,
    };
    assert_eq!(reader.pop(), Some(record(7, 0, CaptureDirection::Sent, 12, b"abcdefghijkl")));
    assert_eq!(reader.pop(), Some(record(8, 1, CaptureDirection::Received, 150, &long[..100])));
    assert_eq!(reader.pop(), Some(record(9, 0, CaptureDirection::Unknown, 0, b"")));
    assert_eq!(reader.pop(), None);
}

#[test]
fn full_buffer_drops_new_frames_and_counts_them() {
    let (mut tap, mut reader) = tap(1, 64, 0);
    let frame = [0x5a; 64];
    let mut taken = 0;
    while tap.offer(taken, WIRE, CaptureDirection::Sent, &[&frame]) == OfferResult::Queued {
        taken += 1;
    }
    assert!(taken >= 2, "room for two of the longest frames");
    assert_eq!(tap.offer(0, WIRE, CaptureDirection::Sent, &[&frame]), OfferResult::Dropped);
    assert_eq!(reader.statistics(), [InterfaceStatistics { interface: WIRE, seen: taken + 2, dropped: 2 }]);
    // What is in it is what came first; one that is taken makes room for one.
    assert_eq!(reader.pop().unwrap().time_ns, 0);
    assert_eq!(tap.offer(99, WIRE, CaptureDirection::Sent, &[&frame]), OfferResult::Queued);
    assert_eq!(tap.offer(99, WIRE, CaptureDirection::Sent, &[&frame]), OfferResult::Dropped);
    for time in (1..taken).chain([99]) {
        assert_eq!(reader.pop().unwrap().time_ns, time);
    }
    assert_eq!(reader.pop(), None);
    assert_eq!(
        tap.offer(0, InterfaceIndex(1), CaptureDirection::Sent, &[]),
        OfferResult::Dropped,
        "there is no such interface"
    );
}

#[test]
fn sleeping_reader_is_woken_once() {
    let (mut tap, mut reader) = tap(1, 64, 4096);
    let mut offer = || tap.offer(0, WIRE, CaptureDirection::Sent, &[b"x"]);
    assert_eq!(offer(), OfferResult::Queued);
    assert!(!reader.begin_sleep(), "there is something to take");
    assert_eq!(offer(), OfferResult::Queued, "it did not fall asleep");
    while reader.pop().is_some() {}
    assert!(reader.begin_sleep());
    assert_eq!(offer(), OfferResult::QueuedWakeReader);
    assert_eq!(offer(), OfferResult::Queued);
    while reader.pop().is_some() {}
    assert!(reader.begin_sleep());
    reader.end_sleep();
    assert_eq!(offer(), OfferResult::Queued);
}

#[test]
fn each_side_sees_the_end_of_the_other() {
    let (mut tap_a, mut tapped_a) = tap(1, 64, 4096);
    assert!(tap_a.is_watched() && !tapped_a.is_over());
    assert_eq!(tap_a.offer(3, WIRE, CaptureDirection::Sent, &[b"last"]), OfferResult::Queued);
    drop(tap_a);
    assert!(!tapped_a.is_over(), "a record is still there");
    assert_eq!(tapped_a.pop().unwrap().bytes, b"last");
    assert!(tapped_a.is_over() && !tapped_a.begin_sleep());

    let (mut tap_b, tapped_b) = tap(1, 64, 4096);
    drop(tapped_b);
    assert_eq!(tap_b.offer(0, WIRE, CaptureDirection::Sent, &[b"x"]), OfferResult::Closed);
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
    let (mut tap, mut reader) = tap(1, 96, 2048);
    let producer = thread::spawn(move || {
        (0..FRAMES)
            .filter(|&n| tap.offer(n, WIRE, CaptureDirection::Sent, &[&frame(n)]) == OfferResult::Dropped)
            .count()
    });
    let (mut taken, mut last) = (0, None);
    while !reader.is_over() {
        while let Some(record) = reader.pop() {
            assert!(last < Some(record.time_ns));
            assert_eq!(record.bytes, frame(record.time_ns));
            (taken, last) = (taken + 1, Some(record.time_ns));
        }
        thread::yield_now();
    }
    let dropped = producer.join().unwrap() as u64;
    assert_eq!(taken + dropped, FRAMES);
    assert_eq!(reader.statistics(), [InterfaceStatistics { interface: WIRE, seen: FRAMES, dropped }]);
}

/// One that sleeps whenever it may is woken for each record it would miss.
#[test]
fn reader_does_not_sleep_with_records_waiting() {
    let (mut tap, mut reader) = tap(1, 16, 1 << 12);
    let consumer = thread::spawn(move || {
        let mut taken = 0;
        while !reader.is_over() {
            while reader.pop().is_some() {
                taken += 1;
            }
            if reader.begin_sleep() {
                thread::park();
                reader.end_sleep();
            }
        }
        taken
    });
    let mut expected = 0;
    for number in 0..50_000 {
        match tap.offer(number, WIRE, CaptureDirection::Sent, &[b"0123456789"]) {
            OfferResult::QueuedWakeReader => consumer.thread().unpark(),
            OfferResult::Queued => {}
            other => {
                assert_eq!(other, OfferResult::Dropped);
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
    fn tap_delivers_in_order(
        snap in prop_oneof![0..200u32, Just(SNAP_BYTES_MAX)],
        steps in vec((vec(vec(any::<u8>(), 0..90), 0..4), 0..3usize), 0..200),
    ) {
        let (mut tap, mut reader) = tap(1, snap, 512);
        let (mut model, mut dropped) = (VecDeque::new(), 0);
        for (time, (parts, takes)) in (0..).zip(&steps) {
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let whole = parts.concat();
            match tap.offer(time, WIRE, CaptureDirection::Received, &slices) {
                OfferResult::Queued => model.push_back((time, whole)),
                other => {
                    prop_assert_eq!(other, OfferResult::Dropped);
                    prop_assert!(model.len() >= 2);
                    dropped += 1;
                }
            }
            for _ in 0..*takes {
                let expected = model.pop_front();
                let record = reader.pop();
                prop_assert_eq!(record.is_some(), expected.is_some());
                let (Some(record), Some((time, whole))) = (record, expected) else { break };
                prop_assert_eq!((record.time_ns, record.original_bytes as usize), (time, whole.len()));
                prop_assert_eq!(record.bytes, &whole[..whole.len().min(snap as usize)]);
            }
        }
        prop_assert_eq!(reader.statistics()[0].dropped, dropped);
    }
}
