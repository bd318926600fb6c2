//! One domain of this worker, as the router knows it: whom it sends to, who sends to it, and what waits for room in its ring.

use crate::lane::{Held, Lane, Spare};
use crate::router::Home;
use isthmus_layout::DomainId;
use isthmus_layout::control::Owner;
use isthmus_layout::limits::{ORDINARY_CREDIT_BYTES, ORDINARY_RECORD_COST};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route, Serial};
use std::collections::{HashMap, VecDeque};

/// Credit that waits for company, at most: whoever sends has most of its credit at any time.
const OWED_BYTES_MAX: u32 = ORDINARY_CREDIT_BYTES / 4;

/// What a domain has under way to another one, and whether it may.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) home: Home,
    /// Cost of what was accepted and not given back.
    pub(crate) outstanding: u32,
    /// Whether messages may go there.
    pub(crate) talk: Result<(), Reason>,
    /// Whether answers to messages may.
    pub(crate) answer: Result<(), Reason>,
    /// The policy that `talk` and `answer` come from.
    pub(crate) policy: u32,
}

/// A small record of the daemon's own, or one that it may merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) route: Route,
    pub(crate) record: Record<'static>,
}

/// What goes into a domain's ring next.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    Answer(&'a Answer),
    Held(&'a Held, &'a Lane),
}

/// One domain of this worker.
#[derive(Debug)]
pub(crate) struct Party {
    pub(crate) domain: DomainId,
    pub(crate) owner: Owner,
    pub(crate) outgoing: HashMap<DomainId, Outgoing>,
    pub(crate) lanes: HashMap<DomainId, Lane>,
    /// Senders of which something is held, in turn.
    turns: VecDeque<DomainId>,
    /// Messages of it that reached nobody.
    bounces: VecDeque<Answer>,
    /// Credit that it gets back, one record for each domain.
    credits: VecDeque<Answer>,
    /// Credit that it gets back with something else.
    owed: Vec<(Route, u32)>,
    /// It may give back so much more than was delivered: bounces of the daemon's own, for which no sender paid.
    pub(crate) allowance: u64,
    /// Cost of what is held for it.
    pub(crate) held_cost: u64,
    /// It stands in the router's list of those who wait for room.
    pub(crate) listed: bool,
}

impl Party {
    pub(crate) fn new(domain: DomainId, owner: Owner) -> Self {
        Self {
            domain,
            owner,
            outgoing: HashMap::new(),
            lanes: HashMap::new(),
            turns: VecDeque::new(),
            bounces: VecDeque::new(),
            credits: VecDeque::new(),
            owed: Vec::new(),
            allowance: 0,
            held_cost: 0,
            listed: false,
        }
    }

    /// True if nothing waits for room in its ring.
    pub(crate) fn is_clear(&self) -> bool {
        self.turns.is_empty() && self.answers() == 0
    }

    /// Records of the daemon's own that wait.
    pub(crate) fn answers(&self) -> usize {
        self.bounces.len() + self.credits.len()
    }

    /// Says that a record reached nobody, and gives its credit back.
    pub(crate) fn bounce(&mut self, route: Route, serial: Serial, reason: Reason, cost: u32) {
        self.allowance += u64::from(ORDINARY_RECORD_COST);
        self.credit(route, cost);
        self.bounces.push_back(Answer { route, record: Record::Bounce { serial, reason: reason.code() } });
    }

    /// Gives credit back, together with what waits to be given back by the same domain.
    pub(crate) fn credit(&mut self, route: Route, bytes: u32) {
        for answer in &mut self.credits {
            if let Record::Credit { bytes: waiting } = &mut answer.record
                && answer.route.peer == route.peer
            {
                *waiting = waiting.saturating_add(bytes);
                return;
            }
        }
        self.credits.push_back(Answer { route, record: Record::Credit { bytes } });
    }

    /// Keeps credit until something else goes to the domain. True if that is too long.
    pub(crate) fn owe(&mut self, route: Route, bytes: u32) -> bool {
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
        total >= OWED_BYTES_MAX
    }

    /// Something that was kept so.
    pub(crate) fn owed(&mut self) -> Option<(Route, u32)> {
        self.owed.pop()
    }

    /// Holds a record of `sender` until there is room.
    pub(crate) fn hold(&mut self, sender: DomainId, held: Held, bytes: &[u8], spare: &mut Spare) {
        let lane = self.lanes.entry(sender).or_default();
        if lane.is_clear() {
            self.turns.push_back(sender);
        }
        self.held_cost += u64::from(held.cost());
        lane.hold(held, bytes, spare);
    }

    /// What goes into its ring next. Answers first: they are short, and whoever waits for them cannot go on. Bounces before the
    /// credit for what bounced, so that a library never takes it for the receiver's.
    pub(crate) fn next(&self) -> Option<Next<'_>> {
        if let Some(answer) = self.bounces.front().or(self.credits.front()) {
            return Some(Next::Answer(answer));
        }
        let lane = &self.lanes[self.turns.front()?];
        lane.first().map(|held| Next::Held(held, lane))
    }

    /// What [`Self::next`] showed is in the ring. Senders take turns. Answers what was held.
    pub(crate) fn sent(&mut self, spare: &mut Spare) -> Option<(DomainId, Held)> {
        if self.bounces.pop_front().or_else(|| self.credits.pop_front()).is_some() {
            return None;
        }
        let sender = self.turns.pop_front()?;
        let lane = self.lanes.get_mut(&sender).expect("senders in turn have lanes");
        let held = lane.drop_first(spare)?;
        lane.delivered += held.cost();
        if !lane.is_clear() {
            self.turns.push_back(sender);
        }
        self.held_cost -= u64::from(held.cost());
        Some((sender, held))
    }
}
