//! Operations that the caller performs itself: which ones the engine offers, and how they end.

use super::*;
use isthmus_verbs::{Direct, SendRequest};

/// A request of `sges` on a queue pair, without flags.
fn request(operation: Operation, sges: &[Sge]) -> SendRequest<'_> {
    SendRequest { wr_id: 9, operation, flags: SendFlags::empty(), sges, datagram: None }
}

/// The operation that the engine offers now, and the one as soon as earlier requests are over.
fn offers(network: &Network, qp: Qp, request: &SendRequest<'_>) -> [Option<Direct>; 2] {
    let engine = &network.nodes[qp.node].engine;
    [engine.direct(qp.number, request), engine.direct_later(qp.number, request)]
}

fn atomic_at(sge: Sge, offset: u64) -> Operation {
    let atomic = AtomicOperation::FetchAdd(1);
    Operation::Atomic { remote_addr: sge.addr + offset, rkey: Key(sge.lkey), atomic }
}

#[test]
fn direct_operation_names_the_memory_of_the_peer() {
    let (mut network, one, other) = rc();
    let (local, target) = (room(&mut network, one, 8), room(&mut network, other, 100));
    let to = address(other.node);
    let expected = Direct { to, key: Direct::name(other.pd, Key(target.lkey)), at: target.addr, len: 8 };
    for operation in [write_to(target), read_of(target), atomic_at(target, 0)] {
        assert_eq!(offers(&network, one, &request(operation, &[local])), [Some(expected); 2], "{operation:?}");
    }
    let halves = [Sge { len: 4, ..local }, Sge { addr: local.addr + 4, len: 4, ..local }];
    assert_eq!(offers(&network, one, &request(write_to(target), &halves)), [Some(expected); 2]);
    assert_eq!(expected.key, u64::from(other.pd.number()) << 32 | u64::from(target.lkey));
}

#[test]
fn requests_that_need_a_packet_are_not_offered() {
    let (mut network, one, other) = rc();
    let (local, target) = (room(&mut network, one, 8), room(&mut network, other, 100));
    let with_immediate = Operation::Write { remote_addr: 0, rkey: Key(0), immediate: Some(1) };
    let many = vec![Sge { len: 1, ..local }; 100];
    let long = [Sge { len: 1 << 30, ..local }, Sge { len: 1, ..local }];
    let inline_read = SendRequest { flags: SendFlags::INLINE, ..request(read_of(target), &[]) };
    for refused in [
        request(SEND, &[local]),
        request(with_immediate, &[local]),
        request(atomic_at(target, 4), &[local]),
        request(atomic_at(target, 0), &[Sge { len: 4, ..local }]),
        request(write_to(target), &[]),
        request(write_to(target), &many),
        request(write_to(target), &long),
        SendRequest { sges: &[local], ..inline_read },
        SendRequest { flags: SendFlags::INLINE, ..request(write_to(target), &[Sge { len: 513, ..local }]) },
    ] {
        assert_eq!(offers(&network, one, &refused), [None; 2], "{refused:?}");
    }
    let sges = [local];
    let inline_write = SendRequest { flags: SendFlags::INLINE, ..request(write_to(target), &sges) };
    assert!(offers(&network, one, &inline_write)[0].is_some());
}

#[test]
fn rights_of_the_queue_pair_of_the_peer_decide() {
    let options = Options { access: Access::REMOTE_WRITE, ..Options::default() };
    let (mut network, one, other) = pair(QpType::Rc, &options);
    let (local, target) = (room(&mut network, one, 8), room(&mut network, other, 8));
    let offered = |operation| offers(&network, one, &request(operation, &[local]))[0].is_some();
    assert_eq!([write_to(target), read_of(target), atomic_at(target, 0)].map(offered), [true, false, false]);
    let (mut network, one, other) = pair(QpType::Uc, &Options::default());
    let (local, target) = (room(&mut network, one, 8), room(&mut network, other, 8));
    assert_eq!(offers(&network, one, &request(write_to(target), &[local])), [None; 2], "no description");
}

