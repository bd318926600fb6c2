//! Queue pairs, made and connected in one call, and requests in one line.

use crate::memory::{READ, WRITE};
use crate::network::{Network, address};
use isthmus_layout::EndpointAddress;
use isthmus_verbs::{
    Access, AddressVector, AttributeMask, Attributes, Completion, Cq, Key, Operation, Pd, QpInit, QpNumber, QpState,
    QpType, ReceiveRequest, Refused, SendFlags, SendRequest, Sge, Srq,
};

/// All rights of peers and of the adapter.
pub(crate) const ALL: Access = Access::all();

/// The Q_Key of all queue pairs.
pub(crate) const Q_KEY: u32 = 0x1111_1111;

/// A queue pair with its objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Qp {
    pub(crate) node: usize,
    pub(crate) number: QpNumber,
    pub(crate) kind: QpType,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    /// The key of the whole program.
    pub(crate) key: Key,
}

/// How queue pairs are made and connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) signal_all: bool,
    pub(crate) sends_max: u32,
    pub(crate) receives_max: u32,
    pub(crate) completions_max: u32,
    pub(crate) reads_max: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) psns: (u32, u32),
    pub(crate) access: Access,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            signal_all: true,
            sends_max: 64,
            receives_max: 64,
            completions_max: 1024,
            reads_max: 4,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            rnr_timer: 12,
            psns: (0, 0),
            access: ALL,
        }
    }
}

/// Makes a queue pair that is in Reset.
pub(crate) fn create(network: &mut Network, node: usize, kind: QpType, options: &Options, srq: Option<Srq>) -> Qp {
    let (pd, key) = (network.nodes[node].pd, network.nodes[node].key);
    network.call(node, |engine, _| {
        let cq = engine.create_cq(options.completions_max).expect("a completion queue");
        let (number, _) = engine.create_qp(&init(kind, pd, cq, options, srq)).expect("a queue pair");
        Qp { node, number, kind, pd, cq, key }
    })
}

pub(crate) fn init(kind: QpType, pd: Pd, cq: Cq, options: &Options, srq: Option<Srq>) -> QpInit {
    QpInit {
        kind,
        pd,
        send_cq: cq,
        receive_cq: cq,
        srq,
        signal_all: options.signal_all,
        sends_max: options.sends_max,
        receives_max: options.receives_max,
        send_sges_max: 8,
        receive_sges_max: 8,
        inline_max: 512,
    }
}

/// Connects a queue pair to another one, as far as ready to receive.
pub(crate) fn ready_to_receive(network: &mut Network, qp: Qp, peer: Qp, options: &Options) {
    ready_to_receive_from(network, qp, peer, Some(address(peer.node)), options);
}

/// As [`ready_to_receive`], where the look-up of the peer has found this device.
pub(crate) fn ready_to_receive_from(
    network: &mut Network,
    qp: Qp,
    peer: Qp,
    device: Option<EndpointAddress>,
    options: &Options,
) {
    use AttributeMask as M;
    let mut attributes = attributes(qp, peer.number, options);
    attributes.state = QpState::Init;
    let begin = M::STATE | M::P_KEY_INDEX | M::PORT | if qp.kind == QpType::Ud { M::Q_KEY } else { M::ACCESS };
    modify(network, qp, &attributes, begin, None).expect("init");
    attributes.state = QpState::ReadyToReceive;
    let connect = match qp.kind {
        QpType::Ud => M::empty(),
        QpType::Uc => M::ADDRESS | M::PATH_MTU | M::DESTINATION | M::RECEIVE_PSN,
        QpType::Rc => M::ADDRESS | M::PATH_MTU | M::DESTINATION | M::RECEIVE_PSN | M::READS_SERVED_MAX | M::RNR_TIMER,
    };
    modify(network, qp, &attributes, M::STATE | connect, device).expect("ready to receive");
}

pub(crate) fn ready_to_send(network: &mut Network, qp: Qp, peer: Qp, options: &Options) {
    use AttributeMask as M;
    let mut attributes = attributes(qp, peer.number, options);
    attributes.state = QpState::ReadyToSend;
    let retry = M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::READS_MAX;
    let mask = M::STATE | M::SEND_PSN | if qp.kind == QpType::Rc { retry } else { M::empty() };
    modify(network, qp, &attributes, mask, None).expect("ready to send");
}

fn attributes(qp: Qp, destination: QpNumber, options: &Options) -> Attributes {
    let is_lower = qp.number < destination;
    let (lower, higher) = if is_lower { options.psns } else { (options.psns.1, options.psns.0) };
    Attributes {
        access: options.access,
        q_key: Q_KEY,
        destination,
        timeout: options.timeout,
        retry_count: options.retry_count,
        rnr_retry: options.rnr_retry,
        rnr_timer: options.rnr_timer,
        reads_max: options.reads_max,
        reads_served_max: options.reads_max,
        send_psn: lower,
        receive_psn: higher,
        ..Attributes::default()
    }
}

