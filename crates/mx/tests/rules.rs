//! The rules of MX, one by one.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_mx::{
    BufferedError, Cancelled, ContextIdBits, Engine, Filter, MatchEnvelope, Matched, PartnerId, PostError, PostOutcome,
    RequestId, RequestKind, Status, StatusCode, TransportTypes, UnexpectedMessage, UnknownPartner, UnknownRequest,
};

/// Buffers have names, messages are their bytes, and partners have numbers.
#[derive(Debug, PartialEq, Eq)]
struct Plain;

impl TransportTypes for Plain {
    type Receive = &'static str;
    type Message = Vec<u8>;
    type Address = u16;
}

fn engine() -> Engine<Plain> {
    Engine::new(ContextIdBits::NONE, 7)
}

fn envelope(source: PartnerId, match_info: u64, msg_length: u32) -> MatchEnvelope {
    MatchEnvelope { source, match_info, msg_length }
}

/// Posts a receive that waits.
fn waiting(engine: &mut Engine<Plain>, filter: Filter, receive: &'static str) -> RequestId {
    match engine.post_receive(filter, 0, 100, receive).unwrap() {
        PostOutcome::Waiting(request) => request,
        PostOutcome::Found { unexpected, .. } => panic!("took {unexpected:?}"),
    }
}

/// Posts a receive that takes a message at once, and returns the message.
fn takes(engine: &mut Engine<Plain>, filter: Filter) -> Vec<u8> {
    match engine.post_receive(filter, 0, 100, "taker").unwrap() {
        PostOutcome::Waiting(_) => panic!("there is none"),
        PostOutcome::Found { unexpected, .. } => unexpected.message,
    }
}

fn masked(match_info: u64, mask: u64) -> Filter {
    Filter::new(match_info, mask).unwrap()
}

#[test]
fn message_goes_to_the_oldest_matching_receive() {
    let mut engine = engine();
    let source = engine.partner(1).unwrap();
    waiting(&mut engine, Filter::exactly(5), "five");
    waiting(&mut engine, masked(0x10, 0xf0), "teens");
    waiting(&mut engine, Filter::ANY, "any");
    waiting(&mut engine, Filter::exactly(0x15), "exact");
    let mut to = |match_info| engine.arrive(&envelope(source, match_info, 0)).map(|matched| matched.receive);
    assert_eq!(to(0x15), Some("teens"), "a later exact receive does not win over an earlier wildcard");
    assert_eq!(to(0x15), Some("any"));
    assert_eq!(to(0x15), Some("exact"));
    assert_eq!(to(0x15), None);
    assert_eq!(to(5), Some("five"));
}

#[test]
fn receive_takes_the_oldest_matching_message() {
    let mut engine = engine();
    let [one, other] = [1, 2].map(|address| engine.partner(address).unwrap());
    for (source, match_info, bytes) in [(one, 5, b"a"), (other, 5, b"b"), (one, 6, b"c"), (one, 5, b"d")] {
        engine.hold(envelope(source, match_info, 1), bytes.to_vec()).unwrap();
    }
    assert_eq!(takes(&mut engine, Filter::exactly(6)), b"c");
    assert_eq!(takes(&mut engine, Filter::ANY), b"a");
    assert_eq!(takes(&mut engine, masked(1, 1)), b"b");
    assert_eq!(takes(&mut engine, Filter::exactly(5)), b"d");
    assert_eq!(engine.counts().unexpected, 0);
}

#[test]
fn length_never_influences_matching() {
    let mut engine = engine();
    let source = engine.partner(1).unwrap();
    let Ok(PostOutcome::Waiting(request)) = engine.post_receive(Filter::exactly(1), 9, 10, "short") else { panic!() };
    let matched = engine.arrive(&envelope(source, 1, 50));
    assert_eq!(matched, Some(Matched { request, receive: "short", posted_length: 10 }));
    assert!(engine.received(request, StatusCode::Success, 10));
    let code = StatusCode::Truncated;
    let status = Status { code, source: Some(source), match_info: 1, msg_length: 50, xfer_length: 10, context: 9 };
    assert_eq!(engine.test(request), Ok(Some(status)));
}

