//! SIGKILL of a program or of the daemon in the middle of a transfer, thousands of times in the long form.

use isthmus_sockets_tests::{Stage, TwoPrograms, timeout};
use isthmus_testbed::{Deadline, Proc, SeededRandom, View, eventually, short_or_long};
use serde_json::Value;

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

/// Kills at moments of all orders of magnitude.
fn random_kills() -> u64 {
    short_or_long(40, 10_000)
}

/// Such a kill comes before this power of 2 of bytes.
const RANDOM_KILL_BITS: u64 = 26;

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
    if let Some(programs) = Stage::library_across().and_then(TwoPrograms::two_containers) {
        kill_in_each_way(&programs);
    }
}

/// The descriptors and the mappings that the daemon has.
#[derive(Debug)]
struct Held {
    fds: usize,
    memory: usize,
}

impl Held {
    fn by(daemon: &View) -> Self {
        let mappings = daemon.maps().unwrap_or_else(|error| panic!("{error}"));
        let memory = mappings.iter().filter(|mapping| mapping.name.starts_with("/memfd:")).count();
        Self { fds: daemon.held_fds().unwrap_or_else(|error| panic!("{error}")), memory }
    }

    fn is_within(&self, before: &Self) -> bool {
        self.fds <= before.fds && self.memory <= before.memory
    }
}

/// Waits until the daemon has no program and no stream any more.
fn wait_for_the_end_of_all(stage: &Stage) {
    let is_none = |report: &Value, name: &str| report[name] == 0;
    let is_idle = || {
        let report = stage.streams();
        ["programs", "listening", "waiting"].iter().all(|name| is_none(&report, name))
            && report["streams"].as_array().is_some_and(Vec::is_empty)
    };
    assert!(eventually(Deadline::secs(20), is_idle).is_ok(), "{:#}", stage.streams());
}

/// Kills one of two programs, either one, at a moment from the first byte on.
fn kill_at_any_moment(programs: &TwoPrograms, random: &mut SeededRandom, round: u64) {
    let modes = ["blocking", "poll", "level", "edge"];
    let (mode, duplex, is_server) = (modes[random.below(4) as usize], random.below(2) == 1, random.below(2) == 1);
    let bits = random.below(RANDOM_KILL_BITS + 1);
    let tick = 1 + random.below(1 << bits);
    println!("round {round}: {mode}, duplex: {duplex}, the server dies: {is_server}, after {tick} bytes");
    let (bytes, seed, tick) = (ENDLESS_BYTES.to_string(), random.below(1 << 32).to_string(), tick.to_string());
    let words = ["--bytes", &bytes, "--tick", &tick, "--seed", &seed, "--mode", mode, "--duplex"];
    let (mut server, client) = programs.start_both("transfer", &words[..if duplex { 9 } else { 8 }]);
    let passed = |line: &str| line.starts_with("at ");
    server.find_line(timeout(), "a part of the transfer", passed).unwrap_or_else(|error| panic!("{error}"));
    let (killed, survivor) = if is_server { (server, client) } else { (client, server) };
    programs.kill(&killed);
    let Results { sent, received } = Results::of(survivor);
    if let Some(sent) = sent {
        assert!(["EPIPE", "ECONNRESET"].contains(&sent.result.as_str()), "{sent:?}");
    }
    let received = received.unwrap();
    let expected = if is_server || duplex { &["eof", "ECONNRESET"][..] } else { &["eof"] };
    assert!(expected.contains(&received.result.as_str()), "{received:?}");
}

#[test]
fn daemon_keeps_nothing_of_killed_programs() {
    let Some(mut stage) = Stage::library() else { return };
    let daemon = stage.daemon().unwrap().view().unwrap_or_else(|error| panic!("{error}"));
    let programs = TwoPrograms::one_host(stage);
    let mut random = SeededRandom::new();
    // What the daemon keeps for the next program, such as the listed page, is there after the first ones.
    (0..4).for_each(|round| kill_at_any_moment(&programs, &mut random, round));
    wait_for_the_end_of_all(&programs.stage);
    let before = Held::by(&daemon);
    (0..random_kills()).for_each(|round| kill_at_any_moment(&programs, &mut random, round));
    wait_for_the_end_of_all(&programs.stage);
    // The connection of the last report before may still have been open when the daemon was looked at.
    let is_as_before = eventually(Deadline::secs(20), || Held::by(&daemon).is_within(&before));
    assert!(is_as_before.is_ok(), "{:?} before, {:?} after", before, Held::by(&daemon));
    programs.stage.expect_paired();
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
