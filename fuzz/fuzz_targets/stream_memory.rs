//! Any bytes as the life of a stream's memory, of which the peer overwrites any word at any time.
#![no_main]

#[path = "../../crates/shm/tests/stream/steps.rs"]
mod steps;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|life: &[u8]| {
    steps::live(life);
});
