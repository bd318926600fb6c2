//! The fuzz corpus of boards (`fuzz/corpus/mxoe_board`) passes with any compiler. `UPDATE=1 cargo test -p isthmus-mx --test board
//! corpus` writes the seeds; what a fuzzer adds is kept.

use crate::samples::{A, samples};
use crate::steps::{FRAME, TIME, live};
use crate::{DIALECTS, demux};
use std::path::Path;

/// Returns inputs in which a board receives the sample frames of A, from the last to the first and back, with time
/// between them.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (first, dialect) in (0..).zip(DIALECTS) {
        let frames: Vec<Vec<u8>> = samples()
            .into_iter()
            .filter(|sample| sample.dialects.contains(&dialect) && sample.header.src == A && sample.frame.len() < 200)
            .map(|sample| sample.frame)
            .collect();
        let mut life = vec![first];
        for frame in frames.iter().chain(frames.iter().rev()) {
            let mut one = vec![TIME, 0, 1, FRAME];
            one.extend((frame.len() as u16).to_be_bytes());
            one.extend(frame);
            life.extend(one);
        }
        life.extend([TIME, 0xff, 0xff, 5, 4, 0, TIME, 0, 1, 5, 2, 0, 5, 2, 1, 5, 3, 0, TIME, 0xff, 0xff]);
        seeds.push((format!("samples{first}"), life));
    }
    seeds
}

#[test]
#[cfg_attr(miri, ignore = "the corpus is large, and boards have no unsafe code")]
fn corpus_inputs_run_without_a_panic() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/mxoe_board");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        for (name, life) in seeds() {
            std::fs::write(folder.join(name), life).unwrap();
        }
    }
    let mut taken = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        taken += live(&std::fs::read(entry.unwrap().path()).unwrap());
    }
    // Each type that A sends, in each dialect.
    assert!(taken >= 2 * demux::FOR_ENDPOINTS.len(), "{taken}");
}

/// Seeds cut and changed anywhere are inputs, too.
#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and many steps")]
fn mutated_corpus_inputs_run_without_a_panic() {
    let mut random = crate::random::Random::new(3);
    for (_, life) in seeds() {
        for _ in 0..3000 {
            let mut changed = life.clone();
            for _ in 0..1 + random.below(6) {
                let at = random.below(changed.len() as u64) as usize;
                changed[at] = random.next() as u8;
            }
            changed.truncate(random.below(changed.len() as u64 * 2) as usize);
            live(&changed);
        }
    }
}
