//! The handling of a received frame: its sender, and the endpoint that gets it.

use crate::{LINK, SECOND, START, index, is_dropped, linked, name, nic, quiet, report, samples, sent, setup};
use isthmus_mx::board::{Board, BoardSetup, BoardTuning, Dropped, FrameAction};
use isthmus_mx::wire::{
    BROADCAST, ConnectReply, ConnectRequest, ConnectStatus, Dialect, Eager, EndpointNumber, Header, Liback, Malformed,
    Medium, MessageHead, Nack, NackLib, NackMcp, Notify, Packet, PacketType, PeerIndex, Pull, PullHandle, PullReply,
    Rndv, SeqNum, SessionId, parse,
};

/// The types of packets for endpoints.
pub(crate) const FOR_ENDPOINTS: [PacketType; 11] = [
    PacketType::Truc,
    PacketType::Connect,
    PacketType::Tiny,
    PacketType::Small,
    PacketType::Medium,
    PacketType::Rndv,
    PacketType::Pull,
    PacketType::PullReply,
    PacketType::Notify,
    PacketType::NackLib,
    PacketType::NackMcp,
];

/// Returns a packet of a type for an endpoint, from endpoint 1.
pub(crate) fn to_endpoint(kind: PacketType, endpoint: u8) -> Packet<Vec<u8>> {
    let (dst_endpoint, src_endpoint) = (EndpointNumber(endpoint), EndpointNumber(1));
    let (session, lib_seqnum) = (SessionId(0x1122_3344), SeqNum::from_bits(5));
    let head =
        MessageHead { dst_endpoint, src_endpoint, lib_seqnum, lib_piggyack: SeqNum::FIRST, match_info: 7, session };
    let puller = PullHandle { handle: 3, magic: 0xabcd_ef00 | u32::from(endpoint ^ 0x80) };
    let (id, seqnum, data) = (3, 4, vec![0x5a; 20]);
    match kind {
        PacketType::Truc => Packet::Liback(Liback { dst_endpoint, src_endpoint, session, lib_seqnum, acknum: 1 }),
        PacketType::Connect => Packet::ConnectRequest(ConnectRequest {
            dst_endpoint,
            src_endpoint,
            src_dst_peer_index: PeerIndex::new(9),
            src_session_id: session,
            app_key: 1,
            target_recv_seqnum_start: lib_seqnum,
            connect_seqnum: 0,
        }),
        PacketType::Tiny => Packet::Tiny(Eager { head, data }),
        PacketType::Small => Packet::Small(Eager { head, data }),
        PacketType::Medium => Packet::Medium(Medium { head, length: 20, frag_seqnum: 0, frag_pipeline: 0, data }),
        PacketType::Rndv => Packet::Rndv(Rndv {
            head,
            msg_length: 1 << 20,
            pulled_rdma_id: id,
            pulled_rdma_seqnum: seqnum,
            pulled_rdma_offset: 0,
        }),
        PacketType::Pull => Packet::Pull(Pull {
            dst_endpoint,
            src_endpoint,
            session,
            total_length: 1 << 20,
            pulled_rdma_id: u32::from(id),
            pulled_rdma_seqnum: seqnum,
            pulled_rdma_offset: 0,
            puller,
            first_frame_offset: 0,
            block_length: 100,
            frame_index: 0,
        }),
        PacketType::PullReply => Packet::PullReply(PullReply { frame_seqnum: 0, msg_offset: 0, puller, data }),
        PacketType::Notify => Packet::Notify(Notify {
            dst_endpoint,
            src_endpoint,
            session,
            total_length: 1,
            pulled_rdma_id: id,
            pulled_rdma_seqnum: seqnum,
            lib_seqnum,
            lib_piggyack: SeqNum::FIRST,
        }),
        PacketType::NackLib => {
            Packet::NackLib(NackLib { dst_endpoint, src_endpoint, nack_type: Nack::BadSession, lib_seqnum })
        }
        PacketType::NackMcp => Packet::NackMcp(NackMcp { src_endpoint, nack_type: Nack::BadSession, puller }),
        other => panic!("{other:?} is for no endpoint"),
    }
}

