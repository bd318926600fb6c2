//! One rule of the standard each: statuses, flushes, retries, order.

use crate::memory::{READ, WRITE};
use crate::network::{Network, address, domain};
use crate::setup::*;
use Status::{Flushed, LocalLength, LocalProtection, RemoteAccess, RemoteInvalidRequest, RemoteOperation, Success};
use isthmus_verbs::{
    Access, AddressVector, AtomicOperation, AttributeMask, Attributes, CompletionKind, Gid, Key, Operation, QpNumber,
    QpState, QpType, ReceiveRequest, Refused, SendFlags, Sge, Status,
};

const SEND: Operation = Operation::Send { immediate: None };

fn write_to(sge: Sge) -> Operation {
    Operation::Write { remote_addr: sge.addr, rkey: Key(sge.lkey), immediate: None }
}

fn read_of(sge: Sge) -> Operation {
    Operation::Read { remote_addr: sge.addr, rkey: Key(sge.lkey) }
}

fn rc() -> (Network, Qp, Qp) {
    pair(QpType::Rc, &Options::default())
}

#[test]
fn a_message_too_long_ends_both_ends() {
    let (mut network, one, other) = rc();
    receive(&mut network, other, 1, 3);
    receive(&mut network, other, 2, 100);
    send(&mut network, one, 10, b"four").unwrap();
    send(&mut network, one, 11, b"more").unwrap();
    network.settle();
    assert_eq!(statuses(&mut network, one), [(10, RemoteInvalidRequest), (11, Flushed)]);
    assert_eq!(statuses(&mut network, other), [(1, LocalLength), (2, Flushed)]);
    assert_eq!((state(&network, one), state(&network, other)), (QpState::Error, QpState::Error));
    send(&mut network, one, 12, b"late").unwrap();
    receive(&mut network, other, 3, 3);
    assert_eq!(statuses(&mut network, one), [(12, Flushed)]);
    assert_eq!(statuses(&mut network, other), [(3, Flushed)]);
}

#[test]
fn a_failure_waits_for_the_payloads_before_it() {
    let (mut network, one, other) = rc();
    let first = receive(&mut network, other, 1, 1000);
    receive(&mut network, other, 2, 3);
    send(&mut network, one, 10, &[7; 1000]).unwrap();
    send(&mut network, one, 11, b"four").unwrap();
    while network.send(0, false) || network.deliver(1) {}
    assert_eq!(statuses(&mut network, other), []);
    network.settle();
    assert_eq!(statuses(&mut network, one), [(10, Success), (11, RemoteInvalidRequest)]);
    assert_eq!(statuses(&mut network, other), [(1, Success), (2, LocalLength)]);
    assert_eq!(look(&network, other, first), [7; 1000]);
}

#[test]
fn a_receive_request_without_rights_ends_every_kind_of_queue_pair() {
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let (mut network, one, other) = pair(kind, &Options::default());
        let sge = room(&mut network, other, 100);
        receive_into(&mut network, other, 1, &[Sge { lkey: sge.lkey ^ 1, ..sge }]).unwrap();
        receive(&mut network, other, 2, 100);
        let bytes = source(&mut network, one, b"data");
        let datagram = (kind == QpType::Ud).then_some((AddressVector::default(), other.number, Q_KEY));
        let flags = SendFlags::SIGNALED;
        post(&mut network, one, &SendWr { wr_id: 10, operation: SEND, flags, sges: vec![bytes], datagram }).unwrap();
        network.settle();
        let status = if kind == QpType::Rc { RemoteOperation } else { Success };
        assert_eq!(statuses(&mut network, one), [(10, status)], "{kind:?}");
        assert_eq!(statuses(&mut network, other), [(1, LocalProtection), (2, Flushed)], "{kind:?}");
        assert_eq!(state(&network, other), QpState::Error);
    }
}

#[test]
fn a_send_request_without_rights_ends_the_queue_pair_in_order() {
    let (mut network, one, other) = rc();
    receive(&mut network, other, 1, 100);
    send(&mut network, one, 10, b"good").unwrap();
    let sge = source(&mut network, one, b"bad");
    operate(&mut network, one, 11, SEND, Sge { lkey: 0, ..sge });
    send(&mut network, one, 12, b"late").unwrap();
    network.settle();
    assert_eq!(statuses(&mut network, one), [(10, Success), (11, LocalProtection), (12, Flushed)]);
    assert_eq!(statuses(&mut network, other), [(1, Success)]);
}

#[test]
fn a_failure_behind_requests_without_signal_is_reported() {
    let options = Options { signal_all: false, ..Options::default() };
    let (mut network, one, other) = pair(QpType::Rc, &options);
    receive(&mut network, other, 1, 100);
    let sge = source(&mut network, one, b"good");
    let quiet = SendWr { wr_id: 10, operation: SEND, flags: SendFlags::empty(), sges: vec![sge], datagram: None };
    post(&mut network, one, &quiet).unwrap();
    operate(&mut network, one, 11, SEND, Sge { lkey: 0, ..sge });
    network.settle();
    assert_eq!(statuses(&mut network, one), [(11, LocalProtection)]);
}

