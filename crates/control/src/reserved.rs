//! Numbers of domains of the previous daemon that may still resume. Each has a place of its user until then.

use std::collections::{BTreeMap, BTreeSet};

use isthmus_layout::control::Owner;
use isthmus_layout::ids::DomainId;

use crate::places::Places;

/// The reserved numbers of one table.
#[derive(Debug)]
pub(crate) struct Reserved<N> {
    domains: BTreeMap<N, DomainId>,
    by_domain: BTreeMap<DomainId, ReservedOf<N>>,
}

/// The reserved numbers of a domain.
#[derive(Debug)]
struct ReservedOf<N> {
    /// The user that they count for.
    account: Owner,
    numbers: BTreeSet<N>,
}

impl<N> Default for Reserved<N> {
    fn default() -> Self {
        Self { domains: BTreeMap::new(), by_domain: BTreeMap::new() }
    }
}

impl<N: Ord + Copy> Reserved<N> {
    /// Reserves a number for a domain, and takes a place for it. A number is reserved for the first domain that claims it.
    pub(crate) fn add(&mut self, number: N, domain: DomainId, account: Owner, places: &mut Places) {
        if self.domains.contains_key(&number) {
            return;
        }
        self.domains.insert(number, domain);
        let new = || ReservedOf { account, numbers: BTreeSet::new() };
        let of_domain = self.by_domain.entry(domain).or_insert_with(new);
        of_domain.numbers.insert(number);
        places.add(of_domain.account, 1);
    }

    /// True if the number is reserved for another domain than this one.
    pub(crate) fn is_for_other(&self, number: N, domain: DomainId) -> bool {
        self.domains.get(&number).is_some_and(|reserved| *reserved != domain)
    }

    /// Ends the reservation of a number, and returns its place. False if the number was not reserved.
    pub(crate) fn remove(&mut self, number: N, places: &mut Places) -> bool {
        let Some(domain) = self.domains.remove(&number) else { return false };
        if let Some(of_domain) = self.by_domain.get_mut(&domain) {
            of_domain.numbers.remove(&number);
            places.give_back(of_domain.account, 1);
            if of_domain.numbers.is_empty() {
                self.by_domain.remove(&domain);
            }
        }
        true
    }

    /// Ends the reservations of a domain that will not resume, and returns its numbers.
    pub(crate) fn remove_domain(&mut self, domain: DomainId, places: &mut Places) -> Vec<N> {
        let Some(ReservedOf { account, numbers }) = self.by_domain.remove(&domain) else { return Vec::new() };
        places.give_back(account, numbers.len());
        for number in &numbers {
            self.domains.remove(number);
        }
        numbers.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_number_has_a_place_of_its_user_until_its_domain_resumes_or_ends() {
        let [first, second] = [1, 2].map(|number| DomainId::new(number).unwrap());
        let (mut reserved, mut places) = (Reserved::default(), Places::new(9));
        for (number, domain) in [(4, first), (5, first), (6, second), (4, second)] {
            reserved.add(number, domain, Owner(domain.number() * 10), &mut places);
        }
        assert_eq!([10, 20].map(|user| places.of(Owner(user))), [2, 1]);
        assert!(reserved.is_for_other(4, second) && !reserved.is_for_other(4, first));
        assert!(!reserved.is_for_other(7, second), "not reserved");
        assert!(reserved.remove(4, &mut places) && !reserved.remove(4, &mut places));
        assert_eq!(reserved.remove_domain(first, &mut places), [5]);
        assert!(reserved.remove_domain(first, &mut places).is_empty());
        assert_eq!((places.of(Owner(10)), places.total()), (0, 1));
        assert!(!reserved.is_for_other(5, second));
    }
}
