//! The entries of the table, with their indices and names.

use crate::{START, announcement, board, events, index, is_dropped, linked, name, nic, quiet, report, sent, setup};
use isthmus_mx::board::{
    AddPeerError, Board, BoardEvent, BoardSetup, BoardTuning, Dropped, FrameAction, LinkNumber, NoSuchLink, PeerOrigin,
};
use isthmus_mx::wire::{BROADCAST, BoardName, EndpointNumber, Header, HostQuery, HostReply, Packet, PeerIndex};

fn is_taken(board: &mut Board, bytes: &[u8]) {
    assert_eq!(board.receive(START, crate::LINK, bytes), FrameAction::Consumed);
}

#[test]
fn local_boards_have_the_first_indices() {
    let mut board = board(1);
    assert_eq!(board.add_local(nic(2), name(2)), Ok(index(1)));
    assert_eq!(board.add_static(START, nic(3), name(3)), Ok(index(2)));
    let peers: Vec<_> = board.peers().map(|peer| (peer.nic, peer.origin, peer.names)).collect();
    let expected = [(1, PeerOrigin::Local), (2, PeerOrigin::Local), (3, PeerOrigin::Static)];
    assert_eq!(peers, expected.map(|(number, origin)| (nic(number), origin, vec![name(number)])));
    assert_eq!([1, 2, 3, 4].map(|number| board.is_local(nic(number))), [true, true, false, false]);
    // Nothing for boards of this host goes to the wire.
    for peer in [0, 1] {
        assert_eq!((board.header_to(index(peer)), board.link_to(index(peer))), (None, None));
    }
    assert!(board.header_to(index(2)).is_some());
    assert_eq!((board.header_to(index(3)), board.nic_of(index(3))), (None, None));
}

#[test]
fn an_address_has_several_names_and_each_finds_it() {
    let mut board = quiet(1);
    let peer = board.add_static(START, nic(2), name(20)).unwrap();
    assert_eq!(board.add_static(START, nic(2), name(21)), Ok(peer));
    assert_eq!(board.add_static(START, nic(2), name(21)), Ok(peer));
    assert_eq!(report(&board, peer).names, [name(20), name(21)]);
    for name in [name(20), name(21)] {
        assert_eq!(board.find_by_name(name.as_bytes()), Some(peer));
    }
    assert_eq!(board.find_by_name(b"node20"), None);
    let names: Vec<_> = (22..40).map(|number| board.add_static(START, nic(2), name(number))).collect();
    assert_eq!(names.iter().filter(|added| added.is_ok()).count(), 6);
    assert_eq!(names[17], Err(AddPeerError::TooManyNames(nic(2))));
}

#[test]
fn static_name_replaces_the_name_of_a_local_board() {
    let mut board = quiet(1);
    assert_eq!(board.add_static(START, nic(1), name(10)), Ok(index(0)));
    assert_eq!((board.name_of(index(0)), board.find_by_name(name(1).as_bytes())), (Some(name(10)), None));
    assert!(board.is_local(nic(1)));
}

#[test]
fn local_names_precede_static_and_learned_names() {
    let mut board = quiet(1);
    let other = board.add_static(START, nic(2), name(1)).unwrap();
    assert_eq!(board.find_by_name(name(1).as_bytes()), Some(index(0)));
    assert_eq!(board.name_of(other), Some(name(1)));
    // A peer reports a name that another peer was given later.
    let liar = board.ask(START, nic(3)).unwrap();
    let questions = sent(&mut board, START);
    let magic = questions.iter().find_map(|(_, header, packet)| match packet {
        Packet::HostQuery(query) if header.dst == nic(3) => Some(query.magic),
        _ => None,
    });
    let header = Header { dst: nic(1), src: nic(3), peer_index: None };
    let reply = HostReply { src_dst_peer_index: None, magic: magic.unwrap(), hostname: name(4) };
    is_taken(&mut board, &crate::frame(&header, &Packet::<Vec<u8>>::HostReply(reply)));
    assert_eq!(board.find_by_name(name(4).as_bytes()), Some(liar));
    let given = board.add_static(START, nic(4), name(4)).unwrap();
    assert_eq!(board.find_by_name(name(4).as_bytes()), Some(given));
}

#[test]
fn a_full_table_refuses_and_counts() {
    let tuning = BoardTuning { peers_max: 3, ..BoardTuning::DEFAULT };
    let mut board = linked(BoardSetup { tuning, ..setup(1) });
    board.add_static(START, nic(2), name(2)).unwrap();
    board.ask(START, nic(3)).unwrap();
    let full = Err(AddPeerError::Full { max: 3 });
    assert_eq!(board.add_static(START, nic(4), name(4)), full);
    assert_eq!(board.ask(START, nic(4)), full);
    assert_eq!(board.add_local(nic(4), name(4)), full);
    is_dropped(&mut board, START, &announcement(nic(4), 9), Dropped::TableFull);
    assert_eq!((board.counters().refused_peers(), board.peers().count()), (4, 3));
    // Peers that are in the table are not refused.
    assert_eq!(board.add_static(START, nic(3), name(3)), Ok(index(2)));
    is_taken(&mut board, &announcement(nic(2), 9));
}

#[test]
fn the_largest_table_has_an_index_for_every_peer() {
    let tuning = BoardTuning { peers_max: usize::MAX, ..BoardTuning::DEFAULT };
    let mut board = linked(BoardSetup { discovery: false, tuning, ..setup(1) });
    assert_eq!(board.setup().tuning.peers_max, 65535);
    let added = (2..=u16::MAX).filter(|number| board.ask(START, nic(*number)).is_ok()).count();
    assert_eq!((added, board.find(nic(u16::MAX))), (65534, PeerIndex::new(65534)));
    assert_eq!(board.ask(START, nic(0)), Err(AddPeerError::Full { max: 65535 }));
}

