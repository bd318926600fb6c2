//! Guests: their programs become domains, and whatever a guest does to its window, the others do not notice.

use std::sync::atomic::Ordering;

use isthmus_channel::crossing::Frame;
use isthmus_layout::border::{
    ANSWER_WORD, CROSSING_AT, FRAME_BYTES_MAX, FrameKind, Handed, Open, PIECES_AT, Packet, UNTAKEN_MAX, WindowNumber,
    Withdrawn,
};
use isthmus_layout::control::*;
use isthmus_layout::limits::SLAB_BYTES_MIN;
use isthmus_layout::reason::Reason;
use isthmus_shm::{Payload as _, Words as _};

use crate::bed::{Bed, name};
use crate::guest::{Guest, configured, domains, row, status, until_domains};

const WINDOW_BYTES: u64 = 32 << 20;

fn bed() -> Bed {
    bed_with(WINDOW_BYTES >> 20, 4, "")
}

fn bed_with(window_mib: u64, vectors: u16, more: &str) -> Bed {
    Bed::with(&format!("{}{more}", configured("web", window_mib, vectors)))
}

#[test]
fn a_program_of_a_guest_is_a_domain_whose_memory_lies_in_the_window() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    let (welcome, handed) = guest.attach(1, "solver").unwrap();
    assert_eq!((welcome.name.as_str(), welcome.owner.0), ("solver", rustix::process::geteuid().as_raw()));
    let [Handed::Piece { offset: ring, bytes, .. }, Handed::Piece { .. }, host, Handed::Piece { .. }, own] = handed[..]
    else {
        panic!("{handed:?}")
    };
    assert!(ring >= PIECES_AT && ring + bytes <= WINDOW_BYTES);
    assert_eq!((host, own), (Handed::Ringer { peer: 0, vector: 1 }, Handed::Listener { vector: 1 }));
    let known = domains(&bed);
    assert_eq!((known.domains[0].guest.as_deref(), known.domains[0].pid), (Some("web"), None));
    let row = status(&bed).guests.unwrap().remove(0);
    assert!(row.daemon && row.domains == 1 && row.used_bytes > Some(PIECES_AT), "{row:?}");
    // Its end takes back what it had, and says so.
    guest.frame(FrameKind::Closed, 1, &[]);
    let pieces: Vec<u64> = handed
        .iter()
        .filter_map(|handed| if let Handed::Piece { offset, .. } = handed { Some(*offset) } else { None })
        .collect();
    let mut withdrawn = Vec::new();
    while withdrawn.len() < pieces.len() {
        let (frame, content) = guest.next();
        match frame.kind {
            FrameKind::Withdrawn => withdrawn.push(Withdrawn::parse(&content).unwrap().offset),
            kind => assert_eq!(kind, FrameKind::Packet), // On its way when it closed.
        }
    }
    withdrawn.sort_unstable();
    let mut pieces = pieces;
    pieces.sort_unstable();
    assert_eq!(withdrawn, pieces);
}

#[test]
fn what_a_guest_lets_go_is_empty_when_another_one_gets_it() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    let (_, handed) = guest.attach(1, "one").unwrap();
    let Handed::Piece { offset, bytes, age, .. } = handed[0] else { panic!("{handed:?}") };
    guest.frame(FrameKind::Closed, 1, &[]);
    until_domains(&bed, 0);
    guest.memory.copy_in(offset + bytes - 8, b"a secret");
    let mut connection = 2;
    // First fit: as soon as the bytes are free they are the first.
    loop {
        let (_, handed) = guest.attach(connection, &format!("other{connection}")).unwrap();
        if let Handed::Piece { offset: other, age: later, .. } = handed[0]
            && other == offset
        {
            assert_ne!(later, age);
            let mut found = [1; 8];
            guest.memory.copy_out(offset + bytes - 8, &mut found);
            assert_eq!(found, [0; 8]);
            return;
        }
        guest.frame(FrameKind::Closed, connection, &[]);
        until_domains(&bed, 0);
        connection += 1;
    }
}

#[test]
fn a_guest_has_as_many_domains_as_vectors() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    for connection in 1..=3 {
        guest.attach(connection, &format!("n{connection}")).unwrap();
    }
    assert_eq!(guest.attach(4, "n4").err(), Some(Reason::GuestVectorsFull));
    guest.frame(FrameKind::Closed, 2, &[]);
    until_domains(&bed, 2);
    let (_, handed) = guest.attach(5, "n5").unwrap();
    assert_eq!(handed[4], Handed::Listener { vector: 2 });
}

