//! The selection of a link for a peer.

use crate::{SECOND, START, announcement, index, is_dropped, name, nic, report, sent, setup};
use isthmus_mx::board::{Board, Dropped, FrameAction, LinkNumber};
use isthmus_mx::net::Time;
use isthmus_mx::wire::{BROADCAST, PacketType};

const SLOW: LinkNumber = LinkNumber(0);
const FAST: LinkNumber = LinkNumber(1);

fn board() -> Board {
    let mut board = Board::new(setup(1));
    board.add_link(START, SLOW, 1).unwrap();
    board.add_link(START, FAST, 10).unwrap();
    board
}

fn record_seen(board: &mut Board, now: Time, link: LinkNumber) {
    assert_eq!(board.receive(now, link, &announcement(nic(2), 9)), FrameAction::Consumed);
}

#[test]
fn uses_the_fastest_link_on_which_the_peer_was_seen() {
    let mut board = board();
    record_seen(&mut board, START, SLOW);
    assert_eq!(board.link_to(index(1)), Some(SLOW));
    record_seen(&mut board, START, FAST);
    assert_eq!(board.link_to(index(1)), Some(FAST));
    record_seen(&mut board, START.after_us(SECOND), SLOW);
    assert_eq!(board.link_to(index(1)), Some(FAST));
    // Ranks can change. Of links with equal ranks, the first is used.
    board.add_link(START, SLOW, 10).unwrap();
    assert_eq!(board.link_to(index(1)), Some(SLOW));
}

#[test]
fn skips_a_link_that_is_down_until_it_is_up_again() {
    let mut board = board();
    record_seen(&mut board, START, SLOW);
    record_seen(&mut board, START, FAST);
    board.link_down(START, FAST).unwrap();
    assert_eq!(board.link_to(index(1)), Some(SLOW));
    board.link_down(START, SLOW).unwrap();
    assert_eq!(board.link_to(index(1)), None);
    board.link_up(START, FAST).unwrap();
    assert_eq!(board.link_to(index(1)), Some(FAST));
}

#[test]
fn skips_a_link_on_which_the_peer_was_not_seen_for_long() {
    let mut board = board();
    record_seen(&mut board, START, FAST);
    let stale_us = board.setup().tuning.link_stale_us;
    record_seen(&mut board, START.after_us(stale_us), SLOW);
    assert_eq!(board.link_to(index(1)), Some(FAST));
    record_seen(&mut board, START.after_us(stale_us + 1), SLOW);
    assert_eq!(board.link_to(index(1)), Some(SLOW));
    record_seen(&mut board, START.after_us(stale_us + 2), FAST);
    assert_eq!(board.link_to(index(1)), Some(FAST));
    // A peer that is silent on all links keeps its link.
    board.tick(START.after_us(100 * stale_us));
    assert_eq!(board.link_to(index(1)), Some(FAST));
}

#[test]
fn queries_a_never_seen_peer_on_all_links() {
    let mut board = board();
    let peer = board.add_static(START, nic(2), name(2)).unwrap();
    assert_eq!(board.link_to(peer), Some(FAST));
    let mut asked: Vec<_> = sent(&mut board, START)
        .into_iter()
        .filter(|(.., packet)| packet.kind() == PacketType::HostQuery)
        .map(|(link, ..)| link)
        .collect();
    asked.sort();
    assert_eq!(asked, [SLOW, FAST]);
}

#[test]
fn announcements_go_by_all_links_that_are_up() {
    let mut board = board();
    let links = |board: &mut Board, now| -> Vec<LinkNumber> {
        sent(board, now).into_iter().filter(|(_, header, _)| header.dst == BROADCAST).map(|(link, ..)| link).collect()
    };
    assert_eq!(links(&mut board, START), [SLOW, FAST]);
    board.link_down(START, SLOW).unwrap();
    assert_eq!(links(&mut board, START.after_us(SECOND)), [FAST]);
    // Packets that wait for a link are dropped when it fails.
    board.tick(START.after_us(2 * SECOND));
    board.link_down(START, FAST).unwrap();
    assert_eq!(links(&mut board, START.after_us(2 * SECOND)), []);
    // When the link works again, the board announces itself on it, at most at the usual rate.
    board.link_up(START.after_us(2 * SECOND), FAST).unwrap();
    assert_eq!(links(&mut board, START.after_us(3 * SECOND)), [FAST]);
}

#[test]
fn queries_other_links_when_the_only_link_of_a_peer_fails() {
    let mut board = board();
    let peer = board.add_static(START, nic(2), name(2)).unwrap();
    record_seen(&mut board, START, FAST);
    sent(&mut board, START);
    let later = START.after_us(1000 * SECOND);
    while board.next_deadline().is_some_and(|due| due <= later) {
        let due = board.next_deadline().unwrap();
        sent(&mut board, due);
    }
    board.link_down(later, FAST).unwrap();
    let asked = sent(&mut board, later);
    assert!(asked.iter().any(|(link, header, _)| (*link, header.dst) == (SLOW, nic(2))), "{asked:?}");
    assert_eq!(board.link_to(peer), Some(SLOW));
}

