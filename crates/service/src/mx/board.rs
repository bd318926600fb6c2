//! One MX board: its links on one side, its endpoints on the other.

use super::capture::Captures;
use super::command::{NewMxBoard, NewMxConnect, NewMxEndpoint};
use super::duplicates::DuplicateAddress;
use super::endpoints::{Endpoints, ServedEndpoint};
use super::local_domain::{LocalDomain, RemotePeers};
use super::port::{LinkChange, Port};
use super::schedule::Polled;
use super::view::{LinkView, MxView};
use crate::command::Event;
use crate::pollers::PollerKind;
use crate::shared::Shared;
use crate::sleeper::{Sleeper, Source};
use isthmus_layout::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_mx::board::{Board, Dropped, FrameAction, LinkNumber};
use isthmus_mx::net::{self, Address, EndpointTuning, IgnoredCounts, Time, TrafficCounters};
use isthmus_mx::wire::{self, EndpointNumber, Sizes};
use isthmus_mx_transport::MxTransport;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Frames that one endpoint sends before the next one is served.
const ENDPOINT_BATCH: usize = 32;

/// Batches taken from one link in one poll. Domains get the frames of one batch before the next is taken, and so have room for it.
const RECEIVE_BATCHES: usize = 1;

/// Rounds of making and sending frames in one poll.
const SEND_ROUNDS: usize = 4;

/// Bytes of long messages that may be on their way to all endpoints of a board: less than a link's receive buffer takes, in which a
/// frame counts for up to twice its bytes.
const FETCH_BYTES: u32 = 8 << 20;

/// The time in which a closed endpoint still delivers the messages of its domain.
const LINGER_US: u64 = 5_000_000;

/// The maximum age of the view while frames pass.
const VIEW_AGE_MAX_US: u64 = 100_000;

/// The maximum age of the view while the worker sleeps. It is not zero, because an update for each frame would cost too much.
const VIEW_AGE_MAX_ASLEEP_US: u64 = 4_000;

/// The place of a board in its poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BoardIndex(pub(super) u32);

impl BoardIndex {
    /// The source number of a link.
    fn source(self, port: usize) -> u32 {
        self.0 << u8::BITS | u32::from(link_number(port).0)
    }

    /// The board and the link of a source number.
    pub(super) fn of_source(source: u32) -> (Self, usize) {
        (Self(source >> u8::BITS), source as usize & usize::from(u8::MAX))
    }
}

/// One MX board.
#[derive(Debug)]
pub(super) struct MxBoard {
    index: BoardIndex,
    board: Board,
    sizes: Sizes,
    tuning: EndpointTuning,
    ports: Vec<Port>,
    /// For each port, whether the board treats the link as up.
    up: Vec<bool>,
    endpoints: Endpoints,
    /// Endpoints that may have something to send.
    send_queue: VecDeque<EndpointNumber>,
    /// The earliest deadline of all endpoints, ports and the board. May be too early.
    deadline: Option<Time>,
    /// The number of fetching endpoints at the last check.
    fetching: usize,
    view: Arc<Mutex<MxView>>,
    /// The time of the first change that the view does not show.
    view_stale_since: Option<Time>,
    /// The ignored packets of endpoints that were removed.
    ignored: IgnoredCounts,
    traffic: TrafficCounters,
    duplicates: DuplicateAddress,
    pub(super) captures: Captures,
}

