//! Peers that no device has when their connection begins.

use super::*;
use isthmus_verbs::{Found, LookUp};

/// Look-ups without an answer, and those that find no device, until requests fail.
const UNANSWERED_MAX: u32 = 36;
const UNKNOWN_MAX: u32 = 8;

/// Two queue pairs. Each is told what the first look-up of the other one has found.
fn pair_found(founds: [Found; 2], options: &Options) -> (Network, Qp, Qp) {
    let mut network = Network::new(2, 7);
    let [one, other] = [0, 1].map(|node| create(&mut network, node, QpType::Rc, options, None));
    for (qp, peer, found) in [(one, other, founds[0]), (other, one, founds[1])] {
        ready_to_receive_from(&mut network, qp, peer, found.device(), options);
        if found.device().is_none() {
            looked_up(&mut network, qp, found);
        }
        ready_to_send(&mut network, qp, peer, options);
    }
    (network, one, other)
}

fn looked_up(network: &mut Network, qp: Qp, found: Found) {
    network.call(qp.node, |engine, _| engine.looked_up(qp.number, found));
}

fn next_look_up(network: &mut Network, qp: Qp) -> Option<LookUp> {
    network.call(qp.node, |engine, _| engine.next_look_up())
}

/// Lets the pause of a search pass.
fn pass(network: &mut Network) {
    network.tick(0);
    network.tick(400_000_000);
}

fn has_pauses(network: &Network, qp: Qp) -> bool {
    network.nodes[qp.node].engine.has_pauses()
}

#[test]
fn requests_wait_for_a_peer_that_is_found_later() {
    for missing in [Found::Unknown, Found::Unanswered] {
        let (mut network, one, other) = pair_found([missing, Found::Device(address(0))], &Options::default());
        let sge = receive(&mut network, other, 1, 100);
        send(&mut network, one, 10, b"data").unwrap();
        network.settle();
        assert_eq!((statuses(&mut network, one), next_look_up(&mut network, one)), (vec![], None));
        for _ in 0..3 {
            pass(&mut network);
            let due = next_look_up(&mut network, one).unwrap();
            assert_eq!((due.qp, due.gid, due.destination), (one.number, Gid::default(), other.number));
            assert_eq!(next_look_up(&mut network, one), None, "the first one is not answered yet");
            looked_up(&mut network, one, missing);
        }
        looked_up(&mut network, one, Found::Device(address(1)));
        network.settle();
        assert_eq!(statuses(&mut network, one), [(10, Success)]);
        assert_eq!(statuses(&mut network, other), [(1, Success)]);
        assert_eq!(look(&network, other, sge)[..4], *b"data");
        network.tick(0);
        assert!(!has_pauses(&network, one));
    }
}

/// A program that only receives looks its peer up, too, at once when the peer sends. What the peer has sent costs it no retry.
#[test]
fn receiver_finds_a_peer_that_has_sent_already() {
    for (timeout, len) in [(0, 4), (14, 4), (14, 1000)] {
        let options = Options { timeout, retry_count: 0, ..Options::default() };
        let (mut network, one, other) = pair_found([Found::Device(address(1)), Found::Unknown], &options);
        for wr_id in [1, 2] {
            receive(&mut network, other, wr_id, 1000);
            send(&mut network, one, 10 * wr_id, &vec![wr_id as u8; len]).unwrap();
        }
        network.settle();
        assert_eq!(statuses(&mut network, one), []);
        assert_eq!(network.nodes[1].engine.violations(), 0, "a peer that is not known yet is no attacker");
        network.tick(0);
        assert_eq!(next_look_up(&mut network, other).map(|due| due.destination), Some(one.number));
        looked_up(&mut network, other, Found::Device(address(0)));
        network.settle();
        assert_eq!(statuses(&mut network, one), [(10, Success), (20, Success)], "timeout {timeout}, {len} bytes");
        assert_eq!(statuses(&mut network, other), [(1, Success), (2, Success)]);
    }
}

