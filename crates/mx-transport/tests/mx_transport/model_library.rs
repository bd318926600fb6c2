//! A library with its program, as the rules of the daemon path have it: it never exceeds its credit, gives credit back when it likes,
//! and checks everything that it is given.

use crate::behaviour::PeerBehaviour;
use crate::content::{Fate, Tag};
use crate::model_peer::{IncomingMessage, Memory, ModelPeer, OutgoingMessage};
use crate::random::Random;
use isthmus_layout::DomainId;
use isthmus_layout::limits::{
    DAEMON_PATH_CREDIT_BYTES, DAEMON_PATH_FRAGMENT_BYTES_MAX, DAEMON_PATH_RECORD_COST, INLINE_BYTES_MAX,
    SLAB_MESSAGE_BYTES_MAX,
};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{ReceiveOutcome, Record, Route, Serial};
use isthmus_mx::net::{Address, Time};
use isthmus_mx_transport::{LocalPeer, MxTransport};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An entry of the ring.
#[derive(Debug)]
enum RingEntry {
    Record(Record<'static>, Vec<u8>),
    Removed,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct ModelLibrary {
    me: u8,
    random: Random,
    pub(crate) behaviour: PeerBehaviour,
    /// True while the program computes and does not call the library.
    pub(crate) is_computing: bool,
    /// True if the program has ended. The ring is not read any more.
    pub(crate) closed: bool,
    ring: VecDeque<(DomainId, RingEntry)>,
    pub(crate) peers: BTreeMap<DomainId, ModelPeer>,
    pub(crate) current: BTreeMap<Address, DomainId>,
    remote_peers_max: u32,
    added: u32,
    serial: u32,
    /// Messages sent, with their receiver and length.
    pub(crate) sent: BTreeMap<u64, (Address, u32)>,
    /// Sent messages that are over, with the number of bytes taken, if known.
    pub(crate) over: BTreeMap<u64, Option<u32>>,
    pub(crate) failed: BTreeSet<u64>,
    /// Messages received, with the number of bytes received.
    pub(crate) received: BTreeMap<u64, u32>,
    pub(crate) aborted: BTreeMap<u64, u16>,
    pub(crate) answers: Vec<(u64, Result<DomainId, Reason>)>,
    pub(crate) removed: Vec<DomainId>,
    pub(crate) wake: Option<Time>,
    woken: bool,
}

impl ModelLibrary {
    pub(crate) fn new(me: u8, behaviour: PeerBehaviour, seed: u64) -> Self {
        Self {
            me,
            random: Random::new(seed),
            behaviour,
            is_computing: false,
            closed: false,
            ring: VecDeque::new(),
            peers: BTreeMap::new(),
            current: BTreeMap::new(),
            remote_peers_max: u32::MAX,
            added: 0,
            serial: 0,
            sent: BTreeMap::new(),
            over: BTreeMap::new(),
            failed: BTreeSet::new(),
            received: BTreeMap::new(),
            aborted: BTreeMap::new(),
            answers: Vec::new(),
            removed: Vec::new(),
            wake: None,
            woken: false,
        }
    }

    /// Allows no more remote peers than this.
    pub(crate) fn limit_remote_peers(&mut self, most: u32) {
        self.remote_peers_max = most;
    }

    /// Queues a message. False if no remote peer is known there.
    pub(crate) fn send(&mut self, to: Address, id: u64, len: u32, sync: bool, memory: Memory) -> bool {
        let Some(&remote_peer) = self.current.get(&to) else { return false };
        self.serial += 1;
        let announced = sync || u64::from(len) > SLAB_MESSAGE_BYTES_MAX;
        let serial = Serial(self.serial);
        let out = OutgoingMessage { id, len, wanted: len, sent: 0, announced, memory, serial };
        self.peers.get_mut(&remote_peer).unwrap().queue.push_back(out);
        self.sent.insert(id, (to, len));
        self.woken = true;
        true
    }

    /// Everything is done, everywhere, as far as it can know.
    pub(crate) fn is_idle(&self) -> bool {
        self.ring.is_empty() && self.peers.values().all(ModelPeer::is_idle)
    }

    /// Records that it has not taken.
    pub(crate) fn waiting(&self) -> Vec<Record<'static>> {
        let records = self.ring.iter().filter_map(|(_, entry)| match entry {
            RingEntry::Record(record, _) => Some(*record),
            RingEntry::Removed => None,
        });
        records.collect()
    }

    /// When it looks again, if something waits for it.
    pub(crate) fn settle(&mut self, now: Time) {
        if std::mem::take(&mut self.woken) && self.wake.is_none() {
            self.wake = Some(now.after_us(1 + self.random.below(self.behaviour.poll_interval_us)));
        }
    }

    /// Takes from its ring, answers, gives credit and sends.
    pub(crate) fn poll(&mut self, now: Time, transport: &mut MxTransport) {
        self.wake = None;
        if self.closed || self.is_computing {
            return;
        }
        for _ in 0..=self.random.below(32) {
            let Some((remote_peer, entry)) = self.ring.pop_front() else { break };
            match entry {
                RingEntry::Record(record, bytes) => self.take(remote_peer, &record, &bytes),
                RingEntry::Removed => self.remove_peer(remote_peer),
            }
        }
        self.post();
        self.return_owed_credit(now, transport);
        self.advance(now, transport);
        let busy = |peer: &ModelPeer| peer.owed > 0 || !peer.unexpected.is_empty();
        self.woken |= !self.ring.is_empty() || self.peers.values().any(busy);
        self.settle(now);
        if let Some(wake) = &mut self.wake
            && self.random.chance(self.behaviour.computes_per_million)
        {
            *wake = wake.after_us(self.behaviour.computes_us);
        }
    }

    fn take(&mut self, remote_peer: DomainId, record: &Record<'static>, bytes: &[u8]) {
        let peer = self.peers.get_mut(&remote_peer).expect("a record of a peer that was removed");
        peer.owed += DAEMON_PATH_RECORD_COST + bytes.len() as u32;
        match *record {
            Record::Eager { tag, len, .. } => {
                assert_eq!(len as usize, bytes.len());
                let mut message = peer.begin(tag, len.into());
                message.take(bytes);
                self.arrived(&message);
            }
            Record::FirstFragment { tag, len, serial, .. } => {
                assert!(u64::from(len) <= SLAB_MESSAGE_BYTES_MAX && peer.started.is_none(), "it may not begin now");
                let message = peer.begin(tag, len.into());
                peer.started = Some((serial, message));
                self.take_more(remote_peer, serial, bytes);
            }
            Record::NextFragment { serial, .. } => self.take_more(remote_peer, serial, bytes),
            Record::Announce { tag, len, serial, mapped, .. } => {
                assert!(mapped.is_none() && bytes.is_empty(), "there is no memory of other hosts");
                let message = peer.begin(tag, len);
                let known =
                    peer.pulled.contains_key(&serial) || peer.unexpected.iter().any(|(other, _)| *other == serial);
                assert!(!known, "two messages of one name");
                assert_eq!(message.received, 0);
                peer.unexpected.push_back((serial, Tag::parse(tag)));
            }
            Record::Pull { serial, bytes } => {
                let mut out = peer.announced.remove(&serial).expect("something that was announced");
                out.wanted = u32::try_from(bytes).unwrap().min(out.len);
                assert_eq!(Fate::of(out.id, out.len), Fate::Completed(out.wanted));
                peer.streams.push_back(out);
            }
            Record::Completed { serial, outcome, bytes } => {
                let out = peer.announced.remove(&serial).expect("something that was announced");
                assert_eq!(outcome, ReceiveOutcome::Copied);
                self.over.insert(out.id, Some(u32::try_from(bytes).unwrap()));
            }
            Record::Bounce { serial, .. } => {
                let out = peer.announced.remove(&serial).expect("something that was announced");
                self.failed.insert(out.id);
            }
            Record::Abort { serial, reason } => {
                let message = peer.pulled.remove(&serial).expect("something that was pulled");
                self.aborted.insert(message.id, reason);
            }
            Record::Switch | Record::Credit { .. } => panic!("{record:?} from a transport"),
        }
    }

    fn take_more(&mut self, remote_peer: DomainId, serial: Serial, bytes: &[u8]) {
        let peer = self.peers.get_mut(&remote_peer).unwrap();
        let started = peer.started.as_mut().filter(|(started, _)| *started == serial).map(|(_, message)| message);
        let message = started.or_else(|| peer.pulled.get_mut(&serial)).expect("a fragment of a message that began");
        assert!(!bytes.is_empty() || message.expected == 0, "a fragment is not empty");
        message.take(bytes);
        if message.received < message.expected {
            return;
        }
        let started = peer.started.take_if(|(started, _)| *started == serial).map(|(_, message)| message);
        let whole = started.or_else(|| peer.pulled.remove(&serial)).unwrap();
        self.arrived(&whole);
    }

    fn arrived(&mut self, message: &IncomingMessage) {
        assert_eq!(message.received, message.expected, "message {}", message.id);
        assert_eq!(self.received.insert(message.id, message.received), None, "message {} came twice", message.id);
    }

    fn remove_peer(&mut self, remote_peer: DomainId) {
        let peer = self.peers.remove(&remote_peer).expect("a peer is removed once");
        let outs = peer.queue.iter().chain(&peer.streams).chain(peer.announced.values());
        self.failed.extend(outs.map(|out| out.id));
        self.failed.extend(peer.flight.iter().filter_map(|(_, over)| *over));
        let ins = peer.pulled.values().chain(peer.started.iter().map(|(_, message)| message));
        self.aborted.extend(ins.map(|message| (message.id, Reason::MxDisconnected.code())));
        if self.current.get(&peer.address) == Some(&remote_peer) {
            self.current.remove(&peer.address);
        }
        self.removed.push(remote_peer);
    }

    /// Receives for what was announced.
    fn post(&mut self) {
        for remote_peer in self.peers.keys().copied().collect::<Vec<_>>() {
            while self.random.chance(self.behaviour.posts_per_million) {
                let peer = self.peers.get_mut(&remote_peer).unwrap();
                let Some((serial, tag)) = peer.unexpected.pop_front() else { break };
                let fate = Fate::of(tag.id, tag.len);
                peer.urgent.push_back(match fate {
                    Fate::Completed(0) => Record::Completed { serial, outcome: ReceiveOutcome::Copied, bytes: 0 },
                    Fate::Completed(bytes) => Record::Pull { serial, bytes: bytes.into() },
                    Fate::Dropped => Record::Completed { serial, outcome: ReceiveOutcome::Dropped, bytes: 0 },
                    Fate::Bounced => Record::Bounce { serial, reason: Reason::EndpointClosed.code() },
                });
                match fate.bytes() {
                    0 => self.arrived(&IncomingMessage { id: tag.id, expected: 0, received: 0 }),
                    expected => {
                        peer.pulled.insert(serial, IncomingMessage { id: tag.id, expected, received: 0 });
                    }
                }
            }
        }
    }

    fn return_owed_credit(&mut self, now: Time, transport: &mut MxTransport) {
        for remote_peer in self.peers.keys().copied().collect::<Vec<_>>() {
            if !self.random.chance(self.behaviour.gives_per_million) {
                continue;
            }
            let Some(peer) = self.peers.get_mut(&remote_peer) else { continue };
            let owed = std::mem::take(&mut peer.owed);
            peer.room += owed;
            assert!(peer.room <= DAEMON_PATH_CREDIT_BYTES);
            if owed > 0 {
                transport.return_domain_credit(now, remote_peer, owed, self);
            }
        }
    }

    /// Sends what waits, as far as there is credit.
    fn advance(&mut self, now: Time, transport: &mut MxTransport) {
        for remote_peer in self.peers.keys().copied().collect::<Vec<_>>() {
            while let Some((record, bytes)) = self.next_record(remote_peer, transport) {
                transport.handle_domain_record(now, remote_peer, &record, &bytes, self).unwrap();
            }
        }
    }

    /// The next record for a remote peer, if it can be afforded.
    fn next_record(
        &mut self,
        remote_peer: DomainId,
        transport: &mut MxTransport,
    ) -> Option<(Record<'static>, Vec<u8>)> {
        let most = 1 + self.random.below(DAEMON_PATH_FRAGMENT_BYTES_MAX.into()) as u32;
        let me = self.me;
        let peer = self.peers.get_mut(&remote_peer)?;
        if peer.left < DAEMON_PATH_RECORD_COST {
            return None;
        }
        if let Some(record) = peer.urgent.pop_front() {
            return Some(peer.send(record, Vec::new(), None));
        }
        if let Some(mut out) = peer.queue.pop_front() {
            let affordable = peer.left - DAEMON_PATH_RECORD_COST;
            let record = if out.announced {
                peer.announce(me, &out, remote_peer, transport)
            } else if out.len as usize <= INLINE_BYTES_MAX {
                (out.len <= affordable).then(|| {
                    out.sent = out.len;
                    let record = Record::Eager { tag: out.tag(me), len: out.len, words: &[] };
                    peer.send(record, out.bytes(0, out.len), Some(out.id))
                })
            } else {
                peer.next_fragment(me, &mut out, most)
            };
            match (&record, out.announced) {
                (Some(_), true) => {
                    peer.announced.insert(out.serial, out);
                }
                (Some(_), false) if out.sent == out.len => {}
                _ => peer.queue.push_front(out),
            }
            return record;
        }
        let mut out = peer.streams.pop_front()?;
        let record = peer.next_fragment(me, &mut out, most);
        match (record.is_some(), out.sent == out.wanted) {
            (_, true) => {}
            (true, _) => peer.streams.push_back(out),
            (false, _) => peer.streams.push_front(out),
        }
        record
    }
}

impl LocalPeer for ModelLibrary {
    fn deliver(&mut self, route: Route, record: &Record<'_>, bytes: &[u8]) {
        assert!(!self.closed, "{record:?} for a domain that is gone");
        let remote_peer = route.peer.unwrap();
        let peer = self.peers.get_mut(&remote_peer).expect("a record of a peer that was added");
        assert!(!peer.removed, "{record:?} of a peer that was removed");
        let cost = DAEMON_PATH_RECORD_COST + bytes.len() as u32;
        peer.room = peer.room.checked_sub(cost).expect("a record beyond the credit that was given");
        let record = match *record {
            Record::Eager { tag, len, .. } => Record::Eager { tag, len, words: &[] },
            Record::FirstFragment { tag, len, serial, fragment } => {
                Record::FirstFragment { tag, len, serial, fragment }
            }
            Record::NextFragment { serial, fragment } => Record::NextFragment { serial, fragment },
            Record::Announce { tag, len, serial, fragment, mapped } => {
                Record::Announce { tag, len, serial, fragment, mapped }
            }
            Record::Pull { serial, bytes } => Record::Pull { serial, bytes },
            Record::Completed { serial, outcome, bytes } => Record::Completed { serial, outcome, bytes },
            Record::Switch => Record::Switch,
            Record::Credit { bytes } => Record::Credit { bytes },
            Record::Bounce { serial, reason } => Record::Bounce { serial, reason },
            Record::Abort { serial, reason } => Record::Abort { serial, reason },
        };
        self.ring.push_back((remote_peer, RingEntry::Record(record, bytes.to_vec())));
        self.woken = true;
    }

