//! The tables of `docs/spec` are printed from the types. This compares them; `UPDATE=1 cargo test -p isthmus-layout --test spec`
//! writes them. The prose around the tables is written by hand.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use isthmus_layout::Capability;
use isthmus_layout::arena;
use isthmus_layout::channel::{self, ChannelGeometry, Direction, SlabSize};
use isthmus_layout::control::{FieldInfo, HEADER_BYTES, MessageInfo, Resume, ToClient, ToDaemon, VersionRange};
use isthmus_layout::limits;
use isthmus_layout::proxy::loops::LoopPeer;
use isthmus_layout::proxy::{self, ProxyFrameKind, ResourceRef, grants};
use isthmus_layout::ready_map::{self, ReadyBit};

mod records;
mod streams;

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
        offset = offset.filter(|_| field.width.min == field.width.max).map(|offset| offset + field.width.max);
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
    if let Some(more) = info.optional {
        let also = if info.descriptors.is_empty() { "File descriptors" } else { "And" };
        facts.push(format!("{also}, if `{}` is set: {}.", more.field, more.what.join(", ")));
    }
    if !info.reply.is_empty() {
        facts.push(format!("Answer: {}.", info.reply));
    }
    facts.push(format!("Since minor version {}; at most {} bytes.", info.since, HEADER_BYTES + info.width.max));
    section + &facts.join(" ") + "\n"
}

#[test]
fn control_messages_stand_as_documented() {
    let way = |table: &[MessageInfo]| table.iter().map(message_section).collect::<Vec<_>>().join("\n");
    let resume = fields_table(Resume::FIELDS, 0);
    let tables = [
        ("to-daemon", way(ToDaemon::TABLE)),
        ("to-client", way(ToClient::TABLE)),
        ("resume", resume),
        ("capabilities", capabilities()),
        ("version", version()),
    ];
    holds("control.md", &tables);
}

/// The versions that this source tree speaks.
fn version() -> String {
    let (current, oldest) = (VersionRange::CURRENT.version(), VersionRange::CURRENT.oldest());
    format!("The current version is {current}. A library or daemon of it also speaks {oldest}.\n")
}

/// The blocks of numbers of each capability.
fn capabilities() -> String {
    let mut table = String::from(
        "| capability | to the daemon | to the client | reasons | topics |\n| --- | --- | --- | --- | --- |\n",
    );
    for capability in Capability::ALL {
        let blocks = capability.blocks();
        let cells = [
            number_ranges(blocks.to_daemon),
            number_ranges(blocks.to_client),
            number_ranges(blocks.reasons),
            number_ranges(blocks.topics),
        ];
        writeln!(table, "| {} | {} |", capability.name(), cells.join(" | ")).unwrap();
    }
    table
}

fn number_ranges<N: std::fmt::Display + PartialEq>(blocks: &[RangeInclusive<N>]) -> String {
    let range = |block: &RangeInclusive<N>| match block.start() == block.end() {
        true => block.start().to_string(),
        false => format!("{} to {}", block.start(), block.end()),
    };
    blocks.iter().map(range).collect::<Vec<_>>().join(", ")
}

fn rows(head: &str, rows: &[(u64, u64, &str)]) -> String {
    let mut table = format!("| {head} |\n| {} |\n", vec!["---"; head.split('|').count()].join(" | "));
    for (at, bytes, what) in rows {
        writeln!(table, "| {at} | {bytes} | {what} |").unwrap();
    }
    table
}

/// The words of the producer's block: word, number of words, meaning.
const PRODUCER_WORDS: [(u32, u64, &str); 8] = [
    (channel::BLOCKED, 1, "`BLOCKED`: 1 while the producer sleeps until the consumer has given something back"),
    (
        channel::SLOW_PATH_REASONS,
        1,
        "`SLOW_PATH_REASONS`: for display only: the reasons why its last long message was sent in fragments (bits 0 to 15) and why the consumer had to ask for what it last wanted of memory registered here (bits 16 to 31); 0 for none",
    ),
    (channel::MESSAGES, 2, "`MESSAGES`: messages sent, for display only, low half first"),
    (channel::BYTES, 2, "`BYTES`: message bytes sent, for display only, low half first"),
    (channel::DOORBELLS, 2, "`DOORBELLS`: doorbells rung, for display only, low half first"),
    (
        channel::DIRECT_ACCESSES,
        2,
        "`DIRECT_ACCESSES`: accesses of this side to memory of the other side, made in that memory itself, for display only, low half first",
    ),
    (
        channel::SERVED_ACCESSES,
        2,
        "`SERVED_ACCESSES`: accesses of the other side that this side performed at its request, for display only, low half first",
    ),
    (
        channel::REFUSED_ACCESSES,
        2,
        "`REFUSED_ACCESSES`: requests of the other side for memory that it may not access, for display only, low half first",
    ),
];

