//! Tests of the sending side.

use super::*;

const SMALL: u32 = StreamPath::Small.bytes();
const LARGE: u32 = StreamPath::Large.bytes();

fn view(taken: u32) -> SenderView {
    SenderView { attached: true, taken, tcp_please: false }
}

/// A sender that has sent `at` bytes on TCP.
fn after_tcp(at: u64) -> Sender {
    let mut sender = Sender::default();
    sender.begin_tcp();
    sender.end_tcp(at);
    sender
}

/// A sender on the small ring, from position `at` on. The switch is taken.
fn on_small(at: u64) -> Sender {
    let mut sender = after_tcp(at);
    sender.consider(view(0), || false).unwrap().unwrap();
    assert_eq!(sender.consider(view(1), || false), Ok(None));
    sender
}

#[test]
fn stays_on_tcp_while_the_receiver_is_not_attached() {
    let mut sender = after_tcp(100);
    assert_eq!(sender.consider(SenderView { attached: false, ..view(0) }, || false), Ok(None));
    assert_eq!((sender.path(), sender.room(), sender.unread(), sender.position()), (StreamPath::Tcp, 0, 0, 100));
    assert!(!sender.is_switching());
}

#[test]
fn announces_the_small_ring_at_its_position() {
    let mut sender = after_tcp(100);
    let announced = sender.consider(view(0), || false).unwrap();
    assert_eq!(announced, Some(Announcement { count: 1, at: 100, path: StreamPath::Small, tcp_bytes: 100 }));
    assert_eq!((sender.path(), sender.room(), sender.unread()), (StreamPath::Small, SMALL, 0));
    assert!(sender.is_switching());
    sender.wrote(10);
    assert_eq!((sender.position(), sender.room(), sender.unread()), (110, SMALL - 10, 10));
}

#[test]
fn does_not_switch_while_a_call_sends_on_tcp() {
    let mut sender = Sender::default();
    sender.begin_tcp();
    sender.begin_tcp();
    assert_eq!(sender.consider(view(0), || false), Ok(None));
    sender.end_tcp(7);
    assert_eq!(sender.consider(view(0), || false), Ok(None));
    sender.end_tcp(5);
    assert_eq!(sender.consider(view(0), || false).unwrap().map(|announced| announced.at), Some(12));
}

#[test]
fn goes_back_to_tcp_before_the_last_switch_is_taken() {
    let mut sender = after_tcp(100);
    sender.consider(view(0), || false).unwrap().unwrap();
    sender.wrote(10);
    sender.keep_on_tcp(true);
    assert_eq!(sender.consider(view(0), || true), Ok(None), "it would read what follows");
    let back = sender.consider(view(0), || false).unwrap();
    assert_eq!(back, Some(Announcement { count: 2, at: 110, path: StreamPath::Tcp, tcp_bytes: 100 }));
    sender.keep_on_tcp(false);
    sender.begin_tcp();
    sender.end_tcp(5);
    assert_eq!(sender.unread(), 10);
    for taken in [0, 1] {
        assert_eq!(sender.consider(view(taken), || false), Ok(None), "no third switch");
    }
    sender.saw_head(104).unwrap();
    assert_eq!(sender.unread(), 6);
    let again = sender.consider(view(2), || false).unwrap();
    assert_eq!(again, Some(Announcement { count: 3, at: 115, path: StreamPath::Small, tcp_bytes: 105 }));
    assert_eq!(sender.unread(), 0);
}

#[test]
fn a_call_that_reads_tcp_does_not_matter_to_a_receiver_on_a_ring() {
    let mut sender = on_small(100);
    sender.wrote(SMALL);
    sender.was_full(0, 0);
    assert!(sender.consider(view(1), || false).unwrap().is_some_and(|announced| announced.path == StreamPath::Large));
    sender.keep_on_tcp(true);
    let back = sender.consider(view(1), || true).unwrap();
    assert_eq!(back.map(|announced| (announced.count, announced.path)), Some((3, StreamPath::Tcp)));
}