/// Returns the links on which peer 2 is queried from a second on, until it has been silent for an hour.
fn asked_by(board: &mut Board, from_s: u64) -> Vec<LinkNumber> {
    let mut links = Vec::new();
    for second in from_s..from_s + 3600 {
        let now = START.after_us(second * SECOND);
        links.extend(sent(board, now).into_iter().filter(|(_, header, _)| header.dst == nic(2)).map(|(link, ..)| link));
    }
    links
}

#[test]
fn first_queries_use_all_links_and_later_ones_the_links_of_the_peer() {
    let mut board = board();
    record_seen(&mut board, START, SLOW);
    let links = asked_by(&mut board, 0);
    assert_eq!(links.iter().filter(|link| **link == FAST).count(), 4);
    assert!(links.iter().filter(|link| **link == SLOW).count() > 8, "{links:?}");
}

#[test]
fn queries_a_named_peer_until_it_was_seen_on_a_link() {
    let mut board = board();
    board.add_static(START, nic(2), name(2)).unwrap();
    let links = asked_by(&mut board, 0);
    assert!(links.iter().filter(|link| **link == SLOW).count() > 12, "{links:?}");
    // After an announcement on one link, a few queries on the faster link suffice.
    record_seen(&mut board, START.after_us(3600 * SECOND), SLOW);
    asked_by(&mut board, 3600);
    assert_eq!(asked_by(&mut board, 7200), []);
}

#[test]
fn a_link_that_is_added_later_is_tried() {
    let mut board = Board::new(setup(1));
    board.add_link(START, SLOW, 1).unwrap();
    board.add_static(START, nic(2), name(2)).unwrap();
    record_seen(&mut board, START, SLOW);
    asked_by(&mut board, 0);
    assert_eq!(asked_by(&mut board, 3600), []);
    board.add_link(START.after_us(7200 * SECOND), FAST, 10).unwrap();
    let links = asked_by(&mut board, 7200);
    assert_eq!(links.iter().filter(|link| **link == FAST).count(), 4);
}

#[test]
fn a_probe_waits_for_a_link() {
    let mut board = Board::new(setup(1));
    board.add_link(START, SLOW, 1).unwrap();
    let peer = board.add_static(START, nic(2), name(2)).unwrap();
    record_seen(&mut board, START, SLOW);
    asked_by(&mut board, 0);
    let later = START.after_us(3600 * SECOND);
    board.link_down(later, SLOW).unwrap();
    board.probe(later, peer);
    assert_eq!(sent(&mut board, later), []);
    board.link_up(later, SLOW).unwrap();
    assert!(sent(&mut board, later).iter().any(|(_, header, _)| header.dst == nic(2)));
}

#[test]
fn link_up_does_nothing_when_the_link_is_up() {
    let mut board = board();
    let mut announcements = 0;
    for second in 0..100 {
        let now = START.after_us(second * SECOND);
        board.link_up(now, FAST).unwrap();
        board.add_link(now, SLOW, 1).unwrap();
        announcements += sent(&mut board, now).iter().filter(|(link, ..)| *link == FAST).count();
    }
    assert_eq!(announcements, 8);
}

#[test]
fn flapping_link_does_not_increase_announcements() {
    let mut board = board();
    let mut announcements = 0;
    for ms in 0..10_000 {
        let now = START.after_us(ms * 1000);
        if ms % 2 == 0 {
            board.link_down(now, SLOW).unwrap()
        } else {
            board.link_up(now, SLOW).unwrap()
        }
        announcements += sent(&mut board, now).iter().filter(|(link, ..)| *link == FAST).count();
    }
    assert_eq!(announcements, 10);
}

#[test]
fn report_names_the_links_of_a_peer() {
    let mut board = board();
    record_seen(&mut board, START, SLOW);
    record_seen(&mut board, START.after_us(5), FAST);
    board.link_down(START, FAST).unwrap();
    let ways: Vec<_> =
        report(&board, index(1)).links.iter().map(|way| (way.link, way.up, way.heard, way.chosen)).collect();
    assert_eq!(ways, [(SLOW, true, Some(START), true), (FAST, false, Some(START.after_us(5)), false)]);
    assert_eq!((report(&board, index(1)).frames, report(&board, index(1)).heard), (2, Some(START.after_us(5))));
    assert_eq!(report(&board, index(0)).links, []);
}

#[test]
fn drops_a_frame_of_an_unknown_link() {
    let mut board = board();
    let frame = announcement(nic(2), 9);
    for link in [2, 7, 8, 255] {
        assert_eq!(board.receive(START, LinkNumber(link), &frame), FrameAction::Dropped(Dropped::NoSuchLink));
    }
    is_dropped(&mut board, START, &announcement(nic(1), 1), Dropped::OwnSource);
}
