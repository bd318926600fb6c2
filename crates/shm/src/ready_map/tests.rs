//! Ready bits, one peer and many, honest and not.
#![cfg(not(loom))]

use super::*;
use crate::{Mapping, SharedMapping};
use isthmus_layout::limits::READY_MAP_BITS;
use isthmus_layout::ready_map::SIZE;

fn taken(ready_map: &ReadyMap<SharedMapping>) -> Vec<u16> {
    let mut bits = Vec::new();
    ready_map.drain(|bit| bits.push(bit.number()));
    bits
}

#[test]
fn each_bit_is_drained_once_and_every_bit_can_be_set() {
    let memory = SharedMapping::new(Mapping::private(SIZE));
    let ready_map = ReadyMap::new(memory.clone());
    let last = READY_MAP_BITS as u16 - 1;
    assert!(!ready_map.is_any_set() && taken(&ready_map).is_empty());
    for bit in [last, 31, 0, 32, 31] {
        assert!(!PeerReadyBit::new(memory.clone(), ReadyBit::new(bit).unwrap()).set());
    }
    assert!(ready_map.is_any_set());
    assert_eq!(taken(&ready_map), [0, 31, 32, last]);
    assert!(!ready_map.is_any_set() && taken(&ready_map).is_empty());
}

#[test]
fn only_the_first_peer_of_a_sleeping_receiver_rings() {
    let memory = SharedMapping::new(Mapping::private(SIZE));
    let ready_map = ReadyMap::new(memory.clone());
    let [one, two] = [2, 3].map(|bit| PeerReadyBit::new(memory.clone(), ReadyBit::new(bit).unwrap()));
    assert!(ready_map.begin_sleep());
    assert_eq!((one.set(), two.set()), (true, false));
    ready_map.end_sleep();
    assert!(!ready_map.begin_sleep(), "asleep with bits in the ready map");
    assert!(!one.set(), "a receiver that did not sleep is rung");
    assert_eq!(taken(&ready_map), [2, 3]);
    assert!(ready_map.begin_sleep());
    ready_map.end_sleep();
    assert!(!one.set());
}

#[test]
fn a_bit_set_without_its_group_is_found_anywhere() {
    let memory = SharedMapping::new(Mapping::private(SIZE));
    let ready_map = ReadyMap::new(memory.clone());
    for number in [2, 31, 255, 256, 257, READY_MAP_BITS as u16 - 1] {
        let bit = ReadyBit::new(number).unwrap();
        memory.or(bit.word(), bit.bit(), Relaxed);
        memory.or(SUMMARY, ANY_GROUP, Release);
        assert_eq!(taken(&ready_map), [number]);
        assert!(!PeerReadyBit::new(memory.clone(), bit).set());
        assert_eq!(taken(&ready_map), [number]);
    }
}

#[test]
fn a_peer_that_sets_everything_sets_all_bits() {
    let memory = SharedMapping::new(Mapping::private(SIZE));
    for word in 0..SIZE.0 as u32 / 4 {
        memory.store(word, u32::MAX, Relaxed);
    }
    let ready_map = ReadyMap::new(memory);
    assert_eq!(taken(&ready_map), (0..READY_MAP_BITS as u16).collect::<Vec<_>>());
    assert!(taken(&ready_map).is_empty());
}
