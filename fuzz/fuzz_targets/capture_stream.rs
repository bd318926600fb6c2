//! Parses any bytes as the stream of a capture from the daemon, and writes them on into a file.
#![no_main]

#[path = "../../crates/capture/tests/corpus/read.rs"]
mod read;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|stream: &[u8]| {
    read::messages(stream);
    read::file(stream);
});
