//! Announcements.

use crate::{LINK, SECOND, START, announcement, board, events, index, is_dropped, nic, quiet, report, sent};
use isthmus_mx::board::{Board, BoardEvent, BoardTuning, Dropped, FrameAction, PeerOrigin};
use isthmus_mx::net::Time;
use isthmus_mx::wire::{
    Announcement, BROADCAST, EndpointNumber, FRAME_BYTES_MIN, Header, Packet, PacketType, PeerIndex, Raw,
};

fn is_taken(board: &mut Board, now: Time, bytes: &[u8]) {
    assert_eq!(board.receive(now, LINK, bytes), FrameAction::Consumed);
}

/// Returns the seconds at which a board announces itself, from the start to `until_s`.
fn announced_at(board: &mut Board, until_s: u64) -> Vec<u64> {
    let mut seconds = Vec::new();
    for second in 0..until_s {
        let now = START.after_us(second * SECOND);
        let count = sent(board, now).into_iter().filter(|(_, header, _)| header.dst == BROADCAST).count();
        seconds.extend(std::iter::repeat_n(second, count));
    }
    seconds
}

#[test]
fn announces_eight_times_then_every_three_minutes() {
    assert_eq!(announced_at(&mut board(1), 500), [0, 1, 2, 3, 4, 5, 6, 7, 187, 367]);
    assert_eq!(announced_at(&mut quiet(1), 500), []);
}

#[test]
fn announcement_equals_that_of_open_mx() {
    let mut board = board(1);
    let (link, header, packet) = board.transmit(START).unwrap();
    assert_eq!((link, header.dst, header.src), (LINK, BROADCAST, nic(1)));
    let bytes = crate::frame(&header, &packet);
    assert_eq!(bytes, announcement(nic(1), 1));
    assert_eq!((bytes.len(), &bytes[14..17]), (FRAME_BYTES_MIN + 4, &[0, 0, 1][..]));
}

#[test]
fn adds_an_announcing_peer_and_announces_back() {
    let mut board = board(1);
    announced_at(&mut board, 100);
    let now = START.after_us(100 * SECOND);
    is_taken(&mut board, now, &announcement(nic(2), 9));
    assert_eq!(events(&mut board), [BoardEvent::Found(index(1))]);
    assert_eq!((board.find(nic(2)), report(&board, index(1)).origin), (Some(index(1)), PeerOrigin::Announced));
    // A repeated announcement has no effect.
    is_taken(&mut board, now, &announcement(nic(2), 9));
    assert_eq!(events(&mut board), []);
    let mut announcements = 0;
    for second in 0..100 {
        let at = now.after_us(second * SECOND);
        let burst = sent(&mut board, at).into_iter().filter(|(_, header, _)| header.dst == BROADCAST).count();
        assert_eq!(burst, usize::from((1..=8).contains(&second)), "{second}");
        announcements += burst;
    }
    assert_eq!(announcements, 8);
}

#[test]
fn new_peers_do_not_delay_announcements() {
    let mut board = board(1);
    let mut announcements = 0;
    for tenths in 0..200_u16 {
        let now = START.after_us(u64::from(tenths) * 100_000);
        is_taken(&mut board, now, &announcement(nic(2 + tenths), 9));
        announcements += sent(&mut board, now).into_iter().filter(|(_, header, _)| header.dst == BROADCAST).count();
    }
    assert_eq!(announcements, 20);
}

#[test]
fn new_serial_triggers_a_query_only() {
    let mut board = board(1);
    is_taken(&mut board, START, &announcement(nic(2), 9));
    let before = report(&board, index(1));
    sent(&mut board, START);
    events(&mut board);
    let now = START.after_us(100 * SECOND);
    is_taken(&mut board, now, &announcement(nic(2), 10));
    assert_eq!(events(&mut board), [BoardEvent::Restarted(index(1))]);
    let after = report(&board, index(1));
    assert_eq!((after.restarts, after.remote_index, after.names), (1, before.remote_index, before.names));
    let asked = sent(&mut board, now);
    assert!(asked.iter().any(|(_, header, packet)| header.dst == nic(2) && packet.kind() == PacketType::HostQuery));
    // A second restart too soon after the first is reported later, if it is announced again.
    is_dropped(&mut board, now, &announcement(nic(2), 11), Dropped::RestartRateLimited);
    is_taken(&mut board, now.after_us(SECOND), &announcement(nic(2), 11));
    assert_eq!((events(&mut board), report(&board, index(1)).restarts), (vec![BoardEvent::Restarted(index(1))], 2));
}

