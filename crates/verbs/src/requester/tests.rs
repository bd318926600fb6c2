//! A requester without its engine: sequence numbers, counts of the peer, and attempts.

use super::*;
use crate::types::{AtomicOperation, Operation, SendFlags, SendRequest, Sge};

const SGE: Sge = Sge { addr: 0, len: 8, lkey: 1 };

/// A number near the end of the sequence numbers, and a PSN near the end of those.
const FIRST: u32 = u32::MAX - 1;

fn attributes() -> Attributes {
    Attributes { send_psn: QpNumber::MASK, retry_count: 2, rnr_retry: 1, ..Attributes::default() }
}

fn entry(operation: Operation, flags: SendFlags) -> SendEntry {
    let request = SendRequest { wr_id: 0, operation, sges: &[SGE], flags, datagram: None };
    SendEntry::new(&request, 8, Source::Memory(crate::queues::SgeList::new(request.sges)), None)
}

/// A requester that has these requests.
fn with(operations: &[Operation]) -> Requester {
    let mut requester = Requester::new(16, FIRST);
    requester.begin(&attributes());
    operations.iter().for_each(|operation| requester.push(entry(*operation, SendFlags::empty())));
    requester
}

/// Sends all requests that may be sent, with confirmations. Returns their number.
fn send(requester: &mut Requester, reads_max: u32) -> usize {
    let mut sent = 0;
    while let Some(sequence) = requester.send_next(reads_max) {
        requester.packet_taken(sequence, true);
        assert!(requester.confirm_transmission(sequence));
        sent += 1;
    }
    sent
}

/// The peer has executed this number of requests of the connection.
fn execute(requester: &mut Requester, count: u32) -> bool {
    let executed = requester.newly_executed(attributes().send_psn.wrapping_add(count) & QpNumber::MASK);
    executed.inspect(|executed| requester.confirm_executed(*executed, &attributes())).is_some()
}

const SEND: Operation = Operation::Send { immediate: None };
const READ: Operation = Operation::Read { remote_addr: 0, rkey: Key(1) };
const ATOMIC: Operation = Operation::Atomic { remote_addr: 0, rkey: Key(1), atomic: AtomicOperation::FetchAdd(1) };

#[test]
fn requests_complete_in_order_across_the_end_of_the_numbers() {
    let mut requester = with(&[SEND; 4]);
    assert_eq!((send(&mut requester, 0), requester.end()), (4, 2));
    assert!(requester.front_over(true).is_none() && requester.waits_for_execution());
    assert!(!execute(&mut requester, 5), "more than was sent");
    assert!(execute(&mut requester, 0) && execute(&mut requester, 3));
    let over = core::iter::from_fn(|| {
        requester.front_over(true)?;
        requester.pop()
    });
    assert_eq!((over.count(), requester.len()), (3, 1));
    assert!(!execute(&mut requester, 2), "the count does not go back");
    assert!(execute(&mut requester, 4) && !requester.waits_for_execution());
}

#[test]
fn request_with_an_unconfirmed_transmission_is_not_over() {
    let mut requester = with(&[SEND]);
    let sequence = requester.send_next(0).expect("it may be sent");
    assert!(requester.queued(sequence).is_some());
    requester.packet_taken(sequence, true);
    assert!(execute(&mut requester, 1) && requester.front_over(true).is_none());
    assert!(requester.confirm_transmission(sequence) && requester.front_over(true).is_some());
    requester.pop();
    assert!(!requester.confirm_transmission(sequence), "it is gone");
}

#[test]
fn reads_under_way_are_limited_and_fences_wait_for_them() {
    let mut requester = with(&[READ, ATOMIC, READ]);
    assert_eq!((send(&mut requester, 2), send(&mut requester, 2)), (2, 0));
    assert!(execute(&mut requester, 2) && requester.misses_response());
    let (sequence, _) = requester.awaiting_response().expect("the first read");
    assert_eq!(sequence, FIRST);
    assert!(requester.answered(sequence) && requester.answered(sequence), "the second time changes nothing");
    assert_eq!(send(&mut requester, 2), 1);
    requester.push(entry(SEND, SendFlags::FENCE));
    assert_eq!(send(&mut requester, 2), 0);
    assert!(requester.answered(FIRST.wrapping_add(1)) && execute(&mut requester, 3));
    assert!(requester.answered(FIRST.wrapping_add(2)));
    assert_eq!(send(&mut requester, 2), 1);
}

#[test]
fn rewind_sends_again_what_was_not_executed() {
    let mut requester = with(&[SEND, READ, SEND]);
    assert_eq!(requester.position_of_attempt(FIRST), Some(QpNumber::MASK & 0xff));
    assert_eq!(send(&mut requester, 1), 3);
    assert!(!requester.restarts() && execute(&mut requester, 1));
    assert_eq!(requester.position_of_attempt(requester.end()), None, "the peer exists");
    requester.rewind(Some(10));
    assert!(requester.restarts() && requester.is_paused() && send(&mut requester, 1) == 0);
    assert_eq!([100, 105, 110].map(|now| requester.pause_until(now)), [Some(110); 3]);
    requester.end_pause();
    assert_eq!((send(&mut requester, 1), requester.pause_until(0)), (2, None));
}

#[test]
fn retries_end_unless_they_are_renewed_or_without_a_limit() {
    let mut requester = with(&[SEND, SEND]);
    assert_eq!([0; 3].map(|_| requester.count_retry()), [true, true, false]);
    assert_eq!([0; 2].map(|_| requester.count_rnr_retry()), [true, false]);
    send(&mut requester, 0);
    assert!(execute(&mut requester, 1));
    assert!(requester.count_retry() && requester.count_rnr_retry(), "an executed request renews them");
    requester.begin(&Attributes { rnr_retry: 7, ..attributes() });
    assert_eq!([0; 100].map(|_| requester.count_rnr_retry()), [true; 100]);
}

#[test]
fn failed_request_stops_later_ones_and_ends_in_its_turn() {
    let mut requester = with(&[SEND, SEND, SEND]);
    send(&mut requester, 0);
    let failed = FIRST.wrapping_add(1);
    assert!(requester.fail(failed, Status::LocalProtection) && requester.is_stopped());
    assert!(requester.fail(failed, Status::RemoteAccess), "the first status stays");
    requester.push(entry(SEND, SendFlags::empty()));
    assert!(send(&mut requester, 0) == 0 && requester.front_over(true).is_none());
    assert!(requester.precedes(FIRST, failed) && !requester.precedes(failed, failed));
    assert!(execute(&mut requester, 1));
    assert_eq!(requester.front_over(true).map(|(_, status)| status), Some(Status::Success));
    requester.pop();
    assert_eq!(requester.front_over(true).map(|(_, status)| status), Some(Status::LocalProtection));
    assert_eq!((requester.flush().len(), requester.is_stopped(), requester.is_drained()), (3, false, true));
    assert!(!requester.fail(failed, Status::Flushed), "it is gone");
}

#[test]
fn reset_continues_the_numbers() {
    let mut requester = with(&[SEND; 3]);
    send(&mut requester, 0);
    requester.reset();
    assert_eq!((requester.end(), requester.len(), requester.entries().count()), (FIRST.wrapping_add(3), 0, 0));
    assert!(!requester.confirm_transmission(FIRST) && requester.restarts());
}
