//! Endpoints of other hosts that one local endpoint knows.

use isthmus_layout::limits::DAEMON_PATH_RECORD_COST;
use isthmus_layout::record::{Record, Serial};
use isthmus_layout::{DomainId, SlotTable};
use isthmus_mx::net::{Address, IncomingId, SendId};
use std::collections::{HashMap, VecDeque};
use std::ops::{Index, IndexMut};

/// A message of the domain that is not complete yet.
#[derive(Debug)]
pub(crate) struct Assembling {
    pub(crate) serial: Serial,
    pub(crate) tag: u64,
    pub(crate) len: u32,
    pub(crate) bytes: Vec<u8>,
}

/// An endpoint of another host.
#[derive(Debug)]
pub(crate) struct RemotePeer {
    /// The number by which the domain knows the remote peer.
    pub(crate) id: DomainId,
    pub(crate) address: Address,
    /// True if the remote peer is gone, but the domain has not received all its messages yet.
    pub(crate) gone: bool,
    /// A message of the domain to the remote peer that arrives in fragments.
    pub(crate) assembling: Option<Assembling>,
    /// The cost of messages that are not acknowledged.
    pub(crate) unacked: u32,
    /// Credit that the domain gets back when less is in flight.
    pub(crate) owed: u32,
    /// Announced messages of the domain, by its serials.
    pub(crate) announced: HashMap<Serial, SendId>,
    /// Messages to the domain: those that have begun, in order, and the long ones that the domain wants.
    pub(crate) deliverable: VecDeque<IncomingId>,
    pub(crate) fetching: VecDeque<IncomingId>,
    /// Long messages of the remote peer that the domain knows.
    pub(crate) offered: HashMap<Serial, IncomingId>,
    /// Short records that wait for room.
    pub(crate) urgent: VecDeque<Record<'static>>,
    pub(crate) next_serial: u32,
    /// The bytes that the domain is given before it returns credit, and the number of them that is left.
    pub(crate) credit: u32,
    pub(crate) left: u32,
    /// The cost of all records that the domain was given.
    pub(crate) given: u64,
    /// Long messages that the domain has all records of, each with `given` behind its last record.
    pub(crate) untaken: VecDeque<(u64, IncomingId)>,
}

impl RemotePeer {
    fn new(id: DomainId, address: Address, credit: u32) -> Self {
        Self {
            id,
            address,
            gone: false,
            assembling: None,
            unacked: 0,
            owed: 0,
            announced: HashMap::new(),
            deliverable: VecDeque::new(),
            fetching: VecDeque::new(),
            offered: HashMap::new(),
            urgent: VecDeque::new(),
            next_serial: 1,
            credit,
            left: credit,
            given: 0,
            untaken: VecDeque::new(),
        }
    }

    /// Takes credit for a record with `bytes` message bytes. False if too little credit is left.
    pub(crate) fn reserve_credit(&mut self, bytes: usize) -> bool {
        let cost = DAEMON_PATH_RECORD_COST as usize + bytes;
        let affordable = cost <= self.left as usize;
        if affordable {
            self.left -= cost as u32;
            self.given += cost as u64;
        }
        affordable
    }

    /// Adds the credit that the domain returned, but never more than it was given.
    pub(crate) fn add_credit(&mut self, bytes: u32) {
        self.left = self.left.saturating_add(bytes).min(self.credit);
    }

    /// The cost of records that the domain was given and has not returned credit for.
    pub(crate) fn unread(&self) -> u64 {
        (self.credit - self.left).into()
    }

    /// Removes and returns a long message that the domain has taken: it has returned the credit of all records up to the last of
    /// the message.
    pub(crate) fn next_taken(&mut self) -> Option<IncomingId> {
        let taken = self.given - self.unread();
        self.untaken.pop_front_if(|(end, _)| *end <= taken).map(|(_, message)| message)
    }

    /// Returns a serial that no message has which the domain still knows.
    pub(crate) fn serial(&mut self) -> Serial {
        loop {
            let serial = Serial(self.next_serial);
            self.next_serial = self.next_serial.wrapping_add(1).max(1);
            if !self.offered.contains_key(&serial) {
                return serial;
            }
        }
    }
}

/// The index of a remote peer in the list, valid while it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RemotePeerIndex(u32);

/// All remote peers of one endpoint.
#[derive(Debug)]
pub(crate) struct RemotePeers {
    /// The credit of each remote peer.
    credit: u32,
    list: SlotTable<Box<RemotePeer>>,
    by_id: HashMap<DomainId, RemotePeerIndex>,
    by_address: HashMap<Address, RemotePeerIndex>,
}

impl RemotePeers {
    pub(crate) fn new(credit: u32) -> Self {
        Self { credit, list: SlotTable::default(), by_id: HashMap::new(), by_address: HashMap::new() }
    }

