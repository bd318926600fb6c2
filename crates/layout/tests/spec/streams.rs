//! The tables of `docs/spec/stream.md`.

use std::fmt::Write as _;

use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::{self, Interest, StreamEndIndex, StreamPath, StreamState, WaiterIndex, Want};

use crate::{holds, rows};

#[test]
fn a_stream_stands_as_documented() {
    let tables = [
        ("region", region()),
        ("block", block()),
        ("paths", paths()),
        ("state", state()),
        ("want", want()),
        ("listed", listed()),
    ];
    holds("stream.md", &tables);
}

fn region() -> String {
    let block_bytes = u64::from(4 * sockets::BLOCK_WORDS);
    let mut parts: Vec<(u64, u64, String)> = Vec::new();
    for end in StreamEndIndex::ALL {
        parts.push((u64::from(4 * end.block()), block_bytes, format!("block of end {}", end.number())));
    }
    parts.push((2 * block_bytes, u64::from(PAGE_BYTES) - 2 * block_bytes, String::from("unused")));
    for path in [StreamPath::Small, StreamPath::Large] {
        for end in StreamEndIndex::ALL {
            let what = format!("{path:?} ring of direction {}", end.number()).to_lowercase();
            parts.push((path.ring_start(end).unwrap(), u64::from(path.bytes()), what));
        }
    }
    let end = parts.iter().fold(0, |end, (at, bytes, _)| {
        assert_eq!(*at, end, "parts follow each other");
        at + bytes
    });
    assert_eq!(end, sockets::STREAM_SIZE.0);
    let parts: Vec<_> = parts.iter().map(|(at, bytes, what)| (*at, *bytes, what.as_str())).collect();
    rows("offset | bytes | part", &parts)
}

fn block() -> String {
    let words = [
        (sockets::TAIL, 4, "`TAIL`: position behind the last byte written to a ring"),
        (sockets::TAIL_HIGH, 4, "its high half"),
        (sockets::SWITCHES, 4, "`SWITCHES`: switches announced, free-running"),
        (sockets::SWITCH_AT, 8, "`SWITCH_AT`: positions of the last switch with an even and with an odd number"),
        (sockets::SWITCH_PATH, 8, "`SWITCH_PATH`: paths from there on, in the same order"),
        (sockets::TCP_BYTES, 8, "`TCP_BYTES`: bytes by TCP up to that switch, low half first"),
        (sockets::HEAD, 4, "`HEAD`: position behind the last byte read, on any path"),
        (sockets::HEAD_HIGH, 4, "its high half"),
        (sockets::READS_TCP, 4, "`READS_TCP`: 1 while a call reads TCP that began without a limit"),
        (sockets::TAKEN, 4, "`TAKEN`: switches taken, free-running"),
        (sockets::STATE, 4, "`STATE`: bits, see below"),
        (Interest::Data.want_word(), 4, "`WANT_DATA`: the wish of this end for data, see below"),
        (sockets::SLEEPS, 4, "`SLEEPS`: times that this end slept, free-running"),
        (Interest::Room.want_word(), 4, "`WANT_ROOM`: the wish of this end for room, see below"),
    ];
    rows("offset | bytes | meaning", &words.map(|(word, bytes, what)| (u64::from(4 * word), bytes, what)))
}

fn paths() -> String {
    let mut table = String::from("| number | path | bytes of the ring |\n| --- | --- | --- |\n");
    for path in [StreamPath::Tcp, StreamPath::Small, StreamPath::Large] {
        let bytes = if path == StreamPath::Tcp { String::from("none") } else { path.bytes().to_string() };
        writeln!(table, "| {} | `{path:?}` | {bytes} |", path.word()).unwrap();
    }
    table
}

fn state() -> String {
    let mut table = String::from("| value | bit of `STATE` | meaning |\n| --- | --- | --- |\n");
    for (bit, name, what) in [
        (StreamState::ATTACHED, "ATTACHED", "this end maps the memory and checks its words"),
        (StreamState::HALF_CLOSED, "HALF_CLOSED", "this end sends no more; set before `shutdown(SHUT_WR)`"),
        (StreamState::CLOSED, "CLOSED", "this end was closed, as far as its process knows; the peer asks the kernel"),
        (StreamState::TCP_PLEASE, "TCP_PLEASE", "this end asks for bytes by TCP"),
        (StreamState::LEFT, "LEFT", "this end reads no ring any more; `HEAD` is final"),
        (StreamState::RETURNED, "RETURNED", "this end has sent by TCP what the peer had not read when it left"),
        (StreamState::FORKED, "FORKED", "several processes have this end since `fork`"),
    ] {
        writeln!(table, "| {bit} | `{name}` | {what} |").unwrap();
    }
    table
}

/// The bits of a wish: each field is looked for where the table says.
fn want() -> String {
    let waiter = |number| WaiterIndex::new(number).unwrap();
    let parked = |number, bit| Want::Parked { waiter: waiter(number), ready_bit: ReadyBit::new(bit).unwrap() }.word();
    assert_eq!((parked(0, 0), Want::Hot(waiter(0)).word()), (1, 4));
    assert_eq!((parked(63, 0), parked(0, 4095)), (1 | 63 << 4, 1 | 4095 << 16));
    let mut table = String::from("| bits of a wish | meaning |\n| --- | --- |\n");
    for (bits, what) in [
        ("0", "*parked*: the waiter wants its ready bit, once"),
        ("2", "*hot*: the waiter checks this stream before it sleeps"),
        ("4 to 11", "the waiter, 0 to 63"),
        ("16 to 27", "the ready bit"),
    ] {
        writeln!(table, "| {bits} | {what} |").unwrap();
    }
    table
}

fn listed() -> String {
    let at = |word: u32| u64::from(4 * word);
    let bits = u64::from(sockets::LISTED_BITS_COUNT / 8);
    let end = at(sockets::LISTED_BITS) + bits;
    rows(
        "offset | bytes | part",
        &[
            (at(sockets::LISTED_KEY), at(sockets::LISTED_KEY_WORDS), "`KEY` of the hash, drawn when the daemon starts"),
            (at(sockets::LISTED_BITS), bits, "`BITS`: one bit for each value of the hash"),
            (end, sockets::LISTED_SIZE.0 - end, "unused"),
        ],
    )
}
