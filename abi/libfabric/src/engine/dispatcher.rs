//! The matcher of an endpoint's domain. All arriving messages and all completions pass through it.
//!
//! ```text
//!   header ───► receive_header ──┬─ message: a posted receive takes it, or it is unexpected
//!                                ├─ write, read, atomic: served (`serve`)
//!                                └─ reply: the request is over
//!   payload ──► match_message ───► where the header before it, from the same sender, said
//! ```
//!
//! The matcher sends nothing itself, because the domain is borrowed. Replies wait in `outbox` until the endpoint sends
//! them.

use crate::abi::consts::FI_ADDR_NOTAVAIL;
use crate::engine::events::{Event, Events, Side};
use crate::engine::header::{
    ACKNOWLEDGE, HeaderReader, PAYLOAD_FOLLOWS, PacketKind, SHORT_BYTES_MAX, WIDE_DATA, parameter,
};
use crate::engine::ops::{EAGER, OP_CONTINUES, Op, OpId, Ops, PAYLOAD, Report};
use crate::engine::receive::{Filter, MatchSpace, Meta, Receive, Receives};
use crate::engine::regions::Regions;
use crate::engine::serve::Reply;
use crate::engine::unexpected::{Body, UnexpectedQueue};
use crate::errno::Errno;
use isthmus_client::{
    Buffer, Completion, DomainId, EndpointAddress, EndpointIndex, Envelope, Matcher, Outcome, PollBudget, Posted,
    Reason, Token, Unexpected, UnexpectedState,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// The one endpoint of the domain that is a fabric endpoint.
pub(crate) const INDEX: EndpointIndex = EndpointIndex::new(0).expect("there is an endpoint 0");

/// The token of receives for payloads that are discarded.
const DISCARD_TOKEN: Token = Token::new(0);

/// The target of the payload that follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadTarget {
    /// To an operation.
    To(OpId),
    /// The payload is kept with the unexpected message of this serial number.
    Unexpected(u64),
    /// The payload is discarded.
    Discard,
}

/// The state of a peer that has sent a message, or that was looked up.
#[derive(Debug)]
pub(crate) struct PeerState {
    pub(crate) address: EndpointAddress,
    /// The number of the peer in the address vector.
    pub(crate) source: u64,
    /// The target of the peer's next payload.
    pub(crate) payload_target: Option<PayloadTarget>,
    /// The target of the payload that has begun to arrive from the peer.
    pub(crate) arriving: Option<PayloadTarget>,
}

/// The state of an endpoint, except its domain.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    pub(crate) events: Events,
    pub(crate) ops: Ops,
    pub(crate) receives: Receives,
    pub(crate) unexpected: UnexpectedQueue,
    pub(crate) regions: Arc<Regions>,
    pub(crate) peers: Vec<PeerState>,
    by_address: HashMap<EndpointAddress, u32>,
    last: Option<(EndpointAddress, u32)>,
    sources: HashMap<EndpointAddress, u64>,
    /// The peers that cannot send any more messages, by number in the address vector.
    pub(crate) gone: HashSet<u64>,
    pub(crate) outbox: VecDeque<Reply>,
    /// The peers that needed the owner's help to access registered memory, with the reason. For reports.
    pub(crate) assisted: Vec<(DomainId, Reason)>,
    /// The number of messages that wait for room to be sent.
    pub(crate) eager: usize,
    pub(crate) budget: PollBudget,
}

impl Dispatcher {
    pub(crate) fn new(regions: Arc<Regions>) -> Self {
        Self {
            events: Events::default(),
            ops: Ops::default(),
            receives: Receives::default(),
            unexpected: UnexpectedQueue::default(),
            regions,
            peers: Vec::new(),
            by_address: HashMap::new(),
            last: None,
            sources: HashMap::new(),
            gone: HashSet::new(),
            outbox: VecDeque::new(),
            assisted: Vec::new(),
            eager: 0,
            budget: PollBudget::default(),
        }
    }

    /// Begins a progress call.
    #[inline]
    pub(crate) fn begin_progress(&mut self) {
        self.budget.begin(self.events.count);
    }

    /// Ends a progress call.
    #[inline]
    pub(crate) fn finish_iteration(&mut self) {
        self.budget.end(self.events.count);
    }

    /// Prepares a wait: any event from now on ends it.
    pub(crate) fn prepare_wait(&mut self) {
        self.budget.prepare_wait(self.events.count);
    }

