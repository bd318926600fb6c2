//! Domains that do not keep to the rules.

use super::fixture::{GEOMETRY, ServiceFixture, TestDomain, eager, to};
use isthmus_layout::RegionId;
use isthmus_layout::channel::{CELL_WORDS, Direction, full_stamp};
use isthmus_layout::limits::RING_CELLS;
use isthmus_layout::ready_map::{READY_BITS, SUMMARY};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Fragment, MappablePages, Record, Route, Serial};
use isthmus_shm::Words;
use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

const NONE: Fragment = Fragment { offset: 0, len: 0 };

/// Returns the fault of a domain after `does`. A peer has sent the domain one message that costs 128 bytes.
fn fault_after(does: impl Fn(&mut ServiceFixture, &mut TestDomain, &mut TestDomain)) -> Reason {
    let mut fixture = ServiceFixture::allow_all();
    let (mut a, mut b, mut c) = (fixture.attach(), fixture.attach(), fixture.attach());
    b.send_eager(a.id, 1, b"");
    fixture.run_until_idle();
    does(&mut fixture, &mut a, &mut b);
    fixture.run_until_idle();
    let faults = fixture.faults();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(faults[0].0, a.id);
    let counters = &fixture.service.counters()[0];
    assert_eq!((counters.faults.count(faults[0].1), counters.faults.sum()), (1, 1));
    // All other domains go on, and the domain's peer receives a bounce.
    let _ = b.receive_all();
    b.send_eager(a.id, 2, b"");
    c.send_eager(b.id, 3, b"");
    fixture.run_until_idle();
    let records: Vec<_> = b.receive_all().into_iter().map(|arrived| arrived.record).collect();
    assert!(records.contains(&Record::Bounce { serial: Serial(0), reason: Reason::PeerFault.code() }), "{records:?}");
    assert!(records.contains(&Record::Credit { bytes: 128 }) && records.contains(&eager(3, 0)));
    fixture.remove(a.id, Reason::PeerFault);
    fixture.run_until_idle();
    assert_eq!(fixture.events().len(), 1, "removed, as any other");
    faults[0].1
}

#[test]
fn a_sender_that_exceeds_its_credit_is_cut_off_and_what_was_accepted_arrives() {
    let reason = fault_after(|fixture, a, b| {
        for tag in 0..=512 {
            a.send_eager(b.id, tag, b"");
            fixture.run_until_idle();
        }
        let mut tags = Vec::new();
        for _ in 0..10 {
            tags.extend(b.receive_tags());
            fixture.run_until_idle();
        }
        assert!(tags.into_iter().eq(0..512));
    });
    assert_eq!(reason, Reason::CreditExceeded);
}

#[test]
fn unexpected_records_are_violations() {
    let violation =
        |record: Record<'static>, len: usize| fault_after(|_, a, b| a.send(to(b.id), record, &vec![0; len]));
    let serial = Serial(1);
    let mapped = Some(MappablePages { region: RegionId(5), offset: 0, head: 0, tail: 0 });
    let announce = Record::Announce { tag: 1, len: 1 << 20, serial, fragment: NONE, mapped };
    assert_eq!(violation(announce, 0), Reason::RecordUnexpected);
    assert_eq!(violation(Record::NextFragment { serial, fragment: NONE }, 0), Reason::RecordUnexpected);
    assert_eq!(violation(Record::NextFragment { serial, fragment: NONE }, 8193), Reason::RecordUnexpected);
    assert_eq!(violation(Record::Credit { bytes: 0 }, 0), Reason::RecordUnexpected);
    assert_eq!(violation(Record::Credit { bytes: 129 }, 0), Reason::RecordUnexpected);
    let no_peer = |_: &mut ServiceFixture, a: &mut TestDomain, b: &mut TestDomain| {
        a.send(Route { peer: None, ..to(b.id) }, eager(0, 0), &[]);
    };
    assert_eq!(fault_after(no_peer), Reason::RecordUnexpected);
}

