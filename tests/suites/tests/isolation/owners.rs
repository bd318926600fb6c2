//! Domains of different owners: they cannot reach each other by default; where the policy lets them talk, a channel and nothing that stays.

use crate::process_view::{common, events, regions, sockets};
use crate::{EVERY_LENGTH, container, daemon_path_records, exchange, exchange_messages, is_root, report};
use isthmus_suites::{TIMEOUT_S, TestProgram, daemon, test_program};
use isthmus_testbed::{DaemonProcess, Deadline, Launch, Sandbox, Scratch, Yama, binary};
use std::path::PathBuf;

/// Uids that no users have.
const UID_A: u32 = 61_301;
const UID_B: u32 = 61_302;

const ANY_USER_ATTACHES: &str = "policy.attach = \"any-user\"\n";
const ANY_USER_TALKS: &str = "policy.attach = \"any-user\"\npolicy.talk = \"all\"\n";

/// A daemon, and two containers of two owners.
fn two(scratch: &Scratch, policy: &str) -> (DaemonProcess, TestProgram, TestProgram) {
    let daemon = daemon(scratch, policy);
    let [left, right] = [(UID_A, "left"), (UID_B, "right")]
        .map(|(owner, name)| TestProgram::launch_in_sandbox(&daemon, container().owner(owner), name));
    (daemon, left, right)
}

fn skipped() -> bool {
    !is_root() || !Sandbox::is_available()
}

#[test]
fn containers_of_different_owners_are_refused_by_default() {
    if skipped() {
        return;
    }
    let scratch = Scratch::shared().unwrap();
    let (daemon, mut left, mut right) = two(&scratch, ANY_USER_ATTACHES);
    for (from, to) in [(&mut left, "right"), (&mut right, "left")] {
        for len in [8, 4096, 1 << 20] {
            let posted = from.ask(&format!("send 0 {to}.e0 {len} 1"));
            let token = posted.strip_prefix("posted ").unwrap_or_else(|| panic!("{posted}")).to_owned();
            from.expect("wait 30000", &format!("failed {token} talk-forbidden"));
        }
        let why = report(from, "why left right");
        assert_eq!((&why["path"], &why["reason"]["reason"]), (&"none".into(), &"talk-forbidden".into()), "{why}");
    }
    // Nothing arrived, and nothing is shared.
    for actor in [&mut left, &mut right] {
        assert!(actor.ask("receive 0 64").starts_with("posted "));
        actor.expect("wait 0", "nothing");
    }
    assert_eq!(common(&left.view(), &right.view()), []);
    assert!(events(&left.view()).is_disjoint(&events(&right.view())));
    drop(daemon);
}

#[test]
fn allowed_owners_share_a_channel_but_no_granted_region() {
    if skipped() {
        return;
    }
    let scratch = Scratch::shared().unwrap();
    let (_daemon, mut left, mut right) = two(&scratch, ANY_USER_TALKS);
    let names = ["left", "right"];
    exchange_messages(&mut left, &mut right, names);
    // Each sees its own domain.
    let records = |left: &mut TestProgram, right: &mut TestProgram| {
        [daemon_path_records(left, names[0]), daemon_path_records(right, names[1])]
    };
    let before = records(&mut left, &mut right);
    exchange(&mut left, &mut right, names, EVERY_LENGTH, "window=4 buffers=fresh");
    exchange(&mut left, &mut right, names, "12x1048576", "window=1 buffers=reused");
    assert_eq!(before, records(&mut left, &mut right), "bytes went through the daemon");
    let why = report(&mut left, "why left right");
    assert_eq!((&why["path"], &why["large"]["reason"]), (&"channel".into(), &"different-owner".into()), "{why}");
    assert_eq!((&why["from_a"]["grants"], &why["from_b"]["grants"]), (&0.into(), &0.into()), "{why}");
    let pieces = left.ask("fragments");
    assert!(pieces.ends_with(" different-owner"), "{pieces}");

    let (left, right) = (left.view(), right.view());
    assert_eq!(
        (regions(&left), regions(&right)),
        ([].into(), [].into()),
        "no buffer was moved where a peer could see it"
    );
    let names: Vec<_> = common(&left, &right).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["isthmus"; 3], "the channel, and the board that each marks of the other's");
    assert!(events(&left).is_disjoint(&events(&right)), "an event descriptor's holder can make the others wait");
    assert!(sockets(&left) >= 3 && sockets(&right) >= 3, "the control socket, the own doorbell, the peer's");
}

