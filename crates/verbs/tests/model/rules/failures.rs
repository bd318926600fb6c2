//! One rule of the standard each: statuses, flushes and retries.

use super::*;

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

/// A peer has died. What this side has sent fails for want of a reply, and nothing blames the peer.
#[track_caller]
fn expect_end_of_peer(network: &mut Network, one: Qp, received: u64) {
    network.settle();
    network.tick(1 << 40);
    network.tick(1 << 40);
    network.settle();
    send(network, one, 11, b"late").unwrap();
    network.settle();
    assert_eq!(statuses(network, one), [(10, RetryExceeded), (received, Flushed), (11, Flushed)]);
    assert_eq!(network.call(one.node, |engine, _| engine.next_async_event()), None);
}

#[test]
fn a_peer_that_dies_in_the_middle_of_its_message_made_no_error() {
    let (mut network, one, other) = rc();
    receive(&mut network, one, 1, 1000);
    send(&mut network, other, 20, &[7; 1000]).unwrap();
    send(&mut network, one, 10, b"waits").unwrap();
    while network.send(1, false) || network.deliver(0) {}
    network.kill(1);
    expect_end_of_peer(&mut network, one, 1);
}

#[test]
fn a_peer_that_dies_before_its_response_made_no_error() {
    let (mut network, one, other) = rc();
    let (target, place) = (room(&mut network, one, 1000), room(&mut network, other, 1000));
    receive(&mut network, one, 1, 1000);
    operate(&mut network, other, 20, read_of(target), place);
    send(&mut network, one, 10, b"waits").unwrap();
    while network.send(1, false) || network.deliver(0) {}
    while network.send(0, false) {}
    network.kill(1);
    expect_end_of_peer(&mut network, one, 1);
}

#[test]
fn a_request_that_waits_for_a_peer_without_a_limit_ends_with_it() {
    let options = Options { timeout: 0, ..Options::default() };
    let mut network = Network::new(2, 1);
    let (one, other) =
        (create(&mut network, 0, QpType::Rc, &options, None), create(&mut network, 1, QpType::Rc, &options, None));
    ready_to_receive(&mut network, one, other, &options);
    ready_to_send(&mut network, one, other, &options);
    send(&mut network, one, 10, b"waits").unwrap();
    network.settle();
    network.tick(1 << 40);
    assert_eq!(statuses(&mut network, one), []);
    network.kill(1);
    network.tick(1 << 40);
    network.tick(1 << 40);
    network.settle();
    assert_eq!(statuses(&mut network, one), [(10, RetryExceeded)]);
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
        network.settle();
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

/// A program breaks its promise that registered memory stays. The peer gets an error, however long its request.
#[test]
fn registered_memory_that_is_gone_is_not_touched() {
    for len in [8, 1000] {
        for operation in ["write", "read", "atomic"] {
            let (mut network, one, other) = rc();
            let (target, local) = (room(&mut network, other, len), room(&mut network, one, len));
            let last = target.addr + u64::from(len) - 1;
            let local = if operation == "atomic" { Sge { len: 8, ..local } } else { local };
            let operation = match operation {
                "write" => write_to(target),
                "read" => read_of(target),
                _ => {
                    let remote_addr = target.addr + u64::from(len) - 8;
                    Operation::Atomic { remote_addr, rkey: Key(target.lkey), atomic: AtomicOperation::FetchAdd(1) }
                }
            };
            network.nodes[1].program.unmapped = last..last + 1;
            operate(&mut network, one, 10, operation, local);
            network.settle();
            assert_eq!(statuses(&mut network, one), [(10, RemoteAccess)], "{operation:?}, {len} bytes");
            assert_eq!(state(&network, other), QpState::Error);
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
