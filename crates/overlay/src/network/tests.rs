use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::ports::{EdgeId, InterfaceId};
use crate::route::{MacPattern, RouteSource};
use MacPattern::{Any, Exact, Not};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
const C: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xc]);
const I1: Port = Port::Interface(InterfaceId(1));
const I2: Port = Port::Interface(InterfaceId(2));
const E1: Port = Port::Edge(EdgeId(1));
const E2: Port = Port::Edge(EdgeId(2));

fn network(learning: bool) -> Network {
    let mut network = Network::new(NetworkOptions { learning, ..NetworkOptions::new([1, 2]) });
    assert!([E2, I1, I2, E1].into_iter().all(|port| network.add_port(port)));
    network
}

fn route(source: MacPattern, destination: MacPattern, to: Port) -> Route {
    Route { source, destination, from: RouteSource::Any, to }
}

fn send(network: &mut Network, from: Port, source: MacAddr, destination: MacAddr) -> Result<Vec<Port>, DropReason> {
    send_at(network, 0, from, source, destination)
}

fn send_at(
    network: &mut Network,
    now: u64,
    from: Port,
    source: MacAddr,
    destination: MacAddr,
) -> Result<Vec<Port>, DropReason> {
    let frame = FrameHeader { destination, source, vlan: None, ethertype: 0x0800, header_bytes: 14 };
    match network.forward(Millis(now), from, &frame) {
        Decision::To(ports) => Ok(ports.to_vec()),
        Decision::Drop(reason) => Err(reason),
    }
}

#[test]
fn floods_groups_and_unknown_stations_and_finds_known_ones() {
    let mut network = network(true);
    assert_eq!(send(&mut network, I1, A, MacAddr::BROADCAST), Ok(vec![I2, E1, E2]));
    assert_eq!(send(&mut network, E1, B, C), Ok(vec![I1, I2]));
    assert_eq!(send(&mut network, E1, B, A), Ok(vec![I1]));
    assert_eq!(send(&mut network, I1, A, B), Ok(vec![E1]));
    assert_eq!(send(&mut network, I2, A, A), Err(DropReason::SplitHorizon));
    let counters = network.counters();
    assert_eq!((counters.flooded, counters.learned, counters.routed, counters.copies), (2, 2, 0, 7));
    assert_eq!(counters.dropped(DropReason::SplitHorizon), 1);
    assert_eq!((counters.addresses.learned, counters.addresses.moved), (2, 1));
}

#[test]
fn a_learned_address_counts_at_once_for_a_cached_decision() {
    let mut network = network(true);
    assert_eq!(send(&mut network, I1, A, B), Ok(vec![I2, E1, E2]));
    send(&mut network, E1, B, A).unwrap();
    assert_eq!(send(&mut network, I1, A, B), Ok(vec![E1]));
    send(&mut network, E2, B, A).unwrap();
    assert_eq!(send(&mut network, I1, A, B), Ok(vec![E2]));
    assert_eq!(network.counters().cache_misses, 3, "one for each port and pair of addresses");
    assert_eq!(send_at(&mut network, 300_000, I1, A, B), Ok(vec![I2, E1, E2]));
}

#[test]
fn groups_and_the_zero_address_are_not_learned() {
    let mut network = network(true);
    for source in [MacAddr::BROADCAST, MacAddr([0; 6])] {
        send(&mut network, I1, source, B).unwrap();
    }
    assert_eq!(network.learned(Millis(0)).count(), 0);
    assert_eq!(send(&mut network, I2, A, MacAddr([0; 6])), Ok(vec![I1, E1, E2]));
}

#[test]
fn without_learning_only_routes_forward() {
    let mut network = network(false);
    assert_eq!(send(&mut network, I1, A, B), Err(DropReason::NoRoute));
    network.add_route(route(Any, Exact(B), E1)).unwrap();
    assert_eq!(send(&mut network, I1, A, B), Ok(vec![E1]));
    assert_eq!(network.learned(Millis(0)).count(), 0);
    assert_eq!(send(&mut network, E1, A, B), Err(DropReason::SplitHorizon));
    assert_eq!(network.counters().routed, 1);
    assert_eq!(network.counters().dropped(DropReason::NoRoute), 1);
}

#[test]
fn each_port_of_the_winning_routes_gets_one_copy() {
    let mut network = network(false);
    for to in [E2, I1, E1, E2, I2] {
        network.add_route(route(Any, Exact(B), to)).unwrap();
    }
    assert_eq!(send(&mut network, I1, A, B), Ok(vec![I2, E1, E2]));
    assert_eq!(send(&mut network, E1, A, B), Ok(vec![I1, I2]));
    assert_eq!(network.counters().copies, 5);
}

