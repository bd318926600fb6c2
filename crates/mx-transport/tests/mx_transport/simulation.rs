//! Hosts on a network, and what holds after every step.

use crate::content::{Fate, Tag};
use crate::model_peer::Memory;
use crate::node::{KEY, NetworkConfig, Node, PER_HOST, address, nic};
use crate::wire::{Frame, NetConditions, Wire};
use isthmus_mx::net::{Time, nack_for};
use isthmus_mx::wire::{self, EndpointNumber, Header, Nack, Packet, PeerIndex, SessionId};
use isthmus_mx_transport::TransportLevels;
use std::collections::BTreeMap;

/// A loss that is meant: a packet to a host gets there only if this says so.
pub(crate) type DropFilter = Box<dyn FnMut(usize, &Packet<&[u8]>) -> bool>;

/// All of it.
pub(crate) struct Simulation {
    pub(crate) now: Time,
    pub(crate) config: NetworkConfig,
    pub(crate) nodes: Vec<Option<Node>>,
    pub(crate) wire: Wire,
    pub(crate) ids: u64,
    pub(crate) drop_filter: Option<DropFilter>,
    /// Announced messages, by the session of the sender and the name of the region.
    announced: BTreeMap<(SessionId, u8, u8), u64>,
    seed: u64,
    sessions: u32,
    room_at: Vec<Option<Time>>,
    /// The most that any transport has held, and kept of announced messages.
    pub(crate) held_most: usize,
    pub(crate) kept_most: usize,
}

impl Simulation {
    /// `nodes` endpoints, two on a host.
    pub(crate) fn new(nodes: usize, config: NetworkConfig, conditions: NetConditions, seed: u64) -> Self {
        let hosts = nodes.div_ceil(PER_HOST);
        Self {
            now: Time::from_us(1000),
            config,
            nodes: (0..nodes).map(|number| Some(Node::new(number, 1 + number as u32, &config, seed))).collect(),
            wire: Wire::new(hosts, conditions, seed),
            ids: 0,
            drop_filter: None,
            announced: BTreeMap::new(),
            seed,
            sessions: 1000,
            room_at: vec![None; hosts],
            held_most: 0,
            kept_most: 0,
        }
    }

    pub(crate) fn node(&mut self, number: usize) -> &mut Node {
        self.nodes[number].as_mut().unwrap()
    }

    pub(crate) fn levels(&mut self, number: usize) -> TransportLevels {
        self.node(number).transport.levels()
    }

    /// Whether there is a node that could do something.
    pub(crate) fn is_open(&self, number: usize) -> bool {
        self.nodes[number].as_ref().is_some_and(|node| !node.library.closed)
    }

