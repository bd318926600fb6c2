//! Programs of arbitrary calls on three nodes, against a model: a *flow* is what one queue pair sends to another, and the model of it is
//! the list of its requests. A reliable connection executes them in order, each once, up to the first that fails.

use crate::memory::changed;
use crate::network::Network;
use crate::setup::{self, Options, Q_KEY, Qp, SendWr, create, look, room};
use isthmus_verbs::{
    AddressVector, AtomicOperation, Completion, CompletionKind, Gid, Key, Operation, QpState, QpType, ReceiveRequest,
    SendFlags, Sge, Srq, Status,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The bytes of a flow's window in the receiver's program.
const WINDOW: usize = 512;

/// Bytes of each receive buffer.
const RECEIVE_BYTES: u32 = 640;

/// A request, as the model has it.
#[derive(Debug)]
struct Sent {
    wr_id: u64,
    kind: CompletionKind,
    bytes: Vec<u8>,
    sges: Vec<Sge>,
    signaled: bool,
    /// Immediate data, of a request that takes a receive request.
    message: Option<Option<u32>>,
    solicited: bool,
    /// How the request ends if nothing disturbs the flow.
    status: Status,
    /// The bytes that a read or an atomic operation finds.
    found: Option<Vec<u8>>,
}

/// The requests of one queue pair to another.
#[derive(Debug)]
struct Flow {
    from: Qp,
    to: Qp,
    window: Sge,
    /// The window after all requests that were posted.
    expected: Vec<u8>,
    sent: Vec<Sent>,
    /// The first request that may complete next.
    next: usize,
    /// The first requests after the program has ended a failure of its send queue.
    recoveries: Vec<usize>,
    failed: bool,
    /// The request that failed last.
    failed_at: usize,
    /// Something outside of the flow may end it: a failure of the other direction, a change of state, a peer that goes.
    disturbed: bool,
    /// The first request that may arrive next.
    next_message: usize,
    delivered: BTreeSet<usize>,
    receives: VecDeque<(u64, Sge)>,
    srq: Option<Srq>,
    source_gid: Gid,
    /// A request was a read. Later requests may change its response unless they wait.
    reads: bool,
}

struct Simulation {
    network: Network,
    flows: Vec<Flow>,
    /// Receive requests of the shared queue.
    shared: BTreeMap<u64, Sge>,
    next_id: u64,
    faults: bool,
    rnr_forever: bool,
}

/// A step of a program or of the transport.
#[derive(Clone, Copy, Debug)]
struct Step {
    action: u8,
    choice: u16,
    detail: u16,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (any::<u8>(), any::<u16>(), any::<u16>());
    proptest::collection::vec(step.prop_map(|(action, choice, detail)| Step { action, choice, detail }), 0..300)
}

impl Simulation {
    fn new(options: &Options, faults: bool) -> Self {
        let mut network = Network::new(3, 99);
        let receiver = create(&mut network, 1, QpType::Rc, options, None);
        let srq = network.call(1, |engine, _| engine.create_srq(receiver.pd, 64, 8)).unwrap();
        let mut flows = Vec::new();
        let ends = [
            (QpType::Rc, 0, 1, None),
            (QpType::Uc, 0, 1, None),
            (QpType::Ud, 0, 1, None),
            (QpType::Rc, 0, 1, Some(srq)),
            (QpType::Rc, 2, 1, Some(srq)),
            (QpType::Rc, 2, 2, None),
            (QpType::Ud, 2, 0, None),
        ];
        for (kind, node, peer, shared) in ends {
            let one = create(&mut network, node, kind, options, None);
            let other = create(&mut network, peer, kind, options, shared);
            setup::connect(&mut network, one, other, options);
            flows.push(Flow::new(&mut network, one, other, shared));
            flows.push(Flow::new(&mut network, other, one, None));
        }
        let rnr_forever = options.rnr_retry == 7;
        Self { network, flows, shared: BTreeMap::new(), next_id: 1, faults, rnr_forever }
    }

    fn step(&mut self, Step { action, choice, detail }: Step) {
        let (flow, at) = (usize::from(choice) % self.flows.len(), usize::from(choice));
        match action {
            0..=69 => self.post(flow, choice / 16, detail),
            70..=109 => self.receive(flow, detail),
            110..=159 => drop((0..=detail % 4).all(|_| self.network.send(at % 3, choice.is_multiple_of(5)))),
            160..=204 => drop((0..=detail % 4).all(|_| self.network.deliver(at))),
            205..=219 => drop(self.network.copy(at)),
            220..=231 => drop(self.network.confirm(at)),
            232..=244 => self.poll(flow, usize::from(detail % 5)),
            245..=250 => self.network.tick(u64::from(detail) * 100_000),
            _ if !self.faults => self.network.tick(1),
            251..=252 => self.resume_sends(flow),
            253 => self.disturb(flow),
            _ => self.drain(flow),
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn post(&mut self, at: usize, choice: u16, detail: u16) {
        let wr_id = self.id();
        let faulty = self.faults && detail.is_multiple_of(61);
        let Simulation { network, flows, .. } = self;
        if network.is_gone(flows[at].from.node) {
            return;
        }
        let Some((post, sent, window)) = flows[at].request(network, wr_id, choice, detail, faulty) else { return };
        let qp = flows[at].from;
        if setup::post(network, qp, &post).is_err() {
            return;
        }
        if post.flags.contains(SendFlags::INLINE) {
            spoil(network, qp, &post.sges);
        }
        let flow = &mut flows[at];
        let state = setup::state(network, qp);
        if sent.status != Status::Success {
            flows[at ^ 1].disturbed = true;
        } else if matches!(state, QpState::ReadyToSend | QpState::SendQueueDrained) {
            flow.expected = window;
        }
        flows[at].reads |= sent.kind == CompletionKind::Read;
        flows[at].sent.push(sent);
    }

    fn receive(&mut self, at: usize, detail: u16) {
        let wr_id = self.id();
        let flow = &mut self.flows[at];
        let (network, qp) = (&mut self.network, flow.to);
        if network.is_gone(qp.node) {
            return;
        }
        let sge = room(network, qp, RECEIVE_BYTES);
        let sges = split(sge, usize::from(detail % 4) + 1);
        match flow.srq {
            Some(srq) => {
                let request = ReceiveRequest { wr_id, sges: &sges };
                if network.call(qp.node, |engine, _| engine.post_srq_receive(srq, &request)).is_ok() {
                    self.shared.insert(wr_id, sge);
                }
            }
            None => {
                if setup::receive_into(network, qp, wr_id, &sges).is_ok() {
                    self.flows[at].receives.push_back((wr_id, sge));
                }
            }
        }
    }

    /// Polls the completion queue of the queue pair that sends in this flow, and receives in the one of the other direction.
    fn poll(&mut self, at: usize, count: usize) {
        for _ in 0..count {
            let qp = self.flows[at].from;
            if self.network.is_gone(qp.node) {
                return;
            }
            let Some(completion) = self.network.call(qp.node, |engine, _| engine.poll(qp.cq)) else { return };
            assert_eq!(completion.qp, qp.number);
            let Self { network, flows, shared, rnr_forever, .. } = self;
            if completion.wr_id == 0 {
                panic!("a completion of no request: {completion:?}");
            }
            if flows[at].sent.iter().any(|sent| sent.wr_id == completion.wr_id) {
                flows[at].completed(network, &completion, *rnr_forever);
                if flows[at].failed && qp.kind == QpType::Rc {
                    flows[at ^ 1].disturbed = true;
                }
            } else {
                flows[at ^ 1].received(network, &completion, shared);
            }
        }
    }

    fn resume_sends(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        match setup::state(&self.network, flow.from) {
            QpState::SendQueueError => flow.recoveries.push(flow.sent.len()),
            QpState::SendQueueDrained => {}
            _ => return,
        }
        setup::change_state(&mut self.network, flow.from, QpState::ReadyToSend).unwrap();
    }

    fn drain(&mut self, at: usize) {
        if setup::state(&self.network, self.flows[at].from) == QpState::ReadyToSend {
            setup::change_state(&mut self.network, self.flows[at].from, QpState::SendQueueDrained).unwrap();
        }
    }

    fn disturb(&mut self, at: usize) {
        self.flows[at].disturbed = true;
        self.flows[at ^ 1].disturbed = true;
        setup::change_state(&mut self.network, self.flows[at].from, QpState::Error).unwrap();
    }

    /// Resets the reliable connections without waiting for what is under way, and uses them again.
    fn reconnect(&mut self, options: &Options) {
        let ends: Vec<_> = self.flows.iter().step_by(2).map(|flow| (flow.from, flow.to, flow.srq)).collect();
        for (one, other, srq) in ends {
            if one.kind != QpType::Rc || srq.is_some() {
                continue;
            }
            for qp in [one, other] {
                setup::change_state(&mut self.network, qp, QpState::Reset).unwrap();
            }
            let psns = (options.psns.0 ^ 0x10_0080, options.psns.1 ^ 0x20_0080);
            setup::connect(&mut self.network, one, other, &Options { psns, ..*options });
            for (from, to) in [(one, other), (other, one)] {
                let sges =
                    [setup::receive(&mut self.network, to, 1, 300), setup::receive(&mut self.network, to, 2, 300)];
                setup::send(&mut self.network, from, 3, &[0x55; 300]).unwrap();
                setup::send(&mut self.network, from, 4, &[0x66; 30]).unwrap();
                for _ in 0..8 {
                    self.network.settle();
                    self.network.tick(1 << 34);
                }
                let completions = setup::statuses(&mut self.network, to);
                assert_eq!(completions, [(1, Status::Success), (2, Status::Success)]);
                assert_eq!(look(&self.network, to, sges[0]), [0x55; 300]);
                assert_eq!(look(&self.network, to, sges[1])[..30], [0x66; 30]);
                let completions = setup::statuses(&mut self.network, from);
                assert_eq!(completions, [(3, Status::Success), (4, Status::Success)]);
            }
        }
    }

    /// Lets everything come to its end.
    fn finish(&mut self) {
        for round in 0..400_u16 {
            let mut any = false;
            for at in 0..self.flows.len() {
                self.resume_sends(at);
                let waits = self.flows[at].sent.len() > self.flows[at].next_message;
                if waits && self.flows[at].receives.len() < 8 {
                    self.receive(at, round);
                }
            }
            any |= self.network.settle();
            self.network.tick(1 << 34);
            any |= self.network.settle();
            for at in 0..self.flows.len() {
                self.poll(at, 1 << 20);
            }
            if !any && round > 80 {
                break;
            }
        }
        for flow in &self.flows {
            flow.check_end(&self.network);
        }
    }
}

impl Flow {
    fn new(network: &mut Network, from: Qp, to: Qp, srq: Option<Srq>) -> Self {
        let window = room(network, to, WINDOW as u32);
        Self {
            from,
            to,
            window,
            expected: vec![0; WINDOW],
            sent: Vec::new(),
            next: 0,
            recoveries: Vec::new(),
            failed: false,
            failed_at: 0,
            disturbed: false,
            next_message: 0,
            delivered: BTreeSet::new(),
            receives: VecDeque::new(),
            srq,
            reads: false,
            source_gid: Gid([from.number.0 as u8; 16]),
        }
    }

    /// A request of this flow: for the engine, and for the model, with the window after it.
    fn request(
        &self,
        network: &mut Network,
        wr_id: u64,
        choice: u16,
        detail: u16,
        faulty: bool,
    ) -> Option<(SendWr, Sent, Vec<u8>)> {
        const LENS: [u32; 8] = [0, 1, 8, 60, 128, 129, 300, 500];
        let kind = self.from.kind;
        let len = LENS[usize::from(choice) % 8];
        let inline = (choice >> 3).is_multiple_of(4);
        let offset = u64::from(choice >> 5) % (WINDOW as u64 - u64::from(len) + 1);
        let (remote_addr, rkey) = (self.window.addr + offset, self.to.key);
        let immediate = (kind != QpType::Rc || detail.is_multiple_of(2)).then_some(wr_id as u32);
        let mut expected = self.expected.clone();
        let bytes: Vec<u8> = (0..len).map(|at| (wr_id as u8).wrapping_mul(31).wrapping_add(at as u8)).collect();
        let mut found = None;
        let (mut operation, completion, len) = match (detail / 2) % 8 {
            0..=2 => (Operation::Send { immediate }, CompletionKind::Send, len),
            3..=5 if kind != QpType::Ud => {
                let immediate = immediate.filter(|_| kind == QpType::Rc && (detail / 2) % 8 == 5);
                expected[offset as usize..(offset + u64::from(len)) as usize].copy_from_slice(&bytes);
                (Operation::Write { remote_addr, rkey, immediate }, CompletionKind::Write, len)
            }
            6 if kind == QpType::Rc => {
                found = Some(expected[offset as usize..(offset + u64::from(len)) as usize].to_vec());
                (Operation::Read { remote_addr, rkey }, CompletionKind::Read, len)
            }
            7 if kind == QpType::Rc => {
                let (old, operation, kind) = self.atomic(wr_id, choice, offset as usize, &mut expected);
                found = Some(old);
                (operation, kind, 8)
            }
            _ => return None,
        };
        let message = match operation {
            Operation::Send { immediate } | Operation::Write { immediate: immediate @ Some(_), .. } => Some(immediate),
            _ => None,
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, detail & 0x100 != 0);
        flags.set(SendFlags::SOLICITED, detail & 0x200 != 0);
        let changes = matches!(operation, Operation::Write { .. } | Operation::Atomic { .. });
        flags.set(SendFlags::FENCE, detail & 0xc00 == 0 || self.reads && changes);
        flags.set(SendFlags::INLINE, inline && found.is_none());
        let sge = match found {
            None => setup::source(network, self.from, &bytes),
            Some(_) => room(network, self.from, len),
        };
        let mut sges = if len == 0 && detail.is_multiple_of(3) {
            Vec::new()
        } else {
            split(sge, usize::from(detail >> 12) % 4 + 1)
        };
        let status = if faulty { fault(&mut operation, &mut sges, kind, detail, &mut flags) } else { Status::Success };
        let gid = if detail & 0x1000 == 0 { Gid::default() } else { Gid([self.to.number.0 as u8; 16]) };
        let destination = AddressVector { gid, source_gid: self.source_gid, service_level: 3 };
        if kind == QpType::Ud {
            let (peer, to) = (self.to.number, Some(crate::network::address(self.to.node)));
            network.call(self.from.node, |engine, _| engine.add_route(gid, peer, to));
        }
        let datagram = (kind == QpType::Ud).then_some((destination, self.to.number, Q_KEY));
        let post = SendWr { wr_id, operation, flags, sges: sges.clone(), datagram };
        let signaled = flags.contains(SendFlags::SIGNALED);
        let solicited = flags.contains(SendFlags::SOLICITED);
        let sent = Sent { wr_id, kind: completion, bytes, sges, signaled, message, solicited, status, found };
        Some((post, sent, expected))
    }

    /// An atomic operation, and the bytes before it.
    fn atomic(
        &self,
        wr_id: u64,
        choice: u16,
        offset: usize,
        expected: &mut [u8],
    ) -> (Vec<u8>, Operation, CompletionKind) {
        let offset = (offset / 8 * 8).min(WINDOW - 8);
        let place = &mut expected[offset..offset + 8];
        let before = place.to_vec();
        let old = u64::from_le_bytes(before[..].try_into().unwrap());
        let (atomic, kind) = match choice % 3 {
            0 => (AtomicOperation::FetchAdd(wr_id << 40 | 3), CompletionKind::FetchAdd),
            compare => {
                let compare = old ^ u64::from(compare - 1);
                (AtomicOperation::CompareSwap { compare, swap: wr_id }, CompletionKind::CompareSwap)
            }
        };
        place.copy_from_slice(&changed(old, atomic).to_le_bytes());
        (before, Operation::Atomic { remote_addr: self.window.addr + offset as u64, rkey: self.to.key, atomic }, kind)
    }

    /// The first request after the last failure that is not flushed.
    fn recovery(&self) -> Option<usize> {
        self.recoveries.iter().copied().find(|recovery| self.failed && self.failed_at < *recovery)
    }

    /// The sender has polled this completion.
    fn completed(&mut self, network: &mut Network, completion: &Completion, rnr_forever: bool) {
        let skipped = self.sent[self.next..].iter().position(|sent| sent.wr_id == completion.wr_id);
        let at = self.next + skipped.unwrap_or_else(|| panic!("{completion:?} comes twice or too late"));
        let status = completion.status;
        if let Some(recovery) = self.recovery().filter(|recovery| *recovery <= at) {
            assert!(self.next >= recovery, "requests before {completion:?} are missing that were flushed");
            self.failed = false;
        }
        for sent in &self.sent[self.next..at] {
            assert!(!sent.signaled && !self.failed, "{sent:?} has no completion before {completion:?}");
            assert!(sent.status == Status::Success || self.disturbed, "{sent:?} must fail before {completion:?}");
        }
        self.next = at + 1;
        let sent = &self.sent[at];
        for sge in &sent.sges {
            let (addr, len) = (sge.addr, u64::from(sge.len));
            assert!(!network.is_lent(self.from.node, addr, len), "{sent:?} is over, and its bytes are lent");
            assert!(!network.is_arriving(self.from.node, addr, len), "{sent:?} is over, and its bytes still come");
        }
        if status == Status::Success {
            assert!(!self.failed, "{completion:?} after a failure");
            assert!(sent.signaled, "{completion:?} was not asked for");
            assert_eq!((completion.kind, sent.status), (sent.kind, Status::Success));
            if let Some(found) = &sent.found {
                assert_eq!(completion.len as usize, found.len());
                let len = sent.sges.iter().map(|sge| sge.len).sum();
                let whole = sent.sges.first().map(|first| Sge { len, ..*first });
                assert_eq!(&whole.map(|sge| look(network, self.from, sge)).unwrap_or_default(), found, "{sent:?}");
            }
        } else if self.failed {
            assert_eq!(status, Status::Flushed, "{sent:?}");
        } else {
            let disturbances = [Status::Flushed, Status::RetryExceeded];
            let rnr = !rnr_forever && status == Status::RnrRetryExceeded;
            let disturbed = self.disturbed && disturbances.contains(&status);
            assert!(status == sent.status || disturbed || rnr, "{completion:?} of {sent:?}");
            (self.failed, self.failed_at) = (true, at);
        }
        let sges = sent.sges.clone();
        spoil(network, self.from, &sges);
    }

    /// The receiver has polled this completion.
    fn received(&mut self, network: &mut Network, completion: &Completion, shared: &mut BTreeMap<u64, Sge>) {
        let sge = match self.srq {
            Some(_) => shared.remove(&completion.wr_id).unwrap_or_else(|| panic!("{completion:?} comes twice")),
            None => {
                let (wr_id, sge) = self.receives.pop_front().unwrap_or_else(|| panic!("{completion:?} comes twice"));
                assert_eq!(completion.wr_id, wr_id, "out of order");
                sge
            }
        };
        assert!(!network.is_arriving(self.to.node, sge.addr, u64::from(sge.len)), "{completion:?}: bytes still come");
        network.nodes[self.to.node].program.allow(sge.addr, u64::from(sge.len), 0);
        if completion.status != Status::Success {
            assert_eq!(completion.status, Status::Flushed);
            let failed = self.sent.iter().any(|sent| sent.status != Status::Success);
            assert!(self.disturbed || self.failed || failed, "{completion:?} without a failure");
            return;
        }
        let first = if self.from.kind == QpType::Ud { 0 } else { self.next_message };
        let messages = self.sent.iter().enumerate().skip(first).filter(|(_, sent)| sent.message.is_some());
        let reliable = self.from.kind == QpType::Rc;
        let mut messages = messages.filter(|(_, sent)| reliable || sent.message == Some(completion.immediate));
        let (at, sent) = messages.next().unwrap_or_else(|| panic!("{completion:?}: no request has sent that"));
        assert!(self.delivered.insert(at), "{completion:?} comes twice");
        self.next_message = self.next_message.max(at + 1);
        let is_send = sent.kind == CompletionKind::Send;
        let kind = if is_send { CompletionKind::Receive } else { CompletionKind::ReceiveWriteImmediate };
        let len = sent.bytes.len() as u32;
        assert_eq!((completion.kind, completion.solicited), (kind, sent.solicited), "{sent:?}");
        assert_eq!(Some(completion.immediate), sent.message);
        let grh = if self.from.kind == QpType::Ud { 40 } else { 0 };
        assert_eq!(completion.len, len + grh);
        if is_send {
            let bytes = look(network, self.to, Sge { addr: sge.addr + u64::from(grh), len, ..sge });
            assert_eq!(bytes, sent.bytes, "{completion:?}");
        }
        if grh != 0 {
            assert_eq!((completion.source_qp, completion.service_level), (self.from.number, 3));
            if completion.has_grh {
                let header = look(network, self.to, Sge { len: 40, ..sge });
                assert_eq!(header[..8], [0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 0x1b, 64]);
                assert_eq!(header[8..24], self.source_gid.0);
                assert_eq!(header[24..], [self.to.number.0 as u8; 16]);
            }
        }
    }

    fn check_end(&self, network: &Network) {
        if network.is_gone(self.from.node) {
            return;
        }
        let left = &self.sent[self.next..];
        let flushing = self.failed && self.recovery().is_none_or(|recovery| self.next < recovery);
        let waiting = left.iter().find(|sent| sent.signaled || flushing);
        assert!(waiting.is_none(), "never completed: {waiting:?} of {self:?}");
        if !self.failed && !self.disturbed && self.recoveries.is_empty() && !network.is_gone(self.to.node) {
            assert_eq!(look(network, self.to, self.window), self.expected, "the window of {:?}", self.from);
            let missed = self.sent.iter().skip(self.next_message).find(|sent| sent.message.is_some());
            assert!(self.from.kind != QpType::Rc || missed.is_none(), "lost: {missed:?}");
        }
    }
}

/// Makes a request invalid. Returns how it ends then.
fn fault(operation: &mut Operation, sges: &mut [Sge], kind: QpType, detail: u16, flags: &mut SendFlags) -> Status {
    let remote = kind == QpType::Rc && detail & 0x100 != 0;
    match operation {
        Operation::Write { rkey, .. } | Operation::Read { rkey, .. } | Operation::Atomic { rkey, .. }
            if remote && sges.iter().any(|sge| sge.len > 0) =>
        {
            *rkey = Key(rkey.0 ^ 1);
            Status::RemoteAccess
        }
        _ => {
            flags.remove(SendFlags::INLINE);
            match sges.iter_mut().find(|sge| sge.len > 0) {
                Some(sge) => sge.lkey ^= 1,
                None => return Status::Success,
            }
            Status::LocalProtection
        }
    }
}

/// A range in parts.
fn split(sge: Sge, parts: usize) -> Vec<Sge> {
    let part = sge.len / parts as u32;
    let at = |at: u32| Sge { addr: sge.addr + u64::from(at * part), len: part, ..sge };
    let mut sges: Vec<_> = (0..parts as u32).map(at).collect();
    sges.last_mut().into_iter().for_each(|last| last.len = sge.len - part * (parts as u32 - 1));
    sges
}

/// The program uses its bytes for something else.
fn spoil(network: &mut Network, qp: Qp, sges: &[Sge]) {
    for sge in sges {
        let program = &mut network.nodes[qp.node].program;
        program.fill(sge.addr, &vec![0xee; sge.len as usize]);
        program.allow(sge.addr, u64::from(sge.len), 0);
    }
}

fn cases() -> ProptestConfig {
    let cases = if std::env::var_os("ISTHMUS_TEST_LONG").is_some() { 200_000 } else { 1_500 };
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

fn options() -> impl Strategy<Value = Options> {
    (0..4_u32, 1..4_u8, 0..4_u32).prop_map(|(sends, reads_max, psn)| Options {
        signal_all: false,
        sends_max: 2 << sends,
        reads_max,
        timeout: 10,
        psns: (0xff_fffe_u32.wrapping_sub(psn), psn),
        ..Options::default()
    })
}

fn run(options: &Options, faults: bool, steps: &[Step]) {
    let mut world = Simulation::new(options, faults);
    steps.iter().for_each(|step| world.step(*step));
    world.finish();
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn programs_without_faults_see_each_operation_once_in_order(options in options(), steps in steps()) {
        run(&options, false, &steps);
    }

    #[test]
    fn programs_with_faults_see_each_operation_once_or_an_error(options in options(), steps in steps()) {
        run(&options, true, &steps);
    }

    #[test]
    fn programs_with_few_retries_see_each_operation_once_or_an_error(
        options in options(),
        rnr_retry in 0..3_u8,
        steps in steps(),
    ) {
        run(&Options { rnr_retry, ..options }, true, &steps);
    }

    #[test]
    fn connections_made_again_are_new_whatever_is_under_way(options in options(), steps in steps()) {
        let mut simulation = Simulation::new(&options, false);
        steps.iter().for_each(|step| simulation.step(*step));
        simulation.reconnect(&options);
    }

    #[test]
    fn programs_survive_a_peer_that_goes(options in options(), steps in steps(), at in 0..300_usize, gone in 0..3_usize) {
        let mut world = Simulation::new(&options, false);
        let at = at.min(steps.len());
        steps[..at].iter().for_each(|step| world.step(*step));
        for flow in &mut world.flows {
            flow.disturbed |= flow.from.node == gone || flow.to.node == gone;
        }
        world.network.kill(gone);
        steps[at..].iter().for_each(|step| world.step(*step));
        world.finish();
    }
}
