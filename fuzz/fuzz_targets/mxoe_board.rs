//! Any bytes as the life of a board of MX over Ethernet: frames, time, links that fail, an operator.
#![no_main]

#[path = "../../crates/mx/tests/board/steps.rs"]
mod steps;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|life: &[u8]| {
    steps::live(life);
});
