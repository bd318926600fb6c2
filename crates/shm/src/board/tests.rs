//! Marks, one peer and many, honest and not.
#![cfg(not(loom))]

use super::*;
use crate::{Mapping, Window};
use isthmus_layout::board::SIZE;
use isthmus_layout::limits::BOARD_PLACES;

fn taken(board: &Board<Window>) -> Vec<u16> {
    let mut places = Vec::new();
    board.take(|place| places.push(place.number()));
    places
}

#[test]
fn each_mark_is_taken_once_and_every_place_can_be_marked() {
    let window = Window::new(Mapping::private(SIZE));
    let board = Board::new(window.clone());
    let last = BOARD_PLACES as u16 - 1;
    assert!(!board.any() && taken(&board).is_empty());
    for place in [last, 31, 0, 32, 31] {
        assert!(!Marker::new(window.clone(), Place::new(place).unwrap()).mark());
    }
    assert!(board.any());
    assert_eq!(taken(&board), [0, 31, 32, last]);
    assert!(!board.any() && taken(&board).is_empty());
}

#[test]
fn only_the_first_marker_of_a_sleeping_receiver_rings() {
    let window = Window::new(Mapping::private(SIZE));
    let board = Board::new(window.clone());
    let [one, two] = [2, 3].map(|place| Marker::new(window.clone(), Place::new(place).unwrap()));
    assert!(board.sleep());
    assert_eq!((one.mark(), two.mark()), (true, false));
    board.wake();
    assert!(!board.sleep(), "asleep with marks on the board");
    assert!(!one.mark(), "a receiver that did not sleep is rung");
    assert_eq!(taken(&board), [2, 3]);
    assert!(board.sleep());
    board.wake();
    assert!(!one.mark());
}

#[test]
fn a_marker_that_says_no_more_than_that_there_is_one_is_found_anywhere() {
    let window = Window::new(Mapping::private(SIZE));
    let board = Board::new(window.clone());
    for number in [2, 31, 255, 256, 257, BOARD_PLACES as u16 - 1] {
        let place = Place::new(number).unwrap();
        window.or(place.word(), place.bit(), Relaxed);
        window.or(ANY, ANYWHERE, Release);
        assert_eq!(taken(&board), [number]);
        assert!(!Marker::new(window.clone(), place).mark());
        assert_eq!(taken(&board), [number]);
    }
}

#[test]
fn marks_of_a_peer_that_marks_everything_are_all_places() {
    let window = Window::new(Mapping::private(SIZE));
    for word in 0..SIZE.0 as u32 / 4 {
        window.store(word, u32::MAX, Relaxed);
    }
    let board = Board::new(window);
    assert_eq!(taken(&board), (0..BOARD_PLACES as u16).collect::<Vec<_>>());
    assert!(taken(&board).is_empty());
}
