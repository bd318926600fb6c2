//! Guests when the host daemon restarts, and daemons that hang.

use std::sync::atomic::Ordering;

use isthmus_layout::control::*;
use isthmus_layout::proxy::{
    GUEST_HEARTBEAT_WORD, HEARTBEAT_TIMEOUT_MS, HOST_HEARTBEAT_WORD, SESSION_REPLY_WORD, SESSION_REQUEST_WORD,
};
use isthmus_report::Doctor;
use isthmus_shm::Words as _;

use crate::guest::{Guest, configured, row, until_domains, until_row};
use crate::testbed::{Testbed, name};

fn guests_losing_device(bed: &Testbed) -> u32 {
    bed.greeted().report::<Doctor>(Topic::Doctor, &[]).unwrap().guests_losing_device.unwrap()
}

#[test]
fn a_guest_keeps_its_device_when_its_hosts_daemon_is_started_again() {
    let config = configured("web", 32, 4);
    let mut bed = Testbed::with_fd_store(&config);
    let mut guest = Guest::start(&bed);
    bed.wait_until_stored(2);
    assert_eq!(guests_losing_device(&bed), 0);
    let (mut before, _) = guest.attach(1, "solver").unwrap();
    guest.open_mx(5);
    for round in 1..=3 {
        bed.stop();
        bed.restart_with_stored(&config);
        // The session with the previous host daemon is over, and the guest daemon is notified.
        guest.wait_for(|memory| memory.load(SESSION_REPLY_WORD, Ordering::Acquire) == 0);
        let found = row(&bed, "web");
        assert_eq!(
            (found.state.as_deref(), found.keeps_device, found.domains),
            (Some("waiting for guest daemon"), Some(true), 0),
            "round {round}"
        );
        guest.call();
        let (after, _) = guest.attach(1, "solver").unwrap();
        assert!(after.domain.number() > before.domain.number());
        // The endpoint number is free again.
        guest.open_mx(5);
        before = after;
        assert_eq!(row(&bed, "web").state.as_deref(), Some("attached"));
    }
    // When the guest ends, its stored descriptors are removed.
    drop(guest);
    until_domains(&bed, 0);
    bed.wait_until_stored(0);
    bed.stop();
    bed.restart_with_stored(&config);
    assert_eq!(row(&bed, "web").state.as_deref(), Some("no device"));
    Guest::start(&bed).attach(1, "solver").unwrap();
}

#[test]
fn next_daemon_answers_a_pending_session_request() {
    let config = configured("web", 32, 4);
    let mut bed = Testbed::with_fd_store(&config);
    let guest = Guest::start(&bed);
    bed.wait_until_stored(2);
    bed.stop();
    // The guest daemon has restarted in the meantime.
    guest.memory.store(SESSION_REQUEST_WORD, 4711, Ordering::Release);
    bed.restart_with_stored(&config);
    guest.ring();
    guest.wait_for(|memory| memory.load(SESSION_REPLY_WORD, Ordering::Acquire) == 4711);
}

#[test]
fn a_guest_that_ends_while_no_daemon_is_there_is_gone() {
    let config = configured("web", 32, 4);
    let mut bed = Testbed::with_fd_store(&config);
    let mut guest = Guest::start(&bed);
    guest.attach(1, "solver").unwrap();
    bed.wait_until_stored(2);
    bed.stop();
    drop(guest);
    bed.restart_with_stored(&config);
    until_row(&bed, "web", |row| row.state.as_deref() == Some("no device"));
    bed.wait_until_stored(0);
    Guest::start(&bed).attach(1, "solver").unwrap();
}

#[test]
fn removes_stored_fds_of_unconfigured_guests() {
    let mut bed = Testbed::with_fd_store(&configured("web", 32, 4));
    let _guest = Guest::start(&bed);
    bed.wait_until_stored(2);
    bed.stop();
    bed.restart_with_stored(&configured("db", 32, 4));
    bed.wait_until_stored(0);
}

#[test]
fn reports_guests_that_are_not_stored_without_an_fd_store() {
    let bed = Testbed::with(&configured("web", 32, 4));
    assert_eq!(guests_losing_device(&bed), 0);
    let _guest = Guest::start(&bed);
    assert_eq!((row(&bed, "web").keeps_device, guests_losing_device(&bed)), (Some(false), 1));
}

#[test]
fn reports_a_hanging_guest_daemon_without_ending_it() {
    let bed = Testbed::with(&configured("web", 32, 4));
    let mut guest = Guest::plug_in(&bed);
    guest.wait_for(|memory| memory.load(HOST_HEARTBEAT_WORD, Ordering::Relaxed) != 0);
    // The guest daemon sends one heartbeat and a session request, and then hangs.
    guest.memory.store(GUEST_HEARTBEAT_WORD, 1, Ordering::Relaxed);
    guest.call();
    let (mut local, _) = bed.attached("local");
    let (welcome, _) = guest.attach(1, "solver").unwrap();
    let found = local.request(Lookup { name: name("solver") }, &[]).unwrap().message;
    assert!(matches!(found, ToClient::Found(Found { domain, .. }) if domain == welcome.domain), "{found:?}");
    let found = until_row(&bed, "web", |row| row.state.as_deref() == Some("not responding"));
    assert!(
        found.last_seen_s >= Some(u64::from(HEARTBEAT_TIMEOUT_MS / 1000)) && found.domains == 1 && found.daemon,
        "{found:?}"
    );
    local.expect_no_message();
    // The guest daemon recovers, and its session continues.
    guest.memory.store(GUEST_HEARTBEAT_WORD, 2, Ordering::Relaxed);
    until_row(&bed, "web", |row| row.state.as_deref() == Some("attached"));
    guest.send(1, Lookup { name: name("local") });
    assert!(matches!(guest.receive_message(1).0, ToClient::Found(_)));
}

#[test]
fn guest_daemon_without_heartbeats_stays_attached() {
    let bed = Testbed::with(&configured("web", 32, 4));
    let guest = Guest::start(&bed);
    // Waits until the host has checked several times.
    let begun = guest.memory.load(HOST_HEARTBEAT_WORD, Ordering::Relaxed);
    guest.wait_for(|memory| {
        memory.load(HOST_HEARTBEAT_WORD, Ordering::Relaxed) > begun + HEARTBEAT_TIMEOUT_MS / 1000 + 1
    });
    let found = row(&bed, "web");
    assert_eq!((found.state.as_deref(), found.last_seen_s), (Some("attached"), None));
}
