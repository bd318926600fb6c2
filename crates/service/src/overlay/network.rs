//! One network: what happens to a frame that comes from an interface or an edge.

use super::command::{NewOverlayInterface, NewOverlayNetwork, OverlayNetworkNumber};
use super::counters::{FrameLoss, PortCounters};
use super::edge::{Edge, EdgeOutcome, Resume, TapFrame};
use super::poller::TURN_COST_MAX;
use super::ports::Ports;
use super::socket::Socket;
use super::view::{EdgeView, InterfaceView, LearnedView, OverlayView};
use isthmus_link::{Tap, TapWrite};
use isthmus_overlay::fast::{CHUNK_BYTES_MIN, Delivery, MESSAGE_BYTES_MAX, Reassembler};
use isthmus_overlay::segment::Cutter;
use isthmus_overlay::virtio_net::{VIRTIO_NET_BYTES, VirtioNetHeader};
use isthmus_overlay::vxlan::Vni;
use isthmus_overlay::{Decision, EdgeId, FrameHeader, InterfaceId, Millis, Network, Port, TrafficMatrix};
use std::io::IoSlice;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The maximum number of slices of a frame: the chunks of the longest message, and its headers. They are prepared for each frame.
const SLICES_MAX: usize = MESSAGE_BYTES_MAX.div_ceil(CHUNK_BYTES_MIN) + 8;

/// The cost of a system call for a frame, in bytes that are copied meanwhile.
const CALL_COST: usize = 4 << 10;

/// The cost of reading or writing a frame `times` times.
fn cost(times: usize, bytes: usize) -> i64 {
    (times * (CALL_COST + bytes)) as i64 // At most 512 times 68 KiB.
}

/// An interface of a network.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) id: InterfaceId,
    pub(super) tap: Tap,
    mtu: u16,
    pub(super) held: Option<HeldFrame>,
    pub(super) counters: PortCounters,
    /// True if the interface no longer exists, which was reported.
    pub(super) is_gone: bool,
    /// The number of system calls that read from the TAP.
    #[cfg(test)]
    pub(super) reads: u64,
}

/// A frame that waits for room in the socket of an edge.
#[derive(Debug)]
pub(super) struct HeldFrame {
    /// The virtio-net header and the frame, which fill the first `len` bytes.
    pub(super) bytes: Box<[u8]>,
    pub(super) len: usize,
    pub(super) edge: EdgeId,
    pub(super) resume: Resume,
    /// The place in the order of all frames that were held.
    pub(super) since: u64,
}

/// The parts of the poller that all networks use.
#[derive(Debug)]
pub(super) struct Outlets<'a> {
    pub(super) now: Millis,
    pub(super) sockets: &'a mut [Socket],
    pub(super) cutter: &'a mut Cutter,
}

/// A network.
#[derive(Debug)]
pub(super) struct OverlayNetwork {
    pub(super) number: OverlayNetworkNumber,
    pub(super) vni: Vni,
    core: Network,
    /// The forwarded frames by source and destination.
    pairs: TrafficMatrix,
    pub(super) interfaces: Ports<Interface>,
    /// The smallest MTU of the interfaces.
    pub(super) mtu: u16,
    pub(super) edges: Ports<Edge>,
    /// The cost of the frames that its interfaces may still send in this turn. Negative after a frame with many copies.
    turn: i64,
    view: Arc<Mutex<OverlayView>>,
    /// The time of the first change that the view does not show.
    view_stale_since: Option<Millis>,
}

impl OverlayNetwork {
    pub(super) fn new(new: NewOverlayNetwork) -> Self {
        let NewOverlayNetwork { number, vni, options, view } = new;
        Self {
            number,
            vni,
            core: Network::new(options),
            pairs: TrafficMatrix::new(options.hash_key),
            interfaces: Ports::default(),
            mtu: u16::MAX,
            edges: Ports::default(),
            turn: 0,
            view,
            view_stale_since: None,
        }
    }

    pub(super) fn core_mut(&mut self) -> &mut Network {
        &mut self.core
    }

    pub(super) fn interface(&mut self, id: InterfaceId) -> Option<&mut Interface> {
        self.interfaces.get_mut(id.0)
    }

