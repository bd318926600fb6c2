//! What is kept is bounded, whoever does not do what the others wait for; and when they do, all goes on.

use crate::content::Tag;
use crate::habits::Habits;
use crate::node::{Kind, PER_HOST};
use crate::peer::Memory;
use crate::random::Random;
use crate::wire::Weather;
use crate::world::World;
use isthmus_gateway::{HELD_BYTES_MAX, STREAMS_MAX, UNDER_WAY_BYTES_MAX};
use isthmus_layout::limits::ORDINARY_CREDIT_BYTES;
use isthmus_mx::net::{Time, Tuning};
use isthmus_mx::wire::Packet;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What the wire brings in one go: a window of each partner.
const WINDOW: usize = 1 << 20;

fn world(nodes: usize) -> World {
    let mut world = World::new(nodes, Kind::fine(), Weather::FINE, 5);
    world.connect_all();
    world
}

#[test]
fn a_domain_that_does_not_read_is_sent_no_more_than_is_kept_for_it() {
    let mut world = world(5);
    world.node(0).library.computes = true;
    for count in 0..1000 {
        world.send(2 + count % 3, 0, 20_000, false, Memory::None);
    }
    world.run_for(3_000_000);
    let held = world.counts(0).held_bytes;
    assert!(held >= HELD_BYTES_MAX, "20 MB were sent, and {held} bytes are held");
    assert!(world.held_most <= HELD_BYTES_MAX + 3 * WINDOW, "{} bytes were held", world.held_most);
    let (unread, credit) = (world.counts(0).unread_bytes, u64::from(ORDINARY_CREDIT_BYTES));
    assert!((3 * credit / 2..=3 * credit).contains(&unread), "the domain has {unread} bytes of three");
    world.wake(0);
    world.run_until_quiet(60_000_000);
    world.check_all_arrived();
}

#[test]
fn messages_without_bytes_are_counted_too() {
    let mut world = world(5);
    world.node(0).library.computes = true;
    for count in 0..120_000 {
        world.send(2 + count % 3, 0, 0, false, Memory::None);
    }
    world.run_for(3_000_000);
    let incoming = world.counts(0).incoming;
    assert!(incoming <= 64 << 10, "{incoming} messages are kept");
    world.wake(0);
    world.run_until_quiet(60_000_000);
    world.check_all_arrived();
}

/// Messages before their turn are no reason to refuse the one that they wait for.
#[test]
fn a_lost_message_is_taken_however_many_wait_for_it() {
    let mut world = world(12);
    let until = world.now.after_us(300_000);
    let now = Rc::new(Cell::new(world.now));
    let (clock, mut lost) = (Rc::clone(&now), BTreeMap::new());
    world.censor = Some(Box::new(move |_, packet| match packet {
        Packet::Medium(fragment) => {
            let tag = Tag::parse(fragment.head.match_info);
            *lost.entry(tag.from).or_insert(tag.id) != tag.id || clock.get() > until
        }
        _ => true,
    }));
    for from in 2..12 {
        (0..30).for_each(|_| {
            world.send(from, 0, 32_000, false, Memory::None);
        });
    }
    world.run_until_true(20_000_000, |world| {
        now.set(world.now);
        world.now > until
    });
    assert!(world.held_most > 2 * HELD_BYTES_MAX, "{} bytes were held", world.held_most);
    world.run_until_quiet(5_000_000);
    world.check_all_arrived();
}

#[test]
fn a_peer_that_does_not_acknowledge_is_sent_no_more_than_a_window() {
    let mut world = world(3);
    let until = world.now.after_us(2_000_000);
    world.wire.cut(0, 1, until);
    (0..200).for_each(|_| {
        world.send(0, 2, 20_000, false, Memory::None);
    });
    world.run_until(until);
    let under_way = world.counts(0).under_way_bytes;
    let most = WINDOW as u32 + ORDINARY_CREDIT_BYTES;
    assert!((WINDOW as u32..=most).contains(&under_way), "{under_way} bytes are under way");
    world.run_until_quiet(20_000_000);
    world.check_all_arrived();
}

/// Credit that is held back because of all strangers is not forgotten when those to whom it belongs have nothing under way.
#[test]
fn what_all_peers_do_not_acknowledge_is_bounded_too() {
    const HOSTS: usize = 21;
    let kind = Kind { tuning: Tuning::DEFAULT, ..Kind::fine() };
    let mut world = World::new(HOSTS * PER_HOST, kind, Weather::FINE, 5);
    for to in 1..HOSTS {
        world.connect(0, to * PER_HOST, crate::node::KEY);
    }
    world.run_until_quiet(1_000_000);
    for host in 2..HOSTS {
        // One after the other comes back.
        world.wire.cut(0, host, Time::from_us(1_000_000 * (3 + host as u64)));
        (0..80).for_each(|_| {
            world.send(0, host * PER_HOST, 20_000, false, Memory::None);
        });
    }
    world.run_for(1_000_000);
    let under_way = world.counts(0).under_way_bytes;
    let most = UNDER_WAY_BYTES_MAX + HOSTS as u32 * ORDINARY_CREDIT_BYTES;
    assert!((UNDER_WAY_BYTES_MAX..=most).contains(&under_way), "{under_way} bytes are under way");
    // One that is there, and has acknowledged everything before there is credit again.
    let ids = [(); 3].map(|()| world.send(0, PER_HOST, 20_000, false, Memory::None));
    world.run_for(1_000_000);
    assert_eq!(world.node(PER_HOST).library.received.len(), 3);
    assert!(ids.iter().all(|id| !world.node(0).library.over.contains_key(id)));
    assert!(world.counts(0).under_way_bytes > UNDER_WAY_BYTES_MAX);
    world.run_until_quiet(60_000_000);
    world.check_all_arrived();
}

