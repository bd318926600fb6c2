//! Endpoints that end, come back as others, or give something up.

use crate::model_peer::Memory;
use crate::node::{KEY, NetworkConfig, address};
use crate::random::{Random, Seed};
use crate::simulation::Simulation;
use crate::wire::NetConditions;
use isthmus_layout::limits::DAEMON_PATH_CREDIT_BYTES;
use isthmus_layout::reason::Reason;
use isthmus_mx::wire::{Nack, NackMcp, Packet};
use std::cell::Cell;
use std::rc::Rc;

fn simulation(nodes: usize) -> Simulation {
    let mut simulation = Simulation::new(nodes, NetworkConfig::fine(), NetConditions::FINE, 5);
    simulation.connect_all();
    simulation
}

/// The one before is removed as `MxDisconnected`.
#[test]
fn restarted_peer_is_a_new_remote_peer() {
    let mut simulation = simulation(3);
    let before = simulation.node(0).library.current[&address(2)];
    simulation.node(2).library.behaviour.posts_per_million = 0;
    let announced: Vec<u64> = (0..3).map(|_| simulation.send_whole(0, 2, 100_000, Memory::None)).collect();
    let mapped = simulation.send_whole(0, 2, 100_000, Memory::Mapped);
    simulation.run_for(10_000);
    simulation.replace(2, true);
    simulation.connect(2, 0, KEY);
    simulation.connect(0, 2, KEY);
    simulation.run_for(1_000_000);
    let library = &mut simulation.node(0).library;
    assert_eq!(library.removed, [before], "it is reported once");
    assert!(announced.iter().chain([&mapped]).all(|id| library.failed.contains(id) && !library.over.contains_key(id)));
    let now = library.answers.last().unwrap().1.unwrap();
    assert_ne!(now, before);
    let id = simulation.send_whole(0, 2, 100_000, Memory::None);
    let back = simulation.send_whole(2, 0, 100_000, Memory::None);
    simulation.run_until_quiet(10_000_000);
    assert!(
        simulation.node(2).library.received.contains_key(&id)
            && simulation.node(0).library.received.contains_key(&back)
    );
    assert_eq!(simulation.levels(0).remote_peers, 1);
}

/// A send fails if not all of its bytes have arrived, whatever credit was returned for them.
#[test]
fn a_stream_to_a_peer_that_goes_has_failed() {
    for bytes in [50_000, 90_000, 100_000] {
        let mut simulation = simulation(3);
        let mut had = 0;
        simulation.drop_filter = Some(Box::new(move |_, packet| match packet {
            Packet::PullReply(reply) => {
                had += reply.data.len();
                had < bytes
            }
            _ => true,
        }));
        let id = simulation.send_whole(0, 2, 100_000, Memory::None);
        simulation.run_for(20_000);
        simulation.replace(2, true);
        simulation.connect(2, 0, KEY);
        simulation.run_for(1_000_000);
        let library = &simulation.node(0).library;
        assert!(library.failed.contains(&id) && !library.over.contains_key(&id), "{bytes} of 100 000 got there");
    }
}

/// Acknowledged messages are delivered, however late, before the removal of their sender is reported.
#[test]
fn complete_messages_are_delivered_before_the_peer_is_removed() {
    let mut simulation = simulation(3);
    simulation.node(0).library.is_computing = true;
    let ids: Vec<u64> =
        (0..100).map(|count| simulation.send_whole(2, 0, 400 * count, Memory::None)).filter(|id| *id > 0).collect();
    // Up to 32 KiB they are over when they are acknowledged; the longer ones wait for the program.
    simulation.run_until_true(10_000_000, |simulation| simulation.levels(2).sends == 18);
    simulation.replace(2, true);
    simulation.connect(2, 0, KEY);
    simulation.run_for(1_000_000);
    let new = simulation.send_whole(2, 0, 5_000, Memory::None);
    simulation.run_for(100_000);
    assert!(simulation.levels(0).unread_bytes > u64::from(DAEMON_PATH_CREDIT_BYTES) / 2, "it has all that it takes");
    simulation.wake(0);
    simulation.run_until_true(10_000_000, |simulation| {
        let library = &simulation.node(0).library;
        let here = ids.iter().filter(|id| library.received.contains_key(id)).count();
        assert!(library.removed.is_empty() || here == 82, "{here} of them came before the end");
        !library.removed.is_empty() && library.received.contains_key(&new)
    });
    assert_eq!(simulation.node(0).library.removed.len(), 1);
    simulation.run_until_quiet(10_000_000);
}

