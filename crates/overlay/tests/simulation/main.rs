//! Virtual time: a thousand hosts in a full mesh, with frames on their way while routes change.
//!
//! ```text
//!   send ──► Network of the sender ──► copy by an edge, delayed at random ──► Network of the receiver ──► interface
//!                    ▲                                                                ▲
//!                    └──── a station moves: each host changes its routes at another time ────┘
//! ```
//!
//! Two networks share the hosts and the addresses of all stations, but not the places of the stations.
#![allow(clippy::unwrap_used, reason = "tests")]

mod moving;
mod owners;
mod random;

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use isthmus_overlay::{
    Decision, EdgeId, FrameHeader, InterfaceId, MacAddr, MacPattern, Millis, Network, NetworkOptions, Port, Route,
    RouteId, RouteSource,
};
use owners::Owners;
use random::Random;

const HOSTS: u64 = 1_000;
const NETWORKS: usize = 2;
const STATIONS: u64 = 150;
/// Group addresses with several places each.
const GROUPS: u64 = 10;
const FRAMES: u64 = 20_000;
const MOVES: u64 = 200;
/// The time in which frames are sent and stations move.
const DURATION_MS: u64 = 10_000;
const FLIGHT_MS_MAX: u64 = 50;
/// The time after which all hosts know that a station has moved.
const SPREAD_MS: u64 = 30;
const INTERFACE: Port = Port::Interface(InterfaceId(0));

/// The place of a host in the mesh. Its edges have the numbers of the hosts that they lead to.
type Host = u16;

/// A station or a group, by number.
type Address = u64;

fn mac(address: Address) -> MacAddr {
    let [.., high, low] = address.to_be_bytes();
    MacAddr([if address < STATIONS { 2 } else { 3 }, 0, 0, 0, high, low])
}

fn header(source: MacAddr, destination: MacAddr) -> FrameHeader {
    FrameHeader { destination, source, vlan: None, ethertype: 0x0800, header_bytes: 14 }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The owners of an address change. Each host changes its routes within [`SPREAD_MS`].
    Move {
        network: usize,
        address: Address,
    },
    Routes {
        network: usize,
        host: Host,
        address: Address,
        owners: Vec<Host>,
    },
    Send {
        network: usize,
        from: Host,
        frame: u64,
        destination: Address,
    },
    Arrive {
        network: usize,
        from: Host,
        at: Host,
        frame: u64,
        destination: Address,
    },
}

/// A host in one network.
struct Member {
    network: Network,
    routes: BTreeMap<(Address, Host), RouteId>,
}

struct Frame {
    network: usize,
    sent: u64,
    from: Host,
    destination: Address,
    /// The hosts that delivered the frame, with the time.
    delivered: BTreeMap<Host, u64>,
}

