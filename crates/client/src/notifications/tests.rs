//! A domain and the messages that its daemon sends about channels, in every order in which they may meet.

use super::*;
use crate::control::tests::opened;
use crate::core::LocalIdentity;
use crate::inorder::InOrder;
use crate::matcher::{Envelope, Outcome, Posted, Token};
use crate::options::Options;
use crate::peer::{Destination, Incoming};
use isthmus_layout::channel::SlabSize;
use isthmus_layout::control::{ChannelClosed, ChannelOpen, ChannelRefused, Name, Owner, ReadyMapIndex, Ticket};
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::record::Serial;
use isthmus_platform::{Doorbell, local, seqpacket};
use isthmus_shm::ForkGuard;
use rustix::fd::AsFd;

fn domain(number: u32) -> DomainId {
    DomainId::new(number).expect("not zero")
}

/// An attached domain with one peer, and its daemon's end of the connection.
struct Fixture {
    core: Core<InOrder>,
    daemon: OwnedFd,
    at: PeerIndex,
}

impl Fixture {
    fn new() -> Self {
        let (control, daemon) = opened(0);
        let identity = LocalIdentity {
            domain: domain(1),
            name: Name::new("one").expect("short"),
            owner: Owner(0),
            ticket: Ticket([0; 32]),
        };
        let guard = ForkGuard::new().expect("memory");
        let (options, matcher) = (Options::default(), InOrder::default());
        let mut core = Core::new(identity, "no-daemon".into(), &options, guard, matcher).expect("an epoll set");
        core.control = Some(control);
        let ready_map = local::memory(ready_map::SIZE).expect("memory");
        let doorbell = Doorbell::new().expect("a descriptor");
        core.add_ready_map(ReadyMapIndex::DAEMON, None, ready_map, doorbell).expect("the first ready map");
        let at = core.peer(domain(2));
        Self { core, daemon, at }
    }

    /// Lets the domain receive a message.
    fn receive(&mut self, message: impl Into<ToClient>, fds: &[BorrowedFd<'_>]) {
        seqpacket::send(self.daemon.as_fd(), &message.into().emit(None), fds).expect("room");
        self.core.process_notifications();
    }

    /// Lets the domain receive the offer of a channel with the peer.
    fn offer(&mut self, channel: ChannelId, direction: Direction) {
        let (slab, bit) = (SlabSize::MIN, ReadyBit::new(ReadyBit::FIRST_CHANNEL).expect("below the limit"));
        let memory = local::memory(ChannelGeometry { slab }.size()).expect("memory");
        let ready_map = local::memory(ready_map::SIZE).expect("memory");
        let doorbell = Doorbell::new().expect("a descriptor");
        let offer = ChannelOffer {
            channel,
            peer: domain(2),
            peer_name: Name::new("two").expect("short"),
            peer_owner: Owner(0),
            direction,
            slab,
            ready_map: ReadyMapIndex::DAEMON,
            ready_bit: bit,
            peer_ready_bit: bit,
            new_ready_map: false,
        };
        self.receive(offer, &[memory.as_fd(), ready_map.as_fd(), doorbell.as_fd()]);
    }

    /// Lets the domain receive the refusal of a request.
    fn refuse(&mut self, reason: Reason) {
        self.receive(ChannelRefused { peer: domain(2), reason, permanent: true }, &[]);
    }

    /// The channel with the peer.
    fn channel(&self) -> Option<ChannelId> {
        match self.core.peers[self.at].channel_state {
            ChannelState::Made { id, .. } => Some(id),
            _ => None,
        }
    }
}

#[test]
fn refusal_of_a_request_ends_no_channel_that_is_in_use() {
    let mut fixture = Fixture::new();
    fixture.offer(ChannelId(7), Direction::One);
    fixture.refuse(Reason::ChannelsFull);
    assert_eq!(fixture.channel(), Some(ChannelId(7)), "the peer has requested it");
    fixture.receive(ChannelClosed { channel: ChannelId(7), reason: Reason::ClosedByPeer }, &[]);
    fixture.offer(ChannelId(8), Direction::Zero);
    fixture.receive(ChannelOpen { channel: ChannelId(8) }, &[]);
    fixture.refuse(Reason::ChannelsFull);
    assert_eq!(fixture.channel(), Some(ChannelId(8)), "it is open");
}

#[test]
fn refusal_ends_the_offer_that_the_listener_did_not_accept() {
    let mut fixture = Fixture::new();
    fixture.offer(ChannelId(7), Direction::Zero);
    assert_eq!(fixture.channel(), Some(ChannelId(7)));
    fixture.refuse(Reason::ChannelRefused);
    let expected = ChannelState::Refused { reason: Reason::ChannelRefused, last: true };
    assert_eq!(fixture.core.peers[fixture.at].channel_state, expected);
}

#[test]
fn offer_of_another_channel_fails_what_the_one_before_has_begun() {
    let mut fixture = Fixture::new();
    fixture.offer(ChannelId(7), Direction::One);
    assert!(fixture.core.handle_switch(fixture.at).is_ok());
    let endpoint = EndpointIndex::new(0).expect("the first endpoint is one");
    let (envelope, token) = (
        Envelope { from: fixture.core.peers[fixture.at].address(endpoint), to: endpoint, tag: 0, len: 9 },
        Token::new(5),
    );
    let destination = Destination::Posted(Posted { token, buffer: vec![0; 9].into() });
    let incoming = Incoming { envelope, expected: 9, received: 4, destination };
    fixture.core.peers[fixture.at].started = Some((Serial(3), incoming));
    fixture.offer(ChannelId(8), Direction::One);
    assert_eq!(fixture.channel(), Some(ChannelId(8)));
    let peer = &fixture.core.peers[fixture.at];
    assert_eq!((peer.path_in, peer.epoch_in, peer.switch), (Path::Daemon, 0, None));
    let completion = fixture.core.matcher.completions.pop_front().expect("the receive is over");
    assert_eq!((completion.token, completion.outcome), (token, Outcome::Failed(Reason::ChannelReplaced)));
}

#[test]
fn switch_to_a_channel_that_is_gone_fails_the_peer() {
    let mut fixture = Fixture::new();
    assert!(
        fixture.core.handle_switch(fixture.at).is_err(),
        "the peer sends what follows where this domain does not read"
    );
    fixture.offer(ChannelId(7), Direction::One);
    assert!(fixture.core.handle_switch(fixture.at).is_ok());
    assert!(matches!(fixture.core.peers[fixture.at].path_in, Path::Channel(_)));
}
