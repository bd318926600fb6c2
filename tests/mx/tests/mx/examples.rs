//! The programs of `examples/mx`, and those of `examples/hello` that use MX, run as their readers would.

use isthmus_testbed::{DaemonProcess, Exit, Proc};

use crate::build::{compiled, example, headers, library};
use crate::run::{daemon, launch_on_host, timeout};
use isthmus_testbed::{run_tool, workspace_root};

const NAMES: [&str; 7] = ["mx_alltoall", "mx_info", "mx_loop", "mx_pingpong", "mx_stream", "mx_waitany", "mx_wakeup"];

/// The ways of messages between processes of one machine. Results have to be the same under each.
const PATH_VARIANTS: [&[(&str, &str)]; 3] = [&[], &[("MX_DISABLE_SHMEM", "1")], &[("MX_RCACHE", "0")]];

#[track_caller]
fn start(daemon: &DaemonProcess, name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Proc {
    let mut launch = launch_on_host(daemon, example(name)).args(arguments);
    for (variable, value) in variables {
        launch = launch.env(variable, value);
    }
    launch.spawn().unwrap()
}

/// Runs an example that has no other side; returns what it prints.
#[track_caller]
fn alone(name: &str, arguments: &[&str]) -> Vec<String> {
    let (_scratch, daemon) = daemon("");
    start(&daemon, name, arguments, &[]).finish(timeout()).unwrap().expect_success()
}

/// Runs server and client of an example; returns what the client prints.
#[track_caller]
fn both(name: &str, server: &[&str], client: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
    example(name); // Compiled before the daemon and the timeout start.
    let (_scratch, daemon) = daemon("");
    let mut serving = start(&daemon, name, server, variables);
    let endpoint = serving.wait_prefix("endpoint ", timeout()).unwrap();
    let client = [client, &["-r", &endpoint]].concat();
    let lines = start(&daemon, name, &client, variables).finish(timeout()).unwrap().expect_success();
    serving.finish(timeout()).unwrap().expect_success();
    lines
}

#[test]
fn pingpong_measures_each_size_and_loses_no_byte() {
    for variables in PATH_VARIANTS {
        for way in [&[][..], &["-w"]] {
            let arguments = [way, &["-n", "20", "-W", "5", "-v", "-S", "0", "-E", "1048576"]].concat();
            let lines = both("mx_pingpong", way, &arguments, variables);
            assert_eq!(lines.len(), 1 + 1 + 21, "{lines:?}"); // A heading, nothing, and powers of two.
            assert!(lines[1].trim_start().starts_with("0 "), "{lines:?}");
        }
    }
}

#[test]
fn stream_delivers_all_messages_in_order() {
    for variables in PATH_VARIANTS {
        for size in ["0", "8", "4000", "32768", "32769", "1048576"] {
            let count = if size.len() > 5 { "20" } else { "200" };
            let lines = both("mx_stream", &[], &["-s", size, "-N", count, "-v"], variables);
            assert!(lines[1].trim_start().starts_with(&format!("{size} ")), "{lines:?}");
        }
        both("mx_stream", &["-w"], &["-w", "-s", "70000", "-N", "200", "-q", "3", "-v"], variables);
    }
}

#[test]
fn loop_finds_every_length_and_alignment_whole() {
    for variables in PATH_VARIANTS {
        let lines = both("mx_loop", &[], &["-a", "4", "-y"], variables);
        assert!(lines[0].ends_with(" round trips"), "{lines:?}");
    }
}

#[test]
fn alltoall_delivers_every_message() {
    for size in ["0", "64", "5000", "100000"] {
        alone("mx_alltoall", &["-n", "5", "-s", size, "-R", "5"]);
        alone("mx_alltoall", &["-n", "3", "-s", size, "-R", "5", "-w"]);
    }
}

#[test]
fn wakeup_frees_twelve_threads() {
    assert_eq!(alone("mx_wakeup", &["-R", "20"]).len(), 20);
}

#[test]
fn waitany_takes_each_kind_in_order() {
    assert_eq!(alone("mx_waitany", &["-n", "2000"]), ["2000 messages of each of 3 kinds"]);
}

#[test]
fn info_names_boards_and_counters() {
    let (_scratch, daemon) = daemon("[[mx.board]]\nname = \"rack:0\"\nmac = \"02:00:00:00:00:2a\"\n[[mx.board]]\n");
    let lines = start(&daemon, "mx_info", &["-c"], &[]).finish(timeout()).unwrap().expect_success();
    assert_eq!(lines[0], "MX API 0x301, 2 boards");
    for wanted in ["rack:0", "02:00:00:00:00:2a", "board 1", "counters"] {
        assert!(lines.iter().any(|line| line.contains(wanted)), "{wanted}: {lines:#?}");
    }
    let other = start(&daemon, "mx_info", &["-b", "7"], &[]).finish(timeout()).unwrap();
    assert_eq!(other.exit, Exit::Code(1));
}

#[test]
fn hello_client_gets_a_reply_from_a_running_server() {
    let [server, client] =
        ["server", "client"].map(|role| compiled(&workspace_root().join(format!("examples/hello/mx_{role}.c"))));
    let (_scratch, daemon) = daemon("");
    let client = |board: &str, text: &str| {
        let client = launch_on_host(&daemon, client.clone()).args([board, text, "600"]).spawn().unwrap();
        client.finish(timeout()).unwrap()
    };
    let refused = client("", "good morning");
    assert_eq!(refused.exit, Exit::Code(1));
    assert!(refused.stderr.starts_with("mx_client: mx_connect: "), "{}", refused.stderr);
    let unknown = client("absent:0", "good morning");
    assert_eq!(unknown.exit, Exit::Code(1));
    assert!(unknown.stderr.starts_with("mx_client: the board: "), "{}", unknown.stderr);

    let mut server = launch_on_host(&daemon, server).spawn().unwrap();
    let ready = server.line(timeout()).unwrap();
    let board = ready.strip_suffix(" is ready").unwrap_or_else(|| panic!("{ready}"));
    for (board, text) in [("", "good morning"), (board, "good evening"), (board, "")] {
        assert_eq!(client(board, text).expect_success(), [format!("you said: {text}")]);
        assert_eq!(server.line(timeout()).unwrap(), text);
    }
    assert_eq!(server.try_wait().unwrap(), None, "{}", server.stderr());
}

#[test]
fn examples_print_their_usage() {
    let (_scratch, daemon) = daemon("");
    for name in NAMES {
        let help = start(&daemon, name, &["-h"], &[]).finish(timeout()).unwrap().expect_success();
        assert!(help[0].starts_with(&format!("usage: {name}")), "{help:?}");
        let wrong = start(&daemon, name, &["-?"], &[]).finish(timeout()).unwrap();
        assert_eq!(wrong.exit, Exit::Code(2), "{name}: {}", wrong.stderr);
    }
}

#[test]
fn makefile_builds_all_examples() {
    let scratch = isthmus_testbed::Scratch::new().unwrap();
    let mut make = std::process::Command::new("make");
    make.arg("-C").arg(workspace_root().join("examples/mx")).arg(format!("INCLUDE={}", headers().display()));
    make.arg(format!("LIB={}", library().display())).arg(format!("OUT={}", scratch.path().display()));
    run_tool(&mut make);
    for name in NAMES {
        assert!(scratch.join(name).is_file(), "{name}");
    }
}
