use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::*;
use crate::network::Report;
use crate::ports::{EdgeId, InterfaceId};
use DropReason::{Flapping, Loop};

const A: MacAddr = station(1);
const I1: Port = Port::Interface(InterfaceId(1));
const I2: Port = Port::Interface(InterfaceId(2));
const E1: Port = Port::Edge(EdgeId(1));
const E2: Port = Port::Edge(EdgeId(2));

const fn station(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

/// A table of three addresses that age out after five seconds, with what it reported.
struct Table {
    learned: LearnedAddresses,
    reports: Reports,
    hints: BTreeMap<MacAddr, SlotHint>,
}

impl Table {
    fn new() -> Self {
        let learned = LearnedAddresses::new(KeyedHash::new([1, 2]), 3, Millis(5_000), true);
        Self { learned, reports: Reports::default(), hints: BTreeMap::new() }
    }

    fn note(&mut self, now: u64, from: Port, mac: MacAddr) -> Result<(), DropReason> {
        let now = Millis(now);
        let expected = self.learned.check(now, from, mac.into());
        let hint = self.hints.entry(mac).or_insert(SlotHint::NONE);
        let outcome = self.learned.note(now, from, mac.into(), hint, &mut self.reports);
        assert_eq!(outcome, expected, "a check answers like the frame itself");
        outcome
    }

    fn locate(&mut self, now: u64, mac: MacAddr) -> Option<Port> {
        let now = Millis(now);
        let expected = self.learned.peek(now, I1, FREE, mac.into()).map(|(port, _)| port);
        let place = self.learned.locate(now, mac.into(), &mut SlotHint::NONE.clone());
        assert_eq!(place, expected, "a peek answers like the frame itself");
        place
    }

    fn known(&self, now: u64) -> Vec<(u8, Port, u64)> {
        self.learned.iter(Millis(now)).map(|(station, port, age)| (station.mac.0[5], port, age.0)).collect()
    }

    fn reports(&mut self) -> Vec<Report> {
        core::iter::from_fn(|| self.reports.take()).collect()
    }
}

#[test]
fn knows_the_port_of_an_address_until_it_ages_out() {
    let mut table = Table::new();
    assert_eq!(table.locate(0, A), None);
    assert_eq!(table.note(100, I1, A), Ok(()));
    assert_eq!(table.locate(5_099, A), Some(I1));
    assert_eq!(table.known(5_099), [(1, I1, 4_999)]);
    assert_eq!(table.locate(5_100, A), None);
    assert_eq!(table.known(5_100), []);
    assert_eq!(table.note(5_100, E1, A), Ok(()));
    assert_eq!(table.locate(5_100, A), Some(E1));
    assert_eq!(table.learned.counts(), LearnedCounts { learned: 1, moved: 0, evicted: 0 });
}

#[test]
fn forgets_the_address_that_was_not_seen_for_longest() {
    let mut table = Table::new();
    for (now, number) in [(0, 1), (1, 2), (2, 3), (3, 1), (4, 4)] {
        table.note(now, I1, station(number)).unwrap();
    }
    assert_eq!(table.known(4), [(3, I1, 2), (1, I1, 1), (4, I1, 0)]);
    table.note(5, I1, station(1)).unwrap();
    table.note(6, I1, station(5)).unwrap();
    assert_eq!(table.known(6), [(4, I1, 2), (1, I1, 1), (5, I1, 0)]);
    assert_eq!(table.learned.counts(), LearnedCounts { learned: 5, moved: 0, evicted: 2 });
    assert_eq!(table.learned.slots.len(), 3);
}

#[test]
fn tells_before_a_frame_that_its_source_takes_the_place_of_its_destination() {
    let mut table = Table::new();
    for (now, number) in [(0, 1), (1, 2), (2, 3)] {
        table.note(now, I1, station(number)).unwrap();
    }
    let peek = |source: MacAddr, destination: MacAddr| {
        table.learned.peek(Millis(3), E1, Station::from(source), Station::from(destination)).map(|(port, _)| port)
    };
    assert_eq!(peek(station(4), station(1)), None);
    assert_eq!(peek(station(4), station(2)), Some(I1));
    assert_eq!(peek(station(2), station(1)), Some(I1));
    assert_eq!(peek(station(4), station(4)), Some(E1));
    assert_eq!(peek(MacAddr::BROADCAST, station(1)), Some(I1));
}

#[test]
fn a_table_without_room_learns_nothing() {
    let mut table = Table::new();
    table.learned.addresses_max = 0;
    assert_eq!(table.note(0, I1, A), Ok(()));
    assert_eq!(table.locate(0, A), None);
    assert_eq!(table.learned.peek(Millis(0), I1, A.into(), A.into()), None);
}

#[test]
fn a_hint_leads_to_the_slot_of_its_address_only() {
    let mut table = Table::new();
    let mut hint = SlotHint::NONE;
    table.learned.note(Millis(0), I1, A.into(), &mut hint, &mut table.reports).unwrap();
    assert_eq!(hint, SlotHint(0));
    table.note(0, E1, station(2)).unwrap();
    assert_eq!(table.learned.locate(Millis(0), station(2).into(), &mut hint), Some(E1));
    assert_eq!(hint, SlotHint(1));
    table.learned.note(Millis(7), I1, A.into(), &mut hint, &mut table.reports).unwrap();
    assert_eq!((hint, table.known(7)), (SlotHint(0), [(2, E1, 7), (1, I1, 0)].to_vec()));
    assert_eq!(table.learned.locate(Millis(7), station(9).into(), &mut hint), None);
    assert_eq!(hint, SlotHint::NONE);
}

#[test]
fn a_removed_port_takes_its_addresses_and_claims_along() {
    let mut table = Table::new();
    table.note(0, I1, station(1)).unwrap();
    table.note(0, E1, station(2)).unwrap();
    table.note(0, I1, station(3)).unwrap();
    assert_eq!(table.note(300, E1, station(3)), Err(Loop));
    table.learned.forget_port(E1);
    assert_eq!(table.known(300), [(1, I1, 300), (3, I1, 300)]);
    assert_eq!(table.locate(2_000, station(3)), Some(I1), "the claim of the edge went with it");
    table.learned.forget_port(I1);
    assert_eq!(table.known(300), []);
    table.note(300, E2, station(4)).unwrap();
    assert_eq!((table.locate(300, station(1)), table.known(300)), (None, [(4, E2, 0)].to_vec()));
    assert_eq!(table.learned.slots.len(), 3, "slots are used again");
}

#[test]
fn moves_between_edges_between_interfaces_and_from_an_edge_happen_at_once() {
    for (old, new) in [(E1, E2), (I1, I2), (E1, I1)] {
        let mut table = Table::new();
        table.note(0, old, A).unwrap();
        assert_eq!(table.note(0, new, A), Ok(()));
        assert_eq!(table.locate(0, A), Some(new));
        assert_eq!(table.learned.counts().moved, 1);
        assert_eq!(table.reports(), []);
    }
}

#[test]
fn frames_that_come_back_by_an_edge_are_a_loop() {
    let mut table = Table::new();
    for now in [0, 700, 1_400, 2_100] {
        assert_eq!(table.note(now, I1, A), Ok(()));
        assert_eq!(table.note(now + 1, E1, A), Err(Loop));
        assert_eq!(table.note(now + 699, E2, A), Err(Loop));
    }
    assert_eq!(table.locate(2_800, A), Some(I1));
    assert_eq!(table.reports(), [Report::Loop { mac: A, interface: I1, edge: E1 }]);
    assert_eq!(table.learned.counts().moved, 0);
}

#[test]
fn a_loop_is_reported_again_after_the_interval() {
    let mut table = Table::new();
    for now in [5_000, 6_000, 14_000] {
        table.note(now, I1, A).unwrap();
        assert_eq!(table.note(now + 999, E1, A), Err(Loop));
        assert_eq!(table.reports().len(), usize::from(now == 5_000));
    }
    table.note(15_999, I1, A).unwrap();
    assert_eq!(table.note(15_999, E2, A), Err(Loop));
    assert_eq!(table.reports(), [Report::Loop { mac: A, interface: I1, edge: E2 }]);
}

#[test]
fn an_address_moves_to_an_edge_after_a_second_of_silence() {
    let mut table = Table::new();
    table.note(0, I1, A).unwrap();
    assert_eq!(table.note(999, E1, A), Err(Loop));
    table.note(1_000, I1, A).unwrap();
    assert_eq!(table.note(2_000, E1, A), Ok(()));
    assert_eq!((table.locate(2_000, A), table.learned.counts().moved), (Some(E1), 1));
}

#[test]
fn a_station_that_moved_and_announced_itself_once_is_found_within_a_second() {
    let mut table = Table::new();
    table.note(0, I1, A).unwrap();
    assert_eq!(table.note(200, E1, A), Err(Loop));
    assert_eq!(table.locate(999, A), Some(I1));
    assert_eq!(table.known(1_000), [(1, E1, 800)]);
    assert_eq!(table.locate(1_000, A), Some(E1));
    assert_eq!(table.learned.counts().moved, 1);
    assert_eq!(table.locate(5_199, A), Some(E1));
    assert_eq!(table.locate(5_200, A), None, "the age counts from the announcement");
    assert_eq!(table.learned.counts().moved, 1, "the claim has been used");
}

#[test]
fn the_return_of_the_last_frame_does_not_move_a_silent_station() {
    let mut table = Table::new();
    table.note(0, I1, A).unwrap();
    assert_eq!(table.note(199, E1, A), Err(Loop));
    assert_eq!(table.locate(3_000, A), Some(I1));
    assert_eq!(table.note(3_000, I1, A), Ok(()));
    assert_eq!(table.note(3_500, E1, A), Err(Loop));
    assert_eq!(table.note(3_600, I1, A), Ok(()), "a frame of the station withdraws the claim");
    assert_eq!(table.locate(4_900, A), Some(I1));
}

#[test]
fn the_last_of_several_claims_counts() {
    let mut table = Table::new();
    table.note(0, I1, A).unwrap();
    assert_eq!(table.note(300, E1, A), Err(Loop));
    assert_eq!(table.note(400, E2, A), Err(Loop));
    assert_eq!(table.note(500, I2, A), Ok(()), "a move to an interface withdraws the claim");
    assert_eq!(table.locate(2_000, A), Some(I2));
    assert_eq!(table.note(2_400, I2, A), Ok(()));
    assert_eq!(table.note(2_700, E1, A), Err(Loop));
    assert_eq!(table.note(2_800, E2, A), Err(Loop));
    assert_eq!(table.note(3_400, E1, A), Ok(()));
    assert_eq!(table.learned.counts().moved, 3, "to the other interface, to the edge of the claim, to the other edge");
}

#[test]
fn an_address_that_two_remote_stations_use_is_reported_and_followed() {
    let mut table = Table::new();
    for now in 5_000..5_040 {
        let from = if now % 2 == 0 { E1 } else { E2 };
        assert_eq!(table.note(now, from, A), Ok(()));
        assert_eq!(table.locate(now, A), Some(from));
        let expected = if now == 5_009 { [Report::Flapping { mac: A, ports: [E1, E2] }].to_vec() } else { [].to_vec() };
        assert_eq!(table.reports(), expected);
    }
    assert_eq!(table.learned.counts().moved, 39);
}

#[test]
fn eight_moves_in_a_second_are_not_flapping() {
    let mut table = Table::new();
    let mut now = 5_000;
    table.note(now, I1, A).unwrap();
    for _ in 0..4 {
        for step in 0..8 {
            let from = if step % 2 == 0 { I2 } else { I1 };
            assert_eq!(table.note(now + 999 * u64::from(step == 7), from, A), Ok(()));
        }
        now += 1_000;
    }
    assert_eq!(table.reports(), []);
}

#[test]
fn a_window_of_moves_ends_after_a_second() {
    let mut table = Table::new();
    table.note(5_000, E1, A).unwrap();
    table.note(5_000, E2, A).unwrap();
    for step in 0..9 {
        assert_eq!(table.reports(), []);
        table.note(6_000, if step % 2 == 0 { E1 } else { E2 }, A).unwrap();
    }
    assert_eq!(table.reports(), [Report::Flapping { mac: A, ports: [E2, E1] }]);
}

#[test]
fn frames_that_circulate_through_a_bridge_of_two_interfaces_are_cut() {
    let mut table = Table::new();
    table.note(5_000, I1, A).unwrap();
    let outcomes: Vec<_> =
        (1..13).map(|step| table.note(5_000 + step, if step % 2 == 0 { I1 } else { I2 }, A)).collect();
    assert_eq!(outcomes[..9], [Ok(()); 9]);
    assert_eq!(outcomes[9..], [Err(Flapping); 3]);
    assert_eq!(table.reports(), [Report::Flapping { mac: A, ports: [I1, I2] }]);
    assert_eq!(table.note(6_000, I2, A), Err(Flapping), "the port where the address is passes nothing either");
    assert_eq!(table.note(6_001, I2, A), Ok(()), "the window of the moves is over");
    assert_eq!(table.note(6_001, I1, A), Ok(()));
    assert_eq!(table.locate(6_001, A), Some(I1));
}
