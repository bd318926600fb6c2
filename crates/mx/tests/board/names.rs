//! Queries for names, and replies.

use crate::{
    LINK, SECOND, START, announcement, board, events, index, is_dropped, linked, name, nic, quiet, report, sent,
    sent_to_peers, setup,
};
use isthmus_mx::board::{Board, BoardEvent, BoardSetup, Dropped, FrameAction, LinkNumber, PeerOrigin};
use isthmus_mx::net::Time;
use isthmus_mx::wire::{BROADCAST, BoardName, Header, HostQuery, HostReply, Packet, PacketType, PeerIndex};

fn query(from: u16, to: u16, magic: u32, theirs: u16) -> Vec<u8> {
    let header = Header { dst: nic(to), src: nic(from), peer_index: None };
    let query = HostQuery { src_dst_peer_index: PeerIndex::new(theirs), magic };
    crate::frame(&header, &Packet::<Vec<u8>>::HostQuery(query))
}

fn reply(from: u16, to: u16, magic: u32, theirs: u16, hostname: BoardName) -> Vec<u8> {
    let header = Header { dst: nic(to), src: nic(from), peer_index: None };
    let reply = HostReply { src_dst_peer_index: PeerIndex::new(theirs), magic, hostname };
    crate::frame(&header, &Packet::<Vec<u8>>::HostReply(reply))
}

fn is_taken(board: &mut Board, now: Time, bytes: &[u8]) {
    assert_eq!(board.receive(now, LINK, bytes), FrameAction::Consumed);
}

/// Returns a board that has queried board 2, its peer 1, and the magic of the query.
fn asked() -> (Board, u32) {
    let mut board = quiet(1);
    board.ask(START, nic(2)).unwrap();
    let [(_, header, Packet::HostQuery(query))] = sent(&mut board, START)[..] else { panic!("no question") };
    assert_eq!((header.dst, query.src_dst_peer_index), (nic(2), Some(index(1))));
    events(&mut board);
    (board, query.magic)
}

#[test]
fn queries_a_nameless_peer_with_growing_intervals() {
    let mut board = quiet(1);
    board.ask(START, nic(2)).unwrap();
    let times: Vec<u64> =
        (0..1500).filter(|second| !sent(&mut board, START.after_us(second * SECOND)).is_empty()).collect();
    assert_eq!(times, [0, 5, 10, 15, 20, 25, 30, 40, 60, 100, 180, 340, 640, 940, 1240]);
    assert_eq!(report(&board, index(1)).origin, PeerOrigin::Requested);
}

/// The peer did not reply because it did not know this board.
#[test]
fn queries_a_peer_again_once_it_knows_our_index() {
    let (mut board, _) = asked();
    let later = START.after_us(SECOND);
    is_taken(&mut board, later, &query(2, 1, 7, 3));
    let kinds = |board: &mut Board, now| -> Vec<PacketType> {
        sent(board, now).iter().map(|(_, _, packet)| packet.kind()).collect()
    };
    assert_eq!(kinds(&mut board, later), [PacketType::HostReply, PacketType::HostQuery]);
    is_taken(&mut board, later, &query(2, 1, 8, 3));
    assert_eq!(kinds(&mut board, later), [PacketType::HostReply], "that was not new");
}

#[test]
fn next_deadline_is_when_a_packet_is_due() {
    let mut board = board(1);
    board.ask(START, nic(2)).unwrap();
    let mut now = START;
    for _ in 0..100 {
        sent(&mut board, now);
        let due = board.next_deadline().unwrap();
        assert!(due > now);
        assert_eq!(sent(&mut board, Time::from_us(due.us() - 1)), []);
        now = due;
        assert_ne!(sent(&mut board, now), []);
    }
}

#[test]
fn reply_sets_name_and_remote_index() {
    let (mut board, magic) = asked();
    is_taken(&mut board, START, &reply(2, 1, magic, 7, name(2)));
    assert_eq!(events(&mut board), [BoardEvent::Named(index(1))]);
    assert_eq!(board.find_by_name(name(2).as_bytes()), Some(index(1)));
    assert_eq!(board.header_to(index(1)).unwrap().peer_index, Some(index(7)));
    // All properties are known, so no further query is sent.
    assert!((1..1000).all(|second| sent(&mut board, START.after_us(second * SECOND)).is_empty()));
    assert_eq!(board.next_deadline(), None);
    // A repeated reply has no effect. A new name replaces the old one.
    is_taken(&mut board, START, &reply(2, 1, magic, 7, name(2)));
    assert_eq!(events(&mut board), []);
    is_taken(&mut board, START, &reply(2, 1, magic, 8, name(20)));
    assert_eq!((events(&mut board), board.name_of(index(1))), (vec![BoardEvent::Named(index(1))], Some(name(20))));
}

