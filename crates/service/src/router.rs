//! The router: what becomes of each record on the daemon path.
//!
//! ```text
//!   record of S ─► for whom? ─► may they? ─► within S's credit? ─► into D's ring, or held in the flow S → D
//!                     │            │               └ no: a violation of S
//!                     └ unknown ───┴ no: a bounce and the credit, back to S
//!   credit of D ─► was that much delivered? ─► to S, merged with what waits there
//! ```
//!
//! It decides and keeps accounts; it never sees a ring. The same accounts stand in two places, because two domains may be served by two
//! workers: with the sender, what it has under way ([`Outgoing`]); with the receiver, what is held and what was delivered
//! ([`Flow`](crate::flow::Flow)). At any time, held + delivered ≤ outstanding ≤ the credit of the pair.

use crate::command::{SendPolicy, WorkerIndex};
use crate::domain_state::{DomainState, Next, Outgoing};
use crate::flow::{HeldRecord, QueuePool};
use crate::pollers::PollerKind;
use crate::record_kinds::{bounce_serial, check_daemon_path, is_reply, payload_of, reply_route, without_payload};
use crate::violation::Violation;
use isthmus_layout::control::Owner;
use isthmus_layout::limits::DAEMON_PATH_CREDIT_BYTES;
use isthmus_layout::limits::DAEMON_PATH_RECORD_COST;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route, Serial};
use isthmus_layout::{DomainId, SlotTable};
use std::collections::{HashMap, VecDeque};

/// The maximum cost of the records held for one domain: the full credits of as many senders as one host has domains.
pub const HELD_DOMAIN_MAX: u64 = 256 * DAEMON_PATH_CREDIT_BYTES as u64;

/// The maximum cost of the records that one worker holds.
pub const HELD_WORKER_MAX: u64 = 16 * HELD_DOMAIN_MAX;

/// The number of removed domains that the router remembers with their reasons, for domains that still send to them.
const ENDED_DOMAINS_MAX: usize = 256;

/// A domain of this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) u32);

/// The place that serves a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// This worker.
    Local(Slot),
    /// Another worker.
    Worker(WorkerIndex),
    /// On another host; this poller of this worker has the links.
    Remote(PollerKind),
}

/// The router's decision about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The record goes to a domain of this worker.
    Forward { to: Slot, route: Route },
    /// The record goes to a domain of another worker.
    ForwardToWorker { worker: WorkerIndex, to: DomainId, route: Route },
    /// The router has accounted for the credit. Its receiver is on the list of waiting domains if the credit goes to it.
    Credited,
    /// The credit goes to a domain of another worker.
    ForwardCredit { worker: WorkerIndex, to: DomainId, route: Route, bytes: u32 },
    /// The record goes to another host.
    Remote { poller: PollerKind, remote_peer: DomainId },
    /// The credit goes to another host.
    RemoteCredit { poller: PollerKind, remote_peer: DomainId, bytes: u32 },
    /// The record is not delivered. The daemon's records for the sender are queued.
    Refused(Reason),
    /// The router does not know the domain. Commands that are still queued may add it.
    Unknown { peer: DomainId },
    /// No correct library sends this record.
    Violation(Violation),
}

/// The effects of a removal that the worker has to complete.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Removal {
    /// The number of records dropped.
    pub(crate) dropped: u64,
    /// Bounces for domains of other workers.
    pub(crate) bounces: Vec<(WorkerIndex, DomainId, Route, BounceInfo)>,
}

/// A record that was accepted and not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BounceInfo {
    pub(crate) serial: Serial,
    /// The credit that its sender gets back.
    pub(crate) cost: u32,
}

/// The accounts and locations of all domains that this worker knows.
#[derive(Debug)]
pub(crate) struct Router {
    locations: HashMap<DomainId, Location>,
    states: SlotTable<DomainState>,
    send_policy: SendPolicy,
    policy: u32,
    ended_domains: VecDeque<(DomainId, Reason)>,
    queue_pool: QueuePool,
    /// Domains with records that wait for room in their rings.
    waiting: Vec<Slot>,
    held_cost: u64,
}

impl Router {
    pub(crate) fn new(send_policy: SendPolicy) -> Self {
        Self {
            locations: HashMap::new(),
            states: SlotTable::default(),
            send_policy,
            policy: 0,
            ended_domains: VecDeque::new(),
            queue_pool: QueuePool::default(),
            waiting: Vec::new(),
            held_cost: 0,
        }
    }

