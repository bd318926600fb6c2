//! Domains of different owners: strangers by default; where the policy lets them talk, a channel and nothing that stays.

use crate::seen::{common, events, regions, sockets};
use crate::{EVERY_LENGTH, exchange, is_root, meet, ordinary_records, report, twin};
use isthmus_suites::{Actor, PATIENCE, actor, daemon};
use isthmus_testbed::{Daemon, Deadline, Launch, Sandbox, Scratch, Yama, binary};
use std::path::PathBuf;

/// Uids that are nobody's.
const LEFT: u32 = 61_301;
const RIGHT: u32 = 61_302;

const STRANGERS: &str = "policy.attach = \"any-user\"\n";
const TALKING: &str = "policy.attach = \"any-user\"\npolicy.talk = \"all\"\n";

/// A daemon, and two containers of two owners.
fn two(scratch: &Scratch, policy: &str) -> (Daemon, Actor, Actor) {
    let daemon = daemon(scratch, policy);
    let [left, right] =
        [(LEFT, "left"), (RIGHT, "right")].map(|(owner, name)| Actor::apart(&daemon, twin().owner(owner), name));
    (daemon, left, right)
}

fn skipped() -> bool {
    !is_root() || !Sandbox::is_possible()
}

#[test]
fn by_default_containers_of_two_owners_do_not_reach_each_other_and_hear_why() {
    if skipped() {
        return;
    }
    let scratch = Scratch::shared().unwrap();
    let (daemon, mut left, mut right) = two(&scratch, STRANGERS);
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
fn owners_that_may_talk_share_a_channel_and_nothing_that_stays() {
    if skipped() {
        return;
    }
    let scratch = Scratch::shared().unwrap();
    let (_daemon, mut left, mut right) = two(&scratch, TALKING);
    let names = ["left", "right"];
    meet(&mut left, &mut right, names);
    let before = names.map(|name| ordinary_records(&mut left, name));
    exchange(&mut left, &mut right, names, EVERY_LENGTH, "window=4 buffers=fresh");
    exchange(&mut left, &mut right, names, "12x1048576", "window=1 buffers=reused");
    assert_eq!(before, names.map(|name| ordinary_records(&mut left, name)), "bytes went through the daemon");
    let why = report(&mut left, "why left right");
    assert_eq!((&why["path"], &why["large"]["reason"]), (&"channel".into(), &"other-owner".into()), "{why}");
    assert_eq!((&why["from_a"]["grants"], &why["from_b"]["grants"]), (&0.into(), &0.into()), "{why}");
    let pieces = left.ask("pieces");
    assert!(pieces.ends_with(" other-owner"), "{pieces}");

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
fn one_owner_keeps_its_fast_path_beside_domains_of_another() {
    if skipped() {
        return;
    }
    let scratch = Scratch::shared().unwrap();
    let (daemon, mut left, mut right) = two(&scratch, TALKING);
    let mut second = Actor::apart(&daemon, twin().owner(LEFT), "second");
    meet(&mut left, &mut right, ["left", "right"]);
    meet(&mut left, &mut second, ["left", "second"]);
    exchange(&mut left, &mut second, ["left", "second"], "8x1048576", "window=1 buffers=reused");
    exchange(&mut left, &mut right, ["left", "right"], "8x1048576", "window=1 buffers=reused");
    let (left, right, second) = (left.view(), right.view(), second.view());
    assert!(!regions(&left).is_disjoint(&regions(&second)));
    assert_eq!(regions(&right), [].into());
    assert_eq!(common(&second, &right), []);
}

#[test]
fn a_foreign_user_is_not_attached_and_hears_why() {
    if skipped() {
        return;
    }
    let attach = |daemon: &Daemon, owner: u32| {
        Actor::start(daemon.apart(twin().owner(owner), actor::program())).ask("attach name=guest")
    };
    let scratch = Scratch::shared().unwrap();
    let listed = daemon(&scratch, &format!("policy.attach = [{LEFT}]\n"));
    assert!(attach(&listed, LEFT).starts_with("attached "));
    let refused = attach(&listed, RIGHT);
    assert!(refused.starts_with("refused ") && refused.contains("[attach-forbidden]"), "{refused}");
    drop(listed);
    let scratch = Scratch::shared().unwrap();
    let own = daemon(&scratch, "");
    let refused = attach(&own, LEFT);
    assert!(refused.starts_with("refused ") && refused.contains("[socket-denied]"), "{refused}");
}

#[test]
fn the_kernel_does_not_let_one_owner_read_the_memory_of_another_nor_a_container_of_anybody() {
    if skipped() {
        return;
    }
    let scratch = Scratch::shared().unwrap();
    let daemon = daemon(&scratch, TALKING);
    let plain = |owner: u32, program: PathBuf| daemon.beside(program).owner(owner);
    let mut victim = Actor::attached(plain(RIGHT, actor::program()), "victim", "");
    let mut friend = Actor::attached(plain(RIGHT, actor::program()), "friend", "");
    meet(&mut victim, &mut friend, ["victim", "friend"]);
    exchange(&mut victim, &mut friend, ["victim", "friend"], "4x1048576", "window=1 buffers=reused");
    let maps = victim.view().maps().unwrap();
    let own = maps.iter().find(|mapping| mapping.name == "[heap]" && mapping.is_writable()).expect("a heap");
    let (pid, address) = (victim.view().pid().to_string(), format!("{:x}", own.start));
    let hostile = || binary("isthmus-suites", "isthmus-hostile").unwrap();
    let tries = |launch: Launch| {
        let mut peeker = launch.args(["peek", pid.as_str(), address.as_str()]).spawn().unwrap();
        let read = peeker.wait_prefix("process_vm_readv ", Deadline::secs(PATIENCE)).unwrap();
        [read, peeker.wait_prefix("mem ", Deadline::secs(PATIENCE)).unwrap()]
    };
    assert_eq!(tries(plain(LEFT, hostile())), ["EPERM", "PermissionDenied"]);
    let [read, mem] = tries(daemon.apart(twin().owner(RIGHT), hostile()));
    assert_eq!((read.as_str(), mem.as_str()), ("EPERM", "NotFound"), "of its own user, from inside a container");
    if matches!(Sandbox::yama(), Yama::Absent | Yama::Scope(0)) {
        assert_eq!(tries(plain(RIGHT, hostile()))[0], "READ 64", "or this test shows nothing");
    }
}