#[test]
fn a_channel_stands_as_documented() {
    let geometry = ChannelGeometry { slab: SlabSize::new(limits::SLAB_BYTES_DEFAULT).unwrap() };
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
        region.push((word * u64::from(at.consumer), u64::from(limits::DESTRUCTIVE_INTERFERENCE_BYTES), names[0]));
        region.push((word * u64::from(at.producer), u64::from(limits::DESTRUCTIVE_INTERFERENCE_BYTES), names[1]));
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
            "`PARKED`: 1 while the consumer wants its bit set in the ready map instead of polling this ring, 2 while it polls here and will use a heavy fence before it stops",
        ),
    ]);
    let producer = block(&PRODUCER_WORDS);
    let cell = block(&[
        (channel::STAMP, 1, "stamp: written last"),
        (
            channel::RECORD_HEADER,
            1,
            "in a record's first cell, its header: kind in bits 0 to 7, zero, body bytes in bits 16 to 31",
        ),
        (2, u64::from(channel::FIRST_BODY_WORDS), "body (in further cells of a record it begins at offset 4)"),
    ]);
    let region = rows("offset | bytes | part", &region);
    holds("channel.md", &[("region", region), ("consumer", consumer), ("producer", producer), ("cell", cell)]);
}

#[test]
fn ready_map_layout_matches_its_document() {
    let at = |word: u32| 4 * u64::from(word);
    let words = rows(
        "offset | bytes | meaning",
        &[
            (
                at(ready_map::SUMMARY),
                4,
                "`SUMMARY`: where a bit was set since the receiver looked last: bit 0 anywhere, bit 1 + *n* in the 256 ready bits from 256 *n* on",
            ),
            (
                at(ready_map::SLEEPING),
                4,
                "`SLEEPING`: 1 while the receiver sleeps: the peer that sets a bit rings the doorbell",
            ),
            (at(ready_map::READY_BITS), at(ready_map::READY_BIT_WORDS), "`READY_BITS`: one bit for each channel"),
        ],
    );
    let mut bits = String::from("| ready bit | byte | bit | what |\n| --- | --- | --- | --- |\n");
    let last = ReadyBit::new(limits::READY_MAP_BITS as u16 - 1).unwrap();
    let first = ReadyBit::new(ReadyBit::FIRST_CHANNEL).unwrap();
    let known = [
        (ReadyBit::CONTROL, "the daemon: look at the control socket"),
        (ReadyBit::DOMAIN_RING, "the domain ring"),
        (first, "the first channel with a peer"),
        (last, "the last"),
    ];
    for (ready_bit, what) in known {
        let bit = ready_bit.bit().trailing_zeros();
        let byte = at(ready_bit.word()) + u64::from(bit / 8);
        writeln!(bits, "| {} | {byte} | {} | {what} |", ready_bit.number(), bit % 8).unwrap();
    }
    holds("ready-map.md", &[("words", words), ("bits", bits)]);
}

