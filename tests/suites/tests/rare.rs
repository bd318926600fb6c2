//! What few machines provoke: a kernel that is too old, a container without /proc, a module that refuses a step, too many
//! descriptors under way. Large messages then go in pieces, arrive all the same, and their sender can ask why.
//!
//! ```text
//!   sandboxed ── its large messages ──► beside      in pieces, for the reason
//!   sandboxed ◄── its large messages ── beside      copied once: what one side lacks is no matter of the other
//! ```
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_suites::{Actor, PATIENCE, actor, daemon};
use isthmus_testbed::{Daemon, Deadline, Refusal, Sandbox, Scratch, binary};
use nix::libc;
use rustix::io::Errno;
use serde_json::Value;

/// Messages worth a buffer in shared memory, one after the other, so that each buffer is used again and again.
const LARGE: &str = "40x200003";
/// A uid that is nobody's.
const OWNER: u32 = 61_401;

/// Large messages from one to the other, again and again, until the sender says that they go like this.
#[track_caller]
fn becomes(sender: &mut Actor, receiver: &mut Actor, names: [&str; 2], wanted: &str) {
    let deadline = Deadline::secs(PATIENCE);
    let mut said = String::new();
    while !deadline.passed() {
        said = exchange(sender, receiver, names);
        if said.ends_with(&format!(" {wanted}")) {
            return;
        }
    }
    panic!("not {wanted} but: {said}; {}", sender.ask("channels"));
}

/// The same, and it stays like that.
#[track_caller]
fn stays(sender: &mut Actor, receiver: &mut Actor, names: [&str; 2], wanted: &str) {
    becomes(sender, receiver, names, wanted);
    for _ in 0..2 {
        let said = exchange(sender, receiver, names);
        assert!(said.ends_with(&format!(" {wanted}")), "not {wanted} any more but: {said}");
    }
}

/// Large messages once; both sides check every byte, of those sent later from the same buffer, too. What the sender says of them.
#[track_caller]
fn exchange(sender: &mut Actor, receiver: &mut Actor, [from, to]: [&str; 2]) -> String {
    sender.say(&format!("exchange 0 {to}.e0 1000 {LARGE} 9000 8 window=1 buffers=reused"));
    receiver.say(&format!("exchange 0 {from}.e0 9000 8 1000 {LARGE}"));
    assert_eq!(sender.answer(), "exchanged sent 40 of 40 received 1 of 1");
    assert_eq!(receiver.answer(), "exchanged sent 1 of 1 received 40 of 40");
    sender.ask("pieces")
}

/// What `isthmus doctor` finds of moving a buffer, in such a sandbox.
fn diagnosed(daemon: &Daemon, sandbox: Sandbox) -> Value {
    let program = binary("isthmus", "isthmus").unwrap_or_else(|error| panic!("{error}"));
    let launch = daemon.apart(sandbox, program).args(["doctor", "--json"]);
    let finished = launch.spawn().unwrap().finish(Deadline::secs(PATIENCE)).unwrap();
    let report: Value = serde_json::from_str(&finished.lines.join("\n")).unwrap_or_else(|_| panic!("{finished:?}"));
    let findings = report["findings"].as_array().unwrap_or_else(|| panic!("{report}"));
    let moved = findings.iter().find(|finding| finding["id"] == "memory.mapped");
    moved.unwrap_or_else(|| panic!("{report}"))["reason"].clone()
}

/// A program in a sandbox like this cannot have its buffers moved, for this reason; everything else is as ever.
#[track_caller]
fn cold(sandbox: &Sandbox, reason: &str) {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut sandboxed = Actor::apart(&daemon, sandbox.clone(), "sandboxed");
    let mut beside = Actor::beside(&daemon, "beside");
    stays(&mut sandboxed, &mut beside, ["sandboxed", "beside"], reason);
    becomes(&mut beside, &mut sandboxed, ["beside", "sandboxed"], "none");
    for actor in [&mut sandboxed, &mut beside] {
        let channels = actor.ask("channels");
        assert!(channels.contains(" channel "), "{channels}");
    }
    assert_eq!(diagnosed(&daemon, sandbox.clone()), reason);
}

#[test]
fn in_an_ordinary_sandbox_large_messages_are_copied_once() {
    if !Sandbox::is_possible() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let [mut one, mut other] = ["one", "other"].map(|name| Actor::apart(&daemon, Sandbox::new(), name));
    becomes(&mut one, &mut other, ["one", "other"], "none");
    assert_eq!(diagnosed(&daemon, Sandbox::new()), Value::Null, "or the tests below show nothing");
}

#[test]
fn a_kernel_that_cannot_be_asked_what_lies_at_an_address() {
    /// `PROCMAP_QUERY` of `linux/fs.h`: `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: u64 = 0xc068_6611;
    if Sandbox::is_possible() {
        // As a kernel before 6.11 answers.
        let unknown = Refusal::new(libc::SYS_ioctl, Errno::NOTTY).only(1, 0xffff_ffff, PROCMAP_QUERY);
        cold(&Sandbox::new().refuse(unknown), "buffer-no-query");
    }
}

#[test]
fn a_container_without_proc() {
    if Sandbox::is_possible() {
        cold(&Sandbox::new().no_proc(), "buffer-no-proc");
    }
}

#[test]
fn a_module_that_forbids_files_in_memory() {
    if Sandbox::is_possible() {
        cold(&Sandbox::new().refuse(Refusal::new(libc::SYS_memfd_create, Errno::PERM)), "buffer-denied");
    }
}

#[test]
fn a_module_that_forbids_to_put_shared_pages_in_the_place_of_others() {
    if Sandbox::is_possible() {
        let mask = (libc::MAP_TYPE | libc::MAP_FIXED | libc::MAP_POPULATE) as u64;
        let moves = (libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE) as u64;
        let forbidden = Refusal::new(libc::SYS_mmap, Errno::ACCESS).only(3, mask, moves);
        cold(&Sandbox::new().refuse(forbidden), "buffer-denied");
    }
}

#[test]
fn with_too_many_descriptors_under_way_large_messages_go_in_pieces_until_they_have_arrived() {
    let root = rustix::process::geteuid().is_root();
    let scratch = Scratch::shared().unwrap();
    let daemon = daemon(&scratch, "policy.attach = \"any-user\"\n");
    let [mut one, mut other] = ["one", "other"].map(|name| {
        let launch = daemon.beside(actor::program());
        // The kernel does not count for root.
        Actor::attached(if root { launch.owner(OWNER) } else { launch }, name, "")
    });
    let (out, back) = (["one", "other"], ["other", "one"]);
    assert_eq!(one.ask("crowd 200"), "crowd of 200");
    let limited = one.ask("limit-fds 32");
    let limit = limited.strip_prefix("limited to ").and_then(|limit| limit.parse::<u32>().ok());
    assert!(limit.is_some_and(|limit| limit < 100), "{limited}: not far below what is under way");
    stays(&mut one, &mut other, out, "fds-in-flight");
    // Another process of the same user may have more of them open, so it may have more of them under way.
    becomes(&mut other, &mut one, back, "none");
    assert_eq!(one.ask("crowd 0"), "crowd of 0");
    becomes(&mut one, &mut other, out, "none");
}
