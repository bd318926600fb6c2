//! Random programs on plain TCP and with the library: `c/differential.c` says how it compares them.
//!
//! A failure names its seed; `differential one SEED --library PATH` prints its steps and both results.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicBool, Ordering};

use isthmus_sockets_tests::{Stage, build};
use isthmus_testbed::{Deadline, short_or_long};

/// Seeds of all tests together.
const SEEDS: u64 = 300;
const SEEDS_LONG: u64 = 20_000;

/// The seeds that may differ, of a hundred. What differs is known: docs/reference/sockets.md, "What is not covered yet". A
/// mechanism that is broken makes far more differ.
const DIFFER_MAX: u64 = 4;
const DIFFER_MAX_LONG: u64 = 2;

/// Each test has seeds of its own.
const TESTS: u64 = 3;

/// Runs one part of the seeds with these variables for the library.
fn run(part: u64, variables: &[&str]) {
    let Some(mut stage) = Stage::library() else { return };
    let library = build::library().expect("a stage has been made with it").join(build::LIBRARY);
    let count = short_or_long(SEEDS, SEEDS_LONG) / TESTS;
    let mut words = vec!["run".to_owned(), "--jobs".to_owned(), "1".to_owned()];
    words.extend(["--first".to_owned(), (part * count).to_string(), "--count".to_owned(), count.to_string()]);
    words.extend(["--library".to_owned(), library.to_string_lossy().into_owned()]);
    for variable in variables {
        words.extend(["--env".to_owned(), (*variable).to_owned()]);
    }
    // The supervisor and the programs on plain TCP run without the library.
    let daemon = stage.daemon().expect("a stage with a library has a daemon");
    let program = daemon.launch_on_host(build::program("differential")).args(words).spawn();
    let deadline = Deadline::secs(short_or_long(300, 7200));
    let finished = program.unwrap_or_else(|error| panic!("{error}")).finish(deadline);
    let lines = finished.unwrap_or_else(|error| panic!("{error}")).lines;
    let text = lines.join("\n");
    println!("{text}");
    let totals = lines.last().and_then(|line| {
        let (seeds, rest) = line.split_once(" seeds, ")?;
        Some((seeds.parse::<u64>().ok()?, rest.split_once(" failed")?.0.parse::<u64>().ok()?))
    });
    let (seeds, failed) = totals.unwrap_or_else(|| panic!("no totals:\n{text}"));
    assert_eq!(seeds, count, "{text}");
    let most = count * short_or_long(DIFFER_MAX, DIFFER_MAX_LONG) / 100;
    assert!(failed <= most, "{failed} of {seeds} seeds differ, and {most} may:\n{text}");
    stage.expect_paired();
}

/// The generator itself: two runs of a program on plain TCP are the same.
#[test]
fn plain_programs_repeat() {
    let count = short_or_long(SEEDS, SEEDS_LONG).to_string();
    let words = ["run", "--fail-masked", "--count", &count];
    let program = Stage::Kernel.launch(build::program("differential")).args(words).spawn();
    let finished = program.unwrap_or_else(|error| panic!("{error}")).finish(Deadline::secs(short_or_long(300, 7200)));
    println!("{}", finished.unwrap_or_else(|error| panic!("{error}")).expect_success().join("\n"));
}

/// Connections become streams with the first byte.
#[test]
fn from_the_first_byte() {
    run(0, &["ISTHMUS_SOCKETS_AFTER=0"]);
}

/// Each direction goes to TCP and back 20 times a second.
#[test]
fn while_directions_switch() {
    run(1, &["ISTHMUS_SOCKETS_AFTER=0", "ISTHMUS_SOCKETS_TEST_SWITCH=20"]);
}

/// Other threads use the processors.
#[test]
fn beside_two_busy_loops() {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = std::panic::catch_unwind(|| run(2, &[]));
        ended.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}
