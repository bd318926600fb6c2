//! One domain of this worker, as the router knows it: whom it sends to, who sends to it, and what waits for room in its ring.

use crate::flow::{Flow, HeldRecord, QueuePool};
use crate::router::Location;
use isthmus_layout::DomainId;
use isthmus_layout::control::Owner;
use isthmus_layout::limits::{DAEMON_PATH_CREDIT_BYTES, DAEMON_PATH_RECORD_COST};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route, Serial};
use std::collections::{HashMap, VecDeque};

/// Deferred credit, at most: a sender has most of its credit at any time.
const DEFERRED_CREDIT_BYTES_MAX: u32 = DAEMON_PATH_CREDIT_BYTES / 4;

/// What a domain has under way to another one, and whether it may.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) location: Location,
    /// Cost of what was accepted and not given back.
    pub(crate) outstanding: u32,
    /// Whether messages may go there.
    pub(crate) may_send: Result<(), Reason>,
    /// Whether replies to messages may.
    pub(crate) may_reply: Result<(), Reason>,
    /// The policy that `may_send` and `may_reply` come from.
    pub(crate) policy: u32,
}

/// A small record of the daemon's own, or one that it may merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DaemonRecord {
    pub(crate) route: Route,
    pub(crate) record: Record<'static>,
}

/// What goes into a domain's ring next.
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
    /// Senders of which something is held, in the order in which they are served.
    ready_senders: VecDeque<DomainId>,
    /// Messages of it that were not delivered.
    bounces: VecDeque<DaemonRecord>,
    /// Credit that it gets back, one record for each domain.
    credits: VecDeque<DaemonRecord>,
    /// Credit that it gets back with something else.
    owed: Vec<(Route, u32)>,
    /// It may give back so much more than was delivered: bounces of the daemon's own, for which no sender paid.
    pub(crate) excess_credit: u64,
    /// Cost of what is held for it.
    pub(crate) held_cost: u64,
    /// It stands in the router's list of those who wait for room.
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

    /// True if nothing waits for room in its ring.
    pub(crate) fn is_clear(&self) -> bool {
        self.ready_senders.is_empty() && self.pending_daemon_records() == 0
    }

    /// Records of the daemon's own that wait.
    pub(crate) fn pending_daemon_records(&self) -> usize {
        self.bounces.len() + self.credits.len()
    }

    /// Reports that a record was not delivered, and gives its credit back.
    pub(crate) fn bounce(&mut self, route: Route, serial: Serial, reason: Reason, cost: u32) {
        self.excess_credit += u64::from(DAEMON_PATH_RECORD_COST);
        self.credit(route, cost);
        self.bounces.push_back(DaemonRecord { route, record: Record::Bounce { serial, reason: reason.code() } });
    }

    /// Gives credit back, together with what waits to be given back by the same domain.
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

    /// Keeps credit until something else goes to the domain. True if that is too long.
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

    /// Something that was kept so.
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

    /// What goes into its ring next. Records of the daemon first: they are short, and a sender that waits for them cannot go on. Bounces before the
    /// credit for what bounced, so that a library never takes it for the receiver's.
    pub(crate) fn next(&self) -> Option<Next<'_>> {
        if let Some(record) = self.bounces.front().or(self.credits.front()) {
            return Some(Next::DaemonRecord(record));
        }
        let flow = &self.flows[self.ready_senders.front()?];
        flow.first().map(|held| Next::HeldRecord(held, flow))
    }

    /// What [`Self::next`] showed is in the ring. Senders are served round-robin. Returns what was held.
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
