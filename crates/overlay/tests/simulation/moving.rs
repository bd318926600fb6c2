//! Learning networks: a station moves to another host, and bridges of users make loops.

use std::collections::VecDeque;

use isthmus_overlay::{
    Decision, DropReason, EdgeId, InterfaceId, MacAddr, Millis, Network, NetworkOptions, Port, Report,
};

use crate::{Host, header};

const MOVER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const I0: Port = Port::Interface(InterfaceId(0));
const I1: Port = Port::Interface(InterfaceId(1));

fn station(host: Host) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, host as u8])
}

/// Hosts in a full mesh, each with two interfaces. Edges have the numbers of the hosts that they lead to.
struct Mesh(Vec<Network>);

impl Mesh {
    fn new(hosts: Host) -> Self {
        let host = |host: Host| {
            let mut network = Network::new(NetworkOptions::new([3, 4]));
            let edges = (0..hosts).filter(|other| *other != host).map(|other| Port::Edge(EdgeId(other)));
            assert!([I0, I1].into_iter().chain(edges).all(|port| network.add_port(port)));
            network
        };
        Self((0..hosts).map(host).collect())
    }

    /// Sends a frame into an interface of a host. Returns the interfaces that deliver it.
    fn send(&mut self, now: u64, host: Host, from: Port, source: MacAddr, destination: MacAddr) -> Vec<(Host, Port)> {
        let mut delivered = vec![];
        let mut arriving = VecDeque::from([(host, from)]);
        while let Some((host, from)) = arriving.pop_front() {
            let network = &mut self.0[usize::from(host)];
            let Decision::To(ports) = network.forward(Millis(now), from, &header(source, destination)) else {
                continue;
            };
            for port in ports {
                match port {
                    Port::Interface(_) => delivered.push((host, *port)),
                    Port::Edge(EdgeId(other)) => arriving.push_back((*other, Port::Edge(EdgeId(host)))),
                }
            }
        }
        delivered.sort_unstable();
        delivered
    }
}

#[test]
fn a_station_that_moves_and_announces_itself_once_is_reached_within_a_second() {
    let mut mesh = Mesh::new(8);
    let mut now = 0;
    for round in 0..20_u16 {
        let (old, new) = (round % 8, (round + 1 + round % 3) % 8);
        mesh.send(now, old, I0, MOVER, MacAddr::BROADCAST);
        let left = now;
        for host in 0..8 {
            mesh.send(now, host, I1, station(host), MacAddr::BROADCAST);
            let reached = mesh.send(now, host, I1, station(host), MOVER);
            assert_eq!(reached, [(old, I0)], "before it moves, from host {host}");
        }
        now += 200 + u64::from(round) * 40;
        mesh.send(now, new, I0, MOVER, MacAddr::BROADCAST);
        for host in (0..8).filter(|host| *host != old) {
            assert_eq!(mesh.send(now, host, I1, station(host), MOVER), [(new, I0)], "at once, from host {host}");
        }
        now = left + 1_000;
        for host in 0..8 {
            assert_eq!(mesh.send(now, host, I1, station(host), MOVER), [(new, I0)], "after a second, from host {host}");
        }
        // The station stays silent at its new place for longer than a moved address may be taken for a loop.
        now += 1_500;
        assert_eq!(mesh.send(now, old, I1, station(old), MOVER), [(new, I0)]);
        now += 10_000;
    }
    assert!(mesh.0.iter().all(|network| network.counters().dropped(DropReason::Flapping) == 0));
}

#[test]
fn a_loop_through_a_network_that_connects_two_hosts_is_cut_and_reported() {
    let mut mesh = Mesh::new(3);
    let mut copies = 0;
    for step in 0..200 {
        let now = step * 10;
        // Whatever leaves interface 1 of host 0 or 1 enters that of the other one: a cable connects the two.
        let mut circulating = VecDeque::from([(0, I0)]);
        while let Some((host, from)) = circulating.pop_front() {
            for (host, port) in mesh.send(now, host, from, MOVER, MacAddr::BROADCAST) {
                copies += 1;
                if port == I1 && host < 2 {
                    circulating.push_back((1 - host, I1));
                }
            }
        }
    }
    assert!(copies < 200 * 12, "{copies} copies of 200 frames");
    let reports: Vec<_> = std::iter::from_fn(|| mesh.0[0].take_report()).collect();
    assert!(!reports.is_empty(), "the host of the station reports it");
    assert!(
        reports
            .iter()
            .all(|report| matches!(report, Report::Loop { mac, .. } | Report::Flapping { mac, .. } if *mac == MOVER))
    );
}

#[test]
fn a_bridge_of_two_interfaces_of_one_host_is_cut_and_reported() {
    let mut mesh = Mesh::new(2);
    let i2 = Port::Interface(InterfaceId(2));
    mesh.0[0].add_port(i2);
    let mut rounds = 0;
    let mut circulating: VecDeque<Port> = VecDeque::new();
    for now in 0..10_000 {
        if now % 10 == 0 {
            circulating.push_back(I0);
        }
        // The bridge takes a millisecond for each frame.
        for from in std::mem::take(&mut circulating) {
            rounds += 1;
            let delivered = mesh.send(now, 0, from, MOVER, MacAddr::BROADCAST);
            let returning = delivered.into_iter().filter(|(host, _)| *host == 0).filter_map(|(_, port)| match port {
                I1 => Some(i2),
                port if port == i2 => Some(I1),
                _ => None,
            });
            circulating.extend(returning);
            assert!(circulating.len() < 64, "a storm at {now} ms");
        }
    }
    // The station sent a thousand frames. About nine in each second pass until the address flaps.
    assert!(rounds < 1_300, "{rounds} frames came by the interfaces");
    let reports = std::iter::from_fn(|| mesh.0[0].take_report()).count();
    assert_eq!(reports, 1, "once in ten seconds");
}