    /// Returns the index of the peer at an address, and adds the peer if it is unknown.
    #[inline]
    pub(crate) fn peer(&mut self, address: EndpointAddress) -> u32 {
        match self.last {
            Some((last, peer)) if last == address => peer,
            _ => self.find_peer(address),
        }
    }

    fn find_peer(&mut self, address: EndpointAddress) -> u32 {
        let peers = &mut self.peers;
        let sources = &self.sources;
        let peer = *self.by_address.entry(address).or_insert_with(|| {
            let source = sources.get(&address).copied().unwrap_or(FI_ADDR_NOTAVAIL);
            peers.push(PeerState { address, source, payload_target: None, arriving: None });
            (peers.len() - 1) as u32
        });
        self.last = Some((address, peer));
        peer
    }

    /// Records the number of an address in the address vector.
    pub(crate) fn set_source(&mut self, address: EndpointAddress, source: u64) {
        self.sources.insert(address, source);
        self.gone.remove(&source);
        if let Some(&peer) = self.by_address.get(&address) {
            self.peers[peer as usize].source = source;
            self.unexpected.set_source(peer, source);
        }
    }

    /// Handles an arriving header and the bytes that follow it. An invalid header is dropped.
    #[inline]
    pub(crate) fn receive_header(&mut self, from: EndpointAddress, tag: u64, bytes: &[u8]) {
        let peer = self.peer(from);
        let words = HeaderReader(bytes);
        let taken = match PacketKind::of(tag) {
            Some(PacketKind::Tagged) => self.receive_message(MatchSpace::Tagged, peer, tag, words),
            Some(PacketKind::Untagged) => self.receive_message(MatchSpace::Untagged, peer, tag, words),
            Some(PacketKind::Write) => self.serve_write(peer, tag, words),
            Some(PacketKind::Read) => self.serve_read(peer, tag, words),
            Some(PacketKind::Atomic) => self.serve_atomic(peer, tag, words),
            Some(PacketKind::Reply) => self.receive_reply(peer, tag, words),
            Some(PacketKind::Payload) | None => None,
        };
        if taken.is_none() && tag & PAYLOAD_FOLLOWS != 0 {
            self.peers[peer as usize].payload_target = Some(PayloadTarget::Discard);
        }
    }

    #[inline]
    fn receive_message(&mut self, space: MatchSpace, peer: u32, tag: u64, mut words: HeaderReader<'_>) -> Option<()> {
        let data = words.data(tag)?;
        let acknowledge = if tag & ACKNOWLEDGE != 0 { Some(words.word()?) } else { None };
        let program_tag = if space == MatchSpace::Tagged { words.word()? } else { 0 };
        let has_payload = tag & PAYLOAD_FOLLOWS != 0;
        let len = if has_payload { words.word()? } else { words.payload().len() as u64 };
        let source = self.peers[peer as usize].source;
        let meta = Meta { space, peer, source, tag: program_tag, data, len, acknowledge };
        match (self.receives.take(space, source, program_tag, len), has_payload) {
            (Some(receive), false) => self.fill(&receive, &meta, words.payload()),
            (Some(receive), true) => self.expect(peer, Op::Receive { receive, meta }),
            (None, false) => {
                self.unexpected.keep(meta, Body::Whole(words.payload().to_vec()));
                self.acknowledge(&meta);
            }
            (None, true) => {
                let serial = self.unexpected.keep(meta, Body::Coming);
                self.peers[peer as usize].payload_target = Some(PayloadTarget::Unexpected(serial));
            }
        }
        Some(())
    }

    /// Assigns the next payload of a peer to an operation.
    pub(crate) fn expect(&mut self, peer: u32, op: Op) {
        let op = self.ops.insert(op);
        self.peers[peer as usize].payload_target = Some(PayloadTarget::To(op));
    }

    /// Posts a receive for which no message is queued. The receive fails at once if only a peer that is gone could
    /// match it.
    #[inline]
    pub(crate) fn post(&mut self, space: MatchSpace, filter: Filter, receive: Receive) {
        if !self.gone.is_empty() && self.gone.contains(&filter.source) {
            self.receives.fail(space, &receive, Errno::CONNABORTED, &mut self.events);
        } else {
            self.receives.post(space, filter, receive);
        }
    }

    /// Copies a queued message into its receive.
    #[inline]
    pub(crate) fn fill(&mut self, receive: &Receive, meta: &Meta, bytes: &[u8]) {
        // SAFETY: the program lent the memory with the receive, which is not over yet.
        let copied = unsafe { receive.into.copy_from(bytes) };
        self.receives.complete(receive, meta, copied, None, &mut self.events);
        self.acknowledge(meta);
    }

