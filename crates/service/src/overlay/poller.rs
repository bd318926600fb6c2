//! The poller of overlay networks: the commands of control, and the turns of a worker.

use super::command::{
    NewOverlayEdge, NewOverlayInterface, OverlayCommand, OverlayEvent, OverlayNetworkNumber, OverlaySocketNumber,
};
use super::counters::FrameLoss;
use super::edge::{Edge, TapFrame};
use super::network::{HeldFrame, Outlets, OverlayNetwork};
use super::socket::Socket;
use crate::command::Event;
use crate::pollers::PollerKind;
use crate::shared::Shared;
use crate::sleeper::Source;
use isthmus_link::TAP_FRAME_BYTES_MAX;
use isthmus_overlay::coalesce::Coalescer;
use isthmus_overlay::segment::Cutter;
use isthmus_overlay::{EdgeId, InterfaceId, Millis, Port};
use rustix::fd::{AsFd as _, BorrowedFd};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Frames that one interface sends before the next source is served.
const INTERFACE_BATCH: usize = 32;

/// The cost of the frames that one network sends in a turn. The frame that exceeds it is sent, and the next turns pay for it.
pub(super) const TURN_COST_MAX: i64 = 512 << 10;

/// The maximum age of views while frames pass, in milliseconds.
const VIEW_AGE_MAX_MS: u64 = 100;

/// The bytes of one turn from which on the worker carries a stream, and the time for which this holds, in milliseconds.
const STREAM_BYTES: usize = 8 << 10;
const STREAM_MS: u64 = 5;

/// A source of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameSource {
    Interface { network: usize, interface: InterfaceId },
    Socket(usize),
}

/// A source, and what the poller knows of it.
#[derive(Debug)]
struct SourceState {
    source: FrameSource,
    /// Whether the source is in `ready`.
    is_queued: bool,
}

/// All overlay networks of a worker.
#[derive(Debug)]
pub(crate) struct OverlayPoller {
    started: Instant,
    pub(super) networks: Vec<Option<OverlayNetwork>>,
    pub(super) sockets: Vec<Socket>,
    sources: Vec<Option<SourceState>>,
    /// Sources that may have frames.
    ready: VecDeque<u32>,
    /// Sources of networks that have used up their turn. They precede the others in the next turn. Empty between turns.
    deferred: VecDeque<u32>,
    /// The number of frames that were held so far.
    held_count: u64,
    /// A buffer for one frame with its virtio-net header.
    buffer: Box<[u8]>,
    cutter: Cutter,
    coalescer: Coalescer,
    /// The earliest time at which a view is to be updated or an incomplete message is given up. May be too early.
    deadline: Option<Millis>,
    /// The bytes of this turn.
    turn_bytes: usize,
    /// The time of the last turn with [`STREAM_BYTES`].
    stream_at: Option<Millis>,
    carries_stream: bool,
}

impl Default for OverlayPoller {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            networks: Vec::new(),
            sockets: Vec::new(),
            sources: Vec::new(),
            ready: VecDeque::new(),
            deferred: VecDeque::new(),
            held_count: 0,
            buffer: Box::default(),
            cutter: Cutter::default(),
            coalescer: Coalescer::default(),
            deadline: None,
            turn_bytes: 0,
            stream_at: None,
            carries_stream: false,
        }
    }
}

