//! The tables of `docs/spec/mxoe.md` are printed from what packets emit. This compares them; `UPDATE=1 cargo test -p isthmus-mx
//! --test wire spec` writes them. The prose around the tables is written by hand.
//!
//! The position of a field is found by emitting its packet twice, with the field all zeros and all ones.

use std::collections::BTreeSet;

use isthmus_mx::wire::{Announcement, Dialect, HEADER_BYTES, Header, Malformed, Packet, PacketType, PeerIndex, Sizes};

use crate::spec_packets::{Bodies, bodies};
use crate::{DIALECTS, frame};

/// Replaces the text between `<!-- table name -->` and `<!-- end -->` in the page, or compares it.
fn holds(tables: &[(&str, String)]) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/spec/mxoe.md");
    let stands = std::fs::read_to_string(path).unwrap();
    let mut printed = stands.clone();
    for (name, table) in tables {
        let begin = format!("<!-- table {name} -->\n");
        let start = printed.find(&begin).unwrap_or_else(|| panic!("the page has no table {name}")) + begin.len();
        let end = start + printed[start..].find("<!-- end -->").unwrap();
        printed.replace_range(start..end, &format!("\n{table}\n"));
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &printed).unwrap();
    } else {
        assert!(stands == printed, "docs/spec/mxoe.md is not what the types say: run with UPDATE=1");
    }
}

fn table(head: &str, rows: impl IntoIterator<Item = String>) -> String {
    let line = vec!["---"; head.split('|').count()].join(" | ");
    rows.into_iter().fold(format!("| {head} |\n| {line} |\n"), |table, row| table + "| " + &row + " |\n")
}

/// Returns the ranges in which two frames of one length differ: offset and bytes.
fn differences(base: &[u8], other: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in (0..base.len().min(other.len())).filter(|at| base[*at] != other[*at]) {
        match runs.last_mut() {
            Some((start, bytes)) if *start + *bytes == at => *bytes += 1,
            _ => runs.push((at, 1)),
        }
    }
    runs
}

/// Returns the rows of a packet in one dialect: offset in the body, bytes, field.
fn rows(dialect: Dialect, Bodies { base, fields, lengths, constants }: &Bodies) -> Vec<(usize, String)> {
    let header = |number| Header { dst: crate::samples::A, src: crate::samples::B, peer_index: PeerIndex::new(number) };
    let head = base.head_bytes(dialect);
    let emitted =
        |packet: &Packet<Vec<u8>>| frame(dialect, &header(0), packet).ok().map(|frame| frame[..head].to_vec());
    let zeros = emitted(base).unwrap();
    let mut rows = Vec::new();
    let mut known: BTreeSet<usize> = BTreeSet::new();
    let mut row = |at: usize, bytes: usize, what: &str| {
        let is_new = (at..at + bytes).all(|byte| known.insert(byte));
        assert!(is_new, "two fields of {:?} stand at {at}", base.kind());
        rows.push((at - HEADER_BYTES, format!("{} | {bytes} | {what}", at - HEADER_BYTES)));
    };
    row(HEADER_BYTES, 1, "type");
    for &(at, bytes, what) in *constants {
        let value = zeros[HEADER_BYTES + at..][..bytes].iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        row(HEADER_BYTES + at, bytes, &format!("{what}, always {value}"));
    }
    for (what, packet) in fields {
        let Some(ones) = emitted(packet) else { panic!("{:?} with {what} cannot be said", base.kind()) };
        // A field in two positions has a text for each.
        for ((at, bytes), what) in differences(&zeros, &ones).into_iter().zip(what.split(" // ")) {
            row(at, bytes, what);
        }
    }
    for (what, width, packet) in lengths {
        // A length is never large, so it shows in its last byte.
        let (at, bytes) = differences(&zeros, &emitted(packet).unwrap())[0];
        let width = width(dialect);
        row(at + bytes - width, width, what);
    }
    if base.kind() == PacketType::NackLib {
        let ones = frame(dialect, &header(0xffff), base).unwrap();
        row(differences(&zeros, &ones)[1].0, 2, "`dst_src_peer_index`: the header's again");
    }
    let silent = (HEADER_BYTES..head).find(|at| zeros[*at] != 0 && !known.contains(at));
    assert_eq!(silent, None, "{:?} has bytes that no row tells of", base.kind());
    rows.sort();
    match base {
        Packet::HostReply(_) => rows.push((head, format!("{} | | the name and a NUL", head - 1 - HEADER_BYTES))),
        _ if base.data().is_some() => rows.push((head, format!("{} | | data", head - HEADER_BYTES))),
        _ => {}
    }
    rows
}

