//! The router: what becomes of each record on the ordinary path.
//!
//! ```text
//!   record of S ─► for whom? ─► may they? ─► within S's credit? ─► into D's ring, or held on the lane S → D
//!                     │            │               └ no: a breach of S
//!                     └ nobody ────┴ no: a bounce and the credit, back to S
//!   credit of D ─► was that much delivered? ─► to S, merged with what waits there
//! ```
//!
//! It decides and keeps accounts; it never sees a ring. The same accounts stand in two places, because two domains may be served by two
//! workers: with the sender, what it has under way ([`Outgoing`]); with the receiver, what is held and what was delivered
//! ([`Lane`](crate::lane::Lane)). At any time, held + delivered ≤ outstanding ≤ the credit of the pair.

use crate::breach::Breach;
use crate::command::{Permit, WorkerIndex};
use crate::kinds::{back, bare, bounced, check, is_answer, payload};
use crate::lane::{Held, Spare};
use crate::party::{Next, Outgoing, Party};
use isthmus_layout::DomainId;
use isthmus_layout::control::Owner;
use isthmus_layout::limits::ORDINARY_CREDIT_BYTES;
use isthmus_layout::limits::ORDINARY_RECORD_COST;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route, Serial};
use std::collections::{HashMap, VecDeque};

/// Held for one domain at most: full credits of as many senders as one host has domains.
pub const HELD_DOMAIN_MAX: u64 = 256 * ORDINARY_CREDIT_BYTES as u64;

/// Held by one worker at most.
pub const HELD_WORKER_MAX: u64 = 16 * HELD_DOMAIN_MAX;

/// Domains that are gone and whose end is remembered, for whoever sends to them still.
const GONE_MAX: usize = 256;

/// A domain of this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) u32);

/// Where a domain is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// By this worker.
    Here(Slot),
    /// By another one.
    There(WorkerIndex),
    /// On another host; this worker has the links.
    Wire,
}

/// What becomes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes to a domain of this worker.
    Forward { to: Slot, route: Route },
    /// It goes to a domain of another worker.
    HandOver { worker: WorkerIndex, to: DomainId, route: Route },
    /// A credit was taken account of; its receiver is on the list of those for whom something waits.
    Credited,
    /// The same, for a domain of another worker.
    CreditOver { worker: WorkerIndex, to: DomainId, route: Route, bytes: u32 },
    /// It goes to another host.
    Wire { stranger: DomainId },
    /// The same for a credit.
    WireCredit { stranger: DomainId, bytes: u32 },
    /// It reaches nobody. The sender's answers are on their way.
    Refused(Reason),
    /// Nobody is known by that number: newer commands may tell.
    Unknown { peer: DomainId },
    /// No correct library sends it.
    Breach(Breach),
}

/// What a removal left for others to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Records dropped.
    pub(crate) dropped: u64,
    /// Bounces for domains of other workers.
    pub(crate) bounces: Vec<(WorkerIndex, DomainId, Route, Bounced)>,
}

/// A record that was accepted and reached nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounced {
    pub(crate) serial: Serial,
    /// What its sender gets back.
    pub(crate) cost: u32,
}

/// Everything this worker knows of domains.
#[derive(Debug)]
pub(crate) struct Router {
    homes: HashMap<DomainId, Home>,
    parties: Vec<Option<Party>>,
    free: Vec<Slot>,
    permit: Permit,
    policy: u32,
    gone: VecDeque<(DomainId, Reason)>,
    spare: Spare,
    /// Domains for which something waits.
    waiting: Vec<Slot>,
    held_cost: u64,
}

impl Router {
    pub(crate) fn new(permit: Permit) -> Self {
        Self {
            homes: HashMap::new(),
            parties: Vec::new(),
            free: Vec::new(),
            permit,
            policy: 0,
            gone: VecDeque::new(),
            spare: Spare::default(),
            waiting: Vec::new(),
            held_cost: 0,
        }
    }