#[test]
fn refuses_frames_from_ports_that_are_not_there() {
    let mut network = network(true);
    let absent = Port::Interface(InterfaceId(9));
    assert_eq!(send(&mut network, absent, A, B), Err(DropReason::UnknownPort));
    assert_eq!(network.counters().dropped(DropReason::UnknownPort), 1);
    assert_eq!(network.learned(Millis(0)).count(), 0);
    send(&mut network, I1, A, B).unwrap();
    assert!(network.remove_port(I1) && !network.remove_port(I1));
    assert_eq!(send(&mut network, I1, A, B), Err(DropReason::UnknownPort));
    assert_eq!(network.learned(Millis(0)).count(), 0);
    assert!(network.add_port(I1) && !network.add_port(I1));
    assert_eq!(network.ports(), [I1, I2, E1, E2]);
}

#[test]
fn routes_to_a_port_that_goes_drop_until_it_returns() {
    let mut network = network(false);
    for to in [E1, I2] {
        network.add_route(route(Any, Any, to)).unwrap();
    }
    assert_eq!(send(&mut network, I1, A, B), Ok(vec![I2, E1]));
    assert_eq!(send(&mut network, I2, A, B), Ok(vec![E1]));
    assert_eq!(send(&mut network, E2, A, B), Ok(vec![I2]));
    network.remove_port(I2);
    assert_eq!(send(&mut network, I1, A, B), Ok(vec![E1]));
    assert_eq!(send(&mut network, E2, A, B), Err(DropReason::PortGone), "one port is gone, the other leads to an edge");
    network.remove_port(E1);
    assert_eq!(send(&mut network, I1, A, B), Err(DropReason::PortGone));
    assert_eq!(network.routes().count(), 2);
    network.add_port(I2);
    assert_eq!(send(&mut network, I1, A, B), Ok(vec![I2]));
}

#[test]
fn a_route_changes_only_the_decisions_that_it_affects() {
    let mut network = network(false);
    network.add_route(route(Any, Exact(B), E1)).unwrap();
    network.add_route(route(Exact(A), Exact(C), E1)).unwrap();
    let check = |network: &mut Network, to_b: Port, misses: u64| {
        let before = network.counters().cache_misses;
        assert_eq!(send(network, I1, A, B), Ok(vec![to_b]));
        assert_eq!(send(network, I1, A, C), Ok(vec![E1]));
        assert_eq!(network.counters().cache_misses - before, misses);
    };
    check(&mut network, E1, 2);
    check(&mut network, E1, 0);
    let lower = network.add_route(route(Any, Any, I2)).unwrap();
    let other = network.add_route(route(Exact(B), Any, I2)).unwrap();
    check(&mut network, E1, 0);
    let higher = network.add_route(route(Not(C), Exact(B), I2)).unwrap();
    check(&mut network, I2, 1);
    assert!(network.remove_route(lower).is_some() && network.remove_route(other).is_some());
    check(&mut network, I2, 0);
    assert_eq!(network.remove_route(higher), Some(route(Not(C), Exact(B), I2)));
    assert_eq!(network.remove_route(higher), None);
    check(&mut network, E1, 1);
    let before: Vec<_> = network.routes().map(|(_, route)| route).collect();
    network.change_routes(&before, &[route(Any, Any, E1)]).unwrap();
    check(&mut network, E1, 2);
}

#[test]
fn a_frame_without_other_ports_is_dropped() {
    let mut network = Network::new(NetworkOptions::new([1, 2]));
    network.add_port(I1);
    assert_eq!(send(&mut network, I1, A, MacAddr::BROADCAST), Err(DropReason::SplitHorizon));
}

#[test]
fn time_does_not_go_backwards() {
    let mut network = network(true);
    send_at(&mut network, 10_000, I1, A, B).unwrap();
    assert_eq!(send_at(&mut network, 0, E1, A, B), Err(DropReason::Loop));
    assert_eq!(network.counters().dropped(DropReason::Loop), 1);
    assert_eq!(network.take_report(), Some(Report::Loop { mac: A, interface: I1, edge: E1 }));
    assert_eq!(network.take_report(), None);
    assert_eq!(network.learned(Millis(0)).collect::<Vec<_>>(), [(A.into(), I1, Millis(0))]);
    assert_eq!(network.learned(Millis(10_005)).collect::<Vec<_>>(), [(A.into(), I1, Millis(5))]);
    send_at(&mut network, 0, I2, B, A).unwrap();
    assert_eq!(send_at(&mut network, 309_999, I1, A, B), Ok(vec![I2]), "the frame of B counts as one at 10 s");
}