#[test]
fn every_receive_names_its_context_id_in_full() {
    let contexts = ContextIdBits::new(16, 48).unwrap();
    let mut engine: Engine<Plain> = Engine::new(contexts, 7);
    for mask in [0, u64::MAX >> 1, 0x7fff << 48] {
        assert_eq!(engine.post_receive(masked(0, mask), 0, 0, "split"), Err(PostError::MaskSplitsContext));
    }
    assert!(engine.post_receive(masked(1 << 48, 0xffff << 48), 0, 0, "whole").is_ok());
    let source = engine.partner(1).unwrap();
    assert_eq!(engine.arrive(&envelope(source, 2 << 48, 0)), None, "another context");
    assert!(engine.arrive(&envelope(source, 1 << 48 | 77, 0)).is_some());
}

#[test]
fn searches_look_at_all_contexts_that_the_mask_allows() {
    let mut engine: Engine<Plain> = Engine::new(ContextIdBits::new(1, 63).unwrap(), 7);
    let source = engine.partner(1).unwrap();
    engine.hold(envelope(source, 1 << 63, 0), vec![]).unwrap();
    engine.post_sent(source, 1 << 63 | 5, 0, 0).unwrap();
    assert_eq!(engine.probe(Filter::ANY).unwrap().match_info, 1 << 63);
    assert_eq!(engine.probe(masked(0, 1 << 63)), None);
    assert_eq!(engine.test_any(masked(0, 1 << 63)), None);
    assert_eq!(engine.test_any(masked(5, 0xf)).unwrap().match_info, 1 << 63 | 5);
}

#[test]
fn requests_are_over_in_the_order_of_completion() {
    let mut engine = engine();
    let partner = engine.partner(1).unwrap();
    let first = engine.post_send(partner, 1, 10, 4).unwrap();
    let receive = waiting(&mut engine, Filter::ANY, "r");
    let connect = engine.post_connect(3, 30).unwrap();
    assert_eq!(engine.peek(), None);
    engine.connected(connect, Ok(partner));
    engine.arrive(&envelope(partner, 2, 0)).unwrap();
    engine.received(receive, StatusCode::Success, 0);
    engine.sent(first, StatusCode::Success, 4);
    assert_eq!(engine.peek(), Some(connect));
    assert_eq!(engine.peek(), Some(connect), "it stays until it is consumed");
    assert_eq!(engine.test_any(masked(2, 2)).unwrap().match_info, 3, "the oldest that fits");
    assert_eq!(engine.peek(), Some(receive));
    assert_eq!(engine.test_any(Filter::exactly(1)).unwrap().context, 10, "not the oldest");
    assert!(engine.test(receive).unwrap().is_some());
    assert_eq!((engine.peek(), engine.counts().pending), (None, 0));
}

#[test]
fn a_consumed_request_is_unknown() {
    let mut engine = engine();
    let partner = engine.partner(1).unwrap();
    let send = engine.post_send(partner, 1, 0, 4).unwrap();
    assert_eq!((engine.test(send), engine.is_done(send)), (Ok(None), Ok(false)));
    assert!(engine.sent(send, StatusCode::Success, 4));
    assert!(!engine.sent(send, StatusCode::Success, 4), "it ends once");
    assert_eq!(engine.is_done(send), Ok(true));
    assert!(engine.test(send).unwrap().is_some());
    let next = engine.post_send(partner, 1, 0, 4).unwrap();
    assert_ne!(next, send, "the name is not given out again");
    assert_eq!(engine.test(send), Err(UnknownRequest));
    assert_eq!(engine.context_of(send), Err(UnknownRequest));
    assert_eq!(engine.forget(send), Err(UnknownRequest));
    assert_eq!(engine.cancel(send), Cancelled::Unknown);
    assert!(!engine.sent(send, StatusCode::Success, 4));
}

#[test]
fn send_reports_the_bytes_that_the_receiver_accepted() {
    let mut engine = engine();
    let partner = engine.partner(1).unwrap();
    let large = engine.post_send(partner, 8, 1, 1000).unwrap();
    engine.sent(large, StatusCode::Success, 600);
    let status = engine.test(large).unwrap().unwrap();
    assert_eq!((status.code, status.msg_length, status.xfer_length), (StatusCode::Truncated, 1000, 600));
    assert_eq!(status.source, Some(partner), "the destination");
    let small = engine.post_sent(partner, 8, 1, 10).unwrap();
    let status = engine.test(small).unwrap().unwrap();
    assert_eq!((status.code, status.xfer_length), (StatusCode::Success, 10));
}

