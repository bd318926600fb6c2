//! MX endpoint numbers: claimed, found, given back, claimed again after a restart.

use std::collections::BTreeSet;

use isthmus_layout::control::*;
use isthmus_layout::ids::{DomainId, EndpointAddress, EndpointIndex, NicId};
use isthmus_layout::mx::{MxConnect, MxOpen, MxResolve, MxToClient};
use isthmus_layout::reason::Reason;
use isthmus_report::{Endpoints, MetricsText, MxReport};
use isthmus_testbed::{Deadline, eventually};

use crate::resuming::come_back;
use crate::testbed::{Client, Testbed, channel};

const TWO_BOARDS: &str =
    "[[mx.board]]\nmac = \"02:00:00:00:00:01\"\nendpoints_max = 2\n[[mx.board]]\nname = \"fast\"\nendpoints_max = 3\n";

const FIRST_NIC: u64 = 0x0200_0000_0001;

impl Client {
    fn mx_endpoint(&mut self) -> EndpointIndex {
        match self.request(OpenEndpoint { index: None, label: None }, &[]).unwrap().message {
            ToClient::EndpointOpened(opened) => opened.index,
            other => panic!("{other:?}"),
        }
    }

    fn mx_open(
        &mut self,
        board: Option<u32>,
        endpoint: Option<u32>,
        key: u32,
        at: EndpointIndex,
    ) -> Result<(u32, u32, u64), Reason> {
        match self.request(MxOpen { board, endpoint, key, index: at }, &[])?.message {
            ToClient::Mx(MxToClient::MxOpened(opened)) => Ok((opened.board, opened.endpoint, opened.nic)),
            other => panic!("{other:?}"),
        }
    }

    /// Opens an endpoint and claims any number for it.
    pub(crate) fn mx_any(&mut self, key: u32) -> Result<(u32, u32), Reason> {
        let at = self.mx_endpoint();
        self.mx_open(None, None, key, at).map(|(board, endpoint, _)| (board, endpoint))
    }

    fn mx_connect(&mut self, nic: u64, endpoint: u32, key: u32) -> Result<EndpointAddress, Reason> {
        match self.request(MxConnect { nic, endpoint, key }, &[])?.message {
            ToClient::Mx(MxToClient::MxFound(found)) => {
                Ok(EndpointAddress { domain: found.domain, endpoint: found.endpoint })
            }
            other => panic!("{other:?}"),
        }
    }

