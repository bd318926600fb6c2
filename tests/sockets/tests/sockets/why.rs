//! `isthmus why PID:FD` about connections of programs with and without the library.

use std::path::{Path, PathBuf};

use isthmus_sockets_tests::{Container, End, Stage, TwoPrograms, build, timeout};
use isthmus_testbed::{Exit, Finished, Proc, Scratch, eventually};
use serde_json::Value;

use super::inherited::{Server, client};

/// Starts `c/exchange.c` with one connection that goes on until the program is killed.
fn start(stage: &Stage, program: PathBuf, words: &[&str], variable: (&str, &str)) -> Proc {
    let endless = ["--connections", "1", "--rounds", "1000000000000", "--tick", "1"];
    let launch = stage.launch(program).args(words).args(endless).env(variable.0, variable.1);
    launch.spawn().unwrap_or_else(|error| panic!("{error}"))
}

/// Starts a server, and a client with this program and variable. Returns the port, too.
fn start_both(stage: &Stage, client: PathBuf, variable: (&str, &str)) -> (Proc, Proc, String) {
    start_both_at("127.0.0.1", stage, client, variable)
}

/// As [`start_both`], with a server that listens at this address.
fn start_both_at(address: &str, stage: &Stage, client: PathBuf, variable: (&str, &str)) -> (Proc, Proc, String) {
    let mut server = start(stage, build::program("exchange"), &["server", address], ("UNUSED", ""));
    let port = server.wait_prefix("port ", timeout()).unwrap_or_else(|error| panic!("{error}"));
    let mut client = start(stage, client, &["client", address, &port], variable);
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

/// The stream goes on. The server names it at the next daemon when it accepts a connection.
#[test]
fn stream_of_an_earlier_daemon_is_listed_until_it_ends() {
    let Some(mut stage) = Stage::library() else { return };
    let Server { port, started: server, .. } = Server::start(&stage, "serve");
    let old = client(&stage, &port, "endless");
    stage.wait_for_stream(&port);
    let daemon = stage.daemon().expect("the stage has a daemon");
    daemon.proc().kill().and_then(|()| daemon.proc().wait(timeout())).unwrap_or_else(|error| panic!("{error}"));
    let answer = explained(&stage, pid(&old), "established");
    assert_eq!(answer["path"], "unknown", "no daemon knows the stream: {answer:#}");
    let daemon = stage.daemon().expect("the stage has a daemon");
    daemon.start_again(timeout()).unwrap_or_else(|error| panic!("{error}"));
    let kept = || {
        let report = stage.streams();
        let rows = report["sockets"].as_array().into_iter().flatten().filter(|row| row["state"] == "kept");
        rows.map(|row| (row["pid"].as_i64(), row["address"].clone())).collect::<Vec<_>>()
    };
    let is_named = || {
        let other = client(&stage, &port, "10").finish(timeout());
        other.unwrap_or_else(|error| panic!("{error}")).expect_success();
        !kept().is_empty()
    };
    eventually(timeout(), is_named).unwrap_or_else(|error| panic!("{error}: {:#}", stage.streams()));
    assert_eq!(kept(), [(Some(i64::from(pid(&server))), format!("127.0.0.1:{port}").into())]);
    for own in [&old, &server] {
        let answer = explained(&stage, pid(own), "established");
        assert_eq!(
            (&answer["path"], &answer["is_kept"], causes(&answer).as_str()),
            (&"stream".into(), &true.into(), "")
        );
    }
    old.kill().unwrap();
    eventually(timeout(), || kept().is_empty()).unwrap_or_else(|error| panic!("{error}: {:#}", stage.streams()));
    server.kill().unwrap();
}

#[test]
fn program_that_the_library_does_not_reach_is_named() {
    let Some(stage) = Stage::library() else { return };
    let switched_off = ("ISTHMUS_SOCKETS", "off");
    for (program, variable, state, cause) in [
        (build::static_program("exchange"), ("UNUSED", ""), "not-loaded", "is a static executable"),
        (build::program("exchange"), switched_off, "switched-off", "ISTHMUS_SOCKETS=off, which switches"),
        (build::program("exchange"), ("ISTHMUS_SOCKETS", "of"), "switched-off", "neither on nor off"),
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

/// Waits until the connection of a process has this reason, and asserts that it is the only one, with its remedy.
#[track_caller]
fn expect_reason(stage: &Stage, pid: i32, reason: &str, remedy: &str) {
    let found = eventually(timeout(), || {
        let answer = explained(stage, pid, "established");
        let [cause] = &answer["causes"].as_array().unwrap()[..] else { return false };
        cause["reason"] == reason && cause["remedy"].as_str().is_some_and(|told| told.contains(remedy))
    });
    assert!(found.is_ok(), "{:#}", explained(stage, pid, "established"));
}

#[test]
fn refused_connection_has_its_own_reason() {
    let config = "[sockets]\ndeny = [\"127.0.0.2\"]\n[[policy.rules]]\nfrom = \"renamed*\"\nchannel = false\n";
    let Some(stage) = Stage::library_with(config) else { return };
    // The program's name is that of its file.
    let folder = Scratch::new().unwrap_or_else(|error| panic!("{error}"));
    let renamed = folder.path().join("renamed");
    std::fs::copy(build::program("exchange"), &renamed).unwrap();
    let plain = || build::program("exchange");
    let (server, client, port) = start_both(&stage, plain(), ("UNUSED", ""));
    let (denied_server, denied_client, _) = start_both_at("127.0.0.2", &stage, plain(), ("UNUSED", ""));
    let (forbidden_server, forbidden_client, _) = start_both(&stage, renamed, ("UNUSED", ""));
    for proc in [&denied_server, &denied_client] {
        expect_reason(&stage, pid(proc), "stream-denied", "`sockets.deny`");
    }
    for proc in [&forbidden_server, &forbidden_client] {
        expect_reason(&stage, pid(proc), "channels-forbidden", "policy");
    }
    stage.wait_for_stream(&port);
    for proc in [&server, &client] {
        let answer = explained(&stage, pid(proc), "established");
        assert_eq!((&answer["path"], causes(&answer).as_str()), (&"stream".into(), ""), "{answer:#}");
    }
}

#[test]
fn connection_across_network_namespaces_has_its_own_reason_without_records() {
    let stage = Stage::library_with("[sockets]\nconnection_records = false\n");
    let Some(programs) = stage.and_then(TwoPrograms::two_containers) else { return };
    let (mut server, mut client) =
        programs.start_both("exchange", &["--connections", "1", "--rounds", "1000000000000", "--tick", "1"]);
    client.wait_line("at 1", timeout()).unwrap_or_else(|error| panic!("{error}"));
    server.wait_line("at 1", timeout()).unwrap_or_else(|error| panic!("{error}"));
    for pid in [Container::pid(&server), Container::pid(&client)] {
        expect_reason(&programs.stage, pid, "stream-across-namespaces", "let the kernel record connections");
    }
    let waits = || programs.stage.streams()["waiting"] == 2;
    assert!(eventually(timeout(), waits).is_ok(), "{:#}", programs.stage.streams());
    let report = programs.stage.streams();
    let reasons: Vec<_> = report["sockets"].as_array().unwrap().iter().map(|row| &row["reason"]).collect();
    assert_eq!(reasons, ["stream-across-namespaces"; 2], "{report:#}");
}

const NFT: &str = "/usr/sbin/nft";

#[test]
fn connection_with_a_translated_address_becomes_a_stream() {
    if !Path::new(NFT).exists() {
        return eprintln!("skipped: {NFT} is not installed (package nftables)");
    }
    let Some(programs) = Stage::library_across().and_then(TwoPrograms::two_containers) else { return };
    let (container, address) = (programs.container(End::Server), programs.address());
    let endless = ["--connections", "1", "--rounds", "1000000000000", "--tick", "1"];
    let start = |end: End, words: &[&str]| {
        let launch = programs.container(end).launch(&build::program("exchange"), &[words, &endless].concat(), &[]);
        launch.spawn().unwrap_or_else(|error| panic!("{error}"))
    };
    let connect = |port: &str| {
        let mut client = start(End::Client, &["client", &address, port]);
        client.wait_line("at 1", timeout()).unwrap_or_else(|error| panic!("{error}"));
        client
    };
    let mut server = start(End::Server, &["server", &address]);
    let port = server.wait_prefix("port ", timeout()).unwrap_or_else(|error| panic!("{error}"));
    let rules = format!(
        "add table ip nat; add chain ip nat in {{ type nat hook prerouting priority -100; }}; \
         add rule ip nat in tcp dport 9 redirect to :{port}"
    );
    let nft = container.launch(Path::new(NFT), &[&rules], &[]).spawn().unwrap_or_else(|error| panic!("{error}"));
    nft.finish(timeout()).map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
    let client = connect("9");
    programs.stage.wait_for_stream(&port);
    for pid in [Container::pid(&server), Container::pid(&client)] {
        let answer = explained(&programs.stage, pid, "established");
        assert_eq!((&answer["path"], causes(&answer).as_str()), (&"stream".into(), ""), "{answer:#}");
    }
    let mut direct_server = start(End::Server, &["server", &address]);
    let port = direct_server.wait_prefix("port ", timeout()).unwrap_or_else(|error| panic!("{error}"));
    let direct = connect(&port);
    programs.stage.wait_for_stream(&port);
    for pid in [Container::pid(&direct_server), Container::pid(&direct)] {
        let answer = explained(&programs.stage, pid, "established");
        assert_eq!((&answer["path"], causes(&answer).as_str()), (&"stream".into(), ""), "{answer:#}");
    }
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
