//! Boards find each other on faulty wires, and again after one of them restarts.

use crate::network::{NetConditions, Network};
use crate::random::Seed;
use crate::{SECOND, events, name, nic, setup};
use isthmus_mx::board::{BoardEvent, BoardSetup, LinkNumber, PeerOrigin};
use isthmus_mx::net::Time;
use isthmus_mx::wire::{Dialect, EndpointNumber, Header, Packet, PacketType};

const FINE: NetConditions = NetConditions { loss_per_million: 0, repeat_per_million: 0, delay_us_max: 0 };
const BAD: NetConditions =
    NetConditions { loss_per_million: 100_000, repeat_per_million: 100_000, delay_us_max: 200_000 };

fn second(seconds: u64) -> Time {
    Time::from_us(seconds * SECOND)
}

#[test]
fn two_boards_know_each_other_at_once_on_a_good_wire() {
    let mut network = Network::new(2, 1, FINE, 1);
    network.run_until(Time::from_us(100));
    assert!(network.all_know_all());
    // After that, the boards send only announcements: a burst each, and then one in three minutes.
    network.run_until(second(10));
    let before = network.count();
    network.run_until(second(3600));
    assert_eq!(network.count() - before, 2 * 19);
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and many steps")]
fn boards_find_each_other_on_bad_wires() {
    for seed in 0..200 {
        let _seed = Seed(seed);
        let mut network = Network::new(3, 1 + (seed % 2) as u8, BAD, seed);
        network.run_until(second(60));
        assert!(network.all_know_all());
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and many steps")]
fn discovery_works_with_half_of_the_frames_lost() {
    for seed in 0..50 {
        let _seed = Seed(seed);
        let conditions = NetConditions { loss_per_million: 500_000, ..BAD };
        let mut network = Network::new(2, 1, conditions, seed);
        network.run_until(second(7200));
        assert!(network.all_know_all());
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and many steps")]
fn forty_boards_discover_each_other() {
    let mut network = Network::new(40, 1, BAD, 40);
    network.run_until(second(120));
    assert!(network.all_know_all());
    for (number, board) in (1..).zip(&mut network.boards) {
        assert_eq!(board.peers().count(), 40);
        let found = events(board).into_iter().filter(|event| matches!(event, BoardEvent::Found(_))).count();
        assert_eq!(found, 39, "board {number}");
        assert_eq!(board.counters().refused_peers(), 0);
    }
    // From then on, the boards send only announcements.
    network.run_until(second(1000));
    let before = network.count();
    network.run_until(second(1000 + 1800));
    let announcements = 40 * 39 * 10;
    assert!((announcements * 95 / 100..announcements * 105 / 100).contains(&(network.count() - before)));
}

#[test]
fn discovery_works_when_all_boards_start_at_once() {
    let mut network = Network::new(40, 1, FINE, 1);
    network.run_until(second(12));
    assert!(network.all_know_all());
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and many steps")]
fn rediscovers_a_board_with_a_new_serial() {
    for seed in 0..50 {
        let _seed = Seed(seed);
        let mut network = Network::new(3, 1, BAD, seed);
        network.run_until(second(100));
        assert!(network.all_know_all());
        network.boards.iter_mut().for_each(|board| _ = events(board));
        // The restarted board numbers the others in another order, if frames arrive so.
        let anew = BoardSetup { serial: 1000, secret: 5, ..setup(2) };
        network.boards[1] = network.start(anew, 1);
        network.boards[1].add_static(network.now, nic(3), name(3)).unwrap();
        network.run_until(second(200));
        assert!(network.all_know_all());
        for at in [0, 2] {
            let peer = network.boards[at].find(nic(2)).unwrap();
            assert_eq!(events(&mut network.boards[at]), [BoardEvent::Restarted(peer)]);
            let report = network.boards[at].peers().find(|report| report.index == peer).unwrap();
            assert_eq!(report.restarts, 1);
        }
    }
}

#[test]
fn rediscovers_a_silently_restarted_board_on_the_next_send() {
    let quiet = |number| BoardSetup { discovery: false, ..setup(number) };
    let mut network = Network::new(2, 1, FINE, 1);
    for (at, (own, other)) in [(1, 2), (2, 1)].into_iter().enumerate() {
        network.boards[at] = network.start(quiet(own), 1);
        if own == 2 {
            network.boards[at].add_static(Time::ZERO, nic(9), name(9)).unwrap();
        }
        network.boards[at].add_static(Time::ZERO, nic(other), name(other)).unwrap();
    }
    network.run_until(second(100));
    assert!(network.all_know_all());
    // Board 1 is now number 1 of board 2, no longer number 2. All names are configured, so no names are queried, but
    // the path to 1 is.
    network.boards[1] = network.start(quiet(2), 1);
    network.boards[1].add_static(network.now, nic(1), name(1)).unwrap();
    network.run_until(second(200));
    assert!(network.all_know_all());
}

#[test]
fn static_tables_work_without_discovery() {
    let mut network = Network::new(3, 1, BAD, 7);
    for at in 0..3_u16 {
        let mut board = network.start(BoardSetup { discovery: false, ..setup(at + 1) }, 1);
        for number in (1..=3).filter(|number| *number != at + 1) {
            board.add_static(Time::ZERO, nic(number), name(number)).unwrap();
        }
        network.boards[usize::from(at)] = board;
    }
    network.run_until(second(100));
    assert!(network.all_know_all());
    for board in &network.boards {
        assert_eq!(board.counters().sent_by_board(PacketType::Raw), 0);
        assert!(board.peers().skip(1).all(|peer| peer.origin == PeerOrigin::Static && peer.heard.is_some()));
    }
}

#[test]
fn the_fastest_wire_that_both_have_is_used() {
    let (slow, fast) = (LinkNumber(0), LinkNumber(1));
    let mut network = Network::new(3, 2, FINE, 1);
    // The third board has only the slow link.
    network.attach(2, fast, false);
    network.run_until(second(20));
    assert!(network.all_know_all());
    let way = |network: &Network, from: usize, to| {
        let board = &network.boards[from];
        board.link_to(board.find(nic(to)).unwrap())
    };
    assert_eq!([way(&network, 0, 2), way(&network, 0, 3)], [Some(fast), Some(slow)]);
    assert_eq!([way(&network, 1, 1), way(&network, 1, 3)], [Some(fast), Some(slow)]);
    // The wire between them breaks without notice. The boards detect it once their last frames there are old and the other link still
    // delivers.
    network.attach(0, fast, false);
    network.run_until(second(20 + 800));
    assert_eq!([way(&network, 0, 2), way(&network, 1, 1)], [Some(slow), Some(slow)]);
    network.attach(0, fast, true);
    network.run_until(second(20 + 800 + 200));
    assert_eq!([way(&network, 0, 2), way(&network, 1, 1)], [Some(fast), Some(fast)]);
}

/// The index that a board puts into frames is the one of the receiver.
#[test]
fn headers_are_right_in_both_directions() {
    let mut network = Network::new(3, 1, FINE, 3);
    network.run_until(second(20));
    let packet = crate::demux::to_endpoint(PacketType::Tiny, 3);
    for board in &mut network.boards {
        board.open(EndpointNumber(3)).unwrap();
    }
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)] {
        let peer = network.boards[from].find(nic(to as u16 + 1)).unwrap();
        let header: Header = network.boards[from].header_to(peer).unwrap();
        let bytes = crate::frame(&header, &packet);
        let back = network.boards[to].find(nic(from as u16 + 1)).unwrap();
        let received = network.boards[to].receive(network.now, LinkNumber(0), &bytes);
        let isthmus_mx::board::FrameAction::ForEndpoint { peer, packet: Packet::Tiny(_), .. } = received else {
            panic!("{received:?}")
        };
        assert_eq!(peer, back);
    }
    assert_eq!(Dialect::OPEN_MX, network.boards[0].setup().dialect);
}
