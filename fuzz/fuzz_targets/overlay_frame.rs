//! Any bytes as frames of a guest and as datagrams of another host.
#![no_main]

#[path = "../../crates/overlay/tests/hostile/frames.rs"]
mod frames;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    frames::pass(bytes);
});
