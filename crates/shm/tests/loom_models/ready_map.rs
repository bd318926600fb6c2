//! Letters K to P: ready bits, and a receiver that sleeps.

use super::words::{Builder, Handle, Weaken};
use super::{EARLY, FORGOTTEN, LOST, Setting, WHOLE, only, receives, sends};
use isthmus_layout::ready_map::{READY_BIT_WORDS, READY_BITS, ReadyBit, SUMMARY};
use isthmus_shm::{PeerReadyBit, ReadyMap, Words};
use loom::thread;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;

fn ready_bits() -> RangeInclusive<u32> {
    READY_BITS..=READY_BITS + READY_BIT_WORDS - 1
}

/// A word that a peer writes before it sets its bit.
fn note(ready_bit: ReadyBit) -> u32 {
    1000 + u32::from(ready_bit.number())
}

fn bit(number: u16) -> ReadyBit {
    ReadyBit::new(number).unwrap()
}

fn memory_for(bits: &[ReadyBit]) -> Handle {
    Builder::default().ready_map(0, bits).atomics(bits.iter().map(|bit| note(*bit))).build()
}

fn set(memory: Handle, ready_bit: ReadyBit) -> bool {
    memory.store(note(ready_bit), 1, Relaxed);
    PeerReadyBit::new(memory, ready_bit).set()
}

/// Drains the bits; what was written before each must be there.
fn drain(memory: &Handle) -> Vec<ReadyBit> {
    let mut taken = Vec::new();
    ReadyMap::new(memory).drain(|bit| {
        assert_eq!(memory.load(note(bit), Relaxed), 1, "set before it was written");
        taken.push(bit);
    });
    taken
}

/// Two peers, with bits in one word of the ready map or in two, of one group or of two.
fn bits_are_set(setting: &Setting, bits: [ReadyBit; 2]) {
    let memory = memory_for(&bits);
    let sending = memory.weakened(setting.sends.clone());
    let peers = bits.map(|bit| {
        let memory = sending.clone();
        thread::spawn(move || set(memory, bit))
    });
    let receiving = memory.weakened(setting.receives.clone());
    let mut taken = drain(&receiving);
    for peer in peers {
        assert!(!peer.join().unwrap(), "the receiver does not sleep");
    }
    taken.extend(drain(&memory));
    taken.sort();
    assert_eq!(taken, bits, "a bit is left over");
}

fn bits_of_one_word(setting: &Setting) {
    bits_are_set(setting, [bit(2), bit(31)]);
}

fn bits_of_two_words(setting: &Setting) {
    bits_are_set(setting, [bit(2), bit(32)]);
}

fn bits_of_two_groups(setting: &Setting) {
    bits_are_set(setting, [bit(2), bit(256)]);
}

#[test]
fn every_bit_is_drained_once() {
    WHOLE.passes(bits_of_one_word);
    WHOLE.passes(bits_of_two_words);
    WHOLE.passes(bits_of_two_groups);
}

#[test]
fn bits_are_lost_without_k() {
    receives(Weaken::Swap(only(SUMMARY))).fails(LOST, bits_of_two_words);
    receives(Weaken::Swap(only(SUMMARY))).fails(LOST, bits_of_two_groups);
}

#[test]
fn bits_are_lost_without_l() {
    sends(Weaken::Or(only(SUMMARY))).fails(LOST, bits_of_two_words);
    sends(Weaken::Or(only(SUMMARY))).fails(LOST, bits_of_two_groups);
}

#[test]
fn bits_are_lost_where_l_only_stores() {
    sends(Weaken::OrIsStore(only(SUMMARY))).fails(LOST, bits_of_one_word);
    sends(Weaken::OrIsStore(only(SUMMARY))).fails(LOST, bits_of_two_words);
    sends(Weaken::OrIsStore(only(SUMMARY))).fails(LOST, bits_of_two_groups);
}

#[test]
fn bits_come_before_what_they_announce_without_m() {
    receives(Weaken::Swap(ready_bits())).fails(EARLY, bits_of_two_words);
}

#[test]
fn bits_come_before_what_they_announce_without_n() {
    sends(Weaken::Or(ready_bits())).fails(EARLY, bits_of_two_words);
}

fn a_receiver_sleeps(setting: &Setting) {
    let memory = memory_for(&[bit(2)]);
    let sending = memory.weakened(setting.sends.clone());
    let peer = thread::spawn(move || set(sending, bit(2)));
    let ready_map = ReadyMap::new(memory.weakened(setting.receives.clone()));
    let asleep = ready_map.begin_sleep();
    let rung = peer.join().unwrap();
    assert!(rung || !asleep, "asleep, and nothing will ring");
    ready_map.end_sleep();
    assert_eq!(drain(&memory), [bit(2)]);
}

#[test]
fn a_sleeping_receiver_is_rung() {
    WHOLE.passes(a_receiver_sleeps);
}

#[test]
fn a_sleeping_receiver_is_forgotten_without_o() {
    receives(Weaken::Fence).fails(FORGOTTEN, a_receiver_sleeps);
}

#[test]
fn a_sleeping_receiver_is_forgotten_without_p() {
    sends(Weaken::Fence).fails(FORGOTTEN, a_receiver_sleeps);
}

/// Of two peers that find the receiver asleep, one rings.
fn two_peers_wake_a_receiver(_: &Setting) {
    let bits = [bit(2), bit(32)];
    let memory = memory_for(&bits);
    let peers = bits.map(|bit| {
        let memory = memory.clone();
        thread::spawn(move || set(memory, bit))
    });
    let asleep = ReadyMap::new(&memory).begin_sleep();
    let rings = peers.into_iter().map(|peer| u32::from(peer.join().unwrap())).sum::<u32>();
    assert!(rings <= 1 && (rings == 1 || !asleep));
    assert_eq!(drain(&memory), bits);
}

#[test]
fn one_peer_rings() {
    WHOLE.bounded().passes(two_peers_wake_a_receiver);
}
