//! Domains of the previous daemon that may still resume. Their names stay reserved until they resume or their processes end, and lookups of
//! them wait.
//!
//! A program that looks up a peer right after a restart would otherwise be told that the peer is gone, although the peer resumes a moment
//! later. The wait is short, because the program waits for its reply meanwhile.

use std::collections::BTreeMap;

use isthmus_layout::Refusal;
use isthmus_layout::control::{Found, Name, Owner, RequestSerial};
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;

use super::Broker;
use crate::core::pending_requests::{PendingRequest, PendingRequests};
use crate::core::types::ControlSessionId;
use crate::tickets::{Process, ResumableDomain};
use crate::viewer::Viewer;

/// Nanoseconds that a lookup waits for a domain. Less than the time that a library waits for a reply.
const LOOKUP_TIMEOUT: u64 = 3_000_000_000;

/// The domains that may resume, and the lookups that wait for them.
#[derive(Debug, Default)]
pub(super) struct ResumableDomains {
    domains: BTreeMap<DomainId, ResumableDomain>,
    lookups: PendingRequests<WaitingLookup>,
}

#[derive(Debug)]
struct WaitingLookup {
    name: Name,
    resumable: DomainId,
    until: u64,
}

impl ResumableDomains {
    pub(super) fn new(domains: &[ResumableDomain]) -> Self {
        let domains = domains.iter().map(|domain| (domain.domain, domain.clone())).collect();
        Self { domains, lookups: PendingRequests::default() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ResumableDomain> {
        self.domains.values()
    }

    pub(super) fn get(&self, domain: DomainId) -> Option<&ResumableDomain> {
        self.domains.get(&domain)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// The time at which the first lookup has waited for long enough. All wait equally long, so this is the oldest one.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.lookups.oldest().map(|lookup| lookup.details.until)
    }

    /// Forgets the lookups of a domain that has left.
    pub(super) fn remove_lookups_by(&mut self, domain: DomainId) {
        self.lookups.remove_of(domain, |_| true);
    }
}

impl Broker {
    /// Domains of the previous daemon that have not resumed yet.
    pub fn resumable(&self) -> impl Iterator<Item = &ResumableDomain> {
        self.resumable.iter()
    }

    /// Writes the file of resumable domains again if another program has removed or changed it.
    pub fn keep_resume_file(&mut self) {
        self.core.tickets.keep_file();
    }

    /// Reserves the names of the domains that may resume.
    pub(super) fn reserve_names(&mut self) {
        for ResumableDomain { domain, name, .. } in self.resumable.iter() {
            self.core.directory.reserve_name(name.clone(), *domain);
        }
    }

    /// Forgets the domain of this name if the same process and user attach under its name again, because it will not resume then.
    pub(super) fn release_name_of_same_process(&mut self, name: Option<&Name>, owner: Owner, pid: Option<i32>) {
        let holder = name.and_then(|name| self.core.directory.id_of(name)).and_then(|id| self.resumable.get(id));
        let Some(holder) = holder.filter(|holder| holder.owner == owner && holder.process.is_some()) else { return };
        if pid.and_then(Process::of_pid) == holder.process {
            self.resumable_ended(holder.domain);
        }
    }

    /// Records that a domain has resumed, and answers the lookups that wait for it.
    pub(super) fn resumed(&mut self, domain: DomainId) {
        self.resumable.domains.remove(&domain);
        self.answer_lookups(|lookup| lookup.resumable == domain);
    }

    /// Forgets a domain of the previous daemon that will not resume, because its process has ended or its time is over.
    pub fn resumable_ended(&mut self, domain: DomainId) {
        let Some(ended) = self.resumable.domains.remove(&domain) else { return };
        self.core.directory.release_name(&ended.name, domain);
        self.core.tickets.remove(domain);
        let (capabilities, core) = self.lend();
        capabilities.left(core, domain);
        for (channel, of) in self.channels.halves_involving(domain) {
            self.half_timed_out(channel, of);
        }
        self.answer_lookups(|lookup| lookup.resumable == domain);
    }

    /// Answers a lookup. Domains that the caller may not talk to are found too; the policy is applied to later requests.
    pub(super) fn lookup(
        &mut self,
        session: ControlSessionId,
        serial: Option<RequestSerial>,
        domain: DomainId,
        name: Name,
    ) -> Result<(), Refusal> {
        let expected = self.core.directory.id_of(&name).filter(|id| self.resumable.get(*id).is_some());
        let (Some(resumable), Some(taker)) = (expected, self.core.taker(session)) else {
            let found = self.find(domain, &name)?;
            self.core.send(session, serial, found.into(), Vec::new());
            return Ok(());
        };
        let details = WaitingLookup { name, resumable, until: self.core.now.saturating_add(LOOKUP_TIMEOUT) };
        let waiting = self.resumable.lookups.insert(PendingRequest { domain, taker, session, serial, details });
        let full = waiting.err().map(|full| format!("too many lookups wait for domains to resume: {full}"));
        full.map_or(Ok(()), |text| Err(Refusal::new(Reason::TooManyRequests, text)))
    }

    /// Answers the lookups that have waited for long enough.
    pub(super) fn answer_overdue_lookups(&mut self) {
        let now = self.core.now;
        if self.resumable.deadline().is_some_and(|deadline| deadline <= now) {
            self.answer_lookups(|lookup| lookup.until <= now);
        }
    }

    fn answer_lookups(&mut self, is_over: impl Fn(&WaitingLookup) -> bool) {
        for lookup in self.resumable.lookups.remove_if(is_over) {
            match self.find(lookup.domain, &lookup.details.name) {
                Ok(found) => self.core.send(lookup.session, lookup.serial, found.into(), Vec::new()),
                Err(refusal) => self.core.refuse(lookup.session, lookup.serial, &refusal),
            }
        }
    }

    fn find(&mut self, domain: DomainId, name: &Name) -> Result<Found, Refusal> {
        let resumable = self.core.directory.id_of(name).and_then(|id| self.resumable.get(id));
        let text = match resumable {
            Some(_) => format!("{name} has not resumed since the daemon was started again; look it up later"),
            None => format!("no domain is called {name}"),
        };
        let found = self.core.directory.find(name).ok_or_else(|| Refusal::new(Reason::NoSuchDomain, text))?;
        let caller = self.core.directory.get(domain).zip(self.core.attachments.get(&domain));
        // A program that asks by number learns no name that reports do not show it.
        let is_known = caller.is_some_and(|(caller, attachment)| {
            Viewer::of(&self.core, attachment.session).knows_peer(&self.core, found, caller)
        });
        let shown = if is_known { found.name.clone() } else { name.clone() };
        let found = Found { domain: found.id, name: shown, owner: found.owner };
        self.core.directory.watch(domain, found.domain);
        Ok(found)
    }
}