    /// A domain of this worker.
    pub(crate) fn add(&mut self, domain: DomainId, owner: Owner) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.parties.push(None);
            Slot((self.parties.len() - 1) as u32)
        });
        self.parties[slot.0 as usize] = Some(Party::new(domain, owner));
        self.homes.insert(domain, Home::Here(slot));
        slot
    }

    /// A domain of another worker.
    pub(crate) fn add_there(&mut self, domain: DomainId, worker: WorkerIndex) {
        self.homes.insert(domain, Home::There(worker));
    }

    /// Somebody on another host, whom a domain here talks to.
    pub(crate) fn add_stranger(&mut self, stranger: DomainId) {
        self.homes.insert(stranger, Home::Wire);
    }

    pub(crate) fn home(&self, domain: DomainId) -> Option<Home> {
        self.homes.get(&domain).copied()
    }

    /// The domain at a slot, while there is one.
    pub(crate) fn domain(&self, slot: Slot) -> Option<DomainId> {
        self.parties[slot.0 as usize].as_ref().map(|party| party.domain)
    }

    /// A new policy; what was accepted under the old one stays accepted.
    pub(crate) fn set_permit(&mut self, permit: Permit) {
        self.permit = permit;
        self.policy = self.policy.wrapping_add(1);
    }

    fn party(&mut self, slot: Slot) -> &mut Party {
        self.parties[slot.0 as usize].as_mut().expect("slots in use have parties")
    }

    /// Decides about a record that `from` sent.
    pub(crate) fn route(&mut self, from: Slot, route: Route, record: &Record<'_>) -> Verdict {
        let Some(peer) = route.peer else { return Verdict::Breach(Breach::NoPeer) };
        if let Record::Credit { bytes } = *record {
            return self.take_credit(from, peer, route, bytes);
        }
        if let Err(breach) = check(record, peer) {
            return Verdict::Breach(breach);
        }
        let policy = self.policy;
        let known = self.party(from).outgoing.get(&peer).is_some_and(|outgoing| outgoing.policy == policy);
        if !known && !self.meet(from, peer) {
            return Verdict::Unknown { peer };
        }
        let party = self.party(from);
        let (domain, cost) = (party.domain, ORDINARY_RECORD_COST + payload(record).0);
        let outgoing = party.outgoing.get_mut(&peer).expect("they have met");
        let allowed = if is_answer(record) { outgoing.answer } else { outgoing.talk };
        if let Err(reason) = allowed {
            return self.refuse(from, route, record, reason);
        }
        let outstanding = outgoing.outstanding;
        if outstanding + cost > ORDINARY_CREDIT_BYTES {
            return Verdict::Breach(Breach::CreditExceeded { outstanding, cost });
        }
        outgoing.outstanding += cost;
        let route = Route { peer: Some(domain), ..route };
        match outgoing.home {
            Home::Here(to) => Verdict::Forward { to, route },
            Home::There(worker) => Verdict::HandOver { worker, to: peer, route },
            Home::Wire => Verdict::Wire { stranger: peer },
        }
    }

    /// Asks the policy about a pair; false if there is no such domain.
    #[cold]
    fn meet(&mut self, from: Slot, peer: DomainId) -> bool {
        let Some(home) = self.home(peer) else { return false };
        let domain = self.party(from).domain;
        // Who may talk to other hosts is decided when their endpoints are connected to.
        let permit = |from, to| if peer.is_remote() { Ok(()) } else { self.permit.ask(from, to) };
        let talk = permit(domain, peer);
        let answer = talk.or_else(|reason| permit(peer, domain).map_err(|_| reason));
        let policy = self.policy;
        let outgoing = self.party(from).outgoing.entry(peer);
        let outgoing = outgoing.or_insert(Outgoing { home, outstanding: 0, talk, answer, policy });
        (outgoing.talk, outgoing.answer, outgoing.policy) = (talk, answer, policy);
        true
    }

    /// A record for a domain that is not there.
    pub(crate) fn refuse_unknown(&mut self, from: Slot, route: Route, record: &Record<'_>) -> Verdict {
        let reason = route.peer.map_or(Reason::NoSuchDomain, |peer| self.ended(peer));
        self.refuse(from, route, record, reason)
    }

    /// How a domain that is not there ended, as far as we remember.
    pub(crate) fn ended(&self, domain: DomainId) -> Reason {
        let known = self.gone.iter().rev().find(|&&(gone, _)| gone == domain);
        known.map_or(Reason::NoSuchDomain, |&(_, reason)| reason)
    }

    fn refuse(&mut self, from: Slot, route: Route, record: &Record<'_>, reason: Reason) -> Verdict {
        let (back, cost) = (back(route, route.peer), ORDINARY_RECORD_COST + payload(record).0);
        let party = self.party(from);
        if let Some(serial) = bounced(record) {
            party.bounce(back, serial, reason, cost);
            self.list(from);
        }
        Verdict::Refused(reason)
    }

    /// A domain gives credit back to one who sent to it.
    fn take_credit(&mut self, from: Slot, sender: DomainId, route: Route, bytes: u32) -> Verdict {
        if bytes == 0 {
            return Verdict::Breach(Breach::CreditEmpty);
        }
        let Some(home) = self.home(sender) else { return Verdict::Credited }; // Nobody is left to be given it.
        let party = self.party(from);
        let domain = party.domain;
        let mut lane = party.lanes.get_mut(&sender);
        let delivered = lane.as_ref().map_or(0, |lane| lane.delivered);
        let given = bytes.min(delivered);
        let beyond = u64::from(bytes - given);
        if beyond > party.allowance {
            return Verdict::Breach(Breach::CreditBeyond { given: bytes, delivered });
        }
        party.allowance -= beyond;
        if let Some(lane) = &mut lane {
            lane.delivered -= given;
        }
        let route = Route { peer: Some(domain), ..route };
        match home {
            _ if given == 0 => Verdict::Credited,
            Home::Here(to) => {
                self.give_credit(to, route, given);
                Verdict::Credited
            }
            Home::There(worker) => Verdict::CreditOver { worker, to: sender, route, bytes: given },
            Home::Wire => Verdict::WireCredit { stranger: sender, bytes: given },
        }
    }

    /// The sender's half of a credit. `route.peer` gives it.
    pub(crate) fn give_credit(&mut self, to: Slot, route: Route, bytes: u32) {
        let party = self.party(to);
        // Without an account, the receiver is gone, and its credits mean nothing any more.
        if let Some(outgoing) = route.peer.and_then(|peer| party.outgoing.get_mut(&peer)) {
            outgoing.outstanding = outgoing.outstanding.saturating_sub(bytes);
            party.credit(route, bytes);
            self.list(to);
        }
    }

    /// The same for what nobody waits for: it goes with the next record for the domain, or when it is much.
    pub(crate) fn owe_credit(&mut self, to: Slot, route: Route, bytes: u32) {
        if self.party(to).owe(route, bytes) {
            self.give_owed(to);
        }
    }

    /// Credit that ends a send, and what is owed: the domain counts what it gets back, from the oldest send on.
    pub(crate) fn give_all_credit(&mut self, to: Slot, route: Route, bytes: u32) {
        self.give_owed(to);
        self.give_credit(to, route, bytes);
    }

    /// What is owed to a domain goes along with a record that it gets.
    fn give_owed(&mut self, to: Slot) {
        while let Some((route, bytes)) = self.party(to).owed() {
            self.give_credit(to, route, bytes);
        }
    }

    /// A record that was accepted reached nobody after all.
    pub(crate) fn give_bounce(&mut self, to: Slot, route: Route, bounce: Bounced, reason: Reason) {
        let party = self.party(to);
        if let Some(outgoing) = route.peer.and_then(|peer| party.outgoing.get_mut(&peer)) {
            outgoing.outstanding = outgoing.outstanding.saturating_sub(bounce.cost);
        }
        party.bounce(route, bounce.serial, reason, bounce.cost);
        self.list(to);
    }

    /// True if a record for `to` may go into its ring now, past nobody who waits.
    pub(crate) fn is_clear(&self, to: Slot) -> bool {
        self.parties[to.0 as usize].as_ref().is_some_and(Party::is_clear)
    }

    /// A record that did not have to wait is in the ring of `to`.
    pub(crate) fn delivered(&mut self, to: Slot, sender: DomainId, len: u32) {
        self.party(to).lanes.entry(sender).or_default().delivered += ORDINARY_RECORD_COST + len;
        self.give_owed(to);
    }

    /// A record has to wait. Answers who must go because too much waits now.
    pub(crate) fn hold(&mut self, to: Slot, route: Route, record: &Record<'_>, bytes: &[u8]) -> Option<(Slot, Breach)> {
        let held = Held { route, record: bare(record), len: bytes.len() as u32 };
        let sender = route.peer.expect("the router wrote who sent it");
        self.held_cost += u64::from(held.cost());
        let party = self.parties[to.0 as usize].as_mut().expect("slots in use have parties");
        party.hold(sender, held, bytes, &mut self.spare);
        let cost = party.held_cost;
        self.list(to);
        if cost > HELD_DOMAIN_MAX {
            return Some((to, Breach::NotReading { held: cost }));
        }
        (self.held_cost > HELD_WORKER_MAX).then(|| self.greediest()).flatten()
    }

    /// For whom most is held, among the domains of the owner for whose domains most is held.
    #[cold]
    fn greediest(&self) -> Option<(Slot, Breach)> {
        let parties =
            || self.parties.iter().enumerate().filter_map(|(at, party)| Some((Slot(at as u32), party.as_ref()?)));
        let mut owners: HashMap<Owner, u64> = HashMap::new();
        for (_, party) in parties() {
            *owners.entry(party.owner).or_default() += party.held_cost;
        }
        let (&owner, _) = owners.iter().max_by_key(|&(_, held)| held)?;
        let (slot, party) =
            parties().filter(|(_, party)| party.owner == owner).max_by_key(|(_, party)| party.held_cost)?;
        Some((slot, Breach::NotReading { held: party.held_cost }))
    }

    fn list(&mut self, slot: Slot) {
        let party = self.parties[slot.0 as usize].as_mut().expect("slots in use have parties");
        if !std::mem::replace(&mut party.listed, true) {
            self.waiting.push(slot);
        }
    }

    /// Domains for which something waits; [`Self::unlist`] those for whom nothing does any more.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The domain at a place of the list.
    pub(crate) fn waiting_at(&self, at: usize) -> Slot {
        self.waiting[at]
    }

    /// Takes a domain off the list; the last one of the list is at its place now.
    pub(crate) fn unlist(&mut self, at: usize) {
        let slot = self.waiting.swap_remove(at);
        self.party(slot).listed = false;
    }

    /// What goes into the ring of `to` next.
    pub(crate) fn next(&self, to: Slot) -> Option<Next<'_>> {
        self.parties[to.0 as usize].as_ref().and_then(Party::next)
    }

    /// That is in the ring now.
    pub(crate) fn sent(&mut self, to: Slot) {
        let party = self.parties[to.0 as usize].as_mut().expect("slots in use have parties");
        if let Some((sender, held)) = party.sent(&mut self.spare) {
            self.held_cost -= u64::from(held.cost());
            self.close_lane(to, sender);
        }
    }

    /// Answers that wait for room in the ring of `slot`.
    pub(crate) fn answers(&self, slot: Slot) -> usize {
        self.parties[slot.0 as usize].as_ref().map_or(0, Party::answers)
    }

    /// Cost of what is held for a domain.
    pub(crate) fn held_cost(&self, slot: Slot) -> u64 {
        self.parties[slot.0 as usize].as_ref().map_or(0, |party| party.held_cost)
    }

    /// Cost of what is held for all.
    pub(crate) fn all_held_cost(&self) -> u64 {
        self.held_cost
    }
}

mod removal;

#[cfg(test)]
impl Router {
    /// Domains of this worker, and places for them.
    pub(crate) fn domains(&self) -> (usize, usize) {
        (self.parties.iter().flatten().count(), self.parties.len())
    }

    /// Accounts of senders, and lanes.
    pub(crate) fn lanes(&self) -> (usize, usize) {
        let parties = || self.parties.iter().flatten();
        (parties().map(|party| party.outgoing.len()).sum(), parties().map(|party| party.lanes.len()).sum())
    }
}

#[cfg(test)]
mod tests;