#[test]
fn drops_unsolicited_replies() {
    let (mut board, magic) = asked();
    let before = report(&board, index(1));
    is_dropped(&mut board, START, &reply(2, 1, magic + 1, 7, name(2)), Dropped::UnsolicitedReply);
    is_dropped(&mut board, START, &reply(3, 1, magic, 7, name(2)), Dropped::UnknownSource);
    is_dropped(&mut board, START, &reply(2, 4, magic, 7, name(2)), Dropped::NotForUs);
    assert_eq!(report(&board, index(1)), before);
    let mut other = quiet(1);
    other.add_link(START, LinkNumber(1), 1).unwrap();
    other.ask(START, nic(2)).unwrap();
    is_dropped(&mut other, START, &reply(2, 1, magic, 7, name(2)), Dropped::UnsolicitedReply);
}

#[test]
fn static_name_is_not_replaced() {
    let mut board = quiet(1);
    let peer = board.add_static(START, nic(2), name(20)).unwrap();
    // The peer is queried nevertheless, because its index and presence are unknown.
    let [(_, _, Packet::HostQuery(query))] = sent(&mut board, START)[..] else { panic!("no question") };
    is_taken(&mut board, START, &reply(2, 1, query.magic, 7, name(2)));
    assert_eq!((board.name_of(peer), board.find_by_name(name(2).as_bytes())), (Some(name(20)), None));
    assert_eq!(board.header_to(peer).unwrap().peer_index, Some(index(7)));
    assert!((1..1000).all(|second| sent(&mut board, START.after_us(second * SECOND)).is_empty()));
}

#[test]
fn an_empty_name_is_none() {
    let (mut board, magic) = asked();
    is_taken(&mut board, START, &reply(2, 1, magic, 7, BoardName::new(b"").unwrap()));
    assert_eq!((events(&mut board), board.name_of(index(1)), board.find_by_name(b"")), (vec![], None, None));
    assert_eq!(board.header_to(index(1)).unwrap().peer_index, Some(index(7)));
}

#[test]
fn queries_cleared_names_again_and_ignores_late_replies() {
    let (mut board, magic) = asked();
    is_taken(&mut board, START, &reply(2, 1, magic, 7, name(2)));
    let given = board.add_static(START, nic(3), name(3)).unwrap();
    let now = START.after_us(100 * SECOND);
    board.clear_names(now);
    assert_eq!(
        (board.name_of(index(1)), board.name_of(given), board.name_of(index(0))),
        (None, Some(name(3)), Some(name(1)))
    );
    is_dropped(&mut board, now, &reply(2, 1, magic, 7, name(2)), Dropped::UnsolicitedReply);
    let questions = sent_to_peers(&mut board, now);
    let [Packet::HostQuery(query)] = questions
        .iter()
        .filter(|(_, header, _)| header.dst == nic(2))
        .map(|(.., packet)| packet)
        .collect::<Vec<_>>()[..]
    else {
        panic!("{questions:?}")
    };
    assert_eq!(query.magic, magic + 1);
    is_taken(&mut board, now, &reply(2, 1, query.magic, 7, name(2)));
    assert_eq!(board.name_of(index(1)), Some(name(2)));
}

#[test]
fn name_query_is_answered_on_its_link() {
    let mut board = board(1);
    board.add_link(START, LinkNumber(3), 100).unwrap();
    is_dropped(&mut board, START, &query(2, 1, 99, 7), Dropped::UnknownSource);
    is_taken(&mut board, START, &announcement(nic(2), 9));
    sent(&mut board, START);
    is_taken(&mut board, START, &query(2, 1, 99, 7));
    let answers = sent(&mut board, START);
    let [(link, header, Packet::HostReply(reply)), ..] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((*link, header.dst, header.peer_index), (LINK, nic(2), Some(index(7))));
    assert_eq!((reply.magic, reply.src_dst_peer_index, reply.hostname), (99, Some(index(1)), name(1)));
}

#[test]
fn name_queries_for_others_or_for_all_are_ignored() {
    let mut board = board(1);
    is_taken(&mut board, START, &announcement(nic(2), 9));
    sent(&mut board, START);
    is_dropped(&mut board, START, &query(2, 4, 99, 7), Dropped::NotForUs);
    let header = Header { dst: BROADCAST, src: nic(2), peer_index: None };
    let to_all = Packet::<Vec<u8>>::HostQuery(HostQuery { src_dst_peer_index: PeerIndex::new(7), magic: 99 });
    is_dropped(&mut board, START, &crate::frame(&header, &to_all), Dropped::NotForUs);
    assert_eq!(sent(&mut board, START), []);
    assert_eq!(board.header_to(index(1)).unwrap().peer_index, None);
}

