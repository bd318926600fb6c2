//! Streams of `c/transfer.c`: contents, count and hash at both ends.

use isthmus_sockets_tests::{Stage, TwoPrograms, timeout};
use isthmus_testbed::{Finished, Proc, short_or_long};

use crate::exchanges::exchange;

/// The modes in which a program waits for its socket.
const MODES: [&str; 4] = ["blocking", "poll", "level", "edge"];

/// The last lines of a program: what it sent and what it received.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Results {
    pub(crate) sent: Option<Direction>,
    pub(crate) received: Option<Direction>,
}

/// One direction at one end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Direction {
    pub(crate) bytes: u64,
    pub(crate) hash: String,
    pub(crate) result: String,
}

impl Results {
    /// Waits for the end of a program, which has checked the contents of what it received.
    pub(crate) fn of(proc: Proc) -> Self {
        let lines = proc.finish(timeout()).map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
        let find = |name: &str| lines.iter().find_map(|line| Direction::read(line.strip_prefix(name)?));
        Self { sent: find("sent "), received: find("received ") }
    }
}

impl Direction {
    fn read(words: &str) -> Option<Self> {
        let [bytes, hash, result] = words.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some(Self { bytes: bytes.parse().ok()?, hash: hash.to_owned(), result: result.to_owned() })
    }
}

/// Asserts that a direction has arrived whole.
#[track_caller]
fn expect_whole(sent: Option<&Direction>, received: Option<&Direction>, bytes: u64) {
    let (sent, received) = (sent.unwrap(), received.unwrap());
    assert_eq!((sent.bytes, sent.result.as_str()), (bytes, "ok"));
    assert_eq!((received.bytes, received.result.as_str()), (bytes, "eof"));
    assert_eq!(sent.hash, received.hash);
}

/// Waits for both programs of a transfer and compares what they have sent and received.
#[track_caller]
pub(crate) fn expect_transferred(server: Proc, client: Proc, bytes: u64, duplex: bool) {
    let (client, server) = (Results::of(client), Results::of(server));
    expect_whole(client.sent.as_ref(), server.received.as_ref(), bytes);
    if duplex {
        expect_whole(server.sent.as_ref(), client.received.as_ref(), bytes);
    } else {
        assert_eq!((server.sent, client.received.unwrap().bytes), (None, 0));
    }
}

/// Transfers in one mode, in one direction or in both.
#[track_caller]
pub(crate) fn transfer(programs: &TwoPrograms, bytes: u64, seed: u64, mode: &str, duplex: bool) {
    println!("{mode}, duplex: {duplex}");
    let (bytes_word, seed) = (bytes.to_string(), seed.to_string());
    let words = ["--bytes", &bytes_word, "--seed", &seed, "--mode", mode, "--duplex"];
    let (server, client) = programs.start_both("transfer", &words[..if duplex { 7 } else { 6 }]);
    expect_transferred(server, client, bytes, duplex);
}

/// Transfers in every mode, in one direction and in both.
#[track_caller]
pub(crate) fn transfer_in_each_mode(programs: &TwoPrograms, bytes: u64, seed: u64) {
    for (seed, mode) in (seed..).zip(MODES) {
        transfer(programs, bytes, seed, mode, false);
        transfer(programs, bytes, seed, mode, true);
    }
    programs.stage.expect_paired();
}

fn bytes_of_each() -> u64 {
    short_or_long(48 << 20, 1 << 30)
}

#[test]
fn kernel_transfers_a_stream_in_each_mode() {
    transfer_in_each_mode(&TwoPrograms::one_host(Stage::Kernel), bytes_of_each(), 1);
}

#[test]
fn library_transfers_a_stream_in_each_mode() {
    if let Some(stage) = Stage::library() {
        transfer_in_each_mode(&TwoPrograms::one_host(stage), bytes_of_each(), 1);
    }
}

/// Twenty forced switches a second in both directions.
const SWITCH: (&str, &str) = ("ISTHMUS_SOCKETS_TEST_SWITCH", "20");

#[test]
fn library_transfers_a_stream_that_switches_often() {
    let Some(stage) = Stage::library() else { return };
    let programs = TwoPrograms::one_host(stage).env(SWITCH.0, SWITCH.1);
    transfer(&programs, 1 << 30, 100, "blocking", false);
    transfer(&programs, 1 << 30, 101, "edge", true);
    programs.stage.expect_paired();
    if short_or_long(false, true) {
        transfer_in_each_mode(&programs, 4 << 30, 102);
    }
}

#[test]
fn library_exchanges_messages_that_switch_often() {
    let Some(stage) = Stage::library() else { return };
    let programs = TwoPrograms::one_host(stage).env(SWITCH.0, SWITCH.1);
    exchange(&programs, "level", 10, short_or_long(20_000, 1_000_000));
    exchange(&programs, "edge", 50, short_or_long(4_000, 200_000));
}
