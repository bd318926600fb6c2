//! `isthmus why PID:FD` about connections of programs with and without the library.

use std::path::PathBuf;

use isthmus_sockets_tests::{Container, Stage, TwoPrograms, build, timeout};
use isthmus_testbed::{Exit, Proc};
use serde_json::Value;

/// Starts `c/exchange.c` with one connection that goes on until the program is killed.
fn start(stage: &Stage, program: PathBuf, words: &[&str], variable: (&str, &str)) -> Proc {
    let endless = ["--connections", "1", "--rounds", "1000000000000", "--tick", "1"];
    let launch = stage.launch(program).args(words).args(endless).env(variable.0, variable.1);
    launch.spawn().unwrap_or_else(|error| panic!("{error}"))
}

/// Starts a server, and a client with this program and variable. Returns the port, too.
fn start_both(stage: &Stage, client: PathBuf, variable: (&str, &str)) -> (Proc, Proc, String) {
    let mut server = start(stage, build::program("exchange"), &["server", "127.0.0.1"], ("UNUSED", ""));
    let port = server.wait_prefix("port ", timeout()).unwrap_or_else(|error| panic!("{error}"));
    let mut client = start(stage, client, &["client", "127.0.0.1", &port], variable);
    client.wait_line("at 1", timeout()).unwrap_or_else(|error| panic!("{error}"));
    (server, client, port)
}

