//! Kept bytes are bounded if a domain or a peer stalls, and all transfers go on when it continues.

use crate::behaviour::PeerBehaviour;
use crate::content::Tag;
use crate::model_peer::Memory;
use crate::node::{NetworkConfig, PER_HOST};
use crate::random::Random;
use crate::simulation::Simulation;
use crate::wire::NetConditions;
use isthmus_layout::limits::DAEMON_PATH_CREDIT_BYTES;
use isthmus_mx::net::{EndpointTuning, Time};
use isthmus_mx::wire::Packet;
use isthmus_mx_transport::{HELD_BYTES_MAX, STREAMS_MAX, UNACKED_BYTES_MAX};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The bytes that the network delivers at once: a window of each partner.
const WINDOW: usize = 1 << 20;

fn simulation(nodes: usize) -> Simulation {
    let mut simulation = Simulation::new(nodes, NetworkConfig::fine(), NetConditions::FINE, 5);
    simulation.connect_all();
    simulation
}

#[test]
fn unread_records_of_a_domain_are_bounded() {
    let mut simulation = simulation(5);
    simulation.node(0).library.is_computing = true;
    for count in 0..1000 {
        simulation.send(2 + count % 3, 0, 20_000, false, Memory::None);
    }
    simulation.run_for(3_000_000);
    let held = simulation.levels(0).held_bytes;
    assert!(held >= HELD_BYTES_MAX, "20 MB were sent, and {held} bytes are held");
    assert!(simulation.held_most <= HELD_BYTES_MAX + 3 * WINDOW, "{} bytes were held", simulation.held_most);
    let (unread, credit) = (simulation.levels(0).unread_bytes, u64::from(DAEMON_PATH_CREDIT_BYTES));
    assert!((3 * credit / 2..=3 * credit).contains(&unread), "the domain has {unread} bytes of three");
    simulation.wake(0);
    simulation.run_until_quiet(60_000_000);
    simulation.check_all_arrived();
}

#[test]
fn messages_without_bytes_are_counted_too() {
    let mut simulation = simulation(5);
    simulation.node(0).library.is_computing = true;
    for count in 0..120_000 {
        simulation.send(2 + count % 3, 0, 0, false, Memory::None);
    }
    simulation.run_for(3_000_000);
    let incoming = simulation.levels(0).incoming;
    assert!(incoming <= 64 << 10, "{incoming} messages are kept");
    simulation.wake(0);
    simulation.run_until_quiet(60_000_000);
    simulation.check_all_arrived();
}

/// Messages before their turn are no reason to refuse the one that they wait for.
#[test]
fn a_lost_message_is_taken_however_many_wait_for_it() {
    let mut simulation = simulation(12);
    let until = simulation.now.after_us(300_000);
    let now = Rc::new(Cell::new(simulation.now));
    let (clock, mut lost) = (Rc::clone(&now), BTreeMap::new());
    simulation.drop_filter = Some(Box::new(move |_, packet| match packet {
        Packet::Medium(fragment) => {
            let tag = Tag::parse(fragment.head.match_info);
            *lost.entry(tag.from).or_insert(tag.id) != tag.id || clock.get() > until
        }
        _ => true,
    }));
    for from in 2..12 {
        (0..30).for_each(|_| {
            simulation.send(from, 0, 32_000, false, Memory::None);
        });
    }
    simulation.run_until_true(20_000_000, |simulation| {
        now.set(simulation.now);
        simulation.now > until
    });
    assert!(simulation.held_most > 2 * HELD_BYTES_MAX, "{} bytes were held", simulation.held_most);
    simulation.run_until_quiet(5_000_000);
    simulation.check_all_arrived();
}

#[test]
fn a_peer_that_does_not_acknowledge_is_sent_no_more_than_a_window() {
    let mut simulation = simulation(3);
    let until = simulation.now.after_us(2_000_000);
    simulation.wire.cut(0, 1, until);
    (0..200).for_each(|_| {
        simulation.send(0, 2, 20_000, false, Memory::None);
    });
    simulation.run_until(until);
    let under_way = simulation.levels(0).unacked_bytes;
    let most = WINDOW as u32 + DAEMON_PATH_CREDIT_BYTES;
    assert!((WINDOW as u32..=most).contains(&under_way), "{under_way} bytes are under way");
    simulation.run_until_quiet(20_000_000);
    simulation.check_all_arrived();
}