    /// Everybody connects to everybody on another host.
    pub(crate) fn connect_all(&mut self) {
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                if from / PER_HOST != to / PER_HOST {
                    self.connect(from, to, KEY);
                }
            }
        }
        self.run_until_quiet(60_000_000);
    }

    pub(crate) fn connect(&mut self, from: usize, to: usize, key: u32) -> u64 {
        let now = self.now;
        self.node(from).connect(now, address(to), key)
    }

    /// Sends a message between two nodes that know each other.
    pub(crate) fn send(&mut self, from: usize, to: usize, len: u32, sync: bool, memory: Memory) -> u64 {
        self.ids += 1;
        let (id, now) = (self.ids, self.now);
        let node = self.node(from);
        assert!(node.library.send(address(to), id, len, sync, memory), "{from} does not know {to}");
        node.library.settle(now);
        id
    }

    /// One that its receiver has room for and wants.
    pub(crate) fn send_whole(&mut self, from: usize, to: usize, len: u32, memory: Memory) -> u64 {
        while Fate::of(self.ids + 1, len) != Fate::Completed(len) {
            self.ids += 1;
        }
        self.send(from, to, len, false, memory)
    }

    /// A node stops without a word and comes back as another, or does not.
    pub(crate) fn replace(&mut self, number: usize, again: bool) -> Node {
        self.sessions += 1;
        let node = again.then(|| Node::new(number, self.sessions, &self.config, self.seed));
        std::mem::replace(&mut self.nodes[number], node).unwrap()
    }

    /// A program stops computing.
    pub(crate) fn wake(&mut self, number: usize) {
        let now = self.now;
        let library = &mut self.node(number).library;
        (library.is_computing, library.wake) = (false, Some(now.after_us(1)));
    }

    /// A program ends. Its transport goes on until it is over.
    pub(crate) fn close(&mut self, number: usize) {
        let now = self.now;
        let node = self.node(number);
        node.library.closed = true;
        node.transport.close(now);
    }

    /// Goes to the next thing that happens, if that is not after `until`. False if nothing is left to happen before.
    pub(crate) fn step(&mut self, until: Time) -> bool {
        self.pump();
        let nodes = self.nodes.iter().flatten();
        let times = nodes.flat_map(|node| [node.transport.next_deadline(), node.library.wake].into_iter().flatten());
        let Some(next) = times.chain(self.room_at.iter().flatten().copied()).chain(self.wire.next_arrival()).min()
        else {
            return false;
        };
        if next > until {
            self.now = until.max(self.now);
            return false;
        }
        self.now = next.max(self.now);
        while let Some(frame) = self.wire.arrived(self.now) {
            self.receive(&frame);
        }
        let now = self.now;
        for slot in &mut self.nodes {
            let Some(node) = slot else { continue };
            node.transport.tick(now, &mut node.library);
            if node.library.wake.is_some_and(|at| at <= now) {
                node.library.poll(now, &mut node.transport);
            }
            node.library.settle(now);
            let counts = node.transport.levels();
            self.held_most = self.held_most.max(counts.held_bytes);
            self.kept_most = self.kept_most.max(counts.kept_bytes);
        }
        true
    }

    fn receive(&mut self, frame: &Frame) {
        let dialect = self.config.dialect;
        let (_, packet) = wire::parse(dialect, &frame.bytes).unwrap();
        if self.drop_filter.as_mut().is_some_and(|passes| !passes(frame.to, &packet)) {
            return;
        }
        let by_handle = |magic: u32| EndpointNumber(magic as u8 ^ 0x80);
        let endpoint = match &packet {
            Packet::PullReply(reply) => by_handle(reply.puller.magic),
            Packet::NackMcp(nack) => by_handle(nack.puller.magic),
            other => other.dst_endpoint().unwrap(),
        };
        let number = frame.to * PER_HOST + usize::from(endpoint.0) - 1;
        let Some(node) = self.nodes.get_mut(number).and_then(Option::as_mut) else {
            let Some(refused) = nack_for(&packet, Nack::EndpointClosed) else { return };
            let header =
                Header { dst: nic(frame.from), src: nic(frame.to), peer_index: PeerIndex::new(frame.to as u16) };
            let packet = refused.map(|_| Vec::new());
            let mut bytes = vec![0; packet.parts(dialect).frame()];
            wire::emit(dialect, &header, &packet, &mut bytes).unwrap();
            return self.wire.send(self.now, Frame { from: frame.to, to: frame.from, bytes });
        };
        let from = PeerIndex::new(frame.from as u16).unwrap();
        let _ = node.transport.receive(self.now, from, &packet, &mut node.library);
    }

    fn pump(&mut self) {
        let dialect = self.config.dialect;
        for host in 0..self.room_at.len() {
            self.room_at[host] = None;
            for number in host * PER_HOST..self.nodes.len().min((host + 1) * PER_HOST) {
                let Some(node) = &mut self.nodes[number] else { continue };
                self.room_at[host] = loop {
                    if let Err(later) = self.wire.room(host, self.now) {
                        break Some(later);
                    }
                    let Some((to, bytes)) = node.transmit(self.now, dialect) else { break None };
                    let (_, packet) = wire::parse(dialect, &bytes).unwrap();
                    check_notify(&mut self.announced, node, &packet);
                    self.wire.send(self.now, Frame { from: host, to, bytes });
                };
            }
        }
    }

    /// Lets time pass.
    pub(crate) fn run_until(&mut self, until: Time) {
        while self.step(until) {}
    }

    pub(crate) fn run_for(&mut self, us: u64) {
        self.run_until(self.now.after_us(us));
    }

    /// Lets time pass until nothing is left to do.
    pub(crate) fn run_until_quiet(&mut self, within_us: u64) {
        let until = self.now.after_us(within_us);
        while self.is_busy() {
            assert!(self.step(until), "{:?}: something never ends: {}", self.now, self.describe());
        }
    }

    /// Lets time pass until something is so.
    pub(crate) fn run_until_true(&mut self, within_us: u64, mut is_so: impl FnMut(&mut Self) -> bool) {
        let until = self.now.after_us(within_us);
        while !is_so(self) {
            assert!(self.step(until), "{:?}: it never happens: {}", self.now, self.describe());
        }
    }

    fn is_busy(&self) -> bool {
        self.nodes.iter().flatten().any(|node| {
            let remote_peers = node.transport.levels().remote_peers;
            let still = node.transport.levels() == TransportLevels { remote_peers, ..TransportLevels::default() };
            let waits = !node.library.closed && !node.library.is_idle();
            !still || waits || node.library.answers.len() < node.requests as usize
        })
    }

    fn describe(&self) -> String {
        let nodes = self.nodes.iter().flatten();
        nodes
            .map(|node| {
                format!(
                    "{} {:?} {:?}\n{:?}\n",
                    node.number,
                    node.transport.levels(),
                    node.library.peers,
                    node.transport
                )
            })
            .collect()
    }

    /// Checks that every message has arrived as far as its receiver wanted it, and that every sender knows the outcome.
    pub(crate) fn check_all_arrived(&self) {
        for node in self.nodes.iter().flatten() {
            assert_eq!(node.library.removed, [], "no peer was given up");
            let library = &node.library;
            assert!(library.failed.is_empty() && library.aborted.is_empty() && library.removed.is_empty());
            assert_eq!(library.over.len(), library.sent.len());
            for (id, (to, len)) in &library.sent {
                let to = usize::from(to.peer.number()) * PER_HOST + usize::from(to.endpoint.0) - 1;
                let there = &self.nodes[to].as_ref().unwrap().library.received;
                let (over, received) = (library.over[id], there.get(id).copied());
                let whole = [Some(*len), Some(Fate::of(*id, *len).bytes())];
                assert!(received.is_some() && whole.contains(&received), "message {id} to {to}: {received:?} of {len}");
                assert!(over.is_none() || over == received, "message {id}: {received:?} came, {over:?} is known");
            }
            let sent: usize = self
                .nodes
                .iter()
                .flatten()
                .map(|other| other.library.sent.values().filter(|(to, _)| *to == address(node.number)).count())
                .sum();
            assert_eq!(library.received.len(), sent, "nothing comes that was not sent");
        }
    }
}

/// Checks that the program has all bytes of a message when its transport notifies the sender.
fn check_notify(announced: &mut BTreeMap<(SessionId, u8, u8), u64>, node: &Node, packet: &Packet<&[u8]>) {
    match packet {
        Packet::Rndv(rndv) => {
            let name = (node.session, rndv.pulled_rdma_id, rndv.pulled_rdma_seqnum);
            announced.insert(name, Tag::parse(rndv.head.match_info).id);
        }
        Packet::Notify(notify) if notify.total_length > 0 => {
            let name = (notify.session, notify.pulled_rdma_id, notify.pulled_rdma_seqnum);
            let received = node.library.received.get(&announced[&name]).copied();
            assert_eq!(received, Some(notify.total_length), "message {} is not over", announced[&name]);
        }
        _ => {}
    }
}