#[test]
fn owner_keeps_its_direct_path_beside_other_owners() {
    if skipped() {
        return;
    }
    let scratch = Scratch::shared().unwrap();
    let (daemon, mut left, mut right) = two(&scratch, ANY_USER_TALKS);
    let mut second = TestProgram::launch_in_sandbox(&daemon, container().owner(UID_A), "second");
    exchange_messages(&mut left, &mut right, ["left", "right"]);
    exchange_messages(&mut left, &mut second, ["left", "second"]);
    exchange(&mut left, &mut second, ["left", "second"], "8x1048576", "window=1 buffers=reused");
    exchange(&mut left, &mut right, ["left", "right"], "8x1048576", "window=1 buffers=reused");
    let (left, right, second) = (left.view(), right.view(), second.view());
    assert!(!regions(&left).is_disjoint(&regions(&second)));
    assert_eq!(regions(&right), [].into());
    assert_eq!(common(&second, &right), []);
}

#[test]
fn other_user_is_refused_with_a_reason() {
    if skipped() {
        return;
    }
    let attach = |daemon: &DaemonProcess, owner: u32| {
        TestProgram::start(daemon.launch_in_sandbox(container().owner(owner), test_program::program()))
            .ask("attach name=guest")
    };
    let scratch = Scratch::shared().unwrap();
    let listed = daemon(&scratch, &format!("policy.attach = [{UID_A}]\n"));
    assert!(attach(&listed, UID_A).starts_with("attached "));
    let refused = attach(&listed, UID_B);
    assert!(refused.starts_with("refused ") && refused.contains("[attach-forbidden]"), "{refused}");
    drop(listed);
    let scratch = Scratch::shared().unwrap();
    let own = daemon(&scratch, "");
    let refused = attach(&own, UID_A);
    assert!(refused.starts_with("refused ") && refused.contains("[socket-denied]"), "{refused}");
}

#[test]
fn kernel_denies_reading_memory_of_other_owners_and_containers() {
    if skipped() {
        return;
    }
    let scratch = Scratch::shared().unwrap();
    let daemon = daemon(&scratch, ANY_USER_TALKS);
    let plain = |owner: u32, program: PathBuf| daemon.launch_on_host(program).owner(owner);
    let mut victim = TestProgram::start_attached(plain(UID_B, test_program::program()), "victim", "");
    let mut friend = TestProgram::start_attached(plain(UID_B, test_program::program()), "friend", "");
    exchange_messages(&mut victim, &mut friend, ["victim", "friend"]);
    exchange(&mut victim, &mut friend, ["victim", "friend"], "4x1048576", "window=1 buffers=reused");
    let maps = victim.view().maps().unwrap();
    let own = maps.iter().find(|mapping| mapping.name == "[heap]" && mapping.is_writable()).expect("a heap");
    let (pid, address) = (victim.view().pid().to_string(), format!("{:x}", own.start));
    let hostile = || binary("isthmus-suites", "isthmus-hostile").unwrap();
    let tries = |launch: Launch| {
        let mut peeker = launch.args(["peek", pid.as_str(), address.as_str()]).spawn().unwrap();
        let read = peeker.wait_prefix("process_vm_readv ", Deadline::secs(TIMEOUT_S)).unwrap();
        [read, peeker.wait_prefix("mem ", Deadline::secs(TIMEOUT_S)).unwrap()]
    };
    assert_eq!(tries(plain(UID_A, hostile())), ["EPERM", "PermissionDenied"]);
    let [read, mem] = tries(daemon.launch_in_sandbox(container().owner(UID_B), hostile()));
    assert_eq!((read.as_str(), mem.as_str()), ("EPERM", "NotFound"), "of its own user, from inside a container");
    if matches!(Sandbox::yama(), Yama::Absent | Yama::Scope(0)) {
        assert_eq!(tries(plain(UID_B, hostile()))[0], "READ 64", "or this test shows nothing");
    }
}
