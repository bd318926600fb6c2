//! Which bytes of a window are handed out. Kept outside the window: a guest could change what it says.

use std::collections::BTreeMap;

/// The free spans of a window, first fit.
#[derive(Debug)]
pub(super) struct Pieces {
    /// By their first byte; no two touch.
    free: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Pieces {
    pub(super) fn new(start: u64, bytes: u64) -> Self {
        Self { free: BTreeMap::from([(start, bytes)]), bytes }
    }

    /// The first byte of a span of so many.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&at, &have) = self.free.iter().find(|&(_, &have)| have >= bytes)?;
        self.free.remove(&at);
        if have > bytes {
            self.free.insert(at + bytes, have - bytes);
        }
        Some(at)
    }

    /// What [`Self::take`] gave.
    pub(super) fn give_back(&mut self, mut at: u64, mut bytes: u64) {
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

    /// Bytes that are handed out.
    pub(super) fn used(&self) -> u64 {
        self.bytes - self.free.values().sum::<u64>()
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_never_overlap_and_all_come_back(
            steps in prop::collection::vec((1_u64..9, any::<prop::sample::Index>(), any::<bool>()), 1..200),
        ) {
            let mut pieces = Pieces::new(64, 100);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (bytes, which, takes) in steps {
                if takes {
                    if let Some(at) = pieces.take(bytes) {
                        prop_assert!(at >= 64 && at + bytes <= 164);
                        prop_assert!(held.iter().all(|&(other, len)| at + bytes <= other || other + len <= at));
                        held.push((at, bytes));
                    }
                } else if !held.is_empty() {
                    let (at, bytes) = held.swap_remove(which.index(held.len()));
                    pieces.give_back(at, bytes);
                }
                prop_assert_eq!(pieces.used(), held.iter().map(|&(_, bytes)| bytes).sum::<u64>());
            }
            held.into_iter().for_each(|(at, bytes)| pieces.give_back(at, bytes));
            prop_assert_eq!(pieces.take(100), Some(64));
        }
    }
}
