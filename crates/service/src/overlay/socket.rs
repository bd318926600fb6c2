//! Receives the datagrams of all edges of a socket, and finds the edge of each.

use super::command::{NewOverlaySocket, OverlayEdgeKind, OverlaySocketNumber};
use super::counters::{FrameLoss, OverlaySocketCounters, UnknownDatagram};
use super::network::OverlayNetwork;
use crate::counters::bump;
use isthmus_link::{EdgeMessage, EdgeSocket};
use isthmus_overlay::coalesce::Coalescer;
use isthmus_overlay::vxlan::{self, Vni};
use isthmus_overlay::{EdgeId, Millis, Port, fast};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// A socket of edges.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) number: OverlaySocketNumber,
    pub(super) kind: OverlayEdgeKind,
    pub(super) link: EdgeSocket,
    /// The edge that a datagram belongs to: by the sender, and by the number of the network (0 for bare frames).
    edges: HashMap<(IpAddr, Vni), (usize, EdgeId)>,
    /// The addresses of all edges.
    hosts: HashSet<IpAddr>,
    /// The bytes of the last batch.
    pub(super) batch_bytes: usize,
    /// True if a frame waits for room.
    pub(super) is_full: bool,
    /// True if the sleeper reports room.
    pub(super) is_room_watched: bool,
    /// True if the socket is to act as one without room: a loopback interface always has some.
    #[cfg(test)]
    pub(super) has_no_room: bool,
    /// True if the kernel's error ended the socket.
    pub(super) is_broken: bool,
    counters: Arc<OverlaySocketCounters>,
}

impl Socket {
    pub(super) fn new(new: NewOverlaySocket) -> Self {
        let NewOverlaySocket { number, kind, socket, counters } = new;
        Self {
            number,
            kind,
            link: socket,
            edges: HashMap::new(),
            hosts: HashSet::new(),
            batch_bytes: 0,
            is_full: false,
            is_room_watched: false,
            #[cfg(test)]
            has_no_room: false,
            is_broken: false,
            counters,
        }
    }

    /// The number by which datagrams name a network.
    fn key(&self, address: IpAddr, vni: Vni) -> (IpAddr, Vni) {
        let is_bare = self.kind == OverlayEdgeKind::Udp;
        (address.to_canonical(), if is_bare { Vni::MIN } else { vni })
    }

    pub(super) fn add_edge(&mut self, address: IpAddr, vni: Vni, network: usize, edge: EdgeId) {
        self.edges.insert(self.key(address, vni), (network, edge));
        self.note_hosts();
    }

    pub(super) fn remove_edge(&mut self, address: IpAddr, vni: Vni) {
        self.edges.remove(&self.key(address, vni));
        self.note_hosts();
    }

    /// Removes all edges of a network.
    pub(super) fn remove_network(&mut self, network: usize) {
        self.edges.retain(|_, (other, _)| *other != network);
        self.note_hosts();
    }

    /// Notes the addresses of the edges, for datagrams that belong to none.
    fn note_hosts(&mut self) {
        self.hosts = self.edges.keys().map(|(address, _)| *address).collect();
    }

    /// Receives a batch. Returns whether more may wait: the sleeper reports what comes after a batch that was not full.
    pub(super) fn receive(
        &mut self,
        now: Millis,
        networks: &mut [Option<OverlayNetwork>],
        coalescer: &mut Coalescer,
    ) -> bool {
        self.batch_bytes = 0;
        if self.is_broken {
            return false;
        }
        let count = match self.link.receive() {
            Ok(count) => count,
            Err(error) => {
                tracing::error!(%error, "a socket of overlay edges is given up");
                self.is_broken = true;
                return false;
            }
        };
        let mut batch = Batch { owner: None, frames: Vec::new() };
        let mut last = None; // Consecutive datagrams usually belong to one edge.
        for n in 0..count {
            let Some(message) = self.link.message(n) else {
                bump(&self.counters.invalid, 1);
                continue;
            };
            self.batch_bytes += message.bytes.len();
            let mut rest = message;
            while !rest.bytes.is_empty() {
                let run = self.take_run(&mut rest);
                bump(&self.counters.invalid, run.invalid);
                let Some(vni) = run.vni else { continue };
                let key = (message.from.ip(), vni);
                let owner = match last {
                    Some((known, owner)) if known == key => owner,
                    _ => self.edges.get(&(key.0.to_canonical(), vni)).copied(),
                };
                last = Some((key, owner));
                let network = owner.and_then(|(network, edge)| Some((networks.get_mut(network)?.as_mut()?, edge)));
                match (network, self.kind) {
                    (Some((network, edge)), OverlayEdgeKind::Fast) => deliver_whole(now, network, edge, &run),
                    (Some(_), kind) => {
                        if owner != batch.owner {
                            batch.deliver(now, networks, coalescer);
                            batch.owner = owner;
                        }
                        let skip = if kind == OverlayEdgeKind::Vxlan { vxlan::VXLAN_BYTES } else { 0 };
                        let datagrams = run.bytes.chunks(run.datagram_bytes);
                        batch.frames.extend(datagrams.map(|datagram| &datagram[skip.min(datagram.len())..]));
                    }
                    (None, _) => self.refuse(key, run.datagrams() as u64),
                }
            }
        }
        batch.deliver(now, networks, coalescer);
        self.link.has_more()
    }

