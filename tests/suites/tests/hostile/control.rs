//! What comes by the control socket.

use crate::siege::{OPEN, STRANGER, Siege};
use isthmus_suites::{Actor, PATIENCE, actor};
use isthmus_testbed::{Deadline, eventually};

/// The answers to what a deed tried, all of them.
#[track_caller]
fn assert_answers(facts: &[String], expected: &[(&str, &str)]) {
    let said: Vec<_> = facts.iter().filter_map(|fact| fact.split_once(": ")).collect();
    assert_eq!(said, expected);
}

#[test]
fn noise_ends_its_connection_and_nothing_else() {
    let mut siege = Siege::new("");
    siege.suffers(&["noise"]);
    assert!(siege.met("malformed-control") > 100 && siege.met("not-isthmus") > 20, "{:?}", siege.status().reasons);
    siege.ends();
}

#[test]
fn connections_that_say_nothing_are_ended_in_time() {
    let mut siege = Siege::new("");
    let facts = siege.suffers(&["mute"]);
    assert!(facts.contains(&"timed out 200 refused 0".to_owned()), "{facts:?}");
    assert_eq!(siege.met("handshake-timeout"), 200);
    siege.ends();
}

#[test]
fn thousands_of_connections_leave_room_for_others() {
    let Some(mut siege) = Siege::of_users() else { return };
    let facts = siege.suffers_from(Some(STRANGER), &["crowd"]);
    assert!(facts.iter().any(|fact| fact.starts_with("connections ")), "{facts:?}");
    let refused = eventually(Deadline::secs(PATIENCE), || siege.met("connections-full") > 0);
    refused.expect("a user's connections are counted");
    let launch = siege.daemon.beside(actor::program()).owner(STRANGER);
    let told = Actor::start(launch).ask("attach name=latecomer");
    assert!(told.starts_with("refused ") && told.contains("[connections-full]"), "{told}");
    siege.begins_anew();
    siege.suffers_from(Some(STRANGER), &["crowd"]);
    siege.ends();
}

#[test]
fn one_user_cannot_take_all_names() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can start processes of other users");
    }
    let mut siege = Siege::new(&format!("{OPEN}limits.domains_max = 64\nlimits.domains_per_user_max = 40\n"));
    let facts = siege.suffers_from(Some(STRANGER), &["names"]);
    assert!(facts.contains(&"names 40 then owner-domains-full".to_owned()), "{facts:?}");
    siege.ends();
}

#[test]
fn requests_out_of_place_are_refused_by_name() {
    let mut siege = Siege::new("");
    let facts = siege.suffers(&["turns", "alice"]);
    let turns = "out-of-turn";
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
            ("a channel with nobody", "no-such-domain"),
            ("revoke what was not granted", "region-not-granted"),
        ],
    );
    siege.ends();
}

#[test]
fn forged_tickets_bring_nobody_back() {
    let mut siege = Siege::new("");
    let facts = siege.suffers(&["forge", "alice"]);
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
    siege.ends();
}

#[test]
fn channels_of_the_future_cannot_be_adopted() {
    let mut siege = Siege::new("");
    let facts = siege.suffers(&["future"]);
    assert!(facts.iter().filter(|fact| fact.starts_with("adopted")).all(|fact| !fact.contains("Ok")), "{facts:?}");
    siege.ends();
}

#[test]
fn who_asks_and_never_reads_is_dropped() {
    let mut siege = Siege::new("");
    siege.suffers(&["deaf"]);
    eventually(Deadline::secs(PATIENCE), || siege.met("not-reading") == 1).expect("it is dropped");
    assert!(siege.met("too-many-requests") > 0, "{:?}", siege.status().reasons);
    siege.ends();
}

#[test]
fn reports_that_nobody_reads_do_not_pile_up() {
    let mut siege = Siege::new("");
    let before = siege.view().memory().unwrap().rss_bytes;
    siege.suffers(&["inquisitive"]);
    let after = siege.view().memory().unwrap().rss_bytes;
    assert!(after < before + (8 << 20), "{before} bytes became {after}");
    siege.ends();
}

#[test]
fn a_flood_of_requests_for_channels_with_everybody_keeps_nobody_from_his_work() {
    let mut siege = Siege::new("");
    let facts = siege.suffers(&["everybody", "bob"]);
    assert!(facts.iter().any(|fact| fact.starts_with("offers ") && !fact.starts_with("offers 0 ")), "{facts:?}");
    siege.ends();
}

#[test]
fn a_stopped_domain_holds_nobody_up() {
    let mut siege = Siege::new("");
    let mut stopped = Actor::beside(&siege.daemon, "stopped");
    let mut other = Actor::beside(&siege.daemon, "other");
    stopped.proc().freeze().unwrap();
    // To somebody who is stopped, messages wait with their sender, and the offer of a channel is given up.
    for tag in 0..100 {
        assert!(other.ask(&format!("send 0 stopped.e0 20000 {tag}")).starts_with("posted "));
    }
    siege.holds();
    eventually(Deadline::secs(PATIENCE), || siege.met("channel-no-answer") > 0).expect("the offer is given up");
    siege.holds();
    stopped.proc().thaw().unwrap();
    for _ in 0..100 {
        assert!(stopped.ask("receive 0 20000").starts_with("posted "));
    }
    other.say("settled?");
    other.answer();
    for tag in 0..100 {
        // The sender has to be called, as any program calls its library.
        other.say("wait 1000");
        let got = stopped.ask("wait 30000");
        assert!(got.contains(&format!("tag {tag} len 20000 good")), "{got}");
        let sent = other.answer();
        assert!(sent.starts_with("sent ") || sent == "nothing", "{sent}");
    }
    drop((stopped, other));
    siege.ends();
}
