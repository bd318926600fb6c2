//! One board: its links on one side, its endpoints on the other.

use super::capture::Captures;
use super::double::Double;
use super::endpoints::{Endpoints, Served};
use super::port::{Change, Port};
use super::view::{LinkView, MxView};
use super::{MxBoardNumber, MxConnect, MxEndpoint, NewMxBoard, Numbers, Side, link_number};
use crate::command::Event;
use crate::sleeper::Sleeper;
use crate::worker::Worker;
use isthmus_gateway::Gateway;
use isthmus_layout::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_mx::board::{Board, Dropped, Received};
use isthmus_mx::net::{self, Address, Carried, IgnoredCounts, Time, Tuning};
use isthmus_mx::wire::{self, EndpointNumber, Sizes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};

/// Frames that one endpoint sends before others have their turn.
const ENDPOINT_BATCH: usize = 32;

/// Batches taken from one link in a turn: domains hear of what one brought before the next is taken, and have room for it.
const RECEIVE_BATCHES: usize = 1;

/// Rounds of making and sending frames in a turn.
const SEND_ROUNDS: usize = 4;

/// Bytes of long messages that may be on their way to all endpoints of a board: less than a link's receive buffer takes, in which a
/// frame counts for up to twice its bytes.
const FETCH_BYTES: u32 = 8 << 20;

/// How long what a domain has sent before it went is still brought to where it belongs.
const LINGER_US: u64 = 5_000_000;

/// The view is this old at most while frames pass.
const VIEW_US: u64 = 100_000;

/// And where the worker sleeps: what is counted between two frames is not looked up for each of them.
const VIEW_ASLEEP_US: u64 = 4_000;

/// One board.
#[derive(Debug)]
pub(super) struct MxBoard {
    number: MxBoardNumber,
    board: Board,
    sizes: Sizes,
    tuning: Tuning,
    ports: Vec<Port>,
    /// Which of them the board takes to be up.
    up: Vec<bool>,
    endpoints: Endpoints,
    /// Endpoints that may have something to send.
    line: VecDeque<EndpointNumber>,
    /// When the first of all is to be ticked. May be too early.
    deadline: Option<Time>,
    /// How many endpoints were fetching when that was last looked at.
    fetching: usize,
    view: Arc<Mutex<MxView>>,
    /// Since when something has happened that the view does not show.
    unseen: Option<Time>,
    /// Of endpoints that are gone.
    ignored: IgnoredCounts,
    carried: Carried,
    double: Double,
    pub(super) captures: Captures,
}

