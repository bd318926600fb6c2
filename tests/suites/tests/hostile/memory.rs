//! What is written into shared memory, and what rings.

use crate::siege::{STRANGER, Siege};
use isthmus_suites::Actor;

#[test]
fn garbage_in_a_domain_ring_ends_that_domain() {
    let mut siege = Siege::new("");
    let facts = siege.suffers(&["ring"]);
    let ended: Vec<_> = facts.iter().filter_map(|fact| fact.strip_prefix("ended ")).collect();
    let faults = ["malformed-record", "stamp-fault", "head-overrun", "slab-overrun", "piece-outside"];
    assert!(ended.len() == 12 && ended.iter().all(|reason| faults.contains(reason)), "{ended:?}");
    assert_eq!(siege.ring_faults(), 12);
    siege.ends();
}

#[test]
fn garbage_in_a_channel_ends_that_channel_and_is_counted() {
    let mut siege = Siege::new("");
    // The victim does nothing but wait: whatever comes, it comes from the hostile one.
    let mut victim = Actor::attached(siege.daemon.beside(isthmus_suites::actor::program()), "victim", "wait=sleep");
    victim.say("wait 40000");
    let facts = siege.suffers(&["channel", "victim"]);
    let closed: Vec<_> = facts.iter().filter_map(|fact| fact.strip_prefix("closed ")).collect();
    let faults = ["malformed-record", "stamp-fault", "head-overrun", "slab-overrun", "piece-outside"];
    assert!(closed.len() == 12 && closed.iter().all(|reason| faults.contains(reason)), "{closed:?}");
    assert_eq!(faults.iter().map(|reason| siege.met(reason)).sum::<u64>(), 12);
    talks(&mut siege, &mut victim);
    drop(victim);
    siege.ends();
}

/// The one who was attacked talks with others as if nothing had been.
#[track_caller]
fn talks(siege: &mut Siege, victim: &mut Actor) {
    let mut friend = Actor::beside(&siege.daemon, "friend");
    // It sits in a wait of its own until something comes for it.
    friend.say("send 0 victim.e0 8 1");
    victim.say("receive 0 8");
    friend.answer();
    let said = [victim.answer(), victim.answer()];
    assert!(said[1].starts_with("posted "), "{said:?}");
    let got = victim.ask("wait 30000");
    assert!(got.contains(" good"), "{got}");
    let all = "0-130,1000,4096,32769,3x1048576";
    friend.ask("wait 30000");
    friend.say(&format!("exchange 0 victim.e0 1 {all} 5000 {all} buffers=reused"));
    victim.say(&format!("exchange 0 friend.e0 5000 {all} 1 {all} buffers=reused"));
    let answers = [friend.answer(), victim.answer()];
    assert!(answers.iter().all(|answer| answer.starts_with("exchanged ")), "{answers:?}");
}

#[test]
fn records_that_say_what_they_should_not_harm_nobody_else() {
    let mut siege = Siege::new("");
    let mut victim = Actor::attached(siege.daemon.beside(isthmus_suites::actor::program()), "victim", "wait=sleep");
    victim.say("wait 50000");
    siege.suffers(&["records", "victim"]);
    assert!(siege.ring_faults() > 0, "{:?}", siege.status().workers);
    victim.kill();
    siege.ends();
}

#[test]
fn garbage_on_boards_costs_other_owners_time_and_nothing_else() {
    let Some(mut siege) = Siege::of_users() else { return };
    siege.suffers_from(Some(STRANGER), &["boards", "alice"]);
    siege.ends();
}

#[test]
fn full_and_blocking_doorbells_hang_neither_the_daemon_nor_another_owner() {
    let Some(mut siege) = Siege::of_users() else { return };
    let facts = siege.suffers_from(Some(STRANGER), &["bells", "alice"]);
    for bell in ["the daemon's is an event descriptor", "the peer's is a socket", "our own for the peer is a socket"] {
        assert!(facts.contains(&bell.to_owned()), "{facts:?}");
    }
    // Whoever sends to the hostile one has to ring, by the channel and through the daemon.
    let mut sender = Actor::beside(&siege.daemon, "sender");
    for tag in 0..300 {
        let posted = sender.ask(&format!("send 0 bells.e0 1000 {tag}"));
        assert!(posted.starts_with("posted "), "{posted}");
    }
    sender.ask("wait 0");
    siege.holds();
    drop(sender);
    siege.ends();
}

#[test]
fn full_and_blocking_doorbells_of_ones_own_do_not_hang_the_daemon() {
    let mut siege = Siege::new("");
    let mut victim = Actor::beside(&siege.daemon, "victim");
    victim.say("wait 5000");
    siege.suffers(&["bells", "victim"]);
    drop(victim);
    siege.ends();
}

#[test]
fn descriptors_sent_in_place_of_rings_hang_nobody() {
    let Some(mut siege) = Siege::of_users() else { return };
    let facts = siege.suffers_from(Some(STRANGER), &["parcels", "alice"]);
    assert!(facts.len() > 1, "{facts:?}");
    siege.ends();
}
