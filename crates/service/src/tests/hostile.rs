//! Domains that do not keep to the rules.

use super::world::{Domain, GEOMETRY, World, eager, to};
use isthmus_layout::RegionId;
use isthmus_layout::board::{ANY, MARKS};
use isthmus_layout::channel::{CELL_WORDS, Direction, full};
use isthmus_layout::limits::RING_CELLS;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Mapped, Piece, Record, Route, Serial};
use isthmus_shm::Words;
use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

const NONE: Piece = Piece { offset: 0, len: 0 };

/// What `does` makes of a domain whose peer has sent it one message of 128 bytes cost.
fn fault_after(does: impl Fn(&mut World, &mut Domain, &mut Domain)) -> Reason {
    let mut world = World::open();
    let (mut a, mut b, mut c) = (world.attach(), world.attach(), world.attach());
    b.send_eager(a.id, 1, b"");
    world.settle();
    does(&mut world, &mut a, &mut b);
    world.settle();
    let faults = world.faults();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(faults[0].0, a.id);
    let counters = &world.service.counters()[0];
    assert_eq!((counters.faults.count(faults[0].1), counters.faults.sum()), (1, 1));
    // All others go on, and who talked to it hears of it.
    let _ = b.receive_all();
    b.send_eager(a.id, 2, b"");
    c.send_eager(b.id, 3, b"");
    world.settle();
    let records: Vec<_> = b.receive_all().into_iter().map(|arrived| arrived.record).collect();
    assert!(records.contains(&Record::Bounce { serial: Serial(0), reason: Reason::PeerFault.code() }), "{records:?}");
    assert!(records.contains(&Record::Credit { bytes: 128 }) && records.contains(&eager(3, 0)));
    world.remove(a.id, Reason::PeerFault);
    world.settle();
    assert_eq!(world.events().len(), 1, "removed, as any other");
    faults[0].1
}

#[test]
fn a_sender_that_exceeds_its_credit_is_cut_off_and_what_was_accepted_arrives() {
    let reason = fault_after(|world, a, b| {
        for tag in 0..=512 {
            a.send_eager(b.id, tag, b"");
            world.settle();
        }
        let mut tags = Vec::new();
        for _ in 0..10 {
            tags.extend(b.receive_tags());
            world.settle();
        }
        assert!(tags.into_iter().eq(0..512));
    });
    assert_eq!(reason, Reason::CreditExceeded);
}

#[test]
fn records_out_of_place_are_breaches() {
    let breach = |record: Record<'static>, len: usize| fault_after(|_, a, b| a.send(to(b.id), record, &vec![0; len]));
    let serial = Serial(1);
    let mapped = Some(Mapped { region: RegionId(5), offset: 0, head: 0, tail: 0 });
    let announce = Record::Announce { tag: 1, len: 1 << 20, serial, piece: NONE, mapped };
    assert_eq!(breach(announce, 0), Reason::RecordOutOfPlace);
    assert_eq!(breach(Record::More { serial, piece: NONE }, 0), Reason::RecordOutOfPlace);
    assert_eq!(breach(Record::More { serial, piece: NONE }, 8193), Reason::RecordOutOfPlace);
    assert_eq!(breach(Record::Credit { bytes: 0 }, 0), Reason::RecordOutOfPlace);
    assert_eq!(breach(Record::Credit { bytes: 129 }, 0), Reason::RecordOutOfPlace);
    let nobody = |_: &mut World, a: &mut Domain, b: &mut Domain| {
        a.send(Route { peer: None, ..to(b.id) }, eager(0, 0), &[]);
    };
    assert_eq!(fault_after(nobody), Reason::RecordOutOfPlace);
}

#[test]
fn lies_about_the_ring_are_breaches() {
    let at = GEOMETRY.direction(Direction::Zero);
    let back = GEOMETRY.direction(Direction::One);
    let stamp = fault_after(|_, a, _| {
        a.memory.store(at.ring, 77, Relaxed);
    });
    assert_eq!(stamp, Reason::StampFault);
    let malformed = fault_after(|_, a, b| {
        a.send_eager(b.id, 1, b"");
        a.memory.store(at.ring + 1, 0xffff_0001, Relaxed);
    });
    assert_eq!(malformed, Reason::MalformedRecord);
    let outside = fault_after(|_, a, b| {
        a.send_piece(b.id, 1, &[1; 100]);
        let offset = at.ring + CELL_WORDS + 1; // Of the piece: route, tag, length, serial stand in the cell before.
        assert_eq!(a.memory.load(offset, Relaxed), 0);
        a.memory.store(offset, u32::MAX - 10, Relaxed);
    });
    assert_eq!(outside, Reason::PieceOutside);
    let head = fault_after(|world, a, b| {
        a.memory.store(back.consumer, 5000, Relaxed);
        for tag in 0..u64::from(RING_CELLS) + 72 {
            b.send_eager(a.id, tag, b"");
            world.settle();
            b.receive_all();
        }
    });
    assert_eq!(head, Reason::HeadOverrun);
    let slab = fault_after(|world, a, b| {
        a.memory.store(back.consumer + 1, 1 << 30, Relaxed);
        b.send_piece(a.id, 1, &[1; 100]);
        world.settle();
        b.receive_all();
    });
    assert_eq!(slab, Reason::SlabOverrun);
}

