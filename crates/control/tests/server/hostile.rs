//! Clients that violate the protocol. The daemon continues to serve the others.

use std::os::fd::AsFd as _;

use isthmus_layout::RegionSize;
use isthmus_layout::control::*;
use isthmus_layout::reason::Reason;
use isthmus_platform::local;
use isthmus_report::StatusReport;

use crate::testbed::{Testbed, channel, name};

#[test]
fn malformed_messages_end_their_connection_and_are_counted() {
    let bed = Testbed::new();
    let (mut good, _) = bed.attached("good");
    let packets: [&[u8]; 5] = [b"", b"\0", &[7; 100], &[0xff; 16384], &[1, 0, 0, 0, 1, 0, 0, 0, 1]];
    for packet in &packets[1..] {
        let (mut bad, _) = bed.attached("bad");
        bad.send_raw(packet, &[]).unwrap();
        assert_eq!(bad.ended(), Some(Reason::MalformedControl));
    }
    let (mut bad, _) = bed.attached("bad");
    bad.send_raw(&[0; 20000], &[]).unwrap();
    assert_eq!(bad.ended(), Some(Reason::MalformedControl));
    let mut web = bed.connect();
    web.send_raw(b"GET / HTTP/1.1\r\n\r\n", &[]).unwrap();
    assert_eq!(web.ended(), Some(Reason::NotIsthmus));
    let status: StatusReport = good.report(Topic::Status, &[]).unwrap();
    let count = |reason: Reason| status.reasons.iter().find(|row| row.reason == reason.name()).map(|row| row.count);
    assert_eq!((count(Reason::MalformedControl), count(Reason::NotIsthmus)), (Some(5), Some(1)));
    assert_eq!(status.domains, 1);
}

#[test]
fn descriptors_that_do_not_belong_to_a_message_are_refused() {
    let bed = Testbed::new();
    let (mut bad, _) = bed.attached("bad");
    let memory = local::memory(RegionSize(4096)).unwrap();
    bad.send(Lookup { name: name("x") }, &[memory.as_fd(); 8]);
    assert_eq!(bad.ended(), Some(Reason::MalformedControl));
}

#[test]
fn a_peer_of_a_faulty_domain_hears_that_it_was_a_fault() {
    let bed = Testbed::new();
    let ((mut good, _), (mut bad, theirs)) = (bed.attached("good"), bed.attached("bad"));
    let [(offer, _), _] = channel(&mut good, &mut bad, theirs.id());
    bad.send_raw(b"nonsense", &[]).unwrap();
    assert_eq!(
        good.receive_message().message,
        ChannelClosed { channel: offer.channel, reason: Reason::PeerFault }.into()
    );
    assert_eq!(good.receive_message().message, PeerGone { peer: theirs.id(), reason: Reason::PeerFault }.into());
    drop(bed.attached("bad"));
}

#[test]
fn drops_only_the_connection_that_does_not_read() {
    let bed = Testbed::new();
    let (mut good, _) = bed.attached("good");
    let (bad, theirs) = bed.attached("bad");
    good.request(Lookup { name: name("bad") }, &[]).unwrap();
    let lookup = ToDaemon::from(Lookup { name: name("unknown") }).emit(RequestSerial::new(1));
    // Replies are queued up to the limit. Then the daemon closes the connection, and sending fails.
    while bad.send_raw(&lookup, &[]).is_ok() {}
    assert_eq!(good.receive_message().message, PeerGone { peer: theirs.id(), reason: Reason::ControlQueueFull }.into());
    let status: StatusReport = good.report(Topic::Status, &[]).unwrap();
    assert!(status.reasons.iter().any(|row| row.reason == Reason::ControlQueueFull.name() && row.count == 1));
}

#[test]
fn a_flood_is_read_slowly_and_others_are_served_meanwhile() {
    let bed = Testbed::new();
    let (mut good, _) = bed.attached("good");
    let (mut bad, _) = bed.attached("bad");
    let lookup = ToDaemon::from(Lookup { name: name("unknown") }).emit(None);
    for _ in 0..4200 {
        bad.send_raw(&lookup, &[]).unwrap();
        while !matches!(bad.receive().unwrap().message, ToClient::Refused(_)) {}
    }
    good.request(Lookup { name: name("bad") }, &[]).unwrap();
    let status: StatusReport = good.report(Topic::Status, &[]).unwrap();
    assert!(status.reasons.iter().any(|row| row.reason == Reason::TooManyRequests.name()), "{:?}", status.reasons);
    bad.expect_no_message();
}

#[test]
fn random_packets_do_no_harm() {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree as _;
    let bed = Testbed::new();
    let (mut good, _) = bed.attached("good");
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = (1..20_u8, proptest::collection::vec(any::<u8>(), 0..80));
    for _ in 0..500 {
        let (kind, body) = strategy.new_tree(&mut runner).unwrap().current();
        let bad = bed.greeted();
        let packet = [&[kind, 0, 0, 0, 1, 0, 0, 0][..], &body].concat();
        let _ = bad.send_raw(&packet, &[]);
        let _ = bad.send_raw(&body, &[]);
    }
    good.request(Lookup { name: name("good") }, &[]).unwrap();
}

#[test]
fn drops_a_connection_that_requests_reports_without_reading() {
    let bed = Testbed::new();
    let held: Vec<_> =
        (0..150).map(|number| bed.attached(&format!("a-domain-with-quite-a-long-name-{number}"))).collect();
    let bad = bed.greeted();
    let query = Query { topic: Topic::Domains, arguments: List::new(Vec::new()).unwrap() };
    let query = ToDaemon::from(query).emit(RequestSerial::new(1));
    while bad.send_raw(&query, &[]).is_ok() {}
    let status: StatusReport = bed.greeted().report(Topic::Status, &[]).unwrap();
    assert!(status.reasons.iter().any(|row| row.reason == Reason::ControlQueueFull.name() && row.count == 1));
    assert_eq!(status.domains as usize, held.len());
}
