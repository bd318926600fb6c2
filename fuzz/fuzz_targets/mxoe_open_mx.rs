//! Any bytes as a frame from an Ethernet of MX boards, in Open-MX mode.
#![no_main]

#[path = "../src/mxoe.rs"]
mod mxoe;

use isthmus_mx::wire::Dialect;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| mxoe::parse_emit_parse(Dialect::OPEN_MX, frame));
