//! Requests and replies of `c/exchange.c`, checked by both programs.

use isthmus_sockets_tests::{Stage, TwoPrograms, timeout};
use isthmus_testbed::{Finished, short_or_long};

/// Exchanges messages in one mode, `rounds` on each connection.
#[track_caller]
pub(crate) fn exchange(programs: &TwoPrograms, mode: &str, connections: u64, rounds: u64) {
    println!("{mode}");
    let (connections_word, rounds_word) = (connections.to_string(), rounds.to_string());
    let words = ["--connections", &connections_word, "--rounds", &rounds_word, "--mode", mode];
    let (server, client) = programs.start_both("exchange", &words);
    let expected = format!("connections {connections} rounds {}", connections * rounds);
    for proc in [client, server] {
        let lines = proc.finish(timeout()).map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(lines, [expected.as_str()], "{mode}");
    }
}

/// Exchanges messages in every mode.
#[track_caller]
pub(crate) fn exchange_in_each_mode(programs: &TwoPrograms, connections: u64, rounds: u64) {
    for mode in ["blocking", "poll", "level", "edge"] {
        exchange(programs, mode, connections, rounds);
    }
    programs.stage.expect_paired();
}

fn rounds() -> u64 {
    short_or_long(1000, 20_000)
}

#[test]
fn kernel_exchanges_messages_in_each_mode() {
    exchange_in_each_mode(&TwoPrograms::one_host(Stage::Kernel), 50, rounds());
}

#[test]
fn kernel_exchanges_messages_on_many_connections() {
    exchange_in_each_mode(&TwoPrograms::one_host(Stage::Kernel), 400, 50);
}

#[test]
fn library_exchanges_messages_in_each_mode() {
    if let Some(stage) = Stage::library() {
        exchange_in_each_mode(&TwoPrograms::one_host(stage), 50, rounds());
    }
}

/// Without the mode in which each connection has a thread: a process has 64 waiters, and more threads that wait are not covered yet.
#[test]
fn library_exchanges_messages_on_many_connections() {
    let Some(stage) = Stage::library() else { return };
    let programs = TwoPrograms::one_host(stage);
    for mode in ["poll", "level", "edge"] {
        exchange(&programs, mode, 400, 50);
    }
    programs.stage.expect_paired();
}
