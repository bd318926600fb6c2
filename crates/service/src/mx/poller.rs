//! The poller of MX boards: what a worker calls, and the local side of the boards' endpoints.

use super::MX_WORKER;
use super::board::MxBoard;
use super::capture::{NewCapture, SharedTap};
use super::command::{MxBoardNumber, MxCommand};
use crate::command::Event;
use crate::mailbox::{ForwardedRecord, Task};
use crate::record_kinds;
use crate::router::Location;
use crate::sleeper::Sleeper;
use crate::worker::Worker;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route};
use isthmus_layout::{DomainId, RegionId};
use isthmus_mx::board::{Board, LinkNumber};
use isthmus_mx::net::{Address, Time};
use isthmus_mx::wire::EndpointNumber;
use isthmus_mx_transport::{LocalPeer, MxTransport};
use isthmus_shm::regcache::PeerRegion;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The numbers of remote peers.
#[derive(Debug, Default)]
pub(super) struct RemotePeerIds {
    next: u32,
    /// The local endpoint that a remote peer belongs to.
    remote_peers: HashMap<DomainId, (MxBoardNumber, EndpointNumber)>,
}

/// All boards.
#[derive(Debug)]
pub(crate) struct MxPoller {
    started: Instant,
    boards: HashMap<MxBoardNumber, MxBoard>,
    remote_peer_ids: RemotePeerIds,
}

impl Default for MxPoller {
    fn default() -> Self {
        Self { started: Instant::now(), boards: HashMap::new(), remote_peer_ids: RemotePeerIds::default() }
    }
}

