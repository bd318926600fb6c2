//! Both ends of a stream: bytes, switches, state and wishes.
#![cfg(not(loom))]

use super::*;
use crate::{Mapping, SharedMapping};
use isthmus_layout::ready_map::ReadyBit;
use isthmus_layout::sockets::{BOARD_SIZE, STREAM_SIZE, StreamState, WaiterIndex};

fn ends() -> [StreamMemory<SharedMapping>; 2] {
    let memory = SharedMapping::new(Mapping::private(STREAM_SIZE));
    StreamEndIndex::ALL.map(|end| StreamMemory::new(memory.clone(), end))
}

fn waiter(number: u8) -> WaiterIndex {
    WaiterIndex::new(number).unwrap()
}

fn parked(number: u8) -> Want {
    Want::Parked { waiter: waiter(number), ready_bit: ReadyBit::new(4095).unwrap() }
}

#[test]
fn bytes_cross_in_both_directions_and_wrap() {
    let [one, two] = ends();
    for (path, at) in [(StreamPath::Small, (7 << 32) - 3), (StreamPath::Large, (1 << 20) - 5), (StreamPath::Small, 0)] {
        one.write(path, at, b"from one to the other");
        two.write(path, at, b"and back");
        one.publish_tail(at + 21);
        let (mut there, mut back) = ([0; 21], [0; 8]);
        assert_eq!(two.peer_tail(), (at + 21) as u32);
        two.read(path, at, &mut there);
        one.read(path, at, &mut back);
        assert_eq!((&there, &back), (b"from one to the other", b"and back"));
        two.publish_head(at + 21);
        assert_eq!(one.peer_head(), (at + 21) as u32);
    }
}

#[test]
fn a_whole_ring_of_bytes_crosses() {
    let [one, two] = ends();
    let paths = [StreamPath::Small, StreamPath::Large];
    for path in paths.into_iter().take(if cfg!(miri) { 1 } else { 2 }) {
        let sent: Vec<u8> = (0..path.bytes()).map(|at| (at ^ at >> 8) as u8).collect();
        let mut received = vec![0; sent.len()];
        two.write(path, 12_345, &sent);
        one.read(path, 12_345, &mut received);
        assert!(sent == received, "{path:?}");
        one.read(path, 0, &mut []);
    }
}

#[test]
#[should_panic(expected = "TCP has no ring")]
fn tcp_has_no_ring() {
    ends()[0].write(StreamPath::Tcp, 0, b"a");
}

#[test]
fn a_switch_is_announced_and_taken() {
    let [one, two] = ends();
    assert_eq!((two.peer_progress(), one.peer_taken()), (PeerProgress { tail: 0, switches: 0 }, 0));
    one.announce(1, (5 << 32) + 9, StreamPath::Large, (3 << 32) + 4);
    one.publish_tail((5 << 32) + 10);
    assert_eq!(two.peer_progress(), PeerProgress { tail: 10, switches: 1 });
    assert_eq!(two.peer_switch(1), (9, StreamPath::Large.word()));
    one.announce(2, (5 << 32) + 10, StreamPath::Tcp, (3 << 32) + 4);
    assert_eq!(two.peer_switch(1), (9, StreamPath::Large.word()), "it is kept until it is taken");
    assert_eq!(two.peer_switch(2), (10, StreamPath::Tcp.word()));
    two.set_reads_tcp(true);
    assert!(one.peer_reads_tcp());
    two.set_reads_tcp(false);
    assert!(!one.peer_reads_tcp());
    two.publish_head((5 << 32) + 9);
    two.take(1);
    assert_eq!((one.peer_taken(), one.peer_head()), (1, 9));
    let report = two.report();
    assert_eq!(report, one.report());
    let [one, two] = report.ends;
    assert_eq!((one.tail, one.switches, one.path), ((5 << 32) + 10, 2, Some(StreamPath::Tcp)));
    assert_eq!((one.tcp_bytes, two.head, two.taken), ((3 << 32) + 4, (5 << 32) + 9, 1));
}

#[test]
fn state_bits_are_set_and_cleared() {
    let [one, two] = ends();
    one.add_state(StreamState::ATTACHED);
    one.add_state(StreamState::TCP_PLEASE);
    assert_eq!((two.peer_state(), one.peer_state()), (9, 0));
    one.clear_state(StreamState::TCP_PLEASE);
    assert_eq!((two.peer_state(), one.state()), (StreamState::ATTACHED, StreamState::ATTACHED));
}

#[test]
fn a_wish_is_granted_once() {
    for (wanted, other) in [(Interest::Data, Interest::Room), (Interest::Room, Interest::Data)] {
        let [one, two] = ends();
        assert_eq!(one.peer_wants(wanted), None);
        two.set_want(wanted, parked(63));
        assert_eq!((one.peer_wants(other), two.want_raw(wanted)), (None, parked(63).word()));
        assert_eq!((one.peer_wants(wanted), two.want_raw(wanted)), (Some(parked(63)), 0));
        assert_eq!(one.peer_wants(wanted), None);
        two.set_want(wanted, parked(63));
        two.clear_want(wanted);
        assert_eq!((one.peer_wants(wanted), two.peer_wants(wanted)), (None, None));
    }
}

#[test]
fn two_waiters_want_data_and_room_of_one_end() {
    let [one, two] = ends();
    two.set_want(Interest::Data, parked(1));
    two.set_want(Interest::Room, parked(2));
    let end = one.report().ends[1];
    assert_eq!((end.want_data, end.want_room), (parked(1).word(), parked(2).word()));
    assert_eq!((one.peer_wants(Interest::Room), two.want_raw(Interest::Data)), (Some(parked(2)), parked(1).word()));
    two.set_want(Interest::Room, Want::Hot(waiter(3)));
    two.clear_want(Interest::Data);
    assert_eq!((one.peer_wants(Interest::Data), one.peer_wants(Interest::Room)), (None, Some(Want::Hot(waiter(3)))));
}

#[test]
fn a_hot_wish_stays() {
    let [one, two] = ends();
    two.set_want(Interest::Room, Want::Hot(waiter(1)));
    for _ in 0..2 {
        assert_eq!(one.peer_wants(Interest::Room), Some(Want::Hot(waiter(1))));
    }
    two.memory.store(two.own + Interest::Room.want_word(), 4 | 64 << 4, Relaxed);
    assert_eq!(one.peer_wants(Interest::Room), None, "a waiter beyond the board");
}

#[test]
fn a_board_wakes_the_right_waiter() {
    let memory = SharedMapping::new(Mapping::private(BOARD_SIZE));
    let (own, peers) = (Board::new(memory.clone()), Board::new(memory));
    let (last, other) = (own.ready_map(waiter(63)), own.ready_map(waiter(62)));
    assert!(!peers.notify(Want::Hot(waiter(63))), "a waiter that is awake is rung");
    assert!(last.begin_sleep() && other.begin_sleep());
    assert!(peers.notify(Want::Hot(waiter(63))));
    assert!(!peers.notify(Want::Hot(waiter(63))), "a waiter is rung twice");
    assert!(last.begin_sleep() && peers.notify(parked(63)));
    let mut found = Vec::new();
    last.drain(|bit| found.push(bit.number()));
    assert_eq!(found, [4095]);
    assert!(!other.is_any_set() && !last.is_any_set());
    assert!(peers.wake_hot(waiter(62)), "the other waiter still sleeps");
}
