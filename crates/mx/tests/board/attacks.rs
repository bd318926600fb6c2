//! An attacker on the wire sends arbitrary frames. Nothing panics, nothing grows without limit, and the attacker learns and
//! changes no more than its own address allows.

use crate::demux::{FOR_ENDPOINTS, to_endpoint};
use crate::random::{Random, Seed};
use crate::samples::samples;
use crate::{LINK, START, all_dropped, events, index, linked, name, nic, sent, setup};
use isthmus_mx::board::{Board, BoardEvent, BoardSetup, BoardTuning, Dropped, FrameAction, LinkNumber};
use isthmus_mx::net::Time;
use isthmus_mx::wire::{
    Announcement, BROADCAST, EndpointNumber, Header, HostQuery, HostReply, Packet, PeerIndex, Raw, parse,
};
use proptest::prelude::*;

const PEERS_MAX: usize = 12;

/// Returns board 1, which knows 2 to 5 as peers 1 to 4.
fn victim() -> Board {
    let tuning = BoardTuning { peers_max: PEERS_MAX, announced_max: 6, endpoints_max: 32, ..BoardTuning::DEFAULT };
    let mut board = linked(BoardSetup { tuning, secret: 42, ..setup(1) });
    board.add_link(START, LinkNumber(1), 5).unwrap();
    for number in 2..6 {
        board.add_static(START, nic(number), name(number)).unwrap();
    }
    board.open(EndpointNumber(3)).unwrap();
    sent(&mut board, START);
    events(&mut board);
    board
}

/// Returns a random packet of any type, including those of boards.
fn any_packet(random: &mut Random, src: u16) -> Packet<Vec<u8>> {
    let number = PeerIndex::new(odd(random) as u16);
    match random.below(15) {
        0 => Packet::HostQuery(HostQuery { src_dst_peer_index: number, magic: random.next() as u32 }),
        1 => Packet::HostReply(HostReply {
            src_dst_peer_index: number,
            magic: 42 + random.below(2) as u32,
            hostname: name(random.below(8) as u16),
        }),
        2 => {
            let announced = if random.below(4) == 0 { odd(random) as u16 } else { src };
            let data = Announcement { nic_id: nic(announced), serial: odd(random) as u32 }.emit().to_vec();
            Packet::Raw(Raw { data })
        }
        3 => Packet::Raw(Raw { data: vec![random.next() as u8; random.below(900) as usize] }),
        kind => {
            let endpoint = if random.below(2) == 0 { 3 } else { odd(random) as u8 };
            let mut packet = to_endpoint(FOR_ENDPOINTS[kind as usize - 4], endpoint);
            if let Packet::ConnectRequest(request) = &mut packet {
                request.src_dst_peer_index = number;
            }
            packet
        }
    }
}

/// Returns a random number that is often a significant one.
fn odd(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.next(),
        1 => random.below(8),
        2 => u64::MAX - random.below(3),
        _ => 31 + random.below(3),
    }
}

