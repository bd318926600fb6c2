//! Which bytes of a window are handed out. Kept outside the window: a guest could change what it says.
//!
//! ```text
//!   free ── take ──► held ── let_go ──► withdrawn ── away ──► free
//! ```

use std::collections::{BTreeMap, VecDeque};

use isthmus_layout::border::{WindowNumber, Withdrawn};

/// The spans of a window.
#[derive(Debug)]
pub(super) struct Pieces {
    window: WindowNumber,
    /// By their first byte; no two touch. First fit.
    free: BTreeMap<u64, u64>,
    /// By their first byte, with which use of it it is.
    held: BTreeMap<u64, u32>,
    /// Those that the guest has to take away before they are free, with their bytes.
    withdrawn: VecDeque<(Withdrawn, u64)>,
    age: u32,
    bytes: u64,
}

impl Pieces {
    pub(super) fn new(window: WindowNumber, start: u64, bytes: u64) -> Self {
        let free = BTreeMap::from([(start, bytes)]);
        Self { window, free, held: BTreeMap::new(), withdrawn: VecDeque::new(), age: 0, bytes }
    }

    /// The first byte of a span of so many, and which use of it this is.
    pub(super) fn take(&mut self, bytes: u64) -> Option<(u64, u32)> {
        let (&at, &have) = self.free.iter().find(|&(_, &have)| have >= bytes)?;
        self.free.remove(&at);
        if have > bytes {
            self.free.insert(at + bytes, have - bytes);
        }
        self.age = self.age.wrapping_add(1);
        self.held.insert(at, self.age);
        Some((at, self.age))
    }

    /// True as long as this use of a span lasts.
    pub(super) fn holds(&self, at: u64, age: u32) -> bool {
        self.held.get(&at) == Some(&age)
    }

    /// What [`Self::take`] gave is used no longer.
    pub(super) fn let_go(&mut self, at: u64, bytes: u64) {
        let Some(age) = self.held.remove(&at) else { return };
        self.withdrawn.push_back((Withdrawn { window: self.window, offset: at, age }, bytes));
    }

    /// What a guest has to be told of next that was told of so many.
    pub(super) fn withdrawn(&self, told: usize) -> Option<Withdrawn> {
        self.withdrawn.get(told).map(|(withdrawn, _)| *withdrawn)
    }

    /// The first is away, for all who see the window.
    pub(super) fn away(&mut self) {
        if let Some((Withdrawn { offset, .. }, bytes)) = self.withdrawn.pop_front() {
            self.give_back(offset, bytes);
        }
    }

    /// The same of any of the first so many. False if it is none of them.
    pub(super) fn away_among(&mut self, told: usize, away: Withdrawn) -> bool {
        let nth = self.withdrawn.iter().take(told).position(|(withdrawn, _)| *withdrawn == away);
        let Some((_, bytes)) = nth.and_then(|nth| self.withdrawn.remove(nth)) else { return false };
        self.give_back(away.offset, bytes);
        true
    }

    fn give_back(&mut self, mut at: u64, mut bytes: u64) {
        if let Some(after) = self.free.remove(&(at + bytes)) {
            bytes += after;
        }
        if let Some((&before, &have)) = self.free.range(..at).next_back()
            && before + have == at
        {
            self.free.remove(&before);
            (at, bytes) = (before, have + bytes);
        }
        self.free.insert(at, bytes);
    }

    /// Bytes that can be handed out at once.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that are handed out, or were and the guest does not know that they are not.
    pub(super) fn used(&self) -> u64 {
        self.bytes - self.free.values().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_never_overlap_and_come_back_once_they_are_away(
            steps in prop::collection::vec((1_u64..9, any::<prop::sample::Index>(), 0..4), 1..200),
        ) {
            let mut pieces = Pieces::new(WindowNumber::OWN, 64, 100);
            let mut held: Vec<(u64, u32, u64)> = Vec::new();
            let mut untold: Vec<(u64, u64)> = Vec::new();
            for (bytes, which, step) in steps {
                match step {
                    0 => if let Some((at, age)) = pieces.take(bytes) {
                        prop_assert!(at >= 64 && at + bytes <= 164);
                        let taken = held.iter().map(|&(at, _, bytes)| (at, bytes)).chain(untold.iter().copied());
                        for (other, len) in taken {
                            prop_assert!(at + bytes <= other || other + len <= at);
                        }
                        held.push((at, age, bytes));
                    },
                    1 if !held.is_empty() => {
                        let (at, age, bytes) = held.swap_remove(which.index(held.len()));
                        prop_assert!(pieces.holds(at, age));
                        pieces.let_go(at, bytes);
                        prop_assert!(!pieces.holds(at, age));
                        untold.push((at, bytes));
                    }
                    2 if !untold.is_empty() => {
                        let nth = which.index(untold.len());
                        let withdrawn = pieces.withdrawn(nth).unwrap();
                        prop_assert!(!pieces.away_among(nth, withdrawn) && pieces.away_among(nth + 1, withdrawn));
                        prop_assert!(!pieces.away_among(untold.len(), withdrawn));
                        prop_assert_eq!(withdrawn.offset, untold.remove(nth).0);
                    }
                    _ => {
                        prop_assert_eq!(pieces.withdrawn(0).map(|next| next.offset), untold.first().map(|next| next.0));
                        pieces.away();
                        untold.drain(..untold.len().min(1));
                    }
                }
                let lengths = held.iter().map(|&(_, _, bytes)| bytes).chain(untold.iter().map(|&(_, bytes)| bytes));
                prop_assert_eq!(pieces.used(), lengths.sum::<u64>());
            }
            held.into_iter().for_each(|(at, _, bytes)| pieces.let_go(at, bytes));
            while pieces.withdrawn(0).is_some() {
                pieces.away();
            }
            prop_assert_eq!(pieces.take(100).map(|(at, _)| at), Some(64));
        }
    }
}
