//! Containers that have nothing in common but the folder of the daemon's socket: they talk as fast paths go, and see of one
//! another what they were given and nothing else.
//!
//! ```text
//!   channels ── one owner: by a channel, by mapped regions, whatever each side runs in
//!   identity ── rules of the policy: by user, by cgroup, and by a name that is bound
//!   owners ──── two owners: refused, or by a channel alone
//!   seen ────── which memory and which doorbells two processes share, out of /proc
//! ```

mod channels;
mod identity;
mod owners;
mod process_view;

use isthmus_suites::{TIMEOUT_S, TestProgram};
use isthmus_testbed::{DaemonProcess, Deadline, Sandbox};
use serde_json::Value;

/// Messages of each kind: in the record, in pieces, announced; at the borders between them too.
const EVERY_LENGTH: &str = "0-130,1000,2047-2049,4096,16385,32767-32769,65536,100003,1048576,3x4194304";

/// Returns true if processes of other users can be started.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root can start processes of other users");
    }
    root
}

/// Every length both ways at once, between two that may be anywhere.
#[track_caller]
fn exchange(one: &mut TestProgram, other: &mut TestProgram, names: [&str; 2], lengths: &str, how: &str) {
    one.send_line(&format!("exchange 0 {}.e0 1000 {lengths} 9000 {lengths} {how}", names[1]));
    other.send_line(&format!("exchange 0 {}.e0 9000 {lengths} 1000 {lengths} {how}", names[0]));
    let answers = [one.answer(), other.answer()];
    assert!(answers.iter().all(|answer| answer.starts_with("exchanged ")), "{answers:?}");
}

/// A report of the daemon, asked for by a domain.
fn report(actor: &mut TestProgram, query: &str) -> Value {
    let answer = actor.ask(&format!("query {query}"));
    let json = answer.strip_prefix("report ").unwrap_or_else(|| panic!("{query}: {answer}"));
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

/// Exchanges short messages until both send by the channel.
#[track_caller]
fn exchange_messages(one: &mut TestProgram, other: &mut TestProgram, names: [&str; 2]) {
    let by_channel = |actor: &mut TestProgram| actor.ask("channels").contains(" channel ");
    let deadline = Deadline::secs(TIMEOUT_S);
    while !deadline.has_passed() {
        exchange(one, other, names, "20x8", "");
        if by_channel(one) && by_channel(other) {
            return;
        }
    }
    let paths = [one.ask("channels"), other.ask("channels")];
    panic!("no channel: {paths:?}, {}", report(one, &format!("why {} {}", names[0], names[1])));
}

/// Returns the numbers of records that a domain has sent and received through the daemon.
fn daemon_path_records(daemon: &mut TestProgram, name: &str) -> [u64; 2] {
    let domains = report(daemon, "domains");
    let rows = domains["domains"].as_array().expect("a list of domains");
    let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {domains}"));
    ["daemon_path_sent_bytes", "daemon_path_received_bytes"].map(|key| row[key].as_u64().expect("a number"))
}

/// A sandbox like all others, down to its host name.
fn container() -> Sandbox {
    Sandbox::new().hostname("twin")
}

/// Test programs in sandboxes of their own.
fn launch_in_sandbox<const N: usize>(daemon: &DaemonProcess, names: [&str; N]) -> [TestProgram; N] {
    names.map(|name| TestProgram::launch_in_sandbox(daemon, container(), name))
}
