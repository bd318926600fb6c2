//! Rights that end while a peer writes: it gets an error, and the memory is the owner's own again. `ISTHMUS_SEED` repeats the choices.

use isthmus_testbed::{Deadline, Exit, SeededRandom, short_or_long};
use isthmus_verbs_tests::{Stage, programs};

#[track_caller]
fn run((short, long): (u32, u32), variables: &[(&str, &str)]) {
    if programs().is_none() {
        return;
    }
    let Some(stage) = Stage::new() else { return };
    let mut schedule = SeededRandom::new();
    println!("ISTHMUS_SEED={:#x}", schedule.seed());
    let (seed, rounds) = (schedule.below(u64::MAX).to_string(), short_or_long(short, long).to_string());
    let launch = stage.launch(stage.server(), "/programs/revoke", &[&seed, &rounds], variables);
    let owner = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
    let finished = owner.finish(Deadline::secs(short_or_long(20, 300))).unwrap_or_else(|error| panic!("{error}"));
    assert!(finished.exit == Exit::Code(0) && finished.lines == ["done"], "seed {seed}: {finished:#?}");
}

#[test]
fn memory_is_the_owners_own_when_its_rights_have_ended() {
    run((300, 10_000), &[]);
}

#[test]
fn memory_that_stays_is_the_owners_own_when_its_rights_have_ended() {
    run((100, 2_000), &[("ISTHMUS_RCACHE", "0")]);
}

#[test]
fn memory_is_the_owners_own_when_its_rights_have_ended_on_the_daemon_path() {
    run((100, 2_000), &[("ISTHMUS_CHANNELS", "0")]);
}