    /// Counts datagrams that belong to no edge, and keeps the last sender for reports.
    fn refuse(&self, (from, vni): (IpAddr, Vni), datagrams: u64) {
        let from = from.to_canonical();
        let has_edge = self.hosts.contains(&from);
        let OverlaySocketCounters { unknown_senders, unknown_networks, last_unknown, .. } = &*self.counters;
        bump(if has_edge { unknown_networks } else { unknown_senders }, datagrams);
        if let Ok(mut last) = last_unknown.try_lock() {
            *last = Some(UnknownDatagram { from, vni, at: Instant::now() });
        }
    }

    /// Takes the first datagrams of a message that name one network.
    fn take_run<'a>(&self, message: &mut EdgeMessage<'a>) -> Run<'a> {
        let vni_of = |datagram: &[u8]| match self.kind {
            OverlayEdgeKind::Udp => Some(Vni::MIN),
            OverlayEdgeKind::Vxlan => vxlan::parse(datagram).ok().map(|(vni, _)| vni),
            OverlayEdgeKind::Fast => fast::vni_of(datagram),
        };
        let size = message.datagram_bytes;
        let mut datagrams = message.bytes.chunks(size);
        let vni = datagrams.next().and_then(vni_of);
        let count = 1 + datagrams.take_while(|datagram| vni_of(datagram) == vni).count();
        let (bytes, rest) = message.bytes.split_at(message.bytes.len().min(count * size));
        message.bytes = rest;
        Run { vni, bytes, datagram_bytes: size, invalid: if vni.is_none() { count as u64 } else { 0 } }
    }
}

/// Datagrams of one sender for one network.
#[derive(Clone, Copy, Debug)]
struct Run<'a> {
    /// None if the datagrams are invalid.
    vni: Option<Vni>,
    bytes: &'a [u8],
    datagram_bytes: usize,
    invalid: u64,
}

impl Run<'_> {
    fn datagrams(&self) -> usize {
        self.bytes.len().div_ceil(self.datagram_bytes)
    }
}

/// Frames that other implementations have sent by one edge. The kernel does not merge all datagrams of a flow into one message, so the
/// batch takes those of several messages.
struct Batch<'a> {
    /// The network and the edge of the frames.
    owner: Option<(usize, EdgeId)>,
    frames: Vec<&'a [u8]>,
}

impl Batch<'_> {
    /// Delivers the frames. Segments of one flow become one frame again.
    fn deliver(&mut self, now: Millis, networks: &mut [Option<OverlayNetwork>], coalescer: &mut Coalescer) {
        let Some((network, edge)) = self.owner.take() else { return };
        let Some(network) = networks.get_mut(network).and_then(Option::as_mut) else { return };
        network.touch(now);
        let frames = coalescer.coalesce(network.mtu, &self.frames);
        (0..frames.lost()).for_each(|_| network.lost(Port::Edge(edge), FrameLoss::Uncut));
        for frame in frames.iter() {
            let header = frame.header.emit();
            let head = if frame.head.is_empty() { frame.slices().next().unwrap_or_default() } else { frame.head };
            network.deliver_frame(now, edge, head, [&header, frame.head].into_iter().chain(frame.slices()));
        }
        self.frames.clear();
    }
}

/// Delivers messages of another Isthmus daemon.
fn deliver_whole(now: Millis, network: &mut OverlayNetwork, edge: EdgeId, run: &Run<'_>) {
    network.touch(now);
    network.with_reassembler(edge, |network, reassembler| {
        reassembler
            .receive(run.bytes, run.datagram_bytes, now.0, |message| network.deliver_message(now, edge, &message));
    });
}
