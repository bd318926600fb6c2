//! Guests of Xen that map each other's pages: a window in common is made when their programs first talk, and is gone with all that was granted
//! when it has to be.

use std::os::fd::OwnedFd;

use isthmus_control::schema::Why;
use isthmus_layout::RegionSize;
use isthmus_layout::board;
use isthmus_layout::channel::{Geometry, SlabSize};
use isthmus_layout::control::*;
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_platform_xen::EvtchnPort;
use isthmus_platform_xen::fake::{self, Host};
use isthmus_shm::{Access, Mapping, Payload as _, Window};

use crate::bed::{Client, Welcomed, channel, speaks};
use crate::xen::{Running, WEB, admitted, attached, domid, until};

const BASE: u16 = 8;

/// Two guests with a program each, and their backend.
struct Two {
    host: Host,
    backend: Running,
    frontends: [Running; 2],
    clients: [Client; 2],
    ids: [DomainId; 2],
    /// Where the programs hear what is for any board of theirs.
    bells: [OwnedFd; 2],
}

/// Which of the descriptors of a welcome that is.
const OWN_BELL: usize = 4;

impl Two {
    fn start(xen: &str) -> Self {
        Self::speaking(xen, [Spoken::CURRENT; 2])
    }

    /// The same of programs that speak this.
    fn speaking(xen: &str, spoken: [Spoken; 2]) -> Self {
        Self::of((xen, [""; 2]), spoken)
    }

    /// The same with settings of each guest.
    fn of((xen, own): (&str, [&str; 2]), spoken: [Spoken; 2]) -> Self {
        let host = Host::new();
        let guests: [fake::Domain; 2] =
            [(WEB, "web"), (BASE, "base")].map(|(number, name)| admitted(&host, number, name));
        let backend = Running::backend_of(&host, &[("web", own[0]), ("base", own[1])], xen);
        let frontends = guests.each_ref().map(Running::frontend);
        let mut clients = [0, 1].map(|at| frontends[at].served_as(spoken[at]));
        let [a, b] = &mut clients;
        let welcomed = [attached(a, "web1"), attached(b, "base1")];
        let ids = welcomed.each_ref().map(Welcomed::id);
        let bells = welcomed.map(|mut welcomed| welcomed.fds.remove(OWN_BELL));
        Self { host, backend, frontends, clients, ids, bells }
    }

    fn channel(&mut self) -> [(ChannelOffer, Vec<OwnedFd>); 2] {
        let [a, b] = &mut self.clients;
        channel(a, b, self.ids[1])
    }

    /// The path of the two, and the reason for it.
    fn why(&self) -> (String, Option<String>) {
        let why: Why = self.backend.greeted().report(Topic::Why, &["web1", "base1"]).unwrap();
        (why.path, why.reason.map(|reason| reason.reason))
    }

    /// They get no window.
    fn expect_refusal(&mut self) {
        let peer = self.ids[1];
        self.clients[0].say(RequestChannel { peer, attempt: 1 }, &[]);
        let heard = self.clients[0].hear_that(|heard| matches!(heard.message, ToClient::ChannelRefused(_)));
        let ToClient::ChannelRefused(refused) = heard.message else { panic!("{heard:?}") };
        assert_eq!(refused.reason, Reason::WindowRefused);
        assert_eq!(self.why(), ("ordinary".to_owned(), Some("window-refused".to_owned())));
    }

    /// Pages that each guest grants to the other.
    fn common(&self) -> [usize; 2] {
        [(WEB, BASE), (BASE, WEB)].map(|(from, to)| self.host.grants_to(domid(from), domid(to)))
    }

    fn until_nothing_is_common(&self) {
        until("what the guests had in common is granted still", || (self.common() == [0; 2]).then_some(()));
    }
}

fn window(fd: &OwnedFd, size: RegionSize) -> Window {
    Window::new(Mapping::new(fd, size, Access::ReadWrite).unwrap())
}

fn of_slab(slab: SlabSize) -> RegionSize {
    Geometry { slab }.size()
}

#[test]
fn programs_of_two_guests_get_a_channel_in_pages_that_the_one_grants_to_the_other() {
    let mut two = Two::start("common_idle_s = 1");
    assert_eq!(two.common(), [0; 2]);
    let [(offer, ours), (_, theirs)] = two.channel();
    // The channel's memory, the board of each, and what rings it.
    let size = of_slab(offer.slab);
    let [a, b] = [&ours[0], &theirs[0]].map(|fd| window(fd, size));
    a.copy_in(0, b"from web");
    b.copy_in(64, b"from base");
    let said = |window: &Window, at: u64, bytes: usize| {
        let mut said = vec![0; bytes];
        window.copy_out(at, &mut said);
        said
    };
    assert_eq!((said(&b, 0, 8), said(&a, 64, 9)), (b"from web".to_vec(), b"from base".to_vec()));
    for board in [&ours[1], &ours[3], &theirs[1], &theirs[3]] {
        window(board, board::SIZE);
    }
    assert_eq!(two.why(), ("channel".to_owned(), None));
    // One of the two grants.
    let common = two.common();
    assert!(common.contains(&0) && common != [0; 2], "{common:?}");
    // A channel that ends ends for both; with the last one, and some time, the window.
    drop((a, b, ours, theirs));
    two.clients[0].say(CloseChannel { channel: offer.channel, reason: Reason::ClosedHere }, &[]);
    let closed = |heard: &crate::bed::Heard| matches!(heard.message, ToClient::ChannelClosed(_));
    two.clients[1].hear_that(closed);
    two.clients[1].say(CloseChannel { channel: offer.channel, reason: Reason::ClosedByPeer }, &[]);
    two.until_nothing_is_common();
    // And another one is made.
    two.channel();
}

