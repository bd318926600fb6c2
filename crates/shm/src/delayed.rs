//! Memory whose stores arrive late, as those of a real processor do: for tests of who is told what, and when.
#![cfg(not(loom))]

use crate::words::{Payload, Words};
use crate::{Mapping, Window};
use core::cell::RefCell;
use core::sync::atomic::Ordering;
use isthmus_layout::RegionSize;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::rc::Rc;

/// One side's view of a window. Its stores wait in order until it fences, swaps, or is told to let some go; it sees its own.
#[derive(Clone, Debug)]
pub(crate) struct Delayed {
    window: Window,
    waiting: Waiting,
    /// Those of the other side.
    theirs: Waiting,
}

type Waiting = Rc<RefCell<VecDeque<(u32, u32)>>>;

impl Delayed {
    /// Two sides of zeroed memory.
    pub(crate) fn pair(size: RegionSize) -> [Self; 2] {
        let window = Window::new(Mapping::private(size));
        let (one, other) = (Waiting::default(), Waiting::default());
        [
            Self { window: window.clone(), waiting: one.clone(), theirs: other.clone() },
            Self { window, waiting: other, theirs: one },
        ]
    }

    /// Lets the oldest `stores` arrive.
    pub(crate) fn arrive(&self, stores: usize) {
        let mut waiting = self.waiting.borrow_mut();
        let arriving = stores.min(waiting.len());
        for (at, value) in waiting.drain(..arriving) {
            self.window.store(at, value, Ordering::Relaxed);
        }
    }
}

impl Words for Delayed {
    fn load(&self, at: u32, order: Ordering) -> u32 {
        let own = self.waiting.borrow().iter().rev().find(|(word, _)| *word == at).map(|(_, value)| *value);
        own.unwrap_or_else(|| self.window.load(at, order))
    }
    fn store(&self, at: u32, value: u32, _order: Ordering) {
        self.waiting.borrow_mut().push_back((at, value));
    }
    fn swap(&self, at: u32, value: u32, order: Ordering) -> u32 {
        self.arrive(usize::MAX);
        self.window.swap(at, value, order)
    }
    fn or(&self, at: u32, bits: u32, order: Ordering) {
        self.arrive(usize::MAX);
        self.window.or(at, bits, order);
    }
    fn replace(&self, at: u32, from: u32, to: u32, order: Ordering) -> bool {
        self.arrive(usize::MAX);
        self.window.replace(at, from, to, order)
    }
    fn fence(&self) {
        self.arrive(usize::MAX);
    }
    fn light_fence(&self) {}
    fn barrier(&self) -> bool {
        self.arrive(usize::MAX);
        for (at, value) in self.theirs.borrow_mut().drain(..) {
            self.window.store(at, value, Ordering::Relaxed);
        }
        true
    }
    fn has_barrier(&self) -> bool {
        true
    }
}

impl Payload for Delayed {
    fn copy_in(&self, at: u64, from: &[u8]) {
        self.window.copy_in(at, from);
    }
    fn copy_out(&self, at: u64, into: &mut [u8]) {
        self.window.copy_out(at, into);
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

/// How much of `steps` a test can afford.
pub(crate) const fn affordable(steps: usize) -> usize {
    if cfg!(miri) { steps / 10 } else { steps }
}
