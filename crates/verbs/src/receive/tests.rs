//! The state that peers can fill is bounded.

use super::PayloadTarget;
use crate::engine::{Engine, limits};
use crate::packet::{PacketKind, Syndrome, Tag, flags};
use crate::queue_pair::QpInit;
use crate::responder::InboundWork;
use crate::{
    Access, AtomicOperation, AttributeMask, Attributes, Key, Memory, PeerAccesses, QpNumber, QpState, QpType,
    ReceiveRequest, Sge, Status,
};
use alloc::vec::Vec;
use isthmus_layout::{DomainId, EndpointAddress, EndpointIndex};

struct Nothing;

impl Memory for Nothing {
    fn is_mapped(&self, _: u64, _: u64) -> bool {
        true
    }

    fn read(&self, _: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn write(&mut self, _: u64, _: &[u8]) {}

    fn atomic(&mut self, _: u64, _: AtomicOperation) -> u64 {
        0
    }
}

fn peer(number: u32) -> EndpointAddress {
    let (domain, endpoint) = (DomainId::new(number + 1), EndpointIndex::new(0));
    EndpointAddress { domain: domain.expect("not zero"), endpoint: endpoint.expect("below the limit") }
}

/// An engine with a queue pair that is connected to peer 0, and a key.
fn connected(kind: QpType, receives_max: u32) -> (Engine, QpNumber, Key) {
    use AttributeMask as M;
    let mut engine = Engine::new(1);
    engine.add_numbers(256..512);
    let pd = engine.alloc_pd().expect("room");
    let cq = engine.create_cq(limits::COMPLETIONS_MAX).expect("room");
    let key = engine.register(pd, 0, 1 << 20, 0, Access::all()).expect("a region");
    let init = QpInit {
        kind,
        pd,
        send_cq: cq,
        receive_cq: cq,
        srq: None,
        signal_all: true,
        sends_max: 16,
        receives_max,
        send_sges_max: 1,
        receive_sges_max: 1,
        inline_max: 0,
    };
    let (number, _) = engine.create_qp(&init).expect("a queue pair");
    let connect = M::ADDRESS | M::PATH_MTU | M::DESTINATION | M::RECEIVE_PSN;
    let (begin, connect) = match kind {
        QpType::Rc => (M::ACCESS, connect | M::READS_SERVED_MAX | M::RNR_TIMER),
        QpType::Uc => (M::ACCESS, connect),
        QpType::Ud => (M::Q_KEY, M::empty()),
    };
    let masks = [(QpState::Init, M::P_KEY_INDEX | M::PORT | begin), (QpState::ReadyToReceive, connect)];
    for (state, mask) in masks {
        let attributes = Attributes { state, access: Access::all(), ..Attributes::default() };
        engine.modify_qp(number, &attributes, mask | M::STATE, Some(peer(0))).expect("a change of the standard");
    }
    (engine, number, key)
}

/// The flags of a connection's first packet.
const FIRST: u16 = flags::RESTART | flags::SOURCE;

fn tag(kind: PacketKind, parameter: u16, destination: QpNumber) -> u64 {
    Tag { kind, parameter, count: 0, destination }.emit()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn refusals_are_bounded() {
    let (mut engine, _, _) = connected(QpType::Rc, 1);
    let unknown = tag(PacketKind::Send, FIRST, QpNumber(5));
    for _ in 0..10_000 {
        engine.receive(peer(1), unknown, &words(&[7]), &mut Nothing);
    }
    assert_eq!(engine.strays.len(), 4096);
    assert_eq!(
        core::iter::from_fn(|| engine.next_ack()).count(),
        4098,
        "and those that say that the queue pair is ready, and describe it"
    );
}

#[test]
fn acknowledgements_are_one_for_each_queue_pair() {
    let (mut engine, number, key) = connected(QpType::Rc, 1);
    let write = tag(PacketKind::Write, FIRST | flags::ACKNOWLEDGE, number);
    for _ in 0..1000 {
        engine.receive(peer(0), write, &words(&[0, 0, 0, key.0, 9]), &mut Nothing);
    }
    assert_eq!((engine.owing.len(), engine.violations()), (1, 0));
}

#[test]
fn responses_are_bounded() {
    let (mut engine, number, key) = connected(QpType::Rc, 1);
    let read = tag(PacketKind::Read, FIRST, number);
    for _ in 0..1000 {
        engine.receive(peer(0), read, &words(&[0, 0, 0, key.0, 4096]), &mut Nothing);
    }
    assert_eq!(engine.outbox.len(), 2 * limits::READS_MAX as usize);
    assert_eq!(engine.query_qp(number).map(|(state, ..)| state), Some(QpState::Error));
    let mut acks = core::iter::from_fn(|| engine.next_ack());
    let reason = |(_, ack, _)| Tag::parse(ack).and_then(|tag| tag.syndrome()) == Some(Syndrome::InvalidRequest);
    assert!(acks.any(reason));
}

#[test]
fn requests_behind_a_payload_are_bounded() {
    for kind in [QpType::Rc, QpType::Uc] {
        let (mut engine, number, key) = connected(kind, 1);
        let late = tag(PacketKind::Write, FIRST | flags::FOLLOWS, number);
        engine.receive(peer(0), late, &words(&[0, 0, 0, key.0, 4096]), &mut Nothing);
        assert!(matches!(engine.payload_target(peer(0), 4096), PayloadTarget::Range { .. }));
        for _ in 0..2 * limits::REQUESTS_MAX {
            let write = tag(PacketKind::Write, FIRST, number);
            engine.receive(peer(0), write, &words(&[0, 0, 0, key.0, 9]), &mut Nothing);
            let slot = engine.slot(number).expect("a queue pair");
            assert!(engine.qp(slot).expect("a queue pair").responder.inbound_len() <= limits::REQUESTS_MAX as usize);
        }
        let expected = if kind == QpType::Rc { QpState::Error } else { QpState::ReadyToReceive };
        assert_eq!(engine.query_qp(number).map(|(state, ..)| state), Some(expected));
    }
}

#[test]
fn bytes_of_late_writes_are_bounded() {
    for kind in [QpType::Rc, QpType::Uc] {
        let (mut engine, number, key) = connected(kind, 1);
        let mut collected = 0;
        for _ in 0..100 {
            let write = tag(PacketKind::Write, FIRST | flags::FOLLOWS, number);
            engine.receive(peer(0), write, &words(&[0, 0, 0, key.0, 1 << 20]), &mut Nothing);
            collected += u64::from(matches!(engine.payload_target(peer(0), 1 << 20), PayloadTarget::Collect { .. }));
        }
        assert_eq!(collected << 20, limits::LATE_BYTES_MAX, "{kind:?}");
        let slot = engine.slot(number).expect("a queue pair");
        assert_eq!(engine.qp(slot).map(|qp| qp.responder.late_bytes()), Some(limits::LATE_BYTES_MAX));
    }
}

#[test]
fn payloads_are_awaited_once_for_each_peer() {
    let (mut engine, number, _) = connected(QpType::Ud, 1);
    let head = tag(PacketKind::Datagram, flags::FOLLOWS, number);
    for round in 0..100 {
        for from in 0..10 {
            engine.receive(peer(from), head, &words(&[0, 0, 4096]), &mut Nothing);
        }
        assert_eq!(engine.peers.len(), 10);
        let slot = engine.slot(number).expect("a queue pair");
        assert_eq!(engine.qp(slot).expect("a queue pair").responder.inbound_len(), 10);
        assert_eq!(engine.violations(), 10 * round);
    }
    for from in 0..10 {
        engine.peer_gone(peer(from).domain);
    }
    let slot = engine.slot(number).expect("a queue pair");
    assert!(engine.peers.is_empty() && engine.qp(slot).expect("a queue pair").responder.has_executed_all());
}

#[test]
fn a_payload_that_does_not_come_gives_its_receive_request_back() {
    let (mut engine, number, key) = connected(QpType::Uc, 1);
    let sges = [Sge { addr: 0, len: 4096, lkey: key.0 }];
    engine.post_receive(number, &ReceiveRequest { wr_id: 3, sges: &sges }).expect("room");
    engine.receive(peer(0), tag(PacketKind::Send, flags::FOLLOWS, number), &words(&[4096]), &mut Nothing);
    let slot = engine.slot(number).expect("a queue pair");
    let first = engine.qp(slot).and_then(|qp| qp.responder.inbound().next());
    assert!(matches!(first.expect("a request").work, InboundWork::Payload { .. }));
    engine.receive(peer(0), tag(PacketKind::Send, 0, number), b"short", &mut Nothing);
    assert_eq!(engine.violations(), 1);
    let (_, _, init) = engine.query_qp(number).expect("a queue pair");
    let completion = engine.poll(init.receive_cq).expect("the short message");
    assert_eq!((completion.wr_id, completion.status, completion.len), (3, Status::Success, 5));
}

#[test]
fn refused_queue_pairs_are_listed_once() {
    let (mut engine, number, _) = connected(QpType::Rc, 1);
    for _ in 0..1000 {
        engine.receive(peer(0), tag(PacketKind::Send, FIRST, number), &words(&[0]), &mut Nothing);
    }
    assert_eq!(engine.receive_queues.values().map(|queue| queue.refused.len()).sum::<usize>(), 1);
}

#[test]
fn packets_of_others_change_nothing() {
    let (mut engine, number, key) = connected(QpType::Rc, 1);
    let sges = [Sge { addr: 0, len: 4096, lkey: key.0 }];
    engine.post_receive(number, &ReceiveRequest { wr_id: 3, sges: &sges }).expect("room");
    for kind in [PacketKind::Send, PacketKind::Write, PacketKind::Read, PacketKind::Atomic, PacketKind::Response] {
        let before = engine.violations();
        engine.receive(peer(1), tag(kind, flags::RESTART, number), &words(&[0, 0, key.0, 8, 0, 0, 0]), &mut Nothing);
        assert_eq!(engine.violations(), before + 1, "{kind:?}");
    }
    for syndrome in [Syndrome::Access, Syndrome::NotReady, Syndrome::None] {
        engine.receive(peer(1), Tag::ack(number, 1, syndrome).emit(), &[], &mut Nothing);
    }
    assert_eq!(engine.query_qp(number).map(|(state, ..)| state), Some(QpState::ReadyToReceive));
    assert_eq!((engine.completions(), engine.violations()), (0, 8));
    // Nor do acknowledgements of more than was sent, and responses without a request.
    engine.receive(peer(0), tag(PacketKind::Response, 0, number), &[0; 8], &mut Nothing);
    assert_eq!((engine.completions(), engine.violations()), (0, 9));
}

#[test]
fn requests_for_memory_are_counted_for_each_peer() {
    let (mut engine, number, key) = connected(QpType::Rc, 1);
    let send = |engine: &mut Engine, kind, parameter, bytes: &[u32]| {
        engine.receive(peer(0), tag(kind, parameter, number), &words(bytes), &mut Nothing);
    };
    send(&mut engine, PacketKind::Write, FIRST, &[0, 64, 0, key.0, 9]);
    send(&mut engine, PacketKind::Read, 0, &[128, 0, key.0, 4096]);
    let sges = [Sge { addr: 0, len: 16, lkey: key.0 }];
    engine.post_receive(number, &ReceiveRequest { wr_id: 3, sges: &sges }).expect("room");
    send(&mut engine, PacketKind::Write, flags::IMMEDIATE, &[0, 0, key.0, 7, 9]); // Peers never perform it themselves.
    send(&mut engine, PacketKind::Write, 0, &[0, 0, key.0]); // Nor one without a byte.
    assert_eq!(engine.accesses_pending(), 2);
    let counted = PeerAccesses { peer: peer(0).domain, served: 2, last: Some((key, 128, 4096)), refused: 0 };
    assert_eq!((engine.next_accesses(), engine.accesses_pending(), engine.next_accesses()), (Some(counted), 0, None));
    send(&mut engine, PacketKind::Write, 0, &[0, 0, !key.0, 9]);
    let refused = PeerAccesses { served: 0, last: None, refused: 1, ..counted };
    assert_eq!((engine.accesses_pending(), engine.next_accesses()), (1, Some(refused)));
}