#[test]
fn messages_sent_before_close_are_delivered() {
    for seed in 0..50 {
        let _seed = Seed(seed);
        let conditions = NetConditions { loss_per_million: 200_000, ..NetConditions::FINE };
        let mut simulation = Simulation::new(3, NetworkConfig::fine(), conditions, seed);
        simulation.connect_all();
        let until = simulation.now.after_us(200_000);
        simulation.wire.cut(0, 1, until);
        let ids = [0, 100, 5_000, 20_000].map(|len| simulation.send_whole(0, 2, len, Memory::None));
        simulation.run_for(50_000);
        assert_eq!(simulation.levels(0).sends, ids.len());
        simulation.close(0);
        assert!(!simulation.node(0).transport.is_over(), "nothing of it has arrived");
        simulation.run_until_true(10_000_000, |simulation| simulation.node(0).transport.is_over());
        simulation.run_for(1_000);
        simulation.replace(0, false);
        simulation.run_for(1_000_000);
        assert!(ids.iter().all(|id| simulation.node(2).library.received.contains_key(id)));
        simulation.run_until_quiet(20_000_000);
    }
}

#[test]
fn domain_that_ends_aborts_its_streams() {
    for memory in [Memory::None, Memory::Mapped] {
        let mut simulation = simulation(3);
        let streams: Vec<u64> = (0..20).map(|_| simulation.send_whole(0, 2, 1 << 20, memory)).collect();
        simulation.run_until_true(1_000_000, |simulation| simulation.node(2).library.received.len() == 3);
        simulation.close(0);
        assert!(simulation.node(0).transport.is_over(), "it has nothing that could go on without its domain");
        simulation.replace(0, false);
        simulation.run_until_quiet(30_000_000);
        let library = &simulation.node(2).library;
        assert!(library.received.len() < streams.len());
        assert!(
            streams.iter().all(|id| library.received.contains_key(id) != library.aborted.contains_key(id)),
            "all end"
        );
        simulation.run_for(10_000_000);
        assert_eq!(simulation.node(2).library.removed.len(), 1);
    }
}

#[test]
fn closed_transport_delivers_nothing() {
    let mut simulation = simulation(3);
    for count in 0..20 {
        simulation.send(2, 0, 10_000 * count, false, Memory::None);
        simulation.send(0, 2, 10_000 * count, false, Memory::None);
    }
    simulation.run_for(500);
    // A library that is closed does not suffer anything.
    simulation.close(0);
    simulation.run_for(5_000_000);
    assert_eq!((simulation.levels(0).held_bytes, simulation.levels(0).incoming), (0, 0));
}

