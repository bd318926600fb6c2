//! Wires that lose, double, reorder and delay.

use isthmus_hosts::{Flow, MxProgram, TestHost, TwoHosts};
use isthmus_netns::{Impairments, WireDirection};
use isthmus_testbed::short_or_long;

/// 10 % loss, 10 % duplication, reordering and 1 ms of delay, in both directions.
const HEAVY_IMPAIRMENT: Impairments = Impairments {
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
    let Some((world, _wire)) = TwoHosts::impaired(1500, HEAVY_IMPAIRMENT, "") else { return };
    let mut programs: Vec<MxProgram> = [&world.a, &world.a, &world.b, &world.b].map(MxProgram::open).into();
    let stream = |from: usize, to: usize| (10 * from + to) as u32;
    for (from, to) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        for (from, to) in [(from, to), (to, from)] {
            let [one, other] = programs.get_disjoint_mut([from, to]).unwrap();
            one.connect(to, other);
        }
    }
    for (own, program) in programs.iter_mut().enumerate() {
        let others = if own < 2 { [2, 3] } else { [0, 1] };
        let flows = others.map(|other| [Flow::To(other, stream(own, other)), Flow::From(stream(other, own))]);
        program.begin(each, 16, "mixed", 0, flows.as_flattened());
    }
    for program in &mut programs {
        program.done(4 * each);
    }
    [&world.a, &world.b].into_iter().for_each(check_loss_counters);
    programs.into_iter().for_each(MxProgram::close);
    world.wait_until_idle();
}

/// The counters report retransmissions, repeated requests and duplicates.
fn check_loss_counters(side: &TestHost) {
    side.wait_until("counts of what was lost", |side| {
        let board = side.board(0);
        let more = |count: &str| board[count].as_u64().is_some_and(|count| count > 0);
        let twice = board["ignored"].as_array().is_some_and(|all| all.iter().any(|row| row["reason"] == "duplicate"));
        let counts = ["retransmitted", "rerequested", "sent_bytes", "received_bytes"];
        counts.into_iter().all(more) && twice && board["remote_peers"] == 4 && board["served_endpoints"] == 2
    });
}

#[test]
fn every_byte_arrives_once_and_in_order_under_heavy_impairment() {
    four_domains(short_or_long(250, 1250)); // Eight flows: 10,000 messages in the long form.
}

/// 1 Gbit/s between links that carry more, and room for 1 MiB before it.
#[test]
fn pulled_data_does_not_overflow_the_queue_of_a_slow_line() {
    let conditions = Impairments { rate_bits: Some(1_000_000_000), queue_bytes: 1 << 20, ..Impairments::default() };
    let Some((world, wire)) = TwoHosts::impaired(9000, conditions, "") else { return };
    let (mut a, mut b) = MxProgram::pair(&world.a, &world.b);
    a.begin(200, 8, "1048576", 0, &[Flow::To(0, 1)]);
    b.begin(200, 8, "1048576", 0, &[Flow::From(1)]);
    a.done(200);
    b.done(200);
    let forth = wire.counters(WireDirection::Forth).unwrap();
    assert!(10 * forth.queue_full <= forth.offered, "{forth:?}");
    a.close();
    b.close();
}
