//! Attacks by the control socket.

use crate::attack_bed::{AttackBed, OPEN, OTHER_UID};
use isthmus_suites::{TIMEOUT_S, TestProgram, test_program};
use isthmus_testbed::{Deadline, eventually};

/// The answers to what an attack tried, all of them.
#[track_caller]
fn assert_answers(facts: &[String], expected: &[(&str, &str)]) {
    let said: Vec<_> = facts.iter().filter_map(|fact| fact.split_once(": ")).collect();
    assert_eq!(said, expected);
}

#[test]
fn malformed_bytes_close_only_their_connection() {
    let mut attack_bed = AttackBed::new("");
    attack_bed.run_attack(&["malformed-bytes"]);
    assert!(
        attack_bed.reason_count("malformed-control") > 100 && attack_bed.reason_count("not-isthmus") > 20,
        "{:?}",
        attack_bed.status().reasons
    );
    attack_bed.finish();
}

#[test]
fn silent_connections_time_out() {
    let mut attack_bed = AttackBed::new("");
    let facts = attack_bed.run_attack(&["silent-connections"]);
    assert!(facts.contains(&"timed out 200 refused 0".to_owned()), "{facts:?}");
    assert_eq!(attack_bed.reason_count("handshake-timeout"), 200);
    attack_bed.finish();
}

#[test]
fn thousands_of_connections_leave_room_for_others() {
    let Some(mut attack_bed) = AttackBed::with_users() else { return };
    let facts = attack_bed.run_attack_as(Some(OTHER_UID), &["connection-flood"]);
    assert!(facts.iter().any(|fact| fact.starts_with("connections ")), "{facts:?}");
    let refused = eventually(Deadline::secs(TIMEOUT_S), || attack_bed.reason_count("connections-full") > 0);
    refused.expect("a user's connections are counted");
    let launch = attack_bed.daemon.launch_on_host(test_program::program()).owner(OTHER_UID);
    let told = TestProgram::start(launch).ask("attach name=latecomer");
    assert!(told.starts_with("refused ") && told.contains("[connections-full]"), "{told}");
    attack_bed.reset_baseline();
    attack_bed.run_attack_as(Some(OTHER_UID), &["connection-flood"]);
    attack_bed.finish();
}

#[test]
fn one_user_cannot_take_all_names() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can start processes of other users");
    }
    let mut attack_bed = AttackBed::new(&format!("{OPEN}limits.domains_max = 64\nlimits.domains_per_user_max = 40\n"));
    let facts = attack_bed.run_attack_as(Some(OTHER_UID), &["names"]);
    // Eight places are for users that have none, and two domains of another user are there: half of the others.
    assert!(facts.contains(&"names 27 then user-domains-full".to_owned()), "{facts:?}");
    attack_bed.finish();
}

#[test]
fn requests_out_of_place_are_refused_by_name() {
    let mut attack_bed = AttackBed::new("");
    let facts = attack_bed.run_attack(&["out-of-order-messages", "alice"]);
    let turns = "unexpected-message-type";
    assert_answers(
        &facts,
        &[
            ("attach before hello", turns),
            ("hello twice", turns),
            ("endpoint before attach", turns),
            ("attach twice", turns),
            ("close what is not open", "endpoint-closed"),
            ("accept a foreign channel", "no-such-channel"),
            ("refuse a foreign channel", "no-such-channel"),
            ("close a foreign channel", "no-such-channel"),
            ("close what is no channel", "no-such-channel"),
            ("adopt a foreign channel", "request-invalid"),
            ("a channel with itself", "same-domain"),
            ("a channel with no domain", "no-such-domain"),
            ("revoke what was not granted", "region-not-granted"),
        ],
    );
    attack_bed.finish();
}

#[test]
fn forged_tickets_are_refused() {
    let mut attack_bed = AttackBed::new("");
    let facts = attack_bed.run_attack(&["forged-tickets", "alice"]);
    let invalid = "ticket-invalid";
    assert_answers(
        &facts,
        &[
            ("the victim's number and name by our ticket", invalid),
            ("the victim's number by our ticket", invalid),
            ("our number by a random ticket", invalid),
            ("our number by a ticket with a wrong bit", invalid),
            ("our number under another name", invalid),
            ("zeroes", invalid),
            ("without a name", "request-invalid"),
        ],
    );
    attack_bed.finish();
}

#[test]
fn channels_with_unknown_ids_cannot_be_adopted() {
    let mut attack_bed = AttackBed::new("");
    let facts = attack_bed.run_attack(&["future-channels"]);
    assert!(facts.iter().filter(|fact| fact.starts_with("adopted")).all(|fact| !fact.contains("Ok")), "{facts:?}");
    attack_bed.finish();
}

#[test]
fn client_that_never_reads_is_disconnected() {
    let mut attack_bed = AttackBed::new("");
    attack_bed.run_attack(&["never-read"]);
    eventually(Deadline::secs(TIMEOUT_S), || attack_bed.reason_count("control-queue-full") == 1)
        .expect("it is dropped");
    assert!(attack_bed.reason_count("too-many-requests") > 0, "{:?}", attack_bed.status().reasons);
    attack_bed.finish();
}

#[test]
fn unread_reports_are_bounded() {
    let mut attack_bed = AttackBed::new("");
    let before = attack_bed.view().memory().unwrap().rss_bytes;
    attack_bed.run_attack(&["query-flood"]);
    let after = attack_bed.view().memory().unwrap().rss_bytes;
    assert!(after < before + (8 << 20), "{before} bytes became {after}");
    attack_bed.finish();
}

#[test]
fn channel_request_flood_does_not_delay_other_domains() {
    let mut attack_bed = AttackBed::new("");
    let facts = attack_bed.run_attack(&["channel-flood", "bob"]);
    assert!(facts.iter().any(|fact| fact.starts_with("offers ") && !fact.starts_with("offers 0 ")), "{facts:?}");
    attack_bed.finish();
}

#[test]
fn stopped_domain_does_not_delay_other_domains() {
    let mut attack_bed = AttackBed::new("");
    let mut stopped = TestProgram::launch_on_host(&attack_bed.daemon, "stopped");
    let mut other = TestProgram::launch_on_host(&attack_bed.daemon, "other");
    stopped.proc().freeze().unwrap();
    // Messages to a stopped program wait with their sender, and the offer of a channel is given up.
    for tag in 0..100 {
        assert!(other.ask(&format!("send 0 stopped.e0 20000 {tag}")).starts_with("posted "));
    }
    attack_bed.check_daemon();
    eventually(Deadline::secs(TIMEOUT_S), || attack_bed.reason_count("channel-timeout") > 0)
        .expect("the offer is given up");
    attack_bed.check_daemon();
    stopped.proc().thaw().unwrap();
    for _ in 0..100 {
        assert!(stopped.ask("receive 0 20000").starts_with("posted "));
    }
    other.send_line("settled?");
    other.answer();
    for tag in 0..100 {
        // The sender has to be called, as any program calls its library.
        other.send_line("wait 1000");
        let got = stopped.ask("wait 30000");
        assert!(got.contains(&format!("tag {tag} len 20000 good")), "{got}");
        let sent = other.answer();
        assert!(sent.starts_with("sent ") || sent == "nothing", "{sent}");
    }
    drop((stopped, other));
    attack_bed.finish();
}
