//! What comes as a file descriptor.

use crate::siege::{STRANGER, Siege};

#[test]
fn descriptors_of_the_wrong_kind_are_refused() {
    let mut siege = Siege::new("");
    let facts = siege.suffers(&["descriptors", "alice"]);
    let taken: Vec<_> = facts.iter().filter(|fact| fact.ends_with(": TAKEN")).collect();
    // A doorbell that is an event descriptor is a doorbell; sealed memory that nobody can write can be read.
    let harmless = [
        "an event as a doorbell: TAKEN",
        "memory that nobody can write as a region: TAKEN",
        "memory that nobody can write as a channel: TAKEN",
    ];
    assert_eq!(taken, harmless, "{facts:#?}");
    let told =
        |part: &str, reason: &str| facts.iter().filter(|fact| fact.contains(part) && fact.ends_with(reason)).count();
    assert_eq!(told("as a region", "region-not-sealed"), 10, "{facts:#?}");
    assert_eq!(told("as a board", "region-not-sealed"), 10, "{facts:#?}");
    assert_eq!(told("as a doorbell", "doorbell-invalid"), 11, "{facts:#?}");
    assert_eq!(told("too many", "malformed-control"), 3, "{facts:#?}");
    siege.ends();
}

#[test]
fn descriptors_that_take_for_ever_to_close_hang_nobody() {
    let mut siege = Siege::new("");
    siege.suffers(&["linger"]);
    siege.suffers(&["linger"]);
    siege.ends();
}

#[test]
fn grants_that_could_be_taken_back_from_under_a_reader_are_refused() {
    let mut siege = Siege::new("");
    let facts = siege.suffers(&["grants", "alice"]);
    let passed: Vec<_> = facts.iter().filter(|fact| fact.ends_with("passed on")).map(String::as_str).collect();
    // What the daemon passes on, the library looks at once more: holes and write access it does not take.
    assert_eq!(passed.first(), Some(&"whole: passed on"), "{facts:#?}");
    for (what, reason) in [
        ("larger than it is", "region-too-small"),
        ("beyond its end", "region-too-small"),
        ("beyond all ends", "region-too-small"),
        ("without seals", "region-not-sealed"),
    ] {
        assert!(facts.contains(&format!("{what}: {reason}")), "{facts:#?}");
    }
    siege.ends();
}

#[test]
fn between_owners_nothing_can_be_granted() {
    let Some(mut siege) = Siege::of_users() else { return };
    let facts = siege.suffers_from(Some(STRANGER), &["grants", "alice"]);
    let answers: Vec<_> = facts.iter().filter_map(|fact| fact.split_once(": ")).collect();
    assert!(answers.len() == 9 && answers.iter().all(|(_, answer)| *answer == "other-owner"), "{facts:#?}");
    siege.ends();
}

#[test]
fn shared_memory_cannot_be_taken_away() {
    // Of another owner: a domain may erase the marks on the boards of its own owner's.
    let Some(mut siege) = Siege::of_users() else { return };
    let facts = siege.suffers_from(Some(STRANGER), &["shrink", "alice"]);
    for part in [" shrinks: ", " grows: ", " is sealed: "] {
        let answers: Vec<_> = facts.iter().filter_map(|fact| Some(fact.split_once(part)?.1)).collect();
        assert_eq!(answers, ["EPERM"; 5], "{part}");
    }
    siege.ends();
}
