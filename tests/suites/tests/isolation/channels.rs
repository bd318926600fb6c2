//! Domains of one owner: in containers, beside them, three at once.

use crate::process_view::{common, events, only_reads, regions};
use crate::{EVERY_LENGTH, container, daemon_path_records, exchange, exchange_messages, launch_in_sandbox, report};
use isthmus_suites::{TestProgram, daemon};
use isthmus_testbed::{DaemonProcess, Sandbox, Scratch};

/// Exchanges messages of every length between two programs that have met. No byte goes by the daemon, and each large buffer that is used
/// again goes by a mapping of its pages.
fn exchange_and_check(one: &mut TestProgram, other: &mut TestProgram, names: [&str; 2]) {
    exchange_messages(one, other, names);
    let before = [names[0], names[1]].map(|name| daemon_path_records(one, name));
    exchange(one, other, names, EVERY_LENGTH, "window=4 buffers=fresh");
    exchange(one, other, names, "48x1048576", "window=1 buffers=reused");
    exchange(one, other, names, "100003,8x262147,4194305,3x4194305", "window=2 buffers=reused");
    let after = [names[0], names[1]].map(|name| daemon_path_records(one, name));
    assert_eq!(before, after, "bytes went through the daemon");
    let why = report(one, &format!("why {} {}", names[0], names[1]));
    assert_eq!((&why["path"], &why["reason"], &why["large"]), (&"channel".into(), &().into(), &().into()), "{why}");
}

/// Each has pages of the other mapped, for reading.
#[track_caller]
fn check_mapped_pages(one: &TestProgram, other: &TestProgram) {
    let (one, other) = (one.view(), other.view());
    let shared: Vec<u64> = regions(&one).intersection(&regions(&other)).copied().collect();
    for (reader, owner) in [(&one, &other), (&other, &one)] {
        let read = shared.iter().filter(|&&inode| only_reads(reader, inode) && !only_reads(owner, inode)).count();
        assert!(read > 0, "none of {shared:?} is its owner's, and mapped by the other one for reading");
    }
}

fn open_daemon(scratch: &Scratch) -> DaemonProcess {
    daemon(scratch, "")
}

#[test]
fn two_containers_sharing_only_the_socket_use_a_channel() {
    if !Sandbox::is_available() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let daemon = open_daemon(&scratch);
    let names = ["left", "right"];
    let [mut left, mut right] = launch_in_sandbox(&daemon, names);
    let [spaces, others] = [&left, &right].map(|actor| actor.view().namespaces().unwrap());
    for space in ["pid", "ipc", "user", "mnt", "net", "uts", "cgroup"] {
        assert_ne!(spaces[space], others[space], "the {space} namespace is shared");
    }
    exchange_and_check(&mut left, &mut right, names);
    check_mapped_pages(&left, &right);
    assert!(!events(&left.view()).is_disjoint(&events(&right.view())), "domains of one owner ring event descriptors");
}

#[test]
fn a_container_and_a_plain_process_talk_by_channel_and_mapped_pages() {
    if !Sandbox::is_available() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let daemon = open_daemon(&scratch);
    let names = ["inside", "outside"];
    let (mut inside, mut outside) = (
        TestProgram::launch_in_sandbox(&daemon, container(), names[0]),
        TestProgram::launch_on_host(&daemon, names[1]),
    );
    exchange_and_check(&mut inside, &mut outside, names);
    check_mapped_pages(&inside, &outside);
}

#[test]
fn three_domains_exchange_messages_across_containers() {
    if !Sandbox::is_available() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let daemon = open_daemon(&scratch);
    let [mut one, mut two] = launch_in_sandbox(&daemon, ["one", "two"]);
    let mut three = TestProgram::launch_on_host(&daemon, "three");
    // All have met before any messages are exchanged: the messages of two of them disturb no third one's path.
    exchange_messages(&mut one, &mut two, ["one", "two"]);
    exchange_messages(&mut two, &mut three, ["two", "three"]);
    exchange_messages(&mut three, &mut one, ["three", "one"]);
    for _ in 0..2 {
        exchange_and_check(&mut one, &mut two, ["one", "two"]);
        check_mapped_pages(&one, &two);
        exchange_and_check(&mut two, &mut three, ["two", "three"]);
        check_mapped_pages(&two, &three);
        exchange_and_check(&mut three, &mut one, ["three", "one"]);
        check_mapped_pages(&three, &one);
    }
}

#[test]
fn region_is_mapped_only_by_its_grantee() {
    if !Sandbox::is_available() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let daemon = open_daemon(&scratch);
    let [mut owner, mut reader, mut other] = launch_in_sandbox(&daemon, ["owner", "reader", "stranger"]);
    exchange_messages(&mut owner, &mut reader, ["owner", "reader"]);
    exchange_messages(&mut owner, &mut other, ["owner", "stranger"]);
    exchange(&mut owner, &mut reader, ["owner", "reader"], "6x1048576", "window=1 buffers=reused");
    let (owner, reader, other) = (owner.view(), reader.view(), other.view());
    assert!(!regions(&owner).is_disjoint(&regions(&reader)), "or this test shows nothing");
    assert_eq!(regions(&other), [].into());
    // A channel's memory, and the board of each.
    let names: Vec<_> = common(&owner, &other).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["isthmus"; 4], "own boards, the daemon's board, the channel");
    // The daemon passes regions on and keeps none.
    assert_eq!(regions(&daemon.view().unwrap()), [].into());
}
