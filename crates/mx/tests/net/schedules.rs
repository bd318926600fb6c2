//! Many short schedules, each with its own network conditions and program.

use crate::host::HostConfig;
use crate::random::{Random, Seed};
use crate::simulation::Simulation;
use crate::wire::NetConditions;
use isthmus_mx::net::{EndpointTuning, Time};
use isthmus_mx::wire::{Dialect, Sizes};

pub(crate) fn kind(random: &mut Random) -> HostConfig {
    let sizes = match random.below(4) {
        0 => None,
        1 => Sizes::open_mx(9000),
        2 => Sizes::open_mx(1500),
        _ => Sizes::open_mx(300).and_then(|sizes| sizes.with_block_frames(8)),
    };
    let tuning = EndpointTuning { resends_max: 20, ..EndpointTuning::default() };
    match sizes {
        None => HostConfig { dialect: Dialect::Mx, sizes: Sizes::MX, tuning, narrow: true },
        Some(sizes) => HostConfig { dialect: Dialect::OPEN_MX, sizes, tuning, narrow: true },
    }
}

pub(crate) fn conditions(random: &mut Random) -> NetConditions {
    NetConditions {
        loss_per_million: [0, 1_000, 20_000, 100_000, 300_000][random.below(5) as usize],
        repeat_per_million: [0, 10_000, 100_000][random.below(3) as usize],
        late_per_million: [0, 50_000, 500_000][random.below(3) as usize],
        late_us: 1 + random.below(5_000),
        delay_us: 1 + random.below(2_000),
        bytes_per_ms: [100_000, 1_000_000, 10_000_000][random.below(3) as usize],
        switch: None,
    }
}

pub(crate) fn length(random: &mut Random) -> u32 {
    let most = [0, 32, 128, 1_000, 8_000, 32_768, 200_000][random.below(7) as usize];
    random.below(most + 1) as u32
}

/// Runs hosts that connect to each other and send a few messages of all classes.
fn exchange(seed: u64, messages: u64) -> Simulation {
    let _seed = Seed(seed);
    let mut random = Random::new(seed);
    let hosts = 2 + random.below(3) as usize;
    let (kind, conditions) = (kind(&mut random), conditions(&mut random));
    let mut simulation = Simulation::new(hosts, kind, conditions, random.next());
    simulation.connect_all();
    simulation.run_until_quiet(60_000_000);
    for _ in 0..messages {
        let from = random.below(hosts as u64) as usize;
        let to = (from + 1 + random.below(hosts as u64 - 1) as usize) % hosts;
        let length = length(&mut random);
        assert!(simulation.send(from, to, length, random.chance(50_000)).is_some(), "they are connected");
        if random.chance(300_000) {
            let pause_us = [1, 50, 1_000, 100_000][random.below(4) as usize];
            simulation.run_until(simulation.now.after_us(pause_us));
        }
    }
    simulation.run_until_quiet(120_000_000);
    simulation
}

#[test]
fn every_message_arrives_once_in_order_and_intact() {
    for seed in 0..1000 {
        let simulation = exchange(seed, 40);
        for host in &simulation.hosts {
            assert_eq!((host.disconnected, host.failed_receives), (0, 0), "seed {seed}: no peer was given up");
        }
    }
}

#[test]
fn seeded_run_is_deterministic() {
    for seed in 0..20 {
        let [one, other] = [exchange(seed, 40), exchange(seed, 40)];
        assert_eq!((one.now, one.wire.count()), (other.now, other.wire.count()));
        assert!(one.now > Time::ZERO);
    }
}

/// Conditions of the wire that messages have to survive.
#[test]
fn ten_thousand_messages_survive_loss_repetition_and_disorder() {
    let _seed = Seed(4);
    let mut random = Random::new(4);
    let conditions = NetConditions {
        loss_per_million: 100_000,
        repeat_per_million: 100_000,
        late_per_million: 100_000,
        late_us: 3_000,
        delay_us: 1_000,
        ..NetConditions::FINE
    };
    let kind = HostConfig { dialect: Dialect::Mx, sizes: Sizes::MX, tuning: EndpointTuning::DEFAULT, narrow: true };
    let mut simulation = Simulation::new(4, kind, conditions, 4);
    simulation.connect_all();
    simulation.run_until_quiet(60_000_000);
    for _ in 0..10_000 {
        let from = random.below(4) as usize;
        let to = (from + 1 + random.below(3) as usize) % 4;
        let most = [0, 32, 128, 2_000, 32_768, 100_000][random.below(6) as usize];
        simulation.send(from, to, random.below(most + 1) as u32, false).unwrap();
        if simulation.hosts[from].sending > 64 {
            simulation.run_until(simulation.now.after_us(1_000));
        }
    }
    simulation.run_until_quiet(600_000_000);
    for host in &simulation.hosts {
        assert_eq!((host.disconnected, host.failed_receives), (0, 0), "no peer was given up");
    }
    assert_eq!(simulation.hosts.iter().map(|host| host.whole.len()).sum::<usize>(), 10_000);
}

/// Some of many short messages are lost: more than a receiver keeps out of order, and more than one round trip
/// recovers.
#[test]
fn lost_packet_among_thousands_is_recovered_quickly() {
    let kind = HostConfig { dialect: Dialect::Mx, sizes: Sizes::MX, tuning: EndpointTuning::DEFAULT, narrow: false };
    for (cut_us, until_us) in [(1, 11), (60, 70), (100, 110), (10, 110), (1, 200)] {
        let mut simulation = Simulation::new(2, kind, NetConditions::FINE, 1);
        simulation.connect_all();
        simulation.run_until_quiet(1_000_000);
        let start = simulation.now;
        (0..4_000).for_each(|_| assert!(simulation.send(0, 1, 8, false).is_some()));
        simulation.run_until(start.after_us(cut_us));
        simulation.wire.cut(0, 1, start.after_us(until_us));
        simulation.run_until_quiet(60_000_000);
        let took_us = simulation.now.since_us(start);
        assert!(took_us < 500_000, "{took_us} us, cut after {cut_us}");
    }
}