#[test]
fn an_interface_with_a_limit_sends_from_its_addresses_only() {
    let mut network = network(true);
    network.limit_sources(I1, &[A, C]);
    send(&mut network, I2, B, A).unwrap();
    for source in [B, MacAddr::BROADCAST, MacAddr([0; 6])] {
        assert_eq!(send(&mut network, I1, source, C), Err(DropReason::ForeignSource));
    }
    assert_eq!(network.learned(Millis(0)).count(), 1, "such frames move no address");
    assert_eq!(network.counters().cache_misses, 1, "and displace no decision");
    assert_eq!(send(&mut network, I1, A, B), Ok(vec![I2]));
    assert_eq!(send(&mut network, I1, C, B), Ok(vec![I2]));
    assert_eq!(send(&mut network, E1, C, A), Err(DropReason::Loop), "only the frames of that port are limited");
    assert_eq!(network.take_report(), Some(Report::ForeignSource { mac: B, interface: I1 }));
    assert!(matches!(network.take_report(), Some(Report::Loop { .. })), "one report for an interface and interval");
    assert_eq!(send_at(&mut network, 10_000, I1, B, C), Err(DropReason::ForeignSource));
    assert_eq!(network.take_report(), Some(Report::ForeignSource { mac: B, interface: I1 }));
    network.remove_port(I1);
    network.add_port(I1);
    assert!(send_at(&mut network, 10_000, I1, B, A).is_ok(), "a port that is gone has no limit");
}

#[test]
fn one_address_in_two_vlans_is_two_stations() {
    let mut network = network(true);
    let frame = |destination, source, vlan| FrameHeader { vlan, ..FrameHeader::untagged(destination, source) };
    let mut forward = |from, frame: &FrameHeader| match network.forward(Millis(0), from, frame) {
        Decision::To(ports) => Ok(ports.to_vec()),
        Decision::Drop(reason) => Err(reason),
    };
    for _ in 0..80 {
        assert_eq!(forward(I1, &frame(MacAddr::BROADCAST, A, Some(5))), Ok(vec![I2, E1, E2]));
        assert_eq!(forward(I2, &frame(MacAddr::BROADCAST, A, Some(6))), Ok(vec![I1, E1, E2]));
    }
    assert_eq!(forward(E1, &frame(A, B, Some(5))), Ok(vec![I1]));
    assert_eq!(forward(E1, &frame(A, B, Some(6))), Ok(vec![I2]));
    assert_eq!(forward(E1, &frame(A, B, None)), Ok(vec![I1, I2]), "it is not known outside of the VLANs");
    assert_eq!(network.counters().addresses.moved, 0);
}

#[test]
fn a_beacon_reaches_all_ports_unless_a_bridge_may_be_behind_its_port() {
    let mut network = network(true);
    network.limit_sources(I1, &[A]);
    let mut flooded = |from, source| {
        let header = FrameHeader::untagged(MacAddr::BROADCAST, source);
        let decisions =
            (0..1_000).map(|_| match network.forward_unless_circulating(Millis(0), from, &header, &[7; 60]) {
                Decision::To(ports) => ports.len(),
                Decision::Drop(_) => 0,
            });
        decisions.filter(|copies| *copies == 3).count()
    };
    assert_eq!((flooded(I1, A), flooded(I2, B)), (1_000, REPEATS_MAX as usize));
}

#[test]
fn without_protection_each_frame_of_a_loop_is_followed() {
    let options = NetworkOptions { loop_protection: false, ..NetworkOptions::new([1, 2]) };
    let mut network = Network::new(options);
    assert!([I1, I2, E1].into_iter().all(|port| network.add_port(port)));
    for _ in 0..200 {
        for from in [I1, I2, E1] {
            let header = FrameHeader::untagged(MacAddr::BROADCAST, A);
            let decision = network.forward_unless_circulating(Millis(0), from, &header, &[7; 60]);
            assert!(matches!(decision, Decision::To(_)), "{decision:?}");
            assert_eq!(network.explain(Millis(0), E1, &header).verdict.ports(), [I1, I2]);
        }
    }
    assert_eq!(network.take_report(), None);
}

#[test]
fn a_change_of_routes_keeps_the_decisions_about_other_destinations() {
    let mut network = network(true);
    let mac = |number: u16| {
        let [high, low] = number.to_be_bytes();
        MacAddr([2, 1, 0, 0, high, low])
    };
    let routes: Vec<_> = (0..1_000).map(|number| route(Any, Exact(mac(number)), E1)).collect();
    network.change_routes(&[], &routes).unwrap();
    let misses = |network: &mut Network| {
        let before = network.counters().cache_misses;
        (0..1_000).for_each(|number| _ = send(network, I1, A, mac(number)).unwrap());
        network.counters().cache_misses - before
    };
    assert_eq!((misses(&mut network), misses(&mut network)), (1_000, 0));
    network.change_routes(&[routes[7]], &[route(Any, Exact(mac(7)), E2)]).unwrap();
    assert_eq!(misses(&mut network), 1);
    assert_eq!(send(&mut network, I1, A, mac(7)), Ok(vec![E2]));
    network.change_routes(&routes[8..100], &[]).unwrap();
    assert_eq!(misses(&mut network), 1_000, "many routes change faster with an empty cache");
    assert_eq!(network.routes().count(), 908);
}