    /// A domain of this worker.
    pub(crate) fn add(&mut self, domain: DomainId, owner: Owner) -> Slot {
        let slot = Slot(self.states.insert(DomainState::new(domain, owner)));
        self.locations.insert(domain, Location::Local(slot));
        slot
    }

    /// A domain of another worker.
    pub(crate) fn add_elsewhere(&mut self, domain: DomainId, worker: WorkerIndex) {
        self.locations.insert(domain, Location::Worker(worker));
    }

    /// Adds a remote peer: a domain on another host that a local domain communicates with.
    pub(crate) fn add_remote_peer(&mut self, remote_peer: DomainId, poller: PollerKind) {
        self.locations.insert(remote_peer, Location::Remote(poller));
    }

    pub(crate) fn location(&self, domain: DomainId) -> Option<Location> {
        self.locations.get(&domain).copied()
    }

    /// The domain at a slot, while there is one.
    pub(crate) fn domain(&self, slot: Slot) -> Option<DomainId> {
        self.states.get(slot.0).map(|state| state.domain)
    }

    /// Sets a new policy. Records that were accepted under the old one stay accepted.
    pub(crate) fn set_send_policy(&mut self, send_policy: SendPolicy) {
        self.send_policy = send_policy;
        self.policy = self.policy.wrapping_add(1);
    }

    fn state(&mut self, slot: Slot) -> &mut DomainState {
        &mut self.states[slot.0]
    }

    /// Decides about a record that `from` sent.
    pub(crate) fn route(&mut self, from: Slot, route: Route, record: &Record<'_>) -> Verdict {
        let Some(peer) = route.peer else { return Verdict::Violation(Violation::NoPeer) };
        if let Record::Credit { bytes } = *record {
            return self.apply_credit(from, peer, route, bytes);
        }
        if let Err(violation) = check_daemon_path(record, peer) {
            return Verdict::Violation(violation);
        }
        let policy = self.policy;
        let known = self.state(from).outgoing.get(&peer).is_some_and(|outgoing| outgoing.policy == policy);
        if !known && !self.resolve_peer(from, peer) {
            return Verdict::Unknown { peer };
        }
        let state = self.state(from);
        let (domain, cost) = (state.domain, DAEMON_PATH_RECORD_COST + payload_of(record).0);
        let outgoing = state.outgoing.get_mut(&peer).expect("an account was opened");
        let allowed = if is_reply(record) { outgoing.may_reply } else { outgoing.may_send };
        if let Err(reason) = allowed {
            return self.refuse(from, route, record, reason);
        }
        let outstanding = outgoing.outstanding;
        if outstanding + cost > DAEMON_PATH_CREDIT_BYTES {
            return Verdict::Violation(Violation::CreditExceeded { outstanding, cost });
        }
        outgoing.outstanding += cost;
        let route = Route { peer: Some(domain), ..route };
        match outgoing.location {
            Location::Local(to) => Verdict::Forward { to, route },
            Location::Worker(worker) => Verdict::ForwardToWorker { worker, to: peer, route },
            Location::Remote(poller) => Verdict::Remote { poller, remote_peer: peer },
        }
    }

    /// Asks the policy about a pair; false if there is no such domain.
    #[cold]
    fn resolve_peer(&mut self, from: Slot, peer: DomainId) -> bool {
        let Some(location) = self.location(peer) else { return false };
        let domain = self.state(from).domain;
        // The policy for other hosts applies when a domain connects to their endpoints.
        let check = |from, to| if peer.is_remote() { Ok(()) } else { self.send_policy.check(from, to) };
        let may_send = check(domain, peer);
        let may_reply = may_send.or_else(|reason| check(peer, domain).map_err(|_| reason));
        let policy = self.policy;
        let outgoing = self.state(from).outgoing.entry(peer);
        let outgoing = outgoing.or_insert(Outgoing { location, outstanding: 0, may_send, may_reply, policy });
        (outgoing.may_send, outgoing.may_reply, outgoing.policy) = (may_send, may_reply, policy);
        true
    }

    /// Refuses a record for a domain that does not exist.
    pub(crate) fn refuse_unknown(&mut self, from: Slot, route: Route, record: &Record<'_>) -> Verdict {
        let reason = route.peer.map_or(Reason::NoSuchDomain, |peer| self.end_reason(peer));
        self.refuse(from, route, record, reason)
    }