#[test]
fn an_arena_stands_as_documented() {
    let word = |at: u32| 4 * u64::from(at);
    let table = |words: &[(u32, u32, &'static str)]| {
        let rows_of = |&(at, words, what): &(u32, u32, &'static str)| (word(at), word(words), what);
        rows("offset | bytes | meaning", &words.iter().map(rows_of).collect::<Vec<_>>())
    };
    let file = [
        (0, word(arena::ENTRIES_AT), "the header page"),
        (word(arena::ENTRIES_AT), word(arena::ENTRIES * arena::ENTRY_WORDS), "1024 entries"),
        (word(arena::WRITERS_AT), word(arena::WRITERS * arena::WRITER_WORDS), "1024 writer slots"),
    ];
    assert_eq!((arena::ENTRIES, arena::WRITERS), (1024, 1024));
    let mut file = rows("offset | bytes | part", &file);
    writeln!(file, "| {} | to the end | memory, where entries say; holes |", arena::HEADER.0).unwrap();
    let header = table(&[
        (arena::MAGIC, 1, "`MAGIC`: the bytes `ISA1`"),
        (arena::CHANGES, 1, "`CHANGES`: how often an entry was opened or shut, free-running"),
    ]);
    let entry = table(&[
        (arena::GENERATION, 1, "`GENERATION`: odd while the entry is open"),
        (arena::RIGHTS, 1, "`RIGHTS`: 1 read, 2 write, 4 atomic operations of verbs"),
        (arena::KEY, 2, "`KEY`: what requests call it"),
        (arena::HEAD, 2, "`HEAD`: bytes of the registration before its body"),
        (arena::BODY, 2, "`BODY`: bytes of its body"),
        (arena::START, 2, "`START`: where the body begins in the file"),
        (arena::BASE, 2, "`BASE`: what requests call the first byte of the head"),
    ]);
    let writer = table(&[
        (arena::DOMAIN, 1, "`DOMAIN`: its number, 0 for none"),
        (
            arena::WRITING_ENTRY,
            1,
            "`WRITING_ENTRY`: the entry it changes something in just now, counted from 1; 0 for none; 0xffffffff is `EVICTED`",
        ),
    ]);
    assert_eq!((arena::READ, arena::WRITE, arena::EVICTED), (1, 2, u32::MAX));
    holds("arena.md", &[("file", file), ("header", header), ("entry", entry), ("writer", writer)]);
}

/// The frames of the proxy ring: their senders and contents.
const FRAMES: [(ProxyFrameKind, &str, &str); 19] = [
    (ProxyFrameKind::ClientConnected, "guest", "the program that has connected"),
    (ProxyFrameKind::ControlPacket, "both", "a control message, and the resources that it passes"),
    (ProxyFrameKind::Closed, "both", "none: the connection is over"),
    (ProxyFrameKind::Ack, "host", "none: 8 more messages of the connection are acknowledged"),
    (ProxyFrameKind::RevokedExtent, "host", "a revoked extent; of no connection"),
    (ProxyFrameKind::WindowAttached, "guest", "a pair window that the guest has now; of no connection"),
    (ProxyFrameKind::WindowDetached, "guest", "one that it has no longer; of no connection"),
    (
        ProxyFrameKind::Reclaimed,
        "guest",
        "a revoked extent that no program of the guest maps any more; of no connection",
    ),
    (ProxyFrameKind::GrantRequest, "host", "a grant batch that the guest is to make; of no connection"),
    (ProxyFrameKind::GrantReply, "guest", "a grant batch that was made, or was not; of no connection"),
    (ProxyFrameKind::PairInvite, "host", "a pair window that the guest is to have with another one; of no connection"),
    (ProxyFrameKind::PairOffer, "guest", "what the other one needs for that; of no connection"),
    (ProxyFrameKind::PairClose, "host", "such a window that is over; of no connection"),
    (ProxyFrameKind::MapRequest, "host", "a grant batch of the other guest; of no connection"),
    (ProxyFrameKind::MapReply, "guest", "whether it can be mapped; of no connection"),
    (
        ProxyFrameKind::Addresses,
        "guest",
        "the addresses of the guest's interfaces, if the host takes them; of no connection",
    ),
    (
        ProxyFrameKind::LoopInterfaces,
        "guest",
        "the interfaces that the guest can steer, if the host takes them; of no connection",
    ),
    (ProxyFrameKind::LoopRequest, "guest", "a peer that the guest wants or has no rings with; of no connection"),
    (ProxyFrameKind::LoopPeers, "host", "the guests that this one may reach, and the rings; of no connection"),
];

#[test]
fn proxy_layout_matches_its_document() {
    let page = u64::from(limits::PAGE_BYTES);
    let window = rows(
        "offset | bytes | part",
        &[
            (0, page, "the head page"),
            (proxy::PROXY_RING_OFFSET, proxy::PROXY_RING.size().0, "the proxy ring"),
            (
                proxy::EXTENTS_OFFSET,
                proxy::WINDOW_BYTES_MIN - proxy::EXTENTS_OFFSET,
                "extents, to the end; this is the minimum",
            ),
        ],
    );
    let at = |word: u32| 4 * u64::from(word);
    let magic = format!("magic: {:#x}, then {:#x}", proxy::MAGIC[0], proxy::MAGIC[1]);
    let version = format!("version: {}", proxy::VERSION);
    let head = rows(
        "offset | bytes | meaning",
        &[
            (at(proxy::MAGIC_WORD), 8, &magic),
            (at(proxy::VERSION_WORD), 4, &version),
            (at(proxy::SESSION_REQUEST_WORD), 4, "the session request; the guest writes it"),
            (at(proxy::SESSION_REPLY_WORD), 4, "the session reply; the host writes it"),
            (at(proxy::HOST_HEARTBEAT_WORD), 4, "the host's heartbeat; 0: it has none"),
            (at(proxy::GUEST_HEARTBEAT_WORD), 4, "the guest's heartbeat; 0: it has none"),
            (
                at(proxy::ADDRESSES_WORD),
                4,
                "the request of a session in which the host takes `Addresses`; the host writes it",
            ),
            (
                at(proxy::LOOPS_WORD),
                4,
                "the request of a session in which the host takes `LoopInterfaces`; the host writes it",
            ),
        ],
    );
    let mut frames = format!(
        "| kind | frame | from | content |\n| --- | --- | --- | --- |\n\
         Slabs have {} bytes, and a content at most {}.\n",
        proxy::PROXY_RING.slab.bytes(),
        proxy::PROXY_FRAME_BYTES_MAX
    );
    let rest = frames.split_off(frames.find("Slabs").unwrap());
    for (kind, from, content) in FRAMES {
        assert_eq!(ProxyFrameKind::from_code(kind.code()), Some(kind));
        writeln!(frames, "| {} | `{kind:?}` | {from} | {content} |", kind.code()).unwrap();
    }
    write!(frames, "\n{rest}").unwrap();
    let resources = resource_refs();
    let all =
        [("window", window), ("head", head), ("frames", frames), ("resources", resources), ("grants", grant_batches())];
    holds(
        "guest-proxy.md",
        &[&all[..], &[("pair-window", pair_window()), ("loop-peer", fields_table(LoopPeer::FIELDS, 0))]].concat(),
    );
}

/// References to resources: each number is looked for where the table says.
fn resource_refs() -> String {
    let bytes = |resource| proxy::ControlPacket { resources: vec![resource], message: &[] }.emit()[1..].to_vec();
    let extent = bytes(ResourceRef::Extent {
        window: proxy::WindowId(0x0605),
        offset: 0x0807_0605_0403_0201,
        bytes: 0x1817_1615_1413_1211,
        generation: 0x2423_2221,
    });
    let (doorbell, events) =
        (ResourceRef::Doorbell { peer: 0x0201, vector: 0x1211 }, ResourceRef::VectorEvents { vector: 0x1211 });
    assert_eq!((&extent[..4], &extent[4..8]), (&[1, 0, 5, 6][..], &[0x21, 0x22, 0x23, 0x24][..]));
    assert_eq!((extent[8], extent[16], extent.len()), (1, 0x11, 24));
    let (window, offset, bytes_there, generation) = (proxy::WindowId(1), 0, 0, 0);
    assert_eq!(bytes(ResourceRef::PrivateExtent { window, offset, bytes: bytes_there, generation })[..4], [4, 0, 1, 0]);
    assert_eq!(
        bytes(ResourceRef::ReadOnlyExtent { window, offset, bytes: bytes_there, generation })[..4],
        [5, 0, 1, 0]
    );
    assert_eq!(bytes(doorbell)[..8], [2, 0, 1, 2, 0x11, 0x12, 0, 0]);
    assert_eq!(bytes(events)[..8], [3, 0, 0, 0, 0x11, 0x12, 0, 0]);
    rows(
        "offset | bytes | meaning",
        &[
            (
                0,
                2,
                "1: an extent; 2: a doorbell, which rings a vector of a peer; 3: the events of a vector of the guest; 4: a private extent; 5: an extent, for reading only",
            ),
            (
                2,
                2,
                "of 1, 4 and 5: the window: 0 is the guest's own; of 2: the peer: 0 is the host, 1 the guest itself, others are other guests",
            ),
            (4, 4, "of 1, 4 and 5: its generation, which tells uses of the same bytes apart; of 2 and 3: the vector"),
            (8, 8, "of 1, 4 and 5: its first byte in the window"),
            (16, 8, "of 1, 4 and 5: its bytes"),
        ],
    )
}

/// The head page and the frames of a window that is made of grant batches.
fn grant_batches() -> String {
    let at = |word: u32| 4 * u64::from(word);
    let words = u64::from(4 * grants::PENDING_WORDS);
    let head = rows(
        "offset in the head page | bytes | meaning",
        &[
            (at(grants::HOST_PENDING_WORD), words, "vectors of the guest that the host has rung, a bit each"),
            (at(grants::GUEST_PENDING_WORD), words, "vectors of the host that the guest has rung, a bit each"),
            (at(grants::GUEST_PRESENT_WORD), 4, "1 while the guest's daemon is there"),
            (at(grants::HOST_PRESENT_WORD), 4, "1 while the host's daemon maps the window"),
        ],
    );
    let (window, offset) = (proxy::WindowId(0x2221), 0x0807_0605_0403_0201);
    let request = grants::GrantRequest { window, offset, bytes: 0x1817_1615_1413_1211 }.emit();
    let reply = grants::GrantReply { window, offset, grant: b"G" }.emit();
    assert_eq!((request[0], request[8], request[16], request.len()), (1, 0x11, 0x21, 18));
    assert_eq!((reply[0], reply[8], reply[10], reply.len()), (1, 0x21, b'G', 11));
    let frames = rows(
        "offset in `GrantRequest` or `GrantReply` | bytes | meaning",
        &[
            (0, 8, "the offset of the grant batch; the host chooses it, and none twice"),
            (8, 8, "in `GrantRequest`: its bytes, in whole pages"),
            (16, 2, "in `GrantRequest`: the window; 0 is the guest's own"),
            (8, 2, "in `GrantReply`: the window"),
            (
                10,
                grants::GRANT_DESCRIPTION_BYTES_MAX as u64,
                "in `GrantReply`: at most this many: the grant, or nothing if the guest cannot",
            ),
        ],
    );
    format!("{head}\n{frames}")
}

/// The frames about a window that one guest grants to the other.
fn pair_window() -> String {
    let (window, offset) = (proxy::WindowId(0x2221), 0x0807_0605_0403_0201);
    let invite = proxy::pair_window::PairInvite { window, domid: 0x3231, offer: b"N" }.emit();
    assert_eq!((invite[0], invite[2], invite[4], invite.len()), (0x21, 0x31, b'N', 5));
    let offer = proxy::pair_window::PairOffer { window, offer: b"N" }.emit();
    assert_eq!((offer[0], offer[2], offer.len()), (0x21, b'N', 3));
    let request = proxy::pair_window::MapRequest { window, offset, bytes: 0x1817_1615_1413_1211, grant: b"G" }.emit();
    assert_eq!((request[0], request[8], request[16], request[18], request.len()), (1, 0x11, 0x21, b'G', 19));
    let reply = proxy::pair_window::MapReply { window, offset, mapped: true }.emit();
    assert_eq!((reply[0], reply[8], reply[10], reply.len()), (1, 0x21, 1, 11));
    let max = grants::GRANT_DESCRIPTION_BYTES_MAX as u64;
    let of = |frame: &str, fields: &[(u64, u64, &str)]| rows(&format!("offset in `{frame}` | bytes | meaning"), fields);
    [
        of(
            "PairInvite",
            &[
                (0, 2, "the window"),
                (2, 2, "the other guest's domid"),
                (4, max, "at most this many: the offer of that one; nothing for the guest that is to offer it"),
            ],
        ),
        of("PairOffer", &[(0, 2, "the window"), (2, max, "at most this many: the offer; nothing if there is none")]),
        of(
            "MapRequest",
            &[
                (0, 8, "the offset of the grant batch"),
                (8, 8, "its bytes, in whole pages"),
                (16, 2, "the window"),
                (18, max, "at most this many: the grant"),
            ],
        ),
        of(
            "MapReply",
            &[
                (0, 8, "the offset of the grant batch"),
                (8, 2, "the window"),
                (10, 1, "1: it can be mapped; 0: it cannot"),
            ],
        ),
    ]
    .join("\n")
}