fn pid(proc: &Proc) -> i32 {
    proc.pid().unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the numbers of a process's sockets.
fn sockets(pid: i32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(Result::unwrap);
    let is_socket =
        |path: PathBuf| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
    entries.filter(|entry| is_socket(entry.path())).map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Explains the TCP socket of a process in this state.
#[track_caller]
fn explained(stage: &Stage, pid: i32, state: &str) -> Value {
    let answers = sockets(pid).into_iter().filter_map(|fd| {
        let told = stage.isthmus(&["why", &format!("{pid}:{fd}"), "--json"]);
        let told = (told.exit == Exit::Code(0)).then(|| told.lines.join("\n"))?;
        Some(serde_json::from_str::<Value>(&told).unwrap_or_else(|error| panic!("{error}\n{told}")))
    });
    let mut all: Vec<Value> = answers.collect();
    all.retain(|answer| answer["kind"] == "why connection" && answer["state"] == state);
    all.pop().unwrap_or_else(|| panic!("process {pid} has no TCP socket that is {state}"))
}

/// Returns the causes as one text.
fn causes(answer: &Value) -> String {
    answer["causes"].as_array().unwrap().iter().map(|cause| format!("{cause}\n")).collect()
}

#[test]
fn connection_of_plain_programs_is_explained_without_a_daemon() {
    let stage = Stage::Kernel;
    let (server, client, port) = start_both(&stage, build::program("exchange"), ("UNUSED", ""));
    let (server, client) = (pid(&server), pid(&client));
    let answer = explained(&stage, client, "established");
    assert_eq!((&answer["path"], &answer["peer"]), (&"tcp".into(), &"this-host".into()), "{answer:#}");
    assert_eq!((&answer["process"]["pid"], &answer["peer_process"]["pid"]), (&client.into(), &server.into()));
    assert_eq!(answer["remote"], format!("127.0.0.1:{port}"));
    let causes = causes(&answer);
    for pid in [client, server] {
        let expected = format!("exchange ({pid}): LD_PRELOAD did not name libisthmus-sockets.so");
        assert!(causes.contains(&expected), "{causes}");
    }
    assert!(causes.contains("isthmus run") && causes.contains("daemon-unreachable"), "{causes}");
    // From the other end.
    let answer = explained(&stage, server, "established");
    assert_eq!(
        (&answer["local"], &answer["peer_process"]["pid"]),
        (&format!("127.0.0.1:{port}").into(), &client.into())
    );
    assert_eq!(explained(&stage, server, "listening")["path"], "none");
}

#[test]
fn stream_is_explained_from_both_ends() {
    let Some(stage) = Stage::library() else { return };
    let (server, client, port) = start_both(&stage, build::program("exchange"), ("UNUSED", ""));
    stage.wait_for_stream(&port);
    let (server, client) = (pid(&server), pid(&client));
    for (own, peer) in [(client, server), (server, client)] {
        let answer = explained(&stage, own, "established");
        assert_eq!((&answer["path"], causes(&answer).as_str()), (&"stream".into(), ""), "{answer:#}");
        assert_eq!((&answer["stream"]["own"]["pid"], &answer["stream"]["peer"]["pid"]), (&own.into(), &peer.into()));
        assert_eq!(
            (&answer["stream"]["own"]["state"], &answer["stream"]["own"]["path"]),
            (&"attached".into(), &"small".into())
        );
        assert_eq!(
            (&answer["process"]["library"], &answer["peer_process"]["library"]),
            (&"loaded".into(), &"loaded".into())
        );
    }
}

/// The stream goes on, and the next daemon does not know it.
#[test]
fn stream_of_an_earlier_daemon_is_possible() {
    let Some(mut stage) = Stage::library() else { return };
    let (server, client, port) = start_both(&stage, build::program("exchange"), ("UNUSED", ""));
    stage.wait_for_stream(&port);
    let daemon = stage.daemon().expect("the stage has a daemon");
    daemon.kill_and_restart(timeout()).unwrap_or_else(|error| panic!("{error}"));
    for own in [&client, &server] {
        let answer = explained(&stage, pid(own), "established");
        assert!(answer["path"] == "tcp" && causes(&answer).contains("an earlier daemon"), "{answer:#}");
    }
}

#[test]
fn program_that_the_library_does_not_reach_is_named() {
    let Some(stage) = Stage::library() else { return };
    let switched_off = ("ISTHMUS_SOCKETS", "off");
    for (program, variable, state, cause) in [
        (build::static_program("exchange"), ("UNUSED", ""), "not-loaded", "is a static executable"),
        (build::program("exchange"), switched_off, "switched-off", "ISTHMUS_SOCKETS switches"),
    ] {
        let (server, client, _) = start_both(&stage, program, variable);
        for (own, process) in [(&client, "process"), (&server, "peer_process")] {
            let answer = explained(&stage, pid(own), "established");
            assert_eq!((&answer["path"], &answer[process]["library"]), (&"tcp".into(), &state.into()), "{answer:#}");
            assert!(answer["causes"].as_array().unwrap().len() == 1 && causes(&answer).contains(cause), "{answer:#}");
        }
    }
}

#[test]
fn other_end_in_another_network_namespace_is_found() {
    let Some(programs) = TwoPrograms::two_containers(Stage::Kernel) else { return };
    let (mut server, mut client) =
        programs.start_both("exchange", &["--connections", "1", "--rounds", "1000000000000", "--tick", "1"]);
    client.wait_line("at 1", timeout()).unwrap_or_else(|error| panic!("{error}"));
    server.wait_line("at 1", timeout()).unwrap_or_else(|error| panic!("{error}"));
    let (server_pid, client_pid) = (Container::pid(&server), Container::pid(&client));
    let answer = explained(&programs.stage, client_pid, "established");
    assert_eq!(
        (&answer["peer"], &answer["peer_process"]["pid"]),
        (&"this-host".into(), &server_pid.into()),
        "{answer:#}"
    );
}

#[test]
fn descriptor_that_is_no_tcp_socket_is_an_error() {
    let stage = Stage::Kernel;
    let (server, _client, _) = start_both(&stage, build::program("exchange"), ("UNUSED", ""));
    let own = std::process::id();
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let datagrams = std::os::fd::AsRawFd::as_raw_fd(&datagrams);
    for (target, error) in [
        (format!("{}:999", pid(&server)), "has no descriptor 999"),
        (format!("{}:0", pid(&server)), "not a socket"),
        (format!("{own}:{datagrams}"), "is a socket of UDP, not of TCP"),
        ("4194305:0".to_owned(), "there is no process 4194305"),
    ] {
        let told = stage.isthmus(&["why", &target]);
        assert!(told.exit == Exit::Code(1) && told.stderr.contains(error), "{target}: {told:?}");
    }
}
