//! Failures during traffic: of the wire, its MTU, a daemon, a program.

use isthmus_hosts::{Flow, MxProgram, TwoHosts, code, timeout};
use isthmus_netns::{ImpairedWire, Impairments, WireDirection};
use isthmus_testbed::eventually;

/// Slow enough that something can happen in the middle.
const SLOW: Impairments = Impairments {
    loss: 0.0,
    duplicate: 0.0,
    reorder: 0.0,
    delay_us: 0,
    jitter_us: 0,
    rate_bits: Some(500_000_000),
    queue_bytes: 4 << 20,
    seed: 1,
};

/// A peer that is silent for that long is given up.
const SHORT_TIMEOUTS: &str = "resend_ms = 100\ngive_up_s = 2\n";

/// A message that takes its time.
const LONG: u64 = 100 << 20;

fn frames(wire: &ImpairedWire) -> u64 {
    [WireDirection::Forth, WireDirection::Back].iter().map(|way| wire.counters(*way).unwrap().offered).sum()
}

#[track_caller]
fn wait_for_bytes(wire: &ImpairedWire, way: WireDirection, bytes: u64) {
    let begun = wire.counters(way).unwrap().offered_bytes;
    eventually(timeout(), || wire.counters(way).unwrap().offered_bytes >= begun + bytes).unwrap();
}

#[test]
fn stream_resumes_when_the_link_is_up_again() {
    let Some((world, wire)) = TwoHosts::impaired(9000, SLOW, "") else { return };
    let (mut a, mut b) = MxProgram::pair(&world.a, &world.b);
    a.begin(600, 8, "mixed", 0, &[Flow::To(0, 1)]);
    b.begin(600, 8, "mixed", 20, &[Flow::From(1)]);
    for came in [20, 300] {
        b.until(came);
        wire.down().unwrap();
        world.a.wait_until("the link is seen to be down", |side| side.board(0)["links"][0]["state"] == "down");
        wire.up().unwrap();
    }
    a.done(600);
    b.done(600);
    world.a.wait_until("the link is seen to be up", |side| side.board(0)["links"][0]["state"] == "up");
    a.close();
    b.close();
}

#[test]
fn stream_resumes_when_the_mtu_is_restored() {
    let Some((world, wire)) = TwoHosts::impaired(9000, SLOW, "") else { return };
    let (mut a, mut b) = MxProgram::pair(&world.a, &world.b);
    a.begin(400, 8, "100000", 0, &[Flow::To(0, 1)]);
    b.begin(400, 8, "100000", 10, &[Flow::From(1)]);
    b.until(40);
    wire.set_mtu(1500).unwrap();
    // Only what is short passes now: what asks for the rest, again and again.
    let before = frames(&wire);
    eventually(timeout(), || frames(&wire) >= before + 5).unwrap();
    wire.set_mtu(9000).unwrap();
    a.done(400);
    b.done(400);
    a.close();
    b.close();
}

/// A long message is in the middle of its way, from `a` to `b`.
fn start_long_transfer() -> Option<(TwoHosts, ImpairedWire, MxProgram, MxProgram)> {
    let (world, wire) = TwoHosts::impaired(9000, SLOW, SHORT_TIMEOUTS)?;
    let (mut a, mut b) = MxProgram::pair(&world.a, &world.b);
    b.begin(1, 1, &LONG.to_string(), 0, &[Flow::From(1)]);
    a.begin(1, 1, &LONG.to_string(), 0, &[Flow::To(0, 1)]);
    wait_for_bytes(&wire, WireDirection::Forth, LONG / 4);
    Some((world, wire, a, b))
}

/// Both programs get an error and connect again, and the next messages come. A program comes back to its daemon when it calls the library,
/// so the program with the killed daemon connects first.
fn both_recover(mut a: MxProgram, mut b: MxProgram) {
    for program in [&mut a, &mut b] {
        let status = program.expect_failure();
        let clear = [code::STATUS_UNREACHABLE, code::STATUS_TIMEOUT, code::STATUS_ENDPOINT_CLOSED];
        assert!(clear.contains(&status.as_str()), "{:?} hears {status}", program.at);
    }
    a.reconnect(0, &b);
    b.reconnect(0, &a);
    a.exchange(&mut b, [2, 3], 20);
    a.close();
    b.close();
}

#[test]
fn senders_daemon_killed_in_a_long_message() {
    let Some((mut world, _wire, a, b)) = start_long_transfer() else { return };
    world.a.kill_and_restart();
    world.wait_for_peers();
    both_recover(a, b);
}

#[test]
fn receivers_daemon_killed_in_a_long_message() {
    let Some((mut world, _wire, a, b)) = start_long_transfer() else { return };
    world.b.kill_and_restart();
    world.wait_for_peers();
    both_recover(b, a);
}

#[test]
fn sender_killed_in_a_long_message() {
    let Some((world, _wire, a, mut b)) = start_long_transfer() else { return };
    a.proc.kill().unwrap();
    b.expect_failure();
    let mut next = MxProgram::open(&world.a);
    next.connect(0, &b);
    b.connect(0, &next);
    next.exchange(&mut b, [2, 3], 20);
    drop(a);
    next.close();
    b.close();
    world.wait_until_idle();
}

#[test]
fn receiver_killed_in_a_long_message() {
    let Some((world, _wire, mut a, b)) = start_long_transfer() else { return };
    b.proc.kill().unwrap();
    a.expect_failure();
    let mut next = MxProgram::open(&world.b);
    next.connect(0, &a);
    a.connect(0, &next);
    next.exchange(&mut a, [2, 3], 20);
    drop(b);
    next.close();
    a.close();
    world.wait_until_idle();
}

#[test]
fn a_wire_that_stays_cut_ends_in_a_clear_error() {
    let Some((_world, wire, mut a, mut b)) = start_long_transfer() else { return };
    wire.down().unwrap();
    // The sender, which was to be fetched from, knows that it was given up; the receiver only that its wait timed out.
    assert_eq!([a.expect_failure(), b.expect_failure()], [code::STATUS_UNREACHABLE, code::STATUS_TIMEOUT]);
    wire.up().unwrap();
    a.reconnect(0, &b);
    b.reconnect(0, &a);
    a.exchange(&mut b, [2, 3], 20);
    a.close();
    b.close();
}
