//! What a connect is answered with.

use crate::node::{KEY, Kind, address};
use crate::peer::Memory;
use crate::wire::Weather;
use crate::world::World;
use isthmus_layout::reason::Reason;
use isthmus_mx::net::Time;

fn world(nodes: usize) -> World {
    World::new(nodes, Kind::fine(), Weather::FINE, 1)
}

/// The answers that a node has had.
fn answers(world: &mut World, node: usize) -> Vec<Result<(), Reason>> {
    world.node(node).library.answers.iter().map(|(_, outcome)| outcome.map(drop)).collect()
}

#[test]
fn a_connect_gives_a_number_and_always_the_same() {
    let mut world = world(4);
    for _ in 0..3 {
        world.connect(0, 2, KEY);
        world.connect(2, 0, KEY);
    }
    world.connect(0, 3, KEY);
    world.run_until_quiet(1_000_000);
    let numbers: Vec<_> = world.node(0).library.answers.iter().map(|(request, met)| (*request, met.unwrap())).collect();
    let (one, other) = (numbers[0].1, numbers[3].1);
    assert_eq!(numbers, [(1, one), (2, one), (3, one), (4, other)]);
    assert_ne!(one, other);
    assert_eq!(world.counts(0).strangers, 2);
    assert_eq!(answers(&mut world, 2), [Ok(()); 3]);
}

#[test]
fn somebody_who_was_never_connected_to_is_met_when_a_message_of_theirs_comes() {
    let mut world = world(3);
    world.connect(0, 2, KEY);
    world.run_until_quiet(1_000_000);
    assert_eq!(world.counts(2).strangers, 0);
    let id = world.send_whole(0, 2, 100, Memory::None);
    world.run_until_quiet(1_000_000);
    assert_eq!(world.counts(2).strangers, 1);
    let back = world.send_whole(2, 0, 50_000, Memory::None);
    world.run_until_quiet(1_000_000);
    assert_eq!(world.node(2).library.received.get(&id), Some(&100));
    assert_eq!(world.node(0).library.received.get(&back), Some(&50_000));
}

#[test]
fn the_wrong_key_a_closed_endpoint_and_nobody_are_told_apart() {
    let mut world = world(5);
    world.replace(3, false);
    world.connect(0, 2, KEY + 1);
    world.connect(0, 3, KEY);
    world.wire.cut(0, 2, Time::from_us(u64::MAX));
    world.connect(0, 4, KEY);
    world.run_until_quiet(60_000_000);
    let mut answers = world.node(0).library.answers.clone();
    answers.sort_unstable_by_key(|(request, _)| *request);
    let refused = [Reason::MxBadKey, Reason::MxEndpointClosed, Reason::MxUnreachable].map(Err);
    assert_eq!(answers.iter().map(|(_, outcome)| *outcome).collect::<Vec<_>>(), refused);
    assert_eq!(world.counts(0).strangers, 0);
}

#[test]
fn where_there_are_no_numbers_a_connect_fails_and_messages_go_nowhere() {
    let mut world = world(4);
    world.node(0).library.limit_strangers(1);
    world.connect(0, 2, KEY);
    world.connect(2, 0, KEY);
    world.run_until_quiet(1_000_000);
    world.connect(0, 3, KEY);
    world.connect(3, 0, KEY);
    world.run_until_quiet(1_000_000);
    assert_eq!(answers(&mut world, 0), [Ok(()), Err(Reason::MxPartnersFull)]);
    for len in [0, 100, 20_000, 100_000] {
        world.send_whole(3, 0, len, Memory::None);
    }
    world.run_until_quiet(20_000_000);
    assert_eq!((world.counts(0).incoming, world.counts(0).held_bytes), (0, 0), "they are not kept");
    let over = world.node(3).library.over.clone();
    assert_eq!((over.len(), over.values().flatten().copied().sum::<u32>()), (4, 0));
    // Whoever has a number is not disturbed.
    let id = world.send_whole(2, 0, 100_000, Memory::None);
    world.run_until_quiet(20_000_000);
    assert_eq!(world.node(0).library.received.get(&id), Some(&100_000));
    assert_eq!(world.node(0).library.current.get(&address(3)), None);
}
