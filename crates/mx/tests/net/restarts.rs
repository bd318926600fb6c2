//! Hosts that restart with another session, and links that are down for longer than a partner is kept.

use crate::host::{Host, address};
use crate::random::{Random, Seed};
use crate::schedules::{conditions, kind, length};
use crate::simulation::Simulation;
use crate::wire::NetConditions;
use isthmus_mx::StatusCode;

/// Sends as a program that handles errors: reconnects to a lost partner, and continues.
fn send_with_reconnect(simulation: &mut Simulation, from: usize, to: usize, length: u32, synchronous: bool) {
    let now = simulation.now;
    let host = &mut simulation.hosts[from];
    let failed = host.sends.values().rfind(|sending| sending.to == to).and_then(|last| last.ended);
    let refused = failed.is_some_and(|sent| sent.code != StatusCode::Success);
    let waits = host.connected.get(&to).is_some_and(Option::is_none);
    if (refused || host.endpoint.session_of(address(to)).is_none()) && !waits {
        host.connect(now, to, 77);
    }
    simulation.send(from, to, length, synchronous);
}

fn restarts(seed: u64) -> Simulation {
    let _seed = Seed(seed);
    let mut random = Random::new(seed);
    let hosts = 2 + random.below(2) as usize;
    // Frames of a former host arrive before the first reply of the next one, because no number distinguishes them.
    let bad = conditions(&mut random);
    let conditions = NetConditions { loss_per_million: random.below(100_000), late_us: bad.delay_us, ..bad };
    let mut simulation = Simulation::new(hosts, kind(&mut random), conditions, random.next());
    simulation.connect_all();
    for _ in 0..60 {
        let from = random.below(hosts as u64) as usize;
        let to = (from + 1 + random.below(hosts as u64 - 1) as usize) % hosts;
        send_with_reconnect(&mut simulation, from, to, length(&mut random), random.chance(50_000));
        match random.below(20) {
            0 => simulation.restart(from),
            1 => simulation.run_until(simulation.now.after_us(2_000_000)),
            // The path from one host to the other is cut, for longer than a partner is kept or for less.
            2 => {
                simulation.wire.cut(from, to, simulation.now.after_us(random.below(25_000_000)));
                simulation.run_until(simulation.now.after_us(random.below(30_000_000)));
            }
            3..8 => simulation.run_until(simulation.now.after_us(random.below(10_000))),
            _ => {}
        }
    }
    simulation.run_until_quiet(200_000_000);
    simulation
}

#[test]
fn messages_arrive_once_or_fail_when_an_endpoint_restarts() {
    let (mut disconnected, mut failed, mut fine) = (0, 0, 0);
    for seed in 0..1000 {
        let simulation = restarts(seed);
        disconnected += simulation.hosts.iter().map(|host| host.disconnected).sum::<u64>();
        let ended = simulation.hosts.iter().flat_map(|host| host.sends.values()).filter_map(|sending| sending.ended);
        for sent in ended {
            *(if sent.code == StatusCode::Success { &mut fine } else { &mut failed }) += 1;
        }
    }
    assert!(
        disconnected > 1000 && failed > 1000 && fine > 5000,
        "{disconnected} {failed} {fine}: the schedules do something"
    );
}

/// After all these events, a host that connects again can send again.
#[test]
fn message_after_a_restart_arrives() {
    for seed in 0..300 {
        let mut simulation = restarts(seed);
        simulation.wire.conditions = NetConditions::FINE;
        for host in &mut simulation.hosts {
            host.sends.retain(|_, sending| sending.ended.is_none());
        }
        simulation.connect_all();
        simulation.run_until_quiet(60_000_000);
        let hosts = simulation.hosts.len();
        let pairs: Vec<_> = (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))).collect();
        for (from, to) in pairs {
            if from != to {
                simulation.send(from, to, 1000, false);
                simulation.send(from, to, 100_000, false);
            }
        }
        simulation.run_until_quiet(60_000_000);
        for sending in simulation.hosts.iter().flat_map(|host: &Host| host.sends.values()) {
            assert_eq!(sending.ended.map(|sent| sent.code), Some(StatusCode::Success), "seed {seed}");
        }
    }
}
