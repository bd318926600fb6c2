//! Domains that go, in order or not, while much is under way.

use super::world::{World, eager, to};
use crate::{Command, Event};
use isthmus_layout::control::Owner;
use isthmus_layout::limits::RING_CELLS;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Serial};
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn what_is_held_for_one_who_goes_bounces_with_its_credit() {
    let mut world = World::open();
    let (mut a, b) = (world.attach(), world.attach());
    for tag in 0..2 {
        a.send_piece(b.id, tag, &[3; 8192]);
        world.settle();
    }
    for tag in 0..u64::from(RING_CELLS) + 114 {
        a.send_eager(b.id, tag, b"");
        world.settle();
    }
    let held = world.service.counters()[0].held_records.load(Relaxed);
    assert!(held > 100);
    world.remove(b.id, Reason::PeerVanished);
    world.settle();
    let mut answers = a.receive_all();
    world.settle();
    answers.extend(a.receive_all());
    let bounced = |answer: &&super::world::Arrived| matches!(answer.record, Record::Bounce { reason, .. } if reason == Reason::PeerVanished.code());
    assert_eq!(answers.iter().filter(bounced).count() as u64, held);
    assert_eq!(answers.last().unwrap().record, Record::Credit { bytes: 128 * held as u32 });
    assert_eq!(answers.len() as u64, held + 1);
    assert_eq!(world.events(), [Event::Removed { domain: b.id }]);
    assert_eq!(world.service.counters()[0].held_bytes.load(Relaxed), 0);
    assert_eq!(world.service.counters()[0].drops.count(Reason::PeerVanished), held);
    // From now on they are told at once.
    a.send_eager(b.id, 1, b"");
    world.settle();
    assert_eq!(a.receive().unwrap().record, Record::Bounce { serial: Serial(0), reason: Reason::PeerVanished.code() });
}

#[test]
fn what_one_who_goes_has_sent_arrives() {
    let mut world = World::open();
    let (mut a, mut b) = (world.attach(), world.attach());
    for tag in 0..100 {
        a.send_eager(b.id, tag, b"");
        a.send_eager(b.id, 1000 + tag, b"");
        world.settle();
    }
    for tag in 100..200 {
        a.send_eager(b.id, tag, b"");
    }
    // Not taken from its ring yet, or held.
    world.remove(a.id, Reason::PeerDetached);
    drop(a);
    let mut tags = Vec::new();
    for _ in 0..10 {
        world.settle();
        tags.extend(b.receive_tags());
    }
    tags.retain(|&tag| tag < 1000);
    assert!(tags.into_iter().eq(0..200));
    // Credit for it is nobody's, and no fault.
    b.send_credit(super::world::id(1), 128 * 300);
    world.settle();
    assert_eq!(world.events(), [Event::Removed { domain: super::world::id(1) }]);
}

#[test]
fn a_board_can_go_when_its_owner_has() {
    let mut world = World::open();
    let (mut a, b) = (world.attach(), world.attach_as(Owner(9)));
    world.settle();
    world.remove(b.id, Reason::PeerDetached);
    let (worker, board) = (crate::WorkerIndex(0), crate::BoardNumber(1));
    world.service.send(Command::RemoveBoard { worker, board });
    world.service.send(Command::RemoveBoard { worker, board: crate::BoardNumber(0) }); // In use: nothing happens.
    world.settle();
    a.send_eager(a.id, 5, b"");
    world.settle();
    assert_eq!(a.receive_tags(), [5]);
    assert_eq!(std::sync::Arc::strong_count(&b.counters), 1);
}

#[test]
fn domains_come_and_go_without_a_trace() {
    let mut world = World::open();
    let mut stays = world.attach();
    for round in 0..2000_u64 {
        let mut comes = world.attach();
        comes.send_eager(stays.id, round, b"hi");
        world.settle();
        assert_eq!(stays.receive_tags(), [round]);
        stays.send_eager(comes.id, round, b"ho");
        world.settle();
        if round.is_multiple_of(3) {
            assert_eq!(comes.receive_tags(), [round]);
        }
        world.remove(comes.id, Reason::PeerDetached);
        world.settle();
        assert_eq!(stays.receive_all(), [], "what was delivered is not given back by anybody else");
    }
    let (router, waiting) = (&world.workers[0].router, world.workers[0].router.waiting());
    assert_eq!((router.domains(), router.lanes(), waiting), ((1, 2), (0, 0), 0));
    assert_eq!(world.faults(), []);
}

#[test]
fn a_removal_in_the_middle_of_everything_hurts_nobody_else() {
    let mut world = World::open();
    let mut domains: Vec<_> = (0..6).map(|_| world.attach()).collect();
    let peers: Vec<_> = domains.iter().map(|domain| domain.id).collect();
    let mut gone = 0;
    for round in 0..60_u64 {
        for domain in &mut domains {
            for &peer in &peers {
                let _ = domain.try_send(to(peer), eager(round, 20), &[1; 20]);
            }
        }
        world.step();
        if round % 10 == 9 {
            world.remove(domains.pop().unwrap().id, Reason::PeerVanished);
            gone += 1;
        }
        for domain in &mut domains {
            let mut back = Vec::new();
            for arrived in domain.receive_all() {
                match arrived.record {
                    Record::Eager { .. } => back.push(arrived.from),
                    Record::Bounce { reason, .. } => assert_eq!(reason, Reason::PeerVanished.code()),
                    Record::Credit { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            for peer in back {
                domain.send_credit(peer, 148);
            }
        }
    }
    world.settle();
    assert_eq!((world.faults(), gone), (vec![], 6));
}
