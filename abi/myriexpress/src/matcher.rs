//! The matcher of an endpoint: the client library asks it, the engine decides, and it keeps the state that both need.
//!
//! ```text
//!   a message ── match_message ──► posted receive: its memory is lent ── complete ──► segments filled, request done
//!        └── store_unexpected ──┬──► handler registered: `handler_pending`, until it was called
//!                               └──► unexpected, in the engine; one that is still arriving is whole later
//! ```

use crate::types::Segment;
use isthmus_client::{
    Buffer, Completion, DomainId, EndpointAddress, EndpointIndex, Envelope, Matcher, Outcome, PollBudget, Posted,
    Reason, Refusal, RequestSerial, ToClient, Token, Unexpected, UnexpectedState, copy_words, mx_found,
};
use isthmus_layout::limits::ENDPOINTS_MAX;
use isthmus_mx::{ContextIdBits, Engine, PartnerId, RequestId, StatusCode, TransportTypes};
use std::collections::{HashMap, VecDeque};

/// The index of the domain's only endpoint.
pub(crate) const INDEX: EndpointIndex = EndpointIndex::new(0).expect("there is an endpoint 0");

/// A bit in the tokens of copied sends. Request identifiers have fewer bits.
const COPIED_SEND: u64 = 1 << 63;

/// The data of receives and messages in the engine.
#[derive(Debug)]
pub(crate) struct MxTypes;

impl TransportTypes for MxTypes {
    type Receive = Receive;
    type Message = MessageSource;
    type Address = EndpointAddress;
}

/// The destination of a receive: memory of the program, lent to the library until the request ends.
#[derive(Debug)]
pub(crate) enum Receive {
    /// One segment.
    One { start: *mut u8, len: u32 },
    /// Several segments.
    Many(Box<[Segment]>),
}

// SAFETY: the program lends the memory until the request ends, whichever thread uses it.
unsafe impl Send for Receive {}

/// A message that no receive has taken.
#[derive(Debug)]
pub(crate) enum MessageSource {
    /// A message from another endpoint.
    Peer(UnexpectedState),
    /// A message from this endpoint. Its send completes when the message is taken. `is_contiguous`: the send had one
    /// segment.
    Own { bytes: Vec<u8>, send: Option<RequestId>, is_contiguous: bool },
}

/// A message that waits for the handler of unexpected messages.
#[derive(Debug)]
pub(crate) struct HandlerPending {
    /// The serial number of the message, which may go while the handler runs.
    pub(crate) serial: u64,
    pub(crate) envelope: isthmus_mx::MatchEnvelope,
    pub(crate) source: MessageSource,
}

/// The engine, and the messages and connects that wait for it.
#[derive(Debug)]
pub(crate) struct MxMatcher {
    pub(crate) engine: Engine<MxTypes>,
    /// A handler of unexpected messages is set.
    pub(crate) has_handler: bool,
    pub(crate) handler_pending: VecDeque<HandlerPending>,
    /// The number of events that threads may be waiting for.
    pub(crate) events: u64,
    budget: PollBudget,
    /// Connects that the daemon has not answered, with their requests. None for a connect that a thread waits for in the call.
    pub(crate) connecting: HashMap<RequestSerial, Option<RequestId>>,
    /// Replies for the threads that wait in a connect call.
    pub(crate) answers: HashMap<RequestSerial, Result<EndpointAddress, Refusal>>,
    /// The domains that have left since the list was last taken.
    pub(crate) gone: Vec<DomainId>,
    /// The endpoint is being closed: progress does not stop at events any more, because no caller handles them.
    closing: bool,
    serials: u64,
    /// The number of copied sends with bytes that wait for room.
    copied_sends: u32,
    /// Receives into several segments that are being filled: the bytes arrive in one buffer first. `None` if that could
    /// not be allocated.
    scattered: HashMap<u64, Option<Box<[Segment]>>>,
    /// Receives that took a message that is still arriving.
    waiting_for_rest: Vec<(EndpointAddress, RequestId, Receive)>,
    /// Receives of that kind with a message that is complete now.
    ready: Vec<(Posted, Unexpected)>,
}