#[test]
fn a_full_window_makes_rings_smaller_and_refuses_with_the_reason_in_the_end() {
    // A ring has two slabs of 4 MiB, and 16 MiB are not room for two rings and all else.
    let bed = bed_with(16, 64, "[limits]\nslab_kib = 4096\n");
    let mut guest = Guest::start(&bed);
    let before = row(&bed, "web").used_bytes;
    let mut slabs = Vec::new();
    let refused = (1..).find_map(|connection| match guest.attach(connection, &format!("n{connection}")) {
        Ok((welcome, _)) => {
            slabs.push(welcome.slab.bytes());
            None
        }
        Err(reason) => Some(reason),
    });
    assert_eq!(refused, Some(Reason::OutOfMemory));
    assert!(slabs.is_sorted_by(|before, after| before >= after), "{slabs:?}");
    let least = slabs[slabs.len() - 1];
    assert!(slabs[..2] == [4 << 20, 2 << 20] && (SLAB_BYTES_MIN..1 << 20).contains(&least), "{slabs:?}");
    let attached = slabs.len() as u32;
    for connection in 1..=attached {
        guest.frame(FrameKind::Closed, connection, &[]);
    }
    until_domains(&bed, 0);
    // The data plane lets go of its memory in its own time.
    let begun = std::time::Instant::now();
    while row(&bed, "web").used_bytes != before {
        assert!(begun.elapsed().as_secs() < 20, "{:?}", row(&bed, "web"));
        while guest.next_that_is_here().is_some() {}
    }
    let (welcome, _) = guest.attach(attached + 2, "again").unwrap();
    assert_eq!(welcome.slab.bytes(), slabs[0]);
}

#[test]
fn between_a_guest_and_its_host_there_is_no_channel_but_a_reason() {
    let bed = bed();
    let (mut local, welcomed) = bed.attached("local");
    let mut guest = Guest::start(&bed);
    let (welcome, _) = guest.attach(1, "solver").unwrap();
    let refused = local.ask(RequestChannel { peer: welcome.domain, attempt: 1 }, &[]);
    match refused.map(|heard| heard.message) {
        Ok(ToClient::ChannelRefused(refused)) => assert_eq!(refused.reason, Reason::NoCommonMemory),
        other => panic!("{other:?}"),
    }
    guest.say(1, RequestChannel { peer: welcomed.id(), attempt: 1 });
    match guest.hear(1).0 {
        ToClient::ChannelRefused(refused) => assert_eq!(refused.reason, Reason::NoCommonMemory),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_guests_domain_does_not_come_back_with_a_ticket() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    let (welcome, _) = guest.attach(1, "solver").unwrap();
    guest.frame(FrameKind::Closed, 1, &[]);
    until_domains(&bed, 0);
    guest.open(2);
    guest.say(2, Hello { magic: Magic, spoken: Spoken::CURRENT, library: name("test 1") });
    assert!(matches!(guest.hear(2).0, ToClient::HelloBack(_)));
    let resume = Some(Resume { domain: welcome.domain, ticket: welcome.ticket });
    let attach = ToDaemon::from(Attach { name: Some(name("solver")), resume });
    let message = attach.emit(None);
    guest.frame(FrameKind::Packet, 2, &Packet { handed: Vec::new(), message: &message }.emit());
    let (message, _) = guest.hear(2);
    assert!(matches!(message, ToClient::Refused(_)), "{message:?}");
}

#[test]
fn an_end_of_the_machine_is_the_end_of_its_domains_and_the_next_one_finds_nothing() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    guest.attach(1, "solver").unwrap();
    guest.memory.copy_in(WINDOW_BYTES - 6, b"secret");
    drop(guest);
    until_domains(&bed, 0);
    let mut guest = Guest::start(&bed);
    let mut found = [1; 6];
    guest.memory.copy_out(WINDOW_BYTES - 6, &mut found);
    assert_eq!(found, [0; 6]);
    guest.attach(1, "solver").unwrap();
}

#[test]
fn a_daemon_that_comes_back_starts_anew() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    guest.attach(1, "solver").unwrap();
    guest.call();
    until_domains(&bed, 0);
    guest.attach(1, "solver").unwrap();
}