/// Commands.
impl OverlayPoller {
    fn now(&self) -> Millis {
        Millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Carries out a command of control.
    pub(crate) fn execute(&mut self, shared: &mut Shared, command: OverlayCommand) {
        let now = self.now();
        match command {
            OverlayCommand::AddNetwork(new) => {
                let place = self.networks.iter().position(Option::is_none).unwrap_or(self.networks.len());
                self.networks.resize_with(self.networks.len().max(place + 1), || None);
                self.networks[place] = Some(OverlayNetwork::new(*new));
                self.touch(place, now);
            }
            OverlayCommand::RemoveNetwork(number) => {
                let Some(place) = self.place(number) else { return };
                self.remove_sources(
                    shared,
                    |source| matches!(source, FrameSource::Interface { network, .. } if network == place),
                );
                self.networks[place] = None;
                self.sockets.iter_mut().for_each(|socket| socket.remove_network(place));
            }
            OverlayCommand::AddSocket(new) => {
                self.sockets.push(Socket::new(*new));
                self.add_source(shared, FrameSource::Socket(self.sockets.len() - 1));
            }
            OverlayCommand::AddInterface(new) => self.add_interface(now, shared, new),
            OverlayCommand::RemoveInterface { network, interface } => {
                let Some(place) = self.place(network) else { return };
                self.remove_sources(shared, |source| source == FrameSource::Interface { network: place, interface });
                if let Some(network) = &mut self.networks[place] {
                    network.remove_interface(interface);
                }
                self.touch(place, now);
            }
            OverlayCommand::AddEdge(new) => self.add_edge(now, new),
            OverlayCommand::RemoveEdge { network, edge } => self.remove_edge(now, network, edge),
            OverlayCommand::ChangeRoutes { network, removed, added } => {
                let Some(place) = self.place(network) else { return };
                if let Some(network) = &mut self.networks[place]
                    && let Err(error) = network.core_mut().change_routes(&removed, &added)
                {
                    tracing::error!(%error, "routes that control has checked are refused");
                }
            }
        }
    }

    /// The place of a network.
    fn place(&self, number: OverlayNetworkNumber) -> Option<usize> {
        self.networks.iter().position(|network| network.as_ref().is_some_and(|network| network.number == number))
    }

    fn socket_place(&self, number: OverlaySocketNumber) -> Option<usize> {
        self.sockets.iter().position(|socket| socket.number == number)
    }

    fn add_interface(&mut self, now: Millis, shared: &mut Shared, new: NewOverlayInterface) {
        let Some(place) = self.place(new.network) else { return };
        let interface = new.interface;
        if let Some(network) = &mut self.networks[place] {
            network.add_interface(new);
        }
        if self.buffer.is_empty() {
            self.buffer = new_buffer();
        }
        self.add_source(shared, FrameSource::Interface { network: place, interface });
        self.touch(place, now);
    }

    fn add_edge(&mut self, now: Millis, new: NewOverlayEdge) {
        let (Some(place), Some(socket)) = (self.place(new.network), self.socket_place(new.socket)) else { return };
        if let Some(network) = &mut self.networks[place] {
            let mut edge = Edge::new(new.edge, socket, new.to, new.first_message);
            edge.check_path(now, &self.sockets[socket].link);
            self.sockets[socket].add_edge(new.to.ip(), network.vni, place, new.edge);
            network.edges.insert(edge);
            network.core_mut().add_port(Port::Edge(new.edge));
        }
        self.touch(place, now);
    }

    fn remove_edge(&mut self, now: Millis, number: OverlayNetworkNumber, id: EdgeId) {
        let Some(place) = self.place(number) else { return };
        if let Some(network) = &mut self.networks[place]
            && let Some(edge) = network.edges.remove(id.0)
        {
            self.sockets[edge.socket].remove_edge(edge.to.ip(), network.vni);
            network.core_mut().remove_port(Port::Edge(id));
        }
        self.resume(|network, interface| network.number == number && network.holds_for(interface, id));
        self.touch(place, now);
    }

    pub(super) fn touch(&mut self, place: usize, now: Millis) {
        if let Some(network) = &mut self.networks[place] {
            network.touch(now);
            self.deadline = Some(self.deadline.map_or(now, |at| at.min(now)));
        }
    }

    fn add_source(&mut self, shared: &mut Shared, source: FrameSource) {
        let number = self.sources.iter().position(Option::is_none).unwrap_or(self.sources.len());
        self.sources.resize_with(self.sources.len().max(number + 1), || None);
        self.sources[number] = Some(SourceState { source, is_queued: false });
        self.watch(shared, number as u32, false); // Far fewer than 2³².
        self.enqueue(number as u32);
    }

    /// Lets the sleeper watch a source for frames and, with `writable`, for room to send.
    fn watch(&mut self, shared: &mut Shared, number: u32, writable: bool) {
        let Some(fd) = self.fd(number) else { return };
        let source = Source { poller: PollerKind::Overlay, number };
        if let Err(error) = shared.sleeper.watch(&fd, source, writable) {
            tracing::error!(%error, "an interface or socket of an overlay network cannot be waited for");
        }
    }

    /// The descriptor of a source.
    fn fd(&self, number: u32) -> Option<BorrowedFd<'_>> {
        match self.sources.get(number as usize)?.as_ref()?.source {
            FrameSource::Socket(socket) => Some(self.sockets[socket].link.as_fd()),
            FrameSource::Interface { network, interface } => {
                let interfaces = &self.networks[network].as_ref()?.interfaces;
                Some(interfaces.get(interface.0)?.tap.as_fd())
            }
        }
    }