/// Credit that is held back because of all remote peers is returned even if its own remote peer has nothing in flight.
#[test]
fn unacknowledged_bytes_of_all_peers_are_bounded() {
    const HOSTS: usize = 21;
    let config = NetworkConfig { tuning: EndpointTuning::DEFAULT, ..NetworkConfig::fine() };
    let mut simulation = Simulation::new(HOSTS * PER_HOST, config, NetConditions::FINE, 5);
    for to in 1..HOSTS {
        simulation.connect(0, to * PER_HOST, crate::node::KEY);
    }
    simulation.run_until_quiet(1_000_000);
    for host in 2..HOSTS {
        // One after the other comes back.
        simulation.wire.cut(0, host, Time::from_us(1_000_000 * (3 + host as u64)));
        (0..80).for_each(|_| {
            simulation.send(0, host * PER_HOST, 20_000, false, Memory::None);
        });
    }
    simulation.run_for(1_000_000);
    let under_way = simulation.levels(0).unacked_bytes;
    let most = UNACKED_BYTES_MAX + HOSTS as u32 * DAEMON_PATH_CREDIT_BYTES;
    assert!((UNACKED_BYTES_MAX..=most).contains(&under_way), "{under_way} bytes are under way");
    // One that is there, and has acknowledged everything before there is credit again.
    let ids = [(); 3].map(|()| simulation.send(0, PER_HOST, 20_000, false, Memory::None));
    simulation.run_for(1_000_000);
    assert_eq!(simulation.node(PER_HOST).library.received.len(), 3);
    assert!(ids.iter().all(|id| !simulation.node(0).library.over.contains_key(id)));
    assert!(simulation.levels(0).unacked_bytes > UNACKED_BYTES_MAX);
    simulation.run_until_quiet(60_000_000);
    simulation.check_all_arrived();
}

/// However many are announced, short ones get through, and in the end so do they.
#[test]
fn unanswered_announcements_do_not_block_others() {
    for memory in [Memory::None, Memory::Mapped] {
        let mut simulation = simulation(5);
        simulation.node(2).library.behaviour.posts_per_million = 0;
        for _ in 0..3_000 {
            simulation.send_whole(0, 2, 40_000, memory);
        }
        simulation.run_for(1_000_000);
        let counts = simulation.levels(0);
        assert_eq!((counts.sends, counts.unacked_bytes), (3_000, 0));
        assert!(counts.kept_bytes <= 4 << 20, "{} bytes are kept", counts.kept_bytes);
        // The pages are half of it, and the ends as much: they are more than is kept.
        assert_eq!(counts.kept_bytes > 3 << 20, memory == Memory::Mapped);
        let id = simulation.send_whole(0, 3, 30_000, Memory::None);
        simulation.run_until_true(1_000_000, |simulation| simulation.node(3).library.received.contains_key(&id));
        simulation.node(2).library.behaviour = PeerBehaviour::EAGER;
        simulation.wake(2);
        simulation.run_until_quiet(60_000_000);
        simulation.check_all_arrived();
    }
}

/// Both have announced more than they have names for before either receives: what ends a transfer does not wait behind what needs its end.
#[test]
fn announcements_both_ways_end_when_both_receive() {
    for (messages, conditions) in
        [(300, NetConditions::FINE), (3_000, NetConditions { loss_per_million: 5_000, ..NetConditions::FINE })]
    {
        let mut simulation = Simulation::new(4, NetworkConfig::fine(), conditions, 5);
        simulation.connect_all();
        for (from, to) in [(0, 2), (2, 0)] {
            simulation.node(from).library.behaviour.posts_per_million = 0;
            (0..messages).for_each(|_| {
                simulation.send_whole(from, to, 40_000, Memory::None);
            });
        }
        simulation.run_for(1_000_000);
        for node in [0, 2] {
            simulation.node(node).library.behaviour = PeerBehaviour::EAGER;
            simulation.wake(node);
        }
        simulation.run_until_quiet(60_000_000);
        simulation.check_all_arrived();
    }
}

