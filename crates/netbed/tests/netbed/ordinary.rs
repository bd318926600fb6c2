//! Who gets no bed, and how ordinary users get one.

use std::path::PathBuf;
use std::process::Command;

use isthmus_netbed::{Bed, CannotMake, Wire, as_root_of_our_own};
use isthmus_testbed::Scratch;
use rustix::process::geteuid;

use crate::{exchange, two_hosts, udp};

/// A uid that is nobody's.
const STRANGER: &str = "61234";

/// This program where everybody may run it, and how to run one of its roles as somebody else.
fn as_stranger(scratch: &Scratch, role: &str) -> Option<Command> {
    if !geteuid().is_root() || two_hosts().is_none() {
        eprintln!("skipped: only root can start what belongs to somebody else");
        return None;
    }
    let copy: PathBuf = scratch.path().join("program");
    // By another program: a copy of our own would still be open for writing in whatever another thread forks meanwhile.
    let ours = std::env::current_exe().expect("a program has a path");
    let copied = Command::new("cp").arg(ours).arg(&copy).status().expect("cp runs");
    assert!(copied.success(), "there is room for a copy");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", STRANGER, "--regid", STRANGER, "--clear-groups", "--"]).arg(copy);
    command.args(["--exact", role, "--ignored", "--nocapture"]).current_dir("/");
    Some(command)
}

#[test]
#[ignore = "a role of ordinary_user_is_told_why_there_is_no_bed"]
fn user_without_a_bed() {
    assert!(!geteuid().is_root());
    let why = Bed::new().map(|_| ()).unwrap_err();
    assert!(matches!(why, CannotMake::NeedsRoot(_)), "{why}");
    println!("\nwhy: {why}");
}

#[test]
fn ordinary_user_is_told_why_there_is_no_bed() {
    let scratch = Scratch::shared().unwrap();
    let Some(mut command) = as_stranger(&scratch, "ordinary::user_without_a_bed") else { return };
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("why: network namespaces need root"), "{output:?}");
}

#[test]
#[ignore = "a role of ordinary_user_gets_a_bed_as_root_of_its_own"]
fn user_with_a_bed() {
    if let Err(why) = as_root_of_our_own() {
        println!("\nnot allowed: {why}");
        return;
    }
    assert!(geteuid().is_root());
    let (mut bed, a, b) = two_hosts().expect("root of a user namespace may have a bed");
    let plain = bed.link(&a, &b, &Wire::mtu(9000)).unwrap();
    exchange(&udp(plain.a()), &udp(plain.b())).unwrap();
    let lossy = bed.lossy(&a, &b, &Wire::default(), Default::default()).unwrap();
    exchange(&udp(lossy.a()), &udp(lossy.b())).unwrap();
    println!("\nexchanged");
}

#[test]
fn ordinary_user_gets_a_bed_as_root_of_its_own() {
    let scratch = Scratch::shared().unwrap();
    let Some(mut command) = as_stranger(&scratch, "ordinary::user_with_a_bed") else { return };
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
    let why = Bed::new().map(|_| ()).unwrap_err();
    println!("\nwhy: {why}");
}

#[test]
fn missing_tool_is_named_with_its_package() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "ordinary::program_without_tools", "--ignored", "--nocapture"]);
    let output = command.env("PATH", "/no/tools/here").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("why: ip is not installed; it comes with the package iproute2"), "{output:?}");
}