#[test]
fn unreliable_send_queues_fail_alone_and_go_on() {
    for kind in [QpType::Uc, QpType::Ud] {
        let (mut network, one, other) = pair(kind, &Options::default());
        receive(&mut network, other, 1, 100);
        let good = source(&mut network, one, b"good");
        let datagram = (kind == QpType::Ud).then_some((AddressVector::default(), other.number, Q_KEY));
        let request = |wr_id, lkey| {
            let sges = vec![Sge { lkey, ..good }];
            SendWr { wr_id, operation: SEND, flags: SendFlags::SIGNALED, sges, datagram }
        };
        post(&mut network, one, &request(10, 0)).unwrap();
        post(&mut network, one, &request(11, good.lkey)).unwrap();
        assert_eq!(statuses(&mut network, one), [(10, LocalProtection), (11, Flushed)], "{kind:?}");
        assert_eq!(state(&network, one), QpState::SendQueueError);
        change_state(&mut network, one, QpState::ReadyToSend).unwrap();
        post(&mut network, one, &request(12, good.lkey)).unwrap();
        network.settle();
        assert_eq!(statuses(&mut network, one), [(12, Success)]);
        assert_eq!(statuses(&mut network, other), [(1, Success)]);
    }
}

#[test]
fn keys_bounds_and_rights_of_peers_are_checked() {
    let cases: [(Access, Access, u64, u32, bool); 6] = [
        (ALL, ALL, 0, 8, true),
        (ALL, ALL, 1, 8, false),
        (ALL, ALL - Access::REMOTE_WRITE - Access::REMOTE_READ, 0, 8, false),
        (ALL - Access::REMOTE_WRITE - Access::REMOTE_READ, ALL, 0, 8, false),
        (ALL, ALL, u64::MAX, 8, false),
        (ALL, ALL, 0, 0, true),
    ];
    for (of_region, of_qp, offset, len, allowed) in cases {
        for is_read in [false, true] {
            let (mut network, one, other) = pair(QpType::Rc, &Options { access: of_qp, ..Options::default() });
            let target = room(&mut network, other, 8);
            let register = |engine: &mut isthmus_verbs::Engine| {
                engine.register(other.pd, target.addr, 8, target.addr, of_region).unwrap()
            };
            let key = network.call(1, |engine, _| register(engine));
            let at = Sge { addr: target.addr.wrapping_add(offset), len, lkey: key.0 };
            let local = room(&mut network, one, len);
            operate(&mut network, one, 10, if is_read { read_of(at) } else { write_to(at) }, local);
            network.settle();
            let status = if allowed || len == 0 && of_qp == ALL { Success } else { RemoteAccess };
            let said = format!("{of_region:?} {of_qp:?} {offset} {len} {is_read}");
            assert_eq!(statuses(&mut network, one), [(10, status)], "{said}");
        }
    }
}

#[test]
fn a_key_of_another_protection_domain_reaches_nothing() {
    let (mut network, one, other) = rc();
    let target = room(&mut network, other, 8);
    let key = network.call(1, |engine, _| {
        let pd = engine.alloc_pd().unwrap();
        engine.register(pd, target.addr, 8, target.addr, ALL).unwrap()
    });
    let local = source(&mut network, one, &[1; 8]);
    operate(&mut network, one, 10, write_to(Sge { lkey: key.0, ..target }), local);
    network.settle();
    assert_eq!(statuses(&mut network, one), [(10, RemoteAccess)]);
    assert_eq!(look(&network, other, target), [0; 8]);
}

#[test]
fn a_receiver_that_is_not_ready_is_tried_as_often_as_asked() {
    for rnr_retry in [0, 1, 3] {
        let (mut network, one, _) = pair(QpType::Rc, &Options { rnr_retry, ..Options::default() });
        send(&mut network, one, 10, b"data").unwrap();
        send(&mut network, one, 11, b"data").unwrap();
        for attempt in 0..rnr_retry {
            network.settle();
            assert_eq!(statuses(&mut network, one), [], "attempt {attempt}");
            assert!(network.nodes[0].engine.has_pauses());
            network.tick(0);
            network.tick(1 << 40);
        }
        network.settle();
        assert_eq!(statuses(&mut network, one), [(10, Status::RnrRetryExceeded), (11, Flushed)]);
        assert!(!network.nodes[0].engine.has_pauses());
    }
}

#[test]
fn a_receiver_that_becomes_ready_is_served_without_time() {
    let (mut network, one, other) = rc();
    for wr_id in 0..3 {
        send(&mut network, one, wr_id, &[wr_id as u8; 300]).unwrap();
    }
    network.settle();
    for wr_id in 0..3 {
        let sge = receive(&mut network, other, wr_id, 300);
        network.settle();
        assert_eq!(statuses(&mut network, other), [(wr_id, Success)]);
        assert_eq!(look(&network, other, sge), [wr_id as u8; 300]);
    }
    assert_eq!(statuses(&mut network, one), [(0, Success), (1, Success), (2, Success)]);
}

