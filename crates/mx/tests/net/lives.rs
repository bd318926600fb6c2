//! Hosts that die and come back as others, links that are down for longer than anybody is patient.

use crate::host::{Host, address};
use crate::random::{Random, Seed};
use crate::schedules::{kind, length, weather};
use crate::wire::Weather;
use crate::world::World;
use isthmus_mx::StatusCode;

/// What a program does that is told of errors: it connects anew to whom it lost, and goes on.
fn send_somehow(world: &mut World, from: usize, to: usize, length: u32, synchronous: bool) {
    let now = world.now;
    let host = &mut world.hosts[from];
    let failed = host.sends.values().rfind(|sending| sending.to == to).and_then(|last| last.ended);
    let refused = failed.is_some_and(|sent| sent.code != StatusCode::Success);
    let waits = host.connected.get(&to).is_some_and(Option::is_none);
    if (refused || host.endpoint.session_of(address(to)).is_none()) && !waits {
        host.connect(now, to, 77);
    }
    world.send(from, to, length, synchronous);
}

fn lives(seed: u64) -> World {
    let _seed = Seed(seed);
    let mut random = Random::new(seed);
    let hosts = 2 + random.below(2) as usize;
    // Frames of a life that is over do not come later than the answer of the next one: no number tells them apart then.
    let bad = weather(&mut random);
    let weather = Weather { loss_per_million: random.below(100_000), late_us: bad.delay_us, ..bad };
    let mut world = World::new(hosts, kind(&mut random), weather, random.next());
    world.connect_all();
    for _ in 0..60 {
        let from = random.below(hosts as u64) as usize;
        let to = (from + 1 + random.below(hosts as u64 - 1) as usize) % hosts;
        send_somehow(&mut world, from, to, length(&mut random), random.chance(50_000));
        match random.below(20) {
            0 => world.restart(from),
            1 => world.run_until(world.now.after_us(2_000_000)),
            // The way from one to the other is cut for longer than anybody waits, or for less.
            2 => {
                world.wire.cut(from, to, world.now.after_us(random.below(25_000_000)));
                world.run_until(world.now.after_us(random.below(30_000_000)));
            }
            3..8 => world.run_until(world.now.after_us(random.below(10_000))),
            _ => {}
        }
    }
    world.run_until_quiet(200_000_000);
    world
}

#[test]
fn messages_arrive_once_and_intact_or_end_with_errors_whoever_dies() {
    let (mut severed, mut failed, mut fine) = (0, 0, 0);
    for seed in 0..1000 {
        let world = lives(seed);
        severed += world.hosts.iter().map(|host| host.severed).sum::<u64>();
        let ended = world.hosts.iter().flat_map(|host| host.sends.values()).filter_map(|sending| sending.ended);
        for sent in ended {
            *(if sent.code == StatusCode::Success { &mut fine } else { &mut failed }) += 1;
        }
    }
    assert!(severed > 1000 && failed > 1000 && fine > 5000, "{severed} {failed} {fine}: the schedules do something");
}

/// After everything, whoever connects again can send again.
#[test]
fn the_next_message_works() {
    for seed in 0..300 {
        let mut world = lives(seed);
        world.wire.weather = Weather::FINE;
        for host in &mut world.hosts {
            host.sends.retain(|_, sending| sending.ended.is_none());
        }
        world.connect_all();
        world.run_until_quiet(60_000_000);
        let hosts = world.hosts.len();
        let pairs: Vec<_> = (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))).collect();
        for (from, to) in pairs {
            if from != to {
                world.send(from, to, 1000, false);
                world.send(from, to, 100_000, false);
            }
        }
        world.run_until_quiet(60_000_000);
        for sending in world.hosts.iter().flat_map(|host: &Host| host.sends.values()) {
            assert_eq!(sending.ended.map(|sent| sent.code), Some(StatusCode::Success), "seed {seed}");
        }
    }
}
