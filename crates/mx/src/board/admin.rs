//! State that this host decides: the open endpoints, and the peers that are added without an announcement.

use super::table::{AddPeerError, PeerOrigin};
use super::{Board, BoardEvent};
use crate::net::Time;
use crate::wire::{BoardName, EndpointNumber, PeerIndex};
use isthmus_layout::NicId;

/// The board cannot have an endpoint with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the board has no endpoint {}", .0.0)]
pub struct NoSuchEndpoint(pub EndpointNumber);

impl Board {
    /// Accepts packets for this endpoint from now on. [`EndpointNumber::RAW`] stands for raw packets.
    pub fn open(&mut self, endpoint: EndpointNumber) -> Result<(), NoSuchEndpoint> {
        if endpoint != EndpointNumber::RAW && !self.is_valid_endpoint(endpoint) {
            return Err(NoSuchEndpoint(endpoint));
        }
        self.open[usize::from(endpoint.0 / 64)] |= 1 << (endpoint.0 % 64);
        Ok(())
    }

    /// Refuses packets for this endpoint from now on.
    pub fn close(&mut self, endpoint: EndpointNumber) {
        self.open[usize::from(endpoint.0 / 64)] &= !(1 << (endpoint.0 % 64));
    }

    /// Returns true if messages can be for this number at all.
    pub(super) fn is_valid_endpoint(&self, endpoint: EndpointNumber) -> bool {
        u16::from(endpoint.0) < self.setup.tuning.endpoints_max
    }

    /// Adds another board of this host: nothing for it goes to the wire, and nothing from it is accepted from the wire.
    pub fn add_local(&mut self, nic: NicId, name: BoardName) -> Result<PeerIndex, AddPeerError> {
        let (peer, _) = self.add(nic, PeerOrigin::Local)?;
        if let Some(local) = self.table.get_mut(peer) {
            local.learn_name(name);
        }
        Ok(peer)
    }

    /// Adds a configured peer with a name. An address can have several names, each of which finds it. For a board of this host, the
    /// name replaces the board's own.
    pub fn add_static(&mut self, now: Time, nic: NicId, name: BoardName) -> Result<PeerIndex, AddPeerError> {
        let (peer, is_new) = self.add(nic, PeerOrigin::Static)?;
        if let Some(entry) = self.table.get_mut(peer) {
            entry.add_static_name(name)?;
        }
        if is_new {
            self.peer_found(now, peer);
        }
        Ok(peer)
    }

    /// Requests an address that a program wants to reach. An unknown address is added to the table, and queried for its
    /// name. The peer has to know this board before it replies, so with discovery on, the board announces itself again.
    pub fn ask(&mut self, now: Time, nic: NicId) -> Result<PeerIndex, AddPeerError> {
        let (peer, is_new) = self.add(nic, PeerOrigin::Requested)?;
        if is_new {
            self.peer_found(now, peer);
        }
        Ok(peer)
    }

    /// Forgets a peer: it is not found any more, nothing is sent to it, and nothing from it is accepted. Its index stays reserved for it,
    /// in case it announces itself or is added again. Returns true if there was such a peer. Boards of this host are not forgotten.
    pub fn forget(&mut self, nic: NicId) -> bool {
        let Some(index) = self.table.find_present(nic) else { return false };
        let Some(peer) = self.table.get_mut(index).filter(|peer| peer.origin != PeerOrigin::Local) else {
            return false;
        };
        peer.forgotten = true;
        (peer.remote_index, peer.serial, peer.heard) = (None, None, None);
        peer.last_seen_by_link.fill(None);
        peer.clear_names();
        self.schedule_query(index, None);
        self.outgoing.retain(|(_, header, _)| header.dst != nic);
        true
    }

    fn add(&mut self, nic: NicId, origin: PeerOrigin) -> Result<(PeerIndex, bool), AddPeerError> {
        let added = self.table.add(nic, origin);
        if matches!(added, Err(AddPeerError::Full { .. })) {
            self.counters.add_rejected_peer();
        }
        added
    }

    /// Handles a peer that has just appeared: announces this board again, and queries the peer's name.
    pub(super) fn peer_found(&mut self, now: Time, peer: PeerIndex) {
        self.push_event(BoardEvent::Found(peer));
        self.announce_timer.restart(now.after_us(self.setup.tuning.burst_us), &self.setup.tuning);
        self.restart_query(now, peer);
    }
}
