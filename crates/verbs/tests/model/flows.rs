//! A *flow* is the list of requests that one queue pair sends to another. A reliable connection executes them in order, each once, up to
//! the first that fails: so the model knows the memory after each of them, and the completions of both ends.

use crate::memory::changed;
use crate::network::Network;
use crate::setup::{self, Q_KEY, Qp, SendWr, look, room};
use isthmus_verbs::{
    AddressVector, AtomicOperation, Completion, CompletionKind, Gid, Key, Operation, QpType, SendFlags, Sge, Srq,
    Status,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The bytes of a flow's window in the receiver's program.
const WINDOW: usize = 512;

/// A request, as the model has it.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) wr_id: u64,
    pub(crate) kind: CompletionKind,
    pub(crate) bytes: Vec<u8>,
    pub(crate) sges: Vec<Sge>,
    pub(crate) signaled: bool,
    /// Immediate data, of a request that takes a receive request.
    pub(crate) message: Option<Option<u32>>,
    pub(crate) solicited: bool,
    /// How the request ends if nothing disturbs the flow.
    pub(crate) status: Status,
    /// The bytes that a read or an atomic operation finds.
    pub(crate) found: Option<Vec<u8>>,
}

/// The requests of one queue pair to another.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) from: Qp,
    pub(crate) to: Qp,
    pub(crate) window: Sge,
    /// The window after all requests that were posted.
    pub(crate) expected: Vec<u8>,
    pub(crate) sent: Vec<Sent>,
    /// The first request that may complete next.
    pub(crate) next: usize,
    /// The first requests after the program has ended a failure of its send queue.
    pub(crate) recoveries: Vec<usize>,
    pub(crate) failed: bool,
    /// The request that failed last.
    pub(crate) failed_at: usize,
    /// Something outside of the flow may end it: a failure of the other direction, a change of state, a peer that goes.
    pub(crate) disturbed: bool,
    /// The first request that may arrive next.
    pub(crate) next_message: usize,
    pub(crate) delivered: BTreeSet<usize>,
    pub(crate) receives: VecDeque<(u64, Sge)>,
    pub(crate) srq: Option<Srq>,
    pub(crate) source_gid: Gid,
    /// A request was a read. Later requests may change its response unless they wait.
    pub(crate) reads: bool,
}

impl Flow {
    pub(crate) fn new(network: &mut Network, from: Qp, to: Qp, srq: Option<Srq>) -> Self {
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
    pub(crate) fn request(
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
    pub(crate) fn recovery(&self) -> Option<usize> {
        self.recoveries.iter().copied().find(|recovery| self.failed && self.failed_at < *recovery)
    }

    /// The sender has polled this completion.
    pub(crate) fn completed(&mut self, network: &mut Network, completion: &Completion, rnr_forever: bool) {
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
    pub(crate) fn received(&mut self, network: &mut Network, completion: &Completion, shared: &mut BTreeMap<u64, Sge>) {
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
                assert_eq!(header[..8], [0x60, 0, 0, 0, (len >> 8) as u8, len as u8, 17, 64]);
                assert_eq!(header[8..24], self.source_gid.0);
                assert_eq!(header[24..], [self.to.number.0 as u8; 16]);
            }
        }
    }

    pub(crate) fn check_end(&self, network: &Network) {
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
pub(crate) fn split(sge: Sge, parts: usize) -> Vec<Sge> {
    let part = sge.len / parts as u32;
    let at = |at: u32| Sge { addr: sge.addr + u64::from(at * part), len: part, ..sge };
    let mut sges: Vec<_> = (0..parts as u32).map(at).collect();
    sges.last_mut().into_iter().for_each(|last| last.len = sge.len - part * (parts as u32 - 1));
    sges
}

/// The program uses its bytes for something else.
pub(crate) fn spoil(network: &mut Network, qp: Qp, sges: &[Sge]) {
    for sge in sges {
        let program = &mut network.nodes[qp.node].program;
        program.fill(sge.addr, &vec![0xee; sge.len as usize]);
        program.allow(sge.addr, u64::from(sge.len), 0);
    }
}
