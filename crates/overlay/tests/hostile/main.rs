//! Guests and other hosts send anything: nothing panics, memory stays bounded, and what is delivered is valid.
#![allow(clippy::unwrap_used, reason = "tests")]

mod frames;

use proptest::prelude::*;

fn cases() -> ProptestConfig {
    let cases = if std::env::var_os("ISTHMUS_TEST_LONG").is_some() { 500_000 } else { 5_000 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn any_bytes_are_refused_or_valid(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        frames::pass(&bytes);
    }

    #[test]
    fn frames_with_a_changed_byte_are_refused_or_valid(
        sample in prop::sample::select(corpus()),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut bytes = sample;
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        frames::pass(&bytes);
    }
}

/// The inputs of the fuzz target.
fn corpus() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/overlay_frame");
    let files = std::fs::read_dir(folder).unwrap();
    files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
}

#[test]
fn the_corpus_is_replayed() {
    let passed = corpus().iter().map(|bytes| frames::pass(bytes)).fold([0; 3], |mut sum, passed| {
        sum.iter_mut().zip(passed).for_each(|(sum, passed)| *sum += passed);
        sum
    });
    assert!(passed.iter().all(|&count| count > 0), "the corpus has frames of each kind that pass: {passed:?}");
}