#[test]
fn repeated_events_are_reported_once_until_popped() {
    let mut board = board(1);
    for second in 0..1000 {
        is_taken(&mut board, START.after_us(second * SECOND), &announcement(nic(2), second as u32));
    }
    assert_eq!(events(&mut board), [BoardEvent::Found(index(1)), BoardEvent::Restarted(index(1))]);
    assert_eq!(report(&board, index(1)).restarts, 999);
}

#[test]
fn own_address_with_a_foreign_serial_counts_as_duplicate_address() {
    let mut board = board(1);
    is_dropped(&mut board, START, &announcement(nic(1), 9), Dropped::DuplicateAddress);
    is_dropped(&mut board, START, &announcement(nic(1), 1), Dropped::OwnSource);
    assert_eq!(board.counters().dropped(Dropped::DuplicateAddress), 1);
}

#[test]
fn drops_announcements_of_own_and_mismatched_addresses() {
    let mut board = board(1);
    board.add_local(nic(5), crate::name(5)).unwrap();
    is_dropped(&mut board, START, &announcement(nic(1), 1), Dropped::OwnSource);
    is_dropped(&mut board, START, &announcement(nic(5), 9), Dropped::OwnSource);
    is_dropped(&mut board, START, &announcement(BROADCAST, 9), Dropped::BadSource);
    let header = Header { dst: BROADCAST, src: nic(2), peer_index: PeerIndex::new(0) };
    let data = Announcement { nic_id: nic(3), serial: 9 }.emit();
    is_dropped(&mut board, START, &crate::frame(&header, &Packet::Raw(Raw { data })), Dropped::AnnouncementMismatch);
    assert_eq!(board.peers().count(), 2);
}

#[test]
fn without_discovery_announcements_are_raw_packets_like_others() {
    let mut board = quiet(1);
    let bytes = announcement(nic(2), 9);
    is_dropped(&mut board, START, &bytes, Dropped::NoRawEndpoint);
    board.open(EndpointNumber::RAW).unwrap();
    assert_eq!(board.receive(START, LINK, &bytes), FrameAction::Raw { frame: &bytes });
    assert_eq!(board.peers().count(), 1);
}

#[test]
fn other_raw_packets_are_for_the_raw_endpoint() {
    let mut board = board(1);
    let header = Header { dst: nic(1), src: nic(2), peer_index: None };
    let bytes = crate::frame(&header, &Packet::Raw(Raw { data: [0x5a; 100] }));
    is_dropped(&mut board, START, &bytes, Dropped::NoRawEndpoint);
    board.open(EndpointNumber::RAW).unwrap();
    assert_eq!(board.receive(START, LINK, &bytes), FrameAction::Raw { frame: &bytes });
    assert_eq!(board.counters().received(PacketType::Raw), 1);
    board.close(EndpointNumber::RAW);
    is_dropped(&mut board, START, &bytes, Dropped::NoRawEndpoint);
}

#[test]
fn invalid_announcements_go_to_the_raw_endpoint() {
    let mut board = board(1);
    board.open(EndpointNumber::RAW).unwrap();
    let header = Header { dst: BROADCAST, src: nic(2), peer_index: PeerIndex::new(0) };
    let data = Announcement { nic_id: nic(3), serial: 9 }.emit();
    let bytes = crate::frame(&header, &Packet::Raw(Raw { data }));
    assert_eq!(board.receive(START, LINK, &bytes), FrameAction::Raw { frame: &bytes });
    assert_eq!(board.peers().count(), 1);
    is_taken(&mut board, START, &announcement(nic(2), 9));
}

#[test]
fn flood_of_new_peers_is_rate_limited() {
    let mut board = board(1);
    sent(&mut board, START);
    // 40,000 unknown hosts in twenty seconds.
    let mut frames = 0;
    for number in 0..40_000 {
        let now = START.after_us(u64::from(number) * 500);
        board.receive(now, LINK, &announcement(nic(1000 + number), 9));
        frames += sent(&mut board, now).len();
    }
    let BoardTuning { announced_max, .. } = BoardTuning::DEFAULT;
    assert_eq!(board.peers().count(), 1 + announced_max);
    let refused =
        board.counters().dropped(Dropped::DiscoveryRateLimited) + board.counters().dropped(Dropped::TableFull);
    assert_eq!(refused, 40_000 - announced_max as u64);
    assert!(board.counters().dropped(Dropped::DiscoveryRateLimited) > 0);
    // Twenty announcements, and at most 64 queries at once and 64 per second.
    assert!(frames <= 20 + 64 + 64 * 20, "{frames}");
    // Peers that this host requests or adds still fit.
    assert!(board.ask(START, nic(1)).is_ok());
    assert!(board.add_static(START, nic(2), crate::name(2)).is_ok());
}
