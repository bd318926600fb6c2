//! The programs of `examples/hello`, in C and in Rust, run as a newcomer runs them.

use crate::build::{compile, package};
use crate::programs::{daemon, patience};
use isthmus_testbed::{Deadline, Exit, Finished, Proc, Scratch, example};
use std::path::PathBuf;

const LANGUAGES: [&str; 2] = ["c", "rs"];

/// The seconds that a client waits where the server is sure to come.
const PATIENT: &str = "600";

/// The path of `examples/hello/ROLE.LANGUAGE`, compiled.
fn hello(role: &str, language: &str, scratch: &Scratch) -> PathBuf {
    match language {
        "c" => compile(&package().join(format!("../../examples/hello/{role}.c")), scratch),
        _ => example("isthmus-client", &format!("hello-{role}")).unwrap(),
    }
}

/// Checks the lines that client and server print about one message.
fn check_lines(client: &[String], server: &mut Proc, text: &str, deadline: Deadline) {
    let from_server = server.line(deadline).unwrap();
    let (domain, received) = from_server.split_once(": ").unwrap();
    assert_eq!(received, text);
    assert!(domain.starts_with('d') && domain[1..].parse::<u32>().is_ok(), "{from_server}");
    assert_eq!(client, [format!("hello: hello, {domain}, you said: {text}")]);
}

#[test]
fn each_client_gets_a_reply_from_each_server() {
    for server in LANGUAGES {
        let (scratch, daemon) = daemon();
        let clients = LANGUAGES.map(|language| hello("client", language, &scratch));
        let mut server = daemon.launch_on_host(hello("server", server, &scratch)).spawn().unwrap();
        server.wait_line("hello is ready", patience()).unwrap();
        for client in clients {
            for text in ["good morning", ""] {
                let client = daemon.launch_on_host(&client).args(["hello", text, PATIENT]).spawn().unwrap();
                let lines = client.finish(patience()).unwrap().expect_success();
                check_lines(&lines, &mut server, text, patience());
            }
        }
        assert_eq!(server.try_wait().unwrap(), None, "{}", server.stderr());
    }
}

#[test]
fn client_waits_for_the_server_to_start() {
    for language in LANGUAGES {
        let (scratch, daemon) = daemon();
        let server = hello("server", language, &scratch);
        let client = hello("client", language, &scratch);
        let mut client = daemon.launch_on_host(client).args(["hello", "good morning", PATIENT]).spawn().unwrap();
        client.wait_line("waiting for hello", patience()).unwrap();
        let mut server = daemon.launch_on_host(server).spawn().unwrap();
        server.wait_line("hello is ready", patience()).unwrap();
        let lines = client.finish(patience()).unwrap().expect_success();
        check_lines(&lines, &mut server, "good morning", patience());
    }
}

#[test]
fn client_reports_an_unknown_server() {
    for language in LANGUAGES {
        let (scratch, daemon) = daemon();
        let client = hello("client", language, &scratch);
        let client = daemon.launch_on_host(client).args(["absent", "good morning", "0"]).spawn().unwrap();
        let Finished { exit, lines, stderr } = client.finish(patience()).unwrap();
        assert_eq!((exit, lines.as_slice()), (Exit::Code(1), &[][..]), "{stderr}");
        assert!(stderr.starts_with("client: absent: no domain is attached under this name or number"), "{stderr}");
    }
}

#[test]
fn server_reports_a_taken_name() {
    for language in LANGUAGES {
        let (scratch, daemon) = daemon();
        let program = hello("server", language, &scratch);
        let mut first = daemon.launch_on_host(&program).arg("web").spawn().unwrap();
        first.wait_line("web is ready", patience()).unwrap();
        let second = daemon.launch_on_host(&program).arg("web").spawn().unwrap();
        let Finished { exit, lines, stderr } = second.finish(patience()).unwrap();
        assert_eq!((exit, lines.as_slice()), (Exit::Code(1), &[][..]), "{stderr}");
        assert!(stderr.starts_with("server: ") && stderr.contains("[name-taken]"), "{stderr}");
    }
}

#[test]
fn programs_report_an_unreachable_daemon() {
    let scratch = Scratch::new().unwrap();
    for language in LANGUAGES {
        for role in ["client", "server"] {
            let program = isthmus_testbed::Launch::new(hello(role, language, &scratch));
            let program = program.env("ISTHMUS_SOCKET", scratch.join("no.sock")).spawn().unwrap();
            let Finished { exit, stderr, .. } = program.finish(patience()).unwrap();
            assert_eq!(exit, Exit::Code(1), "{stderr}");
            assert!(stderr.starts_with(&format!("{role}: ")) && stderr.contains("[daemon-unreachable]"), "{stderr}");
        }
    }
}