pub(crate) fn modify(
    network: &mut Network,
    qp: Qp,
    attributes: &Attributes,
    mask: AttributeMask,
    peer: Option<EndpointAddress>,
) -> Result<(), Refused> {
    network.call(qp.node, |engine, _| engine.modify_qp(qp.number, attributes, mask, peer))
}

/// Changes only the state.
pub(crate) fn change_state(network: &mut Network, qp: Qp, state: QpState) -> Result<(), Refused> {
    modify(network, qp, &Attributes { state, ..Attributes::default() }, AttributeMask::STATE, None)
}

pub(crate) fn state(network: &Network, qp: Qp) -> QpState {
    network.nodes[qp.node].engine.query_qp(qp.number).expect("a queue pair").0
}

/// A network of two programs with a queue pair each, which are connected. PSNs differ if the options say so.
pub(crate) fn pair(kind: QpType, options: &Options) -> (Network, Qp, Qp) {
    let mut network = Network::new(2, 7);
    let (one, other) = (create(&mut network, 0, kind, options, None), create(&mut network, 1, kind, options, None));
    connect(&mut network, one, other, options);
    network.settle();
    (network, one, other)
}

pub(crate) fn connect(network: &mut Network, one: Qp, other: Qp, options: &Options) {
    for (qp, peer) in [(one, other), (other, one)] {
        ready_to_receive(network, qp, peer, options);
        ready_to_send(network, qp, peer, options);
        if qp.kind == QpType::Ud {
            let to = Some(address(peer.node));
            network.call(qp.node, |engine, _| engine.add_route(AddressVector::default().gid, peer.number, to));
        }
    }
}

/// A send request, as tests change it.
#[derive(Clone, Debug)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) operation: Operation,
    pub(crate) flags: SendFlags,
    pub(crate) sges: Vec<Sge>,
    pub(crate) datagram: Option<(AddressVector, QpNumber, u32)>,
}

/// Posts a request. The check that precedes a batch says the same.
pub(crate) fn post(network: &mut Network, qp: Qp, post: &SendWr) -> Result<(), Refused> {
    let SendWr { wr_id, operation, flags, ref sges, datagram } = *post;
    network.call(qp.node, |engine, program| {
        let request = SendRequest { wr_id, operation, flags, sges, datagram };
        let checked = engine.check_send(qp.number, &request, 0);
        let posted = engine.post_send(qp.number, &request, program);
        assert!(checked == posted || matches!(posted, Err(Refused::RouteMissing(..))), "{checked:?}, {posted:?}");
        posted
    })
}

/// Posts a send of these bytes.
pub(crate) fn send(network: &mut Network, qp: Qp, wr_id: u64, bytes: &[u8]) -> Result<(), Refused> {
    let sges = vec![source(network, qp, bytes)];
    let operation = Operation::Send { immediate: None };
    post(network, qp, &SendWr { wr_id, operation, flags: SendFlags::SIGNALED, sges, datagram: None })
}

/// Posts an operation on these bytes.
pub(crate) fn operate(network: &mut Network, qp: Qp, wr_id: u64, operation: Operation, sge: Sge) {
    let request = SendWr { wr_id, operation, flags: SendFlags::SIGNALED, sges: vec![sge], datagram: None };
    post(network, qp, &request).expect("room");
}

/// Bytes of a program that the adapter may read.
pub(crate) fn source(network: &mut Network, qp: Qp, bytes: &[u8]) -> Sge {
    let node = &mut network.nodes[qp.node];
    let addr = node.take(bytes.len() as u64, READ);
    node.program.fill(addr, bytes);
    Sge { addr, len: bytes.len() as u32, lkey: qp.key.0 }
}

/// Room for bytes in a program.
pub(crate) fn room(network: &mut Network, qp: Qp, len: u32) -> Sge {
    let addr = network.nodes[qp.node].take(u64::from(len), READ | WRITE);
    Sge { addr, len, lkey: qp.key.0 }
}

/// Posts a receive of `len` bytes. Returns where they will be.
pub(crate) fn receive(network: &mut Network, qp: Qp, wr_id: u64, len: u32) -> Sge {
    let sge = room(network, qp, len);
    receive_into(network, qp, wr_id, &[sge]).expect("room");
    sge
}

pub(crate) fn receive_into(network: &mut Network, qp: Qp, wr_id: u64, sges: &[Sge]) -> Result<(), Refused> {
    network.call(qp.node, |engine, _| engine.post_receive(qp.number, &ReceiveRequest { wr_id, sges }))
}

/// Takes all completions of a queue pair's completion queue.
pub(crate) fn poll(network: &mut Network, qp: Qp) -> Vec<Completion> {
    network.call(qp.node, |engine, _| std::iter::from_fn(|| engine.poll(qp.cq)).collect())
}

/// The numbers and statuses of all completions.
pub(crate) fn statuses(network: &mut Network, qp: Qp) -> Vec<(u64, isthmus_verbs::Status)> {
    poll(network, qp).into_iter().map(|completion| (completion.wr_id, completion.status)).collect()
}

/// The bytes of a range.
pub(crate) fn look(network: &Network, qp: Qp, sge: Sge) -> Vec<u8> {
    network.nodes[qp.node].program.look(sge.addr, u64::from(sge.len)).to_vec()
}
