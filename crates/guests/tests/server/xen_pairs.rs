//! Xen guests that map each other's pages. A pair window is created when their programs first communicate, and is removed with all grants when
//! necessary.

use std::os::fd::OwnedFd;

use isthmus_layout::RegionSize;
use isthmus_layout::channel::{ChannelGeometry, SlabSize};
use isthmus_layout::control::*;
use isthmus_layout::ids::DomainId;
use isthmus_layout::ready_map;
use isthmus_layout::reason::Reason;
use isthmus_platform_xen::EvtchnPort;
use isthmus_platform_xen::fake::{self, FakeHost};
use isthmus_report::Why;
use isthmus_shm::{Access, Mapping, Payload as _, SharedMapping};

use crate::testbed::{Client, channel};
use crate::xen::{Running, WEB, admitted, attached, domid, until};

const BASE: u16 = 8;

/// Two guests with a program each, and their backend.
struct TwoXenGuests {
    host: FakeHost,
    backend: Running,
    frontends: [Running; 2],
    clients: [Client; 2],
    ids: [DomainId; 2],
}

impl TwoXenGuests {
    fn start(xen: &str) -> Self {
        Self::of(xen, [""; 2])
    }

    /// Starts two guests with settings of each.
    fn of(xen: &str, own: [&str; 2]) -> Self {
        let host = FakeHost::new();
        let guests: [fake::FakeDomain; 2] =
            [(WEB, "web"), (BASE, "base")].map(|(number, name)| admitted(&host, number, name));
        let backend = Running::backend_of(&host, &[("web", own[0]), ("base", own[1])], xen);
        let frontends = guests.each_ref().map(Running::frontend);
        let mut clients = frontends.each_ref().map(Running::served);
        let [a, b] = &mut clients;
        let ids = [attached(a, "web1"), attached(b, "base1")].map(|welcomed| welcomed.id());
        Self { host, backend, frontends, clients, ids }
    }

    fn channel(&mut self) -> [(ChannelOffer, Vec<OwnedFd>); 2] {
        let [a, b] = &mut self.clients;
        channel(a, b, self.ids[1])
    }

    /// Returns the path between the two, and the reason for it.
    fn why(&self) -> (String, Option<String>) {
        let why: Why = self.backend.greeted().report(Topic::Why, &["web1", "base1"]).unwrap();
        (why.path, why.reason.map(|reason| reason.reason))
    }

    /// Checks that the guests get no window.
    fn expect_refusal(&mut self) {
        let peer = self.ids[1];
        self.clients[0].send(RequestChannel { peer, attempt: 1 }, &[]);
        let heard = self.clients[0].receive_matching(|heard| matches!(heard.message, ToClient::ChannelRefused(_)));
        let ToClient::ChannelRefused(refused) = heard.message else { panic!("{heard:?}") };
        assert_eq!(refused.reason, Reason::PairWindowRefused);
        assert_eq!(self.why(), ("daemon".to_owned(), Some("pair-window-refused".to_owned())));
    }

    /// Returns the number of pages that each guest grants to the other.
    fn shared_grants(&self) -> [usize; 2] {
        [(WEB, BASE), (BASE, WEB)].map(|(from, to)| self.host.grants_to(domid(from), domid(to)))
    }

    fn wait_until_no_shared_grants(&self) {
        until("the guests still grant pages to each other", || (self.shared_grants() == [0; 2]).then_some(()));
    }
}

fn window(fd: &OwnedFd, size: RegionSize) -> SharedMapping {
    SharedMapping::new(Mapping::new(fd, size, Access::ReadWrite).unwrap())
}

fn of_slab(slab: SlabSize) -> RegionSize {
    ChannelGeometry { slab }.size()
}

#[test]
fn programs_of_two_guests_get_a_channel_in_pages_that_the_one_grants_to_the_other() {
    let mut two = TwoXenGuests::start("pair_window_idle_s = 1");
    assert_eq!(two.shared_grants(), [0; 2]);
    let [(offer, ours), (_, theirs)] = two.channel();
    // The channel's memory, the ready map of each domain, and its doorbell.
    let size = of_slab(offer.slab);
    let [a, b] = [&ours[0], &theirs[0]].map(|fd| window(fd, size));
    a.copy_in(0, b"from web");
    b.copy_in(64, b"from base");
    let said = |window: &SharedMapping, at: u64, bytes: usize| {
        let mut said = vec![0; bytes];
        window.copy_out(at, &mut said);
        said
    };
    assert_eq!((said(&b, 0, 8), said(&a, 64, 9)), (b"from web".to_vec(), b"from base".to_vec()));
    for fd in [&ours[1], &ours[3], &theirs[1], &theirs[3]] {
        window(fd, ready_map::SIZE);
    }
    assert_eq!(two.why(), ("channel".to_owned(), None));
    // Only one of the two guests grants.
    let grants = two.shared_grants();
    assert!(grants.contains(&0) && grants != [0; 2], "{grants:?}");
    // Closing a channel closes it for both. Some time after the last channel, the window is closed.
    drop((a, b, ours, theirs));
    two.clients[0].send(CloseChannel { channel: offer.channel, reason: Reason::ClosedLocally }, &[]);
    let closed = |heard: &crate::testbed::ReceivedMessage| matches!(heard.message, ToClient::ChannelClosed(_));
    two.clients[1].receive_matching(closed);
    two.clients[1].send(CloseChannel { channel: offer.channel, reason: Reason::ClosedByPeer }, &[]);
    two.wait_until_no_shared_grants();
    // A new window is created for the next channel.
    two.channel();
}

