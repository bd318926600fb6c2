//! A responder without its engine: the order of requests, and what the peer is owed.

use super::*;
use crate::types::Sge;
use isthmus_layout::{DomainId, EndpointIndex};

fn peer() -> EndpointAddress {
    let (domain, endpoint) = (DomainId::new(1), EndpointIndex::new(0));
    EndpointAddress { domain: domain.expect("not zero"), endpoint: endpoint.expect("below the limit") }
}

fn into(len: u32) -> SgeList {
    SgeList::One(Sge { addr: 0, len, lkey: 1 })
}

fn read() -> InboundWork {
    InboundWork::Read { at: 0, len: 8, key: Key(1) }
}

#[test]
fn requests_are_executed_in_order_behind_a_payload() {
    let mut responder = Responder::new(u32::MAX);
    let payload = InboundWork::Payload { into: into(100), direct: true };
    let late = InboundWork::Write { into: into(20), bytes: Vec::new() };
    let serials = [payload, late, read()].map(|work| responder.push(peer(), false, None, work));
    assert_eq!((serials, responder.late_bytes(), responder.inbound_len()), ([u32::MAX, 0, 1], 20, 3));
    assert!(responder.pop_executable().is_none());
    let (request, is_first) = responder.find_mut(serials[0]).expect("it waits");
    request.work = InboundWork::Done;
    assert!(is_first && responder.find_mut(serials[2]).is_some_and(|(_, is_first)| !is_first));
    let order = core::iter::from_fn(|| responder.pop_executable()).map(|request| request.serial);
    assert!(order.eq(serials));
    assert!(responder.has_executed_all() && responder.late_bytes() == 0);
}

#[test]
fn removed_requests_take_their_bytes_with_them() {
    let mut responder = Responder::new(0);
    for len in [1, 2, 4] {
        responder.push(peer(), false, None, InboundWork::Write { into: into(len), bytes: Vec::new() });
    }
    assert!(responder.remove(|request| request.serial == 1).is_some() && responder.late_bytes() == 5);
    assert_eq!((responder.remove_all(|request| request.serial == 2).len(), responder.late_bytes()), (1, 1));
    assert!(responder.remove(|request| request.serial == 2).is_none() && responder.find(0).is_some());
}

#[test]
fn responses_count_until_their_transmission_is_confirmed() {
    let mut responder = Responder::new(0);
    responder.push(peer(), false, None, read());
    assert_eq!((responder.add_response(), responder.responses_under_way()), (1, 2));
    assert!(responder.has_lent() && responder.lends_responses());
    responder.confirm_response();
    responder.confirm_response();
    assert_eq!((responder.lends_responses(), responder.responses_under_way()), (false, 1));
}

#[test]
fn packets_are_dropped_until_the_peer_restarts() {
    let mut responder = Responder::new(0);
    responder.begin(0x1234_5678);
    assert!(responder.begins_with(0x78) && responder.executed() == 0x34_5678);
    assert!(!responder.take(false) && !responder.has_begun());
    assert!(responder.take(true) && responder.take(false) && responder.has_begun());
    responder.refuse_until_restart();
    assert!(!responder.take(false) && responder.take(true));
}

#[test]
fn acknowledgement_leaves_with_a_packet_and_a_refusal_does_not() {
    let mut responder = Responder::new(0);
    responder.owe(Syndrome::None);
    responder.count_executed();
    assert_eq!((responder.acknowledge(), responder.owed()), (1, None));
    responder.owe(Syndrome::ReceiverNotReady(3));
    responder.owe(Syndrome::None);
    assert_eq!((responder.acknowledge(), responder.owed()), (1, Some(Syndrome::ReceiverNotReady(3))));
    responder.owe(Syndrome::Ready);
    assert_eq!(responder.take_owed(), Some(Syndrome::Again), "the peer has not seen the refusal");
}

#[test]
fn responder_is_listed_once_and_not_during_a_transmission() {
    let mut responder = Responder::new(0);
    assert!(responder.list() && !responder.list());
    assert!(responder.taken_from_list());
    responder.ack_queued();
    assert!(!responder.list());
    responder.owe(Syndrome::None);
    assert!(responder.confirm_ack() && responder.list());
    responder.reset();
    assert!(!responder.list(), "the engine still has it in its list");
    assert!(responder.taken_from_list() && !responder.confirm_ack());
}