#[test]
fn a_ring_that_stays_full_spills_to_tcp() {
    let mut sender = after_tcp(100);
    sender.consider(view(0), || false).unwrap().unwrap();
    sender.wrote(SMALL);
    assert!(!sender.was_full(50, 1000));
    assert!(!sender.was_full(50, 999 + SPILL_MS));
    assert_eq!(sender.consider(view(0), || false), Ok(None));
    assert!(!sender.was_full(51, 1000 + SPILL_MS), "the receiver reads");
    assert!(sender.was_full(51, 1000 + 2 * SPILL_MS));
    let spilled = sender.consider(view(0), || false).unwrap();
    assert_eq!(spilled.map(|announced| (announced.count, announced.path)), Some((2, StreamPath::Tcp)));
    assert_eq!(sender.consider(view(2), || false).unwrap().map(|announced| announced.path), Some(StreamPath::Small));
}

#[test]
fn a_full_ring_that_cannot_spill_has_no_room() {
    let mut sender = after_tcp(100);
    sender.consider(view(0), || false).unwrap().unwrap();
    sender.wrote(SMALL);
    sender.was_full(0, 0);
    assert!(!sender.can_send(view(0), || false), "not yet");
    sender.was_full(0, SPILL_MS);
    assert!(sender.can_send(view(0), || false), "the next write goes to TCP");
    assert!(!sender.can_send(view(0), || true), "the receiver would read it before the ring");
    assert_eq!(sender.consider(view(0), || true), Ok(None));
}

#[test]
fn a_ring_with_room_again_does_not_spill() {
    let mut sender = on_small(0);
    sender.consider(view(1), || false).unwrap();
    sender.wrote(SMALL);
    sender.was_full(0, 0);
    assert!(sender.consider(view(1), || false).unwrap().is_some_and(|announced| announced.path == StreamPath::Large));
    sender.wrote(LARGE);
    sender.was_full(0, 0);
    assert!(sender.was_full(0, SPILL_MS));
    sender.saw_head(9).unwrap();
    sender.saw_taken(2).unwrap();
    sender.saw_head(SMALL + 9).unwrap();
    sender.wrote(9);
    assert_eq!(sender.consider(view(2), || false), Ok(None));
}

#[test]
fn returns_to_the_large_ring_that_was_full() {
    let mut sender = on_small(0);
    sender.wrote(SMALL);
    sender.was_full(0, 0);
    sender.consider(view(1), || false).unwrap().unwrap();
    sender.wrote(LARGE);
    sender.was_full(0, 0);
    sender.was_full(0, SPILL_MS);
    let path =
        |sender: &mut Sender, taken| sender.consider(view(taken), || false).unwrap().map(|announced| announced.path);
    assert_eq!(path(&mut sender, 1), Some(StreamPath::Tcp), "with a switch outstanding");
    assert_eq!(path(&mut sender, 2), None);
    assert_eq!(path(&mut sender, 3), Some(StreamPath::Large));
    sender.wrote(10);
    let unread = sender.take_back(3, 0).unwrap().unwrap();
    assert_eq!(
        unread,
        [
            bytes(StreamPath::Large, (SMALL + LARGE).into(), 10),
            bytes(StreamPath::Small, (SMALL + LARGE + 10).into(), 0)
        ]
    );
}

#[test]
fn does_not_take_back_a_ring_before_tcp_that_the_receiver_has_not_begun() {
    let mut sender = after_tcp(100);
    sender.consider(view(0), || false).unwrap().unwrap();
    sender.keep_on_tcp(true);
    let mut empty = sender;
    empty.consider(view(0), || false).unwrap().unwrap();
    assert!(empty.take_back(0, 70).unwrap().is_some(), "nothing is in the ring");
    sender.wrote(5);
    sender.consider(view(0), || false).unwrap().unwrap();
    assert_eq!(sender.take_back(0, 70), Ok(None));
}

#[test]
fn goes_back_to_tcp_when_the_receiver_asks() {
    let mut sender = on_small(100);
    let back = sender.consider(SenderView { tcp_please: true, ..view(1) }, || false).unwrap();
    assert_eq!(back.map(|announced| announced.path), Some(StreamPath::Tcp));
    assert_eq!(sender.consider(SenderView { tcp_please: true, ..view(2) }, || false), Ok(None));
    assert_eq!(sender.consider(view(2), || false).unwrap().map(|announced| announced.path), Some(StreamPath::Small));
}

