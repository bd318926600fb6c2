//! Where the fields of a record stand, found out by setting one after the other to all ones.

use std::fmt::Write as _;

use isthmus_layout::ids::{DomainId, EndpointIndex, RegionId};
use isthmus_layout::record::{Fragment, MappablePages, ReceiveOutcome, Record, Route, Serial};

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
    let kind = base.emit(ROUTE).kind;
    let words = words_of(ROUTE, base);
    let mut table = String::new();
    if fields.is_empty() {
        writeln!(table, "| {kind} | `{name}` | | | nothing |").unwrap();
    }
    for (index, (what, record)) in fields.iter().enumerate() {
        let first = if index == 0 { format!("{kind} | `{name}`") } else { String::from(" |") };
        writeln!(table, "| {first} | {} | {what} |", place_of(&words, &words_of(ROUTE, *record))).unwrap();
    }
    table
}

const END: EndpointIndex = EndpointIndex::new(0).unwrap();
const ROUTE: Route = Route { from: END, to: END, epoch: 0, peer: None };

const ZERO: Serial = Serial(0);
const ALL: Serial = Serial(u32::MAX);
const NONE: Fragment = Fragment { offset: 0, len: 0 };
const OFFSET: Fragment = Fragment { offset: u32::MAX, len: 0 };
const LENGTH: Fragment = Fragment { offset: 0, len: u32::MAX };

fn announce() -> String {
    let mapped = MappablePages { region: RegionId(0), offset: 0, head: 0, tail: 0 };
    let announce = |tag, len, serial, fragment| Record::Announce { tag, len, serial, fragment, mapped: Some(mapped) };
    let with = |mapped| Record::Announce { tag: 0, len: 0, serial: ZERO, fragment: NONE, mapped: Some(mapped) };
    let fields = [
        ("tag", announce(u64::MAX, 0, ZERO, NONE)),
        ("length of the message", announce(0, u64::MAX, ZERO, NONE)),
        ("serial", announce(0, 0, ALL, NONE)),
        ("bytes before the first whole page", with(MappablePages { head: u16::MAX, ..mapped })),
        ("bytes after the last whole page", with(MappablePages { tail: u16::MAX, ..mapped })),
        ("offset of the fragment", announce(0, 0, ZERO, OFFSET)),
        ("length of the fragment", announce(0, 0, ZERO, LENGTH)),
        ("region; 0 where there is none to map", with(MappablePages { region: RegionId(u64::MAX), ..mapped })),
        ("offset in the region", with(MappablePages { offset: u64::MAX, ..mapped })),
    ];
    record_rows("Announce", announce(0, 0, ZERO, NONE), &fields)
}

fn with_message() -> String {
    let eager = |tag| Record::Eager { tag, len: 0, words: &[] };
    let first = |tag, len, serial, fragment| Record::FirstFragment { tag, len, serial, fragment };
    let next = |serial, fragment| Record::NextFragment { serial, fragment };
    let firsts = [
        ("tag", first(u64::MAX, 0, ZERO, NONE)),
        ("length of the message", first(0, u32::MAX, ZERO, NONE)),
        ("serial", first(0, 0, ALL, NONE)),
        ("offset of the fragment", first(0, 0, ZERO, OFFSET)),
        ("length of the fragment", first(0, 0, ZERO, LENGTH)),
    ];
    let nexts = [
        ("serial", next(ALL, NONE)),
        ("offset of the fragment", next(ZERO, OFFSET)),
        ("length of the fragment", next(ZERO, LENGTH)),
    ];
    record_rows("Eager", eager(0), &[("tag; the message's bytes follow", eager(u64::MAX))])
        + &record_rows("FirstFragment", first(0, 0, ZERO, NONE), &firsts)
        + &record_rows("NextFragment", next(ZERO, NONE), &nexts)
}

fn about_messages() -> String {
    let completed = |serial, outcome, bytes| Record::Completed { serial, outcome, bytes };
    let bounce = |serial, reason| Record::Bounce { serial, reason };
    let completions = [
        ("serial", completed(ALL, ReceiveOutcome::Copied, 0)),
        ("outcome (4 bytes): 0 copied, 1 no such region, 2 dropped", completed(ZERO, ReceiveOutcome::NoRegion, 0)),
        ("bytes that went into the receiver's buffer", completed(ZERO, ReceiveOutcome::Copied, u64::MAX)),
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
    ) + &record_rows("Completed", completed(ZERO, ReceiveOutcome::Copied, 0), &completions)
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
        ("the sender's endpoint", Route { from: last, ..ROUTE }),
        ("the receiver's endpoint", Route { to: last, ..ROUTE }),
        ("epoch", Route { epoch: u16::MAX, ..ROUTE }),
        ("the other domain; 0 on a channel", Route { peer: DomainId::new(u32::MAX), ..ROUTE }),
    ];
    let mut table = String::from("| offset | bytes | field |\n| --- | --- | --- |\n");
    for (what, route) in fields {
        writeln!(table, "| {} | {what} |", place_of(&ROUTE.emit(), &route.emit())).unwrap();
    }
    table
}

#[test]
fn records_stand_as_documented() {
    let head = "| kind | name | offset | bytes | field |\n| --- | --- | --- | --- | --- |\n";
    let records = String::from(head) + &with_message() + &announce() + &about_messages();
    super::holds("record.md", &[("route", route()), ("records", records)]);
}
