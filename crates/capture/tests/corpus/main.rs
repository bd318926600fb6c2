//! The corpus of the fuzz target `capture_stream` holds each message, and passes with any compiler.
//! `UPDATE=1 cargo test -p isthmus-capture --test corpus` writes the seeds; what a fuzzer adds is kept.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use isthmus_capture::stream::{CaptureMessage, emit};
use isthmus_capture::{CaptureDirection, CapturedFrame, InterfaceIndex, InterfaceStatistics, PcapInterface};
use isthmus_layout::NicId;

mod read;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/capture_stream")
}

fn stream(messages: &[CaptureMessage<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    messages.iter().for_each(|message| emit(message, &mut bytes));
    bytes
}

/// Whole captures, and what ends too early or goes on.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let wire = PcapInterface::new("wire0", "the board's link").with_nic(NicId::from_octets([2, 0, 0, 0, 0, 1]));
    let frame = |interface, direction, bytes| {
        let interface = InterfaceIndex(interface);
        CaptureMessage::Frame(CapturedFrame { time_ns: 7, interface, direction, original_bytes: 60, bytes })
    };
    let told = |interface| {
        CaptureMessage::Statistics(InterfaceStatistics { interface: InterfaceIndex(interface), seen: 9, dropped: 2 })
    };
    let whole = [
        CaptureMessage::Begin,
        CaptureMessage::Interface(wire.clone()),
        frame(0, CaptureDirection::Sent, &[1; 60]),
        CaptureMessage::Interface(PcapInterface::new("d7", "").with_snap_bytes(96)),
        frame(1, CaptureDirection::Received, &[2; 17]),
        frame(0, CaptureDirection::Unknown, &[]),
        told(0),
        told(1),
        CaptureMessage::End,
    ];
    let bytes = stream(&whole);
    vec![
        ("stopped", bytes[..bytes.len() - 30].to_vec()),
        ("behind-the-end", [&bytes[..], &bytes].concat()),
        (
            "no-interface",
            stream(&[CaptureMessage::Begin, frame(0, CaptureDirection::Sent, &[3; 60]), told(9), CaptureMessage::End]),
        ),
        ("no-begin", stream(&[CaptureMessage::Interface(wire), CaptureMessage::End])),
        ("whole", bytes),
    ]
}

#[test]
fn each_message_is_in_the_corpus_and_all_of_it_passes() {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(folder()).unwrap();
        seeds().iter().for_each(|(name, bytes)| std::fs::write(folder().join(name), bytes).unwrap());
    }
    let mut kinds = BTreeSet::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        kinds.extend(read::messages(&bytes));
        read::file(&bytes);
    }
    assert_eq!(kinds, BTreeSet::from([1, 2, 3, 4, 5]));
}