    /// Returns the reason why a removed domain ended, if the router still remembers it.
    pub(crate) fn end_reason(&self, domain: DomainId) -> Reason {
        let known = self.ended_domains.iter().rev().find(|&&(gone, _)| gone == domain);
        known.map_or(Reason::NoSuchDomain, |&(_, reason)| reason)
    }

    fn refuse(&mut self, from: Slot, route: Route, record: &Record<'_>, reason: Reason) -> Verdict {
        let (back, cost) = (reply_route(route, route.peer), DAEMON_PATH_RECORD_COST + payload_of(record).0);
        let state = self.state(from);
        if let Some(serial) = bounce_serial(record) {
            state.bounce(back, serial, reason, cost);
            self.mark_waiting(from);
        }
        Verdict::Refused(reason)
    }

    /// Accounts for credit that a domain returns to a sender.
    fn apply_credit(&mut self, from: Slot, sender: DomainId, route: Route, bytes: u32) -> Verdict {
        if bytes == 0 {
            return Verdict::Violation(Violation::CreditEmpty);
        }
        let Some(location) = self.location(sender) else { return Verdict::Credited }; // The sender is gone.
        let state = self.state(from);
        let domain = state.domain;
        let mut flow = state.flows.get_mut(&sender);
        let delivered = flow.as_ref().map_or(0, |flow| flow.delivered);
        let given = bytes.min(delivered);
        let beyond = u64::from(bytes - given);
        if beyond > state.excess_credit {
            return Verdict::Violation(Violation::CreditBeyond { given: bytes, delivered });
        }
        state.excess_credit -= beyond;
        if let Some(flow) = &mut flow {
            flow.delivered -= given;
        }
        let route = Route { peer: Some(domain), ..route };
        match location {
            _ if given == 0 => Verdict::Credited,
            Location::Local(to) => {
                self.credit_sender(to, route, given);
                Verdict::Credited
            }
            Location::Worker(worker) => Verdict::ForwardCredit { worker, to: sender, route, bytes: given },
            Location::Remote(poller) => Verdict::RemoteCredit { poller, remote_peer: sender, bytes: given },
        }
    }

    /// Applies a credit to its sender's account. `route.peer` returns the credit.
    pub(crate) fn credit_sender(&mut self, to: Slot, route: Route, bytes: u32) {
        let state = self.state(to);
        // Without an account, the receiver is gone, and its credits no longer count.
        if let Some(outgoing) = route.peer.and_then(|peer| state.outgoing.get_mut(&peer)) {
            outgoing.outstanding = outgoing.outstanding.saturating_sub(bytes);
            state.credit(route, bytes);
            self.mark_waiting(to);
        }
    }

    /// Returns credit that no send waits for: with the next record for the domain, or when the deferred credit reaches its limit.
    pub(crate) fn defer_credit(&mut self, to: Slot, route: Route, bytes: u32) {
        if self.state(to).defer_credit(route, bytes) {
            self.flush_deferred_credit(to);
        }
    }

    /// Returns the credit that completes a send, after all deferred credit: the domain matches credit to sends in order.
    pub(crate) fn credit_sender_now(&mut self, to: Slot, route: Route, bytes: u32) {
        self.flush_deferred_credit(to);
        self.credit_sender(to, route, bytes);
    }

    /// Returns all deferred credit, along with a record that the domain gets.
    fn flush_deferred_credit(&mut self, to: Slot) {
        while let Some((route, bytes)) = self.state(to).pop_deferred() {
            self.credit_sender(to, route, bytes);
        }
    }

    /// Returns a record that was accepted but cannot be delivered.
    pub(crate) fn bounce_to_sender(&mut self, to: Slot, route: Route, bounce: BounceInfo, reason: Reason) {
        let state = self.state(to);
        if let Some(outgoing) = route.peer.and_then(|peer| state.outgoing.get_mut(&peer)) {
            outgoing.outstanding = outgoing.outstanding.saturating_sub(bounce.cost);
        }
        state.bounce(route, bounce.serial, reason, bounce.cost);
        self.mark_waiting(to);
    }

    /// Returns whether a record for `to` may go into its ring now, because no record waits for room there.
    pub(crate) fn is_clear(&self, to: Slot) -> bool {
        self.states.get(to.0).is_some_and(DomainState::is_clear)
    }

