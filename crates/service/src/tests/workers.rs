//! Domains of different workers.

use super::fixture::{ServiceFixture, TestDomain, eager, id, to};
use crate::{Event, ServiceOptions};
use isthmus_layout::limits::{DAEMON_PATH_CREDIT_BYTES, FINAL_RECORD_CELLS, RING_CELLS};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Serial};

fn two_workers() -> (ServiceFixture, TestDomain, TestDomain) {
    let mut fixture = ServiceFixture::new(ServiceOptions { workers: 2, ..ServiceOptions::default() });
    let (a, b) = (fixture.attach(), fixture.attach());
    assert_ne!(fixture.service.worker_of(a.id), fixture.service.worker_of(b.id));
    (fixture, a, b)
}

#[test]
fn messages_and_credits_cross_between_workers() {
    let (mut fixture, mut a, mut b) = two_workers();
    let (mut sent, mut got, mut credit) = (0_u64, 0_u64, DAEMON_PATH_CREDIT_BYTES);
    while got < 5000 {
        while credit >= 128 + 100 && a.try_send(to(b.id), eager(sent, 100), &[sent as u8; 100]).is_ok() {
            (sent, credit) = (sent + 1, credit - 228);
        }
        fixture.run_until_idle();
        for arrived in b.receive_all() {
            assert_eq!((arrived.from, arrived.record), (a.id, eager(got, 100)));
            assert_eq!(arrived.bytes, [got as u8; 100]);
            got += 1;
            b.send_credit(a.id, 228);
        }
        fixture.run_until_idle();
        for arrived in a.receive_all() {
            let Record::Credit { bytes } = arrived.record else { panic!("{arrived:?}") };
            credit += bytes;
        }
    }
    a.send_fragment(b.id, 1, &[5; 8192]);
    fixture.run_until_idle();
    assert_eq!(b.receive_all().last().unwrap().bytes, [5; 8192]);
    assert_eq!(fixture.faults(), []);
}

#[test]
fn removed_domain_is_gone_for_all_workers() {
    let (mut fixture, mut a, b) = two_workers();
    const MANY: u32 = RING_CELLS + 172;
    for tag in 0..u64::from(MANY) {
        a.send_eager(b.id, tag, b"");
        fixture.run_until_idle();
    }
    fixture.remove(b.id, Reason::PeerConnectionLost);
    a.send_eager(b.id, u64::from(MANY), b""); // Taken before or after the worker learns of the removal.
    let (mut bounced, mut credit) = (0, 0);
    for _ in 0..10 {
        fixture.run_until_idle();
        for arrived in a.receive_all() {
            match arrived.record {
                Record::Credit { bytes } => credit += bytes,
                Record::Bounce { serial: Serial(0), reason } => {
                    assert_eq!(reason, Reason::PeerConnectionLost.code());
                    bounced += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(bounced, MANY + 1 - (RING_CELLS - FINAL_RECORD_CELLS), "all that did not fit into the ring");
    assert_eq!(credit, bounced * 128);
    assert_eq!(fixture.events(), [Event::Removed { domain: b.id }]);
}

#[test]
fn the_credit_of_a_pair_holds_across_workers() {
    let (mut fixture, mut a, b) = two_workers();
    let mut c = fixture.attach();
    for tag in 0..=512 {
        a.send_eager(b.id, tag, b"");
        fixture.run_until_idle();
    }
    assert_eq!(fixture.faults(), [(a.id, Reason::CreditExceeded)]);
    c.send_eager(b.id, 1, b"");
    c.send_eager(a.id, 1, b"");
    fixture.run_until_idle();
    assert_eq!(c.receive().unwrap().record, Record::Bounce { serial: Serial(0), reason: Reason::PeerFault.code() });
    let mut b = b;
    let mut all = Vec::new();
    for _ in 0..10 {
        all.extend(b.receive_all());
        fixture.run_until_idle();
    }
    assert_eq!(all.iter().filter(|arrived| arrived.from == id(1)).count(), 512);
    assert_eq!(all.iter().filter(|arrived| arrived.from == c.id).count(), 1);
}
