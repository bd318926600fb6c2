//! Messages in memory that the domain has granted, and descriptions of it that are wrong.

use crate::content::{self, PAGE, POOL_BYTES};
use crate::node::Kind;
use crate::peer::{Memory, REGION};
use crate::wire::Weather;
use crate::world::World;
use isthmus_layout::RegionId;
use isthmus_layout::record::{Mapped, Piece, Record, Serial};
use std::sync::Arc;

fn world() -> World {
    let mut world = World::new(3, Kind::fine(), Weather { loss_per_million: 20_000, ..Weather::FINE }, 5);
    world.connect_all();
    world
}

/// Sends one message and says how many streams that took at most.
fn exchange(world: &mut World, len: u32, memory: Memory) -> usize {
    let id = world.send_whole(0, 2, len, memory);
    let mut most = 0;
    world.run_until_true(20_000_000, |world| {
        most = most.max(world.counts(0).streams);
        world.node(2).library.received.contains_key(&id)
    });
    world.run_until_quiet(20_000_000);
    world.check_all_arrived();
    most
}

#[test]
fn granted_memory_is_sent_from_where_it_is() {
    let mut world = world();
    for len in [40_000, 100_000, 9 * PAGE as u32, 3 << 20] {
        assert_eq!(exchange(&mut world, len, Memory::Mapped), 0, "{len} bytes are not fetched from the domain");
        assert_eq!(exchange(&mut world, len, Memory::None), 1);
    }
}

#[test]
fn where_the_description_is_wrong_the_domain_is_asked_for_the_bytes() {
    let mut world = world();
    let stranger = *world.node(0).library.peers.keys().next().unwrap();
    let few = RegionId(7);
    world.node(0).gateway.grant(stranger, REGION, content::region());
    world.node(0).gateway.grant(stranger, few, Arc::new(content::map(PAGE, 16 * PAGE)));
    let whole = Mapped { region: REGION, offset: 0, head: 0, tail: 0 };
    let lies = [
        Mapped { region: RegionId(9), ..whole },
        Mapped { offset: POOL_BYTES as u64 - 99_999, ..whole },
        Mapped { offset: POOL_BYTES as u64, ..whole },
        Mapped { offset: u64::MAX, ..whole },
        // Before the part that is mapped, and beyond its end.
        Mapped { region: few, offset: 0, ..whole },
        Mapped { region: few, offset: PAGE as u64 + 1, ..whole },
    ];
    for lie in lies {
        assert_eq!(exchange(&mut world, 100_000, Memory::Lie(lie)), 1, "{lie:?}");
    }
    // More at the ends than the message has.
    let ends = Mapped { head: 4_000, tail: 4_000, ..whole };
    world.ids = 15;
    let id = world.send(0, 2, 5_000, true, Memory::Lie(ends));
    world.run_until_quiet(20_000_000);
    assert_eq!(world.node(2).library.received.get(&id), Some(&5_000));
}

#[test]
fn a_head_longer_than_what_came_with_the_record_is_a_lie_too() {
    let mut world = world();
    let now = world.now;
    let node = world.node(0);
    let stranger = *node.library.peers.keys().next().unwrap();
    node.library.computes = true;
    node.library.peers.get_mut(&stranger).unwrap().spend();
    node.gateway.grant(stranger, REGION, content::region());
    let piece = Piece { offset: 0, len: 10 };
    let mapped = Some(Mapped { region: REGION, offset: 0, head: 4_000, tail: 0 });
    let tag = content::Tag { from: 0, len: 100_000, id: 16 }.emit();
    let record = Record::Announce { tag, len: 100_000, serial: Serial(77), piece, mapped };
    node.gateway.take(now, stranger, &record, &[1; 10], &mut node.library).unwrap();
    world.run_until_true(1_000_000, |world| !world.node(0).library.waiting().is_empty());
    assert_eq!(world.node(0).library.waiting(), [Record::Pull { serial: Serial(77), bytes: 100_000 }]);
}

#[test]
fn what_is_revoked_is_not_used_for_new_messages_and_old_ones_go_on() {
    let mut world = world();
    world.node(2).library.computes = true;
    let id = world.send_whole(0, 2, 200_000, Memory::Mapped);
    world.run_until_true(1_000_000, |world| world.counts(0).sends == 1);
    let stranger = *world.node(0).library.peers.keys().next().unwrap();
    world.node(0).gateway.revoke(stranger, REGION);
    world.wake(2);
    world.run_until_true(20_000_000, |world| {
        assert_eq!(world.counts(0).streams, 0);
        world.node(2).library.received.contains_key(&id)
    });
    let page = Mapped { region: REGION, offset: 0, head: 0, tail: 0 };
    assert_eq!(exchange(&mut world, 100_000, Memory::Lie(page)), 1);
}

#[test]
fn memory_for_nobody_is_not_kept() {
    let mut world = world();
    let memory = Arc::new(content::map(0, PAGE));
    world.node(0).gateway.grant(isthmus_layout::DomainId::remote(99).unwrap(), REGION, Arc::clone(&memory));
    assert_eq!(Arc::strong_count(&memory), 1);
    let stranger = *world.node(0).library.peers.keys().next().unwrap();
    world.node(0).gateway.grant(stranger, REGION, Arc::clone(&memory));
    assert_eq!(Arc::strong_count(&memory), 2);
    world.replace(2, true);
    world.connect(2, 0, crate::node::KEY);
    world.run_for(1_000_000);
    assert_eq!(Arc::strong_count(&memory), 1, "the stranger has gone, and its memory with it");
}
