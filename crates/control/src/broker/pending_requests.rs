//! Requests that are answered later, when the data plane reports their outcome. A request without an answer stays until then, so one user
//! must not be able to take all places.

use std::collections::BTreeMap;

use isthmus_layout::control::{Owner, RequestSerial};
use isthmus_layout::ids::DomainId;

use super::ControlSessionId;

/// The maximum numbers of pending requests: of one domain, of all domains of one user, and of all domains.
const PER_DOMAIN_MAX: usize = 1024;
const PER_USER_MAX: usize = 4 * PER_DOMAIN_MAX;
const TOTAL_MAX: usize = 2 * PER_USER_MAX;

/// A request without an answer, with `details` of its capability.
#[derive(Debug)]
pub(crate) struct PendingRequest<T> {
    pub(crate) domain: DomainId,
    pub(crate) owner: Owner,
    pub(crate) session: ControlSessionId,
    pub(crate) serial: Option<RequestSerial>,
    pub(crate) details: T,
}

/// A limit that is reached.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PendingFull {
    /// The limit.
    pub(crate) max: usize,
    /// The requests that the limit counts, as part of a sentence.
    pub(crate) scope: &'static str,
}

/// The pending requests of one kind, by the number that the data plane has for them.
#[derive(Debug)]
pub(crate) struct PendingRequests<T> {
    requests: BTreeMap<u64, PendingRequest<T>>,
    next: u64,
}

impl<T> Default for PendingRequests<T> {
    fn default() -> Self {
        Self { requests: BTreeMap::new(), next: 0 }
    }
}

impl<T> PendingRequests<T> {
    /// The number of pending requests.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Adds a request, and returns its number.
    pub(crate) fn insert(&mut self, request: PendingRequest<T>) -> Result<u64, PendingFull> {
        let count = |is_counted: &dyn Fn(&PendingRequest<T>) -> bool| {
            self.requests.values().filter(|other| is_counted(other)).count()
        };
        if count(&|other| other.domain == request.domain) >= PER_DOMAIN_MAX {
            return Err(PendingFull { max: PER_DOMAIN_MAX, scope: " of this domain" });
        }
        if count(&|other| other.owner == request.owner) >= PER_USER_MAX {
            return Err(PendingFull { max: PER_USER_MAX, scope: " of this user" });
        }
        if self.requests.len() >= TOTAL_MAX {
            return Err(PendingFull { max: TOTAL_MAX, scope: "" });
        }
        let number = self.next;
        self.next += 1;
        self.requests.insert(number, request);
        Ok(number)
    }

    /// The request that was added first.
    pub(crate) fn oldest(&self) -> Option<&PendingRequest<T>> {
        self.requests.values().next()
    }

    /// Removes a request.
    pub(crate) fn remove(&mut self, number: u64) -> Option<PendingRequest<T>> {
        self.requests.remove(&number)
    }

    /// Removes and returns all requests for which `is_removed` returns true.
    pub(crate) fn remove_if(&mut self, is_removed: impl Fn(&PendingRequest<T>) -> bool) -> Vec<PendingRequest<T>> {
        self.requests.extract_if(.., |_, request| is_removed(request)).map(|(_, request)| request).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_requests_beyond_each_limit() {
        let mut pending = PendingRequests::default();
        let mut insert = |domain, owner, count| {
            let domain = DomainId::new(domain).unwrap();
            let request = || PendingRequest {
                domain,
                owner: Owner(owner),
                session: ControlSessionId(0),
                serial: None,
                details: (),
            };
            (0..count).map(|_| pending.insert(request())).find_map(Result::err).map(|full| full.max)
        };
        assert_eq!([insert(1, 5, PER_DOMAIN_MAX), insert(1, 5, 1)], [None, Some(PER_DOMAIN_MAX)]);
        for domain in 2..=4 {
            assert_eq!(insert(domain, 5, PER_DOMAIN_MAX), None);
        }
        assert_eq!(insert(5, 5, 1), Some(PER_USER_MAX));
        for domain in 6..=9 {
            assert_eq!(insert(domain, 6, PER_DOMAIN_MAX), None);
        }
        assert_eq!(insert(10, 7, 1), Some(TOTAL_MAX));
        let removed = pending.remove_if(|request| request.owner == Owner(5));
        assert_eq!((removed.len(), pending.len()), (PER_USER_MAX, PER_USER_MAX));
    }
}
