//! The matcher of an endpoint's domain: what arrives, and what is over, passes here.
//!
//! ```text
//!   header ───► receive_header ──┬─ message: a posted receive takes it, or it is unexpected
//!                                ├─ write, read, atomic: served (`serve`)
//!                                └─ reply: the request is over
//!   payload ──► match_message ───► where the header before it, from the same sender, said
//! ```
//!
//! Nothing is sent from in here: answers wait in `outbox` until the endpoint has the domain in its hands again.

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
    Buffer, Completion, DomainId, EndpointAddress, EndpointIndex, Envelope, Matcher, Outcome, Posted, Reason, Token,
    Unexpected, UnexpectedState,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// The one endpoint of the domain that is a fabric endpoint.
pub(crate) const INDEX: EndpointIndex = EndpointIndex::new(0).expect("there is an endpoint 0");

/// The token of receives for payloads that are discarded.
const DISCARD_TOKEN: Token = Token::new(0);

/// Events that one progress call may find before the program is to look at them, at most.
const EVENTS_PER_PROGRESS: u64 = 16;

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

/// A peer that has sent something, or was looked for.
#[derive(Debug)]
pub(crate) struct PeerState {
    pub(crate) address: EndpointAddress,
    /// As the address vector knows it.
    pub(crate) source: u64,
    /// The target of the peer's next payload.
    pub(crate) payload_target: Option<PayloadTarget>,
    /// The target of the payload that has begun to arrive from the peer.
    pub(crate) arriving: Option<PayloadTarget>,
}