/// The peer drops one message, which ends as `MxTransferFailed`. Its other messages are not affected.
#[test]
fn a_transfer_that_breaks_ends_at_both_sides_and_others_go_on() {
    for (len, after) in [(3 << 20, 1 << 20), (100_000, 0), (1 << 20, 500_000)] {
        let mut simulation = simulation(3);
        let (puller, had) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(0)));
        let (seen, bytes) = (Rc::clone(&puller), Rc::clone(&had));
        simulation.drop_filter = Some(Box::new(move |_, packet| {
            match packet {
                Packet::Pull(pull) => seen.set(Some(pull.puller)),
                Packet::PullReply(reply) => bytes.set(bytes.get() + reply.data.len()),
                _ => {}
            }
            true
        }));
        let id = simulation.send_whole(0, 2, len, Memory::None);
        simulation.run_until_true(1_000_000, |_| puller.get().is_some() && had.get() >= after);
        let nack = NackMcp {
            src_endpoint: address(2).endpoint,
            nack_type: Nack::BadRdmaWindow,
            puller: puller.get().unwrap(),
        };
        let now = simulation.now;
        let node = simulation.node(2);
        node.transport.receive(now, address(0).peer, &Packet::NackMcp(nack), &mut node.library).unwrap();
        let other = simulation.send_whole(0, 2, 200_000, Memory::None);
        simulation.run_until_quiet(10_000_000);
        let library = &simulation.node(2).library;
        assert_eq!(library.aborted.get(&id), Some(&Reason::MxTransferFailed.code()));
        assert!(!library.received.contains_key(&id));
        assert!(library.received.contains_key(&other) && library.removed.is_empty());
        assert!(simulation.node(0).library.over.contains_key(&id) && simulation.node(0).library.removed.is_empty());
    }
}

/// Whatever happens: a message comes once, in order and intact or not at all, and nothing is kept.
#[test]
fn endpoints_that_come_and_go_leave_nothing_behind() {
    let mut arrived = 0;
    for seed in 0..300 {
        let _seed = Seed(seed);
        let mut random = Random::new(seed);
        let conditions = NetConditions {
            loss_per_million: [0, 10_000, 100_000][random.below(3) as usize],
            repeat_per_million: 50_000,
            late_per_million: 100_000,
            late_us: 2_000,
            ..NetConditions::FINE
        };
        let mut simulation = Simulation::new(5, NetworkConfig::fine(), conditions, seed);
        simulation.connect_all();
        for _ in 0..60 {
            let from = random.below(5) as usize;
            let to = if from < 2 { 2 + random.below(3) as usize } else { random.below(2) as usize };
            let known =
                simulation.nodes[from].as_ref().is_some_and(|node| node.library.current.contains_key(&address(to)));
            match random.below(20) {
                0 => {
                    simulation.replace(from, true);
                }
                1 if simulation.nodes[from].is_some() => simulation.close(from),
                2 if simulation.nodes[from].as_ref().is_some_and(|node| node.transport.is_over()) => {
                    simulation.replace(from, true);
                }
                3..=6 if simulation.is_open(from) => {
                    simulation.connect(from, to, KEY);
                }
                _ if known && simulation.is_open(from) => {
                    let most = [10, 1_000, 30_000, 300_000][random.below(4) as usize];
                    let memory = if random.chance(300_000) { Memory::Mapped } else { Memory::None };
                    simulation.send(from, to, random.below(most) as u32, random.chance(100_000), memory);
                }
                _ => {}
            }
            simulation.run_for(random.below(2_000));
        }
        for number in 0..5 {
            if !simulation.is_open(number) {
                simulation.replace(number, true);
            }
        }
        let pairs = [(0, 2), (3, 1), (2, 0), (1, 4)];
        let mut tries = 0;
        // Requests that cross may end each other's session, so that one side has to try again.
        while !pairs.iter().all(|(from, to)| simulation.node(*from).library.current.contains_key(&address(*to))) {
            tries += 1;
            assert!(tries < 4, "they do not find each other");
            simulation.connect_all();
            simulation.run_for(100_000);
        }
        let ids = pairs.map(|(from, to)| (from, to, simulation.send_whole(from, to, 50_000, Memory::None)));
        simulation.run_until_quiet(300_000_000);
        for (from, to, id) in ids {
            let here = simulation.node(to).library.received.contains_key(&id);
            let library = &simulation.node(from).library;
            assert_ne!(here, library.failed.contains(&id), "message {id} has failed, or is there");
            assert_eq!(here, library.over.contains_key(&id));
            arrived += u32::from(here);
        }
    }
    assert!(arrived > 1_150, "{arrived} of 1200 arrived");
}
