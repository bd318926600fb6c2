//! Transcripts of both programs of a case of `c/endings.c` or `c/calls.c`.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use isthmus_testbed::{Exit, Finished, Proc};

use crate::stage::Stage;
use crate::{build, timeout};

/// The number of the descriptor by which the programs of a case wait for each other.
const CONTROL_FD: i32 = 3;

/// The lines of the programs that ran the first and the second part of a case, with their exits.
#[derive(Debug, PartialEq, Eq)]
pub struct Transcript {
    first: Vec<String>,
    second: Vec<String>,
}

/// Lists the cases of a program: the name of each, and what it does.
pub fn cases(program: &str) -> Vec<(String, String)> {
    let output = Command::new(build::program(program)).arg("--list").output().unwrap_or_else(|error| panic!("{error}"));
    assert!(output.status.success(), "{program} --list");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, what)| (name.to_owned(), what.to_owned()))
        .collect()
}

/// Runs a case on this stage. The connector runs the first part; `swapped`, the second.
pub fn run_case(stage: &Stage, program: &str, case: &str, swapped: bool) -> Transcript {
    let (one, other) = UnixStream::pair().unwrap_or_else(|error| panic!("{error}"));
    let start = |control: UnixStream, words: &[&str]| -> Proc {
        let launch = stage.launch(build::program(program)).args(words).args(swapped.then_some("swapped"));
        launch
            .fd(CONTROL_FD, OwnedFd::from(control))
            .with_stdin()
            .spawn()
            .unwrap_or_else(|error| panic!("{case}: {error}"))
    };
    let mut acceptor = start(one, &["acceptor", case]);
    let port = acceptor.wait_prefix("port ", timeout()).unwrap_or_else(|error| panic!("{case}: {error}"));
    let mut connector = start(other, &["connector", case, &port]);
    stage.wait_for_stream(&port);
    connector.send_line("go").unwrap_or_else(|error| panic!("{case}: {error}"));
    let [connector, acceptor] = [("connector", connector), ("acceptor", acceptor)].map(|(name, proc)| {
        let finished = proc.finish(timeout()).unwrap_or_else(|error| panic!("{program} {case}, {name}: {error}"));
        lines(case, finished)
    });
    let (first, second) = if swapped { (acceptor, connector) } else { (connector, acceptor) };
    Transcript { first, second }
}

/// A program ends with `done`, or as its case wants it: by SIGKILL, or with other lines. A failed check is exit code 1.
fn lines(case: &str, finished: Finished) -> Vec<String> {
    let Finished { exit, mut lines, stderr } = finished;
    assert!(matches!(exit, Exit::Code(0) | Exit::Signal(9)), "{case}: {exit:?}\n{}\n{stderr}", lines.join("\n"));
    lines.push(format!("{exit:?}"));
    lines
}