#[test]
fn a_pause_ends_when_its_time_has_come() {
    // Code 12 of the receiver's timer is 640 µs.
    let (mut network, one, _) = rc();
    send(&mut network, one, 10, b"data").unwrap();
    network.settle();
    let engine = &mut network.nodes[0].engine;
    assert_eq!(engine.tick(1_000), Some(641_000));
    assert_eq!(engine.tick(640_999), Some(641_000));
    assert_eq!((engine.tick(641_000), engine.has_pauses()), (None, false));
    assert!(network.send(0, false));
}

#[test]
fn one_receive_of_a_shared_queue_invites_one_peer() {
    let options = Options { rnr_retry: 1, ..Options::default() };
    let mut network = Network::new(3, 1);
    let pd = network.nodes[1].pd;
    let srq = network.call(1, |engine, _| engine.create_srq(pd, 8, 1)).unwrap();
    let mut senders = Vec::new();
    for node in [0, 2, 0] {
        let sender = create(&mut network, node, QpType::Rc, &options, None);
        let receiver = create(&mut network, 1, QpType::Rc, &options, Some(srq));
        connect(&mut network, sender, receiver, &options);
        send(&mut network, sender, 10, b"data").unwrap();
        network.settle();
        senders.push((sender, receiver));
    }
    for (wr_id, (sender, receiver)) in senders.into_iter().enumerate() {
        let sges = [room(&mut network, receiver, 100)];
        let request = ReceiveRequest { wr_id: wr_id as u64, sges: &sges };
        network.call(1, |engine, _| engine.post_srq_receive(srq, &request)).unwrap();
        network.settle();
        assert_eq!(statuses(&mut network, sender), [(10, Success)]);
        assert_eq!(statuses(&mut network, receiver), [(wr_id as u64, Success)]);
    }
}

#[test]
fn a_peer_that_is_not_there_is_tried_as_often_as_asked() {
    for retry_count in [0, 2, 7] {
        let options = Options { retry_count, ..Options::default() };
        let (mut network, one, other) = pair(QpType::Rc, &options);
        change_state(&mut network, other, QpState::Reset).unwrap();
        network.settle();
        for wr_id in 10..20 {
            send(&mut network, one, wr_id, b"data").unwrap();
        }
        for _ in 0..retry_count {
            network.settle();
            assert_eq!(statuses(&mut network, one), []);
            network.tick(0);
            network.tick(1 << 40);
        }
        network.settle();
        let completions = statuses(&mut network, one);
        assert_eq!(completions[..2], [(10, Status::RetryExceeded), (11, Flushed)], "{retry_count}");
        assert_eq!(completions.len(), 10);
    }
}

#[test]
fn a_peer_that_connects_late_gets_everything() {
    for timeout in [0, 14] {
        let options = Options { timeout, ..Options::default() };
        let mut network = Network::new(2, 1);
        let (one, other) =
            (create(&mut network, 0, QpType::Rc, &options, None), create(&mut network, 1, QpType::Rc, &options, None));
        ready_to_receive(&mut network, one, other, &options);
        ready_to_send(&mut network, one, other, &options);
        for wr_id in 0..20 {
            send(&mut network, one, wr_id, &[wr_id as u8; 200]).unwrap();
        }
        // The refusal and the news that the peer is ready may be under way together.
        while network.send(0, false) || network.deliver(0) {}
        ready_to_receive(&mut network, other, one, &options);
        for wr_id in 0..20 {
            receive(&mut network, other, wr_id, 200);
        }
        network.settle();
        assert_eq!(statuses(&mut network, other), (0..20).map(|wr_id| (wr_id, Success)).collect::<Vec<_>>());
        assert_eq!(statuses(&mut network, one).len(), 20);
    }
}

#[test]
fn a_connection_made_again_works_and_the_old_one_leaves_nothing() {
    for psns in [(0, 0), (0xff_ffff, 5)] {
        let options = Options { psns, ..Options::default() };
        let (mut network, one, other) = pair(QpType::Rc, &options);
        for round in 0..5_u8 {
            receive(&mut network, other, 1, 300);
            receive(&mut network, one, 2, 300);
            send(&mut network, one, 10, &[round; 300]).unwrap();
            send(&mut network, one, 11, &[round; 300]).unwrap();
            for _ in 0..round {
                network.send(0, false);
                network.deliver(0);
            }
            for qp in [one, other] {
                change_state(&mut network, qp, QpState::Reset).unwrap();
            }
            network.settle();
            assert_eq!((statuses(&mut network, one), statuses(&mut network, other)), (vec![], vec![]));
            connect(&mut network, one, other, &options);
            let sge = receive(&mut network, other, 3, 300);
            send(&mut network, one, 12, &[round + 100; 300]).unwrap();
            network.settle();
            assert_eq!(statuses(&mut network, one), [(12, Success)]);
            assert_eq!(statuses(&mut network, other), [(3, Success)]);
            assert_eq!(look(&network, other, sge), [round + 100; 300]);
        }
    }
}

