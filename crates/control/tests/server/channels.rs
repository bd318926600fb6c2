//! Channels: offered, accepted, refused, not answered, closed, and gone with their domains.

use isthmus_control::schema::Channels;
use isthmus_layout::channel::{Direction, Geometry};
use isthmus_layout::control::*;
use isthmus_layout::ids::ChannelId;
use isthmus_layout::limits::SLAB_BYTES_MIN;
use isthmus_layout::reason::Reason;

use crate::bed::{Bed, Client, channel, inode, name};

fn refused(client: &mut Client) -> (Reason, bool) {
    let heard = client.hear_that(|heard| matches!(heard.message, ToClient::ChannelRefused(_)));
    match heard.message {
        ToClient::ChannelRefused(refused) => (refused.reason, refused.last),
        _ => unreachable!(),
    }
}

#[test]
fn both_ends_get_the_same_memory_and_each_others_board() {
    let bed = Bed::new();
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(at_a, fds_a), (at_b, fds_b)] = channel(&mut a, &mut b, theirs.id());
    assert_eq!((at_a.peer, at_b.peer), (theirs.id(), ours.id()));
    assert_eq!((at_a.direction, at_b.direction), (Direction::Zero, Direction::One));
    assert_eq!((at_a.place, at_a.peer_place), (at_b.peer_place, at_b.place));
    assert_eq!((at_a.peer_name, at_b.peer_name), (name("b"), name("a")));
    assert_eq!(inode(&fds_a[0]), inode(&fds_b[0]));
    // One owner: the board that each has from the beginning, and no other.
    assert_eq!((at_a.board, at_a.new_board, at_b.new_board), (BoardIndex::DAEMON, false, false));
    assert_eq!(inode(&fds_a[1]), inode(&theirs.fds[3]));
    assert_eq!(inode(&fds_b[1]), inode(&ours.fds[3]));
}

#[test]
fn a_closed_channel_frees_its_places() {
    let bed = Bed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(first, _), _] = channel(&mut a, &mut b, theirs.id());
    a.say(CloseChannel { channel: first.channel, reason: Reason::ClosedHere }, &[]);
    let closed = ChannelClosed { channel: first.channel, reason: Reason::ClosedByPeer };
    assert_eq!(b.hear().message, closed.into());
    let [(second, _), _] = channel(&mut a, &mut b, theirs.id());
    assert_ne!(first.channel, second.channel);
    assert_eq!((first.place, first.peer_place), (second.place, second.peer_place));
}

#[test]
fn a_fault_that_one_end_finds_is_told_to_the_other() {
    let bed = Bed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(offer, _), _] = channel(&mut a, &mut b, theirs.id());
    a.say(CloseChannel { channel: offer.channel, reason: Reason::StampFault }, &[]);
    assert_eq!(b.hear().message, ChannelClosed { channel: offer.channel, reason: Reason::StampFault }.into());
}

