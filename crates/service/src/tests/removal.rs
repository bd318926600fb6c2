//! Domains that go, in order or not, while much is under way.

use super::fixture::{ServiceFixture, eager, to};
use crate::{Command, Event};
use isthmus_layout::control::Owner;
use isthmus_layout::limits::RING_CELLS;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Serial};
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn held_records_bounce_with_their_credit_when_the_receiver_leaves() {
    let mut fixture = ServiceFixture::allow_all();
    let (mut a, b) = (fixture.attach(), fixture.attach());
    for tag in 0..2 {
        a.send_fragment(b.id, tag, &[3; 8192]);
        fixture.run_until_idle();
    }
    for tag in 0..u64::from(RING_CELLS) + 114 {
        a.send_eager(b.id, tag, b"");
        fixture.run_until_idle();
    }
    let held = fixture.service.counters()[0].held_records.load(Relaxed);
    assert!(held > 100);
    fixture.remove(b.id, Reason::PeerConnectionLost);
    fixture.run_until_idle();
    let mut answers = a.receive_all();
    fixture.run_until_idle();
    answers.extend(a.receive_all());
    let lost = Reason::PeerConnectionLost.code();
    let bounced = |answer: &&super::fixture::ReceivedRecord| matches!(answer.record, Record::Bounce { reason, .. } if reason == lost);
    assert_eq!(answers.iter().filter(bounced).count() as u64, held);
    assert_eq!(answers.last().unwrap().record, Record::Credit { bytes: 128 * held as u32 });
    assert_eq!(answers.len() as u64, held + 1);
    assert_eq!(fixture.events(), [Event::Removed { domain: b.id }]);
    assert_eq!(fixture.service.counters()[0].held_bytes.load(Relaxed), 0);
    assert_eq!(fixture.service.counters()[0].drops.count(Reason::PeerConnectionLost), held);
    // From now on they are refused at once.
    a.send_eager(b.id, 1, b"");
    fixture.run_until_idle();
    assert_eq!(
        a.receive().unwrap().record,
        Record::Bounce { serial: Serial(0), reason: Reason::PeerConnectionLost.code() }
    );
}

#[test]
fn records_sent_before_leaving_are_delivered() {
    let mut fixture = ServiceFixture::allow_all();
    let (mut a, mut b) = (fixture.attach(), fixture.attach());
    for tag in 0..100 {
        a.send_eager(b.id, tag, b"");
        a.send_eager(b.id, 1000 + tag, b"");
        fixture.run_until_idle();
    }
    for tag in 100..200 {
        a.send_eager(b.id, tag, b"");
    }
    // Not taken from its ring yet, or held.
    fixture.remove(a.id, Reason::PeerDetached);
    drop(a);
    let mut tags = Vec::new();
    for _ in 0..10 {
        fixture.run_until_idle();
        tags.extend(b.receive_tags());
    }
    tags.retain(|&tag| tag < 1000);
    assert!(tags.into_iter().eq(0..200));
    // Credit for it is dropped, and no fault.
    b.send_credit(super::fixture::id(1), 128 * 300);
    fixture.run_until_idle();
    assert_eq!(fixture.events(), [Event::Removed { domain: super::fixture::id(1) }]);
}

#[test]
fn ready_map_can_be_removed_after_its_owner() {
    let mut fixture = ServiceFixture::allow_all();
    let (mut a, b) = (fixture.attach(), fixture.attach_as(Owner(9)));
    fixture.run_until_idle();
    fixture.remove(b.id, Reason::PeerDetached);
    let (worker, ready_map) = (crate::WorkerIndex(0), crate::WorkerReadyMapId(1));
    fixture.service.send(Command::RemoveReadyMap { worker, ready_map });
    fixture.service.send(Command::RemoveReadyMap { worker, ready_map: crate::WorkerReadyMapId(0) }); // In use: nothing happens.
    fixture.run_until_idle();
    a.send_eager(a.id, 5, b"");
    fixture.run_until_idle();
    assert_eq!(a.receive_tags(), [5]);
    assert_eq!(std::sync::Arc::strong_count(&b.counters), 1);
}

#[test]
fn attach_and_detach_leave_no_state() {
    let mut fixture = ServiceFixture::allow_all();
    let mut stays = fixture.attach();
    for round in 0..2000_u64 {
        let mut comes = fixture.attach();
        comes.send_eager(stays.id, round, b"hi");
        fixture.run_until_idle();
        assert_eq!(stays.receive_tags(), [round]);
        stays.send_eager(comes.id, round, b"ho");
        fixture.run_until_idle();
        if round.is_multiple_of(3) {
            assert_eq!(comes.receive_tags(), [round]);
        }
        fixture.remove(comes.id, Reason::PeerDetached);
        fixture.run_until_idle();
        assert_eq!(stays.receive_all(), [], "a delivered record is not returned a second time");
    }
    let (router, waiting) = (&fixture.workers[0].shared.router, fixture.workers[0].shared.router.waiting());
    assert_eq!((router.domains(), router.flow_counts(), waiting), ((1, 2), (0, 0), 0));
    assert_eq!(fixture.faults(), []);
}

#[test]
fn removal_under_load_affects_no_other_domain() {
    let mut fixture = ServiceFixture::allow_all();
    let mut domains: Vec<_> = (0..6).map(|_| fixture.attach()).collect();
    let peers: Vec<_> = domains.iter().map(|domain| domain.id).collect();
    let mut gone = 0;
    for round in 0..60_u64 {
        for domain in &mut domains {
            for &peer in &peers {
                let _ = domain.try_send(to(peer), eager(round, 20), &[1; 20]);
            }
        }
        fixture.step();
        if round % 10 == 9 {
            fixture.remove(domains.pop().unwrap().id, Reason::PeerConnectionLost);
            gone += 1;
        }
        for domain in &mut domains {
            let mut back = Vec::new();
            for arrived in domain.receive_all() {
                match arrived.record {
                    Record::Eager { .. } => back.push(arrived.from),
                    Record::Bounce { reason, .. } => assert_eq!(reason, Reason::PeerConnectionLost.code()),
                    Record::Credit { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            for peer in back {
                domain.send_credit(peer, 148);
            }
        }
    }
    fixture.run_until_idle();
    assert_eq!((fixture.faults(), gone), (vec![], 6));
}