#[test]
fn a_connection_with_psns_that_differ_ends() {
    let options = Options { psns: (5, 9), retry_count: 1, ..Options::default() };
    let mut network = Network::new(2, 1);
    let one = create(&mut network, 0, QpType::Rc, &options, None);
    let other = create(&mut network, 1, QpType::Rc, &options, None);
    ready_to_receive(&mut network, other, one, &options);
    let options = Options { psns: (6, 9), ..options };
    ready_to_receive(&mut network, one, other, &options);
    ready_to_send(&mut network, one, other, &options);
    receive(&mut network, other, 1, 100);
    send(&mut network, one, 10, b"data").unwrap();
    for _ in 0..3 {
        network.settle();
        network.tick(0);
        network.tick(1 << 40);
    }
    assert_eq!(statuses(&mut network, one), [(10, Status::RetryExceeded)]);
    assert_eq!(statuses(&mut network, other), []);
}

#[test]
fn a_peer_that_ends_gives_its_reason_even_as_it_is_destroyed() {
    let (mut network, one, other) = rc();
    receive(&mut network, other, 1, 3);
    send(&mut network, one, 10, b"four").unwrap();
    while network.send(0, false) || network.deliver(0) {}
    network.call(1, |engine, _| engine.destroy_qp(other.number)).unwrap();
    network.settle();
    assert_eq!(statuses(&mut network, one), [(10, RemoteInvalidRequest)]);
}

#[test]
fn a_reason_stays_when_the_program_enters_error_itself() {
    let (mut network, one, other) = rc();
    let target = room(&mut network, other, 8);
    let local = source(&mut network, one, &[1; 8]);
    operate(&mut network, one, 10, write_to(Sge { lkey: 1, ..target }), local);
    while network.send(0, false) || network.deliver(0) {}
    change_state(&mut network, other, QpState::Error).unwrap();
    network.settle();
    assert_eq!(statuses(&mut network, one), [(10, RemoteAccess)]);
}

#[test]
fn a_shared_queue_does_not_hide_the_reason() {
    let options = Options::default();
    let mut network = Network::new(2, 1);
    let pd = network.nodes[1].pd;
    let srq = network.call(1, |engine, _| engine.create_srq(pd, 8, 1)).unwrap();
    let one = create(&mut network, 0, QpType::Rc, &options, None);
    let other = create(&mut network, 1, QpType::Rc, &options, Some(srq));
    connect(&mut network, one, other, &options);
    send(&mut network, one, 10, b"data").unwrap();
    network.settle();
    change_state(&mut network, other, QpState::Error).unwrap();
    let sges = [room(&mut network, other, 100)];
    network.call(1, |engine, _| engine.post_srq_receive(srq, &ReceiveRequest { wr_id: 1, sges: &sges })).unwrap();
    for _ in 0..10 {
        network.settle();
        network.tick(0);
        network.tick(1 << 40);
    }
    assert_eq!(statuses(&mut network, one), [(10, Status::RetryExceeded)]);
}

#[test]
fn an_acknowledgement_comes_through_while_the_queue_pair_refuses() {
    // The program waits for its send before it posts a receive.
    let (mut network, one, other) = rc();
    receive(&mut network, one, 1, 100);
    send(&mut network, one, 10, b"refused").unwrap();
    network.settle();
    send(&mut network, other, 20, b"data").unwrap();
    network.settle();
    assert_eq!(statuses(&mut network, other), [(20, Success)]);
    receive(&mut network, other, 2, 100);
    network.settle();
    assert_eq!(statuses(&mut network, other), [(2, Success)]);
    assert_eq!(statuses(&mut network, one), [(1, Success), (10, Success)]);
}

#[test]
fn a_drained_send_queue_keeps_its_requests() {
    for kind in [QpType::Rc, QpType::Uc] {
        let (mut network, one, other) = pair(kind, &Options::default());
        change_state(&mut network, one, QpState::SendQueueDrained).unwrap();
        receive(&mut network, other, 1, 100);
        send(&mut network, one, 10, b"later").unwrap();
        network.settle();
        assert_eq!((statuses(&mut network, one), statuses(&mut network, other)), (vec![], vec![]));
        change_state(&mut network, one, QpState::ReadyToSend).unwrap();
        network.settle();
        assert_eq!(statuses(&mut network, one), [(10, Success)]);
        assert_eq!(statuses(&mut network, other), [(1, Success)]);
    }
}

#[test]
fn empty_lists_and_empty_ranges_are_messages() {
    for sges in [0, 1, 3] {
        let (mut network, one, other) = rc();
        receive_into(&mut network, other, 1, &[]).unwrap();
        let sges = vec![Sge { addr: 0xdead, len: 0, lkey: 0 }; sges];
        let operation = Operation::Send { immediate: Some(7) };
        let request = SendWr { wr_id: 10, operation, flags: SendFlags::SIGNALED, sges, datagram: None };
        post(&mut network, one, &request).unwrap();
        network.settle();
        let completion = poll(&mut network, other)[0];
        assert_eq!((completion.status, completion.len, completion.immediate), (Success, 0, Some(7)));
        assert_eq!(statuses(&mut network, one), [(10, Success)]);
    }
}

