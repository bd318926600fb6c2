//! Programs of different owners: a peer that knows addresses and keys reaches what policy and the rights of the regions allow, by packets.

use isthmus_testbed::{Exit, Proc, View};
use isthmus_verbs_tests::{Stage, programs, timeout};

/// A uid that no user has.
const OTHER_USER: u32 = 61_303;

/// The name of the file of an arena.
const ARENA: &str = "isthmus-registered";

const ANY_USER_ATTACHES: &str = "[policy]\nattach = \"any-user\"\n";
const ANY_USER_TALKS: &str = "[policy]\nattach = \"any-user\"\ntalk = \"all\"\n";

/// The memory files of an arena that two processes have mapped.
fn shared_arenas(one: &View, other: &View) -> usize {
    let arenas = |view: &View| -> Vec<u64> {
        let maps = view.maps().unwrap().into_iter();
        maps.filter(|map| map.memfd() == Some(ARENA)).map(|map| map.inode).collect()
    };
    let of_other = arenas(other);
    arenas(one).iter().filter(|inode| of_other.contains(inode)).count()
}

fn line(proc: &mut Proc) -> String {
    proc.line(timeout()).unwrap_or_else(|error| panic!("{error}\n{}", proc.stderr()))
}

#[track_caller]
fn end(mut proc: Proc) {
    proc.close_stdin();
    let finished = proc.finish(timeout()).unwrap();
    assert!(
        finished.exit == Exit::Code(0) && finished.lines.last().is_some_and(|line| line == "done"),
        "{finished:#?}"
    );
}

/// Runs another process against a victim. Returns whether it has mapped the victim's arena.
#[track_caller]
fn run(policy: &str, owner: Option<u32>, outcome: &str) -> Option<bool> {
    programs()?;
    let stage = Stage::with_config(policy)?;
    let mut victim = stage.launch(stage.server(), "/programs/victim", &["quiet"], &[]).with_stdin().spawn().unwrap();
    let known = line(&mut victim);
    let known: Vec<&str> = known.split_whitespace().collect();
    let words = [&known[..], &[outcome]].concat();
    let launch = stage.launch_as(owner, stage.client(), "/programs/other_user", &words, &[]);
    let mut other = launch.with_stdin().spawn().unwrap();
    let number = line(&mut other);
    victim.send_line(&number).unwrap();
    victim.wait_line("ready", timeout()).unwrap();
    other.send_line("").unwrap();
    let over = line(&mut other);
    assert_eq!(over, "over");
    let shared = shared_arenas(&victim.view().unwrap(), &other.view().unwrap());
    end(other);
    end(victim);
    Some(shared > 0)
}

#[test]
fn other_owner_reaches_nothing() {
    assert_ne!(run(ANY_USER_ATTACHES, Some(OTHER_USER), "forbidden"), Some(true), "the arena is mapped");
}

#[test]
fn other_owner_that_may_talk_has_the_rights_of_the_regions_and_no_arena() {
    assert_ne!(run(ANY_USER_TALKS, Some(OTHER_USER), "allowed"), Some(true), "the arena is mapped");
}

/// The tests above would see an arena like this one.
#[test]
fn same_owner_has_the_rights_of_the_regions_and_the_arena() {
    assert_ne!(run("", None, "allowed"), Some(false), "the arena is not mapped");
}
