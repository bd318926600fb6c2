//! Refused records, and the bounces that their senders receive.

use super::fixture::{ServiceFixture, eager, id, to};
use crate::{Command, SendPolicy, ServiceOptions};
use isthmus_layout::limits::RING_CELLS;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Fragment, ReceiveOutcome, Record, Route, Serial};
use std::sync::atomic::Ordering::Relaxed;

const NONE: Fragment = Fragment { offset: 0, len: 0 };

#[test]
fn messages_to_unknown_domains_bounce_and_return_credit() {
    let mut fixture = ServiceFixture::allow_all();
    let mut a = fixture.attach();
    let unknown = id(99);
    a.send_eager(unknown, 1, b"hello");
    a.send_fragment(unknown, 6, &[1; 3000]);
    a.send(
        to(unknown),
        Record::Announce { tag: 1, len: 1 << 20, serial: Serial(8), fragment: NONE, mapped: None },
        &[],
    );
    a.send(to(unknown), Record::NextFragment { serial: Serial(7), fragment: NONE }, &[1; 1000]);
    a.send(to(unknown), Record::Pull { serial: Serial(9), bytes: 7 }, &[]);
    a.send(to(unknown), Record::Completed { serial: Serial(9), outcome: ReceiveOutcome::Copied, bytes: 0 }, &[]);
    let bounce = |serial| Record::Bounce { serial: Serial(serial), reason: Reason::NoSuchDomain.code() };
    let credit = Record::Credit { bytes: 6 * 128 + 5 + 3000 + 1000 };
    a.send(to(unknown), Record::Bounce { serial: Serial(9), reason: 66 }, &[]); // No answer, and nothing back.
    fixture.run_until_idle();
    let answers = a.receive_all();
    let records: Vec<_> = answers.iter().map(|answer| answer.record).collect();
    assert_eq!(records, [bounce(0), bounce(7), bounce(8), bounce(7), bounce(0), bounce(0), credit]);
    for answer in &answers {
        let sent = to(unknown);
        assert_eq!(answer.route, Route { from: sent.to, to: sent.from, epoch: 7, peer: Some(unknown) });
    }
    let counters = &fixture.service.counters()[0];
    assert_eq!(counters.drops.iter().collect::<Vec<_>>(), [(Reason::NoSuchDomain, 7)]);
    assert_eq!((counters.bounces.load(Relaxed), a.counters.bounces.load(Relaxed)), (6, 6));
    // A library may give credit back for bounces or not.
    a.send_credit(unknown, 6 * 128);
    fixture.run_until_idle();
    assert_eq!((fixture.faults(), a.receive_all()), (vec![], vec![]));
}

#[test]
fn the_policy_decides_about_messages_and_lets_their_answers_pass() {
    let down = SendPolicy::new(|from, to| if from < to { Ok(()) } else { Err(Reason::TalkForbidden) });
    let mut fixture = ServiceFixture::new(ServiceOptions { send_policy: down, ..ServiceOptions::default() });
    let (mut a, mut b) = (fixture.attach(), fixture.attach());
    a.send(to(b.id), Record::Announce { tag: 1, len: 1 << 20, serial: Serial(8), fragment: NONE, mapped: None }, &[]);
    b.send_eager(a.id, 1, b"no");
    b.send(to(a.id), Record::Pull { serial: Serial(8), bytes: 7 }, &[]);
    fixture.run_until_idle();
    assert_eq!(b.receive().unwrap().from, a.id);
    assert_eq!(a.receive().unwrap().record, Record::Pull { serial: Serial(8), bytes: 7 });
    let refused = Record::Bounce { serial: Serial(0), reason: Reason::TalkForbidden.code() };
    assert_eq!(b.receive().unwrap().record, refused);
    assert_eq!(b.receive().unwrap().record, Record::Credit { bytes: 130 });
    // Credits belong to what was delivered before, whatever the policy says now.
    fixture.service.send(Command::SendPolicy(SendPolicy::new(|_, _| Err(Reason::TalkForbidden))));
    b.send_credit(a.id, 128);
    fixture.run_until_idle();
    assert_eq!(a.receive().unwrap().record, Record::Credit { bytes: 128 });
    a.send_eager(b.id, 2, b"now neither");
    b.send(to(a.id), Record::Pull { serial: Serial(8), bytes: 7 }, &[]);
    fixture.run_until_idle();
    assert_eq!(a.receive().unwrap().record, refused);
    assert_eq!((b.receive().unwrap().record, b.receive().unwrap().record), (refused, Record::Credit { bytes: 128 }));
    fixture.service.send(Command::SendPolicy(SendPolicy::allow_all()));
    b.send_eager(a.id, 3, b"yes");
    fixture.run_until_idle();
    assert_eq!(a.receive_tags(), [3]);
    assert_eq!(fixture.faults(), []);
}

#[test]
fn domain_is_not_served_while_it_leaves_bounces_unread() {
    let mut fixture = ServiceFixture::allow_all();
    let (mut a, mut b) = (fixture.attach(), fixture.attach());
    let mut sent = 0;
    for _ in 0..1000 {
        while a.try_send(to(id(50 + sent % 7)), eager(u64::from(sent), 0), b"").is_ok() {
            sent += 1;
        }
        fixture.run_until_idle();
    }
    assert!(sent < 2 * RING_CELLS + 64 + 64 + 8, "{sent} messages of a domain that reads nothing were taken");
    b.send_eager(b.id, 1, b"");
    fixture.run_until_idle();
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
        fixture.run_until_idle();
    }
    assert_eq!((bounced, credit), (sent, 128 * sent));
    assert_eq!(fixture.faults(), []);
}
