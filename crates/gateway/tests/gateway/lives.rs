//! Endpoints that end, come back as others, or give something up.

use crate::node::{KEY, Kind, address};
use crate::peer::Memory;
use crate::random::{Random, Seed};
use crate::wire::Weather;
use crate::world::World;
use isthmus_layout::limits::ORDINARY_CREDIT_BYTES;
use isthmus_layout::reason::Reason;
use isthmus_mx::wire::{Nack, NackMcp, Packet};
use std::cell::Cell;
use std::rc::Rc;

fn world(nodes: usize) -> World {
    let mut world = World::new(nodes, Kind::fine(), Weather::FINE, 5);
    world.connect_all();
    world
}

/// The one before is gone as `MxSevered`.
#[test]
fn a_peer_that_comes_back_is_somebody_else() {
    let mut world = world(3);
    let before = world.node(0).library.current[&address(2)];
    world.node(2).library.habits.posts_per_million = 0;
    let announced: Vec<u64> = (0..3).map(|_| world.send_whole(0, 2, 100_000, Memory::None)).collect();
    let mapped = world.send_whole(0, 2, 100_000, Memory::Mapped);
    world.run_for(10_000);
    world.replace(2, true);
    world.connect(2, 0, KEY);
    world.connect(0, 2, KEY);
    world.run_for(1_000_000);
    let library = &mut world.node(0).library;
    assert_eq!(library.parted, [before], "it is told once");
    assert!(announced.iter().chain([&mapped]).all(|id| library.failed.contains(id) && !library.over.contains_key(id)));
    let now = library.answers.last().unwrap().1.unwrap();
    assert_ne!(now, before);
    let id = world.send_whole(0, 2, 100_000, Memory::None);
    let back = world.send_whole(2, 0, 100_000, Memory::None);
    world.run_until_quiet(10_000_000);
    assert!(world.node(2).library.received.contains_key(&id) && world.node(0).library.received.contains_key(&back));
    assert_eq!(world.counts(0).strangers, 1);
}

/// A send whose bytes did not all get there has failed, whatever was given back for them.
#[test]
fn a_stream_to_a_peer_that_goes_has_failed() {
    for bytes in [50_000, 90_000, 100_000] {
        let mut world = world(3);
        let mut had = 0;
        world.censor = Some(Box::new(move |_, packet| match packet {
            Packet::PullReply(reply) => {
                had += reply.data.len();
                had < bytes
            }
            _ => true,
        }));
        let id = world.send_whole(0, 2, 100_000, Memory::None);
        world.run_for(20_000);
        world.replace(2, true);
        world.connect(2, 0, KEY);
        world.run_for(1_000_000);
        let library = &world.node(0).library;
        assert!(library.failed.contains(&id) && !library.over.contains_key(&id), "{bytes} of 100 000 got there");
    }
}

/// What was acknowledged is delivered, however late, and before the news that its sender is nobody any more.
#[test]
fn messages_of_somebody_who_has_gone_are_delivered_before_the_news_of_it() {
    let mut world = world(3);
    world.node(0).library.computes = true;
    let ids: Vec<u64> =
        (0..100).map(|count| world.send_whole(2, 0, 400 * count, Memory::None)).filter(|id| *id > 0).collect();
    // Up to 32 KiB they are over when they are acknowledged; the longer ones wait for the program.
    world.run_until_true(10_000_000, |world| world.counts(2).sends == 18);
    world.replace(2, true);
    world.connect(2, 0, KEY);
    world.run_for(1_000_000);
    let new = world.send_whole(2, 0, 5_000, Memory::None);
    world.run_for(100_000);
    assert!(world.counts(0).unread_bytes > u64::from(ORDINARY_CREDIT_BYTES) / 2, "it has all that it takes");
    world.wake(0);
    world.run_until_true(10_000_000, |world| {
        let library = &world.node(0).library;
        let here = ids.iter().filter(|id| library.received.contains_key(id)).count();
        assert!(library.parted.is_empty() || here == 82, "{here} of them came before the end");
        !library.parted.is_empty() && library.received.contains_key(&new)
    });
    assert_eq!(world.node(0).library.parted.len(), 1);
    world.run_until_quiet(10_000_000);
}

#[test]
fn what_a_domain_has_sent_arrives_after_its_end() {
    for seed in 0..50 {
        let _seed = Seed(seed);
        let weather = Weather { loss_per_million: 200_000, ..Weather::FINE };
        let mut world = World::new(3, Kind::fine(), weather, seed);
        world.connect_all();
        let until = world.now.after_us(200_000);
        world.wire.cut(0, 1, until);
        let ids = [0, 100, 5_000, 20_000].map(|len| world.send_whole(0, 2, len, Memory::None));
        world.run_for(50_000);
        assert_eq!(world.counts(0).sends, ids.len());
        world.close(0);
        assert!(!world.node(0).gateway.is_over(), "nothing of it has arrived");
        world.run_until_true(10_000_000, |world| world.node(0).gateway.is_over());
        world.run_for(1_000);
        world.replace(0, false);
        world.run_for(1_000_000);
        assert!(ids.iter().all(|id| world.node(2).library.received.contains_key(id)));
        world.run_until_quiet(20_000_000);
    }
}

