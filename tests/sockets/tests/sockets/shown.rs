//! What a program does with a connection while the daemon examines its socket: `c/shown.c`. The daemon is stopped meanwhile, so it has a copy
//! of the socket all the time.

use isthmus_sockets_tests::{Stage, build, timeout};
use isthmus_testbed::Finished;

fn run(stage: &mut Stage, what: &str, expected: &[&str]) {
    let mut proc = stage.launch(build::program("shown")).arg(what).with_stdin().spawn().unwrap();
    proc.wait_line("ready", timeout()).unwrap_or_else(|error| panic!("{error}"));
    stage.daemon().map_or(Ok(()), |daemon| daemon.proc().freeze()).unwrap();
    proc.send_line("go").unwrap();
    let lines: Vec<String> =
        expected.iter().map(|_| proc.line(timeout()).unwrap_or_else(|error| panic!("{what}: {error}"))).collect();
    assert_eq!(lines, expected, "{what}");
    stage.daemon().map_or(Ok(()), |daemon| daemon.proc().thaw()).unwrap();
    proc.send_line("go").unwrap();
    proc.wait_line("end 0", timeout()).unwrap_or_else(|error| panic!("{what}: {error}"));
    proc.finish(timeout()).map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
}

fn run_both(what: &str, expected: &[&str]) {
    run(&mut Stage::Kernel, what, expected);
    if let Some(mut stage) = Stage::library() {
        run(&mut stage, what, expected);
    }
}

#[test]
fn close_beside_a_reader_does_not_end_its_call() {
    run_both("reader", &["received 9"]);
}

#[test]
fn close_leaves_the_connection_to_a_child_that_has_it() {
    run_both("child", &["got words"]);
}