// SAFETY: the segments are the program's memory; see `Receive`.
unsafe impl Send for MxMatcher {}

impl MxMatcher {
    pub(crate) fn new(contexts: ContextIdBits, seed: u64) -> Self {
        Self {
            engine: Engine::new(contexts, seed),
            has_handler: false,
            handler_pending: VecDeque::new(),
            events: 0,
            budget: PollBudget::default(),
            connecting: HashMap::new(),
            answers: HashMap::new(),
            gone: Vec::new(),
            closing: false,
            serials: 0,
            copied_sends: 0,
            scattered: HashMap::new(),
            waiting_for_rest: Vec::new(),
            ready: Vec::new(),
        }
    }

    /// Begins a progress call.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.budget.begin(self.events);
    }

    /// Ends a progress call.
    #[inline]
    pub(crate) fn finish_iteration(&mut self) {
        self.budget.end(self.events);
    }

    /// Prepares a wait: any event from now on ends it.
    pub(crate) fn prepare_wait(&mut self) {
        self.budget.prepare_wait(self.events);
    }

    /// Marks the endpoint as closing: its handler is not called any more, and progress does not stop at events.
    pub(crate) fn end(&mut self) {
        (self.has_handler, self.closing) = (false, true);
    }

    /// Returns a receive in the client library's form.
    #[inline(always)]
    pub(crate) fn posted_receive(&mut self, request: RequestId, receive: Receive, msg_length: u32) -> Posted {
        let token = Token::new(request.to_bits());
        match receive {
            Receive::One { start, len } => {
                // SAFETY: the program lent the memory with the receive, until the request ends.
                let buffer = unsafe { Buffer::from_raw_parts(start, len as usize) };
                Posted { token, buffer }
            }
            Receive::Many(segments) => self.scattered_receive(token, segments, msg_length),
        }
    }

    /// Returns a receive with one buffer for several segments. If there is no memory for it, the message is lost and the receive fails.
    #[cold]
    fn scattered_receive(&mut self, token: Token, segments: Box<[Segment]>, msg_length: u32) -> Posted {
        let room: u64 = segments.iter().map(|segment| u64::from(segment.segment_length)).sum();
        let len = room.min(u64::from(msg_length)) as usize;
        let mut buffer = Vec::new();
        let scattered = match buffer.try_reserve_exact(len) {
            Ok(()) => {
                buffer.resize(len, 0);
                Some(segments)
            }
            Err(_) => None,
        };
        self.scattered.insert(token.number(), scattered);
        Posted { token, buffer: buffer.into() }
    }

    /// Keeps a receive until the rest of its message has arrived.
    pub(crate) fn wait_for_rest(&mut self, from: EndpointAddress, request: RequestId, receive: Receive) {
        self.waiting_for_rest.push((from, request, receive));
    }

    /// Returns a token for a copied send, unless there are too many.
    pub(crate) fn copied_send_token(&mut self, max: u32) -> Option<Token> {
        if self.copied_sends >= max {
            return None;
        }
        self.copied_sends += 1;
        self.serials += 1;
        Some(Token::new(COPIED_SEND | self.serials))
    }

    /// Returns true if this is the token of a copied send.
    pub(crate) fn is_over(&self, token: Token) -> bool {
        token.number() & COPIED_SEND != 0
    }

    /// Returns the number of copied sends that wait for room.
    #[inline]
    pub(crate) fn copied_sends(&self) -> u32 {
        self.copied_sends
    }

    /// Queues a message for the handler, or keeps it as unexpected if there is none. Drops a message that cannot be
    /// kept.
    pub(crate) fn keep(&mut self, envelope: isthmus_mx::MatchEnvelope, source: MessageSource) {
        self.events += 1;
        if self.has_handler {
            self.serials += 1;
            self.handler_pending.push_back(HandlerPending { serial: self.serials, envelope, source });
        } else {
            let _ = self.engine.hold(envelope, source);
        }
    }

    /// Removes and returns a message that waits for the handler.
    pub(crate) fn take_handler_pending(&mut self, serial: u64) -> Option<HandlerPending> {
        let at = self.handler_pending.iter().position(|pending| pending.serial == serial)?;
        self.handler_pending.remove(at)
    }

    /// Copies a message of this endpoint to itself into its receive. Both requests end.
    pub(crate) fn deliver_own(&mut self, request: RequestId, receive: &Receive, bytes: &[u8], send: Option<RequestId>) {
        let moved = match receive {
            Receive::One { start, len } => {
                let len = (*len as usize).min(bytes.len());
                // SAFETY: the receive's memory is ours and `len` bytes long at least; `bytes` may be a send's memory, which the
                // program may have chosen to overlap with it.
                unsafe { std::ptr::copy(bytes.as_ptr(), *start, len) };
                len
            }
            Receive::Many(segments) => scatter(bytes, segments),
        };
        self.events += 1;
        let moved = moved as u32;
        self.engine.received(request, StatusCode::Success, moved);
        if let Some(send) = send {
            self.engine.sent(send, StatusCode::Success, moved);
        }
    }

    /// Stops the client library from filling the segments of these requests.
    pub(crate) fn abandon(&mut self, requests: &[RequestId]) {
        for request in requests {
            self.scattered.remove(&request.to_bits());
        }
        self.waiting_for_rest.retain(|(_, request, _)| !requests.contains(request));
    }

    fn envelope(&mut self, envelope: &Envelope) -> Option<isthmus_mx::MatchEnvelope> {
        let source = self.engine.partner(envelope.from).ok()?;
        let msg_length = u32::try_from(envelope.len).unwrap_or(u32::MAX);
        Some(isthmus_mx::MatchEnvelope { source, match_info: envelope.tag, msg_length })
    }

    #[cold]
    fn hold_short_message(&mut self, envelope: Envelope, words: &[u32]) {
        let mut bytes = vec![0; envelope.len as usize];
        copy_words(words, &mut bytes);
        self.store_unexpected(Unexpected { envelope, state: UnexpectedState::Whole(bytes) });
    }

    /// Returns the partners with endpoints in a domain.
    fn partners_at(&self, domain: DomainId) -> Vec<PartnerId> {
        let indices = (0..ENDPOINTS_MAX).filter_map(EndpointIndex::new);
        indices.filter_map(|endpoint| self.engine.find_partner(EndpointAddress { domain, endpoint })).collect()
    }
}

