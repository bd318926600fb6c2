//! Tests of the receiving side.

use super::*;

const SMALL: u32 = StreamPath::Small.bytes();
const LARGE: u32 = StreamPath::Large.bytes();

fn unused(_: u32) -> (u32, u32) {
    panic!("no switch is new")
}

fn switch(at: u32, path: StreamPath) -> impl Fn(u32) -> (u32, u32) {
    move |_| (at, path as u32)
}

/// Two switches, from number 1 on.
fn switches(switches: [(u32, StreamPath); 2]) -> impl Fn(u32) -> (u32, u32) {
    move |count| {
        let (at, path) = switches[count as usize - 1];
        (at, path as u32)
    }
}

/// A receiver that has read `at` bytes from TCP.
fn after_tcp(at: u64) -> Receiver {
    let mut receiver = Receiver::default();
    receiver.begin_tcp();
    receiver.end_tcp(at);
    receiver
}

/// A receiver on the small ring, which begins at position `at`.
fn on_small(at: u64) -> Receiver {
    let mut receiver = after_tcp(at);
    receiver.refresh(at as u32, 1, switch(at as u32, StreamPath::Small)).unwrap();
    assert_eq!(receiver.take(), Some(1));
    receiver
}

fn ring(path: StreamPath, at: u64, available: u32) -> Receive {
    Receive::Ring { path, at, available }
}

#[test]
fn reads_tcp_without_limit_while_no_switch_is_known() {
    let receiver = after_tcp(100);
    assert_eq!((receiver.next(), receiver.position()), (Receive::Tcp { limit: u64::MAX }, 100));
    assert_eq!((receiver.path(), receiver.taken(), receiver.available()), (StreamPath::Tcp, 0, 0));
}

#[test]
fn awaits_a_tail_only_on_a_ring_without_a_known_switch() {
    assert_eq!(after_tcp(100).awaited(), None);
    let mut receiver = on_small(100);
    assert_eq!(receiver.awaited(), Some((1, 100)));
    receiver.refresh(107, 1, unused).unwrap();
    receiver.read(5);
    assert_eq!(receiver.awaited(), Some((1, 105)));
    receiver.refresh(107, 2, switch(107, StreamPath::Large)).unwrap();
    assert_eq!(receiver.awaited(), None);
    receiver.read(2);
    assert_eq!((receiver.take(), receiver.awaited()), (Some(2), Some((2, 107))));
    assert_eq!((receiver.leave(), receiver.awaited()), (true, None));
}

#[test]
fn takes_a_switch_when_everything_before_it_was_read() {
    let mut receiver = after_tcp(60);
    assert_eq!(receiver.take(), None);
    receiver.refresh(100, 1, switch(100, StreamPath::Small)).unwrap();
    assert_eq!((receiver.next(), receiver.take()), (Receive::Tcp { limit: 40 }, None));
    receiver.begin_tcp();
    receiver.end_tcp(30);
    assert_eq!((receiver.next(), receiver.take()), (Receive::Tcp { limit: 10 }, None));
    receiver.begin_tcp();
    receiver.end_tcp(10);
    assert_eq!((receiver.take(), receiver.take()), (Some(1), None));
    assert_eq!((receiver.taken(), receiver.next()), (1, ring(StreamPath::Small, 100, 0)));
    receiver.refresh(107, 1, unused).unwrap();
    assert_eq!((receiver.next(), receiver.available()), (ring(StreamPath::Small, 100, 7), 7));
    receiver.read(5);
    assert_eq!(receiver.next(), ring(StreamPath::Small, 105, 2));
}

#[test]
fn takes_no_switch_while_a_call_reads_tcp() {
    let mut receiver = after_tcp(100);
    receiver.begin_tcp();
    receiver.begin_tcp();
    assert!(receiver.is_in_tcp());
    receiver.refresh(100, 1, switch(100, StreamPath::Small)).unwrap();
    assert_eq!((receiver.take(), receiver.next()), (None, Receive::Tcp { limit: 0 }));
    receiver.end_tcp(0);
    assert_eq!(receiver.take(), None);
    receiver.end_tcp(0);
    assert!(!receiver.is_in_tcp());
    assert_eq!(receiver.take(), Some(1));
}

#[test]
fn one_call_at_a_time_reads_up_to_a_switch() {
    let mut receiver = after_tcp(60);
    receiver.refresh(100, 1, switch(100, StreamPath::Small)).unwrap();
    receiver.begin_tcp();
    assert_eq!(receiver.next(), Receive::Tcp { limit: 0 });
    receiver.end_tcp(30);
    assert_eq!(receiver.next(), Receive::Tcp { limit: 10 });
}

