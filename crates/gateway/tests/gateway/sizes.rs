//! Lengths at which something changes, and when a send is over.

use crate::node::Kind;
use crate::peer::Memory;
use crate::random::Random;
use crate::wire::Weather;
use crate::world::World;
use isthmus_mx::wire::{Dialect, Packet, Sizes};
use std::cell::Cell;
use std::rc::Rc;

const LENGTHS: [u32; 12] = [0, 1, 32, 33, 128, 129, 8192, 32_767, 32 << 10, (32 << 10) + 1, 1 << 20, 3 << 20];

fn lossy() -> Weather {
    Weather { loss_per_million: 10_000, late_per_million: 100_000, late_us: 500, ..Weather::FINE }
}

#[test]
fn messages_of_all_lengths_arrive_by_every_way() {
    for (dialect, sizes) in [(Dialect::Mx, Sizes::MX), (Dialect::OPEN_MX, Sizes::open_mx(1500).unwrap())] {
        let mut world = World::new(3, Kind { dialect, sizes, ..Kind::fine() }, lossy(), 7);
        world.connect_all();
        for len in LENGTHS {
            for (sync, memory) in [(false, Memory::None), (true, Memory::None), (true, Memory::Mapped)] {
                // All fates of announced messages.
                for _ in 0..16 {
                    world.send(0, 2, len.min(200_000), sync, memory);
                }
                world.send_whole(2, 0, len, memory);
            }
        }
        world.run_until_quiet(600_000_000);
        world.check_all_arrived();
    }
}

#[test]
fn a_hundred_mib_arrive() {
    let mut world = World::new(3, Kind::fine(), lossy(), 8);
    world.connect_all();
    let id = world.send_whole(0, 2, 100 << 20, Memory::None);
    // For a while in the middle of it the receiver does not read.
    world.run_for(20_000);
    world.node(2).library.computes = true;
    world.run_for(1_000_000);
    assert_eq!((world.node(0).library.over.len(), world.counts(2).incoming), (0, 1), "it is under way");
    world.wake(2);
    world.run_until_quiet(600_000_000);
    world.check_all_arrived();
    assert_eq!(world.node(2).library.received[&id], 100 << 20);
    assert!(world.held_most < 5 << 20, "{} bytes were held", world.held_most);
    assert!(world.kept_most < 10 << 20, "{} bytes were kept", world.kept_most);
}

/// Whoever sends a message piece by piece believes that it is over with the credit for its last one.
#[test]
fn a_stream_is_not_over_before_the_peer_has_it() {
    let mut random = Random::new(3);
    for len in
        [40_000, 100_000, 500_000, 3 << 20].into_iter().chain((0..40).map(|_| 33_000 + random.below(400_000) as u32))
    {
        let mut world = World::new(3, Kind::fine(), lossy(), u64::from(len));
        world.connect_all();
        let (open, notified) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (gate, seen) = (Rc::clone(&open), Rc::clone(&notified));
        world.censor = Some(Box::new(move |_, packet| match packet {
            Packet::Notify(_) => {
                seen.set(gate.get());
                gate.get()
            }
            _ => true,
        }));
        let id = world.send_whole(0, 2, len, Memory::None);
        world.run_until_true(10_000_000, |world| {
            assert!(!world.node(0).library.over.contains_key(&id), "{len} bytes: it cannot know that it is over");
            world.node(2).library.received.contains_key(&id)
        });
        world.run_for(200_000);
        assert!(!world.node(0).library.over.contains_key(&id), "{len} bytes: nobody has told it");
        open.set(true);
        world.run_until_quiet(10_000_000);
        assert!(notified.get() && world.node(0).library.over.contains_key(&id));
    }
}

#[test]
fn what_is_lost_of_a_stream_is_still_there() {
    // Nothing but the data is lost, half of it, so that blocks are asked for again and again.
    for seed in 0..20 {
        let sizes = Sizes::open_mx(1000).unwrap().with_block_frames(16).unwrap();
        let mut world = World::new(3, Kind { sizes, ..Kind::fine() }, Weather::FINE, seed);
        world.connect_all();
        let mut random = Random::new(seed);
        world.censor =
            Some(Box::new(move |_, packet| !matches!(packet, Packet::PullReply(_)) || random.chance(500_000)));
        world.send_whole(0, 2, 2 << 20, Memory::None);
        world.run_until_quiet(120_000_000);
        world.check_all_arrived();
        assert_eq!(world.node(0).skipped, 0, "what is asked for again is there");
    }
}
