//! Memory with stores that arrive late, as those of a real CPU do: for tests of which side is notified, and when.
#![cfg(not(loom))]

use crate::words::{Payload, Words};
use crate::{Mapping, SharedMapping};
use core::cell::RefCell;
use core::sync::atomic::Ordering;
use isthmus_layout::RegionSize;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::rc::Rc;

/// One side's view of shared memory. Its stores wait in order until it fences, swaps, or applies some. It sees its own stores at once.
#[derive(Clone, Debug)]
pub(crate) struct DelayedStores {
    mapping: SharedMapping,
    pending: PendingStores,
    /// The pending stores of the other side.
    peer_pending: PendingStores,
}

type PendingStores = Rc<RefCell<VecDeque<(u32, u32)>>>;

impl DelayedStores {
    /// Creates two sides of zeroed memory.
    pub(crate) fn pair(size: RegionSize) -> [Self; 2] {
        let mapping = SharedMapping::new(Mapping::private(size));
        let (one, other) = (PendingStores::default(), PendingStores::default());
        [
            Self { mapping: mapping.clone(), pending: one.clone(), peer_pending: other.clone() },
            Self { mapping, pending: other, peer_pending: one },
        ]
    }

    /// Applies the oldest `stores` stores.
    pub(crate) fn apply_oldest(&self, stores: usize) {
        let mut pending = self.pending.borrow_mut();
        let arriving = stores.min(pending.len());
        for (at, value) in pending.drain(..arriving) {
            self.mapping.store(at, value, Ordering::Relaxed);
        }
    }
}

impl Words for DelayedStores {
    fn load(&self, at: u32, order: Ordering) -> u32 {
        let own = self.pending.borrow().iter().rev().find(|(word, _)| *word == at).map(|(_, value)| *value);
        own.unwrap_or_else(|| self.mapping.load(at, order))
    }
    fn store(&self, at: u32, value: u32, _order: Ordering) {
        self.pending.borrow_mut().push_back((at, value));
    }
    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32 {
        self.apply_oldest(usize::MAX);
        self.mapping.swap(at, value, order)
    }
    fn or(&self, at: u32, bits: u32, order: Ordering) {
        self.apply_oldest(usize::MAX);
        self.mapping.or(at, bits, order);
    }
    fn compare_exchange(&self, at: u32, from: u32, to: u32, order: Ordering) -> bool {
        self.apply_oldest(usize::MAX);
        self.mapping.compare_exchange(at, from, to, order)
    }
    fn fence(&self) {
        self.apply_oldest(usize::MAX);
    }
    fn light_fence(&self) {}
    fn heavy_fence(&self) -> bool {
        self.apply_oldest(usize::MAX);
        for (at, value) in self.peer_pending.borrow_mut().drain(..) {
            self.mapping.store(at, value, Ordering::Relaxed);
        }
        true
    }
    fn has_heavy_fence(&self) -> bool {
        true
    }
}

impl Payload for DelayedStores {
    fn copy_in(&self, at: u64, from: &[u8]) {
        self.mapping.copy_in(at, from);
    }
    fn copy_out(&self, at: u64, into: &mut [u8]) {
        self.mapping.copy_out(at, into);
    }
}

/// Free-running positions, most of them close to where they wrap.
pub(crate) fn positions() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), (1..2000_u32).prop_map(u32::wrapping_neg), any::<u32>()]
}

/// As many cases as the environment asks for, but one under miri, where making them takes longer than running them. No file of
/// failures: those become tests.
pub(crate) fn cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if cfg!(miri) { 1 } else { default.cases };
    ProptestConfig { cases, failure_persistence: None, ..default }
}

/// Returns the part of `steps` that a test can afford.
pub(crate) const fn affordable(steps: usize) -> usize {
    if cfg!(miri) { steps / 10 } else { steps }
}
