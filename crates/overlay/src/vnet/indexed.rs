//! Entries with the indexes that VNET's commands name them by.

use alloc::collections::{BTreeMap, VecDeque};

/// Entries by their indexes. Indexes begin with 1, and none is used twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Indexed<T> {
    entries: BTreeMap<u64, T>,
    last: u64,
}

impl<T> Default for Indexed<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), last: 0 }
    }
}

impl<T: Ord> Indexed<T> {
    /// Adds an entry. Returns its index.
    pub(super) fn add(&mut self, entry: T) -> u64 {
        self.last += 1; // 2⁶⁴ entries do not come.
        self.entries.insert(self.last, entry);
        self.last
    }

    pub(super) fn get(&self, index: u64) -> Option<&T> {
        self.entries.get(&index)
    }

    pub(super) fn remove(&mut self, index: u64) -> Option<T> {
        self.entries.remove(&index)
    }

    /// The entries, oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &T)> {
        self.entries.iter().map(|(index, entry)| (*index, entry))
    }

    /// Makes the entries what `current` says. An entry that stays keeps its index.
    pub(super) fn follow(&mut self, current: impl IntoIterator<Item = T>) {
        let mut before: BTreeMap<T, VecDeque<u64>> = BTreeMap::new();
        for (index, entry) in core::mem::take(&mut self.entries) {
            before.entry(entry).or_default().push_back(index);
        }
        for entry in current {
            match before.get_mut(&entry).and_then(VecDeque::pop_front) {
                Some(index) => drop(self.entries.insert(index, entry)),
                None => drop(self.add(entry)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn entries(indexed: &Indexed<char>) -> Vec<(u64, char)> {
        indexed.iter().map(|(index, entry)| (index, *entry)).collect()
    }

    #[test]
    fn no_index_is_used_twice() {
        let mut indexed = Indexed::default();
        assert_eq!([indexed.add('a'), indexed.add('b')], [1, 2]);
        assert_eq!((indexed.remove(2), indexed.remove(2), indexed.get(1)), (Some('b'), None, Some(&'a')));
        assert_eq!(indexed.add('b'), 3);
        assert_eq!(entries(&indexed), [(1, 'a'), (3, 'b')]);
    }

    #[test]
    fn entries_that_stay_keep_their_indexes() {
        let mut indexed = Indexed::default();
        indexed.follow("abac".chars());
        assert_eq!(entries(&indexed), [(1, 'a'), (2, 'b'), (3, 'a'), (4, 'c')]);
        indexed.follow("cdab".chars());
        assert_eq!(entries(&indexed), [(1, 'a'), (2, 'b'), (4, 'c'), (5, 'd')]);
        indexed.follow("aab".chars());
        assert_eq!(entries(&indexed), [(1, 'a'), (2, 'b'), (6, 'a')]);
    }
}
