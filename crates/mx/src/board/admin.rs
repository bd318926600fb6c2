//! What is decided on this host: which endpoints are open, and whom the table has though they did not announce themselves.

use super::table::{AddPeerError, PeerOrigin};
use super::{Board, BoardEvent};
use crate::net::Time;
use crate::wire::{BoardName, EndpointNumber, PeerIndex};
use isthmus_layout::NicId;

/// The board cannot have an endpoint of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the board has no endpoint {}", .0.0)]
pub struct NoSuchEndpoint(pub EndpointNumber);

impl Board {
    /// From now on packets for this endpoint are handed out. [`EndpointNumber::RAW`]: raw packets are.
    pub fn open(&mut self, endpoint: EndpointNumber) -> Result<(), NoSuchEndpoint> {
        if endpoint != EndpointNumber::RAW && !self.is_valid_endpoint(endpoint) {
            return Err(NoSuchEndpoint(endpoint));
        }
        self.open[usize::from(endpoint.0 / 64)] |= 1 << (endpoint.0 % 64);
        Ok(())
    }

    /// From now on packets for this endpoint are refused.
    pub fn close(&mut self, endpoint: EndpointNumber) {
        self.open[usize::from(endpoint.0 / 64)] &= !(1 << (endpoint.0 % 64));
    }

    /// Whether messages can be for this number at all.
    pub(super) fn is_valid_endpoint(&self, endpoint: EndpointNumber) -> bool {
        u16::from(endpoint.0) < self.setup.tuning.endpoints_max
    }

    /// Another board of this host: nothing for it goes to the wire, and nothing comes from it there.
    pub fn add_local(&mut self, nic: NicId, name: BoardName) -> Result<PeerIndex, AddPeerError> {
        let (peer, _) = self.add(nic, PeerOrigin::Local)?;
        if let Some(local) = self.table.get_mut(peer) {
            local.learn_name(name);
        }
        Ok(peer)
    }

    /// A peer by hand, with a name. An address can be given several: each finds it. Given for a board of this host, the name takes
    /// the place of its own.
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

    /// A program wants to reach an address. If it is not in the table, it is now, and is asked for its name. The peer has to know us
    /// too before it answers; with discovery on, the board announces itself again.
    pub fn ask(&mut self, now: Time, nic: NicId) -> Result<PeerIndex, AddPeerError> {
        let (peer, is_new) = self.add(nic, PeerOrigin::Requested)?;
        if is_new {
            self.peer_found(now, peer);
        }
        Ok(peer)
    }

    /// Forgets a peer: it is not found any more, nothing is sent to it, and nothing from it is taken. Its index stays its own: if it
    /// announces itself, or is added again, it has the same. Says whether there was such a peer; boards of this host stay.
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

    /// Somebody is there who was not: we want to know more of each other.
    pub(super) fn peer_found(&mut self, now: Time, peer: PeerIndex) {
        self.push_event(BoardEvent::Found(peer));
        self.announce_timer.restart(now.after_us(self.setup.tuning.burst_us), &self.setup.tuning);
        self.restart_query(now, peer);
    }
}
