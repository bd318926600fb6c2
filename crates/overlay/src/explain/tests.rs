use alloc::string::{String, ToString};
use alloc::vec;

use super::*;
use crate::network::{Decision, NetworkOptions};
use crate::ports::{EdgeId, InterfaceId};
use crate::route::{MacPattern, RouteSource};
use MacPattern::{Any, Exact, Not};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
const I1: Port = Port::Interface(InterfaceId(1));
const I2: Port = Port::Interface(InterfaceId(2));
const E1: Port = Port::Edge(EdgeId(1));
const E2: Port = Port::Edge(EdgeId(2));
const NOW: Millis = Millis(0);

fn network(learning: bool) -> Network {
    let mut network = Network::new(NetworkOptions { learning, ..NetworkOptions::new([1, 2]) });
    assert!([I1, I2, E1].into_iter().all(|port| network.add_port(port)));
    network
}

fn route(source: MacPattern, destination: MacPattern, to: Port) -> Route {
    Route { source, destination, from: RouteSource::Any, to }
}

fn frame(source: MacAddr, destination: MacAddr) -> FrameHeader {
    FrameHeader { destination, source, vlan: None, ethertype: 0x0800, header_bytes: 14 }
}

fn verdict(network: &Network, from: Port, source: MacAddr, destination: MacAddr) -> Verdict {
    network.explain(NOW, from, &frame(source, destination)).verdict
}

#[test]
fn names_the_part_of_every_route() {
    let mut network = network(true);
    for route in [
        route(Any, Exact(B), E1),
        route(Any, Any, I2),
        route(Exact(A), Any, E1),
        route(Any, Exact(B), I1),
        route(Any, Exact(B), E2),
        route(Exact(B), Any, E1),
        Route { from: RouteSource::AnyEdge, ..route(Any, Exact(B), I2) },
        route(Not(A), Not(B), E1),
    ] {
        network.add_route(route).unwrap();
    }
    let text = network.explain(NOW, I1, &frame(A, B)).to_string();
    let expected = "\
02:00:00:00:00:0a to 02:00:00:00:00:0b, from interface 1: to edge 1, by routes of rank 6
route 1 (any to 02:00:00:00:00:0b, from any port to edge 1) wins with rank 6
route 2 (any to any, from any port to interface 2) matches with rank 3, and rank 6 wins
route 3 (02:00:00:00:00:0a to any, from any port to edge 1) matches, but route 1 sends the copy to this port
route 4 (any to 02:00:00:00:00:0b, from any port to interface 1) matches, but the frame would return to its port or pass from edge to edge
route 5 (any to 02:00:00:00:00:0b, from any port to edge 2) matches, but its port is not in the network
route 6 (02:00:00:00:00:0b to any, from any port to edge 1) does not match: the source address differs
route 7 (any to 02:00:00:00:00:0b, from any edge to interface 2) does not match: the frame comes from another port
route 8 (not-02:00:00:00:00:0a to not-02:00:00:00:00:0b, from any port to edge 1) does not match: these patterns never match together";
    assert_eq!(text, expected);
}

#[test]
fn names_every_mismatch() {
    let mut network = network(false);
    for route in [route(Not(A), Any, E1), route(Any, Exact(A), E1), route(Any, Not(B), E1)] {
        network.add_route(route).unwrap();
    }
    let explanation = network.explain(NOW, I1, &frame(A, B));
    assert_eq!(explanation.verdict, Verdict::Dropped(DropReason::NoRoute));
    let texts: Vec<String> = explanation.routes.iter().map(|(.., outcome)| outcome.to_string()).collect();
    assert_eq!(
        texts,
        [
            "does not match: the source address is excluded",
            "does not match: the destination address differs",
            "does not match: the destination address is excluded",
        ]
    );
}

#[test]
fn names_the_ports_of_routes_in_order_and_once() {
    let mut network = network(false);
    for to in [E1, I2, E1] {
        network.add_route(route(Any, Any, to)).unwrap();
    }
    let Verdict::Routed { rank, ports } = verdict(&network, I1, A, B) else { panic!("a route matches") };
    assert_eq!((rank.number(), ports), (3, vec![I2, E1]));
    assert_eq!(verdict(&network, I1, A, B).to_string(), "to interface 2, edge 1, by routes of rank 3");
}

#[test]
fn explains_learned_and_flooded_frames() {
    let mut network = network(true);
    assert_eq!(verdict(&network, I1, A, B), Verdict::Flooded { ports: vec![I2, E1] });
    network.forward(NOW, E1, &frame(B, A));
    let learned = network.explain(Millis(40), I1, &frame(A, B)).verdict;
    assert_eq!(learned, Verdict::Learned { port: E1, age: Millis(40) });
    assert_eq!(learned.ports(), [E1]);
    assert_eq!(learned.to_string(), "to edge 1, where the destination was seen 40 ms ago; no route matches");
    assert_eq!(verdict(&network, E1, A, B), Verdict::Dropped(DropReason::SplitHorizon));
    let flooded = verdict(&network, E1, B, MacAddr::BROADCAST);
    assert_eq!(flooded.ports(), [I1, I2]);
    assert_eq!(
        flooded.to_string(),
        "flooded to interface 1, interface 2; no route matches, and the destination is a group or unknown"
    );
}

#[test]
fn explains_frames_that_are_dropped() {
    let mut network = network(true);
    let dropped = verdict(&network, E2, A, B);
    assert_eq!(dropped, Verdict::Dropped(DropReason::UnknownPort));
    assert_eq!(
        (dropped.ports(), dropped.to_string().as_str()),
        (&[][..], "dropped: the port that the frame came by is not in the network")
    );
    network.forward(NOW, I1, &frame(A, B));
    assert_eq!(verdict(&network, E1, A, B), Verdict::Dropped(DropReason::Loop));
    network.limit_sources(I1, &[A]);
    assert_eq!(verdict(&network, I1, B, A), Verdict::Dropped(DropReason::ForeignSource));
    network.add_route(route(Any, Exact(B), I1)).unwrap();
    assert_eq!(verdict(&network, I1, A, B), Verdict::Dropped(DropReason::SplitHorizon));
    network.add_route(route(Any, Exact(B), E2)).unwrap();
    assert_eq!(verdict(&network, I1, A, B), Verdict::Dropped(DropReason::PortGone));
    network.remove_port(I2);
    network.remove_port(E1);
    assert_eq!(verdict(&network, I1, A, MacAddr::BROADCAST), Verdict::Dropped(DropReason::SplitHorizon));
}

#[test]
fn changes_nothing() {
    let mut network = network(true);
    network.forward(NOW, I1, &frame(A, B));
    let counters = network.counters();
    network.explain(Millis(9_000), E1, &frame(A, B));
    assert_eq!(network.counters(), counters);
    assert_eq!(network.learned(NOW).collect::<Vec<_>>(), [(A.into(), I1, NOW)]);
    assert_eq!(network.forward(NOW, I2, &frame(B, A)), Decision::To(&[I1]));
}