#[test]
fn a_later_write_is_not_visible_before_an_earlier_one() {
    let (mut network, one, other) = rc();
    let target = room(&mut network, other, 1001);
    let (data, flag) = (source(&mut network, one, &[5; 1000]), source(&mut network, one, &[1]));
    operate(&mut network, one, 10, write_to(target), data);
    operate(&mut network, one, 11, write_to(Sge { addr: target.addr + 1000, ..target }), flag);
    while network.send(0, false) || network.deliver(1) {}
    assert_eq!(look(&network, other, target), [0; 1001]);
    network.settle();
    assert_eq!(look(&network, other, target)[999..], [5, 1]);
    assert_eq!(statuses(&mut network, one), [(10, Success), (11, Success)]);
}

#[test]
fn late_writes_beyond_the_room_for_them_are_repeated() {
    let options = Options { rnr_retry: 0, ..Options::default() };
    let (mut network, one, other) = pair(QpType::Rc, &options);
    let len = 400_000;
    let target = room(&mut network, other, len);
    let local = room(&mut network, one, len);
    for wr_id in 0..64 {
        operate(&mut network, one, wr_id, write_to(target), local);
    }
    while network.send(0, false) || network.deliver(1) {}
    network.settle();
    let all: Vec<_> = (0..64).map(|wr_id| (wr_id, Success)).collect();
    assert_eq!(statuses(&mut network, one), all);
}

#[test]
fn atomics_return_the_number_before_them() {
    let (mut network, one, other) = rc();
    let target = source(&mut network, other, &7_u64.to_le_bytes());
    network.nodes[1].program.allow(target.addr, 8, READ | WRITE);
    let steps = [
        (AtomicOperation::FetchAdd(u64::MAX), 7, 6, CompletionKind::FetchAdd),
        (AtomicOperation::CompareSwap { compare: 7, swap: 1 }, 6, 6, CompletionKind::CompareSwap),
        (AtomicOperation::CompareSwap { compare: 6, swap: 1 }, 6, 1, CompletionKind::CompareSwap),
    ];
    for (atomic, before, after, kind) in steps {
        let place = room(&mut network, one, 8);
        let operation = Operation::Atomic { remote_addr: target.addr, rkey: other.key, atomic };
        operate(&mut network, one, 10, operation, place);
        network.settle();
        let completion = poll(&mut network, one)[0];
        assert_eq!((completion.status, completion.kind, completion.len), (Success, kind, 8));
        assert_eq!(look(&network, one, place), u64::to_le_bytes(before));
        assert_eq!(look(&network, other, target), u64::to_le_bytes(after));
    }
}

#[test]
fn a_fence_waits_for_reads_and_reads_wait_for_their_number() {
    let options = Options { reads_max: 2, ..Options::default() };
    let (mut network, one, other) = pair(QpType::Rc, &options);
    let target = room(&mut network, other, 8);
    for wr_id in 0..3 {
        let place = room(&mut network, one, 8);
        operate(&mut network, one, wr_id, read_of(target), place);
    }
    assert!(network.send(0, false) && network.send(0, false) && !network.send(0, false));
    network.settle();
    let place = room(&mut network, one, 8);
    operate(&mut network, one, 3, read_of(target), place);
    let sge = source(&mut network, one, &[9; 8]);
    let flags = SendFlags::SIGNALED | SendFlags::FENCE;
    let write = SendWr { wr_id: 4, operation: write_to(target), flags, sges: vec![sge], datagram: None };
    post(&mut network, one, &write).unwrap();
    assert!(network.send(0, false) && !network.send(0, false));
    network.settle();
    assert_eq!(look(&network, one, place), [0; 8]);
    assert_eq!(look(&network, other, target), [9; 8]);
    assert_eq!(statuses(&mut network, one).len(), 5);
}

#[test]
fn a_deregistered_region_belongs_to_the_program_at_once() {
    for is_read in [false, true] {
        let (mut network, one, other) = rc();
        let target = room(&mut network, other, 1000);
        let key = network.call(1, |engine, _| engine.register(other.pd, target.addr, 1000, target.addr, ALL)).unwrap();
        let at = Sge { lkey: key.0, ..target };
        let local = room(&mut network, one, 1000);
        operate(&mut network, one, 10, if is_read { read_of(at) } else { write_to(at) }, local);
        while network.send(0, false) || network.deliver(1) {}
        network.call(1, |engine, _| engine.deregister(key)).unwrap();
        assert!(!network.is_lent(1, target.addr, 1000) && !network.is_arriving(1, target.addr, 1000));
        network.nodes[1].program.allow(target.addr, 1000, 0);
        network.settle();
        assert_eq!(statuses(&mut network, one), [(10, RemoteAccess)], "read: {is_read}");
        assert_eq!(state(&network, other), QpState::Error);
    }
}

