//! The poller of MX boards: what a worker calls.

use super::board::{BoardIndex, MxBoard};
use super::capture::NewCapture;
use super::command::{MxBoardNumber, MxCommand, NewMxBoard, NewMxConnect};
use super::local_domain::{LocalDomain, RemotePeers};
use super::schedule::Schedule;
use crate::command::Event;
use crate::router::Location;
use crate::shared::Shared;
use crate::sleeper::Sleeper;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::Record;
use isthmus_layout::{DomainId, RegionId};
use isthmus_mx::net::Time;
use isthmus_mx::wire::EndpointNumber;
use isthmus_mx_transport::MxTransport;
use isthmus_shm::regcache::PeerRegion;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The boards of one worker.
#[derive(Debug)]
pub(crate) struct MxPoller {
    started: Instant,
    boards: Vec<MxBoard>,
    indices: HashMap<MxBoardNumber, BoardIndex>,
    schedule: Schedule,
    remote_peers: RemotePeers,
}

impl Default for MxPoller {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            boards: Vec::new(),
            indices: HashMap::new(),
            schedule: Schedule::default(),
            remote_peers: RemotePeers::new(),
        }
    }
}

impl MxPoller {
    fn now(&self) -> Time {
        Time::from_us(u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Polls the boards that have something to do. True if anything was done.
    pub(crate) fn poll(&mut self, shared: &mut Shared) -> bool {
        if self.boards.is_empty() {
            return false;
        }
        let now = self.now();
        self.schedule.activate_due(now);
        let (boards, remote_peers) = (&mut self.boards, &mut self.remote_peers);
        self.schedule.poll_active(|board| boards[board.0 as usize].poll(now, remote_peers, shared))
    }

    /// Notes that a link has changed.
    pub(crate) fn ready(&mut self, source: u32, is_readable: bool, is_writable: bool) {
        let (board, port) = BoardIndex::of_source(source);
        if let Some(found) = self.boards.get_mut(board.0 as usize) {
            found.link_ready(port, is_readable, is_writable);
            self.schedule.activate(board);
        }
    }

    /// Lets the sleeper watch the links, and returns the maximum duration of the sleep.
    pub(crate) fn before_sleep(&mut self, sleeper: &mut Sleeper) -> Option<Duration> {
        if self.boards.is_empty() {
            return None;
        }
        let now = self.now();
        while let Some(board) = self.schedule.pop_touched() {
            let due = self.boards[board.0 as usize].before_sleep(now, sleeper);
            self.schedule.set_due(board, due);
        }
        Some(Duration::from_micros(self.schedule.next_due()?.since_us(now)))
    }

    /// Sends a record of a domain to a remote peer.
    pub(crate) fn send(
        &mut self,
        shared: &mut Shared,
        domain: DomainId,
        remote_peer: DomainId,
        record: &Record<'_>,
        bytes: &[u8],
    ) {
        let sent = self.with_remote_peer(shared, domain, remote_peer, |transport, now, local| {
            transport.handle_domain_record(now, remote_peer, record, bytes, local)
        });
        if let (Some(Err(violation)), Some(Location::Local(slot))) = (sent, shared.router.location(domain)) {
            shared.violation(slot, violation.into());
        }
    }

    /// Returns credit to a remote peer: a domain has taken `bytes` of its records.
    pub(crate) fn return_credit(&mut self, shared: &mut Shared, domain: DomainId, remote_peer: DomainId, bytes: u32) {
        self.with_remote_peer(shared, domain, remote_peer, |transport, now, local| {
            transport.return_domain_credit(now, remote_peer, bytes, local)
        });
    }

    /// Calls `act` with the local endpoint that a remote peer belongs to, if `domain` owns the endpoint.
    fn with_remote_peer<T>(
        &mut self,
        shared: &mut Shared,
        domain: DomainId,
        remote_peer: DomainId,
        act: impl FnOnce(&mut MxTransport, Time, &mut LocalDomain<'_>) -> T,
    ) -> Option<T> {
        let &(board, endpoint) = self.remote_peers.get(&remote_peer)?;
        let now = self.now();
        self.schedule.activate(board);
        let board = &mut self.boards[board.0 as usize];
        board.with(now, endpoint, Some(domain), &mut self.remote_peers, shared, act)
    }

    /// Lets messages to a remote peer be sent straight out of a domain's memory.
    pub(crate) fn grant(&mut self, remote_peer: DomainId, region: RegionId, memory: Arc<PeerRegion>) {
        if let Some(transport) = self.transport_of(remote_peer) {
            transport.grant(remote_peer, region, memory);
        }
    }

    /// Revokes a grant of [`Self::grant`].
    pub(crate) fn revoke(&mut self, remote_peer: DomainId, region: RegionId) {
        if let Some(transport) = self.transport_of(remote_peer) {
            transport.revoke(remote_peer, region);
        }
    }

    /// The transport of the local endpoint that a remote peer belongs to.
    fn transport_of(&mut self, remote_peer: DomainId) -> Option<&mut MxTransport> {
        let &(board, endpoint) = self.remote_peers.get(&remote_peer)?;
        self.boards[board.0 as usize].transport(endpoint)
    }

    /// Executes a command of control.
    pub(crate) fn execute(&mut self, shared: &mut Shared, command: MxCommand) {
        match command {
            MxCommand::AddBoard(new) => self.add_board(*new, &mut shared.sleeper),
            MxCommand::OpenEndpoint(new) => {
                if let Some((_, board)) = self.board(new.board) {
                    board.open(*new);
                }
            }
            MxCommand::CloseEndpoint { board, endpoint } => {
                self.close_endpoint(shared, board, EndpointNumber(endpoint));
            }
            MxCommand::Connect(connect) => self.connect(shared, &connect),
            MxCommand::Capture(new) => self.capture(&new),
        }
    }

    /// Finds a board, which is polled next.
    fn board(&mut self, number: MxBoardNumber) -> Option<(BoardIndex, &mut MxBoard)> {
        let &index = self.indices.get(&number)?;
        self.schedule.activate(index);
        Some((index, &mut self.boards[index.0 as usize]))
    }

    fn add_board(&mut self, new: NewMxBoard, sleeper: &mut Sleeper) {
        let (now, number) = (self.now(), new.number);
        let index = self.schedule.add();
        let mut board = MxBoard::new(now, index, new);
        board.watch_links(sleeper);
        self.boards.push(board);
        self.indices.insert(number, index);
    }

    fn close_endpoint(&mut self, shared: &mut Shared, board: MxBoardNumber, endpoint: EndpointNumber) {
        let now = self.now();
        let Some((index, board)) = self.board(board) else { return };
        board.close(now, endpoint);
        let gone = self.remote_peers.extract_if(|_, at| *at == (index, endpoint));
        gone.for_each(|(remote_peer, _)| shared.router.remove_elsewhere(remote_peer, Reason::MxDisconnected));
    }

    fn connect(&mut self, shared: &mut Shared, connect: &NewMxConnect) {
        let now = self.now();
        let Some(&index) = self.indices.get(&connect.board) else {
            let outcome = Err(Reason::MxBoardUnknown);
            return shared.emit_event(Event::RemoteConnected { request: connect.request, outcome });
        };
        self.schedule.activate(index);
        self.boards[index.0 as usize].connect(now, connect, &mut self.remote_peers, shared);
    }

    fn capture(&mut self, new: &NewCapture) {
        for &(number, first) in &new.boards {
            if let Some((_, board)) = self.board(number) {
                board.captures.add(new.tap.clone(), first, new.domain);
            }
        }
    }
}