#[test]
fn corrupt_ring_state_is_a_violation() {
    let at = GEOMETRY.direction(Direction::Zero);
    let back = GEOMETRY.direction(Direction::One);
    let stamp = fault_after(|_, a, _| {
        a.memory.store(at.ring, 77, Relaxed);
    });
    assert_eq!(stamp, Reason::CellStampInvalid);
    let malformed = fault_after(|_, a, b| {
        a.send_eager(b.id, 1, b"");
        a.memory.store(at.ring + 1, 0xffff_0001, Relaxed);
    });
    assert_eq!(malformed, Reason::MalformedRecord);
    let outside = fault_after(|_, a, b| {
        a.send_fragment(b.id, 1, &[1; 100]);
        let offset = at.ring + CELL_WORDS + 1; // Of the fragment: route, tag, length, serial stand in the cell before.
        assert_eq!(a.memory.load(offset, Relaxed), 0);
        a.memory.store(offset, u32::MAX - 10, Relaxed);
    });
    assert_eq!(outside, Reason::FragmentOutsideSlab);
    let head = fault_after(|fixture, a, b| {
        a.memory.store(back.consumer, 5000, Relaxed);
        for tag in 0..u64::from(RING_CELLS) + 72 {
            b.send_eager(a.id, tag, b"");
            fixture.run_until_idle();
            b.receive_all();
        }
    });
    assert_eq!(head, Reason::RingHeadInvalid);
    let slab = fault_after(|fixture, a, b| {
        a.memory.store(back.consumer + 1, 1 << 30, Relaxed);
        b.send_fragment(a.id, 1, &[1; 100]);
        fixture.run_until_idle();
        b.receive_all();
    });
    assert_eq!(slab, Reason::SlabHeadInvalid);
}

#[test]
fn detaches_a_domain_that_does_not_read_its_ring() {
    let mut fixture = ServiceFixture::allow_all();
    let deaf = fixture.attach();
    let mut other = fixture.attach();
    let mut senders: Vec<_> = (0..258).map(|_| fixture.attach()).collect();
    for sender in &mut senders {
        for tag in 0..7 {
            sender.send_fragment(deaf.id, tag, &[0; 8192]);
            fixture.run_until_idle();
        }
        for tag in 0..57 {
            sender.send_eager(deaf.id, tag, b"");
        }
        fixture.run_until_idle();
    }
    assert_eq!(fixture.faults(), [(deaf.id, Reason::RingNotRead)]);
    assert_eq!(fixture.service.counters()[0].held_bytes.load(Relaxed), 0);
    other.send_eager(other.id, 1, b"");
    fixture.run_until_idle();
    assert_eq!(other.receive_tags(), [1]);
}

#[test]
fn stray_ready_bits_are_counted_and_end_no_domain_of_their_ready_map() {
    let mut fixture = ServiceFixture::allow_all();
    let (mut a, mut b) = (fixture.attach(), fixture.attach());
    fixture.run_until_idle();
    let flood = |fixture: &mut ServiceFixture, a: &TestDomain| {
        for word in 0..isthmus_layout::ready_map::READY_BIT_WORDS {
            a.daemon_ready_map.store(READY_BITS + word, u32::MAX, Relaxed);
        }
        a.daemon_ready_map.store(SUMMARY, u32::MAX, Relaxed);
        fixture.run_until_idle();
    };
    flood(&mut fixture, &a);
    // All but the daemon's bit and the bits of the domains' rings.
    assert_eq!(fixture.service.counters()[0].stray_ready_bits.load(Relaxed), 4093);
    for tag in 0..50 {
        flood(&mut fixture, &a);
        exchange(&mut fixture, &mut a, &mut b, tag);
    }
    assert_eq!(fixture.faults(), []);
    assert!(fixture.service.counters()[0].stray_ready_bits.load(Relaxed) > 4093);
}