#[test]
fn requests_in_a_deregistered_region_fail() {
    // Packets: none has left, the header has, the payload has arrived.
    for packets in 0..3 {
        let (mut network, one, other) = rc();
        let (local, target) = (room(&mut network, one, 1000), room(&mut network, other, 1000));
        let key = network.call(0, |engine, _| engine.register(one.pd, local.addr, 1000, local.addr, ALL)).unwrap();
        operate(&mut network, one, 10, write_to(target), Sge { lkey: key.0, ..local });
        match packets {
            0 => {}
            1 => assert!(network.send(0, false)),
            _ => while network.send(0, false) || network.deliver(1) {},
        }
        network.call(0, |engine, _| engine.deregister(key)).unwrap();
        assert!(!network.is_lent(0, local.addr, 1000));
        network.nodes[0].program.allow(local.addr, 1000, 0);
        network.settle();
        assert_eq!(statuses(&mut network, one), [(10, LocalProtection)], "{packets}");
    }
}

#[test]
fn a_response_into_a_deregistered_region_fails_the_read() {
    let (mut network, one, other) = rc();
    let (local, target) = (room(&mut network, one, 1000), room(&mut network, other, 1000));
    let key = network.call(0, |engine, _| engine.register(one.pd, local.addr, 1000, local.addr, ALL)).unwrap();
    operate(&mut network, one, 10, read_of(target), Sge { lkey: key.0, ..local });
    while network.send(0, false) || network.send(1, false) || network.deliver(1) {}
    assert!(network.is_arriving(0, local.addr, 1000));
    network.call(0, |engine, _| engine.deregister(key)).unwrap();
    network.nodes[0].program.allow(local.addr, 1000, 0);
    network.settle();
    assert_eq!(statuses(&mut network, one), [(10, LocalProtection)]);
}

#[test]
fn a_peer_that_goes_ends_connections_and_loses_datagrams() {
    let (mut network, one, other) = rc();
    receive(&mut network, one, 1, 100);
    send(&mut network, one, 10, &[1; 1000]).unwrap();
    assert!(network.send(0, false));
    send(&mut network, one, 11, &[1; 1000]).unwrap();
    network.kill(other.node);
    assert_eq!(statuses(&mut network, one), [(10, Status::RetryExceeded), (11, Flushed), (1, Flushed)]);
    for kind in [QpType::Uc, QpType::Ud] {
        let (mut network, one, other) = pair(kind, &Options::default());
        let sge = source(&mut network, one, &[1; 1000]);
        let datagram = (kind == QpType::Ud).then_some((AddressVector::default(), other.number, Q_KEY));
        let flags = SendFlags::SIGNALED;
        for wr_id in 10..12 {
            post(&mut network, one, &SendWr { wr_id, operation: SEND, flags, sges: vec![sge], datagram }).unwrap();
        }
        assert!(network.send(0, false));
        network.kill(other.node);
        assert_eq!(statuses(&mut network, one), [(10, Success), (11, Success)], "{kind:?}");
        assert!(!network.is_lent(0, sge.addr, 1000));
    }
}

#[test]
fn a_payload_of_a_peer_that_goes_returns_its_receive_request() {
    let (mut network, one, other) = pair(QpType::Uc, &Options::default());
    receive(&mut network, other, 1, 1000);
    send(&mut network, one, 10, &[1; 1000]).unwrap();
    while network.send(0, false) || network.deliver(1) {}
    network.kill(one.node);
    assert_eq!(statuses(&mut network, other), []);
    change_state(&mut network, other, QpState::Error).unwrap();
    assert_eq!(statuses(&mut network, other), [(1, Flushed)]);
}

#[test]
fn datagrams_carry_their_addresses() {
    let (mut network, one, other) = pair(QpType::Ud, &Options::default());
    let (gid, source_gid) = (Gid([0xaa; 16]), Gid([0xbb; 16]));
    let to = Some(address(1));
    network.call(0, |engine, _| engine.add_route(gid, other.number, to));
    for (len, gid) in [(0_usize, gid), (100, gid), (4096, gid), (100, Gid::default())] {
        let buffer = receive(&mut network, other, 1, 5000);
        let sge = source(&mut network, one, &vec![3; len]);
        let address = AddressVector { gid, source_gid, service_level: 5 };
        let datagram = Some((address, other.number, Q_KEY));
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        post(&mut network, one, &SendWr { wr_id: 10, operation: SEND, flags, sges: vec![sge], datagram }).unwrap();
        network.settle();
        let completion = poll(&mut network, other)[0];
        let has_grh = gid != Gid::default();
        assert_eq!((completion.len as usize, completion.has_grh), (len + 40, has_grh));
        assert_eq!((completion.source_qp, completion.service_level, completion.solicited), (one.number, 5, true));
        let bytes = look(&network, other, buffer);
        let mut header = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 0x1b, 64];
        header.extend([[0xbb; 16], [0xaa; 16]].concat());
        assert_eq!(bytes[..40], if has_grh { header } else { vec![0; 40] });
        assert_eq!(bytes[40..40 + len], vec![3; len]);
    }
}

