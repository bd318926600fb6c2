//! SIGKILL of a program or of the daemon in the middle of a transfer.

use isthmus_sockets_tests::{Stage, TwoPrograms, timeout};
use isthmus_testbed::{Proc, SeededRandom, short_or_long};

use crate::transfers::{Results, expect_transferred};

/// A transfer that goes on until a program is killed, and one that ends.
const ENDLESS_BYTES: u64 = 1 << 40;
const BYTES: u64 = 1 << 30;

const TICK: u64 = 1 << 20;

/// A kill comes before this part of the transfer is over.
const KILL_BYTES_MAX: u64 = 128 << 20;

/// Kills of each kind with the library. On the kernel a few show that the test itself is right.
fn library_rounds() -> u64 {
    short_or_long(KERNEL_ROUNDS, 200)
}

const KERNEL_ROUNDS: u64 = 4;

/// The receiver of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Sender,
    Receiver,
}

/// Starts a transfer and waits until the server has received some of it: another part in each round.
fn start_and_wait(programs: &TwoPrograms, random: &mut SeededRandom, bytes: u64, words: &[&str]) -> (Proc, Proc) {
    let (bytes, tick, seed) = (bytes.to_string(), TICK.to_string(), random.below(1 << 32).to_string());
    let all = [&["--bytes", &bytes, "--tick", &tick, "--seed", &seed], words].concat();
    let (mut server, client) = programs.start_both("transfer", &all);
    let moment = random.below(KILL_BYTES_MAX);
    let passed =
        |line: &str| line.strip_prefix("at ").and_then(|at| at.parse().ok()).is_some_and(|at: u64| at > moment);
    server.find_line(timeout(), "a part of the transfer", passed).unwrap_or_else(|error| panic!("{error}"));
    (server, client)
}

/// Kills one program; the other must see the end that the kernel's TCP shows, and no wrong byte before it.
fn kill_in_each_round(programs: &TwoPrograms, victim: Victim, mode: &str, duplex: bool) {
    let mut random = SeededRandom::new();
    let rounds = if programs.stage.has_library() { library_rounds() } else { KERNEL_ROUNDS };
    for round in 0..rounds {
        println!("round {round}: {victim:?}, {mode}, duplex: {duplex}");
        let words = ["--mode", mode, "--duplex"];
        let (server, client) =
            start_and_wait(programs, &mut random, ENDLESS_BYTES, &words[..if duplex { 3 } else { 2 }]);
        let (killed, survivor) = if victim == Victim::Sender { (client, server) } else { (server, client) };
        programs.kill(&killed);
        let Results { sent, received } = Results::of(survivor);
        if let Some(sent) = sent {
            assert!(["EPIPE", "ECONNRESET"].contains(&sent.result.as_str()), "{sent:?}");
        }
        let received = received.unwrap();
        // A sender that receives nothing dies without unread data, so its end is a FIN.
        let expected = if victim == Victim::Sender && !duplex { &["eof"][..] } else { &["eof", "ECONNRESET"] };
        assert!(expected.contains(&received.result.as_str()), "{received:?}");
    }
}

fn kill_in_each_way(programs: &TwoPrograms) {
    for victim in [Victim::Sender, Victim::Receiver] {
        for (mode, duplex) in [("blocking", false), ("level", true), ("edge", false)] {
            kill_in_each_round(programs, victim, mode, duplex);
        }
    }
}

#[test]
fn kernel_ends_the_stream_of_a_killed_program() {
    kill_in_each_way(&TwoPrograms::one_host(Stage::Kernel));
}

#[test]
fn library_ends_the_stream_of_a_killed_program() {
    if let Some(stage) = Stage::library() {
        kill_in_each_way(&TwoPrograms::one_host(stage));
    }
}

#[test]
fn kernel_ends_the_stream_of_a_program_killed_in_a_container() {
    if let Some(programs) = TwoPrograms::two_containers(Stage::Kernel) {
        kill_in_each_way(&programs);
    }
}

#[test]
fn library_ends_the_stream_of_a_program_killed_in_a_container() {
    if let Some(programs) = Stage::library().and_then(TwoPrograms::two_containers) {
        kill_in_each_way(&programs);
    }
}

#[test]
fn library_completes_a_transfer_when_the_daemon_is_killed() {
    let Some(stage) = Stage::library() else { return };
    let mut programs = TwoPrograms::one_host(stage);
    let mut random = SeededRandom::new();
    for round in 0..library_rounds() {
        let mode = ["blocking", "poll", "level", "edge"][round as usize % 4];
        println!("round {round}: {mode}");
        let (server, client) = start_and_wait(&programs, &mut random, BYTES, &["--mode", mode, "--duplex"]);
        let daemon = programs.stage.daemon().unwrap();
        daemon.kill_and_restart(timeout()).unwrap_or_else(|error| panic!("{error}"));
        expect_transferred(server, client, BYTES, true);
    }
}