#[test]
fn gets_the_large_ring_after_the_small_one_was_full() {
    let mut sender = on_small(0);
    assert_eq!(sender.consider(view(1), || false), Ok(None));
    sender.was_full(0, 0);
    sender.wrote(SMALL);
    assert_eq!(sender.room(), 0);
    let announced = sender.consider(view(1), || false).unwrap();
    let at = u64::from(SMALL);
    assert_eq!(announced, Some(Announcement { count: 2, at, path: StreamPath::Large, tcp_bytes: 0 }));
    assert_eq!((sender.room(), sender.unread()), (LARGE, at), "bytes in the small ring take no room of the large one");
    sender.wrote(LARGE);
    assert_eq!((sender.room(), sender.unread()), (0, at + u64::from(LARGE)));
    for _ in 0..9 {
        sender.was_full(0, 0);
    }
    assert_eq!(sender.consider(view(2), || false), Ok(None), "there is no larger ring");
    assert_eq!((sender.room(), sender.unread()), (0, u64::from(LARGE)));
}

#[test]
fn forgets_at_a_switch_that_the_ring_was_full() {
    let mut sender = on_small(0);
    sender.was_full(0, 0);
    sender.keep_on_tcp(true);
    sender.consider(view(1), || false).unwrap().unwrap();
    sender.keep_on_tcp(false);
    assert_eq!(sender.consider(view(2), || false).unwrap().map(|announced| announced.path), Some(StreamPath::Small));
    assert_eq!(sender.consider(view(3), || false), Ok(None));
}

#[test]
fn frees_the_room_that_the_receiver_has_read() {
    let mut sender = on_small(100);
    sender.wrote(SMALL);
    sender.saw_head(100).unwrap();
    assert_eq!(sender.room(), 0);
    sender.saw_head(101).unwrap();
    assert_eq!((sender.room(), sender.unread()), (1, u64::from(SMALL) - 1));
    sender.saw_head(100 + SMALL).unwrap();
    assert_eq!((sender.room(), sender.unread()), (SMALL, 0));
}

#[test]
fn positions_wrap_at_4_gib() {
    let start = (1 << 32) - 10;
    let mut sender = on_small(start);
    sender.wrote(30);
    sender.saw_head((start + 4) as u32).unwrap();
    assert_eq!(sender.unread(), 26);
    sender.saw_head(15).unwrap();
    assert_eq!((sender.unread(), sender.room()), (5, SMALL - 5));
    assert_eq!(sender.saw_head(14), Err(Violation::HeadOutside));
    assert_eq!(sender.saw_head(21), Err(Violation::HeadOutside));
    sender.keep_on_tcp(true);
    assert_eq!(sender.consider(view(1), || false).unwrap().map(|announced| announced.at), Some((1 << 32) + 20));
}

#[test]
fn refuses_a_head_outside_of_what_was_sent() {
    let mut sender = on_small(100);
    assert_eq!(sender.saw_head(101), Err(Violation::HeadOutside), "nothing was sent");
    sender.saw_head(100).unwrap();
    sender.wrote(10);
    assert_eq!(sender.saw_head(111), Err(Violation::HeadOutside));
    assert_eq!(sender.saw_head(99), Err(Violation::HeadOutside));
    sender.saw_head(105).unwrap();
    assert_eq!(sender.saw_head(104), Err(Violation::HeadOutside), "the receiver does not give bytes back");
    assert_eq!(sender.unread(), 5);
}

#[test]
fn refuses_switches_taken_that_were_not_announced() {
    let mut sender = after_tcp(100);
    assert_eq!(sender.saw_taken(1), Err(Violation::TakenOutside));
    sender.consider(view(0), || false).unwrap().unwrap();
    assert_eq!(sender.consider(view(2), || false), Err(Violation::TakenOutside));
    assert_eq!(sender.consider(view(u32::MAX), || false), Err(Violation::TakenOutside));
    sender.consider(view(1), || false).unwrap();
    assert_eq!(sender.consider(view(0), || false), Err(Violation::TakenOutside));
    assert_eq!(sender.consider(view(2), || false), Err(Violation::TakenOutside));
    sender.keep_on_tcp(true);
    sender.consider(view(1), || false).unwrap().unwrap();
    assert_eq!(sender.saw_taken(3), Err(Violation::TakenOutside));
    assert_eq!(sender.saw_taken(0), Err(Violation::TakenOutside));
}

#[test]
fn the_count_of_switches_wraps() {
    let mut sender = after_tcp(100);
    (sender.switches, sender.taken) = (u32::MAX, u32::MAX);
    assert_eq!(sender.consider(view(u32::MAX), || false).unwrap().map(|announced| announced.count), Some(0));
    assert!(sender.is_switching());
    assert_eq!(sender.consider(view(0), || false), Ok(None));
    assert!(!sender.is_switching());
}