#[test]
fn guest_that_may_not_map_grants_to_its_peer() {
    const NO: &str = "maps = false";
    let grants = |own| {
        let mut two = TwoXenGuests::of("", own);
        two.channel();
        two.shared_grants().map(|pages| pages > 0)
    };
    assert_eq!(grants([NO, ""]), [true, false]);
    assert_eq!(grants(["", NO]), [false, true]);
    let mut two = TwoXenGuests::of("", [NO; 2]);
    two.expect_refusal();
    assert_eq!(two.shared_grants(), [0; 2]);
}

/// Returns the descriptors of an offer that are event channels, and their ports, as the program was notified.
fn event_channels(client: &mut Client) -> Vec<(u8, u32)> {
    let heard = client.receive_matching(|heard| matches!(heard.message, ToClient::EventChannels(_)));
    let ToClient::EventChannels(EventChannels { ends }) = heard.message else { panic!("{heard:?}") };
    ends.iter().map(|end| (end.descriptor, end.port)).collect()
}

fn arrives(listener: &OwnedFd) {
    until("a ring does not arrive", || rustix::io::read(listener, &mut [0; 8]).ok());
}

/// The indices of the descriptors of an offer that ring the peer, and that the peer rings.
const DOORBELL: usize = 2;
const LISTENER: usize = 4;

#[test]
fn programs_of_two_guests_ring_by_event_channels() {
    let mut two = TwoXenGuests::start("");
    let [(_, ours), (_, theirs)] = two.channel();
    let [a, b] = &mut two.clients;
    let told = [event_channels(a), event_channels(b)];
    for told in &told {
        assert_eq!(told.iter().map(|(at, _)| usize::from(*at)).collect::<Vec<_>>(), [DOORBELL, LISTENER]);
    }
    for listener in [&theirs[LISTENER], &ours[LISTENER]] {
        let _ = rustix::io::read(listener, &mut [0; 8]); // Binding raises an event.
    }
    for (told, from, listener) in [(&told[0], WEB, &theirs[LISTENER]), (&told[1], BASE, &ours[LISTENER])] {
        two.host.notify(domid(from), EvtchnPort(told[0].1));
        arrives(listener);
    }
}

#[test]
fn a_guest_that_is_destroyed_ends_its_channels_and_leaves_nothing() {
    for gone in [0, 1] {
        let mut two = TwoXenGuests::start("");
        let [(offer, ours), (_, theirs)] = two.channel();
        let number = [WEB, BASE][gone];
        two.host.destroy(domid(number));
        let remaining = &mut two.clients[1 - gone];
        let heard = remaining.receive_matching(|heard| matches!(heard.message, ToClient::ChannelClosed(_)));
        let ToClient::ChannelClosed(closed) = heard.message else { panic!("{heard:?}") };
        assert_eq!(closed.channel, offer.channel);
        // The remaining program's mapping stays valid until the program unmaps it.
        window(&[ours, theirs][1 - gone][0], of_slab(offer.slab)).copy_in(0, b"x");
        remaining.send(CloseChannel { channel: offer.channel, reason: Reason::ClosedByPeer }, &[]);
        // The daemon of the simulated domain is a thread of this process, and keeps its mappings until it ends.
        two.frontends[gone].stop();
        until("its pages stay", || (two.host.grants_of(domid(number)) == 0).then_some(()));
        two.wait_until_no_shared_grants();
    }
}

#[test]
fn guest_daemon_exit_ends_its_channels_only() {
    for gone in [0, 1] {
        let mut two = TwoXenGuests::start("");
        let [(offer, _), _] = two.channel();
        two.frontends[gone].stop();
        let remaining = &mut two.clients[1 - gone];
        remaining.receive_matching(|heard| matches!(heard.message, ToClient::ChannelClosed(_)));
        remaining.send(CloseChannel { channel: offer.channel, reason: Reason::ClosedByPeer }, &[]);
        until("its pages stay", || (two.host.grants_of(domid([WEB, BASE][gone])) == 0).then_some(()));
        // Programs of the next daemon connect to the remaining one anew.
        let again = Running::frontend(&two.host.domain(domid([WEB, BASE][gone])));
        let mut client = again.served();
        let id = attached(&mut client, "again").id();
        channel(&mut two.clients[1 - gone], &mut client, id);
    }
}

#[test]
fn backend_exit_ends_pair_windows() {
    let mut two = TwoXenGuests::start("");
    two.channel();
    two.backend.stop();
    for client in &mut two.clients {
        client.ended();
    }
    until("pages stay", || (two.host.grants() == 0).then_some(()));
}

#[test]
fn refuses_a_pair_window_that_is_too_small() {
    let mut two = TwoXenGuests::start("pair_window_mib = 1\n[limits]\nslab_kib = 1024");
    two.expect_refusal();
    two.wait_until_no_shared_grants();
}
