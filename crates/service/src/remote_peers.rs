//! The domain's side of a remote peer, for pollers: a remote peer is an endpoint on another host, known to one domain of this host by
//! a number like that of a domain.
//!
//! The domain may be served by another worker. Its records and its credit then go there by the mailbox.

use crate::command::{Event, WorkerIndex};
use crate::mailbox::Task;
use crate::pollers::PollerKind;
use crate::router::Location;
use crate::shared::Shared;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route};
use isthmus_layout::{DomainId, NicId};

/// The address of a remote peer. The poller that finds it has the links to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAddress {
    /// An endpoint of a board.
    Mx {
        /// The board.
        nic: NicId,
        /// The number of the endpoint.
        number: u8,
    },
}

impl RemoteAddress {
    /// The poller that reaches the remote peer.
    pub(crate) const fn poller(self) -> PollerKind {
        match self {
            Self::Mx { .. } => PollerKind::Mx,
        }
    }
}

impl Shared {
    /// Delivers a record of a remote peer to a domain.
    pub(crate) fn deliver_to_domain(&mut self, domain: DomainId, route: Route, record: &Record<'_>, bytes: &[u8]) {
        match self.router.location(domain) {
            Some(Location::Local(slot)) => self.deliver(slot, route, record, bytes),
            Some(Location::Worker(worker)) => self.forward_to_worker(worker, domain, route, record, bytes),
            Some(Location::Remote(_)) | None => {}
        }
    }

    /// Returns credit of a remote peer to a domain. A few KiB may wait for the domain's next record.
    pub(crate) fn defer_credit_of_domain(&mut self, domain: DomainId, route: Route, bytes: u32) {
        match self.router.location(domain) {
            Some(Location::Local(slot)) => self.router.defer_credit(slot, route, bytes),
            Some(Location::Worker(worker)) => self.post(worker, Task::Credit { to: domain, route, bytes }),
            Some(Location::Remote(_)) | None => {}
        }
    }

    /// Returns credit of a remote peer to a domain at once, because it completes a send.
    pub(crate) fn credit_domain(&mut self, domain: DomainId, route: Route, bytes: u32) {
        match self.router.location(domain) {
            Some(Location::Local(slot)) => self.router.credit_sender_now(slot, route, bytes),
            _ => self.defer_credit_of_domain(domain, route, bytes),
        }
    }

    /// Adds a remote peer of a domain. None if there are no numbers left.
    pub(crate) fn add_remote_peer(&mut self, domain: DomainId, address: RemoteAddress) -> Option<DomainId> {
        let remote_peer = self.next_remote_peer()?;
        self.router.add_remote_peer(remote_peer, address.poller());
        if let Some(worker) = self.worker_of(domain) {
            self.post(worker, Task::RemoteDomainAdded { domain: remote_peer, worker: self.index });
        }
        self.emit_event(Event::RemoteAdded { worker: self.index, remote_peer, domain, address });
        Some(remote_peer)
    }

    /// Removes a remote peer of a domain. The records that were delivered before are in the domain's ring when control is notified.
    pub(crate) fn remove_remote_peer(&mut self, domain: DomainId, remote_peer: DomainId, reason: Reason) {
        self.router.remove_elsewhere(remote_peer, reason);
        if let Some(worker) = self.worker_of(domain) {
            self.post(worker, Task::RemoteDomainRemoved { domain: remote_peer, reason });
        }
        // Control notifies the domain over its socket, so delivered records have to be in its ring before.
        self.deliver_waiting();
        self.rings.flush();
        self.emit_event(Event::RemoteRemoved { remote_peer, domain, reason });
    }

    /// The number of the next remote peer. Each worker takes every n-th number, where n is the number of workers, so that no two workers
    /// use the same number.
    fn next_remote_peer(&mut self) -> Option<DomainId> {
        let count = self.remote_peers_added.checked_mul(self.workers())?.checked_add(u32::from(self.index.0))?;
        let remote_peer = DomainId::remote(count)?;
        self.remote_peers_added += 1;
        Some(remote_peer)
    }

    /// The other worker that serves a domain, if this one does not.
    fn worker_of(&self, domain: DomainId) -> Option<WorkerIndex> {
        match self.router.location(domain)? {
            Location::Worker(worker) => Some(worker),
            Location::Local(_) | Location::Remote(_) => None,
        }
    }
}
