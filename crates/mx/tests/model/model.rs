//! The rules of MX in their simplest form: vectors that are searched from the front.

use isthmus_mx::{
    Cancelled, ContextIdBits, Counts, Filter, MatchEnvelope, MessageId, PartnerId, RequestId, RequestKind, Status,
    StatusCode, UnexpectedMessage,
};

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestState {
    Posted,
    InProgress,
    Done,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    pub(crate) kind: RequestKind,
    pub(crate) state: RequestState,
    pub(crate) status: Status,
    pub(crate) is_forgotten: bool,
    pub(crate) is_buffered: bool,
    pub(crate) filter: Filter,
    pub(crate) length: u32,
    pub(crate) cargo: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Partner {
    pub(crate) index: PartnerId,
    pub(crate) address: u32,
    pub(crate) context: usize,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) contexts: ContextIdBits,
    /// In the order of their posts.
    pub(crate) requests: Vec<Request>,
    /// In the order of completion.
    pub(crate) done: Vec<RequestId>,
    /// In the order of arrival.
    pub(crate) messages: Vec<(MessageId, UnexpectedMessage<u32>)>,
    pub(crate) partners: Vec<Partner>,
}

impl Model {
    pub(crate) fn new(contexts: ContextIdBits) -> Self {
        Self { contexts, requests: vec![], done: vec![], messages: vec![], partners: vec![] }
    }

    pub(crate) fn counts(&self) -> Counts {
        let count = |state| self.requests.iter().filter(|request| request.state == state).count();
        Counts {
            posted: count(RequestState::Posted),
            unexpected: self.messages.len(),
            pending: self.requests.len() - self.done.len(),
            done: self.done.len(),
            partners: self.partners.len(),
        }
    }

    pub(crate) fn request(&self, id: RequestId) -> Option<&Request> {
        self.requests.iter().find(|request| request.id == id)
    }

    pub(crate) fn visible(&self, id: RequestId) -> Option<&Request> {
        self.request(id).filter(|request| !request.is_forgotten)
    }

    fn remove(&mut self, id: RequestId) -> Option<Request> {
        self.done.retain(|done| *done != id);
        let at = self.requests.iter().position(|request| request.id == id)?;
        Some(self.requests.remove(at))
    }

    /// Returns the message that a new receive takes.
    pub(crate) fn find_message(&self, filter: Filter) -> Option<usize> {
        self.messages
            .iter()
            .position(|(_, unexpected)| unexpected.envelope.match_info & filter.mask() == filter.match_info())
    }

    /// Adds a request. The engine's identifier must not be in use.
    pub(crate) fn add(
        &mut self,
        id: RequestId,
        kind: RequestKind,
        state: RequestState,
        filter: Filter,
        context: usize,
    ) -> &mut Request {
        assert!(self.request(id).is_none(), "{id:?} is in use");
        let (code, match_info) = (StatusCode::Pending, filter.match_info());
        let status = Status { code, source: None, match_info, msg_length: 0, xfer_length: 0, context };
        let (length, cargo) = (0, 0);
        let request =
            Request { id, kind, state, status, is_forgotten: false, is_buffered: false, filter, length, cargo };
        self.requests.push(request);
        self.requests.last_mut().unwrap()
    }

    /// Returns the receive for an arriving message. The receive is in progress from then on.
    pub(crate) fn arrive(&mut self, envelope: &MatchEnvelope) -> Option<Request> {
        let waits = |request: &&mut Request| {
            let wanted = envelope.match_info & request.filter.mask() == request.filter.match_info();
            request.state == RequestState::Posted && wanted
        };
        let request = self.requests.iter_mut().find(waits)?;
        request.state = RequestState::InProgress;
        request.set_envelope(envelope);
        Some(request.clone())
    }