impl MxBoard {
    pub(super) fn new(now: Time, new: NewMxBoard) -> Self {
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
            number: new.number,
            board,
            sizes: new.sizes,
            tuning: new.tuning,
            up: vec![true; ports.len()],
            ports,
            endpoints: Endpoints::default(),
            line: VecDeque::new(),
            deadline: Some(now),
            fetching: 0,
            view: new.view,
            unseen: Some(now),
            ignored: IgnoredCounts::default(),
            carried: Carried::default(),
            double: Double::default(),
            captures: Captures::default(),
        }
    }

    pub(super) fn number(&self) -> MxBoardNumber {
        self.number
    }

    pub(super) fn gateway(&mut self, endpoint: EndpointNumber) -> Option<&mut Gateway> {
        Some(&mut self.endpoints.get_mut(endpoint)?.gateway)
    }

    pub(super) fn open(&mut self, new: MxEndpoint) {
        let number = EndpointNumber(new.number);
        if let Err(error) = self.board.open(number) {
            return tracing::error!(%error, "an endpoint number that the board cannot have");
        }
        let MxEndpoint { key, session, secret, .. } = new;
        let (dialect, sizes, tuning) = (self.board.setup().dialect, self.sizes, self.tuning);
        let setup = net::Setup { dialect, sizes, number, session, key, secret, tuning };
        let gateway = Gateway::new(setup, new.at, new.credit);
        self.endpoints.insert(number, Served { gateway, domain: new.domain, in_line: false, until: None });
    }

    pub(super) fn close(&mut self, now: Time, endpoint: EndpointNumber) {
        let Some(served) = self.endpoints.get_mut(endpoint) else { return };
        served.gateway.close(now);
        let until = now.after_us(LINGER_US);
        served.until = Some(until);
        self.deadline = Some(self.deadline.map_or(until, |at| at.min(until)));
        self.enqueue(endpoint);
    }

    /// Lets go of endpoints that were closed and have nothing left to bring anywhere, or have tried for long.
    fn bury(&mut self, now: Time) {
        let over = |served: &Served| served.until.is_some_and(|until| until <= now || served.gateway.is_over());
        for endpoint in self.endpoints.numbers() {
            if let Some(served) = self.endpoints.get(endpoint).filter(|served| over(served) && !served.in_line) {
                self.ignored.merge(served.gateway.ignored());
                self.carried.merge(served.gateway.carried());
                self.endpoints.remove(endpoint);
                self.board.close(endpoint);
            }
        }
    }

    /// Connects one of our endpoints to one of another host.
    pub(super) fn connect(&mut self, now: Time, connect: &MxConnect, numbers: &mut Numbers, worker: &mut Worker) {
        let &MxConnect { request, endpoint, nic, number, key, .. } = connect;
        let refused = |reason| Event::MxConnected { request, outcome: Err(reason) };
        let Some(peer) = self.board.find(nic) else { return (worker.listener)(refused(Reason::MxNoNic)) };
        let to = Address { peer, endpoint: EndpointNumber(number) };
        let known = self.with(now, EndpointNumber(endpoint), None, numbers, worker, |gateway, now, side| {
            gateway.connect(now, to, key, request, side);
        });
        if known.is_none() {
            (worker.listener)(refused(Reason::MxEndpointClosed));
        }
    }

    /// Does something with an endpoint, if it is there and, where `domain` is given, that domain's.
    pub(super) fn with<T>(
        &mut self,
        now: Time,
        endpoint: EndpointNumber,
        domain: Option<DomainId>,
        numbers: &mut Numbers,
        worker: &mut Worker,
        act: impl FnOnce(&mut Gateway, Time, &mut Side<'_>) -> T,
    ) -> Option<T> {
        let served = self.endpoints.get_mut(endpoint)?;
        if domain.is_some_and(|domain| domain != served.domain) {
            return None;
        }
        let at = (self.number, endpoint);
        let mut side = Side { worker, numbers, board: &self.board, at, domain: served.domain };
        let done = act(&mut served.gateway, now, &mut side);
        if let Some(due) = served.gateway.next_deadline() {
            self.deadline = Some(self.deadline.map_or(due, |at| at.min(due)));
        }
        self.enqueue(endpoint);
        Some(done)
    }

    fn enqueue(&mut self, endpoint: EndpointNumber) {
        if let Some(served) = self.endpoints.get_mut(endpoint)
            && !std::mem::replace(&mut served.in_line, true)
        {
            self.line.push_back(endpoint);
        }
    }

    /// Endpoints that fetch share what may be on its way to the board.
    fn share(&mut self) {
        let fetching = self.endpoints.all().filter(|(_, served)| served.gateway.is_fetching()).count();
        if fetching == self.fetching {
            return;
        }
        self.fetching = fetching;
        let share = FETCH_BYTES / fetching.max(1) as u32; // A board has 255 endpoints at most.
        let share = share.min(self.tuning.fetch_bytes_max);
        self.endpoints.all_mut().for_each(|served| served.gateway.set_fetch_bytes_max(share));
    }

    /// Sends, receives, looks at the clock, and sends again. True if anything was done.
    pub(super) fn turn(
        &mut self,
        now: Time,
        number: MxBoardNumber,
        numbers: &mut Numbers,
        worker: &mut Worker,
    ) -> bool {
        debug_assert_eq!(number, self.number);
        self.share();
        let mut busy = self.transmit(now);
        let received = self.receive(now, numbers, worker);
        let ticked = self.tick(now, numbers, worker);
        if received || ticked {
            busy |= self.transmit(now) | received;
        }
        if busy {
            self.unseen.get_or_insert(now);
        }
        self.show(now, VIEW_US);
        busy
    }

    fn receive(&mut self, now: Time, numbers: &mut Numbers, worker: &mut Worker) -> bool {
        let mut received = false;
        for at in 0..self.ports.len() {
            for _ in 0..RECEIVE_BATCHES {
                let (count, has_more) = self.ports[at].receive(now);
                (0..count).for_each(|frame| self.take(now, at, frame, numbers, worker));
                received |= count > 0 || has_more;
                if count == 0 && !has_more {
                    break;
                }
            }
            self.look(now, at);
        }
        received
    }

    /// One frame.
    fn take(&mut self, now: Time, port: usize, frame: usize, numbers: &mut Numbers, worker: &mut Worker) {
        let frame = self.ports[port].link.frame(frame);
        self.captures.received(&self.board, &self.endpoints, port, frame);
        let (endpoint, peer, packet) = match self.board.receive(now, link_number(port), frame) {
            Received::ForEndpoint { endpoint, peer, packet } => (endpoint, peer, packet),
            Received::Dropped(Dropped::AddressTwice) => {
                return self.double.heard(now, self.board.setup().nic, self.ports[port].link.name());
            }
            _ => return,
        };
        let Some(served) = self.endpoints.get_mut(endpoint) else { return };
        let at = (self.number, endpoint);
        let mut side = Side { worker, numbers, board: &self.board, at, domain: served.domain };
        // What is ignored was counted.
        let _ = served.gateway.receive(now, peer, &packet, &mut side);
        if let Some(due) = served.gateway.next_deadline() {
            self.deadline = Some(self.deadline.map_or(due, |at| at.min(due)));
        }
        self.enqueue(endpoint);
    }

    /// Tells the board whether a link works.
    fn look(&mut self, now: Time, at: usize) {
        let before = self.ports[at].link.state();
        let change = self.ports[at].look(now, self.up[at]);
        if self.ports[at].link.state() != before {
            self.unseen.get_or_insert(now); // Also where it is gone that was down.
        }
        let told = match change {
            Change::None => return,
            Change::Up => self.board.link_up(now, link_number(at)),
            Change::Down => self.board.link_down(now, link_number(at)),
        };
        self.up[at] = !self.up[at];
        let name = self.ports[at].link.name();
        match (told, self.up[at]) {
            (Ok(()), true) => tracing::info!(link = name, "the link is up again"),
            (Ok(()), false) => {
                tracing::warn!(link = name, state = %self.ports[at].link.state(), "the link does not work")
            }
            (Err(error), _) => tracing::error!(%error, "the board does not know its link"),
        }
        self.unseen.get_or_insert(now);
    }

    fn tick(&mut self, now: Time, numbers: &mut Numbers, worker: &mut Worker) -> bool {
        if self.deadline.is_none_or(|at| at > now) {
            return false;
        }
        self.deadline = None;
        for endpoint in self.endpoints.numbers() {
            let due = self.endpoints.get(endpoint).and_then(|served| served.gateway.next_deadline());
            if due.is_some_and(|due| due <= now) {
                self.with(now, endpoint, None, numbers, worker, |gateway, now, side| gateway.tick(now, side));
            }
        }
        (0..self.ports.len()).for_each(|port| self.look(now, port));
        self.bury(now);
        self.deadline = self.next_deadline(now);
        true
    }

    /// When there is something to do although nothing happens.
    fn next_deadline(&self, now: Time) -> Option<Time> {
        // One that is over is let go of at once: whoever connects to it is to hear that it is closed.
        let over = |served: &Served| served.until.filter(|_| served.gateway.is_over() && !served.in_line).map(|_| now);
        let dues = |served: &Served| [served.gateway.next_deadline(), served.until, over(served)];
        let endpoints = self.endpoints.all().flat_map(|(_, served)| dues(served));
        let ports = self.ports.iter().map(|port| port.deadline(now));
        endpoints.chain(ports).chain([self.board.next_deadline()]).flatten().min()
    }

    /// Makes frames and sends them, as long as there is room.
    fn transmit(&mut self, now: Time) -> bool {
        let mut moved = false;
        for _ in 0..SEND_ROUNDS {
            self.make_own(now);
            self.make(now);
            let mut sent = false;
            for (at, port) in self.ports.iter_mut().enumerate() {
                sent |= port.flush(now, &self.endpoints, at, &mut self.captures);
            }
            moved |= sent;
            if !sent || self.line.is_empty() {
                break;
            }
        }
        moved
    }

    /// Frames of the board's own.
    fn make_own(&mut self, now: Time) {
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

    /// Frames of endpoints, which take turns.
    fn make(&mut self, now: Time) {
        let dialect = self.board.setup().dialect;
        for _ in 0..self.line.len() {
            let Some(endpoint) = self.line.pop_front() else { return };
            let Some(served) = self.endpoints.get_mut(endpoint) else { continue };
            served.in_line = false;
            for _ in 0..ENDPOINT_BATCH {
                if !self.ports.iter().all(Port::has_room) {
                    self.enqueue(endpoint);
                    return;
                }
                let Some(served) = self.endpoints.get_mut(endpoint) else { break };
                let Some(transmit) = served.gateway.transmit(now) else {
                    if let Some(due) = served.gateway.next_deadline() {
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
                    && !served.in_line
                {
                    served.in_line = true;
                    self.line.push_back(endpoint);
                }
            }
        }
    }

    /// True if frames wait.
    pub(super) fn is_ready(&mut self) -> bool {
        let waiting = |port: &Port| {
            let fd = port.link.as_fd();
            matches!(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())), Ok(1))
        };
        let ready = self.ports.iter().any(|port| !port.broken && waiting(port));
        if ready {
            self.awake(true);
        }
        ready
    }

    /// The worker slept, or knows that frames wait: all links are looked at if they may have some, and otherwise as if that had just been
    /// done.
    pub(super) fn awake(&mut self, frames: bool) {
        self.ports.iter_mut().for_each(|port| port.awake(frames));
    }

    /// Has the sleeper look at the links; answers until when it may sleep.
    pub(super) fn before_sleep(&mut self, now: Time, sleeper: &mut Sleeper) -> Option<Time> {
        for port in self.ports.iter_mut().filter(|port| !port.broken && port.watched != Some(port.full)) {
            match sleeper.watch(&port.link.as_fd(), port.full) {
                Ok(()) => port.watched = Some(port.full),
                Err(error) => tracing::error!(%error, link = port.link.name(), "a link cannot be waited for"),
            }
        }
        self.show(now, VIEW_ASLEEP_US);
        self.deadline = self.next_deadline(now);
        let unseen = self.unseen.map(|since| since.after_us(VIEW_ASLEEP_US));
        self.deadline.into_iter().chain(unseen).min()
    }

    /// Brings the view up to date, if it is older than that.
    fn show(&mut self, now: Time, age_us: u64) {
        if self.unseen.is_none_or(|since| now.since_us(since) < age_us) {
            return;
        }
        let Ok(mut view) = self.view.try_lock() else { return };
        self.unseen = None;
        let link =
            |port: &Port| LinkView { broken: port.broken, unsent: port.lost, ..LinkView::of(&*port.link, port.rank) };
        let (mut ignored, mut carried) = (self.ignored, self.carried);
        for (_, served) in self.endpoints.all() {
            ignored.merge(served.gateway.ignored());
            carried.merge(served.gateway.carried());
        }
        *view = MxView {
            taken: std::time::Instant::now(),
            now,
            links: self.ports.iter().map(link).collect(),
            peers: self.board.peers().collect(),
            counters: *self.board.counters(),
            gateways: self.endpoints.all().count(),
            strangers: self.endpoints.all().map(|(_, served)| served.gateway.strangers()).sum(),
            ignored,
            carried,
        };
    }
}