/// However often a device sends to one that does not know it, that one asks once more.
#[test]
fn attempts_of_a_device_that_is_not_known_hasten_one_look_up() {
    let options = Options { timeout: 1, ..Options::default() };
    let (mut network, one, other) = pair_found([Found::Device(address(1)), Found::Unknown], &options);
    send(&mut network, one, 10, b"data").unwrap();
    network.settle();
    network.tick(0);
    assert!(next_look_up(&mut network, other).is_some());
    looked_up(&mut network, other, Found::Unknown);
    change_state(&mut network, one, QpState::Reset).unwrap();
    ready_to_receive(&mut network, one, other, &options);
    ready_to_send(&mut network, one, other, &options);
    send(&mut network, one, 11, b"data").unwrap();
    network.settle();
    network.tick(0);
    assert_eq!(next_look_up(&mut network, other), None);
}

#[test]
fn dropped_attempts_are_refused_when_the_search_ends() {
    for end in ["last look-up", "reset", "error"] {
        let options = Options { retry_count: 0, ..Options::default() };
        let (mut network, one, other) = pair_found([Found::Device(address(1)), Found::Unknown], &options);
        send(&mut network, one, 10, b"data").unwrap();
        network.settle();
        assert_eq!(statuses(&mut network, one), [], "{end}");
        match end {
            "last look-up" => looked_up(&mut network, other, Found::Nothing),
            "reset" => change_state(&mut network, other, QpState::Reset).unwrap(),
            _ => change_state(&mut network, other, QpState::Error).unwrap(),
        }
        network.settle();
        assert_eq!(statuses(&mut network, one), [(10, RetryExceeded)], "{end}");
    }
}

#[test]
fn requests_fail_after_the_last_look_up() {
    for (missing, max) in [(Found::Unknown, UNKNOWN_MAX), (Found::Unanswered, UNANSWERED_MAX)] {
        let (mut network, one, _) = pair_found([missing, Found::Nothing], &Options::default());
        send(&mut network, one, 10, b"data").unwrap();
        for made in 1..max {
            assert_eq!(statuses(&mut network, one), [], "{made}");
            pass(&mut network);
            assert!(next_look_up(&mut network, one).is_some(), "{made}");
            looked_up(&mut network, one, missing);
        }
        network.settle();
        assert_eq!(statuses(&mut network, one), [(10, RetryExceeded)]);
        network.tick(0);
        assert!(!has_pauses(&network, one));
    }
}

#[test]
fn pauses_grow_from_10_to_320_ms() {
    let (mut network, one, _) = pair_found([Found::Unanswered, Found::Nothing], &Options::default());
    let mut pauses = Vec::new();
    let mut now = 1_000;
    for _ in 0..7 {
        let until = network.nodes[0].engine.tick(now).unwrap();
        pauses.push((until - now) / 1_000_000);
        assert_eq!(network.nodes[0].engine.tick(until - 1), Some(until));
        assert_eq!(next_look_up(&mut network, one), None);
        network.nodes[0].engine.tick(until);
        assert!(next_look_up(&mut network, one).is_some());
        looked_up(&mut network, one, Found::Unanswered);
        now = until;
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 320]);
}

#[test]
fn peer_that_may_not_be_reached_is_not_looked_up_again() {
    let (mut network, one, _) = pair_found([Found::Nothing, Found::Nothing], &Options::default());
    send(&mut network, one, 10, b"data").unwrap();
    network.settle();
    assert_eq!(statuses(&mut network, one), [(10, RetryExceeded)]);
    assert!(!has_pauses(&network, one));
}

/// A late result must not connect the next connection of the queue pair to the peer of the last one.
#[test]
fn reset_and_error_end_the_look_ups() {
    for (state, completions) in [(QpState::Reset, vec![]), (QpState::Error, vec![(10, Flushed)])] {
        let (mut network, one, _) = pair_found([Found::Unknown, Found::Nothing], &Options::default());
        send(&mut network, one, 10, b"data").unwrap();
        change_state(&mut network, one, state).unwrap();
        assert_eq!(statuses(&mut network, one), completions);
        pass(&mut network);
        assert_eq!((next_look_up(&mut network, one), has_pauses(&network, one)), (None, false));
        looked_up(&mut network, one, Found::Device(address(1)));
        network.settle();
        assert_eq!(statuses(&mut network, one), []);
    }
}
