//! Domains of one owner: in containers, beside them, three at once.

use crate::seen::{common, events, only_reads, regions};
use crate::{EVERY_LENGTH, apart, exchange, meet, ordinary_records, report, twin};
use isthmus_suites::{Actor, daemon};
use isthmus_testbed::{Daemon, Sandbox, Scratch};

/// What a message of every length goes through between two that have met: no byte by the daemon, each large buffer that is used
/// again by a mapping of its pages.
fn talk(one: &mut Actor, other: &mut Actor, names: [&str; 2]) {
    meet(one, other, names);
    let before = [names[0], names[1]].map(|name| ordinary_records(one, name));
    exchange(one, other, names, EVERY_LENGTH, "window=4 buffers=fresh");
    exchange(one, other, names, "48x1048576", "window=1 buffers=reused");
    exchange(one, other, names, "100003,8x262147,4194305,3x4194305", "window=2 buffers=reused");
    let after = [names[0], names[1]].map(|name| ordinary_records(one, name));
    assert_eq!(before, after, "bytes went through the daemon");
    let why = report(one, &format!("why {} {}", names[0], names[1]));
    assert_eq!((&why["path"], &why["reason"], &why["large"]), (&"channel".into(), &().into(), &().into()), "{why}");
}

/// Each has pages of the other mapped, for reading.
#[track_caller]
fn read_each_others_pages(one: &Actor, other: &Actor) {
    let (one, other) = (one.view(), other.view());
    let shared: Vec<u64> = regions(&one).intersection(&regions(&other)).copied().collect();
    for (reader, owner) in [(&one, &other), (&other, &one)] {
        let read = shared.iter().filter(|&&inode| only_reads(reader, inode) && !only_reads(owner, inode)).count();
        assert!(read > 0, "none of {shared:?} is its owner's, and mapped by the other one for reading");
    }
}

fn bed(scratch: &Scratch) -> Daemon {
    daemon(scratch, "")
}

#[test]
fn two_containers_with_nothing_in_common_but_the_socket_talk_by_channel_and_mapped_pages() {
    if !Sandbox::is_possible() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let daemon = bed(&scratch);
    let names = ["left", "right"];
    let [mut left, mut right] = apart(&daemon, names);
    let [spaces, others] = [&left, &right].map(|actor| actor.view().namespaces().unwrap());
    for space in ["pid", "ipc", "user", "mnt", "net", "uts", "cgroup"] {
        assert_ne!(spaces[space], others[space], "the {space} namespace is shared");
    }
    talk(&mut left, &mut right, names);
    read_each_others_pages(&left, &right);
    assert!(!events(&left.view()).is_disjoint(&events(&right.view())), "domains of one owner ring event descriptors");
}

#[test]
fn a_container_and_a_plain_process_talk_by_channel_and_mapped_pages() {
    if !Sandbox::is_possible() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let daemon = bed(&scratch);
    let names = ["inside", "outside"];
    let (mut inside, mut outside) = (Actor::apart(&daemon, twin(), names[0]), Actor::beside(&daemon, names[1]));
    talk(&mut inside, &mut outside, names);
    read_each_others_pages(&inside, &outside);
}

#[test]
fn three_talk_with_one_another_wherever_they_are() {
    if !Sandbox::is_possible() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let daemon = bed(&scratch);
    let [mut one, mut two] = apart(&daemon, ["one", "two"]);
    let mut three = Actor::beside(&daemon, "three");
    // All have met before anybody talks: what two of them say to each other disturbs no third one's path.
    meet(&mut one, &mut two, ["one", "two"]);
    meet(&mut two, &mut three, ["two", "three"]);
    meet(&mut three, &mut one, ["three", "one"]);
    for _ in 0..2 {
        talk(&mut one, &mut two, ["one", "two"]);
        read_each_others_pages(&one, &two);
        talk(&mut two, &mut three, ["two", "three"]);
        read_each_others_pages(&two, &three);
        talk(&mut three, &mut one, ["three", "one"]);
        read_each_others_pages(&three, &one);
    }
}

#[test]
fn a_region_is_seen_by_whom_it_was_granted_to_and_by_nobody_else() {
    if !Sandbox::is_possible() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let daemon = bed(&scratch);
    let [mut owner, mut reader, mut stranger] = apart(&daemon, ["owner", "reader", "stranger"]);
    meet(&mut owner, &mut reader, ["owner", "reader"]);
    meet(&mut owner, &mut stranger, ["owner", "stranger"]);
    exchange(&mut owner, &mut reader, ["owner", "reader"], "6x1048576", "window=1 buffers=reused");
    let (owner, reader, stranger) = (owner.view(), reader.view(), stranger.view());
    assert!(!regions(&owner).is_disjoint(&regions(&reader)), "or this test shows nothing");
    assert_eq!(regions(&stranger), [].into());
    // A channel's memory, and the board of each.
    let names: Vec<_> = common(&owner, &stranger).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["isthmus"; 4], "own boards, the daemon's board, the channel");
    // The daemon passes regions on and keeps none.
    assert_eq!(regions(&daemon.view().unwrap()), [].into());
}