impl MxPoller {
    fn now(&self) -> Time {
        Time::from_us(u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Returns whether frames wait.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.boards.values_mut().any(MxBoard::is_ready)
    }

    /// Ends the sleep that [`Self::before_sleep`] prepared. `frames` is true if any link may have frames.
    pub(crate) fn end_sleep(&mut self, frames: bool) {
        self.boards.values_mut().for_each(|board| board.end_sleep(frames));
    }

    /// Makes frames end the sleep, and returns its maximum duration.
    pub(crate) fn before_sleep(&mut self, sleeper: &mut Sleeper) -> Option<Duration> {
        let now = self.now();
        let boards = self.boards.values_mut().filter_map(|board| board.before_sleep(now, sleeper));
        Some(Duration::from_micros(boards.min()?.since_us(now)))
    }

    /// Polls all boards. True if anything was done.
    fn poll(&mut self, worker: &mut Worker) -> bool {
        let mut busy = false;
        if self.boards.is_empty() {
            return busy;
        }
        let now = self.now();
        for (number, board) in &mut self.boards {
            busy |= board.poll(now, *number, &mut self.remote_peer_ids, worker);
        }
        busy
    }

    /// Calls `act` with the local endpoint that a remote peer belongs to, if `domain` owns the endpoint.
    fn with_remote_peer(
        &mut self,
        worker: &mut Worker,
        domain: DomainId,
        remote_peer: DomainId,
        act: impl FnOnce(&mut MxTransport, Time, &mut WorkerPeer<'_>),
    ) {
        let now = self.now();
        let Some(&(board, endpoint)) = self.remote_peer_ids.remote_peers.get(&remote_peer) else { return };
        if let Some(board) = self.boards.get_mut(&board) {
            board.with(now, endpoint, Some(domain), &mut self.remote_peer_ids, worker, act);
        }
    }

    fn capture(&mut self, new: NewCapture) {
        let NewCapture { boards, domain, tap, wake } = new;
        let shared = SharedTap::new(tap, wake);
        for (number, first) in boards {
            if let Some(board) = self.boards.get_mut(&number) {
                board.captures.add(Arc::clone(&shared), first, domain);
            }
        }
    }

    /// The transport of the local endpoint that a remote peer belongs to.
    fn transport_of(&mut self, remote_peer: DomainId) -> Option<&mut MxTransport> {
        let (board, endpoint) = self.remote_peer_ids.remote_peers.get(&remote_peer)?;
        self.boards.get_mut(board)?.transport(*endpoint)
    }

    fn execute(&mut self, worker: &mut Worker, command: MxCommand) {
        let now = self.now();
        match command {
            MxCommand::AddBoard(new) => {
                let number = new.number;
                self.boards.insert(number, MxBoard::new(now, *new));
            }
            MxCommand::OpenEndpoint(new) => {
                if let Some(board) = self.boards.get_mut(&new.board) {
                    board.open(*new);
                }
            }
            MxCommand::CloseEndpoint { board, endpoint } => {
                if let Some(board) = self.boards.get_mut(&board) {
                    let endpoint = EndpointNumber(endpoint);
                    board.close(now, endpoint);
                    let remote_peers = &mut self.remote_peer_ids.remote_peers;
                    let gone = remote_peers.extract_if(|_, at| *at == (board.number(), endpoint));
                    gone.for_each(|(remote_peer, _)| {
                        worker.router.remove_elsewhere(remote_peer, Reason::MxDisconnected)
                    });
                }
            }
            MxCommand::Connect(connect) => match self.boards.get_mut(&connect.board) {
                Some(board) => board.connect(now, &connect, &mut self.remote_peer_ids, worker),
                None => {
                    let outcome = Err(Reason::MxBoardUnknown);
                    worker.emit_event(Event::RemoteConnected { request: connect.request, outcome });
                }
            },
            MxCommand::Capture(new) => self.capture(*new),
        }
    }
}

impl Worker {
    /// Polls the MX boards, where this worker has them.
    pub(crate) fn poll_mx(&mut self) -> bool {
        self.with_mx_poller(|worker, poller| poller.poll(worker)).unwrap_or(false)
    }

    pub(crate) fn execute_mx(&mut self, command: MxCommand) {
        self.with_mx_poller(|worker, poller| poller.execute(worker, command));
    }

    /// Lets messages to a remote peer be sent straight out of a domain's memory.
    pub(crate) fn grant_remote(&mut self, remote_peer: DomainId, region: RegionId, memory: Arc<PeerRegion>) {
        if let Some(transport) = self.mx_poller.as_mut().and_then(|poller| poller.transport_of(remote_peer)) {
            transport.grant(remote_peer, region, memory);
        }
    }

    /// Revokes a grant of [`Self::grant_remote`].
    pub(crate) fn revoke_remote(&mut self, remote_peer: DomainId, region: RegionId) {
        if let Some(transport) = self.mx_poller.as_mut().and_then(|poller| poller.transport_of(remote_peer)) {
            transport.revoke(remote_peer, region);
        }
    }

    /// Sends a record of a domain to a remote peer.
    pub(crate) fn send_to_remote(
        &mut self,
        domain: DomainId,
        remote_peer: DomainId,
        record: &Record<'_>,
        bytes: &[u8],
    ) {
        let mut violation = None;
        self.with_mx_poller(|worker, poller| {
            poller.with_remote_peer(worker, domain, remote_peer, |transport, now, local| {
                violation = transport.handle_domain_record(now, remote_peer, record, bytes, local).err();
            });
        });
        if let (Some(violation), Some(Location::Local(slot))) = (violation, self.router.location(domain)) {
            self.violation(slot, violation.into());
        }
    }

    /// Returns credit to a remote peer: a domain has taken `bytes` of its records.
    pub(crate) fn return_remote_credit(&mut self, domain: DomainId, remote_peer: DomainId, bytes: u32) {
        self.with_mx_poller(|worker, poller| {
            poller.with_remote_peer(worker, domain, remote_peer, |transport, now, local| {
                transport.return_domain_credit(now, remote_peer, bytes, local)
            });
        });
    }

    fn with_mx_poller<T>(&mut self, act: impl FnOnce(&mut Self, &mut MxPoller) -> T) -> Option<T> {
        let mut poller = self.mx_poller.take()?;
        let done = act(self, &mut poller);
        self.mx_poller = Some(poller);
        Some(done)
    }

    fn emit_event(&self, event: Event) {
        (self.event_handler)(event);
    }
}

/// The domain's side of one of our endpoints.
pub(super) struct WorkerPeer<'a> {
    pub(super) worker: &'a mut Worker,
    pub(super) remote_peer_ids: &'a mut RemotePeerIds,
    pub(super) board: &'a Board,
    pub(super) at: (MxBoardNumber, EndpointNumber),
    pub(super) domain: DomainId,
}

impl LocalPeer for WorkerPeer<'_> {
    fn deliver(&mut self, route: Route, record: &Record<'_>, bytes: &[u8]) {
        match self.worker.router.location(self.domain) {
            Some(Location::Local(slot)) => self.worker.deliver(slot, route, record, bytes),
            Some(Location::Worker(worker)) => {
                let (to, record, bytes) = (self.domain, record_kinds::without_payload(record), bytes.to_vec());
                let forwarded = ForwardedRecord { worker: self.worker.index, to, route, record, bytes };
                self.worker.post(worker, Task::ForwardedRecord(Box::new(forwarded)));
            }
            Some(Location::Remote) | None => {}
        }
    }