#[test]
fn a_domain_that_ends_while_it_streams_breaks_its_messages_off() {
    for memory in [Memory::None, Memory::Mapped] {
        let mut world = world(3);
        let streams: Vec<u64> = (0..20).map(|_| world.send_whole(0, 2, 1 << 20, memory)).collect();
        world.run_until_true(1_000_000, |world| world.node(2).library.received.len() == 3);
        world.close(0);
        assert!(world.node(0).gateway.is_over(), "it has nothing that could go on without its domain");
        world.replace(0, false);
        world.run_until_quiet(30_000_000);
        let library = &world.node(2).library;
        assert!(library.received.len() < streams.len());
        assert!(
            streams.iter().all(|id| library.received.contains_key(id) != library.aborted.contains_key(id)),
            "all end"
        );
        world.run_for(10_000_000);
        assert_eq!(world.node(2).library.parted.len(), 1);
    }
}

#[test]
fn nothing_reaches_a_domain_that_is_gone() {
    let mut world = world(3);
    for count in 0..20 {
        world.send(2, 0, 10_000 * count, false, Memory::None);
        world.send(0, 2, 10_000 * count, false, Memory::None);
    }
    world.run_for(500);
    // A library that is closed does not suffer anything.
    world.close(0);
    world.run_for(5_000_000);
    assert_eq!((world.counts(0).held_bytes, world.counts(0).incoming), (0, 0));
}

/// The peer lets go of one message, which ends as `MxBroken`; nothing else is the matter with it.
#[test]
fn a_transfer_that_breaks_ends_at_both_sides_and_others_go_on() {
    for (len, after) in [(3 << 20, 1 << 20), (100_000, 0), (1 << 20, 500_000)] {
        let mut world = world(3);
        let (puller, had) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(0)));
        let (seen, bytes) = (Rc::clone(&puller), Rc::clone(&had));
        world.censor = Some(Box::new(move |_, packet| {
            match packet {
                Packet::Pull(pull) => seen.set(Some(pull.puller)),
                Packet::PullReply(reply) => bytes.set(bytes.get() + reply.data.len()),
                _ => {}
            }
            true
        }));
        let id = world.send_whole(0, 2, len, Memory::None);
        world.run_until_true(1_000_000, |_| puller.get().is_some() && had.get() >= after);
        let nack = NackMcp {
            src_endpoint: address(2).endpoint,
            nack_type: Nack::BadRdmaWindow,
            puller: puller.get().unwrap(),
        };
        let now = world.now;
        let node = world.node(2);
        node.gateway.receive(now, address(0).peer, &Packet::NackMcp(nack), &mut node.library).unwrap();
        let other = world.send_whole(0, 2, 200_000, Memory::None);
        world.run_until_quiet(10_000_000);
        let library = &world.node(2).library;
        assert_eq!(library.aborted.get(&id), Some(&Reason::MxBroken.code()));
        assert!(!library.received.contains_key(&id));
        assert!(library.received.contains_key(&other) && library.parted.is_empty());
        assert!(world.node(0).library.over.contains_key(&id) && world.node(0).library.parted.is_empty());
    }
}

/// Whatever happens: a message comes once, in order and intact or not at all, and nothing is kept.
#[test]
fn endpoints_that_come_and_go_leave_nothing_behind() {
    let mut arrived = 0;
    for seed in 0..300 {
        let _seed = Seed(seed);
        let mut random = Random::new(seed);
        let weather = Weather {
            loss_per_million: [0, 10_000, 100_000][random.below(3) as usize],
            repeat_per_million: 50_000,
            late_per_million: 100_000,
            late_us: 2_000,
            ..Weather::FINE
        };
        let mut world = World::new(5, Kind::fine(), weather, seed);
        world.connect_all();
        for _ in 0..60 {
            let from = random.below(5) as usize;
            let to = if from < 2 { 2 + random.below(3) as usize } else { random.below(2) as usize };
            let known = world.nodes[from].as_ref().is_some_and(|node| node.library.current.contains_key(&address(to)));
            match random.below(20) {
                0 => {
                    world.replace(from, true);
                }
                1 if world.nodes[from].is_some() => world.close(from),
                2 if world.nodes[from].as_ref().is_some_and(|node| node.gateway.is_over()) => {
                    world.replace(from, true);
                }
                3..=6 if world.is_open(from) => {
                    world.connect(from, to, KEY);
                }
                _ if known && world.is_open(from) => {
                    let most = [10, 1_000, 30_000, 300_000][random.below(4) as usize];
                    let memory = if random.chance(300_000) { Memory::Mapped } else { Memory::None };
                    world.send(from, to, random.below(most) as u32, random.chance(100_000), memory);
                }
                _ => {}
            }
            world.run_for(random.below(2_000));
        }
        for number in 0..5 {
            if !world.is_open(number) {
                world.replace(number, true);
            }
        }
        let pairs = [(0, 2), (3, 1), (2, 0), (1, 4)];
        let mut tries = 0;
        // Requests that cross may end what the other has begun, so that somebody has to try again.
        while !pairs.iter().all(|(from, to)| world.node(*from).library.current.contains_key(&address(*to))) {
            tries += 1;
            assert!(tries < 4, "they do not find each other");
            world.connect_all();
            world.run_for(100_000);
        }
        let ids = pairs.map(|(from, to)| (from, to, world.send_whole(from, to, 50_000, Memory::None)));
        world.run_until_quiet(300_000_000);
        for (from, to, id) in ids {
            let here = world.node(to).library.received.contains_key(&id);
            let library = &world.node(from).library;
            assert_ne!(here, library.failed.contains(&id), "message {id} has failed, or is there");
            assert_eq!(here, library.over.contains_key(&id));
            arrived += u32::from(here);
        }
    }
    assert!(arrived > 1_150, "{arrived} of 1200 arrived");
}
