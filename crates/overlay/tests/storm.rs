//! No table makes a storm: whatever the routes of some hosts are, the copies of one frame are bounded.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeSet, VecDeque};

use isthmus_overlay::vnet::{PortName, RouteLine};
use isthmus_overlay::{
    Decision, EdgeId, FrameHeader, InterfaceId, MacAddr, MacPattern, Millis, Network, NetworkOptions, Port, Route,
    RouteSource,
};
use proptest::prelude::*;

const HOSTS: u16 = 4;
const INTERFACES: u16 = 3;

fn port() -> impl Strategy<Value = Port> {
    prop_oneof![
        (0..INTERFACES).prop_map(|id| Port::Interface(InterfaceId(id))),
        (0..HOSTS).prop_map(|id| Port::Edge(EdgeId(id))),
    ]
}

fn mac() -> impl Strategy<Value = MacAddr> {
    prop_oneof![3 => (0..3_u8).prop_map(|number| MacAddr([2, 0, 0, 0, 0, number])), 1 => Just(MacAddr::BROADCAST)]
}

fn pattern() -> impl Strategy<Value = MacPattern> {
    prop_oneof![
        3 => Just(MacPattern::Any),
        1 => Just(MacPattern::None),
        1 => mac().prop_map(MacPattern::Not),
        2 => mac().prop_map(MacPattern::Exact),
    ]
}

fn route() -> impl Strategy<Value = Route> {
    let source = prop_oneof![3 => Just(RouteSource::Any), 1 => Just(RouteSource::AnyEdge), 1 => port().prop_map(RouteSource::Port)];
    (pattern(), pattern(), source, port()).prop_map(|(source, destination, from, to)| Route {
        source,
        destination,
        from,
        to,
    })
}

/// Makes hosts in a full mesh. Edges have the numbers of the hosts that they lead to.
fn mesh(learning: bool, tables: Vec<Vec<Route>>) -> Vec<Network> {
    let host = |(host, table): (usize, Vec<Route>)| {
        let mut network = Network::new(NetworkOptions { learning, cache_entries: 64, ..NetworkOptions::new([1, 2]) });
        for id in 0..INTERFACES {
            network.add_port(Port::Interface(InterfaceId(id)));
        }
        for id in (0..HOSTS).filter(|id| usize::from(*id) != host) {
            network.add_port(Port::Edge(EdgeId(id)));
        }
        network.change_routes(&[], &table).unwrap();
        network
    };
    tables.into_iter().enumerate().map(host).collect()
}

/// Sends a frame into an interface of a host and carries its copies until none is left.
fn send(hosts: &mut [Network], now: u64, from: (u16, u16), frame: &FrameHeader) {
    let mut arriving = VecDeque::from([(from.0, Port::Interface(InterfaceId(from.1)))]);
    let mut delivered = BTreeSet::new();
    let mut between_hosts = 0;
    while let Some((host, from)) = arriving.pop_front() {
        let Decision::To(ports) = hosts[usize::from(host)].forward(Millis(now), from, frame) else { continue };
        assert!(!ports.is_empty());
        for port in ports {
            match port {
                Port::Interface(_) => assert!(delivered.insert((host, *port)), "{port} of host {host} got two copies"),
                Port::Edge(EdgeId(other)) => {
                    between_hosts += 1;
                    assert!(between_hosts < HOSTS, "more copies than other hosts");
                    arriving.push_back((*other, Port::Edge(EdgeId(host))));
                }
            }
        }
    }
    assert!(!delivered.contains(&(from.0, Port::Interface(InterfaceId(from.1)))), "the frame came back");
    assert!(delivered.len() < usize::from(HOSTS * INTERFACES));
}

/// A ring in VNET's words: each host sends every frame to the next one, and what came from there to its interface as well.
#[test]
fn a_ring_of_hosts_ends() {
    let port_of = |name: &PortName| match name {
        PortName::Edge(id) => Some(Port::Edge(EdgeId(id.parse().ok()?))),
        PortName::Interface(id) => Some(Port::Interface(InterfaceId(id.parse().ok()?))),
    };
    let table = |host: u16| {
        let next = (host + 1) % HOSTS;
        let lines = [
            format!("any any edge {next} any"),
            "any any interface 0 any".to_owned(),
            format!("any none edge {next} any"),
        ];
        lines.map(|line| line.parse::<RouteLine>().unwrap().resolve(port_of).unwrap()).to_vec()
    };
    for learning in [false, true] {
        let mut hosts = mesh(learning, (0..HOSTS).map(table).collect());
        for (now, destination) in [MacAddr::BROADCAST, MacAddr([2, 0, 0, 0, 0, 9])].into_iter().enumerate() {
            send(&mut hosts, now as u64, (0, 1), &FrameHeader::untagged(destination, MacAddr([2, 0, 0, 0, 0, 1])));
        }
    }
}

fn config() -> ProptestConfig {
    let cases = if std::env::var_os("ISTHMUS_TEST_LONG").is_some() { 100_000 } else { 1_000 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_frame_has_at_most_one_copy_for_each_host_and_interface(
        learning: bool,
        tables in prop::collection::vec(prop::collection::vec(route(), 0..12), usize::from(HOSTS)),
        frames in prop::collection::vec((0..HOSTS, 0..INTERFACES, mac(), mac(), 0..2_000_u64), 1..40),
    ) {
        let mut hosts = mesh(learning, tables);
        let mut now = 0;
        for (host, interface, source, destination, after_ms) in frames {
            now += after_ms;
            let frame = FrameHeader { destination, source, vlan: None, ethertype: 0x0800, header_bytes: 14 };
            send(&mut hosts, now, (host, interface), &frame);
        }
    }
}