    /// Acknowledges an arrived message, if the sender requested it.
    #[inline]
    pub(crate) fn acknowledge(&mut self, meta: &Meta) {
        if let Some(request) = meta.acknowledge {
            let to = self.peers[meta.peer as usize].address;
            self.outbox.push_back(Reply::done(to, request));
        }
    }

    fn receive_reply(&mut self, peer: u32, tag: u64, mut words: HeaderReader<'_>) -> Option<()> {
        let id = OpId::of(parameter(tag));
        let from = self.peers[peer as usize].address;
        match self.ops.find(id)? {
            Op::Send { to, acknowledged: true, .. } | Op::Request { to, .. } if *to == from => {}
            _ => return None,
        }
        let progress = self.ops.progress(id)?;
        if std::mem::replace(&mut progress.replied, true) {
            return None;
        }
        if tag & WIDE_DATA != 0 {
            let errno = Errno(words.word()?.clamp(1, 4095) as i32);
            self.end(id, Some(errno), 0);
            return Some(());
        }
        if tag & PAYLOAD_FOLLOWS != 0 {
            if let Some(Op::Send { .. }) = self.ops.find(id) {
                return None;
            }
            self.peers[peer as usize].payload_target = Some(PayloadTarget::To(id));
            return Some(());
        }
        if let Some(Op::Request { into, .. }) = self.ops.find(id) {
            // SAFETY: the program lent the memory with the request, which is not over yet.
            unsafe { into.copy_from(words.payload()) };
        }
        self.end(id, None, 0);
        Some(())
    }

    /// Returns the buffer for an operation's payload.
    fn payload_buffer(&self, id: OpId, len: u64) -> Option<Buffer> {
        Some(match self.ops.find(id)? {
            // SAFETY: the program lent the memory with the operation, which is under way until its payload is there.
            Op::Receive { receive, .. } => unsafe { receive.into.as_buffer(true) },
            // SAFETY: as above.
            Op::Request { into, .. } => unsafe { into.as_buffer(true) },
            Op::RemoteWrite(remote_write) => {
                // SAFETY: the bytes lie in a region that the program has registered for writing by others, and which stays
                // registered while the operation holds it.
                unsafe { Buffer::from_raw_parts(remote_write.place, remote_write.len as usize) }
            }
            Op::RemoteAtomic { words, .. } => vec![0; words[3].min(len) as usize].into(),
            Op::Send { .. } | Op::RemoteRead { .. } => return None,
        })
    }

    /// Records that the client library holds memory of an operation.
    pub(crate) fn note_lent(&mut self, id: OpId) {
        if let Some(progress) = self.ops.progress(id) {
            progress.lent += 1;
        }
    }

    /// Records that the client library has returned memory of an operation. The operation ends if it waited for nothing else.
    fn note_returned(&mut self, id: OpId) {
        if let Some(progress) = self.ops.progress(id) {
            progress.lent -= 1;
            if let Some(error) = progress.outcome {
                self.end(id, error, 0);
            }
        }
    }

    /// Ends an operation, successfully or with an error. `len` is the number of payload bytes that were sent.
    pub(crate) fn end(&mut self, id: OpId, error: Option<Errno>, len: u64) {
        if let Some(progress) = self.ops.progress(id)
            && progress.lent > 0
        {
            progress.outcome = progress.outcome.or(Some(error));
            return;
        }
        match self.ops.take(id) {
            Some(Op::Send { report, .. } | Op::Request { report, .. }) => self.report(&report, error),
            Some(Op::Receive { receive, meta }) => {
                let meta = Meta { len: if error.is_some() { meta.len } else { len }, ..meta };
                let copied = if error.is_some() { 0 } else { receive.into.len().min(len as usize) };
                self.receives.complete(&receive, &meta, copied, error, &mut self.events);
                if error.is_none() {
                    self.acknowledge(&meta);
                }
            }
            Some(Op::RemoteWrite(remote_write)) if error.is_none() => self.remote_write_done(remote_write, len),
            Some(Op::RemoteWrite(_) | Op::RemoteAtomic { .. } | Op::RemoteRead { .. }) | None => {}
        }
    }

    /// Returns true if the message of this token belongs to an injected operation, which the program considers complete
    /// already.
    pub(crate) fn is_injected(&self, token: Token) -> bool {
        let report = match self.ops.find(OpId::of(token.number())) {
            Some(Op::Send { report, .. } | Op::Request { report, .. }) => report,
            _ => return false,
        };
        report.injected
    }

