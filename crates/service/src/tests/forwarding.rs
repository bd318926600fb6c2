//! Records of correct domains arrive.

use super::fixture::{ServiceFixture, eager, to};
use isthmus_layout::control::Owner;
use isthmus_layout::limits::{DAEMON_PATH_CREDIT_BYTES, DAEMON_PATH_FRAGMENT_BYTES_MAX, RING_CELLS};
use isthmus_layout::record::{Fragment, ReceiveOutcome, Record, Route, Serial};
use std::sync::atomic::Ordering::Relaxed;

const NONE: Fragment = Fragment { offset: 0, len: 0 };

#[test]
fn every_record_kind_is_forwarded_with_the_sender_set() {
    let mut fixture = ServiceFixture::allow_all();
    let (mut a, mut b) = (fixture.attach(), fixture.attach());
    let serial = Serial(5);
    let records: Vec<(Record<'static>, Vec<u8>)> = vec![
        (eager(u64::MAX, 0), vec![]),
        (eager(1, 13), (0..13).collect()),
        (eager(2, 128), (0..128).collect()),
        (Record::FirstFragment { tag: 3, len: 9000, serial, fragment: NONE }, vec![7; 5000]),
        (Record::NextFragment { serial, fragment: NONE }, vec![9; 4000]),
        (Record::Announce { tag: 4, len: 1 << 33, serial, fragment: NONE, mapped: None }, vec![]),
        (Record::Pull { serial, bytes: 5 }, vec![]),
        (Record::Completed { serial, outcome: ReceiveOutcome::Dropped, bytes: 1 << 34 }, vec![]),
        (Record::Switch, vec![]),
        (Record::Bounce { serial, reason: 66 }, vec![]),
    ];
    let mut cost = 0;
    for (record, bytes) in &records {
        a.send(to(b.id), *record, bytes);
        cost += 128 + bytes.len() as u32;
    }
    fixture.run_until_idle();
    for (record, bytes) in records {
        let arrived = b.receive().expect("it arrives");
        assert_eq!((arrived.from, arrived.record, arrived.bytes), (a.id, record, bytes));
        assert_eq!(arrived.route, Route { peer: Some(a.id), ..to(b.id) });
    }
    assert!(b.receive().is_none());
    b.send_credit(a.id, cost - 100);
    b.send_credit(a.id, 100);
    fixture.run_until_idle();
    let credits = a.receive_all();
    assert_eq!((credits.len(), credits[0].record), (1, Record::Credit { bytes: cost }), "credits that meet are one");
    assert_eq!(fixture.faults(), []);
    assert_eq!(a.counters.sent_bytes.load(Relaxed), 9141);
    assert_eq!(b.counters.received_bytes.load(Relaxed), 9141);
}

#[test]
fn a_domain_reaches_itself() {
    let mut fixture = ServiceFixture::allow_all();
    let mut a = fixture.attach();
    for tag in 0..300 {
        a.send_eager(a.id, tag, b"me");
        fixture.run_until_idle();
        let arrived = a.receive().unwrap();
        assert_eq!((arrived.from, arrived.record, &arrived.bytes[..]), (a.id, eager(tag, 2), &b"me"[..]));
        a.send_credit(a.id, 130);
        fixture.run_until_idle();
        assert_eq!(a.receive().unwrap().record, Record::Credit { bytes: 130 });
    }
}