/// However many are announced, short ones get through, and in the end so do they.
#[test]
fn announcements_that_nobody_answers_hold_nothing_up() {
    for memory in [Memory::None, Memory::Mapped] {
        let mut world = world(5);
        world.node(2).library.habits.posts_per_million = 0;
        for _ in 0..3_000 {
            world.send_whole(0, 2, 40_000, memory);
        }
        world.run_for(1_000_000);
        let counts = world.counts(0);
        assert_eq!((counts.sends, counts.under_way_bytes), (3_000, 0));
        assert!(counts.kept_bytes <= 4 << 20, "{} bytes are kept", counts.kept_bytes);
        // The pages are half of it, and the ends as much: they are more than is kept.
        assert_eq!(counts.kept_bytes > 3 << 20, memory == Memory::Mapped);
        let id = world.send_whole(0, 3, 30_000, Memory::None);
        world.run_until_true(1_000_000, |world| world.node(3).library.received.contains_key(&id));
        world.node(2).library.habits = Habits::EAGER;
        world.wake(2);
        world.run_until_quiet(60_000_000);
        world.check_all_arrived();
    }
}

/// Both have announced more than they have names for before either receives: what ends a transfer does not wait behind what needs its end.
#[test]
fn announcements_both_ways_end_when_both_receive() {
    for (messages, weather) in [(300, Weather::FINE), (3_000, Weather { loss_per_million: 5_000, ..Weather::FINE })] {
        let mut world = World::new(4, Kind::fine(), weather, 5);
        world.connect_all();
        for (from, to) in [(0, 2), (2, 0)] {
            world.node(from).library.habits.posts_per_million = 0;
            (0..messages).for_each(|_| {
                world.send_whole(from, to, 40_000, Memory::None);
            });
        }
        world.run_for(1_000_000);
        for node in [0, 2] {
            world.node(node).library.habits = Habits::EAGER;
            world.wake(node);
        }
        world.run_until_quiet(60_000_000);
        world.check_all_arrived();
    }
}

/// What one of them may have announced at a time is all that an endpoint is told of.
#[test]
fn announcements_beyond_a_limit_are_refused_and_others_are_not() {
    let mut world = world(8);
    world.node(0).library.habits.posts_per_million = 0;
    for from in [2, 4] {
        (0..20_000).for_each(|_| {
            world.send_whole(from, 0, 40_000, Memory::None);
        });
    }
    world.run_for(3_000_000);
    let told = world.counts(0).incoming;
    assert_eq!(told, Tuning::DEFAULT.announced_max);
    let ids = [100, 40_000, 100].map(|length| world.send_whole(6, 0, length, Memory::None));
    world.run_until_true(1_000_000, |world| {
        let received = &world.node(0).library.received;
        received.contains_key(&ids[0]) && received.contains_key(&ids[2])
    });
    assert_eq!(world.counts(0).incoming, told + 1);
}

/// Each host has more to announce than another one may be told of, and fetches only what it was told of.
#[test]
fn announcements_that_were_refused_come_again_when_there_is_room() {
    let tuning = Tuning { announced_max: 20, ..Kind::fine().tuning };
    let mut world = World::new(6, Kind { tuning, ..Kind::fine() }, Weather::FINE, 5);
    world.connect_all();
    let pairs = [(0, 2), (0, 4), (2, 0), (2, 4), (4, 0), (4, 2)];
    for (from, to) in pairs {
        world.node(from).library.habits.posts_per_million = 0;
        (0..300).for_each(|_| {
            world.send_whole(from, to, 40_000, Memory::None);
        });
    }
    world.run_for(1_000_000);
    for node in [0, 2, 4] {
        assert!((20..=20 + 16).contains(&world.counts(node).incoming));
        world.node(node).library.habits = Habits::EAGER;
        world.wake(node);
    }
    world.run_until_quiet(60_000_000);
    world.check_all_arrived();
}

#[test]
fn long_messages_that_are_asked_for_and_not_read_are_bounded() {
    let mut world = world(5);
    // It asks for everything, and then gives no credit.
    world.node(0).library.habits = Habits { gives_per_million: 0, ..Habits::EAGER };
    (0..60).for_each(|count| {
        world.send_whole(2 + count % 3, 0, 3 << 20, Memory::None);
    });
    world.run_for(3_000_000);
    assert!(world.held_most <= 48 << 20, "{} bytes were held", world.held_most);
    world.node(0).library.habits = Habits::EAGER;
    world.wake(0);
    world.run_until_quiet(60_000_000);
    world.check_all_arrived();
}

#[test]
fn more_streams_than_there_may_be_take_turns() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let weather = Weather { loss_per_million: 10_000 * (seed % 3), ..Weather::FINE };
        let mut world = World::new(6, Kind::fine(), weather, seed);
        world.connect_all();
        for _ in 0..6 * STREAMS_MAX {
            let to = 2 + random.below(4) as usize;
            world.send(0, to, 100_000 + random.below(100_000) as u32, false, Memory::None);
        }
        let mut most = 0;
        world.run_until_true(60_000_000, |world| {
            let counts = world.counts(0);
            assert!(counts.streams <= STREAMS_MAX);
            most = most.max(counts.streams);
            counts.sends == 0 && world.node(0).library.is_idle()
        });
        assert_eq!(most, STREAMS_MAX);
        world.run_until_quiet(60_000_000);
        world.check_all_arrived();
    }
}