    /// Removes sources. Called before their descriptors are closed.
    fn remove_sources(&mut self, shared: &mut Shared, is_gone: impl Fn(FrameSource) -> bool) {
        for number in 0..self.sources.len() as u32 {
            if !self.sources[number as usize].as_ref().is_some_and(|state| is_gone(state.source)) {
                continue;
            }
            if let Some(fd) = self.fd(number) {
                shared.sleeper.unwatch(&fd);
            }
            self.sources[number as usize] = None;
            self.ready.retain(|&ready| ready != number);
        }
    }
}

fn new_buffer() -> Box<[u8]> {
    vec![0; TAP_FRAME_BYTES_MAX].into()
}

/// Turns.
impl OverlayPoller {
    /// Notes that a source has frames, or room.
    pub(crate) fn ready(&mut self, number: u32, is_readable: bool, is_writable: bool) {
        let Some(Some(state)) = self.sources.get(number as usize) else { return };
        if let (true, FrameSource::Socket(socket)) = (is_writable, state.source) {
            self.resume_full(socket);
        }
        if is_readable {
            self.enqueue(number);
        }
    }

    fn enqueue(&mut self, number: u32) {
        if let Some(Some(state)) = self.sources.get_mut(number as usize)
            && !std::mem::replace(&mut state.is_queued, true)
        {
            self.ready.push_back(number);
        }
    }

    /// A socket has room again: its interfaces with held frames are polled.
    fn resume_full(&mut self, socket: usize) {
        if std::mem::replace(&mut self.sockets[socket].is_full, false) {
            self.resume(|network, interface| network.waits_for(interface, socket));
        }
    }

    /// Polls the interfaces for which `is_held` returns true, those that have waited for longest first.
    fn resume(&mut self, is_held: impl Fn(&OverlayNetwork, InterfaceId) -> bool) {
        let mut waiting = Vec::new();
        for number in 0..self.sources.len() as u32 {
            let Some(SourceState { source: FrameSource::Interface { network, interface }, .. }) =
                self.sources[number as usize]
            else {
                continue;
            };
            let Some(network) = self.networks[network].as_ref().filter(|network| is_held(network, interface)) else {
                continue;
            };
            waiting.push((network.held_since(interface), number));
        }
        waiting.sort_unstable();
        waiting.into_iter().for_each(|(_, number)| self.enqueue(number));
    }

    /// Polls the sources that are ready. True if anything was done.
    pub(crate) fn poll(&mut self, shared: &mut Shared) -> bool {
        let is_due = self.deadline.is_some_and(|at| at <= self.now());
        if self.ready.is_empty() && !is_due {
            return false;
        }
        let now = self.now();
        let count = self.ready.len();
        self.turn_bytes = 0;
        self.networks.iter_mut().flatten().for_each(OverlayNetwork::begin_turn);
        for _ in 0..count {
            let Some(number) = self.ready.pop_front() else { break };
            let Some(Some(state)) = self.sources.get_mut(number as usize) else { continue };
            if let FrameSource::Interface { network, .. } = state.source
                && self.networks[network].as_ref().is_some_and(OverlayNetwork::has_used_turn)
            {
                self.deferred.push_back(number); // Still queued.
                continue;
            }
            state.is_queued = false;
            let again = match state.source {
                FrameSource::Interface { network, interface } => self.poll_interface(now, shared, network, interface),
                FrameSource::Socket(socket) => self.poll_socket(now, socket),
            };
            if again {
                self.enqueue(number);
            }
            shared.sleeper.is_check_due |= again;
        }
        shared.sleeper.is_check_due |= !self.deferred.is_empty();
        self.deferred.append(&mut self.ready);
        std::mem::swap(&mut self.deferred, &mut self.ready);
        if self.turn_bytes >= STREAM_BYTES {
            self.stream_at = Some(now);
        }
        self.carries_stream = self.stream_at.is_some_and(|at| now.since(at) < Millis(STREAM_MS));
        self.watch_full_sockets(shared);
        if is_due {
            self.run_timers(now, shared);
        }
        count > 0 || !self.ready.is_empty()
    }

