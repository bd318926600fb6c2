//! The engine and the model side by side: each step is applied to both, and their visible states must be equal.

use crate::Op;
use crate::model::{Model, Partner, RequestState};
use isthmus_mx::{
    BufferedError, ContextIdBits, Engine, Filter, MatchEnvelope, PartnerId, PostError, PostOutcome, RequestId,
    RequestKind, Status, StatusCode, TransportTypes, UnexpectedMessage, UnknownRequest,
};
use proptest::sample::Index;

/// Buffers and bytes are numbers in this test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Numbers;

impl TransportTypes for Numbers {
    type Receive = u32;
    type Message = u32;
    type Address = u32;
}

pub(crate) struct EngineAndModel {
    engine: Engine<Numbers>,
    model: Model,
    /// All requests so far.
    named: Vec<RequestId>,
    /// All partners so far.
    known: Vec<PartnerId>,
    /// The next unused number for data and contexts.
    next: u32,
}

impl EngineAndModel {
    pub(crate) fn new(contexts: ContextIdBits, seed: u64) -> Self {
        let (engine, model) = (Engine::new(contexts, seed), Model::new(contexts));
        Self { engine, model, named: vec![], known: vec![], next: 0 }
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn partner(&mut self, address: u32) -> PartnerId {
        let index = self.engine.partner(address).unwrap();
        match self.model.partners.iter().find(|partner| partner.address == address) {
            Some(partner) => assert_eq!(partner.index, index),
            None => {
                assert!(!self.known.contains(&index), "an index means one partner for ever");
                self.known.push(index);
                self.model.partners.push(Partner { index, address, context: 0 });
            }
        }
        index
    }

    /// Returns an existing or former request, more often a recent one.
    fn any_request(&self, which: Index) -> Option<RequestId> {
        let latest = &self.named[self.named.len().saturating_sub(48)..];
        (!latest.is_empty()).then(|| *which.get(latest))
    }

    pub(crate) fn step(&mut self, op: &Op) {
        match *op {
            Op::Receive { filter, length, times } => (0..times).for_each(|_| self.receive(filter, length)),
            Op::Arrive { from, match_info, length, whole, times } => {
                let source = self.partner(from);
                let envelope = MatchEnvelope { source, match_info, msg_length: length };
                (0..times).for_each(|_| if whole { self.deliver(envelope) } else { self.arrive(envelope) });
            }
            Op::Send { to, match_info, length, over, times } => {
                let to = self.partner(to);
                (0..times).for_each(|_| self.send(to, match_info, length, over));
            }
            Op::Connect { match_info } => self.connect(match_info),
            Op::End { which, code, missing } => self.end(which, code, missing),
            Op::Connected { which, outcome } => self.connected(which, outcome),
            Op::TestAny { filter } => assert_eq!(self.engine.test_any(filter), self.model.test_any(filter)),
            Op::TakeMessage { which } => self.remove_message(which),
            Op::SetContext { partner, context } => self.set_context(partner, context),
            Op::Fail { partner, code } => self.fail(partner, code),
            Op::Disconnect { partner } => self.disconnect(partner),
            Op::Drain => self.drain(),
            Op::Stray { which }
            | Op::Cancel { which }
            | Op::Forget { which }
            | Op::Test { which }
            | Op::SetBuffered { which } => {
                if let Some(id) = self.any_request(which) {
                    self.ask(op, id);
                }
            }
        }
    }

    /// Applies an operation to one request.
    fn ask(&mut self, op: &Op, id: RequestId) {
        let (engine, model) = (&mut self.engine, &mut self.model);
        match op {
            Op::Stray { .. } => {
                let (code, reason) = (StatusCode::Success, Err(StatusCode::Timeout));
                assert_eq!(engine.received(id, code, 0), model.finish(id, RequestKind::Receive, code, 0));
                assert_eq!(engine.sent(id, code, 0), model.finish(id, RequestKind::Send, code, 0));
                assert_eq!(engine.connected(id, reason), model.connected(id, reason));
            }
            Op::Cancel { .. } => assert_eq!(engine.cancel(id), model.cancel(id)),
            Op::Forget { .. } => assert_eq!(engine.forget(id).is_ok(), model.forget(id)),
            Op::Test { .. } => assert_eq!(engine.test(id).ok(), model.test(id)),
            Op::SetBuffered { .. } => {
                let send =
                    model.requests.iter_mut().find(|request| request.id == id && request.kind == RequestKind::Send);
                assert_eq!(engine.set_buffered(id), send.is_some());
                if let Some(send) = send {
                    send.is_buffered = true;
                }
            }
            _ => unreachable!("not about one request"),
        }
    }

    fn receive(&mut self, filter: Filter, length: u32) {
        let (cargo, context) = (self.number(), self.next as usize);
        let made = self.engine.post_receive(filter, context, length, cargo);
        if filter.mask() & self.model.contexts.mask() != self.model.contexts.mask() {
            return assert_eq!(made, Err(PostError::MaskSplitsContext));
        }
        let found = self.model.find_message(filter).map(|at| self.model.messages.remove(at).1);
        let (id, taken) = match made.unwrap() {
            PostOutcome::Waiting(id) => (id, None),
            PostOutcome::Found { request, receive, unexpected } => {
                assert_eq!(receive, cargo);
                (request, Some(unexpected))
            }
        };
        assert_eq!(taken, found);
        self.named.push(id);
        let state = if found.is_some() { RequestState::InProgress } else { RequestState::Posted };
        let request = self.model.add(id, RequestKind::Receive, state, filter, context);
        (request.length, request.cargo) = (length, cargo);
        if let Some(unexpected) = found {
            request.set_envelope(&unexpected.envelope);
        }
    }

    fn arrive(&mut self, envelope: MatchEnvelope) {
        let matched = self.engine.arrive(&envelope);
        let matched = matched.map(|matched| (matched.request, matched.receive, matched.posted_length));
        let wanted = self.model.arrive(&envelope);
        assert_eq!(matched, wanted.map(|request| (request.id, request.cargo, request.length)));
        if matched.is_none() {
            let unexpected = UnexpectedMessage { envelope, message: self.number() };
            let id = self.engine.hold(unexpected.envelope, unexpected.message).unwrap();
            self.model.messages.push((id, unexpected));
        }
    }

    /// Like [`Self::arrive`]. The receive completes with as many bytes as fit.
    fn deliver(&mut self, envelope: MatchEnvelope) {
        let wanted = self.model.arrive(&envelope);
        let moved = wanted.as_ref().map_or(0, |request| request.length.min(envelope.msg_length));
        let mut filled = None;
        let delivered = self.engine.deliver(&envelope, |cargo| {
            filled = Some(cargo);
            moved
        });
        assert_eq!((delivered, filled), (wanted.is_some(), wanted.as_ref().map(|request| request.cargo)));
        match wanted {
            Some(request) => assert!(self.model.finish(request.id, RequestKind::Receive, StatusCode::Success, moved)),
            None => self.arrive(envelope),
        }
    }

    fn send(&mut self, to: PartnerId, match_info: u64, length: u32, over: bool) {
        let context = self.number() as usize;
        let id = if over {
            self.engine.post_sent(to, match_info, context, length).unwrap()
        } else {
            self.engine.post_send(to, match_info, context, length).unwrap()
        };
        self.named.push(id);
        let request =
            self.model.add(id, RequestKind::Send, RequestState::InProgress, Filter::exactly(match_info), context);
        request.set_envelope(&MatchEnvelope { source: to, match_info, msg_length: length });
        if over {
            self.model.finish(id, RequestKind::Send, StatusCode::Success, length);
        }
    }

    fn connect(&mut self, match_info: u64) {
        let context = self.number() as usize;
        let id = self.engine.post_connect(match_info, context).unwrap();
        self.named.push(id);
        self.model.add(id, RequestKind::Connect, RequestState::InProgress, Filter::exactly(match_info), context);
    }

    /// Returns a request that the transport is working on.
    fn in_progress(&self, which: Index, connect: bool) -> Option<(RequestId, RequestKind, Status)> {
        let underway = self.model.requests.iter().filter(|request| request.state == RequestState::InProgress);
        let wanted: Vec<_> = underway.filter(|request| (request.kind == RequestKind::Connect) == connect).collect();
        (!wanted.is_empty()).then(|| which.get(&wanted)).map(|request| (request.id, request.kind, request.status))
    }

    fn end(&mut self, which: Index, code: StatusCode, missing: u32) {
        let Some((id, kind, status)) = self.in_progress(which, false) else { return };
        let xfer_length = status.msg_length.saturating_sub(missing);
        assert!(match kind {
            RequestKind::Receive => self.engine.received(id, code, xfer_length),
            _ => self.engine.sent(id, code, xfer_length),
        });
        assert!(self.model.finish(id, kind, code, xfer_length));
    }

    fn connected(&mut self, which: Index, outcome: Result<u32, StatusCode>) {
        let Some((id, ..)) = self.in_progress(which, true) else { return };
        let outcome = outcome.map(|address| self.partner(address));
        assert!(self.engine.connected(id, outcome));
        assert!(self.model.connected(id, outcome));
    }

    fn remove_message(&mut self, which: Index) {
        if !self.model.messages.is_empty() {
            let (id, unexpected) = self.model.messages.remove(which.index(self.model.messages.len()));
            *self.engine.message_mut(id).unwrap() += 1;
            let unexpected = UnexpectedMessage { message: unexpected.message + 1, ..unexpected };
            assert_eq!(self.engine.remove_message(id), Some(unexpected));
            assert_eq!(self.engine.remove_message(id), None);
        }
    }

    fn set_context(&mut self, address: u32, context: usize) {
        let index = self.partner(address);
        self.engine.set_partner_context(index, context).unwrap();
        let partner = self.model.partners.iter_mut().find(|partner| partner.index == index);
        partner.unwrap().context = context;
    }

    fn fail(&mut self, address: u32, code: StatusCode) {
        let partner = self.partner(address);
        let disconnected = self.engine.fail_partner(partner, code, |message| message % 2 == 0);
        assert_eq!(
            (disconnected.requests, disconnected.messages),
            self.model.fail(partner, code, |message| message % 2 == 0)
        );
    }

    fn disconnect(&mut self, address: u32) {
        let partner = self.partner(address);
        let disconnected = self.engine.disconnect(partner);
        let expected = self.model.fail(partner, StatusCode::EndpointUnreachable, |_| false);
        assert_eq!((disconnected.requests, disconnected.messages), expected);
        self.model.partners.retain(|known| known.index != partner);
        let envelope = MatchEnvelope { source: partner, match_info: 0, msg_length: 0 };
        assert_eq!(self.engine.hold(envelope, 7), Err(7), "no message of a forgotten partner is kept");
    }

    fn drain(&mut self) {
        let drained = self.engine.drain();
        let requests = std::mem::take(&mut self.model.requests);
        let posted = requests.iter().filter(|request| request.state == RequestState::Posted);
        let underway = requests.iter().filter(|request| request.state == RequestState::InProgress);
        assert_eq!(drained.receives, posted.map(|request| (request.id, request.cargo)).collect::<Vec<_>>());
        assert_eq!(drained.underway, underway.map(|request| (request.id, request.kind)).collect::<Vec<_>>());
        let messages = self.model.messages.drain(..).map(|(_, unexpected)| unexpected);
        assert_eq!(drained.messages, messages.collect::<Vec<_>>());
        self.model.done.clear();
    }

    /// Checks that the visible states are equal.
    pub(crate) fn check_agreement(&mut self, look: Filter) {
        assert_eq!(self.engine.counts(), self.model.counts());
        assert_eq!(self.engine.peek(), self.model.done.first().copied());
        let found = self.model.find_message(look).map(|at| self.model.messages[at].1.envelope);
        let probed = self.engine.probe(look);
        assert_eq!(
            probed.map(|status| (status.source, status.match_info)),
            found.map(|e| (Some(e.source), e.match_info))
        );
        assert_eq!(probed.map(|status| status.msg_length), found.map(|envelope| envelope.msg_length));
        assert_eq!(probed.map(|status| status.xfer_length), found.map(|envelope| envelope.msg_length));
        self.check_requests();
        self.check_partners();
    }

    fn check_requests(&self) {
        for id in self.named.iter().rev().take(64) {
            let wanted = self.model.visible(*id);
            assert_eq!(self.engine.is_done(*id).ok(), wanted.map(|request| request.state == RequestState::Done));
            assert_eq!(self.engine.kind(*id).ok(), wanted.map(|request| request.kind));
            assert_eq!(self.engine.context_of(*id).ok(), wanted.map(|request| request.status.context));
            let buffered = match wanted {
                None => Err(BufferedError::Unknown(UnknownRequest)),
                Some(request) if request.kind != RequestKind::Send => Err(BufferedError::WrongKind),
                Some(request) => Ok(request.is_buffered || request.state == RequestState::Done),
            };
            assert_eq!(self.engine.is_buffered(*id), buffered);
            assert_eq!(RequestId::from_bits(id.to_bits()), Some(*id));
        }
    }

    fn check_partners(&self) {
        for index in &self.known {
            let wanted = self.model.partners.iter().find(|partner| partner.index == *index);
            assert_eq!(self.engine.address_of(*index).ok(), wanted.map(|partner| partner.address));
            assert_eq!(self.engine.partner_context(*index).ok(), wanted.map(|partner| partner.context));
            let from = self.model.messages.iter().rev().filter(|(_, unexpected)| unexpected.envelope.source == *index);
            let from: Vec<_> = from.map(|(id, _)| *id).collect();
            assert_eq!(self.engine.unexpected_from(*index).collect::<Vec<_>>(), from);
        }
        for partner in &self.model.partners {
            assert_eq!(self.engine.find_partner(partner.address), Some(partner.index));
        }
        for (id, unexpected) in &self.model.messages {
            assert_eq!(self.engine.message(*id), Some(unexpected));
        }
    }

    /// Removes most waiting entries: receives by messages, messages by receives, and completed requests.
    pub(crate) fn shorten(&mut self) {
        let source = self.partner(0);
        while let Some(request) = self.model.requests.iter().rfind(|request| request.state == RequestState::Posted) {
            let envelope = MatchEnvelope { source, match_info: request.filter.match_info(), msg_length: 0 };
            self.arrive(envelope);
        }
        while self.model.messages.len() > 1 {
            let match_info = self.model.messages[1].1.envelope.match_info;
            self.receive(Filter::exactly(match_info), 0);
        }
        while let Some(id) = self.model.done.pop() {
            self.model.done.push(id);
            assert_eq!(self.engine.test(id).ok(), self.model.test(id));
        }
        self.check_agreement(Filter::ANY);
    }

    /// Removes all remaining entries, one by one.
    pub(crate) fn empty(&mut self) {
        let partners: Vec<u32> = self.model.partners.iter().map(|partner| partner.address).collect();
        for partner in partners {
            self.disconnect(partner);
        }
        while let Some(request) = self.model.requests.first() {
            let (id, forgotten) = (request.id, request.is_forgotten);
            if forgotten {
                return self.drain();
            }
            assert_eq!(self.engine.cancel(id), self.model.cancel(id));
            assert_eq!(self.engine.test(id).ok(), self.model.test(id));
            assert_eq!(self.engine.counts(), self.model.counts());
        }
    }
}