#[test]
fn earlier_requests_come_first() {
    let (mut network, one, other) = rc();
    let (local, target) = (room(&mut network, one, 8), room(&mut network, other, 100));
    let under_way = |network: &Network| network.nodes[one.node].engine.sends_under_way(one.number);
    operate(&mut network, one, 1, write_to(target), local);
    operate(&mut network, one, 2, write_to(target), local);
    assert_eq!(under_way(&network), 2);
    let [now, later] = offers(&network, one, &request(write_to(target), &[local]));
    assert!(now.is_none() && later.is_some());
    network.settle();
    assert_eq!(under_way(&network), 0);
    assert!(offers(&network, one, &request(write_to(target), &[local]))[0].is_some());
    receive(&mut network, other, 1, 100);
    send(&mut network, one, 3, b"may wait for long").unwrap();
    assert_eq!(offers(&network, one, &request(write_to(target), &[local])), [None; 2]);
}

#[test]
fn local_ranges_are_checked_as_for_packets() {
    let (mut network, one, other) = rc();
    let (local, target) = (room(&mut network, one, 8), room(&mut network, other, 8));
    let pd = one.pd;
    let read_only = network.call(0, |engine, _| engine.register(pd, local.addr, 8, 0x5000, Access::empty())).unwrap();
    let read_only = Sge { addr: 0x5000, len: 8, lkey: read_only.0 };
    let mut range = |operation, flags, sge: &Sge| {
        let request = SendRequest { flags, ..request(operation, &[]) };
        network.call(0, |engine, _| engine.local_range(one.number, &request, sge))
    };
    let none = SendFlags::empty();
    assert_eq!(range(write_to(target), none, &read_only), Some(local.addr));
    assert_eq!(range(read_of(target), none, &read_only), None, "it may not be written");
    assert_eq!(range(read_of(target), none, &local), Some(local.addr));
    let unknown = Sge { lkey: 0, ..local };
    assert_eq!(range(write_to(target), none, &unknown), None);
    assert_eq!(range(write_to(target), SendFlags::INLINE, &unknown), Some(local.addr));
}

#[test]
fn completions_are_those_of_packets() {
    let options = Options { signal_all: false, ..Options::default() };
    let (mut network, one, other) = pair(QpType::Rc, &options);
    let (local, target) = (room(&mut network, one, 8), room(&mut network, other, 8));
    let sges = [local];
    let mut complete = |operation, flags| {
        let request = SendRequest { flags, ..request(operation, &sges) };
        network.call(0, |engine, _| engine.complete_direct(one.number, &request));
        poll(&mut network, one).iter().map(|done| (done.wr_id, done.status, done.kind, done.len)).collect::<Vec<_>>()
    };
    assert_eq!(complete(write_to(target), SendFlags::empty()), []);
    assert_eq!(complete(write_to(target), SendFlags::SIGNALED), [(9, Success, CompletionKind::Write, 0)]);
    assert_eq!(complete(read_of(target), SendFlags::SIGNALED), [(9, Success, CompletionKind::Read, 8)]);
    let failed = request(atomic_at(target, 0), &sges);
    network.call(0, |engine, _| engine.fail_direct(one.number, &failed));
    assert_eq!(statuses(&mut network, one), [(9, RemoteOperation)]);
    assert_eq!(state(&network, one), QpState::Error);
}

#[test]
fn queue_pair_awaits_the_description_of_its_peer() {
    for (kind, awaits) in [(QpType::Rc, true), (QpType::Uc, false)] {
        let options = Options::default();
        let mut network = Network::new(2, 7);
        let [one, other] = [0, 1].map(|node| create(&mut network, node, kind, &options, None));
        let awaits_now = |network: &Network| network.nodes[0].engine.awaits_description(one.number);
        assert!(!awaits_now(&network), "it cannot send");
        connect(&mut network, one, other, &options);
        assert_eq!(awaits_now(&network), awaits, "{kind:?}");
        network.settle();
        assert!(!awaits_now(&network), "{kind:?}: it has come");
    }
}