    fn return_credit(&mut self, route: Route, bytes: u32) {
        match self.worker.router.location(self.domain) {
            Some(Location::Local(slot)) => self.worker.router.defer_credit(slot, route, bytes),
            Some(Location::Worker(worker)) => self.worker.post(worker, Task::Credit { to: self.domain, route, bytes }),
            Some(Location::Remote) | None => {}
        }
    }

    fn return_credit_now(&mut self, route: Route, bytes: u32) {
        match self.worker.router.location(self.domain) {
            Some(Location::Local(slot)) => self.worker.router.credit_sender_now(slot, route, bytes),
            _ => self.return_credit(route, bytes),
        }
    }

    fn remote_peer_added(&mut self, address: Address) -> Option<DomainId> {
        let nic = self.board.nic_of(address.peer)?;
        let remote_peer = DomainId::remote(self.remote_peer_ids.next)?;
        self.remote_peer_ids.next += 1;
        self.remote_peer_ids.remote_peers.insert(remote_peer, self.at);
        self.worker.router.add_remote_peer(remote_peer);
        if let Some(Location::Worker(worker)) = self.worker.router.location(self.domain) {
            self.worker.post(worker, Task::RemoteDomainAdded { domain: remote_peer, worker: MX_WORKER });
        }
        let (domain, number) = (self.domain, address.endpoint.0);
        self.worker.emit_event(Event::RemoteAdded { remote_peer, domain, nic, number });
        Some(remote_peer)
    }

    fn remote_peer_removed(&mut self, remote_peer: DomainId, reason: Reason) {
        self.remote_peer_ids.remote_peers.remove(&remote_peer);
        self.worker.router.remove_elsewhere(remote_peer, reason);
        if let Some(Location::Worker(worker)) = self.worker.router.location(self.domain) {
            self.worker.post(worker, Task::RemoteDomainRemoved { domain: remote_peer, reason });
        }
        // Control notifies the domain over its socket, so delivered records have to be in its ring before.
        self.worker.deliver_waiting();
        self.worker.rings.flush();
        self.worker.emit_event(Event::RemoteRemoved { remote_peer, domain: self.domain, reason });
    }

    fn connect_finished(&mut self, request: u64, outcome: Result<DomainId, Reason>) {
        self.worker.emit_event(Event::RemoteConnected { request, outcome });
    }
}

/// Returns the number of a board's link.
pub(super) fn link_number(at: usize) -> LinkNumber {
    LinkNumber(u8::try_from(at).unwrap_or(u8::MAX))
}