#[test]
fn order_is_kept_across_held_and_direct_records() {
    let mut fixture = ServiceFixture::allow_all();
    let (mut a, mut b) = (fixture.attach(), fixture.attach());
    let (mut sent, mut got, mut credit) = (0_u64, 0_u64, DAEMON_PATH_CREDIT_BYTES);
    let len = |tag: u64| (tag * 37 % 128) as u32;
    while got < 20_000 {
        // The receiver reads in bursts, so that now and then its ring is full and now and then empty.
        while credit >= 128 + len(sent) {
            let bytes = vec![sent as u8; len(sent) as usize];
            if a.try_send(to(b.id), eager(sent, len(sent)), &bytes).is_err() {
                break;
            }
            credit -= 128 + len(sent);
            sent += 1;
            if sent.is_multiple_of(7) {
                fixture.step();
            }
        }
        fixture.run_until_idle();
        for arrived in b.receive_all() {
            assert_eq!((arrived.record, arrived.bytes.len()), (eager(got, len(got)), len(got) as usize));
            assert!(arrived.bytes.iter().all(|&byte| byte == got as u8));
            b.send_credit(a.id, 128 + len(got));
            got += 1;
        }
        fixture.run_until_idle();
        for arrived in a.receive_all() {
            if let Record::Credit { bytes } = arrived.record {
                credit += bytes;
            }
        }
    }
    while !b.receive_all().is_empty() {
        fixture.run_until_idle();
    }
    let counters = &fixture.service.counters()[0];
    assert!(counters.held_records.load(Relaxed) > 1000, "nothing was ever held, so nothing was tested");
    assert_eq!(counters.held_bytes.load(Relaxed), 0);
    assert_eq!(counters.records.load(Relaxed), sent);
}

#[test]
fn a_long_message_comes_in_pieces_within_the_credit() {
    let mut fixture = ServiceFixture::allow_all();
    let (mut a, mut b) = (fixture.attach(), fixture.attach());
    let message: Vec<u8> = (0..1_000_003_u32).map(|at| ((at * 7) >> 3) as u8).collect();
    let serial = Serial(1);
    let announce = Record::Announce { tag: 1, len: message.len() as u64, serial, fragment: NONE, mapped: None };
    a.send(to(b.id), announce, &[]);
    let (mut at, mut credit, mut whole) = (0, DAEMON_PATH_CREDIT_BYTES - 128, Vec::new());
    while whole.len() < message.len() {
        while at < message.len() && credit >= 128 + DAEMON_PATH_FRAGMENT_BYTES_MAX {
            let end = message.len().min(at + DAEMON_PATH_FRAGMENT_BYTES_MAX as usize);
            a.send(to(b.id), Record::NextFragment { serial, fragment: NONE }, &message[at..end]);
            credit -= 128 + (end - at) as u32;
            at = end;
            fixture.run_until_idle();
        }
        for arrived in b.receive_all() {
            b.send_credit(a.id, 128 + arrived.bytes.len() as u32);
            whole.extend(arrived.bytes);
        }
        fixture.run_until_idle();
        for arrived in a.receive_all() {
            let Record::Credit { bytes } = arrived.record else { panic!("{arrived:?}") };
            credit += bytes;
        }
    }
    assert!(whole == message);
    assert_eq!(credit, DAEMON_PATH_CREDIT_BYTES);
    assert_eq!(fixture.faults(), []);
}

#[test]
fn slow_receiver_delays_no_other_domain() {
    let mut fixture = ServiceFixture::allow_all();
    let (mut a, mut b, mut deaf) = (fixture.attach(), fixture.attach(), fixture.attach());
    for tag in 0..7 {
        a.send_fragment(deaf.id, tag, &[tag as u8; 8192]);
        fixture.run_until_idle();
    }
    let many = u64::from(RING_CELLS) + 240;
    for tag in 0..many {
        b.send_eager(deaf.id, tag, b"");
        fixture.run_until_idle();
        a.send_eager(b.id, tag, b"quick");
        fixture.run_until_idle();
        assert_eq!(b.receive_tags(), [tag]);
        b.send_credit(a.id, 133);
    }
    fixture.run_until_idle();
    assert!(fixture.service.counters()[0].held_bytes.load(Relaxed) >= 128 * 240);
    assert_eq!(deaf.counters.held_bytes.load(Relaxed), fixture.service.counters()[0].held_bytes.load(Relaxed));
    // It reads at last, and everything is there, in its senders' order.
    let mut all = Vec::new();
    for _ in 0..100 {
        all.extend(deaf.receive_all());
        fixture.run_until_idle();
    }
    for (sender, count) in [(a.id, 7), (b.id, many)] {
        let tags = all.iter().filter(|arrived| arrived.from == sender).map(|arrived| match arrived.record {
            Record::Eager { tag, .. } | Record::FirstFragment { tag, .. } => tag,
            other => panic!("{other:?}"),
        });
        assert!(tags.eq(0..count));
    }
    assert_eq!(fixture.faults(), []);
}

