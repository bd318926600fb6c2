//! Records that no correct library sends.

use crate::library::Library;
use crate::node::{Kind, Node, address};
use crate::peer::{Memory, Peer};
use crate::wire::Weather;
use crate::world::World;
use isthmus_gateway::{Domain, Misplaced};
use isthmus_layout::DomainId;
use isthmus_layout::limits::ORDINARY_CREDIT_BYTES;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Outcome, Piece, Record, Serial};
use isthmus_mx::net::Time;

const PIECE: Piece = Piece { offset: 0, len: 0 };
const NOW: Time = Time::from_us(1_000_000);

/// A gateway whose domain knows somebody.
fn gateway() -> (Node, DomainId) {
    let mut world = World::new(3, Kind::fine(), Weather::FINE, 1);
    world.connect_all();
    let node = world.replace(0, false);
    let stranger = *node.library.peers.keys().next().unwrap();
    (node, stranger)
}

fn take(node: &mut Node, stranger: DomainId, record: &Record<'_>, bytes: usize) -> Result<(), Misplaced> {
    node.gateway.take(NOW, stranger, record, &vec![7; bytes], &mut by_hand())
}

/// A library that has sent all that it may, so that it is not surprised at credit.
fn by_hand() -> Library {
    let mut library = Library::new(0, Kind::fine().habits, 1);
    library.meet(address(2));
    library.peers.values_mut().for_each(Peer::spend);
    library
}

fn start(len: u32) -> Record<'static> {
    Record::Start { tag: 1, len, serial: Serial(1), piece: PIECE }
}

fn more(serial: u32) -> Record<'static> {
    Record::More { serial: Serial(serial), piece: PIECE }
}

#[test]
fn a_message_does_not_begin_within_another_one() {
    let (mut node, stranger) = gateway();
    assert_eq!(take(&mut node, stranger, &start(1000), 500), Ok(()));
    assert_eq!(take(&mut node, stranger, &start(1000), 500), Err(Misplaced::Begun));
    let (mut node, stranger) = gateway();
    assert_eq!(take(&mut node, stranger, &start(1000), 1000), Ok(()));
    assert_eq!(take(&mut node, stranger, &start(1000), 500), Ok(()));
    assert_eq!(node.gateway.counts().sends, 1);
}

#[test]
fn a_piece_is_not_longer_than_what_is_left() {
    let (mut node, stranger) = gateway();
    assert_eq!(take(&mut node, stranger, &start(1000), 1001), Err(Misplaced::TooLong { piece: 1001, left: 1000 }));
    let (mut node, stranger) = gateway();
    assert_eq!(take(&mut node, stranger, &start(1000), 600), Ok(()));
    assert_eq!(take(&mut node, stranger, &more(1), 401), Err(Misplaced::TooLong { piece: 401, left: 400 }));
}

#[test]
fn more_of_a_stream_than_was_asked_for_is_refused() {
    let mut world = World::new(3, Kind::fine(), Weather::FINE, 1);
    world.connect_all();
    world.ids = 15;
    world.send(0, 2, 100_000, false, Memory::None);
    world.run_until_true(1_000_000, |world| world.counts(0).sends == 1);
    world.node(0).library.computes = true;
    world.run_until_true(1_000_000, |world| world.counts(0).streams == 1);
    let mut node = world.replace(0, false);
    let stranger = *node.library.peers.keys().next().unwrap();
    assert_eq!(node.library.waiting(), [Record::Pull { serial: Serial(1), bytes: 100_000 }]);
    for _ in 0..12 {
        assert_eq!(take(&mut node, stranger, &more(1), 8192), Ok(()));
    }
    let left = 100_000 - 12 * 8192;
    assert_eq!(take(&mut node, stranger, &more(1), 8192), Err(Misplaced::TooLong { piece: 8192, left }));
}

#[test]
fn long_messages_are_announced_and_nobody_changes_paths() {
    let (mut node, stranger) = gateway();
    assert_eq!(take(&mut node, stranger, &start(40_000), 8192), Err(Misplaced::NotAnnounced(40_000)));
    assert_eq!(take(&mut node, stranger, &start(32_769), 0), Err(Misplaced::NotAnnounced(32_769)));
    assert_eq!(take(&mut node, stranger, &start(32_768), 0), Ok(()));
    assert_eq!(take(&mut node, stranger, &Record::Switch, 0), Err(Misplaced::Switch));
}

#[test]
fn records_about_nothing_change_nothing() {
    let (mut node, stranger) = gateway();
    let before = node.gateway.counts();
    let serial = Serial(99);
    for record in [
        more(99),
        Record::Pull { serial, bytes: 5 },
        Record::Taken { serial, outcome: Outcome::Copied, bytes: 5 },
        Record::Bounce { serial, reason: Reason::EndpointClosed.code() },
        Record::Bounce { serial: Serial(0), reason: 0 },
        Record::Abort { serial, reason: 0 },
        Record::Credit { bytes: 5 },
    ] {
        assert_eq!(take(&mut node, stranger, &record, 0), Ok(()), "{record:?}");
    }
    let nobody = DomainId::remote(1000).unwrap();
    assert_eq!(take(&mut node, nobody, &Record::Switch, 0), Ok(()));
    assert_eq!(node.gateway.counts(), before);
}

#[test]
fn a_message_beyond_four_gib_bounces() {
    let (mut node, stranger) = gateway();
    let record = Record::Announce { tag: 1, len: 1 << 32, serial: Serial(4), piece: PIECE, mapped: None };
    let mut library = by_hand();
    node.gateway.take(NOW, stranger, &record, &[], &mut library).unwrap();
    assert_eq!(library.waiting(), [Record::Bounce { serial: Serial(4), reason: Reason::MessageTooLong.code() }]);
    assert_eq!(node.gateway.counts().sends, 0);
}

/// Whoever gives back more than it was given gains nothing by it.
#[test]
fn credit_beyond_what_there_is_counts_for_nothing() {
    let (mut node, stranger) = gateway();
    for bytes in [1, ORDINARY_CREDIT_BYTES, u32::MAX, u32::MAX] {
        node.gateway.give(NOW, stranger, bytes, &mut node.library);
    }
    assert_eq!(node.gateway.counts().unread_bytes, 0);
}
