//! The places of an address over time, apart from all tables.

use crate::Host;

/// A place that some host's table names from `from` to `until`.
struct Period {
    from: u64,
    until: u64,
    hosts: Vec<Host>,
}

pub(crate) struct Owners(Vec<Period>);

impl Owners {
    pub(crate) fn new(hosts: Vec<Host>) -> Self {
        Self(vec![Period { from: 0, until: u64::MAX, hosts }])
    }

    /// Notes that the address moves: the first host may know it at `from`, the last host knows it at `until`. Refuses a move
    /// before all hosts know of the one before, because a host could learn of the two in the wrong order.
    pub(crate) fn change(&mut self, from: u64, until: u64, hosts: &[Host]) -> bool {
        if let [.., before, _] = &self.0[..]
            && before.until >= from
        {
            return false;
        }
        self.0.last_mut().unwrap().until = until;
        self.0.push(Period { from, until: u64::MAX, hosts: hosts.to_vec() });
        true
    }

    /// The places of the last change.
    pub(crate) fn latest(&self) -> &[Host] {
        &self.0.last().unwrap().hosts
    }

    /// The places that some table may have named at some moment between `from` and `until`.
    pub(crate) fn named(&self, from: u64, until: u64) -> Vec<&Vec<Host>> {
        self.0
            .iter()
            .filter(|period| period.from <= until && period.until >= from)
            .map(|period| &period.hosts)
            .collect()
    }
}