#[test]
fn ignores_a_head_that_is_older_than_a_switch_from_tcp() {
    let mut sender = after_tcp(100);
    sender.saw_head(7).unwrap();
    sender.consider(view(0), || false).unwrap().unwrap();
    sender.wrote(10);
    for head in [0, 99, 100, 105, 110, 111, u32::MAX] {
        sender.saw_head(head).unwrap();
        assert_eq!((sender.unread(), sender.room()), (10, SMALL - 10), "head {head}");
    }
    sender.saw_taken(1).unwrap();
    sender.saw_head(105).unwrap();
    assert_eq!(sender.unread(), 5);
}

#[test]
fn accepts_a_head_that_is_newer_than_the_known_number_of_switches_taken() {
    let mut sender = on_small(0);
    sender.was_full(0, 0);
    sender.wrote(20);
    sender.consider(view(1), || false).unwrap().unwrap();
    sender.wrote(30);
    sender.saw_head(15).unwrap();
    assert_eq!((sender.unread(), sender.room()), (35, LARGE - 30), "bytes of the small ring");
    sender.saw_head(40).unwrap();
    assert_eq!((sender.unread(), sender.room()), (35, LARGE - 30), "the switch is taken, and not noted yet");
    sender.saw_head(20).unwrap();
    assert_eq!(sender.unread(), 30);
    sender.saw_taken(2).unwrap();
    sender.saw_head(40).unwrap();
    assert_eq!((sender.unread(), sender.room()), (10, LARGE - 10));
    assert_eq!(sender.saw_head(51), Err(Violation::HeadOutside));
}

#[test]
fn a_taken_switch_says_that_everything_before_it_was_read() {
    let mut sender = on_small(0);
    sender.wrote(20);
    sender.keep_on_tcp(true);
    sender.consider(view(1), || false).unwrap().unwrap();
    assert_eq!((sender.unread(), sender.room()), (20, 0));
    sender.begin_tcp();
    sender.end_tcp(1000);
    assert_eq!(sender.unread(), 20, "bytes on TCP are the kernel's");
    sender.saw_head(12).unwrap();
    assert_eq!(sender.unread(), 8);
    sender.saw_head(900).unwrap();
    assert_eq!(sender.unread(), 8, "read from TCP");
    sender.saw_taken(2).unwrap();
    assert_eq!(sender.unread(), 0);
    sender.saw_head(3).unwrap();
    assert_eq!(sender.unread(), 0);
}

#[test]
fn an_abandoned_sender_stays_on_tcp_and_ignores_the_peer() {
    let mut sender = on_small(100);
    sender.wrote(10);
    sender.saw_head(104).unwrap();
    assert!(!sender.is_abandoned());
    sender.abandon();
    assert!(sender.is_abandoned());
    assert_eq!((sender.path(), sender.room(), sender.unread()), (StreamPath::Tcp, 0, 6));
    assert_eq!(
        (sender.consider(view(77), || false), sender.saw_head(0xdead), sender.saw_taken(9)),
        (Ok(None), Ok(()), Ok(()))
    );
    sender.saw_head(110).unwrap();
    sender.begin_tcp();
    sender.end_tcp(50);
    assert_eq!((sender.unread(), sender.position(), sender.path()), (6, 160, StreamPath::Tcp));
}

#[test]
fn abandoning_keeps_the_unread_bytes_of_a_switch_to_tcp() {
    let mut sender = on_small(0);
    sender.wrote(10);
    sender.keep_on_tcp(true);
    sender.consider(view(1), || false).unwrap().unwrap();
    sender.begin_tcp();
    sender.end_tcp(50);
    sender.abandon();
    assert_eq!(sender.unread(), 10);
}

fn bytes(path: StreamPath, at: u64, len: u32) -> RingBytes {
    RingBytes { path, at, len }
}

#[test]
fn takes_back_what_the_receiver_has_not_read() {
    let mut sender = on_small(100);
    sender.wrote(50);
    let unread = sender.take_back(1, 120).unwrap().unwrap();
    assert_eq!(unread, [bytes(StreamPath::Small, 120, 30), bytes(StreamPath::Small, 150, 0)]);
    assert_eq!((sender.path(), sender.position(), sender.unread()), (StreamPath::Tcp, 120, 0));
    assert!(sender.is_abandoned());
    assert_eq!(sender.consider(view(1), || false), Ok(None));
    let again = sender.take_back(1, 120).unwrap().unwrap();
    assert_eq!(again.map(|bytes| bytes.len), [0, 0]);
}

