//! Memory of the worst peer: every load returns another value.
//!
//! Code that fetches a word once, checks the copy and uses the copy is safe with it. Code that reads twice is not: the second
//! value is never the one that was checked. Property tests run the rings over it.

use crate::words::{Payload, Words};
use core::cell::RefCell;
use core::sync::atomic::Ordering;

/// Returns loads from a script, then from a generator seeded by it; never the same value twice in a row.
#[derive(Debug)]
pub struct Liar {
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    script: std::vec::IntoIter<u32>,
    seed: u64,
    last: u32,
}

impl Liar {
    /// Creates memory that returns `script` first. Tests put plausible stamps and lengths there, so that the code gets further before the lie.
    pub fn new(script: Vec<u32>, seed: u64) -> Self {
        Self { state: RefCell::new(State { script: script.into_iter(), seed: seed | 1, last: 0 }) }
    }

    fn answer(&self) -> u32 {
        let mut state = self.state.borrow_mut();
        // xorshift64: any full-period generator will do.
        state.seed ^= state.seed << 13;
        state.seed ^= state.seed >> 7;
        state.seed ^= state.seed << 17;
        let random = (state.seed >> 16) as u32;
        let mut answer = state.script.next().unwrap_or(random);
        if answer == state.last {
            answer = answer.wrapping_add(random | 1);
        }
        state.last = answer;
        answer
    }
}

impl Words for Liar {
    fn load(&self, _at: u32, _order: Ordering) -> u32 {
        self.answer()
    }
    fn store(&self, _at: u32, _value: u32, _order: Ordering) {}
    fn swap(&self, _at: u32, _value: u32, _order: Ordering) -> u32 {
        self.answer()
    }
    fn or(&self, _at: u32, _bits: u32, _order: Ordering) {}
    fn compare_exchange(&self, _at: u32, _from: u32, _to: u32, _order: Ordering) -> bool {
        self.answer().is_multiple_of(2)
    }
    fn fence(&self) {}
}

impl Payload for Liar {
    fn copy_in(&self, _at: u64, _from: &[u8]) {}
    fn copy_out(&self, _at: u64, into: &mut [u8]) {
        for byte in into {
            *byte = self.answer() as u8;
        }
    }
}