#[test]
fn ignores_the_tail_on_tcp() {
    let mut receiver = after_tcp(100);
    for tail in [0, 99, 100, 5000, u32::MAX] {
        receiver.refresh(tail, 0, unused).unwrap();
    }
    receiver.refresh(3, 1, switch(100, StreamPath::Small)).unwrap();
    receiver.take().unwrap();
    assert_eq!(receiver.available(), 0);
}

#[test]
fn reads_the_small_ring_up_to_the_switch_to_the_large_one() {
    let mut receiver = on_small(0);
    receiver.refresh(20 + LARGE, 2, switch(20, StreamPath::Large)).unwrap();
    assert_eq!((receiver.next(), receiver.unread(20 + LARGE)), (ring(StreamPath::Small, 0, 20), 20 + LARGE));
    assert_eq!(receiver.take(), None);
    receiver.read(20);
    assert_eq!((receiver.available(), receiver.take()), (0, Some(2)));
    assert_eq!((receiver.next(), receiver.unread(20 + LARGE)), (ring(StreamPath::Large, 20, LARGE), LARGE));
    assert_eq!(receiver.refresh(21 + LARGE, 2, unused), Err(Violation::TailOutside));
}

#[test]
fn goes_back_to_tcp_at_the_switch() {
    let mut receiver = on_small(0);
    receiver.refresh(20, 2, switch(20, StreamPath::Tcp)).unwrap();
    receiver.read(20);
    assert_eq!((receiver.take(), receiver.next()), (Some(2), Receive::Tcp { limit: u64::MAX }));
    receiver.begin_tcp();
    receiver.end_tcp(1000);
    assert_eq!(receiver.unread(20), 0, "the kernel counts those on TCP");
    receiver.refresh(20, 3, switch(1020, StreamPath::Small)).unwrap();
    assert_eq!((receiver.take(), receiver.next()), (Some(3), ring(StreamPath::Small, 1020, 0)));
    receiver.refresh(1021, 3, unused).unwrap();
    assert_eq!(receiver.available(), 1);
}

#[test]
fn positions_wrap_at_4_gib() {
    let start = (1 << 32) - 10;
    let mut receiver = after_tcp(start - 20);
    receiver.refresh(0, 1, switch(start as u32, StreamPath::Small)).unwrap();
    assert_eq!(receiver.next(), Receive::Tcp { limit: 20 });
    receiver.begin_tcp();
    receiver.end_tcp(20);
    receiver.take().unwrap();
    receiver.refresh(30, 1, unused).unwrap();
    assert_eq!(receiver.next(), ring(StreamPath::Small, start, 40));
    receiver.read(15);
    assert_eq!((receiver.position(), receiver.available()), ((1 << 32) + 5, 25));
    receiver.refresh(30, 2, switch(30, StreamPath::Tcp)).unwrap();
    receiver.read(25);
    assert_eq!((receiver.take(), receiver.position()), (Some(2), (1 << 32) + 30));
}

#[test]
fn the_count_of_switches_wraps() {
    let mut receiver = after_tcp(100);
    receiver.taken = u32::MAX;
    receiver.refresh(100, u32::MAX, unused).unwrap();
    receiver.refresh(100, 0, switch(100, StreamPath::Small)).unwrap();
    receiver.refresh(100, 0, unused).unwrap();
    assert_eq!(receiver.take(), Some(0));
}

#[test]
fn refuses_a_tail_outside_of_the_ring() {
    let mut receiver = on_small(100);
    assert_eq!(receiver.refresh(99, 1, unused), Err(Violation::TailOutside));
    assert_eq!(receiver.refresh(101 + SMALL, 1, unused), Err(Violation::TailOutside));
    receiver.refresh(110, 1, unused).unwrap();
    assert_eq!(receiver.refresh(109, 1, unused), Err(Violation::TailOutside), "the sender does not take bytes back");
    receiver.refresh(100 + SMALL, 1, unused).unwrap();
    assert_eq!(receiver.available(), SMALL);
    receiver.read(1);
    assert_eq!(receiver.refresh(102 + SMALL, 1, unused), Err(Violation::TailOutside));
    receiver.refresh(101 + SMALL, 1, unused).unwrap();
}