#[test]
fn who_may_not_map_grants() {
    const NO: &str = "maps = false";
    let grants = |own| {
        let mut two = Two::of(("", own), [Spoken::CURRENT; 2]);
        two.channel();
        two.common().map(|pages| pages > 0)
    };
    assert_eq!(grants([NO, ""]), [true, false]);
    assert_eq!(grants(["", NO]), [false, true]);
    let mut two = Two::of(("", [NO; 2]), [Spoken::CURRENT; 2]);
    two.expect_refusal();
    assert_eq!(two.common(), [0; 2]);
}

/// What a program that does not know lines was offered.
fn before_lines() -> Spoken {
    speaks(EventChannels::SINCE - 1)
}

/// Which descriptors of its offer a program was told are lines, and their ports.
fn lines(client: &mut Client) -> Vec<(u8, u32)> {
    let heard = client.hear_that(|heard| matches!(heard.message, ToClient::EventChannels(_)));
    let ToClient::EventChannels(EventChannels { ends }) = heard.message else { panic!("{heard:?}") };
    ends.iter().map(|end| (end.descriptor, end.port)).collect()
}

fn arrives(listener: &OwnedFd) {
    until("a ring does not arrive", || rustix::io::read(listener, &mut [0; 8]).ok());
}

/// Which descriptors of an offer ring the peer, and are rung by it.
const RINGER: usize = 2;
const LISTENER: usize = 4;

#[test]
fn programs_of_two_guests_ring_each_other_by_lines() {
    let mut two = Two::start("");
    let [(_, ours), (_, theirs)] = two.channel();
    let [a, b] = &mut two.clients;
    let told = [lines(a), lines(b)];
    for told in &told {
        assert_eq!(told.iter().map(|(at, _)| usize::from(*at)).collect::<Vec<_>>(), [RINGER, LISTENER]);
    }
    for listener in [&theirs[LISTENER], &ours[LISTENER]] {
        let _ = rustix::io::read(listener, &mut [0; 8]); // Binding is an event.
    }
    for (told, from, listener) in [(&told[0], WEB, &theirs[LISTENER]), (&told[1], BASE, &ours[LISTENER])] {
        two.host.notify(domid(from), EvtchnPort(told[0].1));
        arrives(listener);
    }
}

#[test]
fn who_does_not_know_lines_is_rung_by_the_daemons_and_rings_so() {
    for spoken in [[before_lines(); 2], [before_lines(), Spoken::CURRENT], [Spoken::CURRENT, before_lines()]] {
        let mut two = Two::speaking("", spoken);
        let [(_, ours), (_, theirs)] = two.channel();
        for (from, ringer) in [(0, &ours[RINGER]), (1, &theirs[RINGER])] {
            if spoken[from] == Spoken::CURRENT {
                let told = lines(&mut two.clients[from]);
                assert_eq!(told.iter().map(|(at, _)| usize::from(*at)).collect::<Vec<_>>(), [LISTENER]);
            }
            // Who knows lines listens to its own bell as well.
            rustix::io::write(ringer, &1_u64.to_ne_bytes()).unwrap();
            arrives(&two.bells[1 - from]);
        }
    }
}

#[test]
fn a_guest_that_is_destroyed_ends_its_channels_and_leaves_nothing() {
    for gone in [0, 1] {
        let mut two = Two::start("");
        let [(offer, ours), (_, theirs)] = two.channel();
        let number = [WEB, BASE][gone];
        two.host.destroy(domid(number));
        let survivor = &mut two.clients[1 - gone];
        let heard = survivor.hear_that(|heard| matches!(heard.message, ToClient::ChannelClosed(_)));
        let ToClient::ChannelClosed(closed) = heard.message else { panic!("{heard:?}") };
        assert_eq!(closed.channel, offer.channel);
        // What it has mapped stays where it is until it lets go.
        window(&[ours, theirs][1 - gone][0], of_slab(offer.slab)).copy_in(0, b"x");
        survivor.say(CloseChannel { channel: offer.channel, reason: Reason::ClosedByPeer }, &[]);
        // The fake's domain has a thread of ours in it, which maps what it has mapped until it ends.
        two.frontends[gone].stop();
        until("its pages stay", || (two.host.grants_of(domid(number)) == 0).then_some(()));
        two.until_nothing_is_common();
    }
}

#[test]
fn a_daemon_that_ends_ends_its_channels_and_the_other_one_goes_on() {
    for gone in [0, 1] {
        let mut two = Two::start("");
        let [(offer, _), _] = two.channel();
        two.frontends[gone].stop();
        let survivor = &mut two.clients[1 - gone];
        survivor.hear_that(|heard| matches!(heard.message, ToClient::ChannelClosed(_)));
        survivor.say(CloseChannel { channel: offer.channel, reason: Reason::ClosedByPeer }, &[]);
        until("its pages stay", || (two.host.grants_of(domid([WEB, BASE][gone])) == 0).then_some(()));
        // The next daemon's programs meet the survivor anew.
        let again = Running::frontend(&two.host.domain(domid([WEB, BASE][gone])));
        let mut client = again.served();
        let id = attached(&mut client, "again").id();
        channel(&mut two.clients[1 - gone], &mut client, id);
    }
}

#[test]
fn the_backend_that_ends_takes_back_what_guests_had_in_common() {
    let mut two = Two::start("");
    two.channel();
    two.backend.stop();
    for client in &mut two.clients {
        client.ended();
    }
    until("pages stay", || (two.host.grants() == 0).then_some(()));
}

#[test]
fn a_window_that_is_too_small_is_a_refusal_with_its_reason() {
    let mut two = Two::start("common_mib = 1\n[limits]\nslab_kib = 1024");
    two.expect_refusal();
    two.until_nothing_is_common();
}
