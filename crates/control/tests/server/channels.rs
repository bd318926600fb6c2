//! Channels: offered, accepted, refused, not answered, closed, and gone with their domains.

use isthmus_layout::channel::{ChannelGeometry, Direction};
use isthmus_layout::control::*;
use isthmus_layout::ids::ChannelId;
use isthmus_layout::limits::SLAB_BYTES_MIN;
use isthmus_layout::reason::Reason;
use isthmus_report::Channels;

use crate::testbed::{Client, Testbed, channel, inode, name};

fn refused(client: &mut Client) -> (Reason, bool) {
    let heard = client.receive_matching(|heard| matches!(heard.message, ToClient::ChannelRefused(_)));
    match heard.message {
        ToClient::ChannelRefused(refused) => (refused.reason, refused.permanent),
        _ => unreachable!(),
    }
}

#[test]
fn both_ends_get_the_same_memory_and_each_others_board() {
    let bed = Testbed::new();
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(at_a, fds_a), (at_b, fds_b)] = channel(&mut a, &mut b, theirs.id());
    assert_eq!((at_a.peer, at_b.peer), (theirs.id(), ours.id()));
    assert_eq!((at_a.direction, at_b.direction), (Direction::Zero, Direction::One));
    assert_eq!((at_a.ready_bit, at_a.peer_ready_bit), (at_b.peer_ready_bit, at_b.ready_bit));
    assert_eq!((at_a.peer_name, at_b.peer_name), (name("b"), name("a")));
    assert_eq!(inode(&fds_a[0]), inode(&fds_b[0]));
    // One owner: the ready map that each has from the beginning, and no other.
    assert_eq!((at_a.ready_map, at_a.new_ready_map, at_b.new_ready_map), (ReadyMapIndex::DAEMON, false, false));
    assert_eq!(inode(&fds_a[1]), inode(&theirs.fds[3]));
    assert_eq!(inode(&fds_b[1]), inode(&ours.fds[3]));
}

#[test]
fn a_closed_channel_frees_its_ready_bits() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(first, _), _] = channel(&mut a, &mut b, theirs.id());
    a.send(CloseChannel { channel: first.channel, reason: Reason::ClosedLocally }, &[]);
    let closed = ChannelClosed { channel: first.channel, reason: Reason::ClosedByPeer };
    assert_eq!(b.receive_message().message, closed.into());
    let [(second, _), _] = channel(&mut a, &mut b, theirs.id());
    assert_ne!(first.channel, second.channel);
    assert_eq!((first.ready_bit, first.peer_ready_bit), (second.ready_bit, second.peer_ready_bit));
}

#[test]
fn reports_a_violation_to_the_other_end() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(offer, _), _] = channel(&mut a, &mut b, theirs.id());
    a.send(CloseChannel { channel: offer.channel, reason: Reason::CellStampInvalid }, &[]);
    assert_eq!(
        b.receive_message().message,
        ChannelClosed { channel: offer.channel, reason: Reason::CellStampInvalid }.into()
    );
}

#[test]
fn reports_a_refusal_of_the_listener() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let serial = a.send(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    let (offer, _) = b.offered();
    b.send(RefuseChannel { channel: offer.channel, reason: Reason::ChannelRefused }, &[]);
    let heard = a.receive_matching(|heard| matches!(heard.message, ToClient::ChannelRefused(_)));
    assert_eq!(heard.serial, Some(serial));
    let expected = ChannelRefused { peer: theirs.id(), reason: Reason::ChannelRefused, permanent: true };
    assert_eq!(heard.message, expected.into());
    b.send(RefuseChannel { channel: offer.channel, reason: Reason::ChannelRefused }, &[]);
    assert_eq!(b.request(AcceptChannel { channel: offer.channel }, &[]).err(), Some(Reason::NoSuchChannel));
}

#[test]
fn a_listener_that_is_out_of_something_may_be_asked_again() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    for (attempt, last) in [(1, false), (2, false), (3, true)] {
        a.send(RequestChannel { peer: theirs.id(), attempt }, &[]);
        let (offer, _) = b.offered();
        b.send(RefuseChannel { channel: offer.channel, reason: Reason::OutOfAddressSpace }, &[]);
        assert_eq!(refused(&mut a), (Reason::OutOfAddressSpace, last));
    }
}

