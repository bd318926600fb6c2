//! Frames that are damaged, cut, or nothing at all: the dissector drops what the parser drops, for the same reason, and stays whole.

use isthmus_mx::wire::{ETHERTYPE, PacketType};

use crate::samples::samples;
use crate::tshark::Tshark;
use crate::{DIALECTS, assert_same, columns};

/// A pseudo-random generator with the same numbers in each run (SplitMix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        const EDGES: [u8; 8] = [0, 1, 8, 11, 0x7f, 0x80, 0xfe, 0xff];
        if self.below(2) == 0 { EDGES[self.below(8)] } else { self.next() as u8 }
    }
}

/// A sample's frame in which some bytes are others, or which is shorter or longer than it was.
fn damaged(dice: &mut Dice, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut frame = frames[dice.below(frames.len())].clone();
    if dice.below(4) == 0 {
        // Mostly within the header, and within what Ethernet allows.
        frame.truncate(14 + dice.below(60));
    } else if dice.below(8) == 0 {
        frame.extend((0..dice.below(1100)).map(|at| at as u8));
    }
    for _ in 0..dice.below(5) {
        let at = 14 + dice.below(50);
        let value = dice.byte();
        if let Some(byte) = frame.get_mut(at) {
            *byte = value;
        }
    }
    frame
}

/// Any bytes behind an Ethernet header, with a type that exists half of the time.
fn noise(dice: &mut Dice) -> Vec<u8> {
    let mut frame = vec![0x00, 0x1b, 0x21, 0xaa, 0, 1, 0x00, 0x1b, 0x21, 0xbb, 0, 2];
    frame.extend(ETHERTYPE.to_be_bytes());
    frame.extend((0..dice.below(160)).map(|_| 0));
    frame[14..].iter_mut().for_each(|byte| *byte = dice.byte());
    let kind = PacketType::ALL[dice.below(PacketType::ALL.len())].number();
    if let Some(byte) = frame.get_mut(16)
        && dice.below(2) == 0
    {
        *byte = kind;
    }
    frame
}

#[test]
fn damage_is_judged_as_the_daemon_judges_it() {
    let Some(tshark) = Tshark::find() else { return };
    let samples: Vec<Vec<u8>> = samples().into_iter().map(|sample| sample.frame).collect();
    for dialect in DIALECTS {
        let mut dice = Dice(dialect.ethertype().into());
        let mut frames: Vec<Vec<u8>> = (0..3000).map(|_| damaged(&mut dice, &samples)).collect();
        frames.extend((0..3000).map(|_| noise(&mut dice)));
        for (frame, row) in frames.iter().zip(tshark.show(dialect, &[], &frames, &columns())) {
            assert_same(dialect, frame, &row);
        }
    }
}

/// Returns a sample resized to `bytes` bytes, with some of its body changed.
fn resized(number: usize, bytes: usize, edits: &[(usize, u8)]) -> Vec<u8> {
    let mut frame = samples().swap_remove(number - 1).frame;
    frame.resize(bytes, 0);
    edits.iter().for_each(|&(at, value)| frame[16 + at] = value);
    frame
}

/// Each byte of each sample at values where something ends; with enough behind them that lengths of all kinds are there.
#[test]
fn edges_are_judged_as_the_daemon_judges_them() {
    const VALUES: [u8; 15] = [0, 1, 2, 3, 4, 5, 7, 16, 32, 33, 80, 81, 128, 129, 255];
    let Some(tshark) = Tshark::find() else { return };
    let mut frames = Vec::new();
    for sample in samples() {
        for at in 16..60 {
            for value in VALUES {
                let mut frame = sample.frame.clone();
                frame.resize(frame.len().max(200), 0);
                frame[at] = value;
                frames.push(frame);
            }
        }
    }
    frames.extend([1024, 1025].map(|bytes| resized(1, bytes, &[])));
    // Fragments of 4095, 4096 and 4097 bytes, where a message begins that is long enough.
    let lengths = [[0x0f, 0xff], [0x10, 0], [0x10, 1]];
    frames.extend(lengths.map(|[high, low]| resized(9, 5000, &[(4, 0xff), (24, high), (25, low), (26, 0)])));
    frames.extend(lengths.map(|[high, low]| resized(16, 4128, &[(2, high), (3, low)])));
    for dialect in DIALECTS {
        for (frame, row) in frames.iter().zip(tshark.show(dialect, &[], &frames, &columns())) {
            assert_same(dialect, frame, &row);
        }
    }
}

/// Every beginning of each sample, as a frame of its own.
#[test]
fn short_frames_are_judged_as_the_daemon_judges_them() {
    let Some(tshark) = Tshark::find() else { return };
    let cut = |frame: Vec<u8>| (14..frame.len().min(90)).map(move |bytes| frame[..bytes].to_vec());
    let frames: Vec<Vec<u8>> = samples().into_iter().flat_map(|sample| cut(sample.frame)).collect();
    for dialect in DIALECTS {
        for (frame, row) in frames.iter().zip(tshark.show(dialect, &[], &frames, &columns())) {
            assert_same(dialect, frame, &row);
        }
    }
}

/// Every beginning of each sample as what a capture has kept of the whole frame: not the frame's mistake.
#[test]
fn truncated_captures_are_not_reported_as_damage() {
    let Some(tshark) = Tshark::find() else { return };
    let samples = samples();
    let cuts = samples.iter().flat_map(|sample| (14..sample.frame.len().min(90)).map(move |bytes| (sample, bytes)));
    let cuts: Vec<_> = cuts.collect();
    let frames: Vec<(usize, &[u8])> = cuts.iter().map(|(of, bytes)| (of.frame.len(), &of.frame[..*bytes])).collect();
    let shown = ["mxoe.malformed", "mxoe.cut", "_ws.malformed", "mxoe.type"];
    for dialect in DIALECTS {
        for ((of, bytes), row) in cuts.iter().zip(tshark.show_cut(dialect, &[], &frames, &shown)) {
            if of.dialects.contains(&dialect) {
                assert_eq!(
                    (row.get("mxoe.malformed"), row.get("_ws.malformed")),
                    ("", ""),
                    "V{:02}, {bytes}",
                    of.number
                );
            }
            assert_eq!(row.get("mxoe.cut"), "1", "V{:02}, {bytes}", of.number);
            let kind = if *bytes > 16 { of.packet.kind().number().to_string() } else { String::new() };
            assert_eq!(row.get("mxoe.type"), kind, "V{:02}, {bytes}", of.number);
        }
    }
}
