//! Any bytes as the life of the file of resumable domains: any text, then changes, crashes and restarts.
#![no_main]

#[path = "../../crates/control/tests/resume_file/steps.rs"]
mod steps;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|life: &[u8]| {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    steps::live(folder.path(), life);
});