    pub(crate) fn find(&self, id: DomainId) -> Option<RemotePeerIndex> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn find_address(&self, address: Address) -> Option<RemotePeerIndex> {
        self.by_address.get(&address).copied()
    }

    pub(crate) fn add(&mut self, id: DomainId, address: Address) -> RemotePeerIndex {
        let peer = RemotePeerIndex(self.list.insert(Box::new(RemotePeer::new(id, address, self.credit))));
        self.by_id.insert(id, peer);
        self.by_address.insert(address, peer);
        peer
    }

    /// Frees the address of a peer that is gone: a peer that comes from it later is another one.
    pub(crate) fn detach_address(&mut self, peer: RemotePeerIndex) {
        self[peer].gone = true;
        let address = self[peer].address;
        self.by_address.remove(&address);
    }

    /// Removes a remote peer that has left.
    pub(crate) fn remove(&mut self, peer: RemotePeerIndex) -> Option<Box<RemotePeer>> {
        let remote_peer = self.list.remove(peer.0)?;
        self.by_id.remove(&remote_peer.id);
        Some(remote_peer)
    }
}

impl RemotePeers {
    /// The number of remote peers.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// All remote peers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (RemotePeerIndex, &RemotePeer)> {
        self.list.iter().map(|(peer, remote_peer)| (RemotePeerIndex(peer), remote_peer.as_ref()))
    }
}

impl Index<RemotePeerIndex> for RemotePeers {
    type Output = RemotePeer;

    fn index(&self, peer: RemotePeerIndex) -> &RemotePeer {
        &self.list[peer.0]
    }
}

impl IndexMut<RemotePeerIndex> for RemotePeers {
    fn index_mut(&mut self, peer: RemotePeerIndex) -> &mut RemotePeer {
        &mut self.list[peer.0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_layout::limits::DAEMON_PATH_CREDIT_BYTES;
    use isthmus_mx::wire::{EndpointNumber, PeerIndex};

    fn address() -> Address {
        Address { peer: PeerIndex::new(1).expect("a peer"), endpoint: EndpointNumber(2) }
    }

    fn id(number: u32) -> DomainId {
        DomainId::remote(number).expect("a number")
    }

    #[test]
    fn credit_is_spent_to_the_last_byte_and_not_beyond() {
        let mut remote_peer = RemotePeer::new(id(1), address(), DAEMON_PATH_CREDIT_BYTES);
        let most = (DAEMON_PATH_CREDIT_BYTES - DAEMON_PATH_RECORD_COST) as usize;
        assert!(!remote_peer.reserve_credit(most + 1) && remote_peer.left == DAEMON_PATH_CREDIT_BYTES);
        assert!(remote_peer.reserve_credit(most) && !remote_peer.reserve_credit(0));
        remote_peer.add_credit(DAEMON_PATH_RECORD_COST - 1);
        assert!(!remote_peer.reserve_credit(0));
        remote_peer.add_credit(1);
        assert!(remote_peer.reserve_credit(0));
        remote_peer.add_credit(u32::MAX);
        remote_peer.add_credit(u32::MAX);
        assert_eq!(remote_peer.left, DAEMON_PATH_CREDIT_BYTES);
    }

    #[test]
    fn serials_in_use_are_not_reused() {
        let mut remote_peer = RemotePeer::new(id(1), address(), DAEMON_PATH_CREDIT_BYTES);
        remote_peer.next_serial = u32::MAX;
        let [last, first] = [remote_peer.serial(), remote_peer.serial()];
        assert_eq!([last, first], [Serial(u32::MAX), Serial(1)], "0 is none");
        assert_eq!(remote_peer.serial(), Serial(2));
    }

    #[test]
    fn address_gets_a_new_remote_peer_after_the_old_one_left() {
        let mut remote_peers = RemotePeers::new(DAEMON_PATH_CREDIT_BYTES);
        let one = remote_peers.add(id(1), address());
        remote_peers.detach_address(one);
        assert_eq!((remote_peers.find_address(address()), remote_peers.find(id(1))), (None, Some(one)));
        let other = remote_peers.add(id(2), address());
        assert!(remote_peers.remove(one).is_some_and(|gone| gone.gone && gone.id == id(1)));
        assert_eq!((remote_peers.find_address(address()), remote_peers.find(id(1))), (Some(other), None));
        assert_eq!(remote_peers.all().map(|(_, remote_peer)| remote_peer.id).collect::<Vec<_>>(), [id(2)]);
        assert_eq!(
            remote_peers.add(id(3), Address { endpoint: EndpointNumber(3), ..address() }),
            one,
            "its place is free"
        );
    }
}
