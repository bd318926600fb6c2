//! Partners are killed at random moments of each stage of their work: the survivor's requests fail as the standard says, and its device
//! goes on. `ISTHMUS_SEED` repeats the choices.

use isthmus_testbed::{Deadline, Exit, SeededRandom, View, eventually, short_or_long};
use isthmus_verbs_tests::{Stage, programs, timeout};

/// Kills of the short form and of the long one.
const KILLS: [(u32, u32); 2] = [(28, 700), (12, 300)];

/// The descriptors and the shared mappings of a survivor without partners, and its memory, at most: however many have died.
const HELD_MAX: (usize, usize) = (32, 8);
const BYTES_MAX: u64 = 64 << 20;

/// The descriptors and the shared mappings of a process.
fn held(view: &View) -> (usize, usize) {
    let fds = view.fds().unwrap().into_iter().filter(|fd| !fd.target.starts_with("/proc/"));
    (fds.count(), view.shared_maps().unwrap().len())
}

#[track_caller]
fn run((short, long): (u32, u32), variables: &[(&str, &str)]) {
    if programs().is_none() {
        return;
    }
    let Some(mut stage) = Stage::new() else { return };
    let mut schedule = SeededRandom::new();
    println!("ISTHMUS_SEED={:#x}", schedule.seed());
    let before = held(&stage.daemon().view().unwrap());
    let (seed, kills) = (schedule.below(u64::MAX).to_string(), short_or_long(short, long).to_string());
    let launch = stage.launch(stage.server(), "/programs/partners", &[&seed, &kills], variables).with_stdin();
    let mut survivor = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
    let survived = survivor.wait_line("survived", Deadline::secs(short_or_long(30, 600)));
    assert!(survived.is_ok(), "{survived:?} seed {seed}, {kills} kills: {}", survivor.stderr());
    eventually(timeout(), || stage.count_rows(&["verbs", "list"]) == 1 && stage.count_rows(&["domain", "list"]) == 1)
        .unwrap();
    assert_eq!(stage.count_rows(&["channel", "list"]), 0);
    let view = survivor.view().unwrap();
    let (held_now, bytes) = (held(&view), view.memory().unwrap().rss_bytes);
    println!("{kills} kills: the survivor has {held_now:?} and {bytes} bytes");
    assert!(held_now.0 <= HELD_MAX.0 && held_now.1 <= HELD_MAX.1 && bytes <= BYTES_MAX, "{held_now:?}, {bytes} bytes");
    survivor.close_stdin();
    let finished = survivor.finish(timeout()).unwrap();
    assert!(finished.exit == Exit::Code(0) && finished.lines == ["done"], "seed {seed}: {finished:#?}");
    let daemon = stage.daemon().view().unwrap();
    let is_free = || held(&daemon) <= before;
    assert!(eventually(timeout(), is_free).is_ok(), "{:?}, before {before:?}", held(&daemon));
    assert_eq!(stage.count_rows(&["verbs", "list"]), 0);
}

#[test]
fn killed_partners_end_their_connections_only() {
    run(KILLS[0], &[]);
}

#[test]
fn killed_partners_end_their_connections_only_on_the_daemon_path() {
    run(KILLS[1], &[("ISTHMUS_CHANNELS", "0")]);
}
