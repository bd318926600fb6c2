//! The daemon is killed, and the next one finds the devices of programs that make no calls. What begins without a daemon goes on with the next.

use isthmus_testbed::{Exit, Proc, eventually};
use isthmus_verbs_tests::{Pair, Stage, programs, timeout};

/// Waits until the daemon lists this number of devices.
#[track_caller]
fn wait_for_devices(stage: &Stage, count: usize) {
    let is_listed = || stage.count_rows(&["verbs", "list"]) == count;
    eventually(timeout(), is_listed).unwrap_or_else(|error| panic!("{error}: {count} devices"));
}

/// In `accept()`, the first program has an open device, and the second one a queue pair as well.
#[test]
fn next_daemon_finds_servers_that_wait_for_clients() {
    let Some(mut stage) = Stage::new() else { return };
    for (program, words) in [("ib_send_bw", ["-F", "-n", "200"]), ("ibv_rc_pingpong", ["-c", "-n", "200"])] {
        let pair = Pair::run_after(&mut stage, &format!("/usr/bin/{program}"), &words, |stage| {
            stage.daemon().kill_and_restart(timeout()).unwrap();
            wait_for_devices(stage, 1);
        });
        pair.expect_success();
    }
}

/// Runs `restarted`, with these actions at its lines.
#[track_caller]
fn run(at_open: impl FnOnce(&mut Stage), at_connected: impl FnOnce(&mut Stage)) {
    if programs().is_none() {
        return;
    }
    let Some(mut stage) = Stage::new() else { return };
    let launch = stage.launch(stage.server(), "/programs/restarted", &[], &[]).with_stdin();
    let mut program = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
    let wait = |program: &mut Proc, line: &str| {
        let came = program.wait_line(line, timeout());
        assert!(came.is_ok(), "{came:?}: {}", program.stderr());
    };
    wait(&mut program, "open");
    at_open(&mut stage);
    program.send_line("go").unwrap();
    wait(&mut program, "connected");
    at_connected(&mut stage);
    program.send_line("go").unwrap();
    let finished = program.finish(timeout()).unwrap();
    assert!(finished.exit == Exit::Code(0) && finished.lines == ["done"], "{finished:#?}");
}

#[test]
fn devices_that_are_idle_during_a_restart_connect_later() {
    let restart = |stage: &mut Stage| {
        stage.daemon().kill_and_restart(timeout()).unwrap();
        wait_for_devices(stage, 2);
    };
    run(restart, |_| ());
}

/// The devices may not have resumed when they connect: they look each other up again.
#[test]
fn devices_connect_at_once_after_a_restart() {
    run(|stage| stage.daemon().kill_and_restart(timeout()).unwrap(), |_| ());
}

#[test]
fn connections_made_without_a_daemon_go_on_with_the_next_one() {
    let end = |stage: &mut Stage| stage.daemon().proc().kill().unwrap();
    run(end, |stage| stage.daemon().start_again(timeout()).unwrap());
}