#[test]
fn senders_to_a_full_ring_take_turns() {
    let mut fixture = ServiceFixture::allow_all();
    let mut receiver = fixture.attach();
    let mut senders: Vec<_> = (0..4).map(|_| fixture.attach()).collect();
    for sender in &mut senders {
        for tag in 0..u64::from(RING_CELLS) * 3 / 4 {
            sender.send_eager(receiver.id, tag, b"");
        }
        fixture.run_until_idle();
    }
    receiver.receive_all(); // All of the first sender's, and some of the second's.
    fixture.run_until_idle();
    let next: Vec<_> = receiver.receive_all();
    for sender in &senders[1..] {
        let count = next.iter().filter(|arrived| arrived.from == sender.id).count();
        assert!(count.abs_diff(next.len() / 3) <= 1, "{count} of {}", next.len());
    }
}

#[test]
fn flooding_domain_does_not_starve_others() {
    let mut fixture = ServiceFixture::allow_all();
    let mut flooders: Vec<_> = (0..3).map(|_| (fixture.attach(), fixture.attach())).collect();
    let (mut quiet, mut other, mut receiver) =
        (fixture.attach(), fixture.attach_as(Owner(1)), fixture.attach_as(Owner(2)));
    fixture.run_until_idle();
    // Long enough to be silent, so that their rings are parked.
    let flood = |fixture: &mut ServiceFixture,
                 flooders: &mut Vec<(super::fixture::TestDomain, super::fixture::TestDomain)>| {
        for (from, sink) in flooders {
            while from.try_send(to(sink.id), eager(0, 0), b"").is_ok() {}
            for _ in sink.receive_all() {
                let _ = sink.try_send(to(from.id), Record::Credit { bytes: 128 }, &[]);
            }
            from.receive_all();
        }
        fixture.step();
    };
    for _ in 0..500 {
        flood(&mut fixture, &mut flooders);
    }
    quiet.send_eager(receiver.id, 1, b"");
    other.send_eager(receiver.id, 2, b"");
    let mut tags = Vec::new();
    for _ in 0..20 {
        flood(&mut fixture, &mut flooders);
        tags.extend(receiver.receive_tags());
    }
    tags.sort_unstable();
    assert_eq!(tags, [1, 2]);
    assert_eq!(fixture.faults(), []);
}

#[test]
fn idle_ring_releases_its_pages_even_if_the_domain_does_not_read() {
    let mut fixture = ServiceFixture::allow_all();
    let (mut a, mut b) = (fixture.attach(), fixture.attach());
    a.send_fragment(b.id, 1, &[1; 8000]);
    fixture.run_until_idle();
    let looks = |fixture: &mut ServiceFixture| {
        let rings = &mut fixture.workers[0].shared.rings;
        let looks = (0..100).take_while(|_| rings.wants_trim() && rings.trim().is_none()).count();
        assert!(!rings.wants_trim());
        looks
    };
    assert_eq!(looks(&mut fixture), 4);
    b.receive_all();
    b.send_credit(a.id, 8128);
    fixture.run_until_idle();
    assert_eq!(looks(&mut fixture), 1);
    a.receive_all();
    a.send_eager(b.id, 2, b"nothing in the slab");
    fixture.run_until_idle();
    assert_eq!(looks(&mut fixture), 0);
}