/// Everything of an endpoint but its domain.
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
    /// Peers from which no further message can come, as the address vector knows them.
    pub(crate) gone: HashSet<u64>,
    pub(crate) outbox: VecDeque<Reply>,
    /// Peers that needed the owner's help to access registered memory, and why: for reports.
    pub(crate) assisted: Vec<(DomainId, Reason)>,
    /// Messages that wait for room on their way out.
    pub(crate) eager: usize,
    /// Events at which the caller of progress wants to look.
    event_limit: u64,
    /// Events that this progress call may find.
    event_budget: u64,
    /// The last progress call found all that it might.
    budget_exhausted: bool,
    /// The progress call after the last one was left out.
    skipped: bool,
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
            event_limit: 1,
            event_budget: 1,
            budget_exhausted: false,
            skipped: false,
        }
    }

    /// A progress call begins. One that looks behind the last message that is there has the next cell's line brought here, and waits
    /// for it while the program could be answering. So a call ends with the first event, and finds more only where the calls before
    /// it have found all they might.
    #[inline]
    pub(crate) fn begin_progress(&mut self) {
        self.event_budget = if self.budget_exhausted { (2 * self.event_budget).min(EVENTS_PER_PROGRESS) } else { 1 };
        self.event_limit = self.events.count + self.event_budget;
        self.skipped = false;
    }

    /// A progress call ends.
    #[inline]
    pub(crate) fn finish_iteration(&mut self) {
        self.budget_exhausted = self.events.count >= self.event_limit;
    }

    /// A progress call that finds nothing, and does nothing.
    #[inline]
    pub(crate) fn note_idle_progress(&mut self) {
        (self.budget_exhausted, self.skipped) = (false, false);
    }

    /// True once after a progress call that has ended with a single event: programs that read until there is nothing more are told so without
    /// a look, for the same reason.
    #[inline]
    pub(crate) fn should_skip(&mut self) -> bool {
        self.will_skip() && !std::mem::replace(&mut self.skipped, true)
    }

    /// The last progress call has ended with a single event.
    #[inline]
    pub(crate) fn will_skip(&self) -> bool {
        self.event_budget == 1 && self.budget_exhausted
    }

    /// From now on any event ends the wait.
    pub(crate) fn prepare_wait(&mut self) {
        self.event_limit = self.events.count + 1;
    }

    /// The peer at an address.
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

    /// The address vector calls this address so.
    pub(crate) fn set_source(&mut self, address: EndpointAddress, source: u64) {
        self.sources.insert(address, source);
        self.gone.remove(&source);
        if let Some(&peer) = self.by_address.get(&address) {
            self.peers[peer as usize].source = source;
            self.unexpected.set_source(peer, source);
        }
    }

    /// Handles a header that has arrived, with the bytes behind it. A header that cannot be read is dropped.
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

    /// The next payload of a peer belongs to an operation.
    pub(crate) fn expect(&mut self, peer: u32, op: Op) {
        let op = self.ops.insert(op);
        self.peers[peer as usize].payload_target = Some(PayloadTarget::To(op));
    }

    /// Posts a receive that no message is here for. The receive fails at once if only a peer that is gone could match it.
    #[inline]
    pub(crate) fn post(&mut self, space: MatchSpace, filter: Filter, receive: Receive) {
        if !self.gone.is_empty() && self.gone.contains(&filter.source) {
            self.receives.fail(space, &receive, Errno::CONNABORTED, &mut self.events);
        } else {
            self.receives.post(space, filter, receive);
        }
    }

    /// A message that is here goes to its receive.
    #[inline]
    pub(crate) fn fill(&mut self, receive: &Receive, meta: &Meta, bytes: &[u8]) {
        // SAFETY: the program lent the memory with the receive, which is not over yet.
        let copied = unsafe { receive.into.copy_from(bytes) };
        self.receives.complete(receive, meta, copied, None, &mut self.events);
        self.acknowledge(meta);
    }

    /// Acknowledges a message that has arrived, if its sender wants to know.
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

    /// The buffer that an operation wants its payload in.
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

    /// The client library has memory of an operation's.
    pub(crate) fn note_lent(&mut self, id: OpId) {
        if let Some(progress) = self.ops.progress(id) {
            progress.lent += 1;
        }
    }

    /// The client library has returned memory of an operation. The operation ends if it waited for nothing else.
    fn note_returned(&mut self, id: OpId) {
        if let Some(progress) = self.ops.progress(id) {
            progress.lent -= 1;
            if let Some(error) = progress.outcome {
                self.end(id, error, 0);
            }
        }
    }

    /// An operation is over: well, or with an error. Of a payload, `len` bytes were sent.
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

    /// True if the message of this token belongs to an operation that was over for the program when it asked for it.
    pub(crate) fn is_injected(&self, token: Token) -> bool {
        let report = match self.ops.find(OpId::of(token.number())) {
            Some(Op::Send { report, .. } | Op::Request { report, .. }) => report,
            _ => return false,
        };
        report.injected
    }

    /// An operation of the program's is over.
    pub(crate) fn report(&mut self, report: &Report, error: Option<Errno>) {
        if report.injected {
            return self.events.counted(report.counter_kind, error.is_some());
        }
        let error = error.map_or(0, |errno| errno.0);
        let event = Event { error, len: report.len, ..Event::of(report.context, report.flags) };
        self.events.complete(Side::Transmit, report.counter_kind, report.wants_completion, event);
    }

    /// A payload is in the buffer that was lent for it.
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

    /// A payload that was arriving is here, all of it.
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

    /// A payload for which nothing is posted.
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

    /// Everything that a domain has to do with is over, with this error.
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
            _ => {} // No endpoint of ours sends such.
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
        // Of a request, a token that is neither is that of the buffer its answer was to come into.
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
        self.events.count >= self.event_limit
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Progress calls with `waiting` events each: what each call finds, or that it is left out.
    fn progress_calls(dispatcher: &mut Dispatcher, waiting: &[u64]) -> Vec<Option<u64>> {
        let call = |&waiting: &u64| {
            let begun = dispatcher.events.count;
            (!dispatcher.should_skip()).then(|| {
                dispatcher.begin_progress();
                while !dispatcher.is_busy() && dispatcher.events.count < begun + waiting {
                    dispatcher.events.count += 1;
                }
                dispatcher.finish_iteration();
                dispatcher.events.count - begun
            })
        };
        waiting.iter().map(call).collect()
    }

    #[test]
    fn progress_stops_at_the_first_event_and_the_next_call_is_skipped() {
        let mut dispatcher = Dispatcher::new(Arc::default());
        assert_eq!(
            progress_calls(&mut dispatcher, &[0, 0, 1, 0, 0, 1, 0]),
            [Some(0), Some(0), Some(1), None, Some(0), Some(1), None]
        );
    }

    #[test]
    fn event_budget_doubles_during_a_stream() {
        let mut dispatcher = Dispatcher::new(Arc::default());
        let many = u64::MAX / 2;
        let found = progress_calls(&mut dispatcher, &[many, many, many, many, many, many, many, 0, many]);
        let expected = [Some(1), None, Some(2), Some(4), Some(8), Some(16), Some(16), Some(0), Some(1)];
        assert_eq!(found, expected);
    }
}