    pub(super) fn add_interface(&mut self, new: NewOverlayInterface) {
        let NewOverlayInterface { network: _, interface, tap, mtu, sources } = new;
        if let Some(sources) = sources {
            self.core.limit_sources(Port::Interface(interface), &sources);
        }
        self.interfaces.insert(Interface {
            id: interface,
            tap,
            mtu,
            held: None,
            counters: PortCounters::default(),
            is_gone: false,
            #[cfg(test)]
            reads: 0,
        });
        self.core.add_port(Port::Interface(interface));
        self.update_mtu();
    }

    pub(super) fn remove_interface(&mut self, id: InterfaceId) {
        self.interfaces.remove(id.0);
        self.core.remove_port(Port::Interface(id));
        self.update_mtu();
    }

    fn update_mtu(&mut self) {
        self.mtu = self.interfaces.iter().map(|interface| interface.mtu).min().unwrap_or(u16::MAX);
    }

    pub(super) fn edge(&mut self, id: EdgeId) -> Option<&mut Edge> {
        self.edges.get_mut(id.0)
    }

    /// Marks that the state changed.
    pub(super) fn touch(&mut self, now: Millis) {
        self.view_stale_since.get_or_insert(now);
    }

    /// Begins a turn of the poller. What the network does not use is not saved.
    pub(super) fn begin_turn(&mut self) {
        self.turn = (self.turn + TURN_COST_MAX).min(TURN_COST_MAX);
    }

    /// Returns true if the interfaces of the network have to wait for the next turn.
    pub(super) fn has_used_turn(&self) -> bool {
        self.turn <= 0
    }

    /// Takes the cost of reading a frame from the turn.
    pub(super) fn charge_read(&mut self, bytes: usize) {
        self.turn -= cost(1, bytes);
    }

    /// Handles a frame that interface `from` sent. Returns the place at which sending continues if the frame has to wait.
    pub(super) fn send_frame(
        &mut self,
        outlets: &mut Outlets<'_>,
        from: InterfaceId,
        frame: TapFrame<'_>,
    ) -> Option<(EdgeId, Resume)> {
        // Another kernel reads the virtio-net header at the latest, and it may come from a guest.
        let (Ok(header), Ok(_)) =
            (FrameHeader::parse(frame.frame), VirtioNetHeader::parse(frame.header, frame.frame.len()))
        else {
            self.lost(Port::Interface(from), FrameLoss::Invalid);
            return None;
        };
        if let Some(interface) = self.interface(from) {
            interface.counters.count_received(frame.frame.len());
        }
        let port = Port::Interface(from);
        let to = match self.core.forward_unless_circulating(outlets.now, port, &header, frame.frame) {
            Decision::To(to) => {
                self.pairs.count(header.source, header.destination, frame.frame.len());
                to
            }
            Decision::Drop(reason) => {
                self.lost(Port::Interface(from), reason.into());
                return None;
            }
        };
        self.turn -= cost(to.len(), frame.frame.len());
        let may_wait = to.len() == 1;
        let mut waits = None;
        for &port in to {
            match port {
                Port::Interface(id) => {
                    if let Some(interface) = self.interfaces.get_mut(id.0) {
                        interface.write(&[IoSlice::new(frame.header), IoSlice::new(frame.frame)], frame.frame.len());
                    }
                }
                Port::Edge(id) => {
                    if let Some(edge) = self.edges.get_mut(id.0)
                        && let EdgeOutcome::Full(resume) = outlets.send(edge, self.vni, frame, None)
                    {
                        match may_wait {
                            true => waits = Some((id, resume)),
                            false => edge.counters.lost.add(FrameLoss::NoRoom, 1),
                        }
                    }
                }
            }
        }
        waits
    }