#[test]
fn announced_peers_leave_room_for_requested_peers() {
    let tuning = BoardTuning { peers_max: 10, announced_max: 4, ..BoardTuning::DEFAULT };
    let mut board = linked(BoardSetup { tuning, ..setup(1) });
    for number in 2..6 {
        is_taken(&mut board, &announcement(nic(number), 9));
    }
    is_dropped(&mut board, START, &announcement(nic(6), 9), Dropped::TableFull);
    // This host has now added one of them, so there is room for another announced one.
    board.add_static(START, nic(2), name(2)).unwrap();
    is_taken(&mut board, &announcement(nic(6), 9));
    is_dropped(&mut board, START, &announcement(nic(7), 9), Dropped::TableFull);
}

#[test]
fn static_peer_stays_static() {
    let mut board = board(1);
    is_taken(&mut board, &announcement(nic(2), 9));
    assert_eq!(report(&board, index(1)).origin, PeerOrigin::Announced);
    board.ask(START, nic(2)).unwrap();
    assert_eq!(report(&board, index(1)).origin, PeerOrigin::Requested);
    board.add_static(START, nic(2), name(2)).unwrap();
    board.ask(START, nic(2)).unwrap();
    is_taken(&mut board, &announcement(nic(2), 9));
    assert_eq!(report(&board, index(1)).origin, PeerOrigin::Static);
}

#[test]
fn forgotten_peer_keeps_only_its_index() {
    let mut board = board(1);
    let peer = board.add_static(START, nic(2), name(2)).unwrap();
    is_taken(&mut board, &announcement(nic(2), 9));
    assert!(board.forget(nic(2)));
    assert!(!board.forget(nic(2)));
    assert!(!board.forget(nic(1)));
    assert!(!board.forget(nic(9)));
    assert_eq!((board.find(nic(2)), board.find_by_name(name(2).as_bytes())), (None, None));
    assert_eq!((board.header_to(peer), board.link_to(peer), board.nic_of(peer)), (None, None, Some(nic(2))));
    assert!(report(&board, peer).forgotten);
    // Its index is not reused, and it is not queried any more.
    assert_eq!(board.ask(START, nic(3)), Ok(index(2)));
    assert!(sent(&mut board, START).iter().all(|(_, header, _)| header.dst != nic(2)));
    // The peer returns with its current properties.
    events(&mut board);
    is_taken(&mut board, &announcement(nic(2), 9));
    assert_eq!((board.find(nic(2)), events(&mut board)), (Some(peer), vec![BoardEvent::Found(peer)]));
    assert_eq!((report(&board, peer).origin, report(&board, peer).names), (PeerOrigin::Announced, vec![]));
}

#[test]
fn forget_clears_everything_learned_about_a_peer() {
    let mut board = quiet(1);
    let peer = board.ask(START, nic(2)).unwrap();
    let header = Header { dst: nic(1), src: nic(2), peer_index: None };
    let query = HostQuery { src_dst_peer_index: PeerIndex::new(7), magic: 99 };
    is_taken(&mut board, &crate::frame(&header, &Packet::<Vec<u8>>::HostQuery(query)));
    assert_eq!(report(&board, peer).remote_index, PeerIndex::new(7));
    sent(&mut board, START);
    assert!(board.next_deadline().is_some());
    board.forget(nic(2));
    assert_eq!(board.next_deadline(), None);
    assert_eq!(board.ask(START, nic(2)), Ok(peer));
    let report = report(&board, peer);
    assert_eq!((report.remote_index, report.heard, report.links[0].heard), (None, None, None));
    assert_eq!(board.header_to(peer), Some(Header { dst: nic(2), src: nic(1), peer_index: None }));
}

#[test]
fn rejects_multicast_addresses_as_peers() {
    let mut board = quiet(1);
    let group = isthmus_layout::NicId::from_octets([1, 0, 0x5e, 0, 0, 1]);
    for address in [BROADCAST, group, isthmus_layout::NicId::from_octets([0; 6])] {
        assert_eq!(board.ask(START, address), Err(AddPeerError::InvalidNic(address)));
    }
}

#[test]
fn links_and_endpoints_beyond_the_limits_are_refused() {
    let tuning = BoardTuning { endpoints_max: 32, ..BoardTuning::DEFAULT };
    let mut board = linked(BoardSetup { tuning, ..setup(1) });
    assert_eq!(board.add_link(START, LinkNumber(8), 1), Err(NoSuchLink(LinkNumber(8))));
    assert_eq!(board.link_up(START, LinkNumber(7)), Err(NoSuchLink(LinkNumber(7))));
    assert!(board.open(EndpointNumber(31)).is_ok());
    assert!(board.open(EndpointNumber(32)).is_err());
    assert!(board.open(EndpointNumber::RAW).is_ok());
    let tuning = BoardTuning { endpoints_max: 1000, ..tuning };
    assert!(linked(BoardSetup { tuning, ..setup(1) }).open(EndpointNumber(254)).is_ok());
}

#[test]
fn board_without_a_name_has_none() {
    let nameless = BoardName::new(b"").unwrap();
    let board = linked(BoardSetup { name: nameless, ..setup(1) });
    assert_eq!((board.name_of(index(0)), board.find_by_name(b"")), (None, None));
}
