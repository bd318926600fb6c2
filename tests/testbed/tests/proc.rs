//! Tests of children on the host, and of the daemon's launcher with the probe in the daemon's place.

use std::time::Duration;

use isthmus_testbed::{
    DaemonProcess, DaemonProcessError, Deadline, Exit, Launch, LaunchError, Limit, ProcError, Scratch, ViewError,
    eventually,
};

const PROBE: &str = env!("CARGO_BIN_EXE_isthmus-probe");

fn patience() -> Deadline {
    Deadline::secs(60)
}

#[test]
fn lines_arrive_one_by_one_without_a_final_newline() {
    let mut sh = Launch::new("/bin/sh").args(["-c", "echo one; echo two; printf three; exit 3"]).spawn().unwrap();
    assert_eq!(sh.line(patience()).unwrap(), "one");
    let finished = sh.finish(patience()).unwrap();
    assert_eq!(finished.lines, ["two", "three"]);
    assert_eq!(finished.exit, Exit::Code(3));
}

#[test]
fn timeout_for_a_line_reports_the_output_so_far() {
    let mut probe = Launch::new(PROBE).arg("echo").with_stdin().spawn().unwrap();
    probe.send_line("something else").unwrap();
    probe.wait_line("something else", patience()).unwrap();
    let late = probe.wait_line("wanted", Deadline::after(Duration::ZERO)).unwrap_err();
    assert!(matches!(late, ProcError::TimedOut { .. }), "{late}");
    probe.send_line("complain").unwrap();
    probe.close_stdin();
    let ended = probe.wait_line("wanted", patience()).unwrap_err();
    assert!(matches!(ended, ProcError::Ended { .. }), "{ended}");
    for part in ["wanted", "| something else", "! a complaint"] {
        assert!(ended.to_string().contains(part), "{ended}");
    }
}

