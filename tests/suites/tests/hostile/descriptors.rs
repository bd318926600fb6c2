//! Attacks by file descriptors.

use crate::attack_bed::{AttackBed, OTHER_UID};

#[test]
fn descriptors_of_the_wrong_kind_are_refused() {
    let mut attack_bed = AttackBed::new("");
    let facts = attack_bed.run_attack(&["wrong-descriptors", "alice"]);
    let taken: Vec<_> = facts.iter().filter(|fact| fact.ends_with(": TAKEN")).collect();
    // A doorbell that is an event descriptor is a doorbell; sealed memory that no process can write can be read.
    let harmless = [
        "an event as a doorbell: TAKEN",
        "memory without write permission as a region: TAKEN",
        "memory without write permission as a channel: TAKEN",
    ];
    assert_eq!(taken, harmless, "{facts:#?}");
    let told =
        |part: &str, reason: &str| facts.iter().filter(|fact| fact.contains(part) && fact.ends_with(reason)).count();
    assert_eq!(told("as a region", "region-not-sealed"), 10, "{facts:#?}");
    assert_eq!(told("as a board", "region-not-sealed"), 10, "{facts:#?}");
    assert_eq!(told("as a doorbell", "doorbell-invalid"), 11, "{facts:#?}");
    assert_eq!(told("too many", "malformed-control"), 3, "{facts:#?}");
    attack_bed.finish();
}

#[test]
fn slow_closing_descriptors_do_not_block() {
    let mut attack_bed = AttackBed::new("");
    attack_bed.run_attack(&["slow-close"]);
    attack_bed.run_attack(&["slow-close"]);
    attack_bed.finish();
}

#[test]
fn unsealed_grants_are_refused() {
    let mut attack_bed = AttackBed::new("");
    let facts = attack_bed.run_attack(&["grants", "alice"]);
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
    attack_bed.finish();
}

#[test]
fn grants_between_owners_are_refused() {
    let Some(mut attack_bed) = AttackBed::with_users() else { return };
    let facts = attack_bed.run_attack_as(Some(OTHER_UID), &["grants", "alice"]);
    let answers: Vec<_> = facts.iter().filter_map(|fact| fact.split_once(": ")).collect();
    assert!(answers.len() == 9 && answers.iter().all(|(_, answer)| *answer == "different-owner"), "{facts:#?}");
    attack_bed.finish();
}

#[test]
fn shared_memory_is_sealed_against_resizing() {
    // Of another owner: a domain may erase the marks on the boards of its own owner's.
    let Some(mut attack_bed) = AttackBed::with_users() else { return };
    let facts = attack_bed.run_attack_as(Some(OTHER_UID), &["resize-memory", "alice"]);
    for part in [" shrinks: ", " grows: ", " is sealed: "] {
        let answers: Vec<_> = facts.iter().filter_map(|fact| Some(fact.split_once(part)?.1)).collect();
        assert_eq!(answers, ["EPERM"; 5], "{part}");
    }
    attack_bed.finish();
}