    /// Takes frames from an interface. True if it may have more.
    fn poll_interface(&mut self, now: Millis, shared: &mut Shared, place: usize, id: InterfaceId) -> bool {
        let Self { networks, sockets, cutter, buffer, deadline, turn_bytes, held_count, .. } = self;
        let Some(network) = &mut networks[place] else { return false };
        let mut outlets = Outlets { now, sockets, cutter };
        network.touch(now);
        deadline.get_or_insert(Millis(now.0 + VIEW_AGE_MAX_MS));
        if !network.send_held(&mut outlets, id) {
            return false;
        }
        for _ in 0..INTERFACE_BATCH {
            if network.has_used_turn() {
                break;
            }
            let Some(interface) = network.interface(id).filter(|interface| !interface.is_gone) else { return false };
            #[cfg(test)]
            {
                interface.reads += 1;
            }
            let len = match interface.tap.read(buffer) {
                Ok(Some(len)) => len,
                Ok(None) => return false,
                Err(_) => {
                    interface.is_gone = true; // Control logs it.
                    let event = OverlayEvent::InterfaceGone { network: network.number, interface: id };
                    shared.emit_event(Event::Overlay(event));
                    return false;
                }
            };
            *turn_bytes += len;
            network.charge_read(len);
            let Some((header, frame)) = buffer[..len].split_first_chunk() else {
                network.lost(Port::Interface(id), FrameLoss::Invalid);
                continue;
            };
            if let Some((edge, resume)) = network.send_frame(&mut outlets, id, TapFrame { header, frame }) {
                let bytes = std::mem::replace(buffer, new_buffer());
                if let Some(interface) = network.interface(id) {
                    *held_count += 1;
                    interface.held = Some(HeldFrame { bytes, len, edge, resume, since: *held_count });
                }
                return false; // Until the socket has room.
            }
        }
        true
    }

    /// Receives datagrams. True if there may be more.
    fn poll_socket(&mut self, now: Millis, socket: usize) -> bool {
        self.deadline.get_or_insert(Millis(now.0 + VIEW_AGE_MAX_MS));
        let again = self.sockets[socket].receive(now, &mut self.networks, &mut self.coalescer);
        self.turn_bytes += self.sockets[socket].batch_bytes;
        let expiry = self.networks.iter().flatten().filter_map(OverlayNetwork::next_expiry).min();
        self.deadline = self.deadline.into_iter().chain(expiry).min();
        again
    }

    /// Gives up incomplete messages, updates views and passes reports on. Tries full sockets again: the kernel reports no room if it lacked memory.
    fn run_timers(&mut self, now: Millis, shared: &Shared) {
        self.deadline = None;
        (0..self.sockets.len()).for_each(|socket| self.resume_full(socket));
        for network in self.networks.iter_mut().flatten() {
            network.check_paths(now, &self.sockets);
            network.expire(now);
            // The network keeps at most `REPORTS_MAX`.
            while let Some(report) = network.core_mut().take_report() {
                shared.emit_event(Event::Overlay(OverlayEvent::Report { network: network.number, report }));
            }
            network.update_view(now, VIEW_AGE_MAX_MS);
            let due = network.view_due(VIEW_AGE_MAX_MS).into_iter().chain(network.next_expiry());
            let due = due.chain(network.next_path_check()).min();
            self.deadline = self.deadline.into_iter().chain(due).min();
        }
    }

    /// Lets the sleeper report room in the sockets for which frames wait, and in no others: a socket reports room with every datagram.
    fn watch_full_sockets(&mut self, shared: &mut Shared) {
        for number in 0..self.sources.len() as u32 {
            let Some(SourceState { source: FrameSource::Socket(socket), .. }) = self.sources[number as usize] else {
                continue;
            };
            let Socket { is_full, is_room_watched, .. } = &mut self.sockets[socket];
            let is_full = *is_full;
            if std::mem::replace(is_room_watched, is_full) != is_full {
                self.watch(shared, number, is_full);
            }
        }
    }

    /// Returns true if a stream passed in the last turns. Round trips of short frames are none.
    pub(crate) fn carries_stream(&self) -> bool {
        self.carries_stream
    }

    /// Returns the time for which the worker may sleep.
    pub(crate) fn before_sleep(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.deadline?.0.saturating_sub(self.now().0)))
    }
}