    /// Reports the end of an operation of the program.
    pub(crate) fn report(&mut self, report: &Report, error: Option<Errno>) {
        if report.injected {
            return self.events.counted(report.counter_kind, error.is_some());
        }
        let error = error.map_or(0, |errno| errno.0);
        let event = Event { error, len: report.len, ..Event::of(report.context, report.flags) };
        self.events.complete(Side::Transmit, report.counter_kind, report.wants_completion, event);
    }

    /// Handles a payload that has arrived in the buffer lent for it.
    fn payload_received(&mut self, id: OpId, bytes: &[u8], len: u64) {
        match self.ops.find(id) {
            Some(Op::Receive { receive, .. }) => {
                if let crate::engine::iovecs::IoVecs::Many(_) = receive.into {
                    // SAFETY: the program lent the memory with the receive, which is not over yet.
                    unsafe { receive.into.copy_from(&bytes[..bytes.len().min(len as usize)]) };
                }
                self.end(id, None, len);
            }
            Some(Op::Request { into, .. }) => {
                if let crate::engine::iovecs::IoVecs::Many(_) = into {
                    // SAFETY: as above.
                    unsafe { into.copy_from(&bytes[..bytes.len().min(len as usize)]) };
                }
                self.note_returned(id);
                self.end(id, None, len);
            }
            Some(Op::RemoteAtomic { .. }) => self.remote_atomic_ready(id, bytes),
            _ => self.end(id, None, len),
        }
    }

    /// Handles a payload that was arriving and is now complete.
    fn payload_received_whole(&mut self, peer: u32, bytes: Vec<u8>) {
        match self.peers[peer as usize].arriving.take() {
            Some(PayloadTarget::Unexpected(serial)) => {
                let Some(unexpected) = self.unexpected.named(serial) else { return };
                unexpected.meta.len = bytes.len() as u64;
                unexpected.body = Body::Whole(bytes);
                let meta = unexpected.meta;
                self.acknowledge(&meta);
                self.events.count += 1;
            }
            Some(PayloadTarget::To(id)) => {
                let len = bytes.len() as u64;
                if let Some(Op::Receive { receive, .. }) = self.ops.find(id) {
                    // SAFETY: the program lent the memory with the receive, which is not over yet.
                    unsafe { receive.into.copy_from(&bytes) };
                    self.end(id, None, len);
                }
            }
            Some(PayloadTarget::Discard) | None => {}
        }
    }

    /// Keeps a payload for which no buffer is posted.
    fn hold_payload(&mut self, message: Unexpected) {
        let peer = self.peer(message.envelope.from);
        let expected = self.peers[peer as usize].payload_target.take();
        if let UnexpectedState::Arriving = message.state {
            self.peers[peer as usize].arriving = expected;
        }
        let Some(PayloadTarget::Unexpected(serial)) = expected else { return };
        let Some(unexpected) = self.unexpected.named(serial) else { return };
        unexpected.meta.len = message.envelope.len;
        let whole = match message.state {
            UnexpectedState::Whole(bytes) => {
                unexpected.body = Body::Whole(bytes);
                Some(unexpected.meta)
            }
            UnexpectedState::Arriving => {
                unexpected.body = Body::Arriving;
                None
            }
            UnexpectedState::Announced(_) => {
                unexpected.body = Body::Announced(message);
                None
            }
        };
        if let Some(meta) = whole {
            self.acknowledge(&meta);
        }
    }

    /// Ends all operations with a domain with this error.
    fn fail_peer(&mut self, domain: DomainId, errno: Errno) {
        let mut over = Vec::new();
        for peer in self.peers.iter_mut().filter(|peer| peer.address.domain == domain) {
            let expected = [peer.payload_target.take(), peer.arriving.take()];
            over.extend(expected.into_iter().flatten().filter_map(|expected| match expected {
                PayloadTarget::To(id) => Some(id),
                PayloadTarget::Unexpected(_) | PayloadTarget::Discard => None,
            }));
        }
        over.extend(self.ops.find_all(|op| match op {
            Op::Send { to, acknowledged, .. } => *acknowledged && to.domain == domain,
            Op::Request { to, .. } => to.domain == domain,
            _ => false,
        }));
        over.into_iter().for_each(|id| self.end(id, Some(errno), 0));
        let peers = &self.peers;
        self.unexpected.forget(|peer| peers[peer as usize].address.domain == domain);
    }
}

