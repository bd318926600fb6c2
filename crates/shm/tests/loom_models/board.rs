//! Letters K to P: marks, and a receiver that sleeps.

use super::words::{Builder, Handle, Weaken};
use super::{EARLY, FORGOTTEN, LOST, Setting, WHOLE, only, receives, sends};
use isthmus_layout::board::{ANY, MARK_WORDS, MARKS, Place};
use isthmus_shm::{Board, Marker, Words};
use loom::thread;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;

fn marks() -> RangeInclusive<u32> {
    MARKS..=MARKS + MARK_WORDS - 1
}

/// A word that the marker of a place writes before it marks.
fn note(place: Place) -> u32 {
    1000 + u32::from(place.number())
}

fn place(number: u16) -> Place {
    Place::new(number).unwrap()
}

fn board(places: &[Place]) -> Handle {
    Builder::default().board(0, places).atomics(places.iter().map(|place| note(*place))).build()
}

fn mark(memory: Handle, place: Place) -> bool {
    memory.store(note(place), 1, Relaxed);
    Marker::new(memory, place).mark()
}

/// Takes the marks; what was written before each must be there.
fn take(memory: &Handle) -> Vec<Place> {
    let mut taken = Vec::new();
    Board::new(memory).take(|place| {
        assert_eq!(memory.load(note(place), Relaxed), 1, "marked before it was written");
        taken.push(place);
    });
    taken
}

/// Two markers, whose places are in one word of the board or in two, of one group or of two.
fn places_are_marked(setting: &Setting, places: [Place; 2]) {
    let memory = board(&places);
    let sending = memory.weakened(setting.sends.clone());
    let markers = places.map(|place| {
        let memory = sending.clone();
        thread::spawn(move || mark(memory, place))
    });
    let receiving = memory.weakened(setting.receives.clone());
    let mut taken = take(&receiving);
    for marker in markers {
        assert!(!marker.join().unwrap(), "nobody sleeps");
    }
    taken.extend(take(&memory));
    taken.sort();
    assert_eq!(taken, places, "a mark is left, and nobody looks");
}

fn places_of_one_word(setting: &Setting) {
    places_are_marked(setting, [place(2), place(31)]);
}

fn places_of_two_words(setting: &Setting) {
    places_are_marked(setting, [place(2), place(32)]);
}

fn places_of_two_groups(setting: &Setting) {
    places_are_marked(setting, [place(2), place(256)]);
}

#[test]
fn every_mark_is_taken_once() {
    WHOLE.passes(places_of_one_word);
    WHOLE.passes(places_of_two_words);
    WHOLE.passes(places_of_two_groups);
}

#[test]
fn marks_are_lost_without_k() {
    receives(Weaken::Swap(only(ANY))).fails(LOST, places_of_two_words);
    receives(Weaken::Swap(only(ANY))).fails(LOST, places_of_two_groups);
}

#[test]
fn marks_are_lost_without_l() {
    sends(Weaken::Or(only(ANY))).fails(LOST, places_of_two_words);
    sends(Weaken::Or(only(ANY))).fails(LOST, places_of_two_groups);
}

#[test]
fn marks_are_lost_where_l_only_stores() {
    sends(Weaken::OrIsStore(only(ANY))).fails(LOST, places_of_one_word);
    sends(Weaken::OrIsStore(only(ANY))).fails(LOST, places_of_two_words);
    sends(Weaken::OrIsStore(only(ANY))).fails(LOST, places_of_two_groups);
}

#[test]
fn marks_come_before_what_they_announce_without_m() {
    receives(Weaken::Swap(marks())).fails(EARLY, places_of_two_words);
}

#[test]
fn marks_come_before_what_they_announce_without_n() {
    sends(Weaken::Or(marks())).fails(EARLY, places_of_two_words);
}

fn a_receiver_sleeps(setting: &Setting) {
    let memory = board(&[place(2)]);
    let sending = memory.weakened(setting.sends.clone());
    let marker = thread::spawn(move || mark(sending, place(2)));
    let board = Board::new(memory.weakened(setting.receives.clone()));
    let asleep = board.sleep();
    let rung = marker.join().unwrap();
    assert!(rung || !asleep, "asleep, and nobody will ring");
    board.wake();
    assert_eq!(take(&memory), [place(2)]);
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

/// Of two markers that find the receiver asleep, one rings.
fn two_markers_wake_a_receiver(_: &Setting) {
    let places = [place(2), place(32)];
    let memory = board(&places);
    let markers = places.map(|place| {
        let memory = memory.clone();
        thread::spawn(move || mark(memory, place))
    });
    let asleep = Board::new(&memory).sleep();
    let rings = markers.into_iter().map(|marker| u32::from(marker.join().unwrap())).sum::<u32>();
    assert!(rings <= 1 && (rings == 1 || !asleep));
    assert_eq!(take(&memory), places);
}

#[test]
fn one_marker_rings() {
    WHOLE.bounded().passes(two_markers_wake_a_receiver);
}
