//! The file of resumable domains over many restarts: each daemon knows what the one before it knew.
#![allow(clippy::unwrap_used, reason = "tests")]

mod steps;

use std::path::Path;

use proptest::prelude::*;

fn live(text: &str, steps: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    steps::live(folder.path(), &[&(text.len() as u16).to_le_bytes()[..], text.as_bytes(), steps].concat());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_daemon_knows_what_the_one_before_it_knew(
        lines in prop::collection::vec("[1-9] (-|- - [0-9] [a-zä]{1,3})|(mx|sockets) [0-9] (-|[1-9])|first [0-9]{1,10}", 0..8),
        steps in prop::collection::vec((0..9_u8, prop_oneof![0..6_u8, any::<u8>()], any::<u8>()), 0..60),
    ) {
        let text = format!("isthmus resume 2\n{}\n4097\n{}\n", "1f".repeat(32), lines.join("\n"));
        live(&text, &steps.into_iter().flat_map(|(operation, low, high)| [operation, low, high]).collect::<Vec<u8>>());
    }
}

/// The corpus of the fuzz target, which also has what it has found.
#[test]
fn corpus_of_the_fuzz_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/resume_file");
    for seed in std::fs::read_dir(corpus).unwrap() {
        let folder = tempfile::tempdir().unwrap();
        steps::live(folder.path(), &std::fs::read(seed.unwrap().path()).unwrap());
    }
}
