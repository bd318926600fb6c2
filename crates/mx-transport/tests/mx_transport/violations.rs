//! Records that no correct library sends.

use crate::model_library::ModelLibrary;
use crate::model_peer::{Memory, ModelPeer};
use crate::node::{NetworkConfig, Node, address};
use crate::simulation::Simulation;
use crate::wire::NetConditions;
use isthmus_layout::DomainId;
use isthmus_layout::limits::DAEMON_PATH_CREDIT_BYTES;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Fragment, ReceiveOutcome, Record, Serial};
use isthmus_mx::net::Time;
use isthmus_mx_transport::{LocalPeer, TransportViolation};

const NO_FRAGMENT: Fragment = Fragment { offset: 0, len: 0 };
const NOW: Time = Time::from_us(1_000_000);

/// A transport, and a remote peer that its domain knows.
fn transport() -> (Node, DomainId) {
    let mut simulation = Simulation::new(3, NetworkConfig::fine(), NetConditions::FINE, 1);
    simulation.connect_all();
    let node = simulation.replace(0, false);
    let remote_peer = *node.library.peers.keys().next().unwrap();
    (node, remote_peer)
}

fn take(node: &mut Node, remote_peer: DomainId, record: &Record<'_>, bytes: usize) -> Result<(), TransportViolation> {
    node.transport.handle_domain_record(NOW, remote_peer, record, &vec![7; bytes], &mut by_hand())
}

/// A library that has sent all that it may, so that it is not surprised at credit.
fn by_hand() -> ModelLibrary {
    let mut library = ModelLibrary::new(0, NetworkConfig::fine().behaviour, 1);
    library.remote_peer_added(address(2));
    library.peers.values_mut().for_each(ModelPeer::spend);
    library
}

fn start(len: u32) -> Record<'static> {
    Record::FirstFragment { tag: 1, len, serial: Serial(1), fragment: NO_FRAGMENT }
}

fn more(serial: u32) -> Record<'static> {
    Record::NextFragment { serial: Serial(serial), fragment: NO_FRAGMENT }
}

#[test]
fn a_message_does_not_begin_within_another_one() {
    let (mut node, remote_peer) = transport();
    assert_eq!(take(&mut node, remote_peer, &start(1000), 500), Ok(()));
    assert_eq!(take(&mut node, remote_peer, &start(1000), 500), Err(TransportViolation::Assembling));
    let (mut node, remote_peer) = transport();
    assert_eq!(take(&mut node, remote_peer, &start(1000), 1000), Ok(()));
    assert_eq!(take(&mut node, remote_peer, &start(1000), 500), Ok(()));
    assert_eq!(node.transport.levels().sends, 1);
}

#[test]
fn a_fragment_is_not_longer_than_what_is_left() {
    let (mut node, remote_peer) = transport();
    assert_eq!(
        take(&mut node, remote_peer, &start(1000), 1001),
        Err(TransportViolation::TooLong { fragment: 1001, left: 1000 })
    );
    let (mut node, remote_peer) = transport();
    assert_eq!(take(&mut node, remote_peer, &start(1000), 600), Ok(()));
    assert_eq!(
        take(&mut node, remote_peer, &more(1), 401),
        Err(TransportViolation::TooLong { fragment: 401, left: 400 })
    );
}

#[test]
fn more_of_a_stream_than_was_asked_for_is_refused() {
    let mut simulation = Simulation::new(3, NetworkConfig::fine(), NetConditions::FINE, 1);
    simulation.connect_all();
    simulation.ids = 15;
    simulation.send(0, 2, 100_000, false, Memory::None);
    simulation.run_until_true(1_000_000, |simulation| simulation.levels(0).sends == 1);
    simulation.node(0).library.is_computing = true;
    simulation.run_until_true(1_000_000, |simulation| simulation.levels(0).streams == 1);
    let mut node = simulation.replace(0, false);
    let remote_peer = *node.library.peers.keys().next().unwrap();
    assert_eq!(node.library.waiting(), [Record::Pull { serial: Serial(1), bytes: 100_000 }]);
    for _ in 0..12 {
        assert_eq!(take(&mut node, remote_peer, &more(1), 8192), Ok(()));
    }
    let left = 100_000 - 12 * 8192;
    assert_eq!(take(&mut node, remote_peer, &more(1), 8192), Err(TransportViolation::TooLong { fragment: 8192, left }));
}

#[test]
fn long_messages_must_be_announced_and_switch_is_refused() {
    let (mut node, remote_peer) = transport();
    assert_eq!(take(&mut node, remote_peer, &start(40_000), 8192), Err(TransportViolation::NotAnnounced(40_000)));
    assert_eq!(take(&mut node, remote_peer, &start(32_769), 0), Err(TransportViolation::NotAnnounced(32_769)));
    assert_eq!(take(&mut node, remote_peer, &start(32_768), 0), Ok(()));
    assert_eq!(take(&mut node, remote_peer, &Record::Switch, 0), Err(TransportViolation::Switch));
}

#[test]
fn records_for_unknown_messages_are_ignored() {
    let (mut node, remote_peer) = transport();
    let before = node.transport.levels();
    let serial = Serial(99);
    for record in [
        more(99),
        Record::Pull { serial, bytes: 5 },
        Record::Completed { serial, outcome: ReceiveOutcome::Copied, bytes: 5 },
        Record::Bounce { serial, reason: Reason::EndpointClosed.code() },
        Record::Bounce { serial: Serial(0), reason: 0 },
        Record::Abort { serial, reason: 0 },
        Record::Credit { bytes: 5 },
    ] {
        assert_eq!(take(&mut node, remote_peer, &record, 0), Ok(()), "{record:?}");
    }
    let unknown = DomainId::remote(1000).unwrap();
    assert_eq!(take(&mut node, unknown, &Record::Switch, 0), Ok(()));
    assert_eq!(node.transport.levels(), before);
}

#[test]
fn a_message_beyond_four_gib_bounces() {
    let (mut node, remote_peer) = transport();
    let record = Record::Announce { tag: 1, len: 1 << 32, serial: Serial(4), fragment: NO_FRAGMENT, mapped: None };
    let mut library = by_hand();
    node.transport.handle_domain_record(NOW, remote_peer, &record, &[], &mut library).unwrap();
    assert_eq!(library.waiting(), [Record::Bounce { serial: Serial(4), reason: Reason::MessageTooLong.code() }]);
    assert_eq!(node.transport.levels().sends, 0);
}

/// A domain that returns more credit than it was given gains nothing.
#[test]
fn credit_beyond_what_there_is_counts_for_nothing() {
    let (mut node, remote_peer) = transport();
    for bytes in [1, DAEMON_PATH_CREDIT_BYTES, u32::MAX, u32::MAX] {
        node.transport.return_domain_credit(NOW, remote_peer, bytes, &mut node.library);
    }
    assert_eq!(node.transport.levels().unread_bytes, 0);
}