/// A message of an honest pair, back and forth.
fn exchange(fixture: &mut ServiceFixture, a: &mut TestDomain, b: &mut TestDomain, tag: u64) {
    a.send_eager(b.id, tag, b"honest");
    fixture.run_until_idle();
    let arrived = b.receive_all();
    assert!(arrived.iter().any(|arrived| arrived.from == a.id && arrived.record == eager(tag, 6)), "{arrived:?}");
    b.send_credit(a.id, 134);
    fixture.run_until_idle();
    let credit = |arrived: &super::fixture::ReceivedRecord| {
        arrived.from == b.id && arrived.record == Record::Credit { bytes: 134 }
    };
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

impl TestDomain {
    /// Writes a lie; `cells` were written before.
    fn lie(&self, lie: &Lie, cells: &mut u32) {
        let (out, back) = (GEOMETRY.direction(Direction::Zero), GEOMETRY.direction(Direction::One));
        let store = |at, word| self.memory.store(at, word, Relaxed);
        match lie {
            Lie::Word { place: 0, at, word } => store(out.ring + at % (RING_CELLS * CELL_WORDS), *word),
            Lie::Word { place: 1, at, word } => store(back.consumer + at % 3, *word),
            Lie::Word { place: 2, at, word } => store(32 + at % 160, *word),
            Lie::Word { at, word, .. } => self.daemon_ready_map.store(at % 192, *word, Relaxed),
            Lie::Cell { head, words } => {
                let cell = out.ring + *cells % RING_CELLS * CELL_WORDS;
                for (at, &word) in (2..).zip(words) {
                    store(cell + at, word);
                }
                store(cell + 1, *head);
                store(cell, full_stamp(*cells));
                *cells += if head >> 16 > 56 { 3 } else { 1 };
            }
        }
        self.daemon_ready_map.store(READY_BITS, u32::MAX, Relaxed);
        self.daemon_ready_map.store(SUMMARY, 1, Relaxed);
    }
}

fn any_record() -> impl Strategy<Value = (u32, Record<'static>, usize)> {
    let number = || prop_oneof![4 => 1..5_u32, 1 => any::<u32>()];
    let len = || prop_oneof![4 => 0..200_usize, 1 => 0..9000_usize];
    let peer = prop_oneof![8 => 1..7_u32, 1 => any::<u32>()];
    let record = prop_oneof![
        (any::<u64>(), 0..129_usize).prop_map(|(tag, len)| (eager(tag, len as u32), len)),
        (any::<u64>(), number(), len()).prop_map(|(tag, serial, len)| {
            (Record::FirstFragment { tag, len: 40_000, serial: Serial(serial | 1), fragment: NONE }, len)
        }),
        (number(), len())
            .prop_map(|(serial, len)| (Record::NextFragment { serial: Serial(serial | 1), fragment: NONE }, len)),
        number().prop_map(|serial| (Record::Pull { serial: Serial(serial | 1), bytes: 1 << 33 }, 0)),
        Just((Record::Switch, 0)),
        prop_oneof![4 => 1..400_u32, 1 => any::<u32>()].prop_map(|bytes| (Record::Credit { bytes }, 0)),
        (any::<u32>(), any::<u16>())
            .prop_map(|(serial, reason)| (Record::Bounce { serial: Serial(serial), reason }, 0)),
    ];
    (peer, record).prop_map(|(peer, (record, len))| (peer, record, len))
}

proptest! {
    /// Whatever a domain writes into its ring and into the ready map, an honest pair of the same owner goes on.
    #[test]
    fn random_words_affect_only_their_domain(lies in prop::collection::vec(lie(), 1..300), step_every in 1..20_usize) {
        let mut fixture = ServiceFixture::allow_all();
        let (mut a, mut b, liar) = (fixture.attach(), fixture.attach(), fixture.attach());
        exchange(&mut fixture, &mut a, &mut b, 1);
        let mut cells = 0;
        for (round, lie) in lies.iter().enumerate() {
            liar.lie(lie, &mut cells);
            if round % step_every == 0 {
                fixture.step();
            }
        }
        for round in 0..3 {
            exchange(&mut fixture, &mut a, &mut b, 10 + round);
        }
        let faults = fixture.faults();
        prop_assert!(faults.iter().all(|&(domain, _)| domain == liar.id));
    }

    /// Well-formed records in any order, to any domain, affect only their sender, and held records stay within the credits.
    #[test]
    fn random_records_affect_only_their_sender(records in prop::collection::vec((3..6_u32, any_record()), 1..400)) {
        let mut fixture = ServiceFixture::allow_all();
        let (mut a, mut b) = (fixture.attach(), fixture.attach());
        let mut liars: Vec<_> = (0..3).map(|_| fixture.attach()).collect();
        for (round, (liar, (peer, record, len))) in records.into_iter().enumerate() {
            let Some(peer) = isthmus_layout::DomainId::new(peer) else { continue };
            // No liar can return credit to the honest domains, because these send no more than one message.
            let _ = liars[liar as usize - 3].try_send(to(peer), record, &vec![1; len]);
            if round % 5 == 0 {
                fixture.run_until_idle();
            }
            if round % 50 == 0 {
                exchange(&mut fixture, &mut a, &mut b, round as u64);
            }
        }
        fixture.run_until_idle();
        let held = fixture.service.counters()[0].held_bytes.load(Relaxed);
        prop_assert!(held <= 9 * u64::from(isthmus_layout::limits::DAEMON_PATH_CREDIT_BYTES));
        prop_assert!(fixture.faults().iter().all(|&(domain, _)| domain > b.id));
    }
}