/// Copies a message of `len` bytes into a receive's memory, as far as it fits. Returns the number of bytes copied.
#[inline(always)]
fn fill(receive: Receive, len: u32, words: &[u32]) -> u32 {
    match receive {
        Receive::One { start, len: room } => {
            let moved = room.min(len);
            // SAFETY: the program lent the memory for writing, and it is at least as long. No bytes need no memory.
            let into = unsafe { std::slice::from_raw_parts_mut(start, moved as usize) };
            copy_words(words, into);
            moved
        }
        Receive::Many(segments) => fill_many(&segments, len, words),
    }
}

#[cold]
fn fill_many(segments: &[Segment], len: u32, words: &[u32]) -> u32 {
    let mut bytes = vec![0; len as usize];
    copy_words(words, &mut bytes);
    scatter(&bytes, segments) as u32
}

/// Copies bytes into segments, as far as they fit. Returns the number of bytes copied.
fn scatter(bytes: &[u8], segments: &[Segment]) -> usize {
    let mut rest = bytes;
    for segment in segments {
        let (now, later) = rest.split_at(rest.len().min(segment.segment_length as usize));
        if !now.is_empty() {
            // SAFETY: the program lent the segment for writing, and it is at least as long as `now`. Bytes that the program sends
            // to itself may overlap with it.
            unsafe { std::ptr::copy(now.as_ptr(), segment.segment_ptr.cast(), now.len()) };
        }
        rest = later;
    }
    bytes.len() - rest.len()
}