#[test]
fn limits_the_rate_of_replies() {
    let mut board = quiet(1);
    board.add_static(START, nic(2), name(2)).unwrap();
    sent(&mut board, START);
    let mut answers = 0;
    for ms in 0..10_000 {
        let now = START.after_us(ms * 1000);
        board.receive(now, LINK, &query(2, 1, 99, 7));
        let kinds = sent(&mut board, now).into_iter().map(|(.., packet)| packet.kind());
        answers += kinds.filter(|kind| *kind == PacketType::HostReply).count();
    }
    assert!((1280..=1410).contains(&answers), "{answers}");
    assert_eq!(board.counters().dropped(Dropped::QueryRateLimited), 10_000 - answers as u64);
}

#[test]
fn corrects_a_peer_that_uses_our_index_from_before_a_restart() {
    let mut board = linked(BoardSetup { discovery: false, ..setup(1) });
    let peer = board.add_static(START, nic(2), name(2)).unwrap();
    let [(_, _, Packet::HostQuery(question))] = sent(&mut board, START)[..] else { panic!("no question") };
    is_taken(&mut board, START, &reply(2, 1, question.magic, 7, name(2)));
    let later = START.after_us(100 * SECOND);
    assert_eq!(sent(&mut board, later), []);
    let liback = crate::demux::to_endpoint(PacketType::Truc, 3);
    let from_two = |peer_index| Header { dst: nic(1), src: nic(2), peer_index };
    for (stale, reason) in [(0, Dropped::IndexMismatch), (9, Dropped::UnusedIndex), (0xffff, Dropped::NoIndex)] {
        let frame = crate::frame(&from_two(PeerIndex::new(stale)), &liback);
        is_dropped(&mut board, later, &frame, reason);
    }
    // Three bad frames cause one query, which contains our index of the peer.
    let [(_, _, Packet::HostQuery(question))] = sent(&mut board, later)[..] else { panic!("no question") };
    assert_eq!(question.src_dst_peer_index, Some(peer));
    is_taken(&mut board, later, &reply(2, 1, question.magic, 7, name(2)));
    assert!((0..1000).all(|second| sent(&mut board, later.after_us(second * SECOND)).is_empty()));
}

#[test]
fn probe_sends_one_query_at_a_time() {
    let (mut board, magic) = asked();
    is_taken(&mut board, START, &reply(2, 1, magic, 7, name(2)));
    let later = START.after_us(2 * SECOND);
    for _ in 0..100 {
        board.probe(later, index(1));
        board.probe(later, index(0));
        board.probe(later, index(50));
        assert_eq!(sent(&mut board, later), []);
    }
    assert_eq!(sent(&mut board, START.after_us(5 * SECOND)).len(), 1);
    is_taken(&mut board, START, &reply(2, 1, magic, 7, name(2)));
    // A peer that does not reply is not queried forever.
    board.probe(later, index(1));
    let queries: usize = (6..10_000).map(|second| sent(&mut board, START.after_us(second * SECOND)).len()).sum();
    assert_eq!(queries, 8);
}

#[test]
fn queries_every_peer_in_turn() {
    let mut board = quiet(1);
    for link in 1..8 {
        board.add_link(START, LinkNumber(link), 1).unwrap();
    }
    for number in 2..102 {
        board.ask(START, nic(number)).unwrap();
    }
    // Eight links have more packets than the queue holds. More than 64 at once exceed the limit.
    assert_eq!(sent(&mut board, START).len(), 64 * 8);
    let mut asked = 64 * 8;
    let mut now = START;
    while asked < 100 * 8 {
        let due = board.next_deadline().unwrap();
        assert!(due > now && due < START.after_us(SECOND));
        now = due;
        asked += sent(&mut board, now).len();
    }
    assert!(board.peers().skip(1).all(|peer| peer.queries == 1));
}

#[test]
fn sends_no_queries_until_a_link_exists() {
    let mut board = Board::new(BoardSetup { discovery: false, ..setup(1) });
    board.ask(START, nic(2)).unwrap();
    assert_eq!((sent(&mut board, START), board.next_deadline()), (vec![], None));
    board.add_link(START, LINK, 1).unwrap();
    assert_eq!(sent(&mut board, START).len(), 1);
}
