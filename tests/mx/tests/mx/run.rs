//! A daemon, and a case of a program beside it.

use std::path::PathBuf;
use std::process::Command;

use isthmus_testbed::{DaemonProcess, Deadline, Launch, Scratch, binary};

use crate::build::program;

const CONFIG: &str = "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{state}\"\n";

/// More than a program's own bound on hangs: its SIGALRM tells more than our patience.
pub(crate) fn timeout() -> Deadline {
    Deadline::secs(150)
}

/// A daemon, with some settings of MX.
pub(crate) fn daemon(settings: &str) -> (Scratch, DaemonProcess) {
    let scratch = Scratch::new().unwrap();
    binary("isthmusd", "isthmusd").unwrap(); // Built before the time limit of a test starts.
    let daemon = DaemonProcess::on(&scratch).config(&format!("{CONFIG}{settings}")).start(timeout()).unwrap();
    (scratch, daemon)
}

/// Launches a program without the variables that the user of these tests may have set for MX.
pub(crate) fn launch_on_host(daemon: &DaemonProcess, program: PathBuf) -> Launch {
    let is_ours = |name: &str| name.starts_with("MX_") || name.starts_with("OMX_");
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| is_ours(name));
    set.fold(daemon.launch_on_host(program), Launch::env_remove)
}

/// Runs a case in these surroundings.
#[track_caller]
pub(crate) fn case_with(name: &str, case: &str, settings: &str, variables: &[(&str, &str)]) {
    let program = program(name);
    let (_scratch, daemon) = daemon(settings);
    let mut launch = launch_on_host(&daemon, program).arg(case);
    for (variable, value) in variables {
        launch = launch.env(variable, value);
    }
    let lines = launch.spawn().unwrap().finish(timeout()).unwrap().expect_success();
    assert_eq!(lines, ["done"], "{name} {case}");
}

/// The cases a program has.
pub(crate) fn listed(name: &str) -> Vec<String> {
    let output = Command::new(program(name)).arg("--list").output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}
