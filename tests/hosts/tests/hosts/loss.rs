//! Wires that lose, double, reorder and delay.

use isthmus_hosts::{Flow, Party, Side, World};
use isthmus_netbed::{Conditions, Direction};
use isthmus_testbed::short_or_long;

/// 10 % loss, 10 % duplication, reordering and 1 ms of delay, in both directions.
const STORM: Conditions = Conditions {
    loss: 0.1,
    duplicate: 0.1,
    reorder: 0.1,
    delay_us: 1000,
    jitter_us: 200,
    rate_bits: None,
    queue_bytes: 4 << 20,
    seed: 4,
};

/// Two domains on each host, everybody to everybody of the other host: 8 streams of `each` messages.
fn four_domains(each: u64) {
    let Some((world, _wire)) = World::lossy(1500, STORM, "") else { return };
    let mut parties: Vec<Party> = [&world.a, &world.a, &world.b, &world.b].map(Party::open).into();
    let stream = |from: usize, to: usize| (10 * from + to) as u32;
    for (from, to) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        for (from, to) in [(from, to), (to, from)] {
            let [one, other] = parties.get_disjoint_mut([from, to]).unwrap();
            one.connect(to, other);
        }
    }
    for (own, party) in parties.iter_mut().enumerate() {
        let others = if own < 2 { [2, 3] } else { [0, 1] };
        let flows = others.map(|other| [Flow::To(other, stream(own, other)), Flow::From(stream(other, own))]);
        party.begin(each, 16, "mixed", 0, flows.as_flattened());
    }
    for party in &mut parties {
        party.done(4 * each);
    }
    [&world.a, &world.b].into_iter().for_each(tells_what_was_lost);
    parties.into_iter().for_each(Party::leave);
    world.settle();
}

/// What was sent and asked for again, and what came twice, is told.
fn tells_what_was_lost(side: &Side) {
    side.await_that("counts of what was lost", |side| {
        let board = side.board(0);
        let more = |count: &str| board[count].as_u64().is_some_and(|count| count > 0);
        let twice = board["ignored"].as_array().is_some_and(|all| all.iter().any(|row| row["reason"] == "duplicate"));
        let counts = ["sent_again", "asked_again", "sent_bytes", "received_bytes"];
        counts.into_iter().all(more) && twice && board["strangers"] == 4 && board["gateways"] == 2
    });
}

#[test]
fn every_byte_once_and_in_order_through_a_storm() {
    four_domains(short_or_long(250, 1250)); // Eight flows: 10,000 messages in the long form.
}

/// 1 Gbit/s between links that carry more, and room for 1 MiB before it.
#[test]
fn what_is_asked_for_finds_room_before_a_slow_line() {
    let conditions = Conditions { rate_bits: Some(1_000_000_000), queue_bytes: 1 << 20, ..Conditions::default() };
    let Some((world, wire)) = World::lossy(9000, conditions, "") else { return };
    let (mut a, mut b) = Party::pair(&world.a, &world.b);
    a.begin(200, 8, "1048576", 0, &[Flow::To(0, 1)]);
    b.begin(200, 8, "1048576", 0, &[Flow::From(1)]);
    a.done(200);
    b.done(200);
    let forth = wire.counters(Direction::Forth).unwrap();
    assert!(10 * forth.full <= forth.offered, "{forth:?}");
    a.leave();
    b.leave();
}
