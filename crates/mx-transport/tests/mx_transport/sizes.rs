//! Lengths at which something changes, and when a send is over.

use crate::model_peer::Memory;
use crate::node::NetworkConfig;
use crate::random::Random;
use crate::simulation::Simulation;
use crate::wire::NetConditions;
use isthmus_layout::limits::DAEMON_PATH_CREDIT_BYTES;
use isthmus_mx::wire::{Dialect, Packet, Sizes};
use std::cell::Cell;
use std::rc::Rc;

const LENGTHS: [u32; 12] = [0, 1, 32, 33, 128, 129, 8192, 32_767, 32 << 10, (32 << 10) + 1, 1 << 20, 3 << 20];

fn lossy() -> NetConditions {
    NetConditions { loss_per_million: 10_000, late_per_million: 100_000, late_us: 500, ..NetConditions::FINE }
}

#[test]
fn messages_of_all_lengths_arrive_by_every_way() {
    for (dialect, sizes) in [(Dialect::Mx, Sizes::MX), (Dialect::OPEN_MX, Sizes::open_mx(1500).unwrap())] {
        let mut simulation = Simulation::new(3, NetworkConfig { dialect, sizes, ..NetworkConfig::fine() }, lossy(), 7);
        simulation.connect_all();
        for len in LENGTHS {
            for (sync, memory) in [(false, Memory::None), (true, Memory::None), (true, Memory::Mapped)] {
                // All fates of announced messages.
                for _ in 0..16 {
                    simulation.send(0, 2, len.min(200_000), sync, memory);
                }
                simulation.send_whole(2, 0, len, memory);
            }
        }
        simulation.run_until_quiet(600_000_000);
        simulation.check_all_arrived();
    }
}

#[test]
fn a_hundred_mib_arrive() {
    let mut simulation = Simulation::new(3, NetworkConfig::fine(), lossy(), 8);
    simulation.connect_all();
    let id = simulation.send_whole(0, 2, 100 << 20, Memory::None);
    // For a while in the middle of it the receiver does not read.
    simulation.run_for(20_000);
    simulation.node(2).library.is_computing = true;
    simulation.run_for(1_000_000);
    assert_eq!((simulation.node(0).library.over.len(), simulation.levels(2).incoming), (0, 1), "it is under way");
    simulation.wake(2);
    simulation.run_until_quiet(600_000_000);
    simulation.check_all_arrived();
    assert_eq!(simulation.node(2).library.received[&id], 100 << 20);
    assert!(simulation.held_most < 5 << 20, "{} bytes were held", simulation.held_most);
    assert!(simulation.kept_most < 10 << 20, "{} bytes were kept", simulation.kept_most);
}

/// A sender of a message in fragments takes it to be over with the credit for the last one.
#[test]
fn a_stream_is_not_over_before_the_peer_has_it() {
    let mut random = Random::new(3);
    for len in
        [40_000, 100_000, 500_000, 3 << 20].into_iter().chain((0..40).map(|_| 33_000 + random.below(400_000) as u32))
    {
        let mut simulation = Simulation::new(3, NetworkConfig::fine(), lossy(), u64::from(len));
        simulation.connect_all();
        let (open, notified) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (gate, seen) = (Rc::clone(&open), Rc::clone(&notified));
        simulation.drop_filter = Some(Box::new(move |_, packet| match packet {
            Packet::Notify(_) => {
                seen.set(gate.get());
                gate.get()
            }
            _ => true,
        }));
        let id = simulation.send_whole(0, 2, len, Memory::None);
        simulation.run_until_true(10_000_000, |simulation| {
            assert!(!simulation.node(0).library.over.contains_key(&id), "{len} bytes: it cannot know that it is over");
            simulation.node(2).library.received.contains_key(&id)
        });
        simulation.run_for(200_000);
        assert!(!simulation.node(0).library.over.contains_key(&id), "{len} bytes: it was not reported");
        open.set(true);
        simulation.run_until_quiet(10_000_000);
        assert!(notified.get() && simulation.node(0).library.over.contains_key(&id));
    }
}

/// The transport has all bytes of the message, and the program has a part of them.
#[test]
fn a_long_send_is_not_over_while_its_bytes_wait_for_the_program() {
    for memory in [Memory::None, Memory::Mapped] {
        let mut simulation = Simulation::new(3, NetworkConfig::fine(), NetConditions::FINE, 9);
        simulation.connect_all();
        let id = simulation.send_whole(0, 2, 1 << 20, memory);
        simulation.run_until_true(10_000_000, |simulation| simulation.levels(2).unread_bytes > 8192);
        simulation.node(2).library.is_computing = true;
        simulation.run_for(1_000_000);
        let early = simulation.levels(2).held_bytes;
        assert!(early + DAEMON_PATH_CREDIT_BYTES as usize >= 1 << 19, "{early} bytes wait for the program");
        assert!(!simulation.node(0).library.over.contains_key(&id), "{early} bytes wait for the program");
        simulation.wake(2);
        simulation.run_until_quiet(60_000_000);
        simulation.check_all_arrived();
    }
}

/// The records of the message are in the ring of the domain, and nothing shows that the program has taken them.
#[test]
fn a_long_send_is_not_over_before_the_credit_of_its_last_byte_is_back() {
    let mut config = NetworkConfig::fine();
    config.behaviour.gives_per_million = 0;
    let mut simulation = Simulation::new(3, config, NetConditions::FINE, 10);
    simulation.connect_all();
    simulation.node(0).library.behaviour.gives_per_million = 1_000_000;
    for memory in [Memory::None, Memory::Mapped] {
        let id = simulation.send_whole(0, 2, 40_000, memory);
        simulation.run_until_true(10_000_000, |simulation| simulation.node(2).library.received.contains_key(&id));
        simulation.run_for(1_000_000);
        assert_eq!((simulation.levels(2).incoming, simulation.levels(2).held_bytes), (0, 0));
        assert!(!simulation.node(0).library.over.contains_key(&id), "its sender cannot know that it is over");
        simulation.node(2).library.behaviour.gives_per_million = 1_000_000;
        simulation.run_until_quiet(60_000_000);
        assert!(simulation.node(0).library.over.contains_key(&id));
        simulation.node(2).library.behaviour.gives_per_million = 0;
    }
}

#[test]
fn lost_stream_blocks_are_retransmitted() {
    // Nothing but the data is lost, half of it, so that blocks are asked for again and again.
    for seed in 0..20 {
        let sizes = Sizes::open_mx(1000).unwrap().with_block_frames(16).unwrap();
        let mut simulation =
            Simulation::new(3, NetworkConfig { sizes, ..NetworkConfig::fine() }, NetConditions::FINE, seed);
        simulation.connect_all();
        let mut random = Random::new(seed);
        simulation.drop_filter =
            Some(Box::new(move |_, packet| !matches!(packet, Packet::PullReply(_)) || random.chance(500_000)));
        simulation.send_whole(0, 2, 2 << 20, Memory::None);
        simulation.run_until_quiet(120_000_000);
        simulation.check_all_arrived();
        assert_eq!(simulation.node(0).skipped, 0, "what is asked for again is there");
    }
}