#[test]
fn refuses_a_tail_behind_a_switch_that_the_next_path_does_not_hold() {
    let mut receiver = on_small(100);
    assert_eq!(receiver.refresh(111, 2, switch(110, StreamPath::Tcp)), Err(Violation::TailOutside));
    let mut receiver = on_small(100);
    assert_eq!(receiver.refresh(111 + LARGE, 2, switch(110, StreamPath::Large)), Err(Violation::TailOutside));
    let mut receiver = on_small(100);
    receiver.refresh(105, 2, switch(110, StreamPath::Tcp)).unwrap();
    assert_eq!(receiver.available(), 5, "the rest was not published yet");
}

#[test]
fn refuses_more_switches_than_two() {
    for count in [3, u32::MAX, 7] {
        assert_eq!(after_tcp(100).refresh(100, count, unused), Err(Violation::SwitchOutOfTurn), "{count}");
    }
    let mut receiver = after_tcp(60);
    receiver.refresh(100, 1, switch(100, StreamPath::Small)).unwrap();
    assert_eq!(receiver.refresh(100, 3, unused), Err(Violation::SwitchOutOfTurn));
    assert_eq!(receiver.refresh(100, 0, unused), Err(Violation::SwitchOutOfTurn), "it takes no switch back");
    receiver.refresh(100, 2, switch(100, StreamPath::Tcp)).unwrap();
    assert_eq!(receiver.refresh(100, 1, unused), Err(Violation::SwitchOutOfTurn), "nor two");
    assert_eq!(on_small(0).refresh(0, 0, unused), Err(Violation::SwitchOutOfTurn));
}

#[test]
fn takes_two_switches_in_order() {
    let mut receiver = after_tcp(60);
    receiver.refresh(130, 2, switches([(100, StreamPath::Small), (130, StreamPath::Tcp)])).unwrap();
    assert_eq!((receiver.next(), receiver.take()), (Receive::Tcp { limit: 40 }, None));
    assert!(!receiver.reads_without_limit());
    receiver.begin_tcp();
    receiver.end_tcp(40);
    assert_eq!((receiver.take(), receiver.take()), (Some(1), None));
    receiver.refresh(130, 2, unused).unwrap();
    assert_eq!((receiver.next(), receiver.awaited()), (ring(StreamPath::Small, 100, 30), None));
    receiver.read(30);
    assert_eq!((receiver.take(), receiver.next()), (Some(2), Receive::Tcp { limit: u64::MAX }));
    assert!(receiver.reads_without_limit());
    receiver.refresh(130, 3, switch(150, StreamPath::Large)).unwrap();
    assert_eq!(receiver.next(), Receive::Tcp { limit: 20 });
}

#[test]
fn counts_the_unread_bytes_of_a_ring_behind_tcp() {
    let mut receiver = after_tcp(60);
    receiver.refresh(30, 0, unused).unwrap();
    assert_eq!(receiver.unread(30), 0, "the ring before is read");
    receiver.refresh(30, 1, switch(100, StreamPath::Small)).unwrap();
    assert_eq!([100, 130, 100 + SMALL].map(|tail| receiver.unread(tail)), [0, 30, SMALL]);
    assert_eq!([99, 101 + SMALL].map(|tail| receiver.unread(tail)), [0, 0], "no honest sender has that tail");
    receiver.refresh(130, 2, switches([(100, StreamPath::Small), (130, StreamPath::Tcp)])).unwrap();
    assert_eq!(receiver.unread(130), 30);
    receiver.begin_tcp();
    receiver.end_tcp(40);
    assert_eq!((receiver.take(), receiver.unread(130)), (Some(1), 0), "the caller refreshes first");
    receiver.refresh(130, 2, unused).unwrap();
    assert_eq!(receiver.unread(130), 30);
    assert!(!receiver.leave());
    receiver.read(30);
    assert_eq!((receiver.take(), receiver.unread(130)), (Some(2), 0));
}

#[test]
fn reads_two_rings_before_tcp() {
    let mut receiver = on_small(0);
    let end = 20 + LARGE;
    let fetch = |count| if count == 2 { (20, StreamPath::Large as u32) } else { (end, StreamPath::Tcp as u32) };
    receiver.refresh(end, 3, fetch).unwrap();
    assert_eq!((receiver.available(), receiver.unread(end)), (20, end));
    assert!(!receiver.leave(), "the bytes are before TCP's");
    receiver.read(20);
    assert_eq!((receiver.take(), receiver.available()), (Some(2), LARGE));
    receiver.read(LARGE);
    assert_eq!((receiver.take(), receiver.next()), (Some(3), Receive::Tcp { limit: u64::MAX }));
}