#[test]
fn takes_back_a_ring_that_the_receiver_has_not_begun() {
    let mut sender = after_tcp(100);
    sender.consider(view(0), || false).unwrap().unwrap();
    sender.wrote(50);
    let unread = sender.take_back(0, 0).unwrap().unwrap();
    assert_eq!(unread[0], bytes(StreamPath::Small, 100, 50), "bytes of TCP stay there");
    assert_eq!(sender.position(), 100);
}

#[test]
fn takes_back_both_rings_in_order() {
    let mut sender = on_small(100);
    sender.wrote(SMALL);
    sender.was_full(0, 0);
    assert!(sender.consider(view(1), || false).unwrap().is_some_and(|announced| announced.path == StreamPath::Large));
    sender.wrote(10);
    let end = 100 + u64::from(SMALL);
    let unread = sender.take_back(1, end as u32 - 7).unwrap().unwrap();
    assert_eq!(unread, [bytes(StreamPath::Small, end - 7, 7), bytes(StreamPath::Large, end, 10)]);
    assert_eq!(sender.position(), end - 7);
}

#[test]
fn takes_back_nothing_from_tcp() {
    let mut sender = after_tcp(100);
    let unread = sender.take_back(0, 0).unwrap().unwrap();
    assert_eq!((unread.map(|bytes| bytes.len), sender.position()), ([0, 0], 100));
}

#[test]
fn does_not_take_back_what_lies_before_a_switch_to_tcp() {
    let mut sender = on_small(100);
    sender.wrote(50);
    let leaves = SenderView { tcp_please: true, ..view(1) };
    assert!(sender.consider(leaves, || false).unwrap().is_some());
    let mut lost = sender;
    assert_eq!((lost.take_back(1, 149), lost.is_abandoned()), (Ok(None), true));
    assert!(sender.take_back(1, 150).unwrap().is_some());
    assert_eq!(on_small(100).take_back(1, 99), Err(Violation::HeadOutside));
}

/// The next write of a sender: whether it sends anything, as `try_send` of the library goes about it.
fn next_write_sends(sender: &Sender, seen: SenderView, reads_tcp: bool, now_ms: u64) -> bool {
    let mut sender = *sender;
    sender.consider(seen, || reads_tcp).unwrap();
    if sender.path() == StreamPath::Tcp || sender.room() > 0 {
        return true;
    }
    sender.was_full(0, now_ms);
    sender.consider(seen, || reads_tcp).unwrap();
    sender.path() == StreamPath::Tcp || sender.room() > 0
}

#[test]
fn says_that_it_can_send_only_if_the_next_write_can() {
    let full = |mut sender: Sender| {
        sender.wrote(sender.room());
        sender
    };
    let on_large = || {
        let mut sender = full(on_small(0));
        sender.was_full(0, 0);
        sender.consider(view(1), || false).unwrap().unwrap();
        sender
    };
    let stuck = |mut sender: Sender| {
        sender.was_full(0, 0);
        assert!(sender.was_full(0, SPILL_MS));
        sender
    };
    let switching = || {
        let mut sender = after_tcp(100);
        sender.consider(view(0), || false).unwrap().unwrap();
        sender
    };
    let cases = [
        ("on TCP", after_tcp(100), 0),
        ("room in the small ring", on_small(0), 1),
        ("the small ring is full, and the large one follows", full(on_small(0)), 1),
        ("the first ring is full before its switch is taken", full(switching()), 0),
        ("that ring is stuck", stuck(full(switching())), 0),
        ("the large ring is full, and its switch is not taken", full(on_large()), 1),
        ("the large ring is stuck, and its switch is not taken", stuck(full(on_large())), 1),
        ("the large ring is full", full(on_large()), 2),
        ("the large ring is stuck", stuck(full(on_large())), 2),
    ];
    for (case, sender, taken) in cases {
        for (reads_tcp, tcp_please) in [(false, false), (true, false), (false, true), (true, true)] {
            let seen = SenderView { tcp_please, ..view(taken) };
            let now_ms = if sender.is_stuck { SPILL_MS } else { 0 };
            let expected = next_write_sends(&sender, seen, reads_tcp, now_ms);
            assert_eq!(sender.can_send(seen, || reads_tcp), expected, "{case}, {reads_tcp}, {tcp_please}");
        }
    }
}
