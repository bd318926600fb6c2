//! The Wireshark dissector (`packaging/wireshark/mxoe.lua`) against the daemon's own parser: both are shown the same frames, in
//! files of this crate's writer, and must say the same. Needs `tshark`; says so where there is none.
#![allow(clippy::unwrap_used, reason = "tests")]

mod carrier;
mod columns;
mod damage;
mod expected;
mod file;
mod links;
#[path = "../../../mx/tests/wire/samples.rs"]
mod samples;
mod tshark;

use isthmus_mx::wire::{Dialect, Header, Packet, Sizes, emit, parse};

use crate::expected::{COLUMNS, expected};
use crate::samples::{Sample, samples};
use crate::tshark::{Row, Tshark};

const DIALECTS: [Dialect; 2] = [Dialect::Mx, Dialect::OPEN_MX];

/// A packet as a frame.
fn frame(dialect: Dialect, header: &Header, packet: &Packet<impl AsRef<[u8]>>) -> Vec<u8> {
    let mut buffer = vec![0xee; 70_000];
    let bytes = emit(dialect, header, packet, &mut buffer).unwrap();
    buffer.truncate(bytes);
    buffer
}

/// Asserts that the dissector shows the parser's fields of a frame, or the reason for which it is dropped.
fn assert_same(dialect: Dialect, frame: &[u8], row: &Row) {
    assert_eq!(row.get("mxoe.cut"), "", "{frame:02x?}");
    match parse(dialect, frame) {
        Ok((header, packet)) => {
            let expected = expected(dialect, &header, &packet, frame);
            for column in COLUMNS {
                let Some(value) = expected.get(column) else { continue };
                assert_eq!(row.get(column), value, "{column} of {packet:?} in {dialect:?}: {frame:02x?}");
            }
            assert_eq!(row.get("mxoe.malformed"), "", "{packet:?} in {dialect:?}: {frame:02x?}");
        }
        Err(malformed) => {
            assert_eq!(row.get("mxoe.malformed"), malformed.reason(), "{malformed} in {dialect:?}: {frame:02x?}");
            assert!(row.get("_ws.expert.message").contains("Dropped without an answer"), "{malformed}: {row:?}");
        }
    }
}

/// All columns that are compared, and those that say what is wrong.
fn columns() -> Vec<&'static str> {
    let more = ["mxoe.malformed", "_ws.expert.message", "mxoe.cut", "_ws.col.Info"];
    COLUMNS.iter().copied().chain(more).collect()
}

#[test]
fn dissector_shows_the_samples_as_expected() {
    let Some(tshark) = Tshark::find() else { return };
    for dialect in DIALECTS {
        let frames: Vec<Vec<u8>> = samples().into_iter().map(|sample| sample.frame).collect();
        for (frame, row) in frames.iter().zip(tshark.show(dialect, &[], &frames, &columns())) {
            assert_same(dialect, frame, &row);
        }
    }
}

/// The packets as our own side sends them; numbers that cannot be right are said to be wrong elsewhere.
#[test]
fn dissector_shows_sent_packets_correctly() {
    let Some(tshark) = Tshark::find() else { return };
    for dialect in DIALECTS {
        let of_dialect = |sample: &Sample| sample.dialects.contains(&dialect);
        let sent: Vec<Sample> = samples().into_iter().filter(of_dialect).collect();
        let frames: Vec<Vec<u8>> = sent.iter().map(|sample| frame(dialect, &sample.header, &sample.packet)).collect();
        for ((sample, frame), row) in sent.iter().zip(&frames).zip(tshark.show(dialect, &[], &frames, &columns())) {
            assert!(!row.get("_ws.col.Info").contains("cut"), "V{:02}", sample.number);
            assert_same(dialect, frame, &row);
        }
    }
}

/// The specification's cases of packets that are refused only with knowledge of other packets.
#[test]
fn dissector_marks_packets_that_a_board_would_drop() {
    let Some(tshark) = Tshark::find() else { return };
    let edited = |number: usize, edits: &[(usize, u8)]| {
        let mut frame = samples().swap_remove(number - 1).frame;
        edits.iter().for_each(|&(at, value)| frame[16 + at] = value);
        frame
    };
    let said = |dialect, prefs: &[&str], frame: Vec<u8>| {
        tshark.show(dialect, prefs, &[frame], &["_ws.expert.message"])[0].get("_ws.expert.message").to_owned()
    };
    assert_eq!(said(Dialect::Mx, &[], edited(12, &[])), "");
    assert!(said(Dialect::Mx, &[], edited(12, &[(27, 1)])).contains("9 frames of 4096 bytes"));
    assert_eq!(said(Dialect::Mx, &[], edited(17, &[])), "");
    assert!(said(Dialect::Mx, &[], edited(17, &[(1, 2)])).contains("does not stand in a frame with number 2"));
    let sizes = ["mxoe.frame_bytes_max:9000"];
    assert_eq!(said(Dialect::OPEN_MX, &sizes, edited(15, &[])), "");
    assert!(said(Dialect::OPEN_MX, &sizes, edited(15, &[(39, 1)])).contains("33 frames of 8968 bytes"));
    assert!(said(Dialect::OPEN_MX, &["mxoe.block_frames:16"], edited(15, &[])).contains("at most 16"));
    // An Open-MX host that never was connected to from the other side (the trap of 7.4).
    assert!(said(Dialect::OPEN_MX, &[], edited(18, &[(4, 0xff), (5, 0xff), (6, 0xff), (7, 0xff)])).contains("session"));
    assert!(said(Dialect::OPEN_MX, &[], edited(20, &[])).contains("endpoint closed"));
}

#[test]
fn the_place_of_a_fragment_follows_from_the_sizes() {
    let Some(tshark) = Tshark::find() else { return };
    let place = |dialect, prefs: &[&str], number: usize| {
        let frame = samples().swap_remove(number - 1).frame;
        tshark.show(dialect, prefs, &[frame], &["mxoe.frag_offset"])[0].get("mxoe.frag_offset").to_owned()
    };
    assert_eq!(place(Dialect::Mx, &[], 9), "4096");
    assert_eq!(place(Dialect::OPEN_MX, &[], 10), "8192");
    for bytes in [1500, 4144, 4145, 8239, 8240, 9000] {
        let pref = format!("mxoe.frame_bytes_max:{bytes}");
        let fragment = Sizes::open_mx(bytes).unwrap().fragment_bytes();
        assert_eq!(place(Dialect::OPEN_MX, &[&pref], 10), fragment.to_string(), "{bytes}");
    }
}
