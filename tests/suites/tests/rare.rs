//! Conditions that few machines provoke: a kernel that is too old, a container without /proc, a module that refuses a step, too many
//! descriptors in flight. Large messages then go in fragments, arrive all the same, and their sender can ask why.
//!
//! ```text
//!   sandboxed ── its large messages ──► beside      in pieces, for the reason
//!   sandboxed ◄── its large messages ── beside      copied once: what one side lacks is no matter of the other
//! ```
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_suites::{TIMEOUT_S, TestProgram, daemon, test_program};
use isthmus_testbed::{DaemonProcess, Deadline, Sandbox, Scratch, SyscallDenial, binary};
use nix::libc;
use rustix::io::Errno;
use serde_json::Value;

/// Messages worth a buffer in shared memory, one after the other, so that each buffer is used again and again.
const LARGE: &str = "40x200003";
/// A uid that no user has.
const OWNER: u32 = 61_401;

/// Large messages from one to the other, again and again, until the sender says that they go like this.
#[track_caller]
fn expect_reason(sender: &mut TestProgram, receiver: &mut TestProgram, names: [&str; 2], wanted: &str) {
    let deadline = Deadline::secs(TIMEOUT_S);
    let mut said = String::new();
    while !deadline.has_passed() {
        said = exchange(sender, receiver, names);
        if said.ends_with(&format!(" {wanted}")) {
            return;
        }
    }
    panic!("not {wanted} but: {said}; {}", sender.ask("channels"));
}

/// Expects a reason as [`expect_reason`] does, and that it stays the same.
#[track_caller]
fn expect_no_change(sender: &mut TestProgram, receiver: &mut TestProgram, names: [&str; 2], wanted: &str) {
    expect_reason(sender, receiver, names, wanted);
    for _ in 0..2 {
        let said = exchange(sender, receiver, names);
        assert!(said.ends_with(&format!(" {wanted}")), "not {wanted} any more but: {said}");
    }
}

/// Large messages once; both sides check every byte, of those sent later from the same buffer, too. What the sender says of them.
#[track_caller]
fn exchange(sender: &mut TestProgram, receiver: &mut TestProgram, [from, to]: [&str; 2]) -> String {
    sender.send_line(&format!("exchange 0 {to}.e0 1000 {LARGE} 9000 8 window=1 buffers=reused"));
    receiver.send_line(&format!("exchange 0 {from}.e0 9000 8 1000 {LARGE}"));
    assert_eq!(sender.answer(), "exchanged sent 40 of 40 received 1 of 1");
    assert_eq!(receiver.answer(), "exchanged sent 1 of 1 received 40 of 40");
    sender.ask("fragments")
}

/// Returns the report of `isthmus doctor` on moving a buffer, in such a sandbox.
fn diagnosed(daemon: &DaemonProcess, sandbox: Sandbox) -> Value {
    let program = binary("isthmus", "isthmus").unwrap_or_else(|error| panic!("{error}"));
    let launch = daemon.launch_in_sandbox(sandbox, program).args(["doctor", "--json"]);
    let finished = launch.spawn().unwrap().finish(Deadline::secs(TIMEOUT_S)).unwrap();
    let report: Value = serde_json::from_str(&finished.lines.join("\n")).unwrap_or_else(|_| panic!("{finished:?}"));
    let findings = report["findings"].as_array().unwrap_or_else(|| panic!("{report}"));
    let moved = findings.iter().find(|finding| finding["id"] == "memory.migration");
    moved.unwrap_or_else(|| panic!("{report}"))["reason"].clone()
}

/// A program in a sandbox like this cannot have its buffers moved, for this reason; everything else works as usual.
#[track_caller]
fn expect_fallback(sandbox: &Sandbox, reason: &str) {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut sandboxed = TestProgram::launch_in_sandbox(&daemon, sandbox.clone(), "sandboxed");
    let mut beside = TestProgram::launch_on_host(&daemon, "beside");
    expect_no_change(&mut sandboxed, &mut beside, ["sandboxed", "beside"], reason);
    expect_reason(&mut beside, &mut sandboxed, ["beside", "sandboxed"], "none");
    for actor in [&mut sandboxed, &mut beside] {
        let channels = actor.ask("channels");
        assert!(channels.contains(" channel "), "{channels}");
    }
    assert_eq!(diagnosed(&daemon, sandbox.clone()), reason);
}

#[test]
fn large_messages_are_copied_once_in_a_default_sandbox() {
    if !Sandbox::is_available() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let [mut one, mut other] =
        ["one", "other"].map(|name| TestProgram::launch_in_sandbox(&daemon, Sandbox::new(), name));
    expect_reason(&mut one, &mut other, ["one", "other"], "none");
    assert_eq!(diagnosed(&daemon, Sandbox::new()), Value::Null, "or the tests below show nothing");
}

#[test]
fn falls_back_to_slab_when_procmap_query_is_missing() {
    /// `PROCMAP_QUERY` of `linux/fs.h`: `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: u64 = 0xc068_6611;
    if Sandbox::is_available() {
        // As a kernel before 6.11 answers.
        let unknown = SyscallDenial::new(libc::SYS_ioctl, Errno::NOTTY).only(1, 0xffff_ffff, PROCMAP_QUERY);
        expect_fallback(&Sandbox::new().deny_syscall(unknown), "buffer-no-procmap-query");
    }
}

#[test]
fn falls_back_to_slab_when_proc_is_missing() {
    if Sandbox::is_available() {
        expect_fallback(&Sandbox::new().no_proc(), "buffer-no-proc");
    }
}

#[test]
fn falls_back_to_slab_when_memfds_are_denied() {
    if Sandbox::is_available() {
        expect_fallback(
            &Sandbox::new().deny_syscall(SyscallDenial::new(libc::SYS_memfd_create, Errno::PERM)),
            "buffer-denied",
        );
    }
}

#[test]
fn falls_back_to_slab_when_remapping_is_denied() {
    if Sandbox::is_available() {
        let mask = (libc::MAP_TYPE | libc::MAP_FIXED | libc::MAP_POPULATE) as u64;
        let moves = (libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE) as u64;
        let forbidden = SyscallDenial::new(libc::SYS_mmap, Errno::ACCESS).only(3, mask, moves);
        expect_fallback(&Sandbox::new().deny_syscall(forbidden), "buffer-denied");
    }
}

#[test]
fn with_too_many_descriptors_under_way_large_messages_go_in_pieces_until_they_have_arrived() {
    let root = rustix::process::geteuid().is_root();
    let scratch = Scratch::shared().unwrap();
    let daemon = daemon(&scratch, "policy.attach = \"any-user\"\n");
    let [mut one, mut other] = ["one", "other"].map(|name| {
        let launch = daemon.launch_on_host(test_program::program());
        // The kernel does not count for root.
        TestProgram::start_attached(if root { launch.owner(OWNER) } else { launch }, name, "")
    });
    let (out, back) = (["one", "other"], ["other", "one"]);
    assert_eq!(one.ask("in-flight-fds 200"), "in-flight-fds 200");
    let limited = one.ask("limit-fds 32");
    let limit = limited.strip_prefix("limited to ").and_then(|limit| limit.parse::<u32>().ok());
    assert!(limit.is_some_and(|limit| limit < 100), "{limited}: not far below what is under way");
    expect_no_change(&mut one, &mut other, out, "fds-in-flight");
    // Another process of the same user may have more of them open, so it may have more of them under way.
    expect_reason(&mut other, &mut one, back, "none");
    assert_eq!(one.ask("in-flight-fds 0"), "in-flight-fds 0");
    expect_reason(&mut one, &mut other, out, "none");
}
