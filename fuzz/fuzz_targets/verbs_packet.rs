//! Any bytes as the life of an adapter with a peer that sends anything.
#![no_main]

#[path = "../../crates/verbs/tests/hostile/steps.rs"]
mod steps;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|life: &[u8]| steps::live(life));