#[test]
fn refuses_a_second_switch_that_does_not_lead_to_tcp() {
    let second = |switches_| after_tcp(60).refresh(100, 2, switches(switches_));
    let [tcp, small, large] = [StreamPath::Tcp, StreamPath::Small, StreamPath::Large];
    assert_eq!(second([(100, small), (110, large)]), Err(Violation::SwitchOutOfTurn));
    assert_eq!(second([(100, small), (110, small)]), Err(Violation::PathUnknown));
    assert_eq!(second([(100, small), (101 + SMALL, tcp)]), Err(Violation::SwitchOutside));
    assert_eq!(second([(100, small), (99, tcp)]), Err(Violation::SwitchOutside));
    assert_eq!(second([(100, small), (100 + SMALL, tcp)]), Ok(()));
    let mut receiver = on_small(100);
    let fetch = |count| if count == 2 { (110, tcp as u32) } else { (120, small as u32) };
    assert_eq!(receiver.refresh(110, 3, fetch), Err(Violation::SwitchOutOfTurn));
}

#[test]
fn refuses_a_switch_to_an_unknown_path_or_to_the_present_one() {
    for path in [StreamPath::Tcp as u32, 3, u32::MAX] {
        assert_eq!(after_tcp(100).refresh(100, 1, |_| (100, path)), Err(Violation::PathUnknown), "{path}");
    }
    assert_eq!(on_small(100).refresh(100, 2, switch(100, StreamPath::Small)), Err(Violation::PathUnknown));
}

#[test]
fn refuses_a_switch_outside_of_what_can_be_in_flight() {
    let on_tcp = |at| after_tcp(100).refresh(100, 1, switch(at, StreamPath::Small));
    assert_eq!(on_tcp(99), Err(Violation::SwitchOutside));
    assert_eq!(on_tcp(101 + TCP_IN_FLIGHT_MAX), Err(Violation::SwitchOutside));
    assert_eq!(on_tcp(100 + TCP_IN_FLIGHT_MAX), Ok(()));
    let in_ring = |at: u32| on_small(100).refresh(100, 2, switch(at, StreamPath::Tcp));
    assert_eq!(in_ring(99), Err(Violation::SwitchOutside));
    assert_eq!(in_ring(101 + SMALL), Err(Violation::SwitchOutside));
    assert_eq!(in_ring(100 + SMALL), Ok(()));
}

#[test]
fn refuses_bytes_on_tcp_behind_a_switch() {
    let mut receiver = after_tcp(0);
    receiver.begin_tcp();
    receiver.refresh(0, 1, switch(100, StreamPath::Small)).unwrap();
    receiver.end_tcp(101);
    assert_eq!((receiver.next(), receiver.take()), (Receive::Tcp { limit: 0 }, None));
    assert_eq!(receiver.refresh(0, 1, unused), Err(Violation::SwitchOutside));
    let mut receiver = after_tcp(101);
    assert_eq!(receiver.refresh(0, 1, switch(100, StreamPath::Small)), Err(Violation::SwitchOutside));
}

#[test]
fn leaves_a_ring_with_unread_bytes() {
    let mut receiver = on_small(100);
    receiver.refresh(150, 1, unused).unwrap();
    assert!(receiver.leave());
    assert_eq!((receiver.next(), receiver.position()), (Receive::Tcp { limit: u64::MAX }, 100));
    receiver.refresh(500, 9, unused).unwrap();
    assert_eq!((receiver.take(), receiver.available()), (None, 0), "words of the sender count no more");
}

#[test]
fn leaves_before_a_ring_that_it_has_not_begun() {
    let mut receiver = after_tcp(100);
    receiver.refresh(250, 1, switch(200, StreamPath::Small)).unwrap();
    assert!(receiver.leave());
    assert_eq!(receiver.next(), Receive::Tcp { limit: u64::MAX });
}

#[test]
fn does_not_leave_bytes_before_a_switch_to_tcp() {
    let mut receiver = on_small(100);
    receiver.refresh(150, 2, switch(150, StreamPath::Tcp)).unwrap();
    assert!(!receiver.leave());
    receiver.read(50);
    assert!(receiver.leave());
}

#[test]
fn leaves_before_two_switches_without_bytes() {
    let [tcp, small] = [StreamPath::Tcp, StreamPath::Small];
    let mut receiver = after_tcp(60);
    receiver.refresh(100, 2, switches([(100, small), (100, tcp)])).unwrap();
    assert!(receiver.leave());
    let mut receiver = after_tcp(60);
    receiver.refresh(101, 2, switches([(100, small), (101, tcp)])).unwrap();
    assert!(!receiver.leave());
}
