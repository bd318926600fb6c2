//! The free-space map of a window. It is kept outside the window, where a guest cannot change it.
//!
//! ```text
//!   free ── alloc ──► live ── free ──► revoked ── reclaimed ──► free
//! ```

use std::collections::{BTreeMap, VecDeque};

use isthmus_layout::proxy::{RevokedExtent, WindowId};

/// The extents of a window.
#[derive(Debug)]
pub(crate) struct ExtentMap {
    window: WindowId,
    /// The bytes of each free extent, by its offset. No two extents touch. The first fit is allocated.
    free: BTreeMap<u64, u64>,
    /// The generation of each allocated extent, by its offset.
    live: BTreeMap<u64, u32>,
    /// Revoked extents with their bytes. The guest has to unmap them before they are free.
    revoked: VecDeque<(RevokedExtent, u64)>,
    generation: u32,
    bytes: u64,
}

impl ExtentMap {
    pub(crate) fn new(window: WindowId, start: u64, bytes: u64) -> Self {
        let free = BTreeMap::from([(start, bytes)]);
        Self { window, free, live: BTreeMap::new(), revoked: VecDeque::new(), generation: 0, bytes }
    }

    /// Allocates an extent of `bytes`. Returns its offset and its generation.
    pub(crate) fn alloc(&mut self, bytes: u64) -> Option<(u64, u32)> {
        let (&at, &have) = self.free.iter().find(|&(_, &have)| have >= bytes)?;
        self.free.remove(&at);
        if have > bytes {
            self.free.insert(at + bytes, have - bytes);
        }
        self.generation = self.generation.wrapping_add(1);
        self.live.insert(at, self.generation);
        Some((at, self.generation))
    }

    /// True as long as the extent of this generation is allocated.
    pub(crate) fn is_live(&self, at: u64, generation: u32) -> bool {
        self.live.get(&at) == Some(&generation)
    }

    /// Revokes an extent that [`Self::alloc`] has returned.
    pub(crate) fn free(&mut self, at: u64, bytes: u64) {
        let Some(generation) = self.live.remove(&at) else { return };
        self.revoked.push_back((RevokedExtent { window: self.window, offset: at, generation }, bytes));
    }

    /// Returns the next revoked extent, given that the guest already knows of the first `reported` ones.
    pub(crate) fn revoked(&self, reported: usize) -> Option<RevokedExtent> {
        self.revoked.get(reported).map(|(revoked, _)| *revoked)
    }

    /// Frees the first revoked extent, after all sides of the window have unmapped it.
    pub(crate) fn reclaim_first(&mut self) {
        let Some((RevokedExtent { offset: mut at, .. }, mut bytes)) = self.revoked.pop_front() else { return };
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

    /// The number of bytes that can be allocated at once.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of bytes that are allocated, or revoked and not reclaimed yet.
    pub(crate) fn used(&self) -> u64 {
        self.bytes - self.free.values().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_never_overlap_and_are_reused_when_reclaimed(
            steps in prop::collection::vec((1_u64..9, any::<prop::sample::Index>(), 0..3), 1..200),
        ) {
            let mut extents = ExtentMap::new(WindowId::OWN, 64, 100);
            let mut live: Vec<(u64, u32, u64)> = Vec::new();
            let mut unreported: Vec<(u64, u64)> = Vec::new();
            for (bytes, which, step) in steps {
                match step {
                    0 => if let Some((at, generation)) = extents.alloc(bytes) {
                        prop_assert!(at >= 64 && at + bytes <= 164);
                        let taken = live.iter().map(|&(at, _, bytes)| (at, bytes)).chain(unreported.iter().copied());
                        for (other, len) in taken {
                            prop_assert!(at + bytes <= other || other + len <= at);
                        }
                        live.push((at, generation, bytes));
                    },
                    1 if !live.is_empty() => {
                        let (at, generation, bytes) = live.swap_remove(which.index(live.len()));
                        prop_assert!(extents.is_live(at, generation));
                        extents.free(at, bytes);
                        prop_assert!(!extents.is_live(at, generation));
                        unreported.push((at, bytes));
                    }
                    _ => {
                        prop_assert_eq!(extents.revoked(0).map(|next| next.offset), unreported.first().map(|next| next.0));
                        extents.reclaim_first();
                        unreported.drain(..unreported.len().min(1));
                    }
                }
                let lengths = live.iter().map(|&(_, _, bytes)| bytes).chain(unreported.iter().map(|&(_, bytes)| bytes));
                prop_assert_eq!(extents.used(), lengths.sum::<u64>());
            }
            live.into_iter().for_each(|(at, _, bytes)| extents.free(at, bytes));
            while extents.revoked(0).is_some() {
                extents.reclaim_first();
            }
            prop_assert_eq!(extents.alloc(100).map(|(at, _)| at), Some(64));
        }
    }
}