#[test]
fn a_domain_for_which_far_too_much_is_held_is_cut_off() {
    let mut world = World::open();
    let deaf = world.attach();
    let mut other = world.attach();
    let mut senders: Vec<_> = (0..258).map(|_| world.attach()).collect();
    for sender in &mut senders {
        for tag in 0..7 {
            sender.send_piece(deaf.id, tag, &[0; 8192]);
            world.settle();
        }
        for tag in 0..57 {
            sender.send_eager(deaf.id, tag, b"");
        }
        world.settle();
    }
    assert_eq!(world.faults(), [(deaf.id, Reason::NotReading)]);
    assert_eq!(world.service.counters()[0].held_bytes.load(Relaxed), 0);
    other.send_eager(other.id, 1, b"");
    world.settle();
    assert_eq!(other.receive_tags(), [1]);
}

#[test]
fn marks_where_no_ring_is_are_counted_and_nothing_else() {
    let mut world = World::open();
    let mut a = world.attach();
    world.settle();
    for word in 0..isthmus_layout::board::MARK_WORDS {
        a.daemon_board.store(MARKS + word, u32::MAX, Relaxed);
    }
    a.daemon_board.store(ANY, u32::MAX, Relaxed);
    world.settle();
    assert_eq!(world.service.counters()[0].stray_marks.load(Relaxed), 4095);
    a.send_eager(a.id, 1, b"");
    world.settle();
    assert_eq!(a.receive_tags(), [1]);
}

/// A message of an honest pair, back and forth.
fn exchange(world: &mut World, a: &mut Domain, b: &mut Domain, tag: u64) {
    a.send_eager(b.id, tag, b"honest");
    world.settle();
    let arrived = b.receive_all();
    assert!(arrived.iter().any(|arrived| arrived.from == a.id && arrived.record == eager(tag, 6)), "{arrived:?}");
    b.send_credit(a.id, 134);
    world.settle();
    let credit =
        |arrived: &super::world::Arrived| arrived.from == b.id && arrived.record == Record::Credit { bytes: 134 };
    assert!(a.receive_all().iter().any(credit));
}

/// A lie: a word somewhere, or a cell where the next one is expected.
#[derive(Clone, Debug)]
enum Lie {
    Word { place: u8, at: u32, word: u32 },
    Cell { head: u32, words: Vec<u32> },
}

/// Words that lead deeper than random ones.
fn plausible() -> impl Strategy<Value = u32> {
    prop_oneof![150 => 1..4_u32, 1 => 0..130_u32, 1 => any::<u32>(), 1 => prop::sample::select(vec![64, 8192, 65536, 65535])]
}

fn lie() -> impl Strategy<Value = Lie> {
    // Kinds with the body bytes they ask for, and any.
    // Those that most words make into valid records come more often.
    let often = [(1, 20), (1, 144), (3, 20), (5, 12), (7, 8), (8, 12), (9, 16)];
    let sizes: Vec<_> = [often; 6].concat().into_iter().chain([(2, 32), (4, 56), (6, 24)]).collect();
    let fitting = prop::sample::select(sizes).prop_map(|(kind, bytes): (u32, u32)| bytes << 16 | kind);
    let head = prop_oneof![20 => fitting, 1 => any::<u32>()];
    prop_oneof![
        1 => (0..4_u8, any::<u32>(), plausible()).prop_map(|(place, at, word)| Lie::Word { place, at, word }),
        20 => (head, prop::collection::vec(plausible(), 14)).prop_map(|(head, words)| Lie::Cell { head, words }),
    ]
}