    fn return_credit(&mut self, route: Route, bytes: u32) {
        let Some(peer) = self.peers.get_mut(&route.peer.unwrap()) else { panic!("credit of an unknown peer") };
        assert!(bytes > 0 && !self.closed);
        peer.left += bytes;
        peer.returned += bytes;
        assert!(peer.left <= DAEMON_PATH_CREDIT_BYTES, "credit for what was not sent");
        while let Some((cost, over)) = peer.flight.front().copied()
            && cost <= peer.returned
        {
            peer.returned -= cost;
            peer.flight.pop_front();
            if let Some(id) = over {
                self.over.insert(id, None);
            }
        }
        assert_eq!(
            peer.left + peer.flight.iter().map(|(cost, _)| cost).sum::<u32>(),
            DAEMON_PATH_CREDIT_BYTES + peer.returned,
            "credit is conserved"
        );
        self.woken = true;
    }

    fn remote_peer_added(&mut self, address: Address) -> Option<DomainId> {
        if self.added >= self.remote_peers_max {
            return None;
        }
        self.added += 1;
        let remote_peer = DomainId::remote(self.added).unwrap();
        self.current.insert(address, remote_peer);
        self.peers.insert(remote_peer, ModelPeer::new(address));
        Some(remote_peer)
    }

    fn remote_peer_removed(&mut self, remote_peer: DomainId, reason: Reason) {
        assert_eq!(reason, Reason::MxDisconnected);
        let peer = self.peers.get_mut(&remote_peer).expect("a peer that was added");
        assert!(!std::mem::replace(&mut peer.removed, true), "a peer is removed once");
        self.ring.push_back((remote_peer, RingEntry::Removed));
        self.woken = true;
    }

    fn connect_finished(&mut self, request: u64, outcome: Result<DomainId, Reason>) {
        if let Ok(remote_peer) = outcome {
            assert!(self.peers.contains_key(&remote_peer), "the peer that it reached was added");
        }
        self.answers.push((request, outcome));
        self.woken = true;
    }
}
