//! Where the fields of a record stand, found out by setting one after the other to all ones.

use std::fmt::Write as _;

use isthmus_layout::ids::{DomainId, EndpointIndex, RegionId};
use isthmus_layout::record::{Mapped, Outcome, Piece, Record, Route, Serial};

/// Says in which bits two emitted records differ: that is where the field stands in which they differ.
fn place_of(base: &[u32], other: &[u32]) -> String {
    let changed: Vec<(usize, u32)> =
        base.iter().zip(other).enumerate().filter(|(_, (a, b))| a != b).map(|(word, (a, b))| (word, a ^ b)).collect();
    let (first, last) = (changed[0], changed[changed.len() - 1]);
    assert_eq!(last.0 - first.0 + 1, changed.len(), "a field lies in words that do not touch");
    match changed.as_slice() {
        [(word, u32::MAX)] => format!("{} | 4", 4 * word),
        [(word, bits)] => {
            let (low, high) = (bits.trailing_zeros() / 8, 4 - bits.leading_zeros() / 8);
            format!("{} | {}", 4 * *word as u32 + low, high - low)
        }
        _ => format!("{} | {}", 4 * first.0, 4 * changed.len()),
    }
}

fn words_of(route: Route, record: Record<'_>) -> Vec<u32> {
    let emitted = record.emit(route);
    emitted.words[..emitted.count].to_vec()
}

/// A record's kind and, for each field, where it stands: found by setting the field to all ones.
fn record_rows(name: &str, base: Record<'_>, fields: &[(&str, Record<'_>)]) -> String {
    let kind = base.emit(NOBODY).kind;
    let words = words_of(NOBODY, base);
    let mut table = String::new();
    if fields.is_empty() {
        writeln!(table, "| {kind} | `{name}` | | | nothing |").unwrap();
    }
    for (index, (what, record)) in fields.iter().enumerate() {
        let first = if index == 0 { format!("{kind} | `{name}`") } else { String::from(" |") };
        writeln!(table, "| {first} | {} | {what} |", place_of(&words, &words_of(NOBODY, *record))).unwrap();
    }
    table
}

const END: EndpointIndex = EndpointIndex::new(0).unwrap();
const NOBODY: Route = Route { from: END, to: END, epoch: 0, peer: None };

const ZERO: Serial = Serial(0);
const ALL: Serial = Serial(u32::MAX);
const NONE: Piece = Piece { offset: 0, len: 0 };
const OFFSET: Piece = Piece { offset: u32::MAX, len: 0 };
const LENGTH: Piece = Piece { offset: 0, len: u32::MAX };

fn announce() -> String {
    let mapped = Mapped { region: RegionId(0), offset: 0, head: 0, tail: 0 };
    let announce = |tag, len, serial, piece| Record::Announce { tag, len, serial, piece, mapped: Some(mapped) };
    let with = |mapped| Record::Announce { tag: 0, len: 0, serial: ZERO, piece: NONE, mapped: Some(mapped) };
    let fields = [
        ("tag", announce(u64::MAX, 0, ZERO, NONE)),
        ("length of the message", announce(0, u64::MAX, ZERO, NONE)),
        ("serial", announce(0, 0, ALL, NONE)),
        ("bytes before the first whole page", with(Mapped { head: u16::MAX, ..mapped })),
        ("bytes after the last whole page", with(Mapped { tail: u16::MAX, ..mapped })),
        ("offset of the piece", announce(0, 0, ZERO, OFFSET)),
        ("length of the piece", announce(0, 0, ZERO, LENGTH)),
        ("region; 0 where there is none to map", with(Mapped { region: RegionId(u64::MAX), ..mapped })),
        ("offset in the region", with(Mapped { offset: u64::MAX, ..mapped })),
    ];
    record_rows("Announce", announce(0, 0, ZERO, NONE), &fields)
}

fn with_message() -> String {
    let eager = |tag| Record::Eager { tag, len: 0, words: &[] };
    let start = |tag, len, serial, piece| Record::Start { tag, len, serial, piece };
    let more = |serial, piece| Record::More { serial, piece };
    let starts = [
        ("tag", start(u64::MAX, 0, ZERO, NONE)),
        ("length of the message", start(0, u32::MAX, ZERO, NONE)),
        ("serial", start(0, 0, ALL, NONE)),
        ("offset of the piece", start(0, 0, ZERO, OFFSET)),
        ("length of the piece", start(0, 0, ZERO, LENGTH)),
    ];
    let mores = [
        ("serial", more(ALL, NONE)),
        ("offset of the piece", more(ZERO, OFFSET)),
        ("length of the piece", more(ZERO, LENGTH)),
    ];
    record_rows("Eager", eager(0), &[("tag; the message's bytes follow", eager(u64::MAX))])
        + &record_rows("Start", start(0, 0, ZERO, NONE), &starts)
        + &record_rows("More", more(ZERO, NONE), &mores)
}

fn about_messages() -> String {
    let taken = |serial, outcome, bytes| Record::Taken { serial, outcome, bytes };
    let bounce = |serial, reason| Record::Bounce { serial, reason };
    let takens = [
        ("serial", taken(ALL, Outcome::Copied, 0)),
        ("outcome (4 bytes): 0 copied, 1 no such region, 2 dropped", taken(ZERO, Outcome::NoRegion, 0)),
        ("bytes that went into the receiver's buffer", taken(ZERO, Outcome::Copied, u64::MAX)),
    ];
    let abort = |serial, reason| Record::Abort { serial, reason };
    let aborts = [("serial", abort(ALL, 0)), ("code of a reason (4 bytes)", abort(ZERO, u16::MAX))];
    let bounces = [("serial, or 0", bounce(ALL, 0)), ("code of a reason (4 bytes)", bounce(ZERO, u16::MAX))];
    record_rows(
        "Pull",
        Record::Pull { serial: ZERO, bytes: 0 },
        &[
            ("serial", Record::Pull { serial: ALL, bytes: 0 }),
            ("bytes wanted", Record::Pull { serial: ZERO, bytes: u64::MAX }),
        ],
    ) + &record_rows("Taken", taken(ZERO, Outcome::Copied, 0), &takens)
        + &record_rows("Switch", Record::Switch, &[])
        + &record_rows(
            "Credit",
            Record::Credit { bytes: 0 },
            &[("bytes given back", Record::Credit { bytes: u32::MAX })],
        )
        + &record_rows("Bounce", bounce(ZERO, 0), &bounces)
        + &record_rows("Abort", abort(ZERO, 0), &aborts)
}

fn route() -> String {
    let last = EndpointIndex::new(31).unwrap();
    let fields = [
        ("the sender's endpoint", Route { from: last, ..NOBODY }),
        ("the receiver's endpoint", Route { to: last, ..NOBODY }),
        ("epoch", Route { epoch: u16::MAX, ..NOBODY }),
        ("the other domain; 0 on a channel", Route { peer: DomainId::new(u32::MAX), ..NOBODY }),
    ];
    let mut table = String::from("| offset | bytes | field |\n| --- | --- | --- |\n");
    for (what, route) in fields {
        writeln!(table, "| {} | {what} |", place_of(&NOBODY.emit(), &route.emit())).unwrap();
    }
    table
}

#[test]
fn records_stand_as_documented() {
    let head = "| kind | name | offset | bytes | field |\n| --- | --- | --- | --- | --- |\n";
    let records = String::from(head) + &with_message() + &announce() + &about_messages();
    super::holds("record.md", &[("route", route()), ("records", records)]);
}