#[test]
fn nonsense_ends_a_conversation_and_nothing_else() {
    let bed = bed();
    let (_local, _) = bed.attached("local");
    let mut guest = Guest::start(&bed);
    let hello = ToDaemon::from(Hello { magic: Magic, spoken: Spoken::CURRENT, library: name("test 1") }).emit(None);
    let handing = Packet { handed: vec![Handed::Listener { vector: 1 }], message: &hello }.emit();
    let empty = Packet { handed: Vec::new(), message: b"" }.emit();
    let long = vec![0; FRAME_BYTES_MAX];
    let nonsense: [(FrameKind, u32, &[u8]); 7] = [
        (FrameKind::Open, 9, b"x"),
        (FrameKind::Open, 1, &Open { uid: 0, pid: 0, program: name("twice") }.emit()),
        (FrameKind::Packet, 1, &handing),
        (FrameKind::Packet, 1, &empty),
        (FrameKind::Packet, 1, &long),
        (FrameKind::Taken, 1, b""),
        (FrameKind::Withdrawn, 0, &Withdrawn { window: WindowNumber::OWN, offset: PIECES_AT, age: 1 }.emit()),
    ];
    for (kind, connection, content) in nonsense {
        guest.attach(1, "solver").unwrap();
        guest.frame(kind, connection, content);
        guest.wait_for(|memory| memory.load(ANSWER_WORD, Ordering::Acquire) == 0);
        until_domains(&bed, 1);
        guest.call();
    }
}

#[test]
fn messages_beyond_what_was_taken_end_a_conversation() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    guest.open(1);
    // A report takes the control plane longer than a frame.
    let ask = ToDaemon::from(Query { topic: Topic::Status, arguments: List::new(Vec::new()).unwrap() }).emit(None);
    let content = Packet { handed: Vec::new(), message: &ask }.emit();
    let frame = Frame { kind: FrameKind::Packet, connection: 1 };
    for _ in 0..4 * UNTAKEN_MAX {
        let _ = guest.crossing.send(frame, &content).unwrap();
    }
    guest.ring();
    guest.wait_for(|memory| memory.load(ANSWER_WORD, Ordering::Acquire) == 0);
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[test]
fn whatever_a_guest_writes_into_its_window_the_others_go_on() {
    let bed = bed();
    let (_local, _) = bed.attached("local");
    let mut dice = Dice(42);
    for round in 0..60 {
        let mut guest = Guest::start(&bed);
        let (_, handed) = guest.attach(1, "hostile").unwrap();
        for _ in 0..50 {
            // Mostly where it matters: the head, the crossing, the domain's ring and boards.
            let Handed::Piece { offset, bytes, .. } = handed[[0, 1, 3][dice.roll(3) as usize]] else { panic!() };
            let (at, within) = [(0, 512), (CROSSING_AT, 16384), (offset, bytes.min(16384))][dice.roll(3) as usize];
            let word = at + dice.roll(within) / 4 * 4;
            let value = [0, 1, u32::MAX, dice.roll(1 << 32) as u32, dice.roll(64) as u32][dice.roll(5) as usize];
            guest.memory.copy_in(word, &value.to_le_bytes());
            for bell in &guest.outward {
                rustix::io::write(bell, &1_u64.to_ne_bytes()).unwrap();
            }
        }
        assert_eq!(status(&bed).guests.unwrap().len(), 1, "round {round}");
        drop(guest);
        until_domains(&bed, 1);
    }
    let (_another, _) = bed.attached("another");
}

#[test]
fn what_is_left_in_a_channel_that_is_over_is_kept_until_it_was_taken() {
    let bed = bed();
    let mut guest = Guest::start(&bed);
    let (one, _) = guest.attach(1, "one").unwrap();
    let (other, _) = guest.attach(2, "other").unwrap();
    guest.say(1, RequestChannel { peer: other.domain, attempt: 1 });
    let (channel, offset) = loop {
        if let (2, ToClient::ChannelOffer(offer), handed) = guest.hear_any() {
            assert_eq!(offer.peer, one.domain);
            let Handed::Piece { offset, .. } = handed[0] else { panic!("{handed:?}") };
            break (offer.channel, offset);
        }
    };
    guest.say(2, AcceptChannel { channel });
    while !matches!(guest.hear(1).0, ToClient::ChannelOpen(_)) {}
    guest.frame(FrameKind::Closed, 1, &[]);
    // Ring and board of the one are taken back, the channel is not, though the other one was told of its end.
    let (mut told, mut withdrawn) = (false, Vec::new());
    while !told || withdrawn.len() < 2 {
        let (frame, content) = guest.next();
        match frame.kind {
            FrameKind::Withdrawn => withdrawn.push(Withdrawn::parse(&content).unwrap().offset),
            _ => told |= frame.connection == 2,
        }
    }
    assert!(!withdrawn.contains(&offset), "{offset} {withdrawn:?}");
    guest.say(2, CloseChannel { channel, reason: Reason::ClosedHere });
    loop {
        let (frame, content) = guest.next();
        if frame.kind == FrameKind::Withdrawn {
            assert_eq!(Withdrawn::parse(&content).unwrap().offset, offset);
            return;
        }
    }
}
