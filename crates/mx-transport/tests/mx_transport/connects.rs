//! Replies to connect requests.

use crate::model_peer::Memory;
use crate::node::{KEY, NetworkConfig, address};
use crate::simulation::Simulation;
use crate::wire::NetConditions;
use isthmus_layout::reason::Reason;
use isthmus_mx::net::Time;

fn simulation(nodes: usize) -> Simulation {
    Simulation::new(nodes, NetworkConfig::fine(), NetConditions::FINE, 1)
}

/// The answers that a node has had.
fn answers(simulation: &mut Simulation, node: usize) -> Vec<Result<(), Reason>> {
    simulation.node(node).library.answers.iter().map(|(_, outcome)| outcome.map(drop)).collect()
}

#[test]
fn connect_returns_the_same_number_each_time() {
    let mut simulation = simulation(4);
    for _ in 0..3 {
        simulation.connect(0, 2, KEY);
        simulation.connect(2, 0, KEY);
    }
    simulation.connect(0, 3, KEY);
    simulation.run_until_quiet(1_000_000);
    let numbers: Vec<_> =
        simulation.node(0).library.answers.iter().map(|(request, met)| (*request, met.unwrap())).collect();
    let (one, other) = (numbers[0].1, numbers[3].1);
    assert_eq!(numbers, [(1, one), (2, one), (3, one), (4, other)]);
    assert_ne!(one, other);
    assert_eq!(simulation.levels(0).remote_peers, 2);
    assert_eq!(answers(&mut simulation, 2), [Ok(()); 3]);
}

#[test]
fn remote_peer_is_added_when_its_first_message_arrives() {
    let mut simulation = simulation(3);
    simulation.connect(0, 2, KEY);
    simulation.run_until_quiet(1_000_000);
    assert_eq!(simulation.levels(2).remote_peers, 0);
    let id = simulation.send_whole(0, 2, 100, Memory::None);
    simulation.run_until_quiet(1_000_000);
    assert_eq!(simulation.levels(2).remote_peers, 1);
    let back = simulation.send_whole(2, 0, 50_000, Memory::None);
    simulation.run_until_quiet(1_000_000);
    assert_eq!(simulation.node(2).library.received.get(&id), Some(&100));
    assert_eq!(simulation.node(0).library.received.get(&back), Some(&50_000));
}

#[test]
fn connect_distinguishes_wrong_key_closed_endpoint_and_unknown_host() {
    let mut simulation = simulation(5);
    simulation.replace(3, false);
    simulation.connect(0, 2, KEY + 1);
    simulation.connect(0, 3, KEY);
    simulation.wire.cut(0, 2, Time::from_us(u64::MAX));
    simulation.connect(0, 4, KEY);
    simulation.run_until_quiet(60_000_000);
    let mut answers = simulation.node(0).library.answers.clone();
    answers.sort_unstable_by_key(|(request, _)| *request);
    let refused = [Reason::MxBadKey, Reason::MxEndpointClosed, Reason::MxUnreachable].map(Err);
    assert_eq!(answers.iter().map(|(_, outcome)| *outcome).collect::<Vec<_>>(), refused);
    assert_eq!(simulation.levels(0).remote_peers, 0);
}

#[test]
fn connect_fails_when_no_number_is_free() {
    let mut simulation = simulation(4);
    simulation.node(0).library.limit_remote_peers(1);
    simulation.connect(0, 2, KEY);
    simulation.connect(2, 0, KEY);
    simulation.run_until_quiet(1_000_000);
    simulation.connect(0, 3, KEY);
    simulation.connect(3, 0, KEY);
    simulation.run_until_quiet(1_000_000);
    assert_eq!(answers(&mut simulation, 0), [Ok(()), Err(Reason::MxPartnersFull)]);
    for len in [0, 100, 20_000, 100_000] {
        simulation.send_whole(3, 0, len, Memory::None);
    }
    simulation.run_until_quiet(20_000_000);
    assert_eq!((simulation.levels(0).incoming, simulation.levels(0).held_bytes), (0, 0), "they are not kept");
    let over = simulation.node(3).library.over.clone();
    assert_eq!((over.len(), over.values().flatten().copied().sum::<u32>()), (4, 0));
    // Remote peers that have a number already are not disturbed.
    let id = simulation.send_whole(2, 0, 100_000, Memory::None);
    simulation.run_until_quiet(20_000_000);
    assert_eq!(simulation.node(0).library.received.get(&id), Some(&100_000));
    assert_eq!(simulation.node(0).library.current.get(&address(3)), None);
}
