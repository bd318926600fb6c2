//! The tables of `docs/spec` are printed from the types. This compares them; `UPDATE=1 cargo test -p isthmus-layout --test spec`
//! writes them. The prose around the tables is written by hand.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write as _;

use isthmus_layout::arena;
use isthmus_layout::board::{self, Place};
use isthmus_layout::border::{self, FrameKind, Handed, lots};
use isthmus_layout::channel::{self, Direction, Geometry, SlabSize};
use isthmus_layout::control::{FieldInfo, HEADER_BYTES, MessageInfo, Resume, ToClient, ToDaemon};
use isthmus_layout::limits;

mod records;

/// Replaces what stands between `<!-- table name -->` and `<!-- end -->` in a page, or compares it.
fn holds(page: &str, tables: &[(&str, String)]) {
    let path = format!("{}/../../docs/spec/{page}", env!("CARGO_MANIFEST_DIR"));
    let stands = std::fs::read_to_string(&path).unwrap();
    let mut printed = stands.clone();
    for (name, table) in tables {
        let begin = format!("<!-- table {name} -->\n");
        let start = printed.find(&begin).unwrap_or_else(|| panic!("{page} has no table {name}")) + begin.len();
        let end = start + printed[start..].find("<!-- end -->").unwrap();
        printed.replace_range(start..end, &format!("\n{table}\n"));
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &printed).unwrap();
    } else {
        assert!(stands == printed, "docs/spec/{page} is not what the types say: run with UPDATE=1");
    }
}

fn fields_table(fields: &[FieldInfo], first: usize) -> String {
    let mut table = String::from("| offset | field | on the wire | meaning |\n| --- | --- | --- | --- |\n");
    let mut offset = Some(first);
    for field in fields {
        let at = offset.map_or_else(|| String::from("then"), |offset| offset.to_string());
        writeln!(table, "| {at} | `{}` | {} | {} |", field.name, (field.describe)(), field.doc.trim()).unwrap();
        offset = offset.filter(|_| field.width.least == field.width.most).map(|offset| offset + field.width.most);
    }
    table
}

fn message_section(info: &MessageInfo) -> String {
    let mut section = format!("### {} {}\n\n{}\n\n", info.kind, info.name, info.doc.trim());
    if !info.fields.is_empty() {
        section.push_str(&fields_table(info.fields, HEADER_BYTES));
        section.push('\n');
    }
    let mut facts = Vec::new();
    if !info.descriptors.is_empty() {
        facts.push(format!("File descriptors: {}.", info.descriptors.join(", ")));
    }
    if let Some(more) = info.more {
        let also = if info.descriptors.is_empty() { "File descriptors" } else { "And" };
        facts.push(format!("{also}, if `{}` is set: {}.", more.field, more.what.join(", ")));
    }
    if !info.reply.is_empty() {
        facts.push(format!("Answer: {}.", info.reply));
    }
    facts.push(format!("Since minor version {}; at most {} bytes.", info.since, HEADER_BYTES + info.width.most));
    section + &facts.join(" ") + "\n"
}

#[test]
fn control_messages_stand_as_documented() {
    let way = |table: &[MessageInfo]| table.iter().map(message_section).collect::<Vec<_>>().join("\n");
    let resume = fields_table(Resume::FIELDS, 0);
    holds(
        "control.md",
        &[("to-daemon", way(ToDaemon::TABLE)), ("to-client", way(ToClient::TABLE)), ("resume", resume)],
    );
}

fn rows(head: &str, rows: &[(u64, u64, &str)]) -> String {
    let mut table = format!("| {head} |\n| {} |\n", vec!["---"; head.split('|').count()].join(" | "));
    for (at, bytes, what) in rows {
        writeln!(table, "| {at} | {bytes} | {what} |").unwrap();
    }
    table
}