/// Returns the table of all packets. Packets that differ by dialect have a row for each.
fn packets() -> String {
    let mut all = Vec::new();
    for (name, of) in bodies() {
        let [mx, open_mx] = DIALECTS.map(|dialect| rows(dialect, &of(dialect)));
        let kind = of(Dialect::Mx).base.kind().number();
        let mut put = |title: &str, rows: Vec<(usize, String)>| {
            for (index, (_, row)) in rows.into_iter().enumerate() {
                let first = if index == 0 { format!("{kind} | {title}") } else { String::from(" | ") };
                all.push(format!("{first} | {row}"));
            }
        };
        if mx == open_mx {
            put(name, mx);
        } else {
            put(&format!("{name}, MX mode"), mx);
            put(&format!("{name}, Open-MX mode"), open_mx);
        }
    }
    table("type | packet | offset | bytes | field", all)
}

fn header() -> String {
    let zero = isthmus_layout::NicId::from_octets([0; 6]);
    let nobody = Header { dst: zero, src: zero, peer_index: PeerIndex::new(0) };
    let ethertype = |ethertype| Dialect::OpenMx { ethertype };
    let base = nobody.emit(ethertype(0));
    let all = isthmus_mx::wire::BROADCAST;
    let fields = [
        ("the board that the frame is for", Header { dst: all, ..nobody }.emit(ethertype(0))),
        ("the board that sent it", Header { src: all, ..nobody }.emit(ethertype(0))),
        ("ethertype", nobody.emit(ethertype(0xffff))),
        (
            "`dst_src_peer_index`: the receiver's number for the sender; 0xffff before the sender has learned it",
            Header { peer_index: None, ..nobody }.emit(ethertype(0)),
        ),
    ];
    let rows = fields.iter().map(|(what, ones)| {
        let [(at, bytes)] = differences(&base, ones)[..] else { panic!("{what} stands in two places") };
        format!("{at} | {bytes} | {what}")
    });
    table("offset | bytes | field", rows)
}

fn announcement() -> String {
    let nobody = Announcement { nic_id: isthmus_layout::NicId::from_octets([0; 6]), serial: 0 };
    let fields = [
        (
            "the board's address, in the lower 48 bits",
            8,
            Announcement { nic_id: isthmus_mx::wire::BROADCAST, ..nobody },
        ),
        ("serial", 4, Announcement { serial: u32::MAX, ..nobody }),
    ];
    let rows = fields.iter().map(|(what, width, ones)| {
        let [(at, bytes)] = differences(&nobody.emit(), &ones.emit())[..] else { panic!("{what} is in two places") };
        format!("{} | {width} | {what}", 1 + at + bytes - width)
    });
    table("offset | bytes | field", rows)
}

fn types() -> String {
    let spoken: BTreeSet<u8> = bodies().iter().map(|(_, of)| of(Dialect::Mx).base.kind().number()).collect();
    let rows = PacketType::ALL.iter().map(|kind| {
        let said = if spoken.contains(&kind.number()) { "" } else { "dropped" };
        format!("{} | `{kind:?}` | {said}", kind.number())
    });
    table("type | name |", rows)
}

fn sizes() -> String {
    let of = |title: &str, sizes: Sizes| {
        format!(
            "{title} | {} | {} | {} | {} | {} | {}",
            sizes.frame_bytes_max(),
            sizes.fragment_bytes(),
            sizes.medium_bytes_max(),
            sizes.reply_bytes(),
            sizes.block_frames(),
            sizes.block_bytes()
        )
    };
    let open_mx = [1500, 9000].map(|limit| of(&format!("Open-MX, {limit}"), Sizes::open_mx(limit).unwrap()));
    table(
        "network | longest frame | fragment | longest message in fragments | data of a PULL_REPLY | frames of a block | block",
        [of("MX", Sizes::MX)].into_iter().chain(open_mx),
    )
}

fn reasons() -> String {
    let more = [
        Malformed::Short { have: 30, need: 40 },
        Malformed::Ethertype(0x86dd),
        Malformed::AnnouncedNic(0x0001_001b_21aa_0001),
    ];
    let known: Vec<Malformed> =
        crate::refusals::changes().into_iter().map(|(_, _, malformed)| malformed).chain(more).collect();
    let example = |reason: &str| known.iter().find(|malformed| malformed.reason() == reason).unwrap();
    table("reason | for example", Malformed::REASONS.iter().map(|reason| format!("`{reason}` | {}", example(reason))))
}

#[test]
fn packets_stand_as_documented() {
    holds(&[
        ("header", header()),
        ("types", types()),
        ("packets", packets()),
        ("announcement", announcement()),
        ("sizes", sizes()),
        ("reasons", reasons()),
    ]);
}