#[test]
fn datagrams_with_another_q_key_or_without_room_are_lost() {
    let (mut network, one, other) = pair(QpType::Ud, &Options::default());
    let mut attempt = |q_key, room: u32, sent: usize| {
        receive(&mut network, other, 1, room);
        let sge = source(&mut network, one, &vec![3; sent]);
        let datagram = Some((AddressVector::default(), other.number, q_key));
        let flags = SendFlags::SIGNALED;
        post(&mut network, one, &SendWr { wr_id: 10, operation: SEND, flags, sges: vec![sge], datagram }).unwrap();
        network.settle();
        assert_eq!(statuses(&mut network, one), [(10, Success)]);
        statuses(&mut network, other).len()
    };
    assert_eq!(attempt(Q_KEY + 1, 200, 10), 0);
    // A Q_Key with the highest bit stands for that of the queue pair.
    assert_eq!(attempt(0x8000_0000, 40, 10), 1);
    assert_eq!(attempt(Q_KEY, 0, 10), 0);
}

#[test]
fn queue_pairs_of_one_device_reach_each_other_and_themselves() {
    let options = Options::default();
    let mut network = Network::new(1, 1);
    let one = create(&mut network, 0, QpType::Rc, &options, None);
    let other = create(&mut network, 0, QpType::Rc, &options, None);
    connect(&mut network, one, other, &options);
    let alone = create(&mut network, 0, QpType::Rc, &options, None);
    ready_to_receive(&mut network, alone, alone, &options);
    ready_to_send(&mut network, alone, alone, &options);
    for (from, to) in [(one, other), (alone, alone)] {
        let sge = receive(&mut network, to, 1, 500);
        send(&mut network, from, 10, &[4; 500]).unwrap();
        network.settle();
        assert_eq!(look(&network, to, sge), [4; 500]);
    }
    let datagrams = create(&mut network, 0, QpType::Ud, &options, None);
    ready_to_receive(&mut network, datagrams, datagrams, &options);
    ready_to_send(&mut network, datagrams, datagrams, &options);
    network.call(0, |engine, _| engine.add_route(Gid::default(), datagrams.number, Some(address(0))));
    receive(&mut network, datagrams, 1, 540);
    let sge = source(&mut network, datagrams, &[4; 500]);
    let datagram = Some((AddressVector::default(), datagrams.number, Q_KEY));
    let request = SendWr { wr_id: 10, operation: SEND, flags: SendFlags::SIGNALED, sges: vec![sge], datagram };
    post(&mut network, datagrams, &request).unwrap();
    network.settle();
    let mut both = statuses(&mut network, datagrams);
    both.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(both, [(1, Success), (10, Success)]);
}

#[test]
fn a_completion_queue_that_overruns_takes_no_more() {
    let options = Options { completions_max: 2, ..Options::default() };
    let (mut network, one, other) = pair(QpType::Uc, &options);
    for wr_id in 0..3 {
        assert!(!network.nodes[0].engine.is_overrun(one.cq));
        send(&mut network, one, wr_id, b"data").unwrap();
        network.settle();
    }
    assert!(network.nodes[0].engine.is_overrun(one.cq) && !network.nodes[1].engine.is_overrun(other.cq));
    assert_eq!(statuses(&mut network, one), [(0, Success), (1, Success)]);
    send(&mut network, one, 3, b"data").unwrap();
    network.settle();
    assert_eq!(statuses(&mut network, one), []);
}

#[test]
fn numbers_are_used_again_as_late_as_possible() {
    let mut network = Network::new(1, 1);
    let first = create(&mut network, 0, QpType::Rc, &Options::default(), None);
    let destroy = |network: &mut Network, qp: Qp| network.call(0, |engine, _| engine.destroy_qp(qp.number)).unwrap();
    destroy(&mut network, first);
    for _ in 1..256 {
        let qp = create(&mut network, 0, QpType::Rc, &Options::default(), None);
        assert_ne!(qp.number, first.number);
        destroy(&mut network, qp);
    }
    assert_eq!(create(&mut network, 0, QpType::Rc, &Options::default(), None).number, first.number);
}

#[test]
fn late_confirmations_do_not_reach_the_next_queue_pair_of_a_number() {
    let options = Options::default();
    let (mut network, one, _) = pair(QpType::Uc, &options);
    send(&mut network, one, 10, &[1; 1000]).unwrap();
    assert!(network.send(0, false));
    network.call(0, |engine, _| engine.destroy_qp(one.number)).unwrap();
    let mut next = one;
    for _ in 0..256 {
        next = create(&mut network, 0, QpType::Uc, &options, None);
        if next.number != one.number {
            network.call(0, |engine, _| engine.destroy_qp(next.number)).unwrap();
        }
    }
    assert_eq!(next.number, one.number);
    let peer = create(&mut network, 1, QpType::Uc, &options, None);
    connect(&mut network, next, peer, &options);
    send(&mut network, next, 20, &[2; 1000]).unwrap();
    assert!(network.send(0, false));
    // The old payload is over, the new one is not.
    assert!(network.deliver(0) && network.deliver(0) && network.confirm(0));
    assert_eq!(statuses(&mut network, next), []);
    network.settle();
    assert_eq!(statuses(&mut network, next), [(20, Success)]);
}

