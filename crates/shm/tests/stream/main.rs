//! The memory of a stream with a peer that writes anything: each call ends, stays inside the rings and words, and panics on nothing.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod steps;

use isthmus_layout::sockets::{Interest, StreamEndIndex, StreamPath, Want};
use isthmus_shm::liar::Liar;
use isthmus_shm::{Board, StreamMemory};
use proptest::prelude::*;
use std::path::Path;

fn cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if cfg!(miri) { 1 } else { default.cases };
    ProptestConfig { cases, failure_persistence: None, ..default }
}

/// A word that makes sense somewhere: a wish, a path, a small position.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        0..8_u32,
        (0..5000_u32, 0..70_u32, 0..8_u32).prop_map(|(bit, waiter, bits)| bit << 16 | waiter << 4 | bits),
        any::<u32>()
    ]
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn an_end_survives_every_word(steps in prop::collection::vec((0..16_u8, 0..2_u8, word(), any::<u32>()), 0..200)) {
        let step = |(operation, end, low, high): (u8, u8, u32, u32)| {
            [&[operation, end], &low.to_le_bytes()[..], &high.to_le_bytes()[..]].concat()
        };
        steps::live(&steps.into_iter().flat_map(step).collect::<Vec<u8>>());
    }

    #[test]
    fn an_end_survives_every_answer(
        script in prop::collection::vec(word(), 0..60),
        steps in prop::collection::vec((0..8_u8, word()), 1..200),
        seed: u64,
    ) {
        let end = StreamEndIndex::new((seed % 2) as u8).unwrap();
        let memory = StreamMemory::new(Liar::new(script, seed), end);
        for (step, word) in steps {
            match step {
                0 => memory.clear_state(word),
                1 => drop(memory.report()),
                2 => drop((memory.peer_progress(), memory.peer_switch(word), memory.peer_reads_tcp(), memory.peer_taken())),
                3 => memory.read(StreamPath::Small, u64::from(word) << 20, &mut [0; 100]),
                4 => memory.write(StreamPath::Large, u64::from(word) << 10, &[0; 100]),
                5 => memory.announce(word, seed, StreamPath::Tcp, seed),
                _ => if let Some(want) = memory.peer_wants(Interest::ALL[usize::from(step % 2)]) {
                    prop_assert!(want.waiter().number() < 64);
                    prop_assert_eq!(Want::from_word(want.word()), Some(want));
                    Board::new(Liar::new(vec![word], seed)).notify(want);
                },
            }
        }
    }
}

fn corpus() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/stream_memory")
}

/// A step of a life.
fn step(operation: u8, end: u8, low: u32, high: u32) -> Vec<u8> {
    [&[operation, end], &low.to_le_bytes()[..], &high.to_le_bytes()[..]].concat()
}

/// Lives that reach each operation, by name. `UPDATE=1 cargo test -p isthmus-shm --test stream` writes them.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let poke = |end: u8, at: u32, value: u32| step(0, end, value, u32::from(end) * 256 + at);
    let wish = 7 << 16 | 3 << 4 | 1;
    vec![
        ("copies", [step(1, 0, 65_530, 0xff00_0000), step(1, 1, u32::MAX, 0x800c_ffff)].concat()),
        (
            "switch",
            [
                step(2, 0, 9, 0),
                step(6, 0, 9, 0x0200_0000),
                step(4, 1, 0, 0),
                step(3, 1, 9, 0),
                step(7, 1, 1, 0),
                step(5, 0, 0, 0),
            ]
            .concat(),
        ),
        ("state", [step(8, 0, 15, 0), step(9, 0, 8, 0), step(15, 1, 0, 0)].concat()),
        (
            "parked",
            [
                step(10, 1, wish, 0),
                step(10, 1, 8 << 16 | 5 << 4 | 1, 1),
                step(12, 0, 0, 1),
                step(13, 0, 0, 0),
                step(14, 0, 0, 0),
                step(10, 1, wish, 1),
                step(11, 1, 0, 1),
                step(12, 0, 0, 1),
            ]
            .concat(),
        ),
        ("hot", [step(10, 1, 3 << 4 | 4, 0), step(12, 0, 0, 0), step(12, 0, 0, 1)].concat()),
        (
            "hostile",
            [
                poke(1, 160, wish),
                step(12, 0, 0, 0),
                poke(1, 162, wish),
                poke(1, 160, u32::MAX),
                step(12, 0, 0, 0),
                step(12, 0, 0, 1),
                poke(1, 34, 3),
                step(15, 0, 0, 0),
            ]
            .concat(),
        ),
    ]
}

#[test]
fn lives_of_the_corpus_pass() {
    for (name, life) in seeds() {
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(corpus().join(name), &life).unwrap();
        }
        assert_eq!(std::fs::read(corpus().join(name)).ok(), Some(life), "{name}: run with UPDATE=1");
    }
    for entry in std::fs::read_dir(corpus()).unwrap() {
        steps::live(&std::fs::read(entry.unwrap().path()).unwrap());
    }
}
