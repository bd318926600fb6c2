//! Streams between programs of different users, and a hostile one among them.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use isthmus_sockets_tests::{Stage, build, timeout};
use isthmus_testbed::{Finished, HostileStreamPeer, Proc, short_or_long};
use rustix::process::geteuid;
use serde_json::Value;

const OWNERS: [u32; 3] = [65_534, 1234, 1235];

/// Returns a daemon that lets users have streams with one another, or none, with the reason on standard error.
fn stage() -> Option<Stage> {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can be other users");
        return None;
    }
    Stage::library_between_users()
}

/// Starts `c/exchange.c` as a user.
fn start(stage: &Stage, owner: u32, words: &[&str]) -> Proc {
    let launch = stage.launch(build::program("exchange")).args(words).owner(owner);
    launch.spawn().unwrap_or_else(|error| panic!("{error}"))
}

fn port_of(server: &mut Proc) -> String {
    server.wait_prefix("port ", timeout()).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn expect_exchanged(proc: Proc, connections: u64, rounds: u64) {
    let lines = proc.finish(timeout()).map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(lines.last().unwrap(), &format!("connections {connections} rounds {}", connections * rounds));
}

/// Asserts that all connections were streams, and that most of their bytes went through shared memory. On a busy machine, hundreds of
/// exchanges go by TCP before a session is open.
#[track_caller]
fn expect_shared(report: &Value, connections: u64) {
    assert_eq!(report["paired"].as_u64(), Some(connections), "{report:#}");
    let bytes = |name: &str| report["ended"][name].as_u64().unwrap();
    assert!(bytes("shared_bytes") > 4 * bytes("tcp_bytes"), "{report:#}");
}

/// Waits until the daemon has seen the ends of all streams.
fn ended(stage: &Stage) -> Value {
    stage.wait_for_streams("end of all streams", |streams| streams.is_empty());
    stage.streams()
}

#[test]
fn programs_of_two_users_exchange_messages_in_each_mode() {
    let rounds = short_or_long(2000, 20_000);
    for mode in ["blocking", "poll", "level", "edge"] {
        println!("{mode}");
        let Some(stage) = stage() else { return };
        let rounds_word = rounds.to_string();
        let more = ["--connections", "20", "--rounds", &rounds_word, "--mode", mode];
        let mut server = start(&stage, OWNERS[0], &[&["server", "127.0.0.1"], &more[..]].concat());
        let port = port_of(&mut server);
        let client = start(&stage, OWNERS[1], &[&["client", "127.0.0.1", &port], &more[..]].concat());
        expect_exchanged(client, 20, rounds);
        expect_exchanged(server, 20, rounds);
        expect_shared(&ended(&stage), 20);
    }
}

#[test]
fn one_epoll_set_has_streams_with_several_users() {
    let rounds = short_or_long(2000, 20_000);
    let rounds_word = rounds.to_string();
    for mode in ["level", "edge", "poll"] {
        println!("{mode}");
        let Some(stage) = stage() else { return };
        let server = ["server", "127.0.0.1", "--connections", "30", "--rounds", &rounds_word, "--mode", mode];
        let mut server = start(&stage, OWNERS[0], &server);
        let port = port_of(&mut server);
        let words = ["client", "127.0.0.1", &port, "--connections", "10", "--rounds", &rounds_word, "--mode", mode];
        let clients = OWNERS.map(|owner| start(&stage, owner, &words));
        clients.into_iter().for_each(|client| expect_exchanged(client, 10, rounds));
        expect_exchanged(server, 30, rounds);
        expect_shared(&ended(&stage), 30);
    }
}

/// Runs an exchange between two programs of one user while a program of another user misuses all that it has of the server.
fn exchange_beside_a_hostile_program(mode: &str, value: u32) {
    let Some(mut stage) = stage() else { return };
    let socket = stage.daemon().unwrap().socket();
    let launch = stage.launch(build::program("exchange")).env("ISTHMUS_SOCKETS_AFTER", "1").owner(OWNERS[0]);
    let server = launch.args(["server", "127.0.0.1", "--connections", "2", "--mode", mode]).spawn();
    let mut server = server.unwrap_or_else(|error| panic!("{error}"));
    let port = port_of(&mut server);
    let endless = ["--connections", "1", "--rounds", "1000000000000", "--tick", "1000", "--mode", mode];
    let mut client = start(&stage, OWNERS[0], &[&["client", "127.0.0.1", &port], &endless[..]].concat());
    let hostile = HostileStreamPeer::connect(socket, OWNERS[1], port.parse().unwrap(), timeout());
    let hostile = hostile.unwrap_or_else(|error| panic!("{error}"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            while !is_over.load(Relaxed) {
                hostile.attack(value);
            }
        });
        // What the client has printed until now may be from before.
        let mut progress = || {
            for _ in 0..short_or_long(20, 1000) {
                client.wait_prefix("at ", timeout()).map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        };
        let progressed = progress();
        is_over.store(true, Relaxed);
        attacker.join().unwrap();
        progressed.unwrap_or_else(|error| panic!("{mode}, {value:#x}: {error}"));
    });
    let report = stage.streams();
    let is_attached = |end: &Value| end["state"] == "attached";
    let own = report["streams"].as_array().unwrap().iter().filter(|stream| stream["connector"]["uid"] == OWNERS[0]);
    assert!(own.clone().count() == 1, "{report:#}");
    for stream in own {
        assert!(is_attached(&stream["connector"]) && is_attached(&stream["acceptor"]), "{report:#}");
    }
    for proc in [client, server] {
        proc.kill().unwrap();
    }
}

#[test]
fn hostile_program_of_another_user_does_not_stop_an_epoll_server() {
    [0, u32::MAX].into_iter().for_each(|value| exchange_beside_a_hostile_program("level", value));
}

#[test]
fn hostile_program_of_another_user_does_not_stop_a_server_that_polls() {
    [0, u32::MAX].into_iter().for_each(|value| exchange_beside_a_hostile_program("poll", value));
}
