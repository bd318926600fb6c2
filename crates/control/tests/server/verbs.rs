//! Queue pair numbers: taken, found, returned, taken again after a restart.

use std::net::Ipv6Addr;

use isthmus_layout::control::*;
use isthmus_layout::ids::{EndpointAddress, EndpointIndex};
use isthmus_layout::reason::Reason;
use isthmus_layout::verbs::{BLOCK_NUMBERS, BLOCKS_MAX, VerbsResolve, VerbsTake, VerbsToClient};
use isthmus_report::{MetricsText, QueuePairReport, VerbsReport};

use crate::resuming::come_back;
use crate::testbed::{Client, Testbed};

const HERE: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

impl Client {
    pub(crate) fn open_endpoint(&mut self) -> EndpointIndex {
        match self.request(OpenEndpoint { index: None, label: None }, &[]).unwrap().message {
            ToClient::EndpointOpened(opened) => opened.index,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn verbs_take(&mut self, index: EndpointIndex, first: Option<u32>) -> Result<u32, Reason> {
        match self.request(VerbsTake { index, first }, &[])?.message {
            ToClient::Verbs(VerbsToClient::VerbsTaken(taken)) => {
                assert_eq!(taken.count, BLOCK_NUMBERS);
                Ok(taken.first)
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn verbs_resolve(&mut self, gid: Ipv6Addr, qpn: u32) -> Result<EndpointAddress, Reason> {
        let (gid_high, gid_low) = ((gid.to_bits() >> 64) as u64, gid.to_bits() as u64);
        match self.request(VerbsResolve { gid_high, gid_low, qpn }, &[])?.message {
            ToClient::Verbs(VerbsToClient::VerbsFound(found)) => {
                Ok(EndpointAddress { domain: found.domain, endpoint: found.endpoint })
            }
            other => panic!("{other:?}"),
        }
    }

    fn queue_pair(&mut self, number: u32) -> Result<QueuePairReport, Reason> {
        self.report(Topic::Verbs, &[&number.to_string()])
    }

    fn verbs_report(&mut self) -> VerbsReport {
        self.report(Topic::Verbs, &[]).unwrap()
    }
}

#[test]
fn finds_the_endpoint_of_a_number_and_notifies_of_its_end() {
    let bed = Testbed::new();
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let (mine, at) = (a.open_endpoint(), b.open_endpoint());
    let (own, first) = (a.verbs_take(mine, None).unwrap(), b.verbs_take(at, None).unwrap());
    let there = EndpointAddress { domain: theirs.id(), endpoint: at };
    assert_eq!([0, 1, 255].map(|number| a.verbs_resolve(HERE, first + number)), [Ok(there); 3]);
    assert_eq!(a.verbs_resolve(HERE, own + 7), Ok(EndpointAddress { domain: ours.id(), endpoint: mine }));
    for unknown in [0, 1, 255, 0xFF_FFFF, u32::MAX] {
        assert_eq!(a.verbs_resolve(HERE, unknown), Err(Reason::VerbsNumberUnknown), "{unknown:#x}");
    }
    for gid in a.verbs_report().gids {
        assert_eq!(a.verbs_resolve(gid.gid.parse().unwrap(), first), Ok(there), "{gid:?}");
    }
    for gid in ["::1", "::ffff:127.0.0.1", "fe80::1:2:3:4", "2001:db8::1"] {
        assert_eq!(a.verbs_resolve(gid.parse().unwrap(), first), Err(Reason::VerbsGidUnknown), "{gid}");
    }
    b.request(Detach {}, &[]).unwrap();
    let gone = a.receive_matching(|heard| matches!(heard.message, ToClient::PeerGone(_)));
    assert_eq!(gone.message, PeerGone { peer: theirs.id(), reason: Reason::PeerDetached }.into());
    assert_eq!(a.verbs_resolve(HERE, first), Err(Reason::VerbsNumberUnknown));
}

#[test]
fn numbers_are_for_open_endpoints_and_limited_for_each_domain() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, _)) = (bed.attached("a"), bed.attached("b"));
    let unopened = EndpointIndex::new(3).unwrap();
    assert_eq!(a.verbs_take(unopened, None), Err(Reason::EndpointClosed));
    let at = a.open_endpoint();
    let blocks: Vec<u32> = (0..BLOCKS_MAX).map(|_| a.verbs_take(at, None).unwrap()).collect();
    assert_eq!(a.verbs_take(at, None), Err(Reason::VerbsNumbersFull));
    assert_eq!(a.verbs_take(at, Some(blocks[0])), Ok(blocks[0]), "it has this block");
    let theirs = b.open_endpoint();
    assert_eq!(b.verbs_take(theirs, Some(blocks[0])), Err(Reason::VerbsNumberTaken));
    a.request(CloseEndpoint { index: at }, &[]).unwrap();
    assert_eq!(b.verbs_resolve(HERE, blocks[0]), Err(Reason::VerbsNumberUnknown));
    // Numbers that were returned are not given out soon.
    let next: Vec<u32> = (0..BLOCKS_MAX).map(|_| b.verbs_take(theirs, None).unwrap()).collect();
    assert!(next.iter().all(|first| !blocks.contains(first)), "{blocks:?} {next:?}");
}

#[test]
fn policy_keeps_queue_pairs_apart() {
    let bed = Testbed::with("[policy]\nrules = [{ from = \"x\", to = \"b\", allow = false }]\n");
    let ((mut x, _), (mut b, _)) = (bed.attached("x"), bed.attached("b"));
    let (mine, at) = (x.open_endpoint(), b.open_endpoint());
    let (own, first) = (x.verbs_take(mine, None).unwrap(), b.verbs_take(at, None).unwrap());
    assert_eq!(x.verbs_resolve(HERE, first), Err(Reason::TalkForbidden));
    assert!(b.verbs_resolve(HERE, own).is_ok(), "the other way is allowed");
    assert!(x.verbs_resolve(HERE, own).is_ok());
    let report = bed.greeted().queue_pair(first).unwrap();
    let [peer] = &report.peers[..] else { panic!("x has asked for it") };
    assert_eq!((peer.path.b.name.as_str(), peer.refused.as_ref().unwrap().reason.as_str()), ("x", "talk-forbidden"));
}

#[test]
fn queue_pair_is_reported_with_its_peers_and_paths() {
    let bed = Testbed::new();
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let (mine, at) = (a.open_endpoint(), b.open_endpoint());
    let (own, first) = (a.verbs_take(mine, None).unwrap(), b.verbs_take(at, None).unwrap());
    let mut asks = bed.greeted();
    assert_eq!(asks.queue_pair(own + 3).unwrap().peers, []);
    b.verbs_resolve(HERE, own + 3).unwrap();
    a.verbs_resolve(HERE, first).unwrap();
    let report = asks.queue_pair(own + 3).unwrap();
    assert_eq!((report.number, report.holder.domain.id), (own + 3, ours.id().number()));
    assert_eq!(
        (report.holder.uid, report.holder.pid),
        (Some(rustix::process::getuid().as_raw()), Some(std::process::id() as i32))
    );
    let [peer] = &report.peers[..] else { panic!("b has asked for it: {report:?}") };
    assert_eq!((peer.program.domain.id, peer.refused.as_ref()), (theirs.id().number(), None));
    assert_eq!((peer.path.a.id, peer.path.b.id), (ours.id().number(), theirs.id().number()));
    assert_eq!(
        (peer.path.path.as_str(), &peer.path.reason.as_ref().unwrap().reason),
        ("daemon", &"channel-not-requested".to_owned())
    );
    a.verbs_resolve(HERE, own + 4).unwrap();
    let report = asks.queue_pair(own + 4).unwrap();
    let [peer] = &report.peers[..] else { panic!("another queue pair of a") };
    assert_eq!((peer.program.domain.id, peer.path.path.as_str()), (ours.id().number(), "local"));
    assert_eq!(asks.queue_pair(first.max(own) + BLOCK_NUMBERS), Err(Reason::VerbsNumberUnknown));
    b.request(CloseEndpoint { index: at }, &[]).unwrap();
    assert_eq!(asks.queue_pair(first), Err(Reason::VerbsNumberUnknown));
    b.request(Detach {}, &[]).unwrap();
    a.receive_matching(|heard| matches!(heard.message, ToClient::PeerGone(_)));
    assert_eq!(asks.queue_pair(own + 3).unwrap().peers, []);
}

#[test]
fn device_and_domains_are_reported_and_counted() {
    let bed = Testbed::new();
    let (mut a, ours) = bed.attached("a");
    let at = a.open_endpoint();
    let mut blocks = [a.verbs_take(at, None).unwrap(), a.verbs_take(at, None).unwrap()];
    a.verbs_resolve(HERE, blocks[0]).unwrap();
    assert_eq!(a.verbs_resolve(HERE, 1), Err(Reason::VerbsNumberUnknown));
    blocks.sort_unstable();
    let mut asks = bed.greeted();
    let report = asks.verbs_report();
    assert_eq!((report.enabled, report.device.as_str()), (true, "isthmus0"));
    assert_eq!(report.gids[0].gid, format!("fe80:0000:0000:0000:{}", report.node_guid));
    assert_eq!((report.gids[0].interface.as_ref(), report.gids[0].kind.as_str()), (None, "RoCE v2"));
    assert!(report.gids[1..].iter().all(|gid| gid.interface.is_some()), "{:?}", report.gids);
    let [domain] = report.domains.as_slice() else { panic!("{:?}", report.domains) };
    assert_eq!((domain.domain.id, domain.domain.name.as_str()), (ours.id().number(), "a"));
    assert_eq!([domain.blocks[0].first, domain.blocks[1].first], blocks);
    let text = asks.report::<MetricsText>(Topic::Metrics, &[]).unwrap().text;
    for metric in [
        "isthmus_verbs_domains 1",
        "isthmus_verbs_numbers 512",
        "isthmus_verbs_resolves_total 1",
        "isthmus_verbs_refused_total{reason=\"verbs-number-unknown\"} 1",
    ] {
        assert!(text.contains(metric), "{metric} is not in\n{text}");
    }
}

#[test]
fn verbs_can_be_disabled() {
    let bed = Testbed::with("[verbs]\nenabled = false\n");
    let (mut a, _) = bed.attached("a");
    let at = a.open_endpoint();
    assert_eq!(a.verbs_take(at, None), Err(Reason::VerbsDisabled));
    assert_eq!(a.verbs_resolve(HERE, 256), Err(Reason::VerbsDisabled));
    assert!(!a.verbs_report().enabled);
}

#[test]
fn a_domain_that_resumes_keeps_its_numbers() {
    let mut bed = Testbed::new();
    let ((mut a, ours), (mut b, _)) = (bed.attached("a"), bed.attached("b"));
    let (at, theirs) = (a.open_endpoint(), b.open_endpoint());
    let blocks = [a.verbs_take(at, None).unwrap(), a.verbs_take(at, None).unwrap()];
    let closed = a.open_endpoint();
    let returned = a.verbs_take(closed, None).unwrap();
    a.request(CloseEndpoint { index: closed }, &[]).unwrap();
    let guid = b.verbs_report().node_guid;
    bed.stop();
    bed.start("", VersionRange::CURRENT);
    let (mut c, _) = bed.attached("c");
    assert_eq!(c.open_endpoint(), theirs);
    assert_eq!(c.verbs_resolve(HERE, blocks[0]), Err(Reason::VerbsNumberUnknown), "not yet");
    assert_eq!(blocks.map(|first| c.verbs_take(theirs, Some(first))), [Err(Reason::VerbsNumberTaken); 2]);
    assert_eq!(c.verbs_take(theirs, Some(returned)), Ok(returned), "no domain had it when the daemon ended");
    let (mut a, again) = come_back(&bed, &ours);
    again.unwrap();
    a.request(OpenEndpoint { index: Some(at), label: None }, &[]).unwrap();
    assert_eq!(blocks.map(|first| a.verbs_take(at, Some(first))), blocks.map(Ok));
    assert_eq!(c.verbs_resolve(HERE, blocks[1] + 9), Ok(EndpointAddress { domain: ours.id(), endpoint: at }));
    assert_eq!(c.verbs_report().node_guid, guid);
}
