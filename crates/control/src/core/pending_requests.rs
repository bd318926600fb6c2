//! Requests that are answered later, when the data plane reports their outcome. A request without an answer stays until then, so one user
//! must not be able to take all places.

use std::collections::{BTreeMap, BTreeSet};

use isthmus_layout::control::RequestSerial;
use isthmus_layout::ids::DomainId;

use super::types::ControlSessionId;
use crate::places::{Places, PlacesFull, Taker};

/// The maximum numbers of pending requests: of one domain, and of all domains.
const PER_DOMAIN_MAX: usize = 1024;
const TOTAL_MAX: usize = 8192;

/// The limit that another request would exceed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PendingFull {
    /// The limit of a domain.
    #[error("{PER_DOMAIN_MAX} of this domain wait")]
    OfDomain,
    /// The limit of a user, or of all.
    #[error(transparent)]
    OfUser(#[from] PlacesFull),
}

/// A request without an answer, with `details` of its capability.
#[derive(Debug)]
pub(crate) struct PendingRequest<T> {
    pub(crate) domain: DomainId,
    pub(crate) taker: Taker,
    pub(crate) session: ControlSessionId,
    pub(crate) serial: Option<RequestSerial>,
    pub(crate) details: T,
}

/// The pending requests of one kind, by the number that the data plane has for them.
#[derive(Debug)]
pub(crate) struct PendingRequests<T> {
    requests: BTreeMap<u64, PendingRequest<T>>,
    by_domain: BTreeMap<DomainId, BTreeSet<u64>>,
    places: Places,
    next: u64,
}

impl<T> Default for PendingRequests<T> {
    fn default() -> Self {
        Self { requests: BTreeMap::new(), by_domain: BTreeMap::new(), places: Places::new(TOTAL_MAX), next: 0 }
    }
}

impl<T> PendingRequests<T> {
    /// The number of pending requests.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Adds a request, and returns its number. An error says which limit is reached.
    pub(crate) fn insert(&mut self, request: PendingRequest<T>) -> Result<u64, PendingFull> {
        if self.by_domain.get(&request.domain).is_some_and(|numbers| numbers.len() >= PER_DOMAIN_MAX) {
            return Err(PendingFull::OfDomain);
        }
        self.places.take(request.taker)?;
        let number = self.next;
        self.next += 1;
        self.by_domain.entry(request.domain).or_default().insert(number);
        self.requests.insert(number, request);
        Ok(number)
    }

    /// The request that was added first.
    pub(crate) fn oldest(&self) -> Option<&PendingRequest<T>> {
        self.requests.values().next()
    }

    /// Removes a request.
    pub(crate) fn remove(&mut self, number: u64) -> Option<PendingRequest<T>> {
        let request = self.requests.remove(&number)?;
        self.places.give_back(request.taker.account, 1);
        if let Some(numbers) = self.by_domain.get_mut(&request.domain) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_domain.remove(&request.domain);
            }
        }
        Some(request)
    }

    /// Removes and returns the requests of a domain for which `is_removed` returns true.
    pub(crate) fn remove_of(&mut self, domain: DomainId, is_removed: impl Fn(&T) -> bool) -> Vec<PendingRequest<T>> {
        let numbers = self.by_domain.get(&domain).into_iter().flatten();
        let numbers =
            numbers.filter(|number| self.requests.get(number).is_some_and(|known| is_removed(&known.details)));
        let numbers: Vec<u64> = numbers.copied().collect();
        numbers.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    /// Removes and returns all requests for which `is_removed` returns true. Looks at all of them.
    pub(crate) fn remove_if(&mut self, is_removed: impl Fn(&T) -> bool) -> Vec<PendingRequest<T>> {
        let numbers = self.requests.iter().filter(|(_, known)| is_removed(&known.details));
        let numbers: Vec<u64> = numbers.map(|(number, _)| *number).collect();
        numbers.into_iter().filter_map(|number| self.remove(number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use isthmus_layout::control::Owner;

    use super::*;

    #[test]
    fn refuses_requests_beyond_each_limit() {
        let mut pending = PendingRequests::default();
        let mut insert = |domain, user, count| {
            let domain = DomainId::new(domain).unwrap();
            let taker = Taker { account: Owner(user), has_others: true };
            let request = || PendingRequest { domain, taker, session: ControlSessionId(0), serial: None, details: () };
            (0..count).filter(|_| pending.insert(request()).is_ok()).count()
        };
        assert_eq!([insert(1, 5, PER_DOMAIN_MAX), insert(1, 5, 1)], [PER_DOMAIN_MAX, 0]);
        let rest: usize = (2..=5).map(|domain| insert(domain, 5, PER_DOMAIN_MAX)).sum();
        assert_eq!(rest + PER_DOMAIN_MAX, (TOTAL_MAX - TOTAL_MAX / 8) / 2);
        assert_eq!(insert(6, 6, PER_DOMAIN_MAX), PER_DOMAIN_MAX, "another user");
        let of =
            |pending: &mut PendingRequests<()>, domain| pending.remove_of(DomainId::new(domain).unwrap(), |()| true);
        assert_eq!([of(&mut pending, 1).len(), of(&mut pending, 1).len()], [PER_DOMAIN_MAX, 0]);
        assert_eq!(pending.remove_if(|()| true).len(), rest + PER_DOMAIN_MAX);
        assert_eq!((pending.len(), pending.places.total(), pending.by_domain.len()), (0, 0, 0));
    }
}