impl Matcher for Dispatcher {
    #[inline]
    fn try_receive_eager(&mut self, envelope: &Envelope, words: &[u32]) -> bool {
        if PacketKind::of(envelope.tag) == Some(PacketKind::Payload) {
            return false;
        }
        #[cfg(target_endian = "big")]
        let words =
            &std::array::from_fn::<u32, { SHORT_BYTES_MAX / 4 }, _>(|at| words.get(at).map_or(0, |word| word.to_le()))
                [..];
        // SAFETY: words are bytes, as many as there are, in the order in which they were sent.
        let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words)) };
        let len = (envelope.len as usize).min(bytes.len());
        self.receive_header(envelope.from, envelope.tag, &bytes[..len]);
        true
    }

    #[inline]
    fn match_message(&mut self, envelope: &Envelope) -> Option<Posted> {
        if PacketKind::of(envelope.tag) != Some(PacketKind::Payload) {
            return None;
        }
        let peer = self.peer(envelope.from) as usize;
        let nobody = || Posted { token: DISCARD_TOKEN, buffer: Vec::new().into() };
        match self.peers[peer].payload_target {
            Some(PayloadTarget::Unexpected(_)) => None,
            Some(PayloadTarget::To(id)) => {
                self.peers[peer].payload_target = None;
                let buffer = self.payload_buffer(id, envelope.len);
                if buffer.is_some() {
                    self.note_lent(id);
                }
                Some(buffer.map_or_else(nobody, |buffer| Posted { token: Token::new(id.bits()), buffer }))
            }
            Some(PayloadTarget::Discard) | None => {
                self.peers[peer].payload_target = None;
                Some(nobody())
            }
        }
    }

    fn store_unexpected(&mut self, message: Unexpected) {
        match (PacketKind::of(message.envelope.tag), &message.state) {
            (Some(PacketKind::Payload), _) => self.hold_payload(message),
            (_, UnexpectedState::Whole(bytes)) if bytes.len() <= SHORT_BYTES_MAX => {
                self.receive_header(message.envelope.from, message.envelope.tag, bytes);
            }
            _ => {} // No endpoint of this provider sends other kinds.
        }
    }

    fn unexpected_complete(&mut self, envelope: &Envelope, bytes: Vec<u8>) {
        if PacketKind::of(envelope.tag) == Some(PacketKind::Payload) {
            let peer = self.peer(envelope.from);
            self.payload_received_whole(peer, bytes);
        }
    }

    fn next_match(&mut self, _endpoint: EndpointIndex) -> Option<(Posted, Unexpected)> {
        None
    }

    #[inline]
    fn complete(&mut self, completion: Completion) {
        let token = completion.token.number();
        if token & EAGER != 0 {
            self.eager -= 1;
        }
        let id = OpId::of(token);
        let error = match completion.outcome {
            Outcome::Received { len, .. } => return self.payload_received(id, completion.buffer.as_slice(), len),
            Outcome::Sent { .. } => None,
            Outcome::Failed(reason) => Some(reason.into()),
            Outcome::Cancelled => Some(Errno::CANCELED),
        };
        // A token of a request that is neither names the buffer for the reply.
        if token & PAYLOAD != 0
            || (token & (OP_CONTINUES | EAGER) == 0 && matches!(self.ops.find(id), Some(Op::Request { .. })))
        {
            self.note_returned(id);
        }
        if error.is_some() || token & OP_CONTINUES == 0 {
            self.end(id, error, 0);
        }
    }

    #[inline]
    fn is_busy(&self) -> bool {
        self.budget.is_used_up(self.events.count)
    }

    fn forget(&mut self, peer: DomainId) {
        self.fail_peer(peer, Errno::CONNABORTED);
    }

    fn peer_gone(&mut self, peer: DomainId) {
        for (_, source) in self.sources.iter().filter(|(address, _)| address.domain == peer) {
            self.receives.fail_source(*source, Errno::CONNABORTED, &mut self.events);
            self.gone.insert(*source);
        }
    }

    fn close(&mut self, endpoint: EndpointIndex) -> (Vec<Posted>, Vec<Unexpected>) {
        let unexpected = self.unexpected.drain().into_iter().filter_map(|unexpected| match unexpected.body {
            Body::Announced(message) => Some(message),
            Body::Whole(_) | Body::Coming | Body::Arriving => None,
        });
        let unexpected = unexpected.filter(|message| message.envelope.to == endpoint).collect();
        (Vec::new(), unexpected)
    }
}
