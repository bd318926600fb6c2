//! Messages from other hosts to the domain. They are delivered whole, in the order in which they began, within the domain's credit.

use crate::fetching::Fetching;
use crate::remote_peers::RemotePeerIndex;
use crate::{LocalPeer, MxTransport};
use isthmus_layout::limits::{DAEMON_PATH_RECORD_COST, INLINE_BYTES_MAX};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Fragment, Record, Serial};
use isthmus_mx::StatusCode;
use isthmus_mx::net::{Address, IncomingId, Time};

/// The number of bytes kept for a domain that does not take them, before messages to it are refused for a while. Bytes of messages
/// that have not begun do not count, because the message they wait for must not be refused because of them. Announcements do not
/// count, because the engine limits their number and a domain that does not want them yet may want others.
pub const HELD_BYTES_MAX: usize = 4 << 20;

/// The cost of a message in addition to its bytes.
const MESSAGE_COST: usize = DAEMON_PATH_RECORD_COST as usize;

/// The maximum message bytes of one record. It exceeds the payload of any usual frame, so that a frame is one record.
pub const FRAGMENT_BYTES_MAX: usize = 16 << 10;

/// A placeholder: the ring decides where the bytes are.
pub(crate) const NO_FRAGMENT: Fragment = Fragment { offset: 0, len: 0 };

/// An incoming message.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// The sender, known once the message has begun.
    pub(crate) from: Option<RemotePeerIndex>,
    match_info: u64,
    pub(crate) length: u32,
    pub(crate) state: IncomingState,
}

#[derive(Debug)]
pub(crate) enum IncomingState {
    /// A short one: what is here of it, whether that is all, and how much of it the domain has been given.
    Short { bytes: Vec<u8>, whole: bool, delivered: usize, serial: Option<Serial> },
    /// A long message that is not announced to the domain yet.
    Long,
    /// A long message that is announced to the domain.
    Offered,
    /// A long message that the domain wants.
    Fetching(Fetching),
}

impl MxTransport {
    /// A message begins: all that were sent before it have begun.
    pub(crate) fn message_begun(
        &mut self,
        now: Time,
        message: IncomingId,
        source: Address,
        (match_info, length, large): (u64, u32, bool),
        domain: &mut impl LocalPeer,
    ) {
        let Some(from) = self.peer_at(source, domain) else {
            // The bytes of a short one may still come. The sender of a long one need not wait.
            let _ = (large && !self.closed).then(|| self.net.pull(now, message, 0, 0));
            return;
        };
        let incoming = self.incoming(message, length);
        let held_before_begin = incoming.held();
        (incoming.from, incoming.match_info, incoming.length) = (Some(from), match_info, length);
        if large {
            incoming.state = IncomingState::Long;
        }
        self.held_before_begin -= held_before_begin;
        self.held -= if large { held_before_begin } else { 0 };
        self.update_accepting();
        self.remote_peers[from].deliverable.push_back(message);
        if large {
            self.deliver_to_domain(now, from, domain);
        }
    }

    /// A message that comes in, which may be new.
    fn incoming(&mut self, message: IncomingId, length: u32) -> &mut Incoming {
        self.incoming.entry(message).or_insert_with(|| {
            self.held += MESSAGE_COST;
            self.held_before_begin += MESSAGE_COST;
            Incoming::short(length)
        })
    }

    /// Takes new messages, or not.
    fn update_accepting(&mut self) {
        self.net.set_accepting(!self.closed && self.held - self.held_before_begin < HELD_BYTES_MAX);
    }

    /// The remote peer at an address, which may be new.
    pub(crate) fn peer_at(&mut self, address: Address, domain: &mut impl LocalPeer) -> Option<RemotePeerIndex> {
        if self.closed {
            return None;
        }
        self.remote_peers
            .find_address(address)
            .or_else(|| Some(self.remote_peers.add(domain.remote_peer_added(address)?, address)))
    }