    fn mx_resolve(&mut self, domain: DomainId, endpoint: EndpointIndex) -> Result<(u64, u32), Reason> {
        match self.request(MxResolve { domain, endpoint }, &[])?.message {
            ToClient::Mx(MxToClient::MxResolved(is)) => Ok((is.nic, is.endpoint)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn numbers_are_shared_by_all_domains() {
    let bed = Testbed::with(TWO_BOARDS);
    let ((mut a, _), (mut b, _)) = (bed.attached("a"), bed.attached("b"));
    assert_eq!([a.mx_any(1), b.mx_any(1), a.mx_any(1)], [Ok((0, 0)), Ok((1, 0)), Ok((0, 1))]);
    let at = b.mx_endpoint();
    assert_eq!(b.mx_open(Some(0), Some(1), 1, at).err(), Some(Reason::MxEndpointTaken));
    assert_eq!(b.mx_open(Some(0), None, 1, at).err(), Some(Reason::MxEndpointTaken));
    assert_eq!(b.mx_open(Some(0), Some(2), 1, at).err(), Some(Reason::MxEndpointOutOfRange));
    assert_eq!(b.mx_open(Some(2), None, 1, at).err(), Some(Reason::MxBoardUnknown));
    assert_eq!(b.mx_open(None, Some(2), 1, at).map(|(board, endpoint, _)| (board, endpoint)), Ok((1, 2)));
    assert_eq!(b.mx_open(None, None, 1, at).err(), Some(Reason::RequestInvalid), "it has one");
    assert_eq!([a.mx_any(1), a.mx_any(1)], [Ok((1, 1)), Err(Reason::MxEndpointTaken)]);
    let unopened = EndpointIndex::new(9).unwrap();
    assert_eq!(b.mx_open(None, None, 1, unopened).err(), Some(Reason::EndpointClosed));
    b.request(CloseEndpoint { index: at }, &[]).unwrap();
    assert_eq!(a.mx_any(1), Ok((1, 2)), "free again with its endpoint");
}

#[test]
fn connect_finds_an_endpoint_by_number_and_key() {
    let bed = Testbed::with(TWO_BOARDS);
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let (mine, at) = (a.mx_endpoint(), b.mx_endpoint());
    let (_, endpoint, nic) = b.mx_open(Some(0), Some(1), 0x1234_5678, at).unwrap();
    assert_eq!(nic, FIRST_NIC);
    a.mx_open(Some(1), None, 0, mine).unwrap();
    let there = EndpointAddress { domain: theirs.id(), endpoint: at };
    assert_eq!(a.mx_connect(nic, endpoint, 0x1234_5678), Ok(there));
    assert_eq!(a.mx_connect(nic, endpoint, 0), Err(Reason::MxBadKey));
    assert_eq!(a.mx_connect(nic, 0, 0x1234_5678), Err(Reason::MxEndpointClosed));
    assert_eq!(a.mx_connect(nic, 2, 0x1234_5678), Err(Reason::MxEndpointOutOfRange));
    assert_eq!(a.mx_connect(nic + 1, endpoint, 0x1234_5678), Err(Reason::MxNicUnknown));
    assert_eq!(a.mx_connect(u64::MAX, endpoint, 0x1234_5678), Err(Reason::MxNicUnknown));
    assert_eq!(b.mx_connect(nic, endpoint, 0x1234_5678), Ok(there), "its own");
    // A domain that has connected to a peer is notified when the peer is gone, and can still resolve its address.
    assert_eq!(a.mx_resolve(theirs.id(), at), Ok((nic, endpoint)));
    b.request(Detach {}, &[]).unwrap();
    let gone = a.receive_matching(|heard| matches!(heard.message, ToClient::PeerGone(_)));
    assert_eq!(gone.message, PeerGone { peer: theirs.id(), reason: Reason::PeerDetached }.into());
    assert_eq!(a.mx_resolve(theirs.id(), at), Ok((nic, endpoint)));
    assert_eq!(a.mx_connect(nic, endpoint, 0x1234_5678), Err(Reason::MxEndpointClosed));
    let other = EndpointIndex::new(5).unwrap();
    assert_eq!(a.mx_resolve(ours.id(), other), Err(Reason::MxNumberMissing));
}

#[test]
fn a_policy_keeps_mx_programs_apart() {
    let bed = Testbed::with("[policy]\nrules = [{ from = \"x\", to = \"b\", allow = false }]\n");
    let ((mut x, _), (mut b, _)) = (bed.attached("x"), bed.attached("b"));
    let (mine, at) = (x.mx_endpoint(), b.mx_endpoint());
    let (_, endpoint, nic) = b.mx_open(None, None, 0, at).unwrap();
    assert_eq!([0, 1].map(|key| x.mx_connect(nic, endpoint, key)), [Err(Reason::TalkForbidden); 2], "whatever the key");
    let (_, own, nic) = x.mx_open(None, None, 0, mine).unwrap();
    assert!(b.mx_connect(nic, own, 0).is_ok(), "the other way is allowed");
    assert!(x.mx_connect(nic, own, 0).is_ok());
}

#[test]
fn endpoint_number_is_told_to_domains_that_may_talk_with_its_owner() {
    let bed = Testbed::with(
        "[policy]\nrules = [{ from = \"x\", to = \"b\", allow = false }, { from = \"x\", to = \"c\", allow = false },\
         { from = \"c\", to = \"x\", allow = false }]\n",
    );
    let ((mut x, _), (mut b, theirs), (mut c, others)) = (bed.attached("x"), bed.attached("b"), bed.attached("c"));
    let (at, elsewhere) = (b.mx_endpoint(), c.mx_endpoint());
    let (_, number, nic) = b.mx_open(None, None, 0, at).unwrap();
    c.mx_open(None, None, 0, elsewhere).unwrap();
    assert_eq!(x.mx_resolve(theirs.id(), at), Ok((nic, number)), "it may receive from there");
    assert_eq!(x.mx_resolve(others.id(), elsewhere), Err(Reason::TalkForbidden));
    assert!(c.mx_resolve(others.id(), elsewhere).is_ok(), "its own");
}

#[test]
fn undelivered_messages_are_counted_and_end_the_channel() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(offer, _), _] = channel(&mut a, &mut b, theirs.id());
    let channel = offer.channel;
    assert_eq!(a.request(Undelivered { peer: theirs.id(), messages: 7 }, &[]).unwrap().message, Done {}.into());
    assert_eq!(b.receive_message().message, ChannelClosed { channel, reason: Reason::MessagesUndelivered }.into());
    let metrics: MetricsText = bed.greeted().report(Topic::Metrics, &[]).unwrap();
    assert!(metrics.text.contains("isthmus_undelivered_messages_total 7\n"), "{}", metrics.text);
    // A peer that is not there is no error: it may have left meanwhile.
    let absent = DomainId::new(4_000).unwrap();
    assert_eq!(a.request(Undelivered { peer: absent, messages: 1 }, &[]).unwrap().message, Done {}.into());
}

#[test]
fn boards_numbers_and_peers_are_reported_without_attaching() {
    let bed = Testbed::with(TWO_BOARDS);
    let (mut a, ours) = bed.attached("a");
    a.mx_endpoint();
    let at = a.mx_endpoint();
    a.mx_open(Some(1), Some(2), 7, at).unwrap();
    let mut asks = bed.greeted();
    let MxReport { boards, peers, .. } = asks.report(Topic::Mx, &[]).unwrap();
    assert_eq!((boards[0].nic, boards[0].mac.as_str()), (FIRST_NIC, "02:00:00:00:00:01"));
    assert_eq!((boards[1].name.as_str(), boards[1].endpoints_max, boards[0].endpoints.len()), ("fast", 3, 0));
    assert!(boards[0].name.ends_with(":0"), "{}", boards[0].name);
    let taken = &boards[1].endpoints[0];
    assert_eq!((taken.number, taken.domain.id, taken.index), (2, ours.id().number(), at.number()));
    let reachable: Vec<_> = peers.iter().map(|peer| (peer.nic, peer.name.as_str())).collect();
    assert_eq!(reachable, [(FIRST_NIC, boards[0].name.as_str()), (boards[1].nic, "fast")]);
    assert_eq!(NicId::new(boards[1].nic).unwrap().to_string(), boards[1].mac);
    let endpoints: Endpoints = asks.report(Topic::Endpoints, &[]).unwrap();
    let numbers: Vec<_> =
        endpoints.endpoints.iter().map(|row| row.mx.as_ref().map(|mx| (mx.board, mx.endpoint))).collect();
    assert_eq!(numbers, [None, Some((1, 2))]);
}

#[test]
fn a_domain_that_comes_back_has_its_number_again() {
    let mut bed = Testbed::new();
    let ((mut a, ours), (mut b, _)) = (bed.attached("a"), bed.attached("b"));
    let (at, nic) = (a.mx_endpoint(), {
        let at = b.mx_endpoint();
        b.mx_open(None, None, 0, at).unwrap().2
    });
    assert_eq!(a.mx_open(None, Some(7), 5, at), Ok((0, 7, nic)));
    bed.stop();
    bed.start("", VersionRange::CURRENT);
    let (mut b, _) = bed.attached("c");
    assert_eq!(b.mx_connect(nic, 7, 5), Err(Reason::MxEndpointClosed), "not yet");
    let other = b.mx_endpoint();
    assert_eq!(b.mx_open(None, Some(7), 5, other).err(), Some(Reason::MxEndpointTaken), "it is kept for its domain");
    let (mut a, again) = come_back(&bed, &ours);
    again.unwrap();
    a.request(OpenEndpoint { index: Some(at), label: None }, &[]).unwrap();
    assert_eq!(a.mx_open(Some(0), Some(7), 5, at), Ok((0, 7, nic)), "boards keep their address");
    assert_eq!(b.mx_connect(nic, 7, 5).map(|found| found.domain), Ok(ours.id()));
}

/// A board with a link, and a peer board that does not respond.
const SILENT_PEER: &str = "[[mx.board]]\nlinks = [{ udp = \"127.0.0.1:PORT\", peers = [\"127.0.0.1:9\"] }]\n\
                           peers = [{ mac = \"02:00:00:00:00:0b\", name = \"silent:0\" }]\n";

const GIVE_UP_S: u64 = 60;

const SILENT_NIC: u64 = 0x0200_0000_000B;

impl Client {
    /// Connects to endpoints that do not respond. Returns the reasons and texts of the connects that were refused at once.
    fn mx_connect_to_silent(&mut self, connects: u32) -> Vec<(Reason, String)> {
        for connect in 0..connects {
            self.send(MxConnect { nic: SILENT_NIC, endpoint: connect % 32, key: 0 }, &[]);
        }
        let done = self.send(Lookup { name: crate::testbed::name("unknown") }, &[]);
        let mut refusals = Vec::new();
        loop {
            let heard = self.receive_matching(|heard| heard.serial.is_some());
            match heard.message {
                ToClient::Refused(_) if heard.serial == Some(done) => return refusals,
                ToClient::Refused(refused) => refusals.push((refused.reason, refused.text.to_string())),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Starts a daemon with the configuration above and a free port. Its board knows the silent peer.
fn beside_a_silent_peer(more: &str) -> Testbed {
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    Testbed::with(&format!("{more}{}", SILENT_PEER.replace("PORT", &port.to_string())))
}

#[test]
fn host_that_does_not_resolve_is_reported_and_stops_no_daemon() {
    let config =
        "[[mx.board]]\nlinks = [{ udp = \"127.0.0.1:PORT\", peers = [\"nosuch.invalid\", \"127.0.0.1:9\"] }]\n";
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let bed = Testbed::with(&config.replace("PORT", &port.to_string()));
    let report = bed.greeted().report::<MxReport>(Topic::Mx, &[]).unwrap();
    let links = &report.boards[0].links;
    assert_eq!((links.len(), &links[0].unresolved[..]), (1, &["nosuch.invalid".to_owned()][..]), "{links:?}");
}

#[test]
fn reports_static_peers_from_the_start() {
    let bed = beside_a_silent_peer("");
    let report = bed.greeted().report::<MxReport>(Topic::Mx, &[]).unwrap();
    assert!(report.peers.iter().any(|peer| peer.nic == SILENT_NIC), "{report:?}");
}

#[test]
fn connects_to_silent_endpoints_are_limited_for_each_domain_and_go_with_it() {
    let bed = beside_a_silent_peer("");
    let (mut a, _) = bed.attached("a");
    a.mx_any(0).unwrap();
    let refused = a.mx_connect_to_silent(1100);
    assert_eq!(refused.len(), 1100 - 1024, "{:?}", refused.first());
    assert_eq!(refused[0].0, Reason::TooManyRequests);
    assert!(refused[0].1.contains("1024 of this domain wait"), "{}", refused[0].1);
    let (mut b, _) = bed.attached("b");
    b.mx_any(0).unwrap();
    assert_eq!(b.mx_connect_to_silent(1024), []);
    a.request(Detach {}, &[]).unwrap();
    let (mut c, _) = bed.attached("c");
    c.mx_any(0).unwrap();
    assert_eq!(c.mx_connect_to_silent(1024), [], "the connects of a domain that has left do not count");
}

#[test]
fn metrics_include_mx_board_counters() {
    let bed = beside_a_silent_peer("");
    let (mut a, _) = bed.attached("a");
    a.mx_any(0).unwrap();
    assert_eq!(a.mx_connect_to_silent(3), []);
    let mut asks = bed.greeted();
    let metrics = [
        "isthmus_mx_link_sent_frames_total{board=\"0\",link=\"udp:127.0.0.1:",
        "isthmus_mx_link_lost_total{board=\"0\",link=\"udp:127.0.0.1:",
        "reason=\"overruns\"} 0",
        "isthmus_mx_dropped_total{board=\"0\",reason=\"unknown_source\"} 0",
        "isthmus_mx_ignored_total{board=\"0\",reason=\"wrong_session\"} 0",
        "isthmus_mx_retransmits_total{board=\"0\"}",
        "isthmus_mx_served_endpoints{board=\"0\"} 1",
        "isthmus_mx_remote_peers{board=\"0\"} 0",
        "isthmus_mx_pending_connects 3",
    ];
    // The counters of workers are published with a delay.
    let mut text = String::new();
    let late = eventually(Deadline::secs(GIVE_UP_S), || {
        text = asks.report::<MetricsText>(Topic::Metrics, &[]).unwrap().text;
        metrics.iter().all(|metric| text.contains(metric))
    });
    let missing = metrics.iter().find(|metric| !text.contains(*metric));
    assert!(late.is_ok(), "{missing:?} is not in\n{text}");
}

#[test]
fn metrics_page_and_daemon_have_the_same_metrics() {
    const ONLY_WHEN_COUNTED: [&str; 12] = [
        "isthmus_channel_assisted",
        "isthmus_control_reasons_total",
        "isthmus_domain_direct_accesses",
        "isthmus_domain_refused_accesses",
        "isthmus_domain_served_accesses",
        "isthmus_overlay_lost_frames_total",
        "isthmus_overlay_pair_bytes_total",
        "isthmus_overlay_pair_frames_total",
        "isthmus_ring_drops_total",
        "isthmus_ring_violations_total",
        "isthmus_stream_refused_total",
        "isthmus_verbs_refused_total",
    ];
    let page = include_str!("../../../../docs/operate/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let documented: BTreeSet<&str> = rows.map(|(name, _)| name).collect();
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let bed = beside_a_silent_peer(&format!(
        "[overlay]\nlisten = \"127.0.0.1\"\nnetwork = [{{ name = \"lan\", edges = [{{ to = \"127.0.0.2:{free}\" }}] }}]\n"
    ));
    let (mut domain, _) = bed.attached("a");
    domain.mx_any(0).unwrap();
    assert_eq!(domain.mx_connect_to_silent(1), []);
    let mut client = bed.greeted();
    // The counters of workers are published with a delay.
    let mut text = String::new();
    let published = eventually(Deadline::secs(GIVE_UP_S), || {
        text = client.report::<MetricsText>(Topic::Metrics, &[]).unwrap().text;
        ["isthmus_mx_served_endpoints{", "isthmus_overlay_sent_frames_total{"].iter().all(|name| text.contains(name))
    });
    assert!(published.is_ok(), "{text}");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let served: BTreeSet<&str> = samples.filter_map(|line| line.split(['{', ' ']).next()).collect();
    assert_eq!(served.difference(&documented).collect::<Vec<_>>(), [] as [&&str; 0], "not on the page");
    let absent = documented.difference(&served).filter(|name| !ONLY_WHEN_COUNTED.contains(name));
    assert_eq!(absent.collect::<Vec<_>>(), [] as [&&str; 0], "not in\n{text}");
}

#[test]
fn connects_to_silent_endpoints_are_limited_for_each_user() {
    let bed = beside_a_silent_peer("[policy]\nattach = \"any-user\"\n");
    let mut domains = Vec::new();
    let mut waiting = 0;
    for n in 0..4 {
        let (mut client, _) = bed.attached(&format!("a{n}"));
        client.mx_any(0).unwrap();
        let refused = client.mx_connect_to_silent(1024);
        waiting += 1024 - refused.len();
        domains.push((client, refused));
    }
    assert_eq!(waiting, 3584, "half of those that are not kept for users without a connect");
    let refused = &domains[3].1[0].1;
    assert!(refused.contains("the user has 3584 of 8192"), "{refused}");
    if let Some(mut other) = bed.greeted_as(65_533) {
        other.attach(Some("other")).unwrap();
        other.mx_any(0).unwrap();
        assert_eq!(other.mx_connect_to_silent(1), [], "another user has room");
    }
}