fn connect_reply(endpoint: u8) -> Packet<Vec<u8>> {
    Packet::ConnectReply(ConnectReply {
        dst_endpoint: EndpointNumber(endpoint),
        src_endpoint: EndpointNumber(1),
        src_dst_peer_index: PeerIndex::new(9),
        src_session_id: SessionId(1),
        target_session_id: SessionId(2),
        target_recv_seqnum_start: SeqNum::FIRST,
        connect_seqnum: 0,
        status: ConnectStatus::Success,
    })
}

/// Returns board 1, which knows 2 as peer 1 and 3 as peer 2, has queried both, and has endpoint 3 open.
fn ready() -> Board {
    let mut board = quiet(1);
    board.add_static(START, nic(2), name(2)).unwrap();
    board.add_static(START, nic(3), name(3)).unwrap();
    board.open(EndpointNumber(3)).unwrap();
    sent(&mut board, START);
    board
}

fn header(from: u16, number: u16) -> Header {
    Header { dst: nic(1), src: nic(from), peer_index: PeerIndex::new(number) }
}

fn receive(board: &mut Board, header: Header, packet: &Packet<Vec<u8>>) -> Result<(u8, u16), Dropped> {
    let bytes = crate::frame(&header, packet);
    match board.receive(START, LINK, &bytes) {
        FrameAction::ForEndpoint { endpoint, peer, packet: said } => {
            assert_eq!(said.map(<[u8]>::to_vec), *packet);
            Ok((endpoint.0, peer.number()))
        }
        FrameAction::Dropped(reason) => Err(reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn packets_reach_their_endpoint_with_their_sender() {
    let mut board = ready();
    for kind in FOR_ENDPOINTS {
        assert_eq!(receive(&mut board, header(2, 1), &to_endpoint(kind, 3)), Ok((3, 1)), "{kind:?}");
        assert_eq!(receive(&mut board, header(3, 2), &to_endpoint(kind, 3)), Ok((3, 2)), "{kind:?}");
        assert_eq!(board.counters().received(kind), 2);
    }
    assert_eq!(receive(&mut board, header(2, 1), &connect_reply(3)), Ok((3, 1)));
    assert_eq!(report(&board, index(1)).frames, 12);
}

/// Observers read frames without being a board of the network.
#[test]
fn destination_endpoint_ignores_sender_and_state() {
    let board = ready();
    for kind in FOR_ENDPOINTS {
        let names = |header: Header, endpoint| {
            board.destination_endpoint(&crate::frame(&header, &to_endpoint(kind, endpoint))).map(|endpoint| endpoint.0)
        };
        assert_eq!([names(header(2, 1), 3), names(header(9, 77), 3)], [Some(3); 2], "{kind:?}");
        assert_eq!(names(header(2, 1), 5), Some(5), "{kind:?}");
        assert_eq!(names(Header { dst: nic(2), ..header(3, 1) }, 3), None, "{kind:?}, of another board");
    }
    assert_eq!(board.destination_endpoint(&[0; 14]), None);
    assert_eq!(board.counters().received(PacketType::Tiny), 0);
}

/// Compares with the table of section 4.
#[test]
fn senders_are_found_by_index_or_by_address_and_always_compared() {
    let by_address = [PacketType::Connect, PacketType::PullReply];
    let by_either = [PacketType::NackLib, PacketType::NackMcp];
    for kind in FOR_ENDPOINTS {
        let mut board = ready();
        let mut at = |from, number| receive(&mut board, header(from, number), &to_endpoint(kind, 3));
        let (any, none_too) = (by_address.contains(&kind), by_either.contains(&kind));
        let dropped = |reason| if any { Ok((3, 1)) } else { Err(reason) };
        assert_eq!(at(2, 2), dropped(Dropped::IndexMismatch), "{kind:?}");
        assert_eq!(at(2, 0), dropped(Dropped::IndexMismatch), "{kind:?}");
        assert_eq!(at(2, 3), dropped(Dropped::UnusedIndex), "{kind:?}");
        assert_eq!(at(2, 0xfffe), dropped(Dropped::UnusedIndex), "{kind:?}");
        assert_eq!(at(2, 0xffff), if none_too { Ok((3, 1)) } else { dropped(Dropped::NoIndex) }, "{kind:?}");
        for number in [0, 1, 2, 3, 0xffff] {
            assert_eq!(at(4, number), Err(Dropped::UnknownSource), "{kind:?}");
            assert_eq!(at(1, number), Err(Dropped::OwnSource), "{kind:?}");
        }
    }
}

#[test]
fn frames_of_a_forgotten_peer_are_dropped() {
    for kind in FOR_ENDPOINTS {
        let mut board = ready();
        board.forget(nic(2));
        let received = receive(&mut board, header(2, 1), &to_endpoint(kind, 3));
        assert_eq!(received, Err(Dropped::ForgottenSource), "{kind:?}");
        assert_eq!(
            sent(&mut board, START.after_us(100 * SECOND)).iter().filter(|(_, to, _)| to.dst == nic(2)).count(),
            0
        );
    }
}

#[test]
fn frames_for_others_or_for_all_are_dropped() {
    let mut board = ready();
    for kind in FOR_ENDPOINTS {
        for dst in [nic(2), nic(9), BROADCAST] {
            let header = Header { dst, ..header(2, 1) };
            assert_eq!(receive(&mut board, header, &to_endpoint(kind, 3)), Err(Dropped::NotForUs), "{kind:?}");
        }
    }
    assert_eq!(report(&board, index(1)).frames, 0);
}

#[test]
fn frames_from_addresses_that_no_board_has_are_dropped() {
    let mut board = ready();
    board.open(EndpointNumber::RAW).unwrap();
    let group = isthmus_layout::NicId::from_octets([1, 0, 0x5e, 0, 0, 1]);
    for src in [BROADCAST, group, isthmus_layout::NicId::from_octets([0; 6])] {
        let header = Header { src, ..header(2, 0) };
        let raw = crate::frame(&header, &Packet::Raw(isthmus_mx::wire::Raw { data: [7; 50] }));
        is_dropped(&mut board, START, &raw, Dropped::BadSource);
        for kind in FOR_ENDPOINTS {
            assert_eq!(receive(&mut board, header, &to_endpoint(kind, 3)), Err(Dropped::BadSource), "{kind:?}");
        }
    }
}

/// Compares with the table of 3.13.
#[test]
fn packets_for_endpoints_that_are_not_there_are_refused_or_dropped() {
    let silent = [PacketType::Truc, PacketType::PullReply, PacketType::NackLib, PacketType::NackMcp];
    for (endpoint, nack, reason) in [
        (4, Nack::EndpointClosed, Dropped::EndpointClosed),
        (31, Nack::EndpointClosed, Dropped::EndpointClosed),
        (32, Nack::BadEndpoint, Dropped::BadEndpoint),
        (255, Nack::BadEndpoint, Dropped::BadEndpoint),
    ] {
        for kind in FOR_ENDPOINTS {
            let tuning = BoardTuning { endpoints_max: 32, ..BoardTuning::DEFAULT };
            let mut board = linked(BoardSetup { discovery: false, tuning, ..setup(1) });
            board.add_static(START, nic(2), name(2)).unwrap();
            // An open raw endpoint is not an endpoint for messages.
            board.open(EndpointNumber::RAW).unwrap();
            sent(&mut board, START);
            let packet = to_endpoint(kind, endpoint);
            assert_eq!(receive(&mut board, header(2, 1), &packet), Err(reason), "{kind:?}");
            let answers = sent(&mut board, START);
            if silent.contains(&kind) {
                assert_eq!(answers, [], "{kind:?}");
                continue;
            }
            let [(link, to, answer)] = &answers[..] else { panic!("{answers:?}") };
            // A CONNECT reports its sender's number for us.
            let reverse = (kind == PacketType::Connect).then(|| index(9));
            assert_eq!((*link, to.dst, to.src, to.peer_index), (LINK, nic(2), nic(1), reverse), "{kind:?}");
            let expected = isthmus_mx::net::nack_for(&packet, nack).unwrap();
            assert_eq!(answer.map(|_| Vec::<u8>::new()), expected.map(|_| Vec::new()), "{kind:?}");
            assert_eq!(board.counters().sent_by_board(answer.kind()), 1);
        }
    }
    let mut board = ready();
    assert_eq!(receive(&mut board, header(2, 1), &connect_reply(4)), Err(Dropped::EndpointClosed));
    let answers = sent(&mut board, START);
    let [(_, _, Packet::NackLib(nack))] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((nack.lib_seqnum, nack.nack_type), (SeqNum::ZERO, Nack::EndpointClosed));
}

#[test]
fn messages_are_never_for_the_raw_endpoint() {
    let tuning = BoardTuning { endpoints_max: 1000, ..BoardTuning::DEFAULT };
    let mut board = linked(BoardSetup { discovery: false, tuning, ..setup(1) });
    board.add_static(START, nic(2), name(2)).unwrap();
    board.open(EndpointNumber::RAW).unwrap();
    board.open(EndpointNumber(254)).unwrap();
    for kind in FOR_ENDPOINTS {
        let to = |endpoint| to_endpoint(kind, endpoint);
        assert_eq!(receive(&mut board, header(2, 1), &to(255)), Err(Dropped::BadEndpoint), "{kind:?}");
        assert_eq!(receive(&mut board, header(2, 1), &to(254)), Ok((254, 1)), "{kind:?}");
    }
}

#[test]
fn an_endpoint_that_was_closed_is_refused() {
    let mut board = ready();
    board.close(EndpointNumber(3));
    assert_eq!(receive(&mut board, header(2, 1), &to_endpoint(PacketType::Tiny, 3)), Err(Dropped::EndpointClosed));
    board.open(EndpointNumber(3)).unwrap();
    assert_eq!(receive(&mut board, header(2, 1), &to_endpoint(PacketType::Tiny, 3)), Ok((3, 1)));
}

#[test]
fn limits_the_rate_of_nacks() {
    let mut board = ready();
    let packet = to_endpoint(PacketType::Tiny, 4);
    for _ in 0..10_000 {
        assert_eq!(receive(&mut board, header(2, 1), &packet), Err(Dropped::EndpointClosed));
    }
    let refused = sent(&mut board, START).len() as u64;
    assert_eq!((refused, board.counters().withheld()), (64, 10_000 - 64));
}

#[test]
fn learns_our_peer_index_from_connects() {
    let mut board = ready();
    assert_eq!(board.header_to(index(1)).unwrap().peer_index, None);
    // A sender that does not know our number for it can connect.
    assert_eq!(receive(&mut board, header(2, 0xffff), &to_endpoint(PacketType::Connect, 3)), Ok((3, 1)));
    let expected = Header { dst: nic(2), src: nic(1), peer_index: PeerIndex::new(9) };
    assert_eq!(board.header_to(index(1)), Some(expected));
    assert_eq!(board.header_to(index(2)).unwrap().peer_index, None);
    assert_eq!(report(&board, index(1)).remote_index, PeerIndex::new(9));
    // A request without a number does not revoke an earlier one.
    let Packet::ConnectRequest(request) = to_endpoint(PacketType::Connect, 3) else { panic!() };
    let silent = Packet::ConnectRequest(ConnectRequest { src_dst_peer_index: None, ..request });
    assert_eq!(receive(&mut board, header(2, 1), &silent), Ok((3, 1)));
    assert_eq!(board.header_to(index(1)), Some(expected));
}

#[test]
fn counts_malformed_frames_by_reason() {
    let mut board = ready();
    let frame = crate::frame(&header(2, 1), &to_endpoint(PacketType::Tiny, 3));
    is_dropped(&mut board, START, &frame[..15], Dropped::Malformed(Malformed::Short { have: 15, need: 16 }));
    let mut other = frame.clone();
    other[13] = 0xdd;
    is_dropped(&mut board, START, &other, Dropped::Malformed(Malformed::Ethertype(0x86dd)));
    let counted: Vec<_> = board.counters().all_dropped().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [("short", 1), ("ethertype", 1)]);
}

/// Both boards receive the specification's frames between A and B: A is number 2 of B, and B is number 1 of A.
#[test]
fn sample_frames_reach_their_destination() {
    for sample in samples::samples() {
        for &dialect in sample.dialects {
            let own = if sample.header.src == samples::A { samples::B } else { samples::A };
            let mut board = linked(BoardSetup { nic: own, dialect, secret: 0x1305_2008, ..setup(1) });
            if own == samples::B {
                board.add_static(START, nic(9), name(9)).unwrap();
            }
            let peer = board.ask(START, sample.header.src).unwrap();
            [1, 3].into_iter().for_each(|number| board.open(EndpointNumber(number)).unwrap());
            sent(&mut board, START);
            match board.receive(START, LINK, &sample.frame) {
                FrameAction::ForEndpoint { endpoint, peer: from, packet } => {
                    assert_eq!(packet.map(<[u8]>::to_vec), sample.packet, "V{:02}", sample.number);
                    let expected = if own == samples::A { 1 } else { 3 };
                    // The sample replies to B's pulls carry its magic.
                    assert_eq!((endpoint.0, from), (expected, peer), "V{:02}", sample.number);
                }
                received => assert!(sample.number <= 3 && received == FrameAction::Consumed, "V{:02}", sample.number),
            }
        }
    }
}

/// The frames that a board sends equal the samples.
#[test]
fn board_frames_equal_the_samples() {
    let secret = 0x1305_2008;
    let mut a = linked(BoardSetup { nic: samples::A, serial: 0x0a0b_0c0d, secret, dialect: Dialect::Mx, ..setup(1) });
    let frames = samples::samples();
    let emitted = |board: &mut Board| -> Vec<Vec<u8>> {
        sent(board, START).into_iter().map(|(_, header, packet)| crate::frame(&header, &packet)).collect()
    };
    assert_eq!(emitted(&mut a), [&frames[0].frame[..]]);
    a.ask(START, samples::B).unwrap();
    let [query] = &emitted(&mut a)[..] else { panic!("no question") };
    let (header, packet) = parse(Dialect::Mx, query).unwrap();
    // Linux leaves the index of the header empty. Ours means unknown.
    assert_eq!((header.peer_index, packet.map(<[u8]>::to_vec)), (None, frames[1].packet.clone()));
    let b_name = isthmus_mx::wire::BoardName::new(b"nodeB:0").unwrap();
    let mut b = linked(BoardSetup { nic: samples::B, name: b_name, discovery: false, ..setup(2) });
    b.add_static(START, nic(9), name(9)).unwrap();
    b.add_static(START, samples::A, name(1)).unwrap();
    sent(&mut b, START);
    assert_eq!(b.receive(START, LINK, query), FrameAction::Consumed);
    let [reply] = &emitted(&mut b)[..] else { panic!("no answer") };
    // A is number 2 of B, and B has learned that it is number 1 of A.
    let (header, packet) = parse(Dialect::Mx, reply).unwrap();
    assert_eq!((header.peer_index, packet.map(<[u8]>::to_vec)), (PeerIndex::new(1), frames[2].packet.clone()));
    assert_eq!((&reply[..14], &reply[16..]), (&frames[2].frame[..14], &frames[2].frame[16..]));
}