    /// Bytes of a message, which may not have begun.
    pub(crate) fn receive_bytes(
        &mut self,
        now: Time,
        message: IncomingId,
        (length, at): (u32, u32),
        data: &[u8],
        domain: &mut impl LocalPeer,
    ) {
        if self.closed || self.deliver_at_once(message, length, at, data, domain) {
            return;
        }
        let incoming = self.incoming(message, length);
        let held_before_begin = incoming.from.is_none();
        match &mut incoming.state {
            IncomingState::Short { bytes, .. } => {
                let fresh = bytes.is_empty();
                if fresh {
                    bytes.resize(length as usize, 0);
                }
                if let Some(into) = bytes.get_mut(at as usize..).and_then(|rest| rest.get_mut(..data.len())) {
                    into.copy_from_slice(data);
                }
                let more = if fresh { length as usize } else { 0 };
                self.held += more;
                self.held_before_begin += if held_before_begin { more } else { 0 };
            }
            IncomingState::Fetching(_) => self.receive_fetched(now, message, at, data, domain),
            IncomingState::Long | IncomingState::Offered => {}
        }
        self.update_accepting();
    }

    /// A short message in one frame, with none before it that waits: it goes straight from the frame to the domain.
    fn deliver_at_once(
        &mut self,
        message: IncomingId,
        length: u32,
        at: u32,
        data: &[u8],
        domain: &mut impl LocalPeer,
    ) -> bool {
        if at != 0 || data.len() != length as usize || data.len() > INLINE_BYTES_MAX {
            return false;
        }
        let Some(Incoming { from: Some(from), match_info, state: IncomingState::Short { .. }, .. }) =
            self.incoming.get(&message)
        else {
            return false;
        };
        let (from, tag) = (*from, *match_info);
        let remote_peer = &mut self.remote_peers[from];
        if remote_peer.deliverable.len() != 1
            || !remote_peer.urgent.is_empty()
            || !remote_peer.reserve_credit(data.len())
        {
            return false;
        }
        remote_peer.deliverable.clear();
        self.drop_incoming(message);
        let route = self.route(self.remote_peer(from).id);
        domain.deliver(route, &Record::Eager { tag, len: length, words: &[] }, data);
        true
    }

    /// Nothing more comes of a message.
    pub(crate) fn message_ended(
        &mut self,
        now: Time,
        message: IncomingId,
        code: StatusCode,
        domain: &mut impl LocalPeer,
    ) {
        let Some(incoming) = self.incoming.get_mut(&message) else { return };
        let from = incoming.from;
        let success = code == StatusCode::Success;
        match &mut incoming.state {
            IncomingState::Short { whole, .. } if success && from.is_some() => *whole = true,
            IncomingState::Fetching(fetching) => fetching.ended = Some(code),
            // The domain is notified when it asks for the message.
            IncomingState::Offered if !success => {}
            IncomingState::Short { .. } | IncomingState::Long | IncomingState::Offered => {
                self.drop_incoming(message);
                if let Some(from) = from {
                    self.remote_peers[from].deliverable.retain(|queued| *queued != message);
                }
            }
        }
        if let Some(from) = from {
            self.deliver_to_domain(now, from, domain);
        }
    }

    pub(crate) fn drop_incoming(&mut self, message: IncomingId) {
        let Some(incoming) = self.incoming.remove(&message) else { return };
        let held = incoming.held();
        self.held -= held;
        match (incoming.from, incoming.state) {
            (None, _) => self.held_before_begin -= held,
            (_, IncomingState::Fetching(fetching)) => {
                self.ahead -= fetching.ahead as usize;
                self.fetched -= fetching.undelivered.values().map(Vec::len).sum::<usize>();
            }
            _ => {}
        }
        self.update_accepting();
    }

    /// Sends a short record to the domain.
    pub(crate) fn deliver_control(
        &mut self,
        peer: RemotePeerIndex,
        record: Record<'static>,
        domain: &mut impl LocalPeer,
    ) {
        if self.closed {
            return;
        }
        let remote_peer = &mut self.remote_peers[peer];
        if remote_peer.urgent.is_empty() && remote_peer.reserve_credit(0) {
            return domain.deliver(self.route(self.remote_peers[peer].id), &record, &[]);
        }
        remote_peer.urgent.push_back(record);
    }

