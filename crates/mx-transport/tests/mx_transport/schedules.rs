//! Many short schedules, each with conditions, a network and programs of its own.

use crate::behaviour::PeerBehaviour;
use crate::content::PAGE;
use crate::model_peer::{Memory, REGION};
use crate::node::{NetworkConfig, PER_HOST};
use crate::random::{Random, Seed};
use crate::simulation::Simulation;
use crate::wire::NetConditions;
use isthmus_layout::RegionId;
use isthmus_layout::record::MappablePages;
use isthmus_mx::net::EndpointTuning;
use isthmus_mx::wire::{Dialect, Sizes};
use isthmus_mx_transport::HELD_BYTES_MAX;

fn pick<T: Copy>(random: &mut Random, among: &[T]) -> T {
    among[random.below(among.len() as u64) as usize]
}

fn config(random: &mut Random) -> NetworkConfig {
    let (dialect, sizes) = match random.below(4) {
        0 => (Dialect::Mx, Some(Sizes::MX)),
        1 => (Dialect::OPEN_MX, Sizes::open_mx(9000)),
        2 => (Dialect::OPEN_MX, Sizes::open_mx(1500)),
        _ => (Dialect::OPEN_MX, Sizes::open_mx(300).and_then(|sizes| sizes.with_block_frames(8))),
    };
    let behaviour = PeerBehaviour {
        poll_interval_us: pick(random, &[2, 50, 500]),
        computes_per_million: pick(random, &[0, 0, 10_000, 50_000]),
        computes_us: pick(random, &[5_000, 100_000]),
        gives_per_million: pick(random, &[1_000_000, 300_000, 30_000]),
        posts_per_million: pick(random, &[1_000_000, 300_000, 10_000]),
    };
    let tuning = EndpointTuning { resends_max: 40, ..EndpointTuning::default() };
    NetworkConfig { dialect, sizes: sizes.unwrap(), tuning, behaviour }
}

fn conditions(random: &mut Random) -> NetConditions {
    NetConditions {
        loss_per_million: pick(random, &[0, 1_000, 20_000, 100_000, 300_000]),
        repeat_per_million: pick(random, &[0, 10_000, 100_000]),
        late_per_million: pick(random, &[0, 50_000, 500_000]),
        late_us: 1 + random.below(5_000),
        delay_us: 1 + random.below(2_000),
        bytes_per_ms: pick(random, &[100_000, 1_000_000, 10_000_000]),
        switch: None,
    }
}

fn length(random: &mut Random) -> u32 {
    let most = pick(random, &[0, 32, 128, 129, 1_000, 8_000, 32_768, 200_000]);
    if random.chance(200_000) { most } else { random.below(u64::from(most) + 1) as u32 }
}

/// Some memory; now and then its description is wrong.
fn memory(random: &mut Random) -> Memory {
    let lie = MappablePages { region: REGION, offset: 0, head: 0, tail: 0 };
    match random.below(8) {
        0..=2 => Memory::None,
        3..=5 => Memory::Mapped,
        6 => Memory::Lie(MappablePages { region: RegionId(9), ..lie }),
        _ => Memory::Lie(MappablePages { offset: (8 << 20) - PAGE as u64 + random.below(1 << 40), ..lie }),
    }
}

/// Hosts that send each other a few messages of all kinds.
fn exchange(seed: u64, messages: u64) -> Simulation {
    let _seed = Seed(seed);
    let mut random = Random::new(seed);
    let nodes = 2 + random.below(7) as usize;
    let nodes = if nodes == 2 { 3 } else { nodes };
    let (config, conditions) = (config(&mut random), conditions(&mut random));
    let mut simulation = Simulation::new(nodes, config, conditions, random.next());
    simulation.connect_all();
    for _ in 0..messages {
        let from = random.below(nodes as u64) as usize;
        let others: Vec<usize> = (0..nodes).filter(|to| to / PER_HOST != from / PER_HOST).collect();
        let to = pick(&mut random, &others);
        let (length, memory) = (length(&mut random), memory(&mut random));
        simulation.send(from, to, length, random.chance(100_000), memory);
        if random.chance(300_000) {
            let pause_us = pick(&mut random, &[1, 50, 1_000, 100_000]);
            simulation.run_for(pause_us);
        }
    }
    simulation.run_until_quiet(300_000_000);
    simulation.check_all_arrived();
    simulation
}

#[test]
fn every_message_arrives_once_in_order_and_intact() {
    for seed in 0..2_000 {
        let simulation = exchange(seed, 40);
        assert!(simulation.held_most <= HELD_BYTES_MAX + (2 << 20), "{} bytes were held", simulation.held_most);
    }
}

#[test]
fn schedule_is_deterministic() {
    for seed in 0..10 {
        let [one, other] = [exchange(seed, 40), exchange(seed, 40)];
        assert_eq!((one.now, one.wire.count()), (other.now, other.wire.count()));
    }
}
