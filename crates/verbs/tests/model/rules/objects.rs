//! One rule each: objects, numbers, regions that end, and datagrams.

use super::*;
use isthmus_verbs::SendRequest;

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
    network.tick(0);
    assert_eq!(statuses(&mut network, one), [], "retries are not over");
    network.tick(1_000_000_000);
    network.settle();
    assert_eq!(statuses(&mut network, one), [(10, Status::RetryExceeded), (11, Flushed), (1, Flushed)]);
    let (mut network, one, other) = rc();
    network.kill(other.node);
    send(&mut network, one, 12, &[1; 10]).unwrap();
    network.settle();
    assert_eq!(statuses(&mut network, one), [(12, Status::RetryExceeded)], "nothing was outstanding");
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
        let mut header = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 17, 64];
        header.extend([[0xbb; 16], [0xaa; 16]].concat());
        assert_eq!(bytes[..40], if has_grh { header } else { vec![0; 40] });
        assert_eq!(bytes[40..40 + len], vec![3; len]);
    }
}

#[test]
fn completions_of_datagrams_under_way_keep_their_room() {
    let (mut network, one, other) = pair(QpType::Ud, &Options { signal_all: false, ..Options::default() });
    let datagram = Some((AddressVector::default(), other.number, Q_KEY));
    for (wr_id, flags) in [(10, SendFlags::SIGNALED), (11, SendFlags::empty()), (12, SendFlags::SIGNALED)] {
        post(&mut network, one, &SendWr { wr_id, operation: SEND, flags, sges: Vec::new(), datagram }).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(network.call(0, |engine, _| engine.resize_cq(one.cq, 1)), Err(Refused::Invalid));
        network.call(0, |engine, _| engine.resize_cq(one.cq, 2)).unwrap();
        network.settle();
    }
    assert_eq!(statuses(&mut network, one), [(10, Success), (12, Success)]);
    network.call(0, |engine, _| engine.resize_cq(one.cq, 1)).unwrap();
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
fn regions_that_no_program_has_are_refused() {
    let mut network = Network::new(1, 1);
    let pd = network.nodes[0].pd;
    network.call(0, |engine, _| {
        let access = Access::LOCAL_WRITE;
        let last = u64::MAX - 10;
        for (addr, iova) in [(last, 0), (0, last), (last, last)] {
            assert_eq!(engine.register(pd, addr, 11, iova, access), Err(Refused::Invalid));
            engine.register(pd, addr, 10, iova, access).unwrap();
        }
        for remote in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert_eq!(engine.register(pd, 0, 1, 0, remote), Err(Refused::Invalid));
            engine.register(pd, 0, 1, 0, remote | access).unwrap();
        }
        let key = engine.register(pd, 0, 1, 0, Access::REMOTE_READ).unwrap();
        assert_eq!(engine.reregister(key, None, Some((last, 11)), None), Err(Refused::Invalid));
        assert_eq!(engine.reregister(key, Some(isthmus_verbs::Pd::from_number(9)), None, None), Err(Refused::Invalid));
        engine.reregister(key, Some(pd), Some((last, 10)), Some(access)).unwrap();
        engine.deregister(key).unwrap();
        assert_eq!(engine.reregister(key, None, None, None), Err(Refused::Invalid));
        assert_eq!(engine.deregister(key), Err(Refused::Invalid));
    });
}

#[test]
fn queues_beyond_the_limits_are_refused() {
    use isthmus_verbs::{QpInit, limits};
    let mut network = Network::new(1, 1);
    let qp = create(&mut network, 0, QpType::Rc, &Options::default(), None);
    network.call(0, |engine, _| {
        for capacity in [0, limits::COMPLETIONS_MAX + 1] {
            assert_eq!(engine.create_cq(capacity), Err(Refused::Invalid));
            assert_eq!(engine.resize_cq(qp.cq, capacity), Err(Refused::Invalid));
        }
        engine.resize_cq(qp.cq, limits::COMPLETIONS_MAX).unwrap();
        for (receives, sges) in [(0, 1), (limits::REQUESTS_MAX + 1, 1), (1, limits::SGES_MAX + 1)] {
            assert_eq!(engine.create_srq(qp.pd, receives, sges), Err(Refused::Invalid));
        }
        engine.create_srq(qp.pd, limits::REQUESTS_MAX, limits::SGES_MAX).unwrap();
        let good = init(QpType::Rc, qp.pd, qp.cq, &Options::default(), None);
        let wrong = [
            QpInit { sends_max: limits::REQUESTS_MAX + 1, ..good },
            QpInit { receives_max: limits::REQUESTS_MAX + 1, ..good },
            QpInit { send_sges_max: limits::SGES_MAX + 1, ..good },
            QpInit { receive_sges_max: limits::SGES_MAX + 1, ..good },
            QpInit { inline_max: limits::INLINE_BYTES_MAX + 1, ..good },
            QpInit { send_cq: isthmus_verbs::Cq::from_number(99), ..good },
            QpInit { receive_cq: isthmus_verbs::Cq::from_number(99), ..good },
            QpInit { srq: Some(isthmus_verbs::Srq::from_number(99)), ..good },
            // The queue of another queue pair is not shared.
            QpInit { srq: Some(isthmus_verbs::Srq::from_number(0)), ..good },
        ];
        for init in wrong {
            assert!(matches!(engine.create_qp(&init), Err(Refused::Invalid)), "{init:?}");
        }
        let largest = QpInit { sends_max: limits::REQUESTS_MAX, receives_max: limits::REQUESTS_MAX, ..good };
        engine.create_qp(&largest).unwrap();
        for _ in 2..256 {
            engine.create_qp(&good).unwrap();
        }
        assert!(matches!(engine.create_qp(&good), Err(Refused::NumbersMissing)));
    });
}

