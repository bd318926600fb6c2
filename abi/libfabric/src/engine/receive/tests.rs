//! Tests of matching and of completions.

use super::*;

const NOBODY: u64 = FI_ADDR_UNSPEC;

fn receive(context: usize, bytes: &mut [u8]) -> Receive {
    let into = IoVecs::One { start: bytes.as_mut_ptr(), len: bytes.len() };
    Receive { context: context as *mut c_void, into, wants_completion: true, multi: None }
}

fn meta(len: u64) -> Meta {
    Meta { space: MatchSpace::Untagged, peer: 0, source: 3, tag: 0, data: None, len, acknowledge: None }
}

fn filter(source: u64, tag: u64, ignore: u64) -> Filter {
    Filter { source, tag, ignore }
}

fn events() -> Events {
    let mut events = Events::default();
    events.bind(Side::Receive, false);
    events
}

#[test]
fn oldest_matching_receive_takes_the_message() {
    let mut receives = Receives::default();
    receives.post(MatchSpace::Tagged, filter(NOBODY, 5, 0), receive(1, &mut []));
    receives.post(MatchSpace::Tagged, filter(9, 0, u64::MAX), receive(2, &mut []));
    receives.post(MatchSpace::Tagged, filter(NOBODY, 0, u64::MAX), receive(3, &mut []));
    let mut take =
        |source, tag| receives.take(MatchSpace::Tagged, source, tag, 0).map(|receive| receive.context as usize);
    assert_eq!(take(8, 6), Some(3), "1 wants another tag, 2 another source");
    assert_eq!(take(9, 5), Some(1));
    assert_eq!(take(8, 5), None);
    assert_eq!(take(9, 5), Some(2));
    assert!(receives.take(MatchSpace::Untagged, 9, 0, 0).is_none(), "tagged and untagged never match");
}

#[test]
fn multi_receive_buffer_is_returned_with_its_last_message() {
    let (mut receives, mut events, mut bytes) = (Receives { multi_min: 4, ..Receives::default() }, events(), [0; 16]);
    let mut whole = receive(1, &mut bytes);
    receives.make_multi(&mut whole);
    receives.post(MatchSpace::Untagged, filter(NOBODY, 0, u64::MAX), whole);
    let first = receives.take(MatchSpace::Untagged, 3, 0, 6).expect("there is room");
    let second = receives.take(MatchSpace::Untagged, 3, 0, 8).expect("there is room");
    assert!(receives.take(MatchSpace::Untagged, 3, 0, 1).is_none(), "2 bytes are less than 4");
    assert_eq!(second.into.start() as usize - first.into.start() as usize, 6);
    receives.complete(&second, &meta(8), 8, None, &mut events);
    receives.complete(&first, &meta(6), 6, None, &mut events);
    let flags: Vec<bool> = events.queue(Side::Receive).iter().map(|event| event.flags & FI_MULTI_RECV != 0).collect();
    assert_eq!(flags, [false, true]);
}

#[test]
fn truncated_receive_reports_the_overflow() {
    let (mut receives, mut events, mut bytes) = (Receives::default(), events(), [0; 4]);
    receives.complete(&receive(1, &mut bytes), &meta(10), 4, None, &mut events);
    let event = events.queue(Side::Receive)[0];
    assert_eq!((event.error, event.len, event.overflow), (Errno::TRUNC.0, 4, 6));
}

#[test]
fn cancelled_receive_reports_once() {
    let (mut receives, mut events) = (Receives::default(), events());
    receives.post(MatchSpace::Tagged, filter(NOBODY, 5, 0), receive(1, &mut []));
    assert!(!receives.cancel(2 as *mut c_void, &mut events));
    let first = receive(1, &mut []).context;
    assert!(receives.cancel(first, &mut events) && !receives.cancel(first, &mut events));
    assert_eq!(events.queue(Side::Receive)[0].error, Errno::CANCELED.0);
}

#[test]
fn receives_from_a_gone_source_fail_and_others_stay() {
    let (mut receives, mut events) = (Receives::default(), events());
    receives.post(MatchSpace::Tagged, filter(4, 5, 0), receive(1, &mut []));
    receives.post(MatchSpace::Tagged, filter(NOBODY, 5, 0), receive(2, &mut []));
    receives.fail_source(4, Errno::CONNABORTED, &mut events);
    assert_eq!(events.queue(Side::Receive).len(), 1);
    assert_eq!(receives.take(MatchSpace::Tagged, 3, 5, 0).map(|receive| receive.context as usize), Some(2));
}