    pub(crate) fn finish(&mut self, id: RequestId, kind: RequestKind, code: StatusCode, xfer_length: u32) -> bool {
        let mut requests = self.requests.iter_mut();
        let Some(request) = requests.find(|request| request.id == id) else { return false };
        if request.kind != kind || request.state != RequestState::InProgress {
            return false;
        }
        let short = xfer_length < request.status.msg_length;
        request.status.code = if short && code == StatusCode::Success { StatusCode::Truncated } else { code };
        request.status.xfer_length = xfer_length;
        request.state = RequestState::Done;
        if request.is_forgotten {
            self.remove(id);
        } else {
            self.done.push(id);
        }
        true
    }

    pub(crate) fn connected(&mut self, id: RequestId, outcome: Result<PartnerId, StatusCode>) -> bool {
        let code = outcome.err().unwrap_or(StatusCode::Success);
        if !self.finish(id, RequestKind::Connect, code, 0) {
            return false;
        }
        if let Some(request) = self.requests.iter_mut().find(|request| request.id == id) {
            request.status.source = outcome.ok();
        }
        true
    }

    /// Returns `None` if the request does not exist.
    pub(crate) fn test(&mut self, id: RequestId) -> Option<Option<Status>> {
        let request = self.visible(id)?;
        if request.state != RequestState::Done {
            return Some(None);
        }
        Some(self.remove(id).map(|request| request.status))
    }

    pub(crate) fn test_any(&mut self, filter: Filter) -> Option<Status> {
        let accepted = |id: &&RequestId| {
            let request = self.request(**id).unwrap();
            request.status.match_info & filter.mask() == filter.match_info()
        };
        let id = *self.done.iter().find(accepted)?;
        self.remove(id).map(|request| request.status)
    }

    pub(crate) fn forget(&mut self, id: RequestId) -> bool {
        match self.visible(id).map(|request| request.state) {
            None => return false,
            Some(RequestState::Done) => drop(self.remove(id)),
            Some(_) => {
                let request = self.requests.iter_mut().find(|request| request.id == id);
                request.unwrap().is_forgotten = true;
            }
        }
        true
    }

    pub(crate) fn cancel(&mut self, id: RequestId) -> Cancelled<u32> {
        let Some(request) = self.visible(id) else { return Cancelled::Unknown };
        match (request.kind, request.state) {
            (RequestKind::Send, _) => Cancelled::WrongKind,
            (RequestKind::Receive, RequestState::Posted) => Cancelled::Receive(self.remove(id).unwrap().cargo),
            (RequestKind::Connect, RequestState::InProgress) => {
                self.remove(id);
                Cancelled::Connect
            }
            _ => Cancelled::TooLate,
        }
    }

    /// Ends a partner's requests, and drops the messages that are not kept.
    pub(crate) fn fail(
        &mut self,
        partner: PartnerId,
        code: StatusCode,
        keep: impl Fn(u32) -> bool,
    ) -> (Vec<RequestId>, Vec<UnexpectedMessage<u32>>) {
        let hit =
            |request: &&Request| request.state == RequestState::InProgress && request.status.source == Some(partner);
        let hit: Vec<Request> = self.requests.iter().filter(hit).cloned().collect();
        for request in &hit {
            assert!(self.finish(request.id, request.kind, code, 0));
        }
        let stays =
            |unexpected: &UnexpectedMessage<u32>| unexpected.envelope.source != partner || keep(unexpected.message);
        let (stay, go): (Vec<_>, Vec<_>) = self.messages.drain(..).partition(|(_, unexpected)| stays(unexpected));
        self.messages = stay;
        (
            hit.into_iter().map(|request| request.id).collect(),
            go.into_iter().map(|(_, unexpected)| unexpected).collect(),
        )
    }
}

impl Request {
    pub(crate) fn set_envelope(&mut self, envelope: &MatchEnvelope) {
        self.status.source = Some(envelope.source);
        self.status.match_info = envelope.match_info;
        self.status.msg_length = envelope.msg_length;
    }
}