impl MxBoard {
    pub(super) fn new(now: Time, index: BoardIndex, new: NewMxBoard) -> Self {
        let mut board = Board::new(new.setup);
        for (nic, name) in new.locals {
            if let Err(error) = board.add_local(nic, name) {
                tracing::error!(%error, %nic, "a board of this host does not fit into the table of peers");
            }
        }
        let mut ports = Vec::new();
        for (at, (link, rank)) in new.links.into_iter().enumerate() {
            match board.add_link(now, link_number(at), rank) {
                Ok(()) => ports.push(Port::new(link, rank)),
                Err(error) => tracing::error!(%error, link = link.name(), "a board has too many links"),
            }
        }
        for (nic, name) in new.peers {
            if let Err(error) = board.add_static(now, nic, name) {
                tracing::error!(%error, %nic, "a peer does not fit into the table");
            }
        }
        Self {
            index,
            board,
            sizes: new.sizes,
            tuning: new.tuning,
            up: vec![true; ports.len()],
            ports,
            endpoints: Endpoints::default(),
            send_queue: VecDeque::new(),
            deadline: Some(now),
            fetching: 0,
            view: new.view,
            view_stale_since: Some(now),
            ignored: IgnoredCounts::default(),
            traffic: TrafficCounters::default(),
            duplicates: DuplicateAddress::default(),
            captures: Captures::default(),
        }
    }

    pub(super) fn transport(&mut self, endpoint: EndpointNumber) -> Option<&mut MxTransport> {
        Some(&mut self.endpoints.get_mut(endpoint)?.transport)
    }

    pub(super) fn open(&mut self, new: NewMxEndpoint) {
        let number = EndpointNumber(new.number);
        if let Err(error) = self.board.open(number) {
            return tracing::error!(%error, "an endpoint number that the board cannot have");
        }
        let NewMxEndpoint { key, session, secret, .. } = new;
        let (dialect, sizes, tuning) = (self.board.setup().dialect, self.sizes, self.tuning);
        let setup = net::EndpointSetup { dialect, sizes, number, session, key, secret, tuning };
        let transport = MxTransport::new(setup, new.at, new.credit);
        self.endpoints
            .insert(number, ServedEndpoint { transport, domain: new.domain, is_queued: false, linger_until: None });
    }

    pub(super) fn close(&mut self, now: Time, endpoint: EndpointNumber) {
        let Some(served) = self.endpoints.get_mut(endpoint) else { return };
        served.transport.close(now);
        let until = now.after_us(LINGER_US);
        served.linger_until = Some(until);
        self.deadline = Some(self.deadline.map_or(until, |at| at.min(until)));
        self.enqueue(endpoint);
    }

    /// Removes closed endpoints that have nothing left to deliver, or have lingered for [`LINGER_US`].
    fn reap(&mut self, now: Time) {
        let over = |served: &ServedEndpoint| {
            served.linger_until.is_some_and(|until| until <= now || served.transport.is_over())
        };
        for endpoint in self.endpoints.numbers() {
            if let Some(served) = self.endpoints.get(endpoint).filter(|served| over(served) && !served.is_queued) {
                self.ignored.merge(served.transport.ignored());
                self.traffic.merge(served.transport.traffic());
                self.endpoints.remove(endpoint);
                self.board.close(endpoint);
            }
        }
    }

    /// Connects one of our endpoints to one of another host.
    pub(super) fn connect(
        &mut self,
        now: Time,
        connect: &NewMxConnect,
        remote_peers: &mut RemotePeers,
        shared: &mut Shared,
    ) {
        let &NewMxConnect { request, endpoint, nic, number, key, .. } = connect;
        let refused = |reason| Event::RemoteConnected { request, outcome: Err(reason) };
        let Some(peer) = self.board.find(nic) else { return shared.emit_event(refused(Reason::MxNicUnknown)) };
        let to = Address { peer, endpoint: EndpointNumber(number) };
        let known = self.with(now, EndpointNumber(endpoint), None, remote_peers, shared, |transport, now, local| {
            transport.connect(now, to, key, request, local);
        });
        if known.is_none() {
            shared.emit_event(refused(Reason::MxEndpointClosed));
        }
    }

