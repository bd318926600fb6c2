//! `ibv_*_pingpong`: two containers, checked data.

use isthmus_verbs_tests::{Pair, Stage};

/// Variables by which all messages go through the daemon.
const DAEMON_PATH: [(&str, &str); 1] = [("ISTHMUS_CHANNELS", "0")];

/// Runs a pingpong with checked data, and asserts that both ends have done all iterations.
#[track_caller]
fn run(stage: &Stage, kind: &str, count: u32, words: &str, variables: &[(&str, &str)]) {
    let iterations = count.to_string();
    let words: Vec<&str> = ["-c", "-n", &iterations].into_iter().chain(words.split_whitespace()).collect();
    let pair = Pair::run(stage, &format!("/usr/bin/ibv_{kind}_pingpong"), &words, variables);
    for lines in pair.expect_success() {
        let done = format!("{count} iters in ");
        assert!(lines.iter().any(|line| line.starts_with(&done)), "{kind} {words:?}: {lines:#?}");
    }
}

/// Sizes, depths of the receive queue, path MTUs, with an index of a GID and without.
fn connected(stage: &Stage, kind: &str, variables: &[(&str, &str)]) {
    for words in ["-s 1", "-s 64 -g 0", "-s 4096", "-s 4096 -r 16 -g 1", "-s 4097 -m 4096", "-s 65536 -m 256 -g 1"] {
        run(stage, kind, 100, words, variables);
    }
    run(stage, kind, 20, "-s 1048576 -g 0", variables);
}

fn datagrams(stage: &Stage, variables: &[(&str, &str)]) {
    for words in ["-s 1024 -g 0", "-s 2048 -g 0", "-s 4096 -g 1 -r 16"] {
        run(stage, "ud", 100, words, variables);
    }
}

fn shared_receive_queue(stage: &Stage, variables: &[(&str, &str)]) {
    for words in ["-s 64", "-s 4096 -q 1 -g 0", "-s 65536 -q 8 -r 64 -g 1"] {
        run(stage, "srq", 100, words, variables);
    }
}

#[test]
fn rc_pingpongs_carry_their_data() {
    let Some(stage) = Stage::new() else { return };
    connected(&stage, "rc", &[]);
}

#[test]
fn uc_pingpongs_carry_their_data() {
    let Some(stage) = Stage::new() else { return };
    connected(&stage, "uc", &[]);
}

#[test]
fn ud_pingpongs_carry_their_data() {
    let Some(stage) = Stage::new() else { return };
    datagrams(&stage, &[]);
}

#[test]
fn srq_pingpongs_carry_their_data() {
    let Some(stage) = Stage::new() else { return };
    shared_receive_queue(&stage, &[]);
}

#[test]
fn pingpongs_carry_their_data_through_the_daemon() {
    let Some(stage) = Stage::new() else { return };
    run(&stage, "rc", 100, "-s 64 -g 0", &DAEMON_PATH);
    run(&stage, "rc", 20, "-s 1048576", &DAEMON_PATH);
    run(&stage, "uc", 100, "-s 4096 -g 0", &DAEMON_PATH);
    run(&stage, "ud", 100, "-s 1024 -g 0", &DAEMON_PATH);
    run(&stage, "srq", 100, "-s 4096 -g 0", &DAEMON_PATH);
}

#[test]
fn pingpongs_wait_for_events() {
    let Some(stage) = Stage::new() else { return };
    for kind in ["rc", "uc", "ud", "srq"] {
        run(&stage, kind, 100, "-e -s 1024 -g 0", &[]);
    }
    run(&stage, "rc", 100, "-e -s 4096 -g 0", &DAEMON_PATH);
}

#[test]
fn rc_pingpong_posts_by_the_extended_interface() {
    let Some(stage) = Stage::new() else { return };
    run(&stage, "rc", 100, "-N -s 4096", &[]);
    run(&stage, "rc", 100, "-N -e -s 64", &[]);
}
