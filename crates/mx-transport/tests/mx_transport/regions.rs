//! Messages in memory that the domain has granted, and descriptions of it that are wrong.

use crate::content::{self, PAGE, POOL_BYTES};
use crate::model_peer::{Memory, REGION};
use crate::node::NetworkConfig;
use crate::simulation::Simulation;
use crate::wire::NetConditions;
use isthmus_layout::RegionId;
use isthmus_layout::record::{Fragment, MappablePages, Record, Serial};
use std::sync::Arc;

fn simulation() -> Simulation {
    let mut simulation =
        Simulation::new(3, NetworkConfig::fine(), NetConditions { loss_per_million: 20_000, ..NetConditions::FINE }, 5);
    simulation.connect_all();
    simulation
}

/// Sends one message and says how many streams that took at most.
fn exchange(simulation: &mut Simulation, len: u32, memory: Memory) -> usize {
    let id = simulation.send_whole(0, 2, len, memory);
    let mut most = 0;
    simulation.run_until_true(20_000_000, |simulation| {
        most = most.max(simulation.levels(0).streams);
        simulation.node(2).library.received.contains_key(&id)
    });
    simulation.run_until_quiet(20_000_000);
    simulation.check_all_arrived();
    most
}

#[test]
fn granted_memory_is_sent_from_where_it_is() {
    let mut simulation = simulation();
    for len in [40_000, 100_000, 9 * PAGE as u32, 3 << 20] {
        assert_eq!(exchange(&mut simulation, len, Memory::Mapped), 0, "{len} bytes are not fetched from the domain");
        assert_eq!(exchange(&mut simulation, len, Memory::None), 1);
    }
}

#[test]
fn falls_back_to_pull_when_the_region_description_is_wrong() {
    let mut simulation = simulation();
    let remote_peer = *simulation.node(0).library.peers.keys().next().unwrap();
    let few = RegionId(7);
    simulation.node(0).transport.grant(remote_peer, REGION, content::region());
    simulation.node(0).transport.grant(remote_peer, few, Arc::new(content::map(PAGE, 16 * PAGE)));
    let whole = MappablePages { region: REGION, offset: 0, head: 0, tail: 0 };
    let lies = [
        MappablePages { region: RegionId(9), ..whole },
        MappablePages { offset: POOL_BYTES as u64 - 99_999, ..whole },
        MappablePages { offset: POOL_BYTES as u64, ..whole },
        MappablePages { offset: u64::MAX, ..whole },
        // Before the part that is mapped, and beyond its end.
        MappablePages { region: few, offset: 0, ..whole },
        MappablePages { region: few, offset: PAGE as u64 + 1, ..whole },
    ];
    for lie in lies {
        assert_eq!(exchange(&mut simulation, 100_000, Memory::Lie(lie)), 1, "{lie:?}");
    }
    // More at the ends than the message has.
    let ends = MappablePages { head: 4_000, tail: 4_000, ..whole };
    simulation.ids = 15;
    let id = simulation.send(0, 2, 5_000, true, Memory::Lie(ends));
    simulation.run_until_quiet(20_000_000);
    assert_eq!(simulation.node(2).library.received.get(&id), Some(&5_000));
}

#[test]
fn rejects_a_head_longer_than_the_record_payload() {
    let mut simulation = simulation();
    let now = simulation.now;
    let node = simulation.node(0);
    let remote_peer = *node.library.peers.keys().next().unwrap();
    node.library.is_computing = true;
    node.library.peers.get_mut(&remote_peer).unwrap().spend();
    node.transport.grant(remote_peer, REGION, content::region());
    let fragment = Fragment { offset: 0, len: 10 };
    let mapped = Some(MappablePages { region: REGION, offset: 0, head: 4_000, tail: 0 });
    let tag = content::Tag { from: 0, len: 100_000, id: 16 }.emit();
    let record = Record::Announce { tag, len: 100_000, serial: Serial(77), fragment, mapped };
    node.transport.handle_domain_record(now, remote_peer, &record, &[1; 10], &mut node.library).unwrap();
    simulation.run_until_true(1_000_000, |simulation| !simulation.node(0).library.waiting().is_empty());
    assert_eq!(simulation.node(0).library.waiting(), [Record::Pull { serial: Serial(77), bytes: 100_000 }]);
}

#[test]
fn revoked_region_serves_only_messages_in_progress() {
    let mut simulation = simulation();
    simulation.node(2).library.is_computing = true;
    let id = simulation.send_whole(0, 2, 200_000, Memory::Mapped);
    simulation.run_until_true(1_000_000, |simulation| simulation.levels(0).sends == 1);
    let remote_peer = *simulation.node(0).library.peers.keys().next().unwrap();
    simulation.node(0).transport.revoke(remote_peer, REGION);
    simulation.wake(2);
    simulation.run_until_true(20_000_000, |simulation| {
        assert_eq!(simulation.levels(0).streams, 0);
        simulation.node(2).library.received.contains_key(&id)
    });
    let page = MappablePages { region: REGION, offset: 0, head: 0, tail: 0 };
    assert_eq!(exchange(&mut simulation, 100_000, Memory::Lie(page)), 1);
}

#[test]
fn grant_for_an_unknown_peer_is_dropped() {
    let mut simulation = simulation();
    let memory = Arc::new(content::map(0, PAGE));
    simulation.node(0).transport.grant(isthmus_layout::DomainId::remote(99).unwrap(), REGION, Arc::clone(&memory));
    assert_eq!(Arc::strong_count(&memory), 1);
    let remote_peer = *simulation.node(0).library.peers.keys().next().unwrap();
    simulation.node(0).transport.grant(remote_peer, REGION, Arc::clone(&memory));
    assert_eq!(Arc::strong_count(&memory), 2);
    simulation.replace(2, true);
    simulation.connect(2, 0, crate::node::KEY);
    simulation.run_for(1_000_000);
    assert_eq!(Arc::strong_count(&memory), 1, "the remote peer is gone, and its memory with it");
}
