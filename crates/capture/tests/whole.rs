//! The whole way of frames: from a thread that sees them, over a socket, into a file.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use isthmus_capture::pcapng::Writer;
use isthmus_capture::stream::{CaptureMessage, CaptureReader, emit};
use isthmus_capture::{CaptureDirection, InterfaceIndex, OfferResult, PcapInterface, TapReader, tap};

const FRAMES: u64 = 5000;

/// Serves a tap as the daemon does, until it is over.
fn serve(mut reader: TapReader, mut socket: UnixStream) {
    let mut bytes = Vec::new();
    emit(&CaptureMessage::Begin, &mut bytes);
    emit(&CaptureMessage::Interface(PcapInterface::new("wire0", "the board's link")), &mut bytes);
    while !reader.is_over() {
        while let Some(record) = reader.pop() {
            emit(&CaptureMessage::Frame(record), &mut bytes);
        }
        socket.write_all(&bytes).unwrap();
        bytes.clear();
        if reader.begin_sleep() {
            thread::park();
            reader.end_sleep();
        }
    }
    reader.statistics().into_iter().for_each(|told| emit(&CaptureMessage::Statistics(told), &mut bytes));
    emit(&CaptureMessage::End, &mut bytes);
    socket.write_all(&bytes).unwrap();
}

#[test]
fn captured_frames_reach_the_file() {
    let (mut tap, reader) = tap(1, 2000, 1 << 14);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || serve(reader, theirs));
    let awake = server.thread().clone();
    let worker = thread::spawn(move || {
        for number in 0..FRAMES {
            let data = vec![number as u8; (number % 1500) as usize];
            let offered = tap.offer(number, InterfaceIndex(0), CaptureDirection::Sent, &[&[0; 14], &data]);
            if offered == OfferResult::QueuedWakeReader {
                awake.unpark();
            }
        }
        drop(tap);
        awake.unpark();
    });

    let mut reader = CaptureReader::new(BufReader::new(ours));
    let mut file = Writer::new(Vec::new(), &[]).unwrap();
    let (mut frames, mut told) = (0, Vec::new());
    while let Some(message) = reader.message().unwrap() {
        match message {
            CaptureMessage::Interface(interface) => assert_eq!(file.add(&interface).unwrap(), InterfaceIndex(0)),
            CaptureMessage::Frame(record) => {
                frames += 1;
                assert_eq!(record.bytes.len() as u64, 14 + record.time_ns % 1500);
                assert!(record.bytes[14..].iter().all(|byte| *byte == record.time_ns as u8));
                file.write(&record).unwrap();
            }
            CaptureMessage::Statistics(statistics) => told.push(statistics),
            other => panic!("{other:?} between the beginning and the end"),
        }
    }
    let file = file.finish(&told).unwrap();
    worker.join().unwrap();
    server.join().unwrap();
    assert_eq!((told[0].seen, told[0].seen - told[0].dropped), (FRAMES, frames));
    assert!(frames > 0 && file.len() as u64 > frames * 32);
}