fn is_arriving(source: &MessageSource) -> bool {
    matches!(source, MessageSource::Peer(UnexpectedState::Arriving))
}

fn is_complete(source: &MessageSource) -> bool {
    matches!(source, MessageSource::Own { .. } | MessageSource::Peer(UnexpectedState::Whole(_)))
}

/// Returns the status of a request that the client library could not complete.
pub(crate) fn status_of(reason: Reason) -> StatusCode {
    match reason {
        Reason::EndpointClosed | Reason::PeerDetached | Reason::MxEndpointClosed => StatusCode::EndpointClosed,
        Reason::MxBadKey => StatusCode::BadKey,
        Reason::MxEndpointOutOfRange => StatusCode::BadEndpoint,
        Reason::ClosedLocally | Reason::MessagesUndelivered => StatusCode::Aborted,
        Reason::MxDisconnected => StatusCode::EndpointUnreachable,
        Reason::MxUnreachable => StatusCode::Timeout,
        Reason::OutOfMemory | Reason::OutOfFds | Reason::OutOfAddressSpace => StatusCode::NoResources,
        _ => StatusCode::EndpointUnreachable,
    }
}

impl Matcher for MxMatcher {
    fn answered(&mut self, serial: RequestSerial, reply: Result<ToClient, Refusal>) {
        let Some(request) = self.connecting.remove(&serial) else { return };
        self.events += 1;
        let outcome = reply.and_then(|reply| mx_found(&reply));
        match request {
            None => drop(self.answers.insert(serial, outcome)),
            Some(request) => {
                let found = outcome.map_err(|refusal| status_of(refusal.reason));
                let partner = |address| self.engine.partner(address).map_err(|_| StatusCode::NoResources);
                let found = found.and_then(partner);
                self.engine.connected(request, found);
            }
        }
    }

    #[inline(always)]
    fn try_receive_eager(&mut self, envelope: &Envelope, words: &[u32]) -> bool {
        let Some(inner) = self.envelope(envelope) else { return false };
        let delivered = self.engine.deliver(&inner, |receive| fill(receive, inner.msg_length, words));
        if delivered {
            self.events += 1;
        } else {
            self.hold_short_message(*envelope, words);
        }
        true
    }

    #[inline(always)]
    fn match_message(&mut self, envelope: &Envelope) -> Option<Posted> {
        let envelope = self.envelope(envelope)?;
        let matched = self.engine.arrive(&envelope)?;
        Some(self.posted_receive(matched.request, matched.receive, envelope.msg_length))
    }

    fn store_unexpected(&mut self, message: Unexpected) {
        if let Some(envelope) = self.envelope(&message.envelope) {
            self.keep(envelope, MessageSource::Peer(message.state));
        }
    }