fn any_frame(random: &mut Random) -> Vec<u8> {
    let src = if random.below(8) == 0 { odd(random) as u16 } else { random.below(8) as u16 };
    let packet = any_packet(random, src);
    let dst = match (random.below(10), &packet) {
        (0, _) => nic(odd(random) as u16),
        (1, _) | (2.., Packet::Raw(_)) => BROADCAST,
        _ => nic(1),
    };
    let number = if random.below(2) == 0 { src.wrapping_sub(1) } else { odd(random) as u16 };
    let mut bytes = crate::frame(&Header { dst, src: nic(src), peer_index: PeerIndex::new(number) }, &packet);
    match random.below(8) {
        0 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
        1 => {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        _ => {}
    }
    bytes
}

/// The state that no frame may change.
struct Watch {
    peers: Vec<(isthmus_layout::NicId, Option<PeerIndex>)>,
    counted: u64,
}

impl Watch {
    fn new(board: &Board) -> Self {
        Self { peers: Self::seen(board), counted: all_dropped(board.counters()) }
    }

    fn seen(board: &Board) -> Vec<(isthmus_layout::NicId, Option<PeerIndex>)> {
        board.peers().map(|peer| (peer.nic, peer.remote_index)).collect()
    }

    fn receive(&mut self, board: &mut Board, now: Time, bytes: &[u8]) {
        let source = bytes.get(6..12).map(|octets| isthmus_layout::NicId::from_octets(octets.try_into().unwrap()));
        // The board may learn an index from the frame, even if it drops the frame.
        let mut is_learned_from = true;
        let is_dropped = match board.receive(now, LINK, bytes) {
            FrameAction::Dropped(reason) => {
                let known = [Dropped::BadEndpoint, Dropped::EndpointClosed, Dropped::QueryRateLimited];
                is_learned_from = known.contains(&reason);
                true
            }
            FrameAction::ForEndpoint { endpoint, peer, .. } => {
                assert_eq!((endpoint, board.nic_of(peer)), (EndpointNumber(3), source));
                assert!(!board.is_local(source.unwrap()));
                false
            }
            FrameAction::Consumed => false,
            FrameAction::Raw { .. } => panic!("no raw endpoint is open"),
        };
        let counted = all_dropped(board.counters());
        assert_eq!(counted, self.counted + u64::from(is_dropped));
        self.counted = counted;
        let seen = Self::seen(board);
        assert!(seen.len() <= PEERS_MAX);
        for (at, before) in self.peers.iter().enumerate() {
            assert_eq!(before.0, seen[at].0, "an index was given away");
            assert!(before.1 == seen[at].1 || (Some(before.0) == source && is_learned_from), "{before:?}");
        }
        for (nic, _) in &seen[self.peers.len()..] {
            assert_eq!((Some(*nic), is_dropped), (source, false));
        }
        self.peers = seen;
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and many steps")]
fn frames_have_no_effect_beyond_their_sender() {
    for seed in 0..60 {
        let _seed = Seed(seed);
        let mut random = Random::new(seed);
        let mut board = victim();
        let mut watch = Watch::new(&board);
        let mut now = START;
        for _ in 0..3000 {
            now = now.after_us(random.below(20_000));
            watch.receive(&mut board, now, &any_frame(&mut random));
            match random.below(50) {
                0 => _ = board.forget(nic(random.below(8) as u16)),
                1 => board.clear_names(now),
                2 => board.link_down(now, LinkNumber(random.below(2) as u8)).unwrap(),
                3 => board.link_up(now, LinkNumber(random.below(2) as u8)).unwrap(),
                4 => assert!(events(&mut board).len() <= 3 * PEERS_MAX),
                5..30 => check_sent(&mut board, now),
                _ => {}
            }
            watch = Watch::new(&board);
        }
        assert!(board.counters().all_dropped().filter(|(_, count)| *count > 0).count() > 8);
    }
}

/// Checks that a board sends valid packets only, and only to its peers or to all.
fn check_sent(board: &mut Board, now: Time) {
    for (link, header, packet) in sent(board, now) {
        assert!(link.0 < 2);
        assert_eq!(header.src, nic(1));
        let is_announcement = matches!(packet, Packet::Raw(_));
        assert_eq!(header.dst == BROADCAST, is_announcement);
        assert!(is_announcement || board.find(header.dst).is_some_and(|peer| board.header_to(peer).is_some()));
        assert!(parse(board.setup().dialect, &crate::frame(&header, &packet)).is_ok());
    }
    assert!(board.next_deadline().is_none_or(|due| due > now));
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and many steps")]
fn every_packet_cut_at_every_length_is_dropped_or_whole() {
    let mut frames: Vec<Vec<u8>> = samples().into_iter().map(|sample| sample.frame).collect();
    let header = Header { dst: nic(1), src: nic(2), peer_index: Some(index(1)) };
    frames.extend(FOR_ENDPOINTS.map(|kind| crate::frame(&header, &to_endpoint(kind, 3))));
    frames.push(crate::announcement(nic(2), 7));
    for frame in frames {
        let mut board = victim();
        let mut watch = Watch::new(&board);
        for bytes in 0..=frame.len() {
            watch.receive(&mut board, START, &frame[..bytes]);
            sent(&mut board, START);
        }
        assert!(all_dropped(board.counters()) >= 16);
        assert!(board.peers().count() <= 6);
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and many steps")]
fn every_field_at_every_value_does_no_harm() {
    let header = Header { dst: nic(1), src: nic(2), peer_index: Some(index(1)) };
    let mut frames = FOR_ENDPOINTS.map(|kind| crate::frame(&header, &to_endpoint(kind, 3))).to_vec();
    frames.push(crate::announcement(nic(2), 7));
    for frame in frames {
        let mut board = victim();
        let mut watch = Watch::new(&board);
        for at in 0..frame.len().min(64) {
            for value in 0..=u8::MAX {
                let mut changed = frame.clone();
                changed[at] = value;
                watch.receive(&mut board, START, &changed);
            }
            sent(&mut board, START);
        }
    }
}

/// An attacker that knows all addresses announces restarts of all peers: the only effect is queries.
#[test]
fn forged_announcements_do_not_remove_peers() {
    let mut board = victim();
    let before: Vec<_> = board.peers().map(|peer| (peer.nic, peer.names, peer.remote_index, peer.forgotten)).collect();
    for serial in 0..10_000 {
        let now = START.after_us(u64::from(serial) * 1000);
        for number in 2..6 {
            board.receive(now, LINK, &crate::announcement(nic(number), serial));
        }
        sent(&mut board, now);
    }
    let after: Vec<_> = board.peers().map(|peer| (peer.nic, peer.names, peer.remote_index, peer.forgotten)).collect();
    assert_eq!(after, before);
    let expected: Vec<_> = (1..5).map(|peer| BoardEvent::Restarted(index(peer))).collect();
    assert_eq!(events(&mut board), expected);
    assert!(board.counters().dropped(Dropped::RestartRateLimited) > 39_000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Arbitrary bytes follow an arbitrary header.
    #[test]
    fn arbitrary_bytes_do_no_harm(
        frames in proptest::collection::vec(
            (0_u16..8, any::<bool>(), prop_oneof![Just(0xffff_u16), 0_u16..8, any::<u16>()],
             prop_oneof![1_u8..5, 35_u8..46, any::<u8>()], proptest::collection::vec(any::<u8>(), 0..120)),
            1..40,
        )
    ) {
        let mut board = victim();
        let mut watch = Watch::new(&board);
        for (src, to_all, number, kind, body) in frames {
            let dst = if to_all { BROADCAST } else { nic(1) };
            let header = Header { dst, src: nic(src), peer_index: PeerIndex::new(number) };
            let mut bytes = header.emit(board.setup().dialect).to_vec();
            bytes.push(kind);
            bytes.extend(body);
            watch.receive(&mut board, START, &bytes);
            sent(&mut board, START);
        }
    }
}