#[test]
fn cancel_affects_only_unmatched_receives_and_connects() {
    let mut engine = engine();
    let partner = engine.partner(1).unwrap();
    let [early, late] = ["early", "late"].map(|name| waiting(&mut engine, Filter::ANY, name));
    assert_eq!(engine.cancel(early), Cancelled::Receive("early"));
    assert_eq!(engine.cancel(early), Cancelled::Unknown);
    assert_eq!(engine.arrive(&envelope(partner, 1, 0)).map(|matched| matched.request), Some(late));
    assert_eq!(engine.cancel(late), Cancelled::TooLate, "matched");
    engine.received(late, StatusCode::Success, 0);
    assert_eq!(engine.cancel(late), Cancelled::TooLate, "over");
    assert!(engine.test(late).unwrap().is_some());
    let connect = engine.post_connect(0, 0).unwrap();
    assert_eq!(engine.cancel(connect), Cancelled::Connect);
    assert!(!engine.connected(connect, Ok(partner)), "the answer comes too late");
    let send = engine.post_send(partner, 0, 0, 0).unwrap();
    assert_eq!(engine.cancel(send), Cancelled::WrongKind);
    assert_eq!(engine.counts().pending, 1);
}

#[test]
fn forgotten_requests_end_silently() {
    let mut engine = engine();
    let partner = engine.partner(1).unwrap();
    let [waits, over] = ["waits", "over"].map(|name| waiting(&mut engine, Filter::ANY, name));
    let send = engine.post_send(partner, 0, 0, 0).unwrap();
    engine.forget(waits).unwrap();
    engine.forget(send).unwrap();
    assert_eq!(engine.test(waits), Err(UnknownRequest), "a forgotten request is unknown");
    assert_eq!(engine.cancel(waits), Cancelled::Unknown);
    assert_eq!(
        engine.arrive(&envelope(partner, 1, 0)).map(|matched| matched.receive),
        Some("waits"),
        "it still matches"
    );
    assert!(engine.received(waits, StatusCode::Success, 0));
    assert!(engine.sent(send, StatusCode::Success, 0));
    assert_eq!((engine.peek(), engine.test_any(Filter::ANY)), (None, None));
    engine.arrive(&envelope(partner, 1, 0)).unwrap();
    engine.received(over, StatusCode::Success, 0);
    engine.forget(over).unwrap();
    assert_eq!((engine.peek(), engine.counts().pending, engine.counts().done), (None, 0, 0));
}

#[test]
fn only_sends_have_a_buffer_to_use_again() {
    let mut engine = engine();
    let partner = engine.partner(1).unwrap();
    let receive = waiting(&mut engine, Filter::ANY, "r");
    let connect = engine.post_connect(0, 0).unwrap();
    let [send, own] = [1, 2].map(|context| engine.post_send(partner, 0, context, 0).unwrap());
    assert_eq!(engine.is_buffered(receive), Err(BufferedError::WrongKind));
    assert_eq!(engine.is_buffered(connect), Err(BufferedError::WrongKind));
    assert!(engine.set_buffered(own) && !engine.set_buffered(receive));
    assert_eq!((engine.is_buffered(send), engine.is_buffered(own)), (Ok(false), Ok(true)));
    engine.sent(send, StatusCode::Success, 0);
    assert_eq!((engine.is_buffered(send), engine.kind(send)), (Ok(true), Ok(RequestKind::Send)));
    assert_eq!((engine.context_of(send), engine.context_of(own)), (Ok(1), Ok(2)));
}