impl Domain {
    /// Tells a lie; `cells` were told before.
    fn lie(&self, lie: &Lie, cells: &mut u32) {
        let (out, back) = (GEOMETRY.direction(Direction::Zero), GEOMETRY.direction(Direction::One));
        let store = |at, word| self.memory.store(at, word, Relaxed);
        match lie {
            Lie::Word { place: 0, at, word } => store(out.ring + at % (RING_CELLS * CELL_WORDS), *word),
            Lie::Word { place: 1, at, word } => store(back.consumer + at % 3, *word),
            Lie::Word { place: 2, at, word } => store(32 + at % 160, *word),
            Lie::Word { at, word, .. } => self.daemon_board.store(at % 192, *word, Relaxed),
            Lie::Cell { head, words } => {
                let cell = out.ring + *cells % RING_CELLS * CELL_WORDS;
                for (at, &word) in (2..).zip(words) {
                    store(cell + at, word);
                }
                store(cell + 1, *head);
                store(cell, full(*cells));
                *cells += if head >> 16 > 56 { 3 } else { 1 };
            }
        }
        self.daemon_board.store(MARKS, u32::MAX, Relaxed);
        self.daemon_board.store(ANY, 1, Relaxed);
    }
}

fn any_record() -> impl Strategy<Value = (u32, Record<'static>, usize)> {
    let number = || prop_oneof![4 => 1..5_u32, 1 => any::<u32>()];
    let len = || prop_oneof![4 => 0..200_usize, 1 => 0..9000_usize];
    let peer = prop_oneof![8 => 1..7_u32, 1 => any::<u32>()];
    let record = prop_oneof![
        (any::<u64>(), 0..129_usize).prop_map(|(tag, len)| (eager(tag, len as u32), len)),
        (any::<u64>(), number(), len()).prop_map(|(tag, serial, len)| {
            (Record::Start { tag, len: 40_000, serial: Serial(serial | 1), piece: NONE }, len)
        }),
        (number(), len()).prop_map(|(serial, len)| (Record::More { serial: Serial(serial | 1), piece: NONE }, len)),
        number().prop_map(|serial| (Record::Pull { serial: Serial(serial | 1), bytes: 1 << 33 }, 0)),
        Just((Record::Switch, 0)),
        prop_oneof![4 => 1..400_u32, 1 => any::<u32>()].prop_map(|bytes| (Record::Credit { bytes }, 0)),
        (any::<u32>(), any::<u16>())
            .prop_map(|(serial, reason)| (Record::Bounce { serial: Serial(serial), reason }, 0)),
    ];
    (peer, record).prop_map(|(peer, (record, len))| (peer, record, len))
}

proptest! {
    /// Whatever a domain writes into its ring and onto the board, an honest pair of the same owner goes on.
    #[test]
    fn random_words_hurt_nobody_else(lies in prop::collection::vec(lie(), 1..300), step_every in 1..20_usize) {
        let mut world = World::open();
        let (mut a, mut b, liar) = (world.attach(), world.attach(), world.attach());
        exchange(&mut world, &mut a, &mut b, 1);
        let mut cells = 0;
        for (round, lie) in lies.iter().enumerate() {
            liar.lie(lie, &mut cells);
            if round % step_every == 0 {
                world.step();
            }
        }
        for round in 0..3 {
            exchange(&mut world, &mut a, &mut b, 10 + round);
        }
        let faults = world.faults();
        prop_assert!(faults.iter().all(|&(domain, _)| domain == liar.id));
    }

    /// Well-formed records in any order, to anybody: only their sender can come to harm, and what is held stays within the credits.
    #[test]
    fn any_records_hurt_only_their_sender(records in prop::collection::vec((3..6_u32, any_record()), 1..400)) {
        let mut world = World::open();
        let (mut a, mut b) = (world.attach(), world.attach());
        let mut liars: Vec<_> = (0..3).map(|_| world.attach()).collect();
        for (round, (liar, (peer, record, len))) in records.into_iter().enumerate() {
            let Some(peer) = isthmus_layout::DomainId::new(peer) else { continue };
            // Nobody gives the honest ones credits they are not owed, because these send no more than one message.
            let _ = liars[liar as usize - 3].try_send(to(peer), record, &vec![1; len]);
            if round % 5 == 0 {
                world.settle();
            }
            if round % 50 == 0 {
                exchange(&mut world, &mut a, &mut b, round as u64);
            }
        }
        world.settle();
        let held = world.service.counters()[0].held_bytes.load(Relaxed);
        prop_assert!(held <= 9 * u64::from(isthmus_layout::limits::ORDINARY_CREDIT_BYTES));
        prop_assert!(world.faults().iter().all(|&(domain, _)| domain > b.id));
    }
}