    /// Gives the domain what it has room for.
    pub(crate) fn deliver_to_domain(&mut self, now: Time, peer: RemotePeerIndex, domain: &mut impl LocalPeer) {
        if self.closed {
            return;
        }
        while !self.remote_peers[peer].urgent.is_empty() && self.remote_peers[peer].reserve_credit(0) {
            if let Some(record) = self.remote_peers[peer].urgent.pop_front() {
                domain.deliver(self.route(self.remote_peers[peer].id), &record, &[]);
            }
        }
        for _ in 0..self.remote_peers[peer].fetching.len() {
            let Some(message) = self.remote_peers[peer].fetching.pop_front() else { break };
            if !self.deliver_fetched(now, peer, message, domain) {
                self.remote_peers[peer].fetching.push_back(message);
            }
        }
        while let Some(&message) = self.remote_peers[peer].deliverable.front() {
            if !self.deliver_next(peer, message, domain) {
                break;
            }
            self.remote_peers[peer].deliverable.pop_front();
        }
        self.update_accepting();
        self.start_fetches(now);
        let remote_peer = &self.remote_peers[peer];
        if remote_peer.gone && remote_peer.deliverable.is_empty() && remote_peer.fetching.is_empty() {
            self.remote_peer_removed(peer, domain);
        }
    }

    /// Delivers what there is room for. True when the next message may follow.
    fn deliver_next(&mut self, peer: RemotePeerIndex, message: IncomingId, domain: &mut impl LocalPeer) -> bool {
        let route = self.route(self.remote_peers[peer].id);
        let Some(incoming) = self.incoming.get_mut(&message) else { return true };
        let (tag, length) = (incoming.match_info, incoming.length);
        let remote_peer = &mut self.remote_peers[peer];
        match &mut incoming.state {
            IncomingState::Short { whole: false, .. } => return false,
            IncomingState::Short { bytes, delivered, serial, .. } => {
                if bytes.len() <= INLINE_BYTES_MAX {
                    if !remote_peer.reserve_credit(bytes.len()) {
                        return false;
                    }
                    domain.deliver(route, &Record::Eager { tag, len: length, words: &[] }, bytes);
                    self.drop_incoming(message);
                    return true;
                }
                while *delivered < bytes.len() {
                    let fragment = &bytes[*delivered..bytes.len().min(*delivered + FRAGMENT_BYTES_MAX)];
                    if !remote_peer.reserve_credit(fragment.len()) {
                        return false;
                    }
                    let record = match *serial {
                        Some(serial) => Record::NextFragment { serial, fragment: NO_FRAGMENT },
                        None => {
                            let name = remote_peer.serial();
                            *serial = Some(name);
                            Record::FirstFragment { tag, len: length, serial: name, fragment: NO_FRAGMENT }
                        }
                    };
                    domain.deliver(route, &record, fragment);
                    *delivered += fragment.len();
                }
                self.drop_incoming(message);
            }
            IncomingState::Long => {
                if !remote_peer.reserve_credit(0) {
                    return false;
                }
                let serial = remote_peer.serial();
                remote_peer.offered.insert(serial, message);
                incoming.state = IncomingState::Offered;
                let len = length.into();
                domain.deliver(route, &Record::Announce { tag, len, serial, fragment: NO_FRAGMENT, mapped: None }, &[]);
            }
            IncomingState::Offered | IncomingState::Fetching(_) => {}
        }
        true
    }

    /// A remote peer is gone. Messages of it that are whole are still delivered, because they were acknowledged.
    pub(crate) fn peer_gone(&mut self, now: Time, peer: RemotePeerIndex, domain: &mut impl LocalPeer) {
        self.remote_peers.detach_address(peer);
        let remote_peer = &mut self.remote_peers[peer];
        // Each has ended with an event of its own.
        remote_peer.announced.clear();
        let id = remote_peer.id;
        self.regions.retain(|(owner, _), _| *owner != id);
        match self.closed {
            true => self.remote_peer_removed(peer, domain),
            false => self.deliver_to_domain(now, peer, domain),
        }
    }

    /// Nothing more comes from a remote peer.
    fn remote_peer_removed(&mut self, peer: RemotePeerIndex, domain: &mut impl LocalPeer) {
        let Some(remote_peer) = self.remote_peers.remove(peer) else { return };
        remote_peer.offered.values().for_each(|message| self.drop_incoming(*message));
        domain.remote_peer_removed(remote_peer.id, Reason::MxDisconnected);
    }
}

impl Incoming {
    fn short(length: u32) -> Self {
        let state = IncomingState::Short { bytes: Vec::new(), whole: false, delivered: 0, serial: None };
        Self { from: None, match_info: 0, length, state }
    }

    /// The cost of a short message; 0 for others.
    fn held(&self) -> usize {
        if let IncomingState::Short { bytes, .. } = &self.state { MESSAGE_COST + bytes.len() } else { 0 }
    }
}