#[test]
fn probe_shows_incomplete_messages_without_consuming_them() {
    let mut engine = engine();
    let source = engine.partner(1).unwrap();
    let message = engine.hold(envelope(source, 3, 8), b"ab".to_vec()).unwrap();
    let code = StatusCode::Success;
    let seen = Status { code, source: Some(source), match_info: 3, msg_length: 8, xfer_length: 8, context: 0 };
    assert_eq!(engine.probe(masked(1, 1)), Some(seen));
    assert_eq!(engine.unexpected_from(source).collect::<Vec<_>>(), [message]);
    engine.message_mut(message).unwrap().extend(b"cdefgh");
    assert_eq!(takes(&mut engine, Filter::exactly(3)), b"abcdefgh");
    assert_eq!(engine.message_mut(message), None, "a receive has taken it");
    assert_eq!((engine.probe(Filter::ANY), engine.unexpected_from(source).count()), (None, 0));
}

#[test]
fn the_same_address_is_the_same_partner() {
    let mut engine = engine();
    let partner = engine.partner(1).unwrap();
    assert_eq!(engine.partner_context(partner), Ok(0));
    engine.set_partner_context(partner, 99).unwrap();
    assert_ne!(engine.partner(2), Ok(partner));
    assert_eq!(engine.partner(1), Ok(partner), "connected again");
    assert_eq!((engine.partner_context(partner), engine.address_of(partner)), (Ok(99), Ok(1)));
    assert_eq!(engine.partners().map(|(_, address)| address).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn disconnected_partner_differs_from_a_new_one() {
    let mut engine = engine();
    let [old, other] = [1, 2].map(|address| engine.partner(address).unwrap());
    engine.set_partner_context(old, 99).unwrap();
    let [send, elsewhere] = [old, other].map(|partner| engine.post_send(partner, 0, 0, 5).unwrap());
    let filled = waiting(&mut engine, Filter::exactly(1), "filled");
    let waits = waiting(&mut engine, Filter::exactly(2), "waits");
    engine.arrive(&envelope(old, 1, 5)).unwrap();
    for (partner, byte) in [(old, 0), (other, 1), (old, 2)] {
        engine.hold(envelope(partner, 7, 1), vec![byte]).unwrap();
    }
    let disconnected = engine.disconnect(old);
    assert_eq!(disconnected.requests, [send, filled]);
    let dropped = [0, 2].map(|byte| UnexpectedMessage { envelope: envelope(old, 7, 1), message: vec![byte] });
    assert_eq!(disconnected.messages, dropped);
    for request in [send, filled] {
        let status = engine.test(request).unwrap().unwrap();
        assert_eq!((status.code, status.xfer_length), (StatusCode::EndpointUnreachable, 0));
        assert!(!engine.received(request, StatusCode::Success, 5), "the transport comes too late");
    }
    assert_eq!((engine.is_done(elsewhere), engine.is_done(waits)), (Ok(false), Ok(false)));
    assert_eq!(engine.address_of(old), Err(UnknownPartner));
    assert_eq!(engine.set_partner_context(old, 1), Err(UnknownPartner));
    assert_eq!(engine.hold(envelope(old, 7, 1), vec![3]), Err(vec![3]));
    let new = engine.partner(1).unwrap();
    assert_ne!(new, old);
    assert_eq!((engine.partner_context(new), engine.partner_context(old)), (Ok(0), Err(UnknownPartner)));
    assert_eq!(takes(&mut engine, Filter::exactly(7)), [1]);
}

#[test]
fn complete_messages_of_a_failed_partner_can_still_be_received() {
    let mut engine = engine();
    let partner = engine.partner(1).unwrap();
    engine.set_partner_context(partner, 99).unwrap();
    for bytes in [&b"whole"[..], b"par", b"WHOLE"] {
        engine.hold(envelope(partner, 7, 5), bytes.to_vec()).unwrap();
    }
    let send = engine.post_send(partner, 0, 0, 5).unwrap();
    let disconnected = engine.fail_partner(partner, StatusCode::EndpointClosed, |bytes| bytes.len() == 5);
    assert_eq!((disconnected.requests, disconnected.messages.len()), (vec![send], 1));
    assert_eq!(engine.test(send).unwrap().unwrap().code, StatusCode::EndpointClosed);
    assert_eq!(takes(&mut engine, Filter::ANY), b"whole");
    assert_eq!(takes(&mut engine, Filter::ANY), b"WHOLE");
    assert_eq!(engine.partner_context(partner), Ok(99), "the partner is still known");
}

#[test]
fn a_receive_posted_by_the_unexpected_handler_gets_the_message() {
    let mut engine = engine();
    let source = engine.partner(1).unwrap();
    let new = envelope(source, 4, 0);
    assert_eq!(engine.arrive(&new), None, "the handler is called, and posts:");
    let request = waiting(&mut engine, Filter::exactly(4), "from the handler");
    assert_eq!(engine.arrive(&new).map(|matched| matched.request), Some(request));
}

#[test]
fn a_failed_connect_has_no_source() {
    let mut engine = engine();
    let [good, bad] = [1, 2].map(|context| engine.post_connect(0x77, context).unwrap());
    assert!(engine.connected(bad, Err(StatusCode::BadKey)));
    let partner = engine.partner(1).unwrap();
    assert!(engine.connected(good, Ok(partner)));
    let [first, second] = [(); 2].map(|()| engine.test_any(Filter::exactly(0x77)).unwrap());
    assert_eq!((first.code, first.source, first.context), (StatusCode::BadKey, None, 2));
    assert_eq!((second.code, second.source, second.context), (StatusCode::Success, Some(partner), 1));
}

#[test]
fn drain_removes_all_requests_and_messages() {
    let mut engine = engine();
    let partner = engine.partner(1).unwrap();
    let [filled, waits] = ["filled", "waits"].map(|name| waiting(&mut engine, Filter::exactly(1), name));
    engine.arrive(&envelope(partner, 1, 5)).unwrap();
    let send = engine.post_send(partner, 0, 0, 5).unwrap();
    let over = engine.post_sent(partner, 0, 0, 5).unwrap();
    engine.hold(envelope(partner, 9, 1), vec![1]).unwrap();
    let drained = engine.drain();
    assert_eq!(drained.receives, [(waits, "waits")]);
    assert_eq!(drained.underway, [(filled, RequestKind::Receive), (send, RequestKind::Send)]);
    assert_eq!(drained.messages, [UnexpectedMessage { envelope: envelope(partner, 9, 1), message: vec![1] }]);
    for request in [filled, waits, send, over] {
        assert_eq!(engine.test(request), Err(UnknownRequest));
    }
    let counts = engine.counts();
    assert_eq!((counts.posted, counts.pending, counts.done, counts.unexpected, counts.partners), (0, 0, 0, 0, 1));
}

#[test]
fn a_hundred_thousand_unexpected_messages_wait_and_are_found() {
    const MANY: u64 = 100_000;
    let mut engine = engine();
    let sources = [1, 2, 3].map(|address| engine.partner(address).unwrap());
    for number in 0..MANY {
        let source = sources[number as usize % 3];
        engine.hold(envelope(source, number % 50_000, 8), number.to_le_bytes().to_vec()).unwrap();
    }
    assert_eq!(engine.counts().unexpected, MANY as usize);
    // The newest match infos come first, so that each search would walk the whole rest. Two messages have each match
    // info.
    for match_info in (0..50_000_u64).rev() {
        assert_eq!(takes(&mut engine, Filter::exactly(match_info)), match_info.to_le_bytes());
        assert_eq!(takes(&mut engine, Filter::exactly(match_info)), (match_info + 50_000).to_le_bytes());
        assert_eq!(engine.probe(Filter::exactly(match_info)), None);
    }
    assert_eq!(engine.counts().unexpected, 0);
}

#[test]
fn ten_thousand_posted_receives_each_get_their_message() {
    const MANY: u64 = 10_000;
    let mut engine = engine();
    let source = engine.partner(1).unwrap();
    let exact: Vec<_> = (0..MANY).map(|tag| waiting(&mut engine, Filter::exactly(tag), "exact")).collect();
    let high: Vec<_> = (0..MANY).map(|tag| waiting(&mut engine, masked(tag << 32, !0xffff_ffff), "high")).collect();
    for tag in (1..MANY).rev() {
        let mut to = |match_info| engine.arrive(&envelope(source, match_info, 0)).map(|matched| matched.request);
        assert_eq!(to(tag), Some(exact[tag as usize]));
        assert_eq!(to(tag << 32 | 5), Some(high[tag as usize]));
        assert_eq!(to(tag << 32 | 5), None);
    }
    assert_eq!(engine.counts().posted, 2);
}