/// No more is announced to an endpoint at a time than one of them may have announced.
#[test]
fn announcements_beyond_a_limit_are_refused_and_others_are_not() {
    let mut simulation = simulation(8);
    simulation.node(0).library.behaviour.posts_per_million = 0;
    for from in [2, 4] {
        (0..20_000).for_each(|_| {
            simulation.send_whole(from, 0, 40_000, Memory::None);
        });
    }
    simulation.run_for(3_000_000);
    let announced = simulation.levels(0).incoming;
    assert_eq!(announced, EndpointTuning::DEFAULT.announced_max);
    let ids = [100, 40_000, 100].map(|length| simulation.send_whole(6, 0, length, Memory::None));
    simulation.run_until_true(1_000_000, |simulation| {
        let received = &simulation.node(0).library.received;
        received.contains_key(&ids[0]) && received.contains_key(&ids[2])
    });
    assert_eq!(simulation.levels(0).incoming, announced + 1);
}

/// Each host has more to announce than may be announced to another one, and fetches only what was announced to it.
#[test]
fn announcements_that_were_refused_come_again_when_there_is_room() {
    let tuning = EndpointTuning { announced_max: 20, ..NetworkConfig::fine().tuning };
    let mut simulation = Simulation::new(6, NetworkConfig { tuning, ..NetworkConfig::fine() }, NetConditions::FINE, 5);
    simulation.connect_all();
    let pairs = [(0, 2), (0, 4), (2, 0), (2, 4), (4, 0), (4, 2)];
    for (from, to) in pairs {
        simulation.node(from).library.behaviour.posts_per_million = 0;
        (0..300).for_each(|_| {
            simulation.send_whole(from, to, 40_000, Memory::None);
        });
    }
    simulation.run_for(1_000_000);
    for node in [0, 2, 4] {
        assert!((20..=20 + 16).contains(&simulation.levels(node).incoming));
        simulation.node(node).library.behaviour = PeerBehaviour::EAGER;
        simulation.wake(node);
    }
    simulation.run_until_quiet(60_000_000);
    simulation.check_all_arrived();
}

#[test]
fn long_messages_that_are_asked_for_and_not_read_are_bounded() {
    let mut simulation = simulation(5);
    // It asks for everything, and then gives no credit.
    simulation.node(0).library.behaviour = PeerBehaviour { gives_per_million: 0, ..PeerBehaviour::EAGER };
    (0..60).for_each(|count| {
        simulation.send_whole(2 + count % 3, 0, 3 << 20, Memory::None);
    });
    simulation.run_for(3_000_000);
    assert!(simulation.held_most <= 48 << 20, "{} bytes were held", simulation.held_most);
    simulation.node(0).library.behaviour = PeerBehaviour::EAGER;
    simulation.wake(0);
    simulation.run_until_quiet(60_000_000);
    simulation.check_all_arrived();
}

#[test]
fn streams_beyond_the_limit_wait() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let conditions = NetConditions { loss_per_million: 10_000 * (seed % 3), ..NetConditions::FINE };
        let mut simulation = Simulation::new(6, NetworkConfig::fine(), conditions, seed);
        simulation.connect_all();
        for _ in 0..6 * STREAMS_MAX {
            let to = 2 + random.below(4) as usize;
            simulation.send(0, to, 100_000 + random.below(100_000) as u32, false, Memory::None);
        }
        let mut most = 0;
        simulation.run_until_true(60_000_000, |simulation| {
            let counts = simulation.levels(0);
            assert!(counts.streams <= STREAMS_MAX);
            most = most.max(counts.streams);
            counts.sends == 0 && simulation.node(0).library.is_idle()
        });
        assert_eq!(most, STREAMS_MAX);
        simulation.run_until_quiet(60_000_000);
        simulation.check_all_arrived();
    }
}