#[test]
fn a_channel_stands_as_documented() {
    let geometry = Geometry { slab: SlabSize::new(limits::SLAB_BYTES_DEFAULT).unwrap() };
    let word = 4_u64;
    let ring_bytes = u64::from(limits::RING_CELLS * limits::CELL_BYTES);
    let mut region = Vec::new();
    let names = [
        [
            "consumer block of direction 0",
            "producer block of direction 0",
            "ring of direction 0",
            "slab of direction 0",
        ],
        [
            "consumer block of direction 1",
            "producer block of direction 1",
            "ring of direction 1",
            "slab of direction 1",
        ],
    ];
    for (direction, names) in [Direction::Zero, Direction::One].into_iter().zip(names) {
        let at = geometry.direction(direction);
        region.push((word * u64::from(at.consumer), u64::from(limits::APART_BYTES), names[0]));
        region.push((word * u64::from(at.producer), u64::from(limits::APART_BYTES), names[1]));
        region.push((word * u64::from(at.ring), ring_bytes, names[2]));
        region.push((at.slab, u64::from(geometry.slab.bytes()), names[3]));
    }
    region.sort_unstable();
    let end: u64 = region.iter().map(|(at, bytes, _)| at + bytes).max().unwrap();
    assert_eq!(end, geometry.size().0);
    let block = |words: &[(u32, u64, &'static str)]| {
        rows(
            "offset | bytes | meaning",
            &words.iter().map(|&(at, n, what)| (word * u64::from(at), word * n, what)).collect::<Vec<_>>(),
        )
    };
    let consumer = block(&[
        (channel::HEAD, 1, "`HEAD`: cells consumed so far, free-running"),
        (channel::SLAB_HEAD, 1, "`SLAB_HEAD`: slab bytes given back so far, free-running"),
        (
            channel::PARKED,
            1,
            "`PARKED`: 1 while the consumer wants its board marked instead of looking at this ring, 2 while it looks here and will use a barrier before it stops",
        ),
    ]);
    let producer = block(&[
        (channel::BLOCKED, 1, "`BLOCKED`: 1 while the producer sleeps until the consumer has given something back"),
        (
            channel::SLOWER,
            1,
            "`SLOWER`: for display only: the reasons why its last long message went in pieces (bits 0 to 15) and why the consumer had to ask for what it last wanted of memory registered here (bits 16 to 31); 0 for none",
        ),
        (channel::MESSAGES, 2, "`MESSAGES`: messages sent, for display only, low half first"),
        (channel::BYTES, 2, "`BYTES`: message bytes sent, for display only, low half first"),
        (channel::RINGS, 2, "`RINGS`: doorbells rung, for display only, low half first"),
    ]);
    let cell = block(&[
        (channel::STAMP, 1, "stamp: written last"),
        (
            channel::RECORD_HEAD,
            1,
            "in a record's first cell, its head: kind in bits 0 to 7, zero, body bytes in bits 16 to 31",
        ),
        (2, u64::from(channel::FIRST_BODY_WORDS), "body (in further cells of a record it begins at offset 4)"),
    ]);
    let region = rows("offset | bytes | part", &region);
    holds("channel.md", &[("region", region), ("consumer", consumer), ("producer", producer), ("cell", cell)]);
}

#[test]
fn a_board_stands_as_documented() {
    let at = |word: u32| 4 * u64::from(word);
    let words = rows(
        "offset | bytes | meaning",
        &[
            (
                at(board::ANY),
                4,
                "`ANY`: where a place was marked since the receiver looked last: bit 0 anywhere, bit 1 + *n* in the 256 places from 256 *n* on",
            ),
            (
                at(board::SLEEPING),
                4,
                "`SLEEPING`: 1 while the receiver sleeps: whoever marks a place rings the doorbell",
            ),
            (at(board::MARKS), at(board::MARK_WORDS), "`MARKS`: one bit for each place"),
        ],
    );
    let mut places = String::from("| place | byte | bit | what |\n| --- | --- | --- | --- |\n");
    let last = Place::new(limits::BOARD_PLACES as u16 - 1).unwrap();
    let first = Place::new(Place::FIRST).unwrap();
    let known = [
        (Place::CONTROL, "the daemon: look at the control socket"),
        (Place::DOMAIN_RING, "the domain ring"),
        (first, "the first channel with a peer"),
        (last, "the last"),
    ];
    for (place, what) in known {
        let bit = place.bit().trailing_zeros();
        let byte = at(place.word()) + u64::from(bit / 8);
        writeln!(places, "| {} | {byte} | {} | {what} |", place.number(), bit % 8).unwrap();
    }
    holds("board.md", &[("words", words), ("places", places)]);
}

#[test]
fn an_arena_stands_as_documented() {
    let word = |at: u32| 4 * u64::from(at);
    let table = |words: &[(u32, u32, &'static str)]| {
        let rows_of = |&(at, words, what): &(u32, u32, &'static str)| (word(at), word(words), what);
        rows("offset | bytes | meaning", &words.iter().map(rows_of).collect::<Vec<_>>())
    };
    let file = [
        (0, word(arena::ENTRIES_AT), "the front page"),
        (word(arena::ENTRIES_AT), word(arena::ENTRIES * arena::ENTRY_WORDS), "1024 entries"),
        (word(arena::VISITORS_AT), word(arena::VISITORS * arena::VISITOR_WORDS), "1024 visitors"),
    ];
    assert_eq!((arena::ENTRIES, arena::VISITORS), (1024, 1024));
    let mut file = rows("offset | bytes | part", &file);
    writeln!(file, "| {} | to the end | memory, where entries say; holes |", arena::FRONT.0).unwrap();
    let front = table(&[
        (arena::MAGIC, 1, "`MAGIC`: the bytes `ISA1`"),
        (arena::CHANGES, 1, "`CHANGES`: how often an entry was opened or shut, free-running"),
    ]);
    let entry = table(&[
        (arena::GENERATION, 1, "`GENERATION`: odd while the entry is open"),
        (arena::RIGHTS, 1, "`RIGHTS`: 1, it may be read, and 2, it may be written"),
        (arena::KEY, 2, "`KEY`: what requests call it"),
        (arena::HEAD, 2, "`HEAD`: bytes of the registration before its body"),
        (arena::BODY, 2, "`BODY`: bytes of its body"),
        (arena::START, 2, "`START`: where the body begins in the file"),
    ]);
    let visitor = table(&[
        (arena::DOMAIN, 1, "`DOMAIN`: its number, 0 for nobody"),
        (
            arena::INSIDE,
            1,
            "`INSIDE`: the entry it changes something in just now, counted from 1; 0 for none; 0xffffffff is `EVICTED`",
        ),
    ]);
    assert_eq!((arena::READ, arena::WRITE, arena::EVICTED), (1, 2, u32::MAX));
    holds("arena.md", &[("file", file), ("front", front), ("entry", entry), ("visitor", visitor)]);
}

#[test]
fn a_border_stands_as_documented() {
    let page = u64::from(limits::PAGE_BYTES);
    let window = rows(
        "offset | bytes | part",
        &[
            (0, page, "the head page"),
            (border::CROSSING_AT, border::CROSSING.size().0, "the crossing"),
            (
                border::PIECES_AT,
                border::WINDOW_BYTES_MIN - border::PIECES_AT,
                "pieces, to the end: at least so many bytes",
            ),
        ],
    );
    let at = |word: u32| 4 * u64::from(word);
    let magic = format!("magic: {:#x}, then {:#x}", border::MAGIC[0], border::MAGIC[1]);
    let version = format!("version: {}", border::VERSION);
    let head = rows(
        "offset | bytes | meaning",
        &[
            (at(border::MAGIC_WORD), 8, &magic),
            (at(border::VERSION_WORD), 4, &version),
            (at(border::CALL_WORD), 4, "the call; the guest writes it"),
            (at(border::ANSWER_WORD), 4, "the answer; the host writes it"),
            (at(border::HOST_BEAT_WORD), 4, "the host's beat; 0: it has none"),
            (at(border::GUEST_BEAT_WORD), 4, "the guest's beat; 0: it has none"),
        ],
    );
    let mut frames = format!(
        "| kind | frame | from | content |\n| --- | --- | --- | --- |\n\
         Slabs have {} bytes, and a content at most {}.\n",
        border::CROSSING.slab.bytes(),
        border::FRAME_BYTES_MAX
    );
    let rest = frames.split_off(frames.find("Slabs").unwrap());
    for (kind, from, content) in [
        (FrameKind::Open, "guest", "who has connected"),
        (FrameKind::Packet, "both", "a control message, and what it hands"),
        (FrameKind::Closed, "both", "none: the connection is over"),
        (FrameKind::Taken, "host", "none: 8 more messages of the connection were taken"),
        (FrameKind::Withdrawn, "host", "a piece; of no connection"),
        (FrameKind::Plugged, "guest", "a common window that the guest has now; of no connection"),
        (FrameKind::Unplugged, "guest", "one that it has no longer; of no connection"),
        (FrameKind::Away, "guest", "the same: nobody in the guest sees it any more; of no connection"),
        (FrameKind::Wanted, "host", "a lot that the guest is to make; of no connection"),
        (FrameKind::Lot, "guest", "a lot that was made, or was not; of no connection"),
        (FrameKind::Share, "host", "a window that the guest is to have in common with another one; of no connection"),
        (FrameKind::Offer, "guest", "what the other one needs for that; of no connection"),
        (FrameKind::Part, "host", "such a window that is over; of no connection"),
        (FrameKind::Lend, "host", "a lot of the other guest's; of no connection"),
        (FrameKind::Lent, "guest", "whether it can be mapped; of no connection"),
    ] {
        assert_eq!(FrameKind::from_code(kind.code()), Some(kind));
        writeln!(frames, "| {} | `{kind:?}` | {from} | {content} |", kind.code()).unwrap();
    }
    write!(frames, "\n{rest}").unwrap();
    let handed = handed();
    let all = [("window", window), ("head", head), ("frames", frames), ("handed", handed), ("lots", made())];
    holds("border.md", &[&all[..], &[("shared", shared())]].concat());
}

/// What is handed: each number is looked for where the table says.
fn handed() -> String {
    let bytes = |handed| border::Packet { handed: vec![handed], message: &[] }.emit()[1..].to_vec();
    let piece = bytes(Handed::Piece {
        window: border::WindowNumber(0x0605),
        offset: 0x0807_0605_0403_0201,
        bytes: 0x1817_1615_1413_1211,
        age: 0x2423_2221,
    });
    let (ringer, listener) = (Handed::Ringer { peer: 0x0201, vector: 0x1211 }, Handed::Listener { vector: 0x1211 });
    assert_eq!((&piece[..4], &piece[4..8]), (&[1, 0, 5, 6][..], &[0x21, 0x22, 0x23, 0x24][..]));
    assert_eq!((piece[8], piece[16], piece.len()), (1, 0x11, 24));
    let (window, offset, bytes_there, age) = (border::WindowNumber(1), 0, 0, 0);
    assert_eq!(bytes(Handed::Home { window, offset, bytes: bytes_there, age })[..4], [4, 0, 1, 0]);
    assert_eq!(bytes(Handed::View { window, offset, bytes: bytes_there, age })[..4], [5, 0, 1, 0]);
    assert_eq!(bytes(ringer)[..8], [2, 0, 1, 2, 0x11, 0x12, 0, 0]);
    assert_eq!(bytes(listener)[..8], [3, 0, 0, 0, 0x11, 0x12, 0, 0]);
    rows(
        "offset | bytes | meaning",
        &[
            (
                0,
                2,
                "1: a piece; 2: what rings a vector of a peer; 3: where rings of a vector of the guest's are heard; 4: a piece that is a home; 5: a piece, for reading only",
            ),
            (
                2,
                2,
                "of 1, 4 and 5: the window: 0 is the guest's own; of 2: the peer: 0 is the host, 1 the guest itself, others are other guests",
            ),
            (4, 4, "of 1, 4 and 5: its age, which tells uses of the same bytes apart; of 2 and 3: the vector"),
            (8, 8, "of 1, 4 and 5: its first byte in the window"),
            (16, 8, "of 1, 4 and 5: its bytes"),
        ],
    )
}

/// What stands in the head page, and in frames, of a window that is made of lots.
fn made() -> String {
    let at = |word: u32| 4 * u64::from(word);
    let words = u64::from(4 * lots::RANG_WORDS);
    let head = rows(
        "offset in the head page | bytes | meaning",
        &[
            (at(lots::HOST_RANG_WORD), words, "vectors of the guest that the host has rung, a bit each"),
            (at(lots::GUEST_RANG_WORD), words, "vectors of the host that the guest has rung, a bit each"),
            (at(lots::GUEST_THERE_WORD), 4, "1 while the guest's daemon is there"),
            (at(lots::HOST_THERE_WORD), 4, "1 while the host's daemon maps the window"),
        ],
    );
    let (window, place) = (border::WindowNumber(0x2221), 0x0807_0605_0403_0201);
    let wanted = lots::Wanted { window, place, bytes: 0x1817_1615_1413_1211 }.emit();
    let lot = lots::Lot { window, place, grant: b"G" }.emit();
    assert_eq!((wanted[0], wanted[8], wanted[16], wanted.len()), (1, 0x11, 0x21, 18));
    assert_eq!((lot[0], lot[8], lot[10], lot.len()), (1, 0x21, b'G', 11));
    let frames = rows(
        "offset in `Wanted` or `Lot` | bytes | meaning",
        &[
            (0, 8, "the place of the lot; the host chooses it, and none twice"),
            (8, 8, "in `Wanted`: its bytes, in whole pages"),
            (16, 2, "in `Wanted`: the window; 0 is the guest's own"),
            (8, 2, "in `Lot`: the window"),
            (10, lots::GRANT_BYTES_MAX as u64, "in `Lot`: so many at most: the grant, or nothing if the guest cannot"),
        ],
    );
    format!("{head}\n{frames}")
}

/// What is said of a window that one guest grants to the other.
fn shared() -> String {
    let (window, place) = (border::WindowNumber(0x2221), 0x0807_0605_0403_0201);
    let share = border::shared::Share { window, domain: 0x3231, offer: b"N" }.emit();
    assert_eq!((share[0], share[2], share[4], share.len()), (0x21, 0x31, b'N', 5));
    let offer = border::shared::Offer { window, offer: b"N" }.emit();
    assert_eq!((offer[0], offer[2], offer.len()), (0x21, b'N', 3));
    let lend = border::shared::Lend { window, place, bytes: 0x1817_1615_1413_1211, grant: b"G" }.emit();
    assert_eq!((lend[0], lend[8], lend[16], lend[18], lend.len()), (1, 0x11, 0x21, b'G', 19));
    let lent = border::shared::Lent { window, place, good: true }.emit();
    assert_eq!((lent[0], lent[8], lent[10], lent.len()), (1, 0x21, 1, 11));
    let most = lots::GRANT_BYTES_MAX as u64;
    let of = |frame: &str, fields: &[(u64, u64, &str)]| rows(&format!("offset in `{frame}` | bytes | meaning"), fields);
    [
        of(
            "Share",
            &[
                (0, 2, "the window"),
                (2, 2, "the other guest's domain"),
                (4, most, "so many at most: what that one offers; nothing for the guest that is to offer it"),
            ],
        ),
        of("Offer", &[(0, 2, "the window"), (2, most, "so many at most: the offer; nothing if there is none")]),
        of(
            "Lend",
            &[
                (0, 8, "the place of the lot"),
                (8, 8, "its bytes, in whole pages"),
                (16, 2, "the window"),
                (18, most, "so many at most: the grant"),
            ],
        ),
        of(
            "Lent",
            &[(0, 8, "the place of the lot"), (8, 2, "the window"), (10, 1, "1: it can be mapped; 0: it cannot")],
        ),
    ]
    .join("\n")
}
