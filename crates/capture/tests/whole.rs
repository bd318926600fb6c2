//! The whole way of frames: from a thread that sees them, over a socket, into a file.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use isthmus_capture::pcapng::Writer;
use isthmus_capture::stream::{Message, Reader, emit};
use isthmus_capture::{Direction, Interface, InterfaceIndex, Offered, Tapped, tap};

const FRAMES: u64 = 5000;

/// What the daemon's side does with a tap until it is over.
fn serve(mut tapped: Tapped, mut socket: UnixStream) {
    let mut bytes = Vec::new();
    emit(&Message::Begin, &mut bytes);
    emit(&Message::Interface(Interface::new("wire0", "the board's link")), &mut bytes);
    while !tapped.is_over() {
        while let Some(record) = tapped.take() {
            emit(&Message::Frame(record), &mut bytes);
        }
        socket.write_all(&bytes).unwrap();
        bytes.clear();
        if tapped.sleep() {
            thread::park();
            tapped.awake();
        }
    }
    tapped.statistics().into_iter().for_each(|told| emit(&Message::Statistics(told), &mut bytes));
    emit(&Message::End, &mut bytes);
    socket.write_all(&bytes).unwrap();
}

#[test]
fn what_a_worker_sees_ends_up_in_a_file() {
    let (mut tap, tapped) = tap(1, 2000, 1 << 14);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || serve(tapped, theirs));
    let awake = server.thread().clone();
    let worker = thread::spawn(move || {
        for number in 0..FRAMES {
            let data = vec![number as u8; (number % 1500) as usize];
            let offered = tap.offer(number, InterfaceIndex(0), Direction::Sent, &[&[0; 14], &data]);
            if offered == Offered::Wake {
                awake.unpark();
            }
        }
        drop(tap);
        awake.unpark();
    });

    let mut reader = Reader::new(BufReader::new(ours));
    let mut file = Writer::new(Vec::new(), &[]).unwrap();
    let (mut frames, mut told) = (0, Vec::new());
    while let Some(message) = reader.message().unwrap() {
        match message {
            Message::Interface(interface) => assert_eq!(file.add(&interface).unwrap(), InterfaceIndex(0)),
            Message::Frame(record) => {
                frames += 1;
                assert_eq!(record.bytes.len() as u64, 14 + record.time_ns % 1500);
                assert!(record.bytes[14..].iter().all(|byte| *byte == record.time_ns as u8));
                file.write(&record).unwrap();
            }
            Message::Statistics(statistics) => told.push(statistics),
            other => panic!("{other:?} between the beginning and the end"),
        }
    }
    let file = file.finish(&told).unwrap();
    worker.join().unwrap();
    server.join().unwrap();
    assert_eq!((told[0].seen, told[0].seen - told[0].dropped), (FRAMES, frames));
    assert!(frames > 0 && file.len() as u64 > frames * 32);
}
