//! The domain's side of an endpoint: what the transport delivers to the domain and reports about its remote peers.

use super::board::BoardIndex;
use crate::command::Event;
use crate::remote_peers::RemoteAddress;
use crate::shared::Shared;
use isthmus_layout::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route};
use isthmus_mx::board::Board;
use isthmus_mx::net::Address;
use isthmus_mx::wire::EndpointNumber;
use isthmus_mx_transport::LocalPeer;
use std::collections::HashMap;

/// The local endpoint that each remote peer belongs to.
pub(super) type RemotePeers = HashMap<DomainId, (BoardIndex, EndpointNumber)>;

/// The domain of an endpoint.
pub(super) struct LocalDomain<'a> {
    pub(super) shared: &'a mut Shared,
    pub(super) remote_peers: &'a mut RemotePeers,
    pub(super) board: &'a Board,
    pub(super) at: (BoardIndex, EndpointNumber),
    pub(super) domain: DomainId,
}

impl LocalPeer for LocalDomain<'_> {
    fn deliver(&mut self, route: Route, record: &Record<'_>, bytes: &[u8]) {
        self.shared.deliver_to_domain(self.domain, route, record, bytes);
    }

    fn return_credit(&mut self, route: Route, bytes: u32) {
        self.shared.defer_credit_of_domain(self.domain, route, bytes);
    }

    fn return_credit_now(&mut self, route: Route, bytes: u32) {
        self.shared.credit_domain(self.domain, route, bytes);
    }

    fn remote_peer_added(&mut self, address: Address) -> Option<DomainId> {
        let nic = self.board.nic_of(address.peer)?;
        let address = RemoteAddress::Mx { nic, number: address.endpoint.0 };
        let remote_peer = self.shared.add_remote_peer(self.domain, address)?;
        self.remote_peers.insert(remote_peer, self.at);
        Some(remote_peer)
    }

    fn remote_peer_removed(&mut self, remote_peer: DomainId, reason: Reason) {
        self.remote_peers.remove(&remote_peer);
        self.shared.remove_remote_peer(self.domain, remote_peer, reason);
    }

    fn connect_finished(&mut self, request: u64, outcome: Result<DomainId, Reason>) {
        self.shared.emit_event(Event::RemoteConnected { request, outcome });
    }
}