    /// Sends the rest of a held frame. False if it still has to wait.
    pub(super) fn send_held(&mut self, outlets: &mut Outlets<'_>, interface: InterfaceId) -> bool {
        let (edges, vni) = (&mut self.edges, self.vni);
        let Some(interface) = self.interfaces.get_mut(interface.0) else { return true };
        let Some(held) = &mut interface.held else { return true };
        let Some((header, frame)) = held.bytes[..held.len].split_first_chunk() else { return true };
        if let Some(edge) = edges.get_mut(held.edge.0)
            && let EdgeOutcome::Full(resume) = outlets.send(edge, vni, TapFrame { header, frame }, Some(held.resume))
        {
            held.resume = resume;
            return false;
        }
        self.turn -= cost(1, held.len);
        interface.held = None;
        true
    }

    /// Delivers a frame that came by an edge. `head` begins with the Ethernet header; `slices` are the virtio-net header and the whole frame.
    pub(super) fn deliver_frame<'a>(
        &mut self,
        now: Millis,
        from: EdgeId,
        head: &[u8],
        slices: impl Iterator<Item = &'a [u8]>,
    ) {
        let mut list = [IoSlice::new(&[]); SLICES_MAX];
        let (mut count, mut bytes) = (0, 0);
        for slice in slices.filter(|slice| !slice.is_empty()) {
            let Some(place) = list.get_mut(count) else { return self.lost(Port::Edge(from), FrameLoss::TooLong) };
            *place = IoSlice::new(slice);
            (count, bytes) = (count + 1, bytes + slice.len());
        }
        let Ok(header) = FrameHeader::parse(head) else { return self.lost(Port::Edge(from), FrameLoss::Invalid) };
        let (slices, bytes) = (&list[..count], bytes - VIRTIO_NET_BYTES);
        if let Some(edge) = self.edge(from) {
            edge.counters.count_received(bytes);
            edge.heard = Some(now);
        }
        match self.core.forward(now, Port::Edge(from), &header) {
            Decision::Drop(reason) => self.lost(Port::Edge(from), reason.into()),
            Decision::To(to) => {
                self.pairs.count(header.source, header.destination, bytes);
                for &port in to {
                    let Port::Interface(id) = port else { continue }; // Frames of an edge never leave by an edge.
                    if let Some(interface) = self.interfaces.get_mut(id.0) {
                        interface.write(slices, bytes);
                    }
                }
            }
        }
    }

    /// Delivers a message of a *fast* edge.
    pub(super) fn deliver_message(&mut self, now: Millis, from: EdgeId, message: &Delivery<'_>) {
        let head = &message.head()[VIRTIO_NET_BYTES..]; // The first chunk has at least the headers.
        self.deliver_frame(now, from, head, message.slices());
    }

    /// Calls `act` with the reassembler of an edge.
    pub(super) fn with_reassembler(&mut self, edge: EdgeId, act: impl FnOnce(&mut Self, &mut Reassembler)) {
        let Some(mut reassembler) = self.edge(edge).map(|edge| std::mem::take(&mut edge.reassembler)) else { return };
        act(self, &mut reassembler);
        if let Some(edge) = self.edge(edge) {
            edge.reassembler = reassembler;
        }
    }

    /// Counts a frame that came from a port and was lost.
    pub(super) fn lost(&mut self, from: Port, loss: FrameLoss) {
        let counters = match from {
            Port::Interface(id) => self.interface(id).map(|interface| &mut interface.counters),
            Port::Edge(id) => self.edge(id).map(|edge| &mut edge.counters),
        };
        if let Some(counters) = counters {
            counters.lost.add(loss, 1);
        }
    }

    /// The place of an interface's held frame in the order of all held frames.
    pub(super) fn held_since(&self, interface: InterfaceId) -> Option<u64> {
        let interface = self.interfaces.get(interface.0)?;
        interface.held.as_ref().map(|held| held.since)
    }

    /// Returns whether a frame of an interface waits for room in a socket.
    pub(super) fn waits_for(&self, interface: InterfaceId, socket: usize) -> bool {
        let held = self.interfaces.get(interface.0).and_then(|other| other.held.as_ref());
        let edge = held.and_then(|held| self.edges.get(held.edge.0));
        edge.is_some_and(|edge| edge.socket == socket)
    }

    /// Returns whether a frame of an interface waits for an edge.
    pub(super) fn holds_for(&self, interface: InterfaceId, edge: EdgeId) -> bool {
        let held = self.interfaces.get(interface.0).and_then(|other| other.held.as_ref());
        held.is_some_and(|held| held.edge == edge)
    }

    /// The time at which the next incomplete message of an edge is given up.
    pub(super) fn next_expiry(&self) -> Option<Millis> {
        self.edges.iter().filter_map(|edge| edge.reassembler.next_expiry_ms()).min().map(Millis)
    }

    /// Gives up messages of edges that are incomplete for too long, and delivers what came of them.
    pub(super) fn expire(&mut self, now: Millis) {
        let is_expired = |edge: &&Edge| edge.reassembler.next_expiry_ms().is_some_and(|expiry| expiry <= now.0);
        let expired: Vec<EdgeId> = self.edges.iter().filter(is_expired).map(|edge| edge.id).collect();
        for id in expired {
            self.touch(now);
            self.with_reassembler(id, |network, reassembler| {
                reassembler.expire(now.0, |message| network.deliver_message(now, id, &message));
            });
        }
    }

    /// The time at which the path of an edge is queried although nothing is sent.
    pub(super) fn next_path_check(&self) -> Option<Millis> {
        self.edges.iter().filter_map(Edge::next_check).min()
    }

    /// Queries the paths of edges for which that is due.
    pub(super) fn check_paths(&mut self, now: Millis, sockets: &[Socket]) {
        let mut is_changed = false;
        for edge in self.edges.iter_mut().filter(|edge| edge.next_check().is_some()) {
            let before = edge.datagram_bytes;
            edge.check_path(now, &sockets[edge.socket].link);
            is_changed |= edge.datagram_bytes != before;
        }
        if is_changed {
            self.touch(now);
        }
    }

    /// The time at which the view is to be updated, if it is stale.
    pub(super) fn view_due(&self, age_ms: u64) -> Option<Millis> {
        Some(Millis(self.view_stale_since?.0 + age_ms))
    }

    /// Updates the view if it is older than `age_ms`.
    pub(super) fn update_view(&mut self, now: Millis, age_ms: u64) {
        if self.view_due(age_ms).is_none_or(|due| due > now) {
            return;
        }
        let Ok(mut view) = self.view.try_lock() else { return };
        self.view_stale_since = None;
        let interface = |interface: &Interface| InterfaceView {
            interface: interface.id,
            counters: interface.counters,
            is_held: interface.held.is_some(),
        };
        let edge = |edge: &Edge| EdgeView {
            edge: edge.id,
            counters: edge.counters(),
            datagram_bytes: edge.datagram_bytes,
            heard_ms: edge.heard.map(|heard| now.since(heard).0),
        };
        let learned = self.core.learned(now).map(LearnedView::from);
        *view = OverlayView {
            updated_at: Instant::now(),
            interfaces: self.interfaces.iter().map(interface).collect(),
            edges: self.edges.iter().map(edge).collect(),
            learned: learned.collect(),
            pairs: self.pairs.pairs().collect(),
            others: self.pairs.others(),
        };
    }
}

impl Interface {
    fn write(&mut self, slices: &[IoSlice<'_>], bytes: usize) {
        let loss = match self.tap.write(slices) {
            Ok(TapWrite::Written) => return self.counters.count_sent(bytes),
            Ok(TapWrite::Down) => FrameLoss::Down,
            Ok(TapWrite::NoRoom) => FrameLoss::NoRoom,
            Ok(TapWrite::Refused) => FrameLoss::Refused,
            Err(_) => FrameLoss::PortGone, // The next read finds that, too, and reports it.
        };
        self.counters.lost.add(loss, 1);
    }
}

impl Outlets<'_> {
    fn send(&mut self, edge: &mut Edge, vni: Vni, frame: TapFrame<'_>, resume: Option<Resume>) -> EdgeOutcome {
        let socket = &mut self.sockets[edge.socket];
        #[cfg(test)]
        if socket.has_no_room {
            socket.is_full = true;
            return EdgeOutcome::Full(resume.unwrap_or_default());
        }
        let outcome = edge.send(self.now, (socket.kind, vni), &mut socket.link, self.cutter, frame, resume);
        socket.is_full |= matches!(outcome, EdgeOutcome::Full(_));
        outcome
    }
}
