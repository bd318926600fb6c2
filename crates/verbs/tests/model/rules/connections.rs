//! One rule of the standard each: connections, their order, and their operations.

use super::*;
use isthmus_verbs::AsyncEvent;

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
fn a_refusal_of_an_earlier_connection_changes_nothing() {
    let options = Options { psns: (5, 9), ..Options::default() };
    let mut network = Network::new(2, 1);
    let one = create(&mut network, 0, QpType::Rc, &options, None);
    let other = create(&mut network, 1, QpType::Rc, &options, None);
    ready_to_receive(&mut network, one, other, &options);
    ready_to_send(&mut network, one, other, &options);
    send(&mut network, one, 10, b"early").unwrap();
    while network.send(0, false) || network.deliver(1) {}
    assert!(network.send(1, false), "the refusal is on its way");
    change_state(&mut network, one, QpState::Reset).unwrap();
    connect(&mut network, one, other, &Options { psns: (105, 109), ..options });
    receive(&mut network, other, 1, 1000);
    receive(&mut network, other, 2, 1000);
    send(&mut network, one, 11, &[1; 1000]).unwrap();
    // Links are in the order of their ends: the header and the payload go first, then the refusal arrives.
    while network.send(0, false) {}
    for _ in 0..8 {
        network.deliver(0);
    }
    network.settle();
    network.tick(0);
    network.tick(1 << 40);
    network.settle();
    assert_eq!(statuses(&mut network, one), [(11, Success)]);
    assert_eq!(statuses(&mut network, other), [(1, Success)]);
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
fn a_send_queue_reports_that_it_is_drained() {
    let drain = |network: &mut Network, qp: Qp, notify: bool| {
        let attributes =
            Attributes { state: QpState::SendQueueDrained, drained_event: notify, ..Attributes::default() };
        modify(network, qp, &attributes, AttributeMask::STATE | AttributeMask::DRAINED_EVENT, None).unwrap();
    };
    let event = |network: &mut Network, qp: Qp| network.call(qp.node, |engine, _| engine.next_async_event());
    for kind in [QpType::Rc, QpType::Uc] {
        let (mut network, one, other) = pair(kind, &Options::default());
        receive(&mut network, other, 1, 100);
        send(&mut network, one, 10, b"under way").unwrap();
        drain(&mut network, one, true);
        assert_eq!(event(&mut network, one), None, "{kind:?}");
        send(&mut network, one, 11, b"later").unwrap();
        network.settle();
        assert_eq!(statuses(&mut network, one), [(10, Success)]);
        assert_eq!(event(&mut network, one), Some(AsyncEvent::SendQueueDrained(one.number)));
        assert_eq!(event(&mut network, one), None, "once");
        receive(&mut network, other, 2, 100);
        change_state(&mut network, one, QpState::ReadyToSend).unwrap();
        network.settle();
        assert_eq!(statuses(&mut network, one), [(11, Success)]);
        // Nothing is under way now.
        drain(&mut network, one, true);
        assert_eq!(event(&mut network, one), Some(AsyncEvent::SendQueueDrained(one.number)));
        change_state(&mut network, one, QpState::ReadyToSend).unwrap();
        drain(&mut network, one, false);
        assert_eq!(event(&mut network, one), None, "not asked for");
    }
}

#[test]
fn a_send_queue_with_a_refused_request_is_drained() {
    let (mut network, one, other) = rc();
    send(&mut network, one, 10, b"refused").unwrap();
    let attributes = Attributes { state: QpState::SendQueueDrained, drained_event: true, ..Attributes::default() };
    modify(&mut network, one, &attributes, AttributeMask::STATE | AttributeMask::DRAINED_EVENT, None).unwrap();
    network.settle();
    let event = network.call(one.node, |engine, _| engine.next_async_event());
    assert_eq!(event, Some(AsyncEvent::SendQueueDrained(one.number)));
    receive(&mut network, other, 1, 100);
    change_state(&mut network, one, QpState::ReadyToSend).unwrap();
    network.settle();
    assert_eq!(statuses(&mut network, one), [(10, Success)]);
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
