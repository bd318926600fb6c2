//! A peer sends anything: nothing panics, no memory outside of registered regions is touched, no request completes twice.
#![allow(clippy::unwrap_used, reason = "tests")]

mod steps;

use proptest::prelude::*;

fn cases() -> ProptestConfig {
    let cases = if std::env::var_os("ISTHMUS_TEST_LONG").is_some() { 500_000 } else { 5_000 };
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn an_adapter_survives_every_peer(life in proptest::collection::vec(any::<u8>(), 0..3000)) {
        steps::live(&life);
    }
}

/// The inputs of the fuzz target.
#[test]
fn the_corpus_is_replayed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/verbs_packet");
    let mut files = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        steps::live(&std::fs::read(file.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files > 0, "{folder} is empty");
}
