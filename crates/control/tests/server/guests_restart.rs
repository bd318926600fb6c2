//! Guests whose host's daemon is started again, and daemons that hang.

use std::sync::atomic::Ordering;

use isthmus_control::schema::Doctor;
use isthmus_layout::border::{ANSWER_WORD, CALL_WORD, GUEST_BEAT_WORD, HOST_BEAT_WORD, SILENT_AFTER_MS};
use isthmus_layout::control::*;
use isthmus_shm::Words as _;

use crate::bed::{Bed, name};
use crate::guest::{Guest, configured, row, until_domains, until_row};

fn unkept(bed: &Bed) -> u32 {
    bed.greeted().report::<Doctor>(Topic::Doctor, &[]).unwrap().guests_unkept.unwrap()
}

#[test]
fn a_guest_keeps_its_device_when_its_hosts_daemon_is_started_again() {
    let config = configured("web", 32, 4);
    let mut bed = Bed::kept_with(&config);
    let mut guest = Guest::start(&bed);
    bed.until_kept(2);
    assert_eq!(unkept(&bed), 0);
    let (mut before, _) = guest.attach(1, "solver").unwrap();
    guest.open_mx(5);
    for round in 1..=3 {
        bed.stop();
        bed.start_kept(&config);
        // What was said with the daemon before is over, and the guest's daemon hears it.
        guest.wait_for(|memory| memory.load(ANSWER_WORD, Ordering::Acquire) == 0);
        let found = row(&bed, "web");
        assert_eq!(
            (found.state.as_deref(), found.kept, found.domains),
            (Some("device"), Some(true), 0),
            "round {round}"
        );
        guest.call();
        let (after, _) = guest.attach(1, "solver").unwrap();
        assert!(after.domain.number() > before.domain.number());
        // What it was reached by is kept for nobody else.
        guest.open_mx(5);
        before = after;
        assert_eq!(row(&bed, "web").state.as_deref(), Some("there"));
    }
    // Its end is the end of what was kept.
    drop(guest);
    until_domains(&bed, 0);
    bed.until_kept(0);
    bed.stop();
    bed.start_kept(&config);
    assert_eq!(row(&bed, "web").state.as_deref(), Some("absent"));
    Guest::start(&bed).attach(1, "solver").unwrap();
}

#[test]
fn a_call_that_nobody_has_answered_is_answered_by_the_next_daemon() {
    let config = configured("web", 32, 4);
    let mut bed = Bed::kept_with(&config);
    let guest = Guest::start(&bed);
    bed.until_kept(2);
    bed.stop();
    // The guest's daemon was started again meanwhile.
    guest.memory.store(CALL_WORD, 4711, Ordering::Release);
    bed.start_kept(&config);
    guest.ring();
    guest.wait_for(|memory| memory.load(ANSWER_WORD, Ordering::Acquire) == 4711);
}

#[test]
fn a_guest_that_ends_while_no_daemon_is_there_is_gone() {
    let config = configured("web", 32, 4);
    let mut bed = Bed::kept_with(&config);
    let mut guest = Guest::start(&bed);
    guest.attach(1, "solver").unwrap();
    bed.until_kept(2);
    bed.stop();
    drop(guest);
    bed.start_kept(&config);
    until_row(&bed, "web", |row| row.state.as_deref() == Some("absent"));
    bed.until_kept(0);
    Guest::start(&bed).attach(1, "solver").unwrap();
}

#[test]
fn what_was_kept_of_a_guest_that_is_none_any_more_is_let_go() {
    let mut bed = Bed::kept_with(&configured("web", 32, 4));
    let _guest = Guest::start(&bed);
    bed.until_kept(2);
    bed.stop();
    bed.start_kept(&configured("db", 32, 4));
    bed.until_kept(0);
}

#[test]
fn without_a_keeper_that_is_said() {
    let bed = Bed::with(&configured("web", 32, 4));
    assert_eq!(unkept(&bed), 0);
    let _guest = Guest::start(&bed);
    assert_eq!((row(&bed, "web").kept, unkept(&bed)), (Some(false), 1));
}

#[test]
fn a_guests_daemon_that_hangs_is_told_apart_and_nothing_of_its_ends() {
    let bed = Bed::with(&configured("web", 32, 4));
    let mut guest = Guest::plug_in(&bed);
    guest.wait_for(|memory| memory.load(HOST_BEAT_WORD, Ordering::Relaxed) != 0);
    // It beats once, calls, and then never again.
    guest.memory.store(GUEST_BEAT_WORD, 1, Ordering::Relaxed);
    guest.call();
    let (mut local, _) = bed.attached("local");
    let (welcome, _) = guest.attach(1, "solver").unwrap();
    let found = local.ask(Lookup { name: name("solver") }, &[]).unwrap().message;
    assert!(matches!(found, ToClient::Found(Found { domain, .. }) if domain == welcome.domain), "{found:?}");
    let found = until_row(&bed, "web", |row| row.state.as_deref() == Some("silent"));
    assert!(
        found.heard_s >= Some(u64::from(SILENT_AFTER_MS / 1000)) && found.domains == 1 && found.daemon,
        "{found:?}"
    );
    local.hears_nothing();
    // It comes back, and is the same.
    guest.memory.store(GUEST_BEAT_WORD, 2, Ordering::Relaxed);
    until_row(&bed, "web", |row| row.state.as_deref() == Some("there"));
    guest.say(1, Lookup { name: name("local") });
    assert!(matches!(guest.hear(1).0, ToClient::Found(_)));
}

#[test]
fn a_guests_daemon_that_does_not_beat_is_not_expected_to() {
    let bed = Bed::with(&configured("web", 32, 4));
    let guest = Guest::start(&bed);
    // The host has looked several times.
    let begun = guest.memory.load(HOST_BEAT_WORD, Ordering::Relaxed);
    guest.wait_for(|memory| memory.load(HOST_BEAT_WORD, Ordering::Relaxed) > begun + SILENT_AFTER_MS / 1000 + 1);
    let found = row(&bed, "web");
    assert_eq!((found.state.as_deref(), found.heard_s), (Some("there"), None));
}