/// Receives an offer. Returns the channel and the size of its slabs, and checks that the memory has the corresponding size.
fn offered_slab(client: &mut Client) -> (ChannelId, u32) {
    let (offer, fds) = client.offered();
    let bytes = rustix::fs::fstat(&fds[0]).unwrap().st_size as u64;
    assert_eq!(bytes, ChannelGeometry { slab: offer.slab }.size().0);
    (offer.channel, offer.slab.bytes())
}

#[test]
fn offers_smaller_slabs_when_a_channel_cannot_be_mapped() {
    let bed = Testbed::with("[limits]\nslab_kib = 1024\n");
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let reason = Reason::OutOfAddressSpace;
    let request = |a: &mut Client, b: &mut Client, attempt, bytes| {
        a.send(RequestChannel { peer: theirs.id(), attempt }, &[]);
        let (channel, offered) = offered_slab(b);
        assert_eq!(offered, bytes, "try {attempt}");
        assert_eq!(offered_slab(a), (channel, bytes));
        channel
    };
    for (attempt, bytes) in [(1, 1 << 20), (2, 256 << 10)] {
        let channel = request(&mut a, &mut b, attempt, bytes);
        b.send(RefuseChannel { channel, reason }, &[]);
        assert_eq!(refused(&mut a), (reason, false));
    }
    let open = request(&mut a, &mut b, 3, SLAB_BYTES_MIN);
    b.send(AcceptChannel { channel: open }, &[]);
    let heard = a.receive_matching(|heard| matches!(heard.message, ToClient::ChannelOpen(_)));
    assert_eq!(heard.message, ChannelOpen { channel: open }.into());
    let report: Channels = bed.greeted().report(Topic::Channels, &[]).unwrap();
    let shown = report.pairs[0].channel.as_ref().map(|channel| channel.slab_bytes);
    assert_eq!(shown, Some(SLAB_BYTES_MIN));
    // The next slabs are also smaller if the requester itself refuses. Requests of other domains are not affected.
    let (mut c, _) = bed.attached("c");
    for (attempt, bytes) in [(1, 1 << 20), (2, 256 << 10)] {
        c.send(RequestChannel { peer: ours.id(), attempt }, &[]);
        let (channel, offered) = offered_slab(&mut c);
        assert_eq!(offered, bytes, "try {attempt}");
        c.send(RefuseChannel { channel, reason }, &[]);
        assert_eq!(offered_slab(&mut a), (channel, bytes));
        let heard = a.receive_matching(|heard| matches!(heard.message, ToClient::ChannelClosed(_)));
        assert_eq!(heard.message, ChannelClosed { channel, reason }.into());
    }
    a.send(CloseChannel { channel: open, reason: Reason::ClosedLocally }, &[]);
    a.send(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    assert_eq!(offered_slab(&mut b).1, 1 << 20);
}

#[test]
fn times_out_a_listener_that_does_not_answer() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    a.send(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    assert_eq!(refused(&mut a), (Reason::ChannelTimeout, false));
    let (offer, _) = b.offered();
    let closed = ChannelClosed { channel: offer.channel, reason: Reason::ChannelTimeout };
    assert_eq!(b.receive_message().message, closed.into());
    channel(&mut a, &mut b, theirs.id());
}

#[test]
fn two_that_ask_at_once_get_one_channel() {
    let bed = Testbed::new();
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    a.send(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    let (at_a, _) = a.offered();
    b.send(RequestChannel { peer: ours.id(), attempt: 1 }, &[]);
    let (at_b, _) = b.offered();
    assert_eq!(at_a.channel, at_b.channel);
    b.expect_no_message();
    b.send(AcceptChannel { channel: at_b.channel }, &[]);
    assert_eq!(a.receive_message().message, ChannelOpen { channel: at_a.channel }.into());
}

#[test]
fn late_requests_do_not_end_an_open_channel() {
    let bed = Testbed::new();
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    // A domain may have two requests in its socket: it learns of the end of an offer that its peer requested, and requests a channel again,
    // before the daemon has read its first request. The channel for that one may be open when the daemon reads the second one.
    let [(offer, _), _] = channel(&mut a, &mut b, theirs.id());
    a.send(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    b.send(RequestChannel { peer: ours.id(), attempt: 1 }, &[]);
    a.expect_no_message();
    b.expect_no_message();
    // A domain that wants another channel closes this one.
    a.send(CloseChannel { channel: offer.channel, reason: Reason::ClosedLocally }, &[]);
    let closed = ChannelClosed { channel: offer.channel, reason: Reason::ClosedByPeer };
    assert_eq!(b.receive_message().message, closed.into());
    let [(next, _), _] = channel(&mut a, &mut b, theirs.id());
    assert_ne!(next.channel, offer.channel);
}

#[test]
fn rejects_replies_to_channels_of_other_domains() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, theirs), (mut c, _)) = (bed.attached("a"), bed.attached("b"), bed.attached("c"));
    a.send(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    let (offer, _) = b.offered();
    let accept = AcceptChannel { channel: offer.channel };
    assert_eq!(c.request(accept.clone(), &[]).err(), Some(Reason::NoSuchChannel));
    assert_eq!(a.request(accept.clone(), &[]).err(), Some(Reason::UnexpectedMessageType));
    let close = CloseChannel { channel: offer.channel, reason: Reason::ClosedLocally };
    assert_eq!(c.request(close, &[]).err(), Some(Reason::NoSuchChannel));
    let unknown = CloseChannel { channel: ChannelId(7), reason: Reason::ClosedLocally };
    assert_eq!(a.request(unknown, &[]).err(), Some(Reason::NoSuchChannel));
    b.send(accept, &[]);
    assert!(matches!(a.receive_matching(|heard| heard.serial.is_none()).message, ToClient::ChannelOpen(_)));
}

#[test]
fn marks_permanent_refusals_as_permanent() {
    let bed = Testbed::with("[limits]\nchannels_per_domain_max = 1\n");
    let ((mut a, ours), (mut b, theirs), (_c, other)) = (bed.attached("a"), bed.attached("b"), bed.attached("c"));
    let ask = |client: &mut Client, peer| {
        client.send(RequestChannel { peer, attempt: 1 }, &[]);
        refused(client)
    };
    assert_eq!(ask(&mut a, ours.id()), (Reason::SameDomain, true));
    let nobody = isthmus_layout::DomainId::new(99).unwrap();
    assert_eq!(ask(&mut a, nobody), (Reason::NoSuchDomain, true));
    channel(&mut a, &mut b, theirs.id());
    assert_eq!(ask(&mut a, other.id()), (Reason::ChannelsFull, true));
    let bed = Testbed::with("[policy]\nchannels = false\n[[policy.rules]]\nfrom = \"x\"\nallow = false\n");
    let ((mut a, ours), (mut x, _), (_b, theirs)) = (bed.attached("a"), bed.attached("x"), bed.attached("b"));
    assert_eq!(ask(&mut a, theirs.id()), (Reason::ChannelsForbidden, true));
    assert_eq!(ask(&mut x, ours.id()), (Reason::TalkForbidden, true));
}

#[test]
fn a_domain_that_dies_takes_its_channels_with_it() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(offer, _), _] = channel(&mut a, &mut b, theirs.id());
    drop(b);
    let reason = Reason::PeerConnectionLost;
    assert_eq!(a.receive_message().message, ChannelClosed { channel: offer.channel, reason }.into());
    assert_eq!(a.receive_message().message, PeerGone { peer: theirs.id(), reason }.into());
    let (mut b, theirs) = bed.attached("b");
    channel(&mut a, &mut b, theirs.id());
}

#[test]
fn a_thousand_channels_come_and_go_without_leaving_anything() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let before = crate::testbed::descriptors().unwrap();
    for _ in 0..1000 {
        let [(offer, ours), (_, others)] = channel(&mut a, &mut b, theirs.id());
        drop((ours, others));
        b.send(CloseChannel { channel: offer.channel, reason: Reason::ClosedLocally }, &[]);
        a.receive_matching(|heard| matches!(heard.message, ToClient::ChannelClosed(_)));
    }
    b.expect_no_message();
    // Other tests of this process open and close descriptors meanwhile, so a small difference is allowed.
    assert!(crate::testbed::descriptors().unwrap() < before + 500);
}
