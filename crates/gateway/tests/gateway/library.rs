//! A library with its program, as the rules of the ordinary path have it: it never exceeds its credit, gives credit back when it likes,
//! and checks everything that it is given.

use crate::content::{Fate, Tag};
use crate::habits::Habits;
use crate::peer::{In, Memory, Out, Peer};
use crate::random::Random;
use isthmus_gateway::{Domain, Gateway};
use isthmus_layout::DomainId;
use isthmus_layout::limits::{
    INLINE_BYTES_MAX, ORDINARY_CREDIT_BYTES, ORDINARY_FRAGMENT_BYTES_MAX, ORDINARY_RECORD_COST, SLAB_MESSAGE_BYTES_MAX,
};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Outcome, Record, Route, Serial};
use isthmus_mx::net::{Address, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is in the ring.
#[derive(Debug)]
enum Lying {
    Record(Record<'static>, Vec<u8>),
    Part,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Library {
    me: u8,
    random: Random,
    pub(crate) habits: Habits,
    /// It does nothing at all.
    pub(crate) computes: bool,
    /// It has ended: nobody reads its ring.
    pub(crate) closed: bool,
    ring: VecDeque<(DomainId, Lying)>,
    pub(crate) peers: BTreeMap<DomainId, Peer>,
    pub(crate) current: BTreeMap<Address, DomainId>,
    strangers_max: u32,
    met: u32,
    serial: u32,
    /// Messages of ours: where to, and how long.
    pub(crate) sent: BTreeMap<u64, (Address, u32)>,
    /// Those that are over, and how much of them was taken as far as we know.
    pub(crate) over: BTreeMap<u64, Option<u32>>,
    pub(crate) failed: BTreeSet<u64>,
    /// Messages to us, and how much of them we have.
    pub(crate) received: BTreeMap<u64, u32>,
    pub(crate) aborted: BTreeMap<u64, u16>,
    pub(crate) answers: Vec<(u64, Result<DomainId, Reason>)>,
    pub(crate) parted: Vec<DomainId>,
    pub(crate) wake: Option<Time>,
    woken: bool,
}

impl Library {
    pub(crate) fn new(me: u8, habits: Habits, seed: u64) -> Self {
        Self {
            me,
            random: Random::new(seed),
            habits,
            computes: false,
            closed: false,
            ring: VecDeque::new(),
            peers: BTreeMap::new(),
            current: BTreeMap::new(),
            strangers_max: u32::MAX,
            met: 0,
            serial: 0,
            sent: BTreeMap::new(),
            over: BTreeMap::new(),
            failed: BTreeSet::new(),
            received: BTreeMap::new(),
            aborted: BTreeMap::new(),
            answers: Vec::new(),
            parted: Vec::new(),
            wake: None,
            woken: false,
        }
    }

    /// No more strangers than this.
    pub(crate) fn limit_strangers(&mut self, most: u32) {
        self.strangers_max = most;
    }

    /// Puts a message in line. False if nobody is known there.
    pub(crate) fn send(&mut self, to: Address, id: u64, len: u32, sync: bool, memory: Memory) -> bool {
        let Some(&stranger) = self.current.get(&to) else { return false };
        self.serial += 1;
        let announced = sync || u64::from(len) > SLAB_MESSAGE_BYTES_MAX;
        let serial = Serial(self.serial);
        let out = Out { id, len, wanted: len, sent: 0, announced, memory, serial };
        self.peers.get_mut(&stranger).unwrap().queue.push_back(out);
        self.sent.insert(id, (to, len));
        self.woken = true;
        true
    }

    /// Everything is done, everywhere, as far as it can know.
    pub(crate) fn is_idle(&self) -> bool {
        self.ring.is_empty() && self.peers.values().all(Peer::is_idle)
    }

    /// Records that it has not taken.
    pub(crate) fn waiting(&self) -> Vec<Record<'static>> {
        let records = self.ring.iter().filter_map(|(_, lying)| match lying {
            Lying::Record(record, _) => Some(*record),
            Lying::Part => None,
        });
        records.collect()
    }

    /// When it looks again, if something waits for it.
    pub(crate) fn settle(&mut self, now: Time) {
        if std::mem::take(&mut self.woken) && self.wake.is_none() {
            self.wake = Some(now.after_us(1 + self.random.below(self.habits.look_us)));
        }
    }

    /// Takes from its ring, answers, gives credit and sends.
    pub(crate) fn look(&mut self, now: Time, gateway: &mut Gateway) {
        self.wake = None;
        if self.closed || self.computes {
            return;
        }
        for _ in 0..=self.random.below(32) {
            let Some((stranger, lying)) = self.ring.pop_front() else { break };
            match lying {
                Lying::Record(record, bytes) => self.take(stranger, &record, &bytes),
                Lying::Part => self.part_with(stranger),
            }
        }
        self.post();
        self.give(now, gateway);
        self.advance(now, gateway);
        let busy = |peer: &Peer| peer.owed > 0 || !peer.unexpected.is_empty();
        self.woken |= !self.ring.is_empty() || self.peers.values().any(busy);
        self.settle(now);
        if let Some(wake) = &mut self.wake
            && self.random.chance(self.habits.computes_per_million)
        {
            *wake = wake.after_us(self.habits.computes_us);
        }
    }

    fn take(&mut self, stranger: DomainId, record: &Record<'static>, bytes: &[u8]) {
        let peer = self.peers.get_mut(&stranger).expect("a record of somebody who has parted");
        peer.owed += ORDINARY_RECORD_COST + bytes.len() as u32;
        match *record {
            Record::Eager { tag, len, .. } => {
                assert_eq!(len as usize, bytes.len());
                let mut message = peer.begin(tag, len.into());
                message.take(bytes);
                self.arrived(&message);
            }
            Record::Start { tag, len, serial, .. } => {
                assert!(u64::from(len) <= SLAB_MESSAGE_BYTES_MAX && peer.started.is_none(), "it may not begin now");
                let message = peer.begin(tag, len.into());
                peer.started = Some((serial, message));
                self.take_more(stranger, serial, bytes);
            }
            Record::More { serial, .. } => self.take_more(stranger, serial, bytes),
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
                assert_eq!(Fate::of(out.id, out.len), Fate::Taken(out.wanted));
                peer.streams.push_back(out);
            }
            Record::Taken { serial, outcome, bytes } => {
                let out = peer.announced.remove(&serial).expect("something that was announced");
                assert_eq!(outcome, Outcome::Copied);
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
            Record::Switch | Record::Credit { .. } => panic!("{record:?} from a gateway"),
        }
    }

    fn take_more(&mut self, stranger: DomainId, serial: Serial, bytes: &[u8]) {
        let peer = self.peers.get_mut(&stranger).unwrap();
        let started = peer.started.as_mut().filter(|(started, _)| *started == serial).map(|(_, message)| message);
        let message = started.or_else(|| peer.pulled.get_mut(&serial)).expect("a piece of a message that began");
        assert!(!bytes.is_empty() || message.expected == 0, "a piece is not empty");
        message.take(bytes);
        if message.received < message.expected {
            return;
        }
        let started = peer.started.take_if(|(started, _)| *started == serial).map(|(_, message)| message);
        let whole = started.or_else(|| peer.pulled.remove(&serial)).unwrap();
        self.arrived(&whole);
    }

    fn arrived(&mut self, message: &In) {
        assert_eq!(message.received, message.expected, "message {}", message.id);
        assert_eq!(self.received.insert(message.id, message.received), None, "message {} came twice", message.id);
    }

    fn part_with(&mut self, stranger: DomainId) {
        let peer = self.peers.remove(&stranger).expect("somebody parts once");
        let outs = peer.queue.iter().chain(&peer.streams).chain(peer.announced.values());
        self.failed.extend(outs.map(|out| out.id));
        self.failed.extend(peer.flight.iter().filter_map(|(_, over)| *over));
        let ins = peer.pulled.values().chain(peer.started.iter().map(|(_, message)| message));
        self.aborted.extend(ins.map(|message| (message.id, Reason::MxSevered.code())));
        if self.current.get(&peer.address) == Some(&stranger) {
            self.current.remove(&peer.address);
        }
        self.parted.push(stranger);
    }

    /// Receives for what was announced.
    fn post(&mut self) {
        for stranger in self.peers.keys().copied().collect::<Vec<_>>() {
            while self.random.chance(self.habits.posts_per_million) {
                let peer = self.peers.get_mut(&stranger).unwrap();
                let Some((serial, tag)) = peer.unexpected.pop_front() else { break };
                let fate = Fate::of(tag.id, tag.len);
                peer.urgent.push_back(match fate {
                    Fate::Taken(0) => Record::Taken { serial, outcome: Outcome::Copied, bytes: 0 },
                    Fate::Taken(bytes) => Record::Pull { serial, bytes: bytes.into() },
                    Fate::Dropped => Record::Taken { serial, outcome: Outcome::Dropped, bytes: 0 },
                    Fate::Bounced => Record::Bounce { serial, reason: Reason::EndpointClosed.code() },
                });
                match fate.bytes() {
                    0 => self.arrived(&In { id: tag.id, expected: 0, received: 0 }),
                    expected => {
                        peer.pulled.insert(serial, In { id: tag.id, expected, received: 0 });
                    }
                }
            }
        }
    }

    fn give(&mut self, now: Time, gateway: &mut Gateway) {
        for stranger in self.peers.keys().copied().collect::<Vec<_>>() {
            if !self.random.chance(self.habits.gives_per_million) {
                continue;
            }
            let Some(peer) = self.peers.get_mut(&stranger) else { continue };
            let owed = std::mem::take(&mut peer.owed);
            peer.room += owed;
            assert!(peer.room <= ORDINARY_CREDIT_BYTES);
            if owed > 0 {
                gateway.give(now, stranger, owed, self);
            }
        }
    }

    /// Sends what waits, as far as there is credit.
    fn advance(&mut self, now: Time, gateway: &mut Gateway) {
        for stranger in self.peers.keys().copied().collect::<Vec<_>>() {
            while let Some((record, bytes)) = self.next_record(stranger, gateway) {
                gateway.take(now, stranger, &record, &bytes, self).unwrap();
            }
        }
    }

    /// The next record for a stranger, if it can be afforded.
    fn next_record(&mut self, stranger: DomainId, gateway: &mut Gateway) -> Option<(Record<'static>, Vec<u8>)> {
        let most = 1 + self.random.below(ORDINARY_FRAGMENT_BYTES_MAX.into()) as u32;
        let me = self.me;
        let peer = self.peers.get_mut(&stranger)?;
        if peer.left < ORDINARY_RECORD_COST {
            return None;
        }
        if let Some(record) = peer.urgent.pop_front() {
            return Some(peer.send(record, Vec::new(), None));
        }
        if let Some(mut out) = peer.queue.pop_front() {
            let affordable = peer.left - ORDINARY_RECORD_COST;
            let record = if out.announced {
                peer.announce(me, &out, stranger, gateway)
            } else if out.len as usize <= INLINE_BYTES_MAX {
                (out.len <= affordable).then(|| {
                    out.sent = out.len;
                    let record = Record::Eager { tag: out.tag(me), len: out.len, words: &[] };
                    peer.send(record, out.bytes(0, out.len), Some(out.id))
                })
            } else {
                peer.piece(me, &mut out, most)
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
        let record = peer.piece(me, &mut out, most);
        match (record.is_some(), out.sent == out.wanted) {
            (_, true) => {}
            (true, _) => peer.streams.push_back(out),
            (false, _) => peer.streams.push_front(out),
        }
        record
    }
}

impl Domain for Library {
    fn deliver(&mut self, route: Route, record: &Record<'_>, bytes: &[u8]) {
        assert!(!self.closed, "{record:?} for a domain that is gone");
        let stranger = route.peer.unwrap();
        let peer = self.peers.get_mut(&stranger).expect("a record of somebody who was met");
        assert!(!peer.parted, "{record:?} of somebody who has parted");
        let cost = ORDINARY_RECORD_COST + bytes.len() as u32;
        peer.room = peer.room.checked_sub(cost).expect("a record beyond the credit that was given");
        let record = match *record {
            Record::Eager { tag, len, .. } => Record::Eager { tag, len, words: &[] },
            Record::Start { tag, len, serial, piece } => Record::Start { tag, len, serial, piece },
            Record::More { serial, piece } => Record::More { serial, piece },
            Record::Announce { tag, len, serial, piece, mapped } => {
                Record::Announce { tag, len, serial, piece, mapped }
            }
            Record::Pull { serial, bytes } => Record::Pull { serial, bytes },
            Record::Taken { serial, outcome, bytes } => Record::Taken { serial, outcome, bytes },
            Record::Switch => Record::Switch,
            Record::Credit { bytes } => Record::Credit { bytes },
            Record::Bounce { serial, reason } => Record::Bounce { serial, reason },
            Record::Abort { serial, reason } => Record::Abort { serial, reason },
        };
        self.ring.push_back((stranger, Lying::Record(record, bytes.to_vec())));
        self.woken = true;
    }

    fn credit(&mut self, route: Route, bytes: u32) {
        let Some(peer) = self.peers.get_mut(&route.peer.unwrap()) else { panic!("credit of nobody") };
        assert!(bytes > 0 && !self.closed);
        peer.left += bytes;
        peer.returned += bytes;
        assert!(peer.left <= ORDINARY_CREDIT_BYTES, "credit for what was not sent");
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
            ORDINARY_CREDIT_BYTES + peer.returned,
            "credit is conserved"
        );
        self.woken = true;
    }

    fn meet(&mut self, address: Address) -> Option<DomainId> {
        if self.met >= self.strangers_max {
            return None;
        }
        self.met += 1;
        let stranger = DomainId::remote(self.met).unwrap();
        self.current.insert(address, stranger);
        self.peers.insert(stranger, Peer::new(address));
        Some(stranger)
    }

    fn part(&mut self, stranger: DomainId, reason: Reason) {
        assert_eq!(reason, Reason::MxSevered);
        let peer = self.peers.get_mut(&stranger).expect("somebody who was met");
        assert!(!std::mem::replace(&mut peer.parted, true), "somebody parts once");
        self.ring.push_back((stranger, Lying::Part));
        self.woken = true;
    }

    fn connected(&mut self, request: u64, outcome: Result<DomainId, Reason>) {
        if let Ok(stranger) = outcome {
            assert!(self.peers.contains_key(&stranger), "whom it reached was met");
        }
        self.answers.push((request, outcome));
        self.woken = true;
    }
}
