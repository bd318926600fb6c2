//! Attacks by content of shared memory, and by doorbells.

use crate::attack_bed::{AttackBed, OTHER_UID};
use isthmus_suites::{TIMEOUT_S, TestProgram};
use isthmus_testbed::{Deadline, eventually};
use std::time::Instant;

#[test]
fn garbage_in_a_domain_ring_ends_that_domain() {
    let mut attack_bed = AttackBed::new("");
    let facts = attack_bed.run_attack(&["ring"]);
    let ended: Vec<_> = facts.iter().filter_map(|fact| fact.strip_prefix("ended ")).collect();
    let faults =
        ["malformed-record", "cell-stamp-invalid", "ring-head-invalid", "slab-head-invalid", "fragment-outside-slab"];
    assert!(ended.len() == 12 && ended.iter().all(|reason| faults.contains(reason)), "{ended:?}");
    assert_eq!(attack_bed.ring_violations(), 12);
    attack_bed.finish();
}

#[test]
fn garbage_in_a_channel_ends_that_channel_and_is_counted() {
    let mut attack_bed = AttackBed::new("");
    // The victim does nothing but wait: whatever comes, it comes from the hostile one.
    let mut victim = TestProgram::start_attached(
        attack_bed.daemon.launch_on_host(isthmus_suites::test_program::program()),
        "victim",
        "wait=sleep",
    );
    victim.send_line("wait 40000");
    let facts = attack_bed.run_attack(&["channel", "victim"]);
    let closed: Vec<_> = facts.iter().filter_map(|fact| fact.strip_prefix("closed ")).collect();
    let faults =
        ["malformed-record", "cell-stamp-invalid", "ring-head-invalid", "slab-head-invalid", "fragment-outside-slab"];
    assert!(closed.len() == 12 && closed.iter().all(|reason| faults.contains(reason)), "{closed:?}");
    assert_eq!(faults.iter().map(|reason| attack_bed.reason_count(reason)).sum::<u64>(), 12);
    exchange_with_victim(&mut attack_bed, &mut victim);
    drop(victim);
    attack_bed.finish();
}

/// The victim exchanges messages with others as if there had been no attack.
#[track_caller]
fn exchange_with_victim(attack_bed: &mut AttackBed, victim: &mut TestProgram) {
    let mut friend = TestProgram::launch_on_host(&attack_bed.daemon, "friend");
    // It sits in a wait of its own until something comes for it.
    friend.send_line("send 0 victim.e0 8 1");
    victim.send_line("receive 0 8");
    friend.answer();
    let said = [victim.answer(), victim.answer()];
    assert!(said[1].starts_with("posted "), "{said:?}");
    let got = victim.ask("wait 30000");
    assert!(got.contains(" good"), "{got}");
    let all = "0-130,1000,4096,32769,3x1048576";
    friend.ask("wait 30000");
    friend.send_line(&format!("exchange 0 victim.e0 1 {all} 5000 {all} buffers=reused"));
    victim.send_line(&format!("exchange 0 friend.e0 5000 {all} 1 {all} buffers=reused"));
    let answers = [friend.answer(), victim.answer()];
    assert!(answers.iter().all(|answer| answer.starts_with("exchanged ")), "{answers:?}");
}

#[test]
fn invalid_records_affect_only_their_sender() {
    let mut attack_bed = AttackBed::new("");
    let mut victim = TestProgram::start_attached(
        attack_bed.daemon.launch_on_host(isthmus_suites::test_program::program()),
        "victim",
        "wait=sleep",
    );
    victim.send_line("wait 50000");
    attack_bed.run_attack(&["records", "victim"]);
    assert!(attack_bed.ring_violations() > 0, "{:?}", attack_bed.status().workers);
    victim.kill();
    attack_bed.finish();
}

#[test]
fn garbage_in_ready_maps_costs_other_owners_only_time() {
    let Some(mut attack_bed) = AttackBed::with_users() else { return };
    attack_bed.run_attack_as(Some(OTHER_UID), &["ready-maps", "alice"]);
    attack_bed.finish();
}