    fn unexpected_complete(&mut self, envelope: &Envelope, bytes: Vec<u8>) {
        if let Some(at) = self.waiting_for_rest.iter().position(|(from, ..)| *from == envelope.from) {
            let (_, request, receive) = self.waiting_for_rest.remove(at);
            let posted = self.posted_receive(request, receive, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            let message = Unexpected { envelope: *envelope, state: UnexpectedState::Whole(bytes) };
            return self.ready.push((posted, message));
        }
        let Some(source) = self.engine.find_partner(envelope.from) else { return };
        let pending = self
            .handler_pending
            .iter_mut()
            .find(|pending| pending.envelope.source == source && is_arriving(&pending.source));
        if let Some(pending) = pending {
            pending.source = MessageSource::Peer(UnexpectedState::Whole(bytes));
            return;
        }
        let mut messages = self.engine.unexpected_from(source);
        let message = messages.find(|id| self.engine.message(*id).is_some_and(|held| is_arriving(&held.message)));
        drop(messages);
        // The message is missing if the handler refused it.
        if let Some(held) = message.and_then(|id| self.engine.message_mut(id)) {
            *held = MessageSource::Peer(UnexpectedState::Whole(bytes));
        }
    }

    fn next_match(&mut self, _endpoint: EndpointIndex) -> Option<(Posted, Unexpected)> {
        self.ready.pop()
    }

    #[inline(always)]
    fn received(&mut self, posted: Posted, envelope: &Envelope) {
        let token = posted.token.number();
        let room = posted.buffer.len();
        match RequestId::from_bits(token) {
            Some(request) if self.scattered.is_empty() => {
                self.events += 1;
                self.engine.received(request, StatusCode::Success, envelope.len.min(room as u64) as u32);
            }
            _ => self.complete(posted.completed_by(envelope)),
        }
    }

    #[inline]
    fn complete(&mut self, completion: Completion) {
        let token = completion.token.number();
        if token & COPIED_SEND != 0 {
            self.copied_sends -= 1;
            return;
        }
        let Some(request) = RequestId::from_bits(token) else { return };
        self.events += 1;
        match completion.outcome {
            Outcome::Received { len, .. } => {
                let moved = completion.buffer.len().min(usize::try_from(len).unwrap_or(usize::MAX));
                let scattered =
                    if self.scattered.is_empty() { None } else { self.scattered.remove(&request.to_bits()) };
                let code = match scattered {
                    Some(None) => StatusCode::NoResources,
                    Some(Some(segments)) => {
                        scatter(&completion.buffer.as_slice()[..moved], &segments);
                        StatusCode::Success
                    }
                    None => StatusCode::Success,
                };
                self.engine.received(request, code, moved as u32);
            }
            Outcome::Sent { taken } => {
                self.engine.sent(request, StatusCode::Success, u32::try_from(taken).unwrap_or(u32::MAX));
            }
            Outcome::Cancelled => {}
            Outcome::Failed(reason) => {
                self.scattered.remove(&request.to_bits());
                let code = status_of(reason);
                let _ = self.engine.received(request, code, 0) || self.engine.sent(request, code, 0);
            }
        }
    }

    #[inline]
    fn is_busy(&self) -> bool {
        !self.closing && (self.budget.is_used_up(self.events) || !self.handler_pending.is_empty())
    }

    fn forget(&mut self, peer: DomainId) {
        self.events += 1;
        let partners = self.partners_at(peer);
        if !partners.is_empty() && !self.gone.contains(&peer) {
            self.gone.push(peer);
        }
        self.handler_pending
            .retain(|pending| is_complete(&pending.source) || !partners.contains(&pending.envelope.source));
        for partner in partners {
            let gone = |id: &_| self.engine.message(*id).is_some_and(|held| !is_complete(&held.message));
            let gone: Vec<_> = self.engine.unexpected_from(partner).filter(gone).collect();
            for message in gone {
                self.engine.remove_message(message);
            }
        }
        let lost = self.waiting_for_rest.extract_if(.., |(from, ..)| from.domain == peer);
        for (_, request, _) in lost {
            self.engine.received(request, StatusCode::EndpointUnreachable, 0);
        }
    }

    fn close(&mut self, endpoint: EndpointIndex) -> (Vec<Posted>, Vec<Unexpected>) {
        let addresses: HashMap<PartnerId, EndpointAddress> = self.engine.partners().collect();
        let pending = self.handler_pending.drain(..).map(|pending| (pending.envelope, pending.source));
        let held = self.engine.drain().messages.into_iter().map(|held| (held.envelope, held.message));
        let unexpected = pending.chain(held).filter_map(|(envelope, source)| {
            let from = *addresses.get(&envelope.source)?;
            let (tag, len) = (envelope.match_info, u64::from(envelope.msg_length));
            let MessageSource::Peer(state) = source else { return None };
            Some(Unexpected { envelope: Envelope { from, to: endpoint, tag, len }, state })
        });
        let unexpected = unexpected.collect();
        (self.waiting_for_rest, self.ready) = (Vec::new(), Vec::new());
        self.scattered.clear();
        (Vec::new(), unexpected)
    }
}
