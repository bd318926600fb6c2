//! The router's state of one domain of this worker: the domains it sends to, its senders, and the records that wait for room
//! in its ring.

use crate::flow::{Flow, HeldRecord, QueuePool};
use crate::router::Location;
use isthmus_layout::DomainId;
use isthmus_layout::control::Owner;
use isthmus_layout::limits::{DAEMON_PATH_CREDIT_BYTES, DAEMON_PATH_RECORD_COST};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route, Serial};
use std::collections::{HashMap, VecDeque};

/// The maximum deferred credit of a pair, so that a sender has most of its credit at any time.
const DEFERRED_CREDIT_BYTES_MAX: u32 = DAEMON_PATH_CREDIT_BYTES / 4;

/// A domain's account with one receiver: the cost of its records in flight, and whether it may send.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) location: Location,
    /// The cost of the records that were accepted and not returned as credit.
    pub(crate) outstanding: u32,
    /// Whether the domain may send messages to the receiver.
    pub(crate) may_send: Result<(), Reason>,
    /// Whether the domain may reply to messages of the receiver.
    pub(crate) may_reply: Result<(), Reason>,
    /// The policy that `may_send` and `may_reply` come from.
    pub(crate) policy: u32,
}

/// A bounce or a credit that the daemon sends. Credits may be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DaemonRecord {
    pub(crate) route: Route,
    pub(crate) record: Record<'static>,
}

/// The record that goes into a domain's ring next.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    DaemonRecord(&'a DaemonRecord),
    HeldRecord(&'a HeldRecord, &'a Flow),
}

/// One domain of this worker.
#[derive(Debug)]
pub(crate) struct DomainState {
    pub(crate) domain: DomainId,
    pub(crate) owner: Owner,
    pub(crate) outgoing: HashMap<DomainId, Outgoing>,
    pub(crate) flows: HashMap<DomainId, Flow>,
    /// Senders of held records, in the order in which they are served.
    ready_senders: VecDeque<DomainId>,
    /// Bounces of this domain's messages that were not delivered.
    bounces: VecDeque<DaemonRecord>,
    /// Credit that this domain gets back, one record for each receiver.
    credits: VecDeque<DaemonRecord>,
    /// Deferred credit: this domain gets it with the next record, or when it reaches the limit.
    owed: Vec<(Route, u32)>,
    /// Credit this domain may return beyond what was delivered to it, because bounces from the daemon are not charged to a sender.
    pub(crate) excess_credit: u64,
    /// The cost of the records held for this domain.
    pub(crate) held_cost: u64,
    /// Whether the domain is on the router's waiting list.
    pub(crate) is_waiting: bool,
}

impl DomainState {
    pub(crate) fn new(domain: DomainId, owner: Owner) -> Self {
        Self {
            domain,
            owner,
            outgoing: HashMap::new(),
            flows: HashMap::new(),
            ready_senders: VecDeque::new(),
            bounces: VecDeque::new(),
            credits: VecDeque::new(),
            owed: Vec::new(),
            excess_credit: 0,
            held_cost: 0,
            is_waiting: false,
        }
    }

    /// Returns whether no record waits for room in the domain's ring.
    pub(crate) fn is_clear(&self) -> bool {
        self.ready_senders.is_empty() && self.pending_daemon_records() == 0
    }

    /// The number of the daemon's own records that wait.
    pub(crate) fn pending_daemon_records(&self) -> usize {
        self.bounces.len() + self.credits.len()
    }

    /// Reports that a record was not delivered, and gives its credit back.
    pub(crate) fn bounce(&mut self, route: Route, serial: Serial, reason: Reason, cost: u32) {
        self.excess_credit += u64::from(DAEMON_PATH_RECORD_COST);
        self.credit(route, cost);
        self.bounces.push_back(DaemonRecord { route, record: Record::Bounce { serial, reason: reason.code() } });
    }

    /// Queues credit for this domain, merged with queued credit from the same peer.
    pub(crate) fn credit(&mut self, route: Route, bytes: u32) {
        for waiting in &mut self.credits {
            if let Record::Credit { bytes: total } = &mut waiting.record
                && waiting.route.peer == route.peer
            {
                *total = total.saturating_add(bytes);
                return;
            }
        }
        self.credits.push_back(DaemonRecord { route, record: Record::Credit { bytes } });
    }

    /// Defers credit until another record goes to the domain. True if the deferred credit has reached its limit.
    pub(crate) fn defer_credit(&mut self, route: Route, bytes: u32) -> bool {
        let total = match self.owed.iter_mut().find(|(owed, _)| owed.peer == route.peer) {
            Some((_, owed)) => {
                *owed += bytes; // No more than the credit of the pair.
                *owed
            }
            None => {
                self.owed.push((route, bytes));
                bytes
            }
        };
        total >= DEFERRED_CREDIT_BYTES_MAX
    }

    /// Takes one deferred credit.
    pub(crate) fn pop_deferred(&mut self) -> Option<(Route, u32)> {
        self.owed.pop()
    }

    /// Holds a record of `sender` until there is room.
    pub(crate) fn enqueue(&mut self, sender: DomainId, held: HeldRecord, bytes: &[u8], queue_pool: &mut QueuePool) {
        let flow = self.flows.entry(sender).or_default();
        if flow.is_clear() {
            self.ready_senders.push_back(sender);
        }
        self.held_cost += u64::from(held.cost());
        flow.enqueue(held, bytes, queue_pool);
    }

    /// The record that goes into the domain's ring next. The daemon's records come first, because they are short and a sender that
    /// waits for them cannot go on. Bounces precede the credit for the bounced records, so that a library never takes that credit
    /// for the receiver's.
    pub(crate) fn next(&self) -> Option<Next<'_>> {
        if let Some(record) = self.bounces.front().or(self.credits.front()) {
            return Some(Next::DaemonRecord(record));
        }
        let flow = &self.flows[self.ready_senders.front()?];
        flow.first().map(|held| Next::HeldRecord(held, flow))
    }

    /// Removes the record that [`Self::next`] returned, because it is in the ring. Returns it if it was a held record. Senders are
    /// served round-robin.
    pub(crate) fn sent(&mut self, queue_pool: &mut QueuePool) -> Option<(DomainId, HeldRecord)> {
        if self.bounces.pop_front().or_else(|| self.credits.pop_front()).is_some() {
            return None;
        }
        let sender = self.ready_senders.pop_front()?;
        let flow = self.flows.get_mut(&sender).expect("ready senders have flows");
        let held = flow.pop_first(queue_pool)?;
        flow.delivered += held.cost();
        if !flow.is_clear() {
            self.ready_senders.push_back(sender);
        }
        self.held_cost -= u64::from(held.cost());
        Some((sender, held))
    }
}
