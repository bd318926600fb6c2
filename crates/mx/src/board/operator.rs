//! What is decided on this host: which endpoints are open, and whom the table has though they did not announce themselves.

use super::table::{CannotAdd, Known};
use super::{Board, Event};
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
        if endpoint != EndpointNumber::RAW && !self.can_be(endpoint) {
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
    pub(super) fn can_be(&self, endpoint: EndpointNumber) -> bool {
        u16::from(endpoint.0) < self.setup.tuning.endpoints_max
    }

    /// Another board of this host: nothing for it goes to the wire, and nothing comes from it there.
    pub fn add_local(&mut self, nic: NicId, name: BoardName) -> Result<PeerIndex, CannotAdd> {
        let (peer, _) = self.add(nic, Known::Local)?;
        if let Some(local) = self.table.get_mut(peer) {
            local.learn_name(name);
        }
        Ok(peer)
    }

    /// A peer by hand, with a name. An address can be given several: each finds it. Given for a board of this host, the name takes
    /// the place of its own.
    pub fn add_static(&mut self, now: Time, nic: NicId, name: BoardName) -> Result<PeerIndex, CannotAdd> {
        let (peer, is_new) = self.add(nic, Known::Static)?;
        if let Some(entry) = self.table.get_mut(peer) {
            entry.give_name(name)?;
        }
        if is_new {
            self.found(now, peer);
        }
        Ok(peer)
    }

    /// A program wants to reach an address. If it is not in the table, it is now, and is asked for its name. The peer has to know us
    /// too before it answers; with discovery on, the board announces itself again.
    pub fn ask(&mut self, now: Time, nic: NicId) -> Result<PeerIndex, CannotAdd> {
        let (peer, is_new) = self.add(nic, Known::Asked)?;
        if is_new {
            self.found(now, peer);
        }
        Ok(peer)
    }

    /// Forgets a peer: it is not found any more, nothing is sent to it, and nothing from it is taken. Its index stays its own: if it
    /// announces itself, or is added again, it has the same. Says whether there was such a peer; boards of this host stay.
    pub fn forget(&mut self, nic: NicId) -> bool {
        let Some(index) = self.table.present(nic) else { return false };
        let Some(peer) = self.table.get_mut(index).filter(|peer| peer.known != Known::Local) else { return false };
        peer.forgotten = true;
        (peer.reverse, peer.serial, peer.heard) = (None, None, None);
        peer.heard_on.fill(None);
        peer.clear_names();
        self.schedule(index, None);
        self.outgoing.retain(|(_, header, _)| header.dst != nic);
        true
    }

    fn add(&mut self, nic: NicId, known: Known) -> Result<(PeerIndex, bool), CannotAdd> {
        let added = self.table.add(nic, known);
        if matches!(added, Err(CannotAdd::Full { .. })) {
            self.counters.add_refused_peer();
        }
        added
    }

    /// Somebody is there who was not: we want to know more of each other.
    pub(super) fn found(&mut self, now: Time, peer: PeerIndex) {
        self.tell(Event::Found(peer));
        self.announcing.restart(now.after_us(self.setup.tuning.burst_us), &self.setup.tuning);
        self.ask_anew(now, peer);
    }
}