#[test]
fn a_reset_takes_the_requests_and_their_completions() {
    let options = Options { receives_max: 2, ..Options::default() };
    let (mut network, one, other) = pair(QpType::Uc, &options);
    for qp in [one, other] {
        receive(&mut network, qp, 1, 100);
        send(&mut network, qp, 2, b"data").unwrap();
        network.settle();
        receive(&mut network, qp, 3, 100);
        let sge = room(&mut network, qp, 8);
        assert_eq!(receive_into(&mut network, qp, 9, &[sge; 9]), Err(Refused::Invalid));
        change_state(&mut network, qp, QpState::Reset).unwrap();
        assert_eq!(receive_into(&mut network, qp, 9, &[sge]), Err(Refused::Invalid));
        assert_eq!(statuses(&mut network, qp), []);
        ready_to_receive(&mut network, qp, if qp.number == one.number { other } else { one }, &options);
        assert_eq!(send(&mut network, qp, 4, b"data"), Err(Refused::Invalid));
        for wr_id in 5..7 {
            receive(&mut network, qp, wr_id, 100);
        }
        assert_eq!(receive_into(&mut network, qp, 9, &[sge]), Err(Refused::Full));
        change_state(&mut network, qp, QpState::Error).unwrap();
        assert_eq!(statuses(&mut network, qp), [(5, Flushed), (6, Flushed)]);
    }
}

#[test]
fn a_queue_pair_that_ends_gets_back_what_it_has_lent_to_every_peer() {
    type End = fn(&mut Network, Qp);
    let ends: [End; 3] = [
        |network, qp| change_state(network, qp, QpState::Reset).unwrap(),
        |network, qp| change_state(network, qp, QpState::Error).unwrap(),
        |network, qp| network.call(0, |engine, _| engine.destroy_qp(qp.number)).unwrap(),
    ];
    for end in ends {
        let mut network = Network::new(3, 1);
        let one = create(&mut network, 0, QpType::Ud, &Options::default(), None);
        ready_to_receive(&mut network, one, one, &Options::default());
        ready_to_send(&mut network, one, one, &Options::default());
        let sge = source(&mut network, one, &[1; 1000]);
        for (node, peer) in [(1, QpNumber(512)), (2, QpNumber(768))] {
            network.call(0, |engine, _| engine.add_route(Gid::default(), peer, Some(address(node))));
            let datagram = Some((AddressVector::default(), peer, Q_KEY));
            let request = SendWr { wr_id: 1, operation: SEND, flags: SendFlags::empty(), sges: vec![sge], datagram };
            post(&mut network, one, &request).unwrap();
            assert!(network.send(0, false));
        }
        assert!(network.is_lent(0, sge.addr, 1000));
        end(&mut network, one);
        assert!(!network.is_lent(0, sge.addr, 1000));
    }
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
    for sent in 0..64 {
        // Requests of a batch before this one take room as well.
        let next = SendRequest { wr_id: 1, operation: SEND, flags: signaled, sges: &[], datagram: None };
        let checked = |earlier| network.nodes[0].engine.check_send(one.number, &next, earlier);
        assert_eq!((checked(63 - sent), checked(64 - sent)), (Ok(()), Err(Refused::Full)));
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
    network.settle();
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

#[test]
fn request_without_a_reply_is_over_when_its_packet_was_copied() {
    for kind in [QpType::Rc, QpType::Uc] {
        let (mut network, one, _) = pair(kind, &Options::default());
        send(&mut network, one, 1, b"short").unwrap();
        let mut body = [0; isthmus_verbs::SHORT_BYTES_MAX];
        let packet = network.call(0, |engine, program| engine.next_outgoing(program, &mut body)).unwrap();
        assert_eq!(statuses(&mut network, one), [], "the transport has the packet still");
        network.call(0, |engine, _| engine.packet_copied(packet.token));
        let expected: &[_] = if kind == QpType::Uc { &[(1, Success)] } else { &[] };
        assert_eq!(statuses(&mut network, one), expected, "{kind:?}");
        network.call(0, |engine, _| engine.sent(packet.token));
        assert_eq!(statuses(&mut network, one), []);
    }
}