#[test]
fn flood_of_ready_bits_ends_nothing_and_costs_nothing_afterwards() {
    let Some(attack_bed) = AttackBed::with_users() else { return };
    flood_ready_bits(attack_bed, Some(OTHER_UID));
}

#[test]
fn flood_of_ready_bits_by_a_domain_of_the_same_owner_ends_nothing() {
    let mut attack_bed = AttackBed::new("");
    let channel = attack_bed.channel_of_honest_pair();
    // The daemon, the honest pair and the hostile domain set bits of the same ready maps.
    for _ in 0..3 {
        for victim in ["alice", "bob"] {
            let facts = attack_bed.run_attack(&["ready-map-flood", victim]);
            assert!(facts.contains(&"nothing ended".to_owned()), "{facts:?}");
        }
    }
    assert_eq!(attack_bed.channel_of_honest_pair(), channel, "the honest pair keeps its channel");
    flood_ready_bits(attack_bed, None);
}

/// Floods the ready map of a victim that sleeps. The victim and the daemon sleep afterwards, and work as before.
#[track_caller]
fn flood_ready_bits(mut attack_bed: AttackBed, owner: Option<u32>) {
    let mut victim = TestProgram::start_attached(
        attack_bed.daemon.launch_on_host(isthmus_suites::test_program::program()),
        "victim",
        "wait=sleep",
    );
    victim.send_line("wait 5000");
    let view = victim.proc().view().expect("the victim runs");
    let rss_bytes = || view.memory().expect("its memory").rss_bytes;
    let before = rss_bytes();
    let facts = attack_bed.run_attack_as(owner, &["ready-map-flood", "victim"]);
    assert!(facts.contains(&"nothing ended".to_owned()), "{facts:?}");
    let grown = rss_bytes().saturating_sub(before);
    assert!(grown < 4 << 20, "the victim has grown by {grown} bytes");
    // While others work, the victim sleeps, and so does the daemon.
    for (name, view) in [("the victim", view), ("the daemon", attack_bed.view())] {
        let sleeps = || {
            let cpu = || view.cpu_fine().expect("its CPU time");
            let (start, before) = (Instant::now(), cpu());
            attack_bed.wait_for_progress();
            20 * (cpu() - before) < start.elapsed()
        };
        eventually(Deadline::secs(TIMEOUT_S), sleeps).unwrap_or_else(|_| panic!("{name} does not sleep"));
    }
    exchange_with_victim(&mut attack_bed, &mut victim);
    assert_eq!(attack_bed.ring_violations(), 0);
    drop(victim);
    attack_bed.finish();
}

#[test]
fn full_doorbells_do_not_block_daemon_or_other_owners() {
    let Some(mut attack_bed) = AttackBed::with_users() else { return };
    let facts = attack_bed.run_attack_as(Some(OTHER_UID), &["full-doorbells", "alice"]);
    for bell in ["the daemon's is an event descriptor", "the peer's is a socket", "our own for the peer is a socket"] {
        assert!(facts.contains(&bell.to_owned()), "{facts:?}");
    }
    // A sender to the hostile program has to ring, by the channel and through the daemon.
    let mut sender = TestProgram::launch_on_host(&attack_bed.daemon, "sender");
    for tag in 0..300 {
        let posted = sender.ask(&format!("send 0 bells.e0 1000 {tag}"));
        assert!(posted.starts_with("posted "), "{posted}");
    }
    sender.ask("wait 0");
    attack_bed.check_daemon();
    drop(sender);
    attack_bed.finish();
}

#[test]
fn own_full_doorbells_do_not_block_the_daemon() {
    let mut attack_bed = AttackBed::new("");
    let mut victim = TestProgram::launch_on_host(&attack_bed.daemon, "victim");
    victim.send_line("wait 5000");
    attack_bed.run_attack(&["full-doorbells", "victim"]);
    drop(victim);
    attack_bed.finish();
}

#[test]
fn descriptors_in_place_of_doorbells_do_not_block() {
    let Some(mut attack_bed) = AttackBed::with_users() else { return };
    let facts = attack_bed.run_attack_as(Some(OTHER_UID), &["descriptors-in-doorbells", "alice"]);
    assert!(facts.len() > 1, "{facts:?}");
    attack_bed.finish();
}
