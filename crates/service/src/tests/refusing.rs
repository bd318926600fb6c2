//! What is refused, and how the sender hears of it.

use super::world::{World, eager, id, to};
use crate::{Command, Options, Permit};
use isthmus_layout::limits::RING_CELLS;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Outcome, Piece, Record, Route, Serial};
use std::sync::atomic::Ordering::Relaxed;

const NONE: Piece = Piece { offset: 0, len: 0 };

#[test]
fn messages_to_nobody_bounce_and_their_credit_comes_back() {
    let mut world = World::open();
    let mut a = world.attach();
    let nobody = id(99);
    a.send_eager(nobody, 1, b"hello");
    a.send_piece(nobody, 6, &[1; 3000]);
    a.send(to(nobody), Record::Announce { tag: 1, len: 1 << 20, serial: Serial(8), piece: NONE, mapped: None }, &[]);
    a.send(to(nobody), Record::More { serial: Serial(7), piece: NONE }, &[1; 1000]);
    a.send(to(nobody), Record::Pull { serial: Serial(9), bytes: 7 }, &[]);
    a.send(to(nobody), Record::Taken { serial: Serial(9), outcome: Outcome::Copied, bytes: 0 }, &[]);
    let bounce = |serial| Record::Bounce { serial: Serial(serial), reason: Reason::NoSuchDomain.code() };
    let credit = Record::Credit { bytes: 6 * 128 + 5 + 3000 + 1000 };
    a.send(to(nobody), Record::Bounce { serial: Serial(9), reason: 66 }, &[]); // No answer, and nothing back.
    world.settle();
    let answers = a.receive_all();
    let records: Vec<_> = answers.iter().map(|answer| answer.record).collect();
    assert_eq!(records, [bounce(0), bounce(7), bounce(8), bounce(7), bounce(0), bounce(0), credit]);
    for answer in &answers {
        let sent = to(nobody);
        assert_eq!(answer.route, Route { from: sent.to, to: sent.from, epoch: 7, peer: Some(nobody) });
    }
    let counters = &world.service.counters()[0];
    assert_eq!(counters.drops.iter().collect::<Vec<_>>(), [(Reason::NoSuchDomain, 7)]);
    assert_eq!((counters.bounces.load(Relaxed), a.counters.bounces.load(Relaxed)), (6, 6));
    // A library may give credit back for bounces or not.
    a.send_credit(nobody, 6 * 128);
    world.settle();
    assert_eq!((world.faults(), a.receive_all()), (vec![], vec![]));
}

#[test]
fn the_policy_decides_about_messages_and_lets_their_answers_pass() {
    let down = Permit::new(|from, to| if from < to { Ok(()) } else { Err(Reason::TalkForbidden) });
    let mut world = World::new(Options { permit: down, ..Options::default() });
    let (mut a, mut b) = (world.attach(), world.attach());
    a.send(to(b.id), Record::Announce { tag: 1, len: 1 << 20, serial: Serial(8), piece: NONE, mapped: None }, &[]);
    b.send_eager(a.id, 1, b"no");
    b.send(to(a.id), Record::Pull { serial: Serial(8), bytes: 7 }, &[]);
    world.settle();
    assert_eq!(b.receive().unwrap().from, a.id);
    assert_eq!(a.receive().unwrap().record, Record::Pull { serial: Serial(8), bytes: 7 });
    let refused = Record::Bounce { serial: Serial(0), reason: Reason::TalkForbidden.code() };
    assert_eq!(b.receive().unwrap().record, refused);
    assert_eq!(b.receive().unwrap().record, Record::Credit { bytes: 130 });
    // Credits belong to what was delivered before, whatever the policy says now.
    world.service.send(Command::Permit(Permit::new(|_, _| Err(Reason::TalkForbidden))));
    b.send_credit(a.id, 128);
    world.settle();
    assert_eq!(a.receive().unwrap().record, Record::Credit { bytes: 128 });
    a.send_eager(b.id, 2, b"now neither");
    b.send(to(a.id), Record::Pull { serial: Serial(8), bytes: 7 }, &[]);
    world.settle();
    assert_eq!(a.receive().unwrap().record, refused);
    assert_eq!((b.receive().unwrap().record, b.receive().unwrap().record), (refused, Record::Credit { bytes: 128 }));
    world.service.send(Command::Permit(Permit::everything()));
    b.send_eager(a.id, 3, b"yes");
    world.settle();
    assert_eq!(a.receive_tags(), [3]);
    assert_eq!(world.faults(), []);
}

#[test]
fn bounces_wait_for_who_does_not_read_them_and_it_is_not_heard_meanwhile() {
    let mut world = World::open();
    let (mut a, mut b) = (world.attach(), world.attach());
    let mut sent = 0;
    for _ in 0..1000 {
        while a.try_send(to(id(50 + sent % 7)), eager(u64::from(sent), 0), b"").is_ok() {
            sent += 1;
        }
        world.settle();
    }
    assert!(sent < 2 * RING_CELLS + 64 + 64 + 8, "{sent} messages of a domain that reads nothing were taken");
    b.send_eager(b.id, 1, b"");
    world.settle();
    assert_eq!(b.receive_tags(), [1]);
    let (mut bounced, mut credit) = (0, 0);
    for _ in 0..100 {
        for answer in a.receive_all() {
            match answer.record {
                Record::Bounce { .. } => bounced += 1,
                Record::Credit { bytes } => credit += bytes,
                other => panic!("{other:?}"),
            }
        }
        world.settle();
    }
    assert_eq!((bounced, credit), (sent, 128 * sent));
    assert_eq!(world.faults(), []);
}