    /// Calls `act` with an endpoint if it exists and, where `domain` is given, belongs to that domain.
    pub(super) fn with<T>(
        &mut self,
        now: Time,
        endpoint: EndpointNumber,
        domain: Option<DomainId>,
        remote_peers: &mut RemotePeers,
        shared: &mut Shared,
        act: impl FnOnce(&mut MxTransport, Time, &mut LocalDomain<'_>) -> T,
    ) -> Option<T> {
        let served = self.endpoints.get_mut(endpoint)?;
        if domain.is_some_and(|domain| domain != served.domain) {
            return None;
        }
        let at = (self.index, endpoint);
        let mut local = LocalDomain { shared, remote_peers, board: &self.board, at, domain: served.domain };
        let done = act(&mut served.transport, now, &mut local);
        if let Some(due) = served.transport.next_deadline() {
            self.deadline = Some(self.deadline.map_or(due, |at| at.min(due)));
        }
        self.enqueue(endpoint);
        Some(done)
    }

    fn enqueue(&mut self, endpoint: EndpointNumber) {
        if let Some(served) = self.endpoints.get_mut(endpoint)
            && !std::mem::replace(&mut served.is_queued, true)
        {
            self.send_queue.push_back(endpoint);
        }
    }

    /// Divides [`FETCH_BYTES`] among the endpoints that fetch.
    fn share_fetch_budget(&mut self) {
        let fetching = self.endpoints.all().filter(|(_, served)| served.transport.is_fetching()).count();
        if fetching == self.fetching {
            return;
        }
        self.fetching = fetching;
        let share = FETCH_BYTES / fetching.max(1) as u32; // A board has 255 endpoints at most.
        let share = share.min(self.tuning.fetch_bytes_max);
        self.endpoints.all_mut().for_each(|served| served.transport.set_fetch_bytes_max(share));
    }

    /// Sends, receives, runs due timers, and sends again.
    pub(super) fn poll(&mut self, now: Time, remote_peers: &mut RemotePeers, shared: &mut Shared) -> Polled {
        self.share_fetch_budget();
        let mut is_busy = self.transmit(now);
        let received = self.receive(now, remote_peers, shared);
        let ticked = self.tick(now, remote_peers, shared);
        if received || ticked {
            is_busy |= self.transmit(now) | received;
        }
        if is_busy {
            self.view_stale_since.get_or_insert(now);
        }
        self.update_view(now, VIEW_AGE_MAX_US);
        let has_unsent = !self.send_queue.is_empty() || self.ports.iter().any(Port::has_unsent);
        Polled { is_busy, has_unsent, due: self.due(VIEW_AGE_MAX_US) }
    }

    /// The time of the next poll, if the view may be older than `view_age_us` until then.
    fn due(&self, view_age_us: u64) -> Option<Time> {
        let stale = self.view_stale_since.map(|since| since.after_us(view_age_us));
        self.deadline.into_iter().chain(stale).min()
    }

    fn receive(&mut self, now: Time, remote_peers: &mut RemotePeers, shared: &mut Shared) -> bool {
        let mut received = false;
        for at in 0..self.ports.len() {
            for _ in 0..RECEIVE_BATCHES {
                let (count, has_more) = self.ports[at].receive(now);
                (0..count).for_each(|frame| self.handle_frame(now, at, frame, remote_peers, shared));
                received |= count > 0 || has_more;
                if count == 0 && !has_more {
                    break;
                }
            }
            self.check_link(now, at);
        }
        received
    }

    /// One frame.
    fn handle_frame(
        &mut self,
        now: Time,
        port: usize,
        frame: usize,
        remote_peers: &mut RemotePeers,
        shared: &mut Shared,
    ) {
        let frame = self.ports[port].link.frame(frame);
        self.captures.received(&self.board, &self.endpoints, port, frame);
        let (endpoint, peer, packet) = match self.board.receive(now, link_number(port), frame) {
            FrameAction::ForEndpoint { endpoint, peer, packet } => (endpoint, peer, packet),
            FrameAction::Dropped(Dropped::DuplicateAddress) => {
                return self.duplicates.report(now, self.board.setup().nic, self.ports[port].link.name());
            }
            _ => return,
        };
        let Some(served) = self.endpoints.get_mut(endpoint) else { return };
        let at = (self.index, endpoint);
        let mut local = LocalDomain { shared, remote_peers, board: &self.board, at, domain: served.domain };
        // The transport has counted the packets that it ignored.
        let _ = served.transport.receive(now, peer, &packet, &mut local);
        if let Some(due) = served.transport.next_deadline() {
            self.deadline = Some(self.deadline.map_or(due, |at| at.min(due)));
        }
        self.enqueue(endpoint);
    }

    /// Checks a link, and updates the board if it went up or down.
    fn check_link(&mut self, now: Time, at: usize) {
        let before = self.ports[at].link.state();
        let change = self.ports[at].check_link(now, self.up[at]);
        if self.ports[at].link.state() != before {
            self.view_stale_since.get_or_insert(now); // Also where it is gone that was down.
        }
        let result = match change {
            LinkChange::None => return,
            LinkChange::Up => self.board.link_up(now, link_number(at)),
            LinkChange::Down => self.board.link_down(now, link_number(at)),
        };
        self.up[at] = !self.up[at];
        let name = self.ports[at].link.name();
        match (result, self.up[at]) {
            (Ok(()), true) => tracing::info!(link = name, "the link is up again"),
            (Ok(()), false) => {
                tracing::warn!(link = name, state = %self.ports[at].link.state(), "the link does not work")
            }
            (Err(error), _) => tracing::error!(%error, "the board does not know its link"),
        }
        self.view_stale_since.get_or_insert(now);
    }

    fn tick(&mut self, now: Time, remote_peers: &mut RemotePeers, shared: &mut Shared) -> bool {
        if self.deadline.is_none_or(|at| at > now) {
            return false;
        }
        self.deadline = None;
        for endpoint in self.endpoints.numbers() {
            let due = self.endpoints.get(endpoint).and_then(|served| served.transport.next_deadline());
            if due.is_some_and(|due| due <= now) {
                self.with(now, endpoint, None, remote_peers, shared, |transport, now, local| {
                    transport.tick(now, local)
                });
            }
        }
        (0..self.ports.len()).for_each(|port| self.check_link(now, port));
        self.reap(now);
        self.deadline = self.next_deadline(now);
        true
    }

    /// The time of the next timer.
    fn next_deadline(&self, now: Time) -> Option<Time> {
        // An endpoint that is over is removed at once, so that a connect to it fails because it is closed.
        let over = |served: &ServedEndpoint| {
            served.linger_until.filter(|_| served.transport.is_over() && !served.is_queued).map(|_| now)
        };
        let dues = |served: &ServedEndpoint| [served.transport.next_deadline(), served.linger_until, over(served)];
        let endpoints = self.endpoints.all().flat_map(|(_, served)| dues(served));
        let ports = self.ports.iter().map(|port| port.deadline(now));
        endpoints.chain(ports).chain([self.board.next_deadline()]).flatten().min()
    }

    /// Makes frames and sends them, as long as there is room.
    fn transmit(&mut self, now: Time) -> bool {
        let mut moved = false;
        for _ in 0..SEND_ROUNDS {
            self.queue_board_frames(now);
            self.queue_endpoint_frames(now);
            let mut sent = false;
            for (at, port) in self.ports.iter_mut().enumerate() {
                sent |= port.flush(now, &self.endpoints, at, &mut self.captures);
            }
            moved |= sent;
            if !sent || self.send_queue.is_empty() {
                break;
            }
        }
        moved
    }

    /// Frames of the board's own.
    fn queue_board_frames(&mut self, now: Time) {
        let dialect = self.board.setup().dialect;
        while self.ports.iter().all(Port::has_room)
            && let Some((link, header, packet)) = self.board.transmit(now)
        {
            let mut frame = vec![0; packet.parts(dialect).frame()];
            match wire::emit(dialect, &header, &packet, &mut frame) {
                Ok(_) => {
                    if let Some(port) = self.ports.get_mut(usize::from(link.0)) {
                        port.push_whole(frame);
                    }
                }
                Err(error) => tracing::error!(%error, "a packet of the board cannot be written"),
            }
        }
        if let Some(due) = self.board.next_deadline() {
            self.deadline = Some(self.deadline.map_or(due, |at| at.min(due)));
        }
    }

    /// Queues frames of endpoints, round-robin.
    fn queue_endpoint_frames(&mut self, now: Time) {
        let dialect = self.board.setup().dialect;
        for _ in 0..self.send_queue.len() {
            let Some(endpoint) = self.send_queue.pop_front() else { return };
            let Some(served) = self.endpoints.get_mut(endpoint) else { continue };
            served.is_queued = false;
            for _ in 0..ENDPOINT_BATCH {
                if !self.ports.iter().all(Port::has_room) {
                    self.enqueue(endpoint);
                    return;
                }
                let Some(served) = self.endpoints.get_mut(endpoint) else { break };
                let Some(transmit) = served.transport.transmit(now) else {
                    if let Some(due) = served.transport.next_deadline() {
                        self.deadline = Some(self.deadline.map_or(due, |at| at.min(due)));
                    }
                    break;
                };
                let way = self.board.header_to(transmit.to).zip(self.board.link_to(transmit.to));
                let Some((header, link)) = way else { continue }; // No link: it is lost, and sent again.
                let Some(port) = self.ports.get_mut(usize::from(link.0)) else { continue };
                if let Err(error) = port.push(dialect, endpoint, &header, &transmit.packet) {
                    tracing::error!(%error, "a packet cannot be written");
                }
                if let Some(served) = self.endpoints.get_mut(endpoint)
                    && !served.is_queued
                {
                    served.is_queued = true;
                    self.send_queue.push_back(endpoint);
                }
            }
        }
    }

    /// Notes that a link has frames, or room for some.
    pub(super) fn link_ready(&mut self, port: usize, is_readable: bool, is_writable: bool) {
        if let Some(port) = self.ports.get_mut(port) {
            port.is_ready |= is_readable;
            port.full &= !is_writable;
        }
    }

    /// Lets the sleeper watch the links: for frames, and for room where a send found none.
    pub(super) fn watch_links(&mut self, sleeper: &mut Sleeper) {
        for (at, port) in self.ports.iter_mut().enumerate() {
            let source = Source { poller: PollerKind::Mx, number: self.index.source(at) };
            port.watch(source, sleeper);
        }
    }

    /// Prepares a sleep of the worker, and returns the time until which it may sleep.
    pub(super) fn before_sleep(&mut self, now: Time, sleeper: &mut Sleeper) -> Option<Time> {
        self.watch_links(sleeper);
        self.update_view(now, VIEW_AGE_MAX_ASLEEP_US);
        self.deadline = self.next_deadline(now);
        self.due(VIEW_AGE_MAX_ASLEEP_US)
    }

    /// Updates the view if it is older than `age_us`.
    fn update_view(&mut self, now: Time, age_us: u64) {
        if self.view_stale_since.is_none_or(|since| now.since_us(since) < age_us) {
            return;
        }
        let Ok(mut view) = self.view.try_lock() else { return };
        self.view_stale_since = None;
        let link =
            |port: &Port| LinkView { broken: port.broken, unsent: port.unsent, ..LinkView::of(&*port.link, port.rank) };
        let (mut ignored, mut traffic) = (self.ignored, self.traffic);
        for (_, served) in self.endpoints.all() {
            ignored.merge(served.transport.ignored());
            traffic.merge(served.transport.traffic());
        }
        *view = MxView {
            updated_at: std::time::Instant::now(),
            now,
            links: self.ports.iter().map(link).collect(),
            peers: self.board.peers().collect(),
            counters: *self.board.counters(),
            transports: self.endpoints.all().count(),
            remote_peers: self.endpoints.all().map(|(_, served)| served.transport.remote_peers()).sum(),
            ignored,
            traffic,
        };
    }
}

/// The number of a board's link.
fn link_number(at: usize) -> LinkNumber {
    LinkNumber(u8::try_from(at).unwrap_or(u8::MAX))
}