struct Simulation {
    random: Random,
    events: BinaryHeap<std::cmp::Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    members: [Vec<Member>; NETWORKS],
    owners: [BTreeMap<Address, Owners>; NETWORKS],
    frames: BTreeMap<u64, Frame>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let member = |host| {
            let options = NetworkOptions { learning: false, cache_entries: 64, ..NetworkOptions::new([seed, 1]) };
            let mut network = Network::new(options);
            network.add_port(INTERFACE);
            for other in (0..HOSTS as Host).filter(|other| *other != host) {
                network.add_port(Port::Edge(EdgeId(other)));
            }
            Member { network, routes: BTreeMap::new() }
        };
        let mut simulation = Self {
            random: Random::new(seed),
            events: BinaryHeap::new(),
            scheduled: 0,
            members: std::array::from_fn(|_| (0..HOSTS as Host).map(member).collect()),
            owners: Default::default(),
            frames: BTreeMap::new(),
        };
        for network in 0..NETWORKS {
            for address in 0..STATIONS + GROUPS {
                let mut hosts = vec![];
                while hosts.len() < if address < STATIONS { 1 } else { 3 } {
                    hosts = simulation.other_owners(address, &hosts);
                }
                for host in 0..HOSTS as Host {
                    simulation.set_routes(network, host, address, &hosts);
                }
                simulation.owners[network].insert(address, Owners::new(hosts));
            }
        }
        simulation
    }

    /// Moves an address: a station to another host; a group gets one more or one less host.
    fn other_owners(&mut self, address: Address, now: &[Host]) -> Vec<Host> {
        let host = self.random.below(HOSTS) as Host;
        match now {
            [.., _] if address < STATIONS => vec![host],
            [kept @ .., _] if kept.len() > 3 || (!kept.is_empty() && self.random.below(2) == 0) => kept.to_vec(),
            hosts => hosts.iter().copied().chain([host]).collect::<BTreeSet<_>>().into_iter().collect(),
        }
    }

    /// One of five addresses that move often: stations and groups.
    const fn busy_address(&mut self) -> Address {
        STATIONS - 3 + self.random.below(5)
    }

    /// A sender and an address. Half of the frames go from some senders to the addresses that move, so that caches know them.
    const fn sender_and_address(&mut self) -> (Host, Address) {
        match self.random.below(2) {
            0 => (self.random.below(20) as Host, self.busy_address()),
            _ => (self.random.below(HOSTS) as Host, self.random.below(STATIONS + GROUPS)),
        }
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(std::cmp::Reverse((at, self.scheduled, event)));
    }

    /// Adds and removes routes of a host so that those for an address lead to these hosts.
    fn set_routes(&mut self, network: usize, host: Host, address: Address, owners: &[Host]) {
        let member = &mut self.members[network][usize::from(host)];
        for owner in owners {
            member.routes.entry((address, *owner)).or_insert_with(|| {
                let to = if *owner == host { INTERFACE } else { Port::Edge(EdgeId(*owner)) };
                let (source, destination) = (MacPattern::Any, MacPattern::Exact(mac(address)));
                member.network.add_route(Route { source, destination, from: RouteSource::Any, to }).unwrap()
            });
        }
        let range = (address, 0)..=(address, Host::MAX);
        let old = member.routes.range(range).filter(|((_, owner), _)| !owners.contains(owner));
        for (key, id) in old.map(|(key, id)| (*key, *id)).collect::<Vec<_>>() {
            member.network.remove_route(id).unwrap();
            member.routes.remove(&key);
        }
    }

    fn run(&mut self) {
        for frame in 0..FRAMES {
            let (at, network) = (self.random.below(DURATION_MS), self.random.below(NETWORKS as u64) as usize);
            let (from, destination) = self.sender_and_address();
            self.schedule(at, Event::Send { network, from, frame, destination });
        }
        for _ in 0..MOVES {
            let (at, network) = (self.random.below(DURATION_MS), self.random.below(NETWORKS as u64) as usize);
            let address = self.busy_address();
            self.schedule(at, Event::Move { network, address });
        }
        while let Some(std::cmp::Reverse((now, _, event))) = self.events.pop() {
            self.handle(now, event);
        }
    }

    fn handle(&mut self, now: u64, event: Event) {
        match event {
            Event::Move { network, address } => {
                let before = self.owners[network][&address].latest().to_vec();
                let owners = self.other_owners(address, &before);
                if !self.owners[network].get_mut(&address).unwrap().change(now, now + SPREAD_MS, &owners) {
                    return;
                }
                for host in 0..HOSTS as Host {
                    let at = now + self.random.below(SPREAD_MS + 1);
                    self.schedule(at, Event::Routes { network, host, address, owners: owners.clone() });
                }
            }
            Event::Routes { network, host, address, owners } => self.set_routes(network, host, address, &owners),
            Event::Send { network, from, frame, destination } => {
                let record = Frame { network, sent: now, from, destination, delivered: BTreeMap::new() };
                self.frames.insert(frame, record);
                self.forward(now, network, (from, INTERFACE), frame, destination);
            }
            Event::Arrive { network, from, at, frame, destination } => {
                self.forward(now, network, (at, Port::Edge(EdgeId(from))), frame, destination);
            }
        }
    }

    /// Has a host forward a frame that came by a port, and carries the copies.
    fn forward(&mut self, now: u64, network: usize, (host, port): (Host, Port), frame: u64, destination: Address) {
        let member = &mut self.members[network][usize::from(host)];
        let source = MacAddr([2, 1, 0, 0, 0, 0]);
        let ports = match member.network.forward(Millis(now), port, &header(source, mac(destination))) {
            Decision::To(ports) => ports.to_vec(),
            Decision::Drop(_) => vec![],
        };
        for port in ports {
            match port {
                Port::Interface(_) => {
                    let earlier = self.frames.get_mut(&frame).unwrap().delivered.insert(host, now);
                    assert_eq!(earlier, None, "frame {frame} came twice to host {host}");
                }
                Port::Edge(EdgeId(at)) => {
                    let arrives = now + 1 + self.random.below(FLIGHT_MS_MAX);
                    self.schedule(arrives, Event::Arrive { network, from: host, at, frame, destination });
                }
            }
        }
    }
}

#[test]
fn every_frame_reaches_the_places_that_the_tables_name_while_it_is_on_its_way() {
    let mut simulation = Simulation::new(42);
    simulation.run();
    let (mut settled, mut deliveries) = (0, 0);
    for (number, frame) in &simulation.frames {
        let owners = &simulation.owners[frame.network][&frame.destination];
        for (host, arrived) in &frame.delivered {
            let named = owners.named(frame.sent, *arrived);
            assert!(
                named.iter().any(|hosts| hosts.contains(host)),
                "frame {number} at host {host}, which no table named"
            );
            assert_ne!(*host, frame.from, "frame {number} returned to its sender");
        }
        if let [hosts] = owners.named(frame.sent, frame.sent + FLIGHT_MS_MAX)[..] {
            let expected = hosts.iter().filter(|host| **host != frame.from);
            assert!(frame.delivered.keys().eq(expected), "frame {number} for {hosts:?} reached {:?}", frame.delivered);
            settled += 1;
        }
        deliveries += frame.delivered.len();
    }
    assert_eq!(simulation.frames.len() as u64, FRAMES);
    assert!(settled > FRAMES / 2 && settled < FRAMES - 500, "{settled} frames met no change, the others did");
    assert!(deliveries > FRAMES as usize, "groups have several receivers");
}