    /// Accounts for a record that went into the ring of `to` without waiting.
    pub(crate) fn delivered(&mut self, to: Slot, sender: DomainId, len: u32) {
        self.state(to).flows.entry(sender).or_default().delivered += DAEMON_PATH_RECORD_COST + len;
        self.flush_deferred_credit(to);
    }

    /// Holds a record until there is room. Returns the domain to remove if a limit on held records is exceeded.
    pub(crate) fn enqueue(
        &mut self,
        to: Slot,
        route: Route,
        record: &Record<'_>,
        bytes: &[u8],
    ) -> Option<(Slot, Violation)> {
        let held = HeldRecord { route, record: without_payload(record), len: bytes.len() as u32 };
        let sender = route.peer.expect("the router has set the sender");
        self.held_cost += u64::from(held.cost());
        let state = &mut self.states[to.0];
        state.enqueue(sender, held, bytes, &mut self.queue_pool);
        let cost = state.held_cost;
        self.mark_waiting(to);
        if cost > HELD_DOMAIN_MAX {
            return Some((to, Violation::NotReading { held: cost }));
        }
        (self.held_cost > HELD_WORKER_MAX).then(|| self.largest_backlog()).flatten()
    }

    /// Returns the domain with the largest backlog among the domains of the owner with the largest total backlog.
    #[cold]
    fn largest_backlog(&self) -> Option<(Slot, Violation)> {
        let states = || self.states.iter().map(|(slot, state)| (Slot(slot), state));
        let mut owners: HashMap<Owner, u64> = HashMap::new();
        for (_, state) in states() {
            *owners.entry(state.owner).or_default() += state.held_cost;
        }
        let (&owner, _) = owners.iter().max_by_key(|&(_, held)| held)?;
        let (slot, state) =
            states().filter(|(_, state)| state.owner == owner).max_by_key(|(_, state)| state.held_cost)?;
        Some((slot, Violation::NotReading { held: state.held_cost }))
    }

    fn mark_waiting(&mut self, slot: Slot) {
        let state = &mut self.states[slot.0];
        if !std::mem::replace(&mut state.is_waiting, true) {
            self.waiting.push(slot);
        }
    }

    /// The number of domains on the waiting list. The caller takes served domains off it with [`Self::remove_waiting`].
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The domain at an index of the waiting list.
    pub(crate) fn waiting_at(&self, at: usize) -> Slot {
        self.waiting[at]
    }

    /// Takes a domain off the waiting list. The last domain of the list moves to its index.
    pub(crate) fn remove_waiting(&mut self, at: usize) {
        let slot = self.waiting.swap_remove(at);
        self.state(slot).is_waiting = false;
    }

    /// The record that goes into the ring of `to` next.
    pub(crate) fn next(&self, to: Slot) -> Option<Next<'_>> {
        self.states.get(to.0).and_then(DomainState::next)
    }

    /// Notes that the record which [`Self::next`] returned is in the ring of `to`.
    pub(crate) fn sent(&mut self, to: Slot) {
        let state = &mut self.states[to.0];
        if let Some((sender, held)) = state.sent(&mut self.queue_pool) {
            self.held_cost -= u64::from(held.cost());
            self.close_flow(to, sender);
        }
    }

    /// The number of the daemon's own records that wait for room in the ring of `slot`.
    pub(crate) fn pending_daemon_records(&self, slot: Slot) -> usize {
        self.states.get(slot.0).map_or(0, DomainState::pending_daemon_records)
    }

    /// The cost of the records held for a domain.
    pub(crate) fn held_cost(&self, slot: Slot) -> u64 {
        self.states.get(slot.0).map_or(0, |state| state.held_cost)
    }

    /// The cost of the records held for all domains.
    pub(crate) fn all_held_cost(&self) -> u64 {
        self.held_cost
    }
}

mod removal;

#[cfg(test)]
impl Router {
    /// Domains of this worker, and places for them.
    pub(crate) fn domains(&self) -> (usize, usize) {
        (self.states.len(), self.states.slots())
    }

    /// Accounts of senders, and flows.
    pub(crate) fn flow_counts(&self) -> (usize, usize) {
        let states = || self.states.values();
        (states().map(|state| state.outgoing.len()).sum(), states().map(|state| state.flows.len()).sum())
    }
}

#[cfg(test)]
mod tests;
