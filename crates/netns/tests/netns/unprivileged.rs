//! Unprivileged users: the reason why no testbed can be made, and how a user namespace allows one.

use std::path::PathBuf;
use std::process::Command;

use isthmus_netns::{SetupError, Testbed, Wire, reexec_as_userns_root};
use isthmus_testbed::Scratch;
use rustix::process::geteuid;

use crate::{exchange, two_hosts, udp};

/// A uid that no user has.
const OTHER_UID: &str = "61234";

/// A copy of this program that every user may run, and the command that runs one of its roles as another user.
fn as_other_user(scratch: &Scratch, role: &str) -> Option<Command> {
    if !geteuid().is_root() || two_hosts().is_none() {
        eprintln!("skipped: only root can start a program of another user");
        return None;
    }
    let copy: PathBuf = scratch.path().join("program");
    // By another program: a copy of our own would still be open for writing in whatever another thread forks meanwhile.
    let ours = std::env::current_exe().expect("a program has a path");
    let copied = Command::new("cp").arg(ours).arg(&copy).status().expect("cp runs");
    assert!(copied.success(), "there is room for a copy");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", OTHER_UID, "--regid", OTHER_UID, "--clear-groups", "--"]).arg(copy);
    command.args(["--exact", role, "--ignored", "--nocapture"]).current_dir("/");
    Some(command)
}

#[test]
#[ignore = "a role of unprivileged_user_gets_a_reason_when_no_testbed_can_be_made"]
fn child_of_unprivileged_user_without_testbed() {
    assert!(!geteuid().is_root());
    let why = Testbed::new().map(|_| ()).unwrap_err();
    assert!(matches!(why, SetupError::NeedsRoot(_)), "{why}");
    println!("\nwhy: {why}");
}

#[test]
fn unprivileged_user_gets_a_reason_when_no_testbed_can_be_made() {
    let scratch = Scratch::shared().unwrap();
    let Some(mut command) = as_other_user(&scratch, "unprivileged::child_of_unprivileged_user_without_testbed") else {
        return;
    };
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("why: network namespaces need root"), "{output:?}");
}

#[test]
#[ignore = "a role of unprivileged_user_gets_a_testbed_in_a_user_namespace"]
fn child_of_unprivileged_user_with_testbed() {
    if let Err(why) = reexec_as_userns_root() {
        println!("\nnot allowed: {why}");
        return;
    }
    assert!(geteuid().is_root());
    let (mut bed, a, b) = two_hosts().expect("root of a user namespace may have a testbed");
    let plain = bed.link(&a, &b, &Wire::mtu(9000)).unwrap();
    exchange(&udp(plain.a()), &udp(plain.b())).unwrap();
    let lossy = bed.impaired(&a, &b, &Wire::default(), Default::default()).unwrap();
    exchange(&udp(lossy.a()), &udp(lossy.b())).unwrap();
    println!("\nexchanged");
}

#[test]
fn unprivileged_user_gets_a_testbed_in_a_user_namespace() {
    let scratch = Scratch::shared().unwrap();
    let Some(mut command) = as_other_user(&scratch, "unprivileged::child_of_unprivileged_user_with_testbed") else {
        return;
    };
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains("not allowed: ") {
        eprintln!("skipped: {said}");
        return;
    }
    assert!(output.status.success() && said.contains("exchanged"), "{output:?}");
}

#[test]
#[ignore = "a role of missing_tool_is_named_with_its_package"]
fn program_without_tools() {
    let why = Testbed::new().map(|_| ()).unwrap_err();
    println!("\nwhy: {why}");
}

#[test]
fn missing_tool_is_named_with_its_package() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "unprivileged::program_without_tools", "--ignored", "--nocapture"]);
    let output = command.env("PATH", "/no/tools/here").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("why: ip is not installed; it comes with the package iproute2"), "{output:?}");
}