#[test]
fn a_listener_that_does_not_want_one_is_heard() {
    let bed = Bed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let serial = a.say(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    let (offer, _) = b.offered();
    b.say(RefuseChannel { channel: offer.channel, reason: Reason::ChannelRefused }, &[]);
    let heard = a.hear_that(|heard| matches!(heard.message, ToClient::ChannelRefused(_)));
    assert_eq!(heard.serial, Some(serial));
    let expected = ChannelRefused { peer: theirs.id(), reason: Reason::ChannelRefused, last: true };
    assert_eq!(heard.message, expected.into());
    b.say(RefuseChannel { channel: offer.channel, reason: Reason::ChannelRefused }, &[]);
    assert_eq!(b.ask(AcceptChannel { channel: offer.channel }, &[]).err(), Some(Reason::NoSuchChannel));
}

#[test]
fn a_listener_that_is_out_of_something_may_be_asked_again() {
    let bed = Bed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    for (attempt, last) in [(1, false), (2, false), (3, true)] {
        a.say(RequestChannel { peer: theirs.id(), attempt }, &[]);
        let (offer, _) = b.offered();
        b.say(RefuseChannel { channel: offer.channel, reason: Reason::OutOfAddressSpace }, &[]);
        assert_eq!(refused(&mut a), (Reason::OutOfAddressSpace, last));
    }
}

/// What an offer is of: the slabs it says, and as much memory.
fn offered_slab(client: &mut Client) -> (ChannelId, u32) {
    let (offer, fds) = client.offered();
    let bytes = rustix::fs::fstat(&fds[0]).unwrap().st_size as u64;
    assert_eq!(bytes, Geometry { slab: offer.slab }.size().0);
    (offer.channel, offer.slab.bytes())
}

#[test]
fn whoever_cannot_map_a_channel_is_offered_smaller_ones() {
    let bed = Bed::with("[limits]\nslab_kib = 1024\n");
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let reason = Reason::OutOfAddressSpace;
    for (attempt, bytes) in [(1, 1 << 20), (2, 256 << 10), (3, SLAB_BYTES_MIN)] {
        a.say(RequestChannel { peer: theirs.id(), attempt }, &[]);
        let (channel, offered) = offered_slab(&mut b);
        assert_eq!(offered, bytes, "try {attempt}");
        assert_eq!(offered_slab(&mut a), (channel, bytes));
        if attempt < 3 {
            b.say(RefuseChannel { channel, reason }, &[]);
            assert_eq!(refused(&mut a), (reason, false));
        } else {
            b.say(AcceptChannel { channel }, &[]);
            let heard = a.hear_that(|heard| matches!(heard.message, ToClient::ChannelOpen(_)));
            assert_eq!(heard.message, ChannelOpen { channel }.into());
        }
    }
    let report: Channels = bed.greeted().report(Topic::Channels, &[]).unwrap();
    let shown = report.pairs[0].channel.as_ref().map(|channel| channel.slab_bytes);
    assert_eq!(shown, Some(SLAB_BYTES_MIN));
    // The same where it is the one that asks, and for nobody else.
    let (mut c, _) = bed.attached("c");
    for (attempt, bytes) in [(1, 1 << 20), (2, 256 << 10)] {
        c.say(RequestChannel { peer: ours.id(), attempt }, &[]);
        let (channel, offered) = offered_slab(&mut c);
        assert_eq!(offered, bytes, "try {attempt}");
        c.say(RefuseChannel { channel, reason }, &[]);
        assert_eq!(offered_slab(&mut a), (channel, bytes));
        let heard = a.hear_that(|heard| matches!(heard.message, ToClient::ChannelClosed(_)));
        assert_eq!(heard.message, ChannelClosed { channel, reason }.into());
    }
    a.say(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    assert_eq!(offered_slab(&mut b).1, 1 << 20);
}

#[test]
fn a_listener_that_does_not_answer_is_given_up() {
    let bed = Bed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    a.say(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    assert_eq!(refused(&mut a), (Reason::ChannelNoAnswer, false));
    let (offer, _) = b.offered();
    let closed = ChannelClosed { channel: offer.channel, reason: Reason::ChannelNoAnswer };
    assert_eq!(b.hear().message, closed.into());
    channel(&mut a, &mut b, theirs.id());
}

#[test]
fn two_that_ask_at_once_get_one_channel() {
    let bed = Bed::new();
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    a.say(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    let (at_a, _) = a.offered();
    b.say(RequestChannel { peer: ours.id(), attempt: 1 }, &[]);
    let (at_b, _) = b.offered();
    assert_eq!(at_a.channel, at_b.channel);
    b.hears_nothing();
    b.say(AcceptChannel { channel: at_b.channel }, &[]);
    assert_eq!(a.hear().message, ChannelOpen { channel: at_a.channel }.into());
}

#[test]
fn a_new_channel_replaces_one_that_its_connector_has_forgotten() {
    let bed = Bed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(first, _), _] = channel(&mut a, &mut b, theirs.id());
    channel(&mut a, &mut b, theirs.id());
    assert_eq!(b.hear().message, ChannelClosed { channel: first.channel, reason: Reason::Replaced }.into());
}

#[test]
fn nobody_answers_for_others() {
    let bed = Bed::new();
    let ((mut a, _), (mut b, theirs), (mut c, _)) = (bed.attached("a"), bed.attached("b"), bed.attached("c"));
    a.say(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    let (offer, _) = b.offered();
    let accept = AcceptChannel { channel: offer.channel };
    assert_eq!(c.ask(accept.clone(), &[]).err(), Some(Reason::NoSuchChannel));
    assert_eq!(a.ask(accept.clone(), &[]).err(), Some(Reason::OutOfTurn));
    let close = CloseChannel { channel: offer.channel, reason: Reason::ClosedHere };
    assert_eq!(c.ask(close, &[]).err(), Some(Reason::NoSuchChannel));
    let unknown = CloseChannel { channel: ChannelId(7), reason: Reason::ClosedHere };
    assert_eq!(a.ask(unknown, &[]).err(), Some(Reason::NoSuchChannel));
    b.say(accept, &[]);
    assert!(matches!(a.hear_that(|heard| heard.serial.is_none()).message, ToClient::ChannelOpen(_)));
}

#[test]
fn what_cannot_be_is_refused_for_good() {
    let bed = Bed::with("[limits]\nchannels_per_domain_max = 1\n");
    let ((mut a, ours), (mut b, theirs), (_c, other)) = (bed.attached("a"), bed.attached("b"), bed.attached("c"));
    let ask = |client: &mut Client, peer| {
        client.say(RequestChannel { peer, attempt: 1 }, &[]);
        refused(client)
    };
    assert_eq!(ask(&mut a, ours.id()), (Reason::SameDomain, true));
    let nobody = isthmus_layout::DomainId::new(99).unwrap();
    assert_eq!(ask(&mut a, nobody), (Reason::NoSuchDomain, true));
    channel(&mut a, &mut b, theirs.id());
    assert_eq!(ask(&mut a, other.id()), (Reason::ChannelsFull, true));
    let bed = Bed::with("[policy]\nchannels = false\n[[policy.rules]]\nfrom = \"x\"\nallow = false\n");
    let ((mut a, ours), (mut x, _), (_b, theirs)) = (bed.attached("a"), bed.attached("x"), bed.attached("b"));
    assert_eq!(ask(&mut a, theirs.id()), (Reason::ChannelsForbidden, true));
    assert_eq!(ask(&mut x, ours.id()), (Reason::TalkForbidden, true));
}

#[test]
fn a_domain_that_dies_takes_its_channels_with_it() {
    let bed = Bed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(offer, _), _] = channel(&mut a, &mut b, theirs.id());
    drop(b);
    let reason = Reason::PeerVanished;
    assert_eq!(a.hear().message, ChannelClosed { channel: offer.channel, reason }.into());
    assert_eq!(a.hear().message, PeerGone { peer: theirs.id(), reason }.into());
    let (mut b, theirs) = bed.attached("b");
    channel(&mut a, &mut b, theirs.id());
}

#[test]
fn a_thousand_channels_come_and_go_without_leaving_anything() {
    let bed = Bed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let before = crate::bed::descriptors().unwrap();
    for _ in 0..1000 {
        let [(offer, ours), (_, others)] = channel(&mut a, &mut b, theirs.id());
        drop((ours, others));
        b.say(CloseChannel { channel: offer.channel, reason: Reason::ClosedHere }, &[]);
        a.hear_that(|heard| matches!(heard.message, ToClient::ChannelClosed(_)));
    }
    b.hears_nothing();
    // Other tests of this process come and go meanwhile, so a few do not count.
    assert!(crate::bed::descriptors().unwrap() < before + 500);
}