#[test]
fn end_of_output_is_seen_though_a_grandchild_keeps_the_pipe() {
    let sh = Launch::new("/bin/sh").args(["-c", "setsid sleep 4711 & echo $!"]).spawn().unwrap();
    let finished = sh.finish(patience()).unwrap();
    let grandchild = finished.lines[0].parse().unwrap();
    let grandchild = rustix::process::Pid::from_raw(grandchild).unwrap();
    rustix::process::kill_process(grandchild, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn frozen_child_is_idle_until_thawed() {
    let mut probe = Launch::new(PROBE).arg("echo").with_stdin().spawn().unwrap();
    probe.freeze().unwrap();
    let view = probe.view().unwrap();
    eventually(patience(), || view.status("State").unwrap().starts_with('T')).unwrap();
    probe.send_line("hello").unwrap();
    assert!(matches!(probe.line(Deadline::after(Duration::from_millis(20))), Err(ProcError::TimedOut { .. })));
    probe.thaw().unwrap();
    probe.wait_line("hello", patience()).unwrap();
    probe.kill().unwrap();
    assert_eq!(probe.wait(patience()).unwrap(), Exit::Signal(9));
    assert_eq!(probe.try_wait().unwrap(), Some(Exit::Signal(9)));
    probe.kill().unwrap(); // Of the dead: no error, and no other process is hit.
}

#[test]
fn view_counts_time_threads_and_descriptors() {
    let mut probe = Launch::new(PROBE).arg("echo").with_stdin().fd(7, std::fs::File::open("/dev/null").unwrap().into());
    probe = probe.limit(Limit::OpenFiles(64)).limit(Limit::LockedBytes(0));
    let mut probe = probe.spawn().unwrap();
    probe.send_line("here").unwrap();
    probe.wait_line("here", patience()).unwrap();
    let view = probe.view().unwrap();
    let numbers = view.fds().unwrap().iter().map(|fd| fd.number).collect::<Vec<_>>();
    assert_eq!(numbers, [0, 1, 2, 7]);
    assert!(view.fds().unwrap().iter().all(|fd| !fd.closes_on_exec));
    assert_eq!(view.threads().unwrap().len(), 1);
    assert!(view.memory().unwrap().rss_bytes > 0);
    assert_eq!(view.memory().unwrap().locked_bytes, 0);
    assert!(view.maps().unwrap().iter().any(|mapping| mapping.name.ends_with("isthmus-probe")));
    assert!(view.shared_maps().unwrap().is_empty());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", view.pid())).unwrap();
    assert!(limits.lines().any(|line| line.starts_with("Max open files") && line.contains(" 64 ")), "{limits}");

    let (before, sleeps) = (view.cpu_fine().unwrap(), view.sleeps().unwrap());
    probe.send_line("spin").unwrap();
    probe.line(patience()).unwrap();
    assert!(view.cpu_fine().unwrap() > before);
    assert!(view.cpu().unwrap() <= view.cpu_fine().unwrap() + Duration::from_secs(1));
    eventually(patience(), || view.sleeps().unwrap() > sleeps).unwrap();

    assert!(probe.finish(patience()).unwrap().exit.success());
    assert!(matches!(view.fds(), Err(ViewError::Gone { .. })));
}

#[test]
fn child_outlives_the_thread_that_started_it() {
    let spawn = || Launch::new(PROBE).arg("echo").with_stdin().spawn().unwrap();
    let mut probe = std::thread::spawn(spawn).join().unwrap();
    probe.send_line("alive").unwrap();
    probe.wait_line("alive", patience()).unwrap();
}

#[test]
fn dropped_child_takes_its_children_along() {
    let mut sh = Launch::new("/bin/sh").args(["-c", "sleep 4711 & echo $!; wait"]).spawn().unwrap();
    let sleep = sh.line(patience()).unwrap().parse().unwrap();
    let life = rustix::process::pidfd_open(
        rustix::process::Pid::from_raw(sleep).unwrap(),
        rustix::process::PidfdFlags::empty(),
    );
    let life = life.unwrap();
    drop(sh);
    patience().readable([std::os::fd::AsFd::as_fd(&life)]).unwrap();
}

#[test]
fn program_that_is_not_there_is_named() {
    let error = Launch::new("/no/such/program").spawn().unwrap_err();
    assert!(matches!(error, LaunchError::NoProgram { .. }), "{error}");
    assert!(error.to_string().contains("/no/such/program"));
}

#[test]
fn daemon_is_ready_on_notify_and_restarts_in_place() {
    let scratch = Scratch::new().unwrap();
    let plan = DaemonProcess::on(&scratch).program(PROBE).arg("ready");
    let mut daemon = plan.start(patience()).unwrap();
    assert_eq!(daemon.notify().messages().unwrap(), ["STATUS=probing", "READY=1"]);
    std::fs::write(daemon.state_dir().join("kept"), "").unwrap();
    let first = daemon.view().unwrap().pid();
    daemon.kill_and_restart(patience()).unwrap();
    assert_ne!(daemon.view().unwrap().pid(), first);
    let stopped = daemon.stop(patience()).unwrap();
    assert_eq!(stopped.exit, Exit::Signal(15));
    let daemon = stopped.start(patience()).unwrap();
    assert!(daemon.state_dir().join("kept").exists());
    assert_eq!(daemon.kill(patience()).unwrap().exit, Exit::Signal(9));
}

#[test]
fn daemon_gets_its_configuration_with_paths_filled_in() {
    let scratch = Scratch::new().unwrap();
    let plan = DaemonProcess::on(&scratch).program("/bin/sh").config("socket = \"{socket}\"");
    // `sh --config FILE …` is refused by sh: the daemon ends, and we learn of that at once.
    let error = plan.start(patience()).unwrap_err();
    assert!(matches!(error, DaemonProcessError::NotReady { .. }), "{error}");
    let config = std::fs::read_to_string(scratch.join("isthmusd.toml")).unwrap();
    assert_eq!(config, format!("socket = \"{}\"", scratch.join("run/isthmus.sock").display()));
}

#[test]
fn daemon_that_never_gets_ready_is_reported() {
    let scratch = Scratch::new().unwrap();
    let plan = DaemonProcess::on(&scratch).program(PROBE).arg("ready").env("PROBE_SAYS", "STATUS=stuck");
    let error = plan.start(Deadline::after(Duration::from_millis(200))).unwrap_err();
    assert!(error.to_string().contains("READY=1") || error.to_string().contains("stuck"), "{error}");
}

#[test]
fn binary_is_built_and_found() {
    let path = isthmus_testbed::binary("isthmus-testbed", "isthmus-probe").unwrap();
    assert!(path.is_file());
    assert!(isthmus_testbed::binary("isthmus-testbed", "no-such-program").is_err());
}

#[test]
fn daemon_and_program_of_another_user_have_its_uid() {
    let uid = 61_237;
    if !rustix::process::geteuid().is_root() {
        let refused = Launch::new(PROBE).owner(uid).spawn();
        assert!(matches!(refused, Err(LaunchError::OwnerNeedsRoot { .. })));
        return;
    }
    let scratch = Scratch::shared().unwrap();
    let daemon = DaemonProcess::on(&scratch).program(PROBE).arg("ready").owner(uid).start(patience()).unwrap();
    let id = daemon.launch_on_host("/usr/bin/id").arg("-u").owner(uid + 1).spawn().unwrap();
    assert_eq!(id.finish(patience()).unwrap().expect_success(), [(uid + 1).to_string()]);
    let uids = daemon.view().unwrap().status("Uid").unwrap();
    assert!(uids.split_whitespace().all(|word| word == uid.to_string()), "{uids}");
    assert_eq!(daemon.view().unwrap().status("Groups").unwrap(), "");
}