#[test]
fn objects_in_use_stay() {
    let mut network = Network::new(1, 1);
    let qp = create(&mut network, 0, QpType::Rc, &Options::default(), None);
    network.call(0, |engine, _| {
        let pd = engine.alloc_pd().unwrap();
        let gap = engine.create_srq(pd, 1, 1).unwrap();
        let srq = engine.create_srq(pd, 1, 1).unwrap();
        engine.destroy_srq(gap).unwrap();
        assert_eq!(engine.dealloc_pd(pd), Err(Refused::Busy));
        let init = init(QpType::Rc, qp.pd, qp.cq, &Options::default(), Some(srq));
        let (user, _) = engine.create_qp(&init).unwrap();
        assert_eq!((engine.destroy_srq(srq), engine.destroy_cq(qp.cq)), (Err(Refused::Busy), Err(Refused::Busy)));
        engine.destroy_qp(user).unwrap();
        engine.destroy_srq(srq).unwrap();
        engine.dealloc_pd(pd).unwrap();
        assert_eq!(engine.dealloc_pd(pd), Err(Refused::Invalid));
        let rights = Some(Access::REMOTE_WRITE);
        assert_eq!(engine.reregister(qp.key, None, None, rights), Err(Refused::Invalid));
        assert_eq!(engine.destroy_qp(QpNumber(5)), Err(Refused::Invalid));
    });
}

#[test]
fn requests_that_no_adapter_takes_are_refused() {
    let (mut network, one, _) = rc();
    let sge = source(&mut network, one, &[0; 1024]);
    let request =
        |operation, flags, sges: &[Sge]| SendWr { wr_id: 1, operation, flags, sges: sges.to_vec(), datagram: None };
    let signaled = SendFlags::SIGNALED;
    let atomic = |remote_addr| {
        let atomic = AtomicOperation::FetchAdd(1);
        Operation::Atomic { remote_addr, rkey: Key(1), atomic }
    };
    let eight = Sge { len: 8, ..sge };
    let invalid = [
        request(SEND, signaled, &[eight; 9]),
        request(SEND, signaled | SendFlags::INLINE, &[sge]),
        request(read_of(sge), signaled | SendFlags::INLINE, &[eight]),
        request(atomic(4), signaled, &[eight]),
        request(atomic(8), signaled, &[sge]),
        request(SEND, signaled, &[Sge { len: u32::MAX, ..sge }]),
    ];
    for request in invalid {
        assert_eq!(post(&mut network, one, &request), Err(Refused::Invalid), "{request:?}");
    }
    for _ in 0..64 {
        send(&mut network, one, 1, b"").unwrap();
    }
    assert_eq!(send(&mut network, one, 1, b""), Err(Refused::Full));
    let unresolved = QpNumber(77);
    let (mut network, one, _) = pair(QpType::Ud, &Options::default());
    let datagram = Some((AddressVector::default(), unresolved, Q_KEY));
    let unresolved_request = SendWr { wr_id: 1, operation: SEND, flags: signaled, sges: vec![], datagram };
    let missing = Err(Refused::RouteMissing(Gid::default(), unresolved));
    assert_eq!(post(&mut network, one, &unresolved_request), missing);
    // A look-up that finds nothing loses one datagram.
    network.call(0, |engine, _| engine.add_route(Gid::default(), unresolved, None));
    post(&mut network, one, &unresolved_request).unwrap();
    assert_eq!(statuses(&mut network, one), [(1, Success)]);
    assert_eq!(post(&mut network, one, &unresolved_request), missing);
    network.call(0, |engine, _| engine.add_route(Gid::default(), unresolved, Some(address(1))));
    network.call(0, |engine, _| engine.peer_gone(domain(1)));
    assert_eq!(post(&mut network, one, &unresolved_request), missing);
}

#[test]
fn counts_wrap_around() {
    let psns = (0xff_fff0, 0xff_ffff);
    let (mut network, one, other) = pair(QpType::Rc, &Options { psns, ..Options::default() });
    // More requests than are left before the sequence numbers wrap around, too.
    for wr_id in 0..400 {
        receive(&mut network, other, wr_id, 200);
        receive(&mut network, one, wr_id, 200);
        send(&mut network, one, wr_id, &[1; 200]).unwrap();
        send(&mut network, other, wr_id, &[1; 20]).unwrap();
        network.settle();
        for qp in [one, other] {
            assert_eq!(statuses(&mut network, qp), [(wr_id, Success); 2]);
        }
    }
    let attributes = Attributes { current_state: QpState::Init, ..Attributes::default() };
    let mask = AttributeMask::STATE | AttributeMask::CURRENT_STATE;
    assert_eq!(modify(&mut network, one, &attributes, mask, None), Err(Refused::Invalid));
}
