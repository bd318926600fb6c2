//! Receives, arriving messages, and unexpected messages.

use super::{Engine, RequestKind, RequestState, TransportTypes};
use crate::filter::Filter;
use crate::slab::{Full, Slot};
use crate::status::{Status, StatusCode};
use crate::{MessageId, PartnerId, RequestId};

/// The description of a message, known before its bytes arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchEnvelope {
    /// The sender.
    pub source: PartnerId,
    /// The sender's 64 bits.
    pub match_info: u64,
    /// Bytes.
    pub msg_length: u32,
}

/// An unexpected message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnexpectedMessage<M> {
    /// The message's description.
    pub envelope: MatchEnvelope,
    /// The message's bytes, or the way to them.
    pub message: M,
}

/// An arriving message has found its receive.
#[derive(Debug, PartialEq, Eq)]
pub struct Matched<C: TransportTypes> {
    /// The receive: it is under way now, until [`Engine::received`].
    pub request: RequestId,
    /// Where its bytes go.
    pub receive: C::Receive,
    /// Bytes that there is room for. The rest of the message is dropped.
    pub posted_length: u32,
}

/// The result of posting a receive.
#[derive(Debug, PartialEq, Eq)]
pub enum PostOutcome<C: TransportTypes> {
    /// The receive waits for a message.
    Waiting(RequestId),
    /// A message was there. It is not unexpected any more, and the receive is under way.
    Found {
        /// The receive.
        request: RequestId,
        /// Where its bytes go.
        receive: C::Receive,
        /// The message.
        unexpected: UnexpectedMessage<C::Message>,
    },
}

/// A receive that cannot be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// Its mask leaves out bits of the context id.
    #[error("the mask leaves out bits of the context id")]
    MaskSplitsContext,
    /// Too many requests.
    #[error(transparent)]
    Full(#[from] Full),
}

impl<C: TransportTypes> Engine<C> {
    /// Posts a receive with room for `length` bytes. It takes the oldest unexpected message that its filter accepts, or waits.
    #[inline(always)]
    pub fn post_receive(
        &mut self,
        filter: Filter,
        context: usize,
        length: u32,
        receive: C::Receive,
    ) -> Result<PostOutcome<C>, PostError> {
        if !self.contexts.is_covered_by(filter.mask()) {
            return Err(PostError::MaskSplitsContext);
        }
        if let Some(slot) = self.unexpected.first(filter) {
            return self.receive_unexpected(slot, context, receive);
        }
        let status = Status {
            code: StatusCode::Pending,
            source: None,
            match_info: filter.match_info(),
            msg_length: 0,
            xfer_length: 0,
            context,
        };
        let post_order = self.post_order;
        let id = self.begin_receive(RequestKind::Receive, RequestState::Posted, status, length, Some(receive))?;
        self.posted.push(id.0.slot(), filter, post_order);
        Ok(PostOutcome::Waiting(id))
    }

    /// Posts a receive for an unexpected message.
    #[inline(never)]
    fn receive_unexpected(
        &mut self,
        slot: Slot,
        context: usize,
        receive: C::Receive,
    ) -> Result<PostOutcome<C>, PostError> {
        if !self.requests.has_room() {
            return Err(Full.into());
        }
        let (message, _) = self.messages.at(slot).expect("it is in the queue of those that are there");
        let unexpected = self.remove_message(MessageId(message)).expect("it was found above");
        let MatchEnvelope { source, match_info, msg_length } = unexpected.envelope;
        let code = StatusCode::Pending;
        let status = Status { code, source: Some(source), match_info, msg_length, xfer_length: 0, context };
        let request = self.begin_request(RequestKind::Receive, RequestState::InProgress, status)?;
        Ok(PostOutcome::Found { request, receive, unexpected })
    }

    /// A message begins to arrive: the oldest receive that wants it. None: it is unexpected; [`hold`](Self::hold) keeps it.
    #[inline(always)]
    pub fn arrive(&mut self, envelope: &MatchEnvelope) -> Option<Matched<C>> {
        let slot = self.posted.first(envelope.match_info)?;
        let (id, request) = self.requests.at_mut(slot)?;
        let receive = request.receive.take()?;
        set_envelope(&mut request.status, envelope);
        request.state = RequestState::InProgress;
        let posted_length = request.length;
        self.posted.remove(slot);
        Some(Matched { request: RequestId(id), receive, posted_length })
    }

    /// A message arrives at once and as a whole: the oldest receive that wants it is over, when `fill` has put the bytes where it
    /// wants them and has answered how many it moved. False: it is unexpected, as from [`arrive`](Self::arrive).
    #[inline(always)]
    pub fn deliver(&mut self, envelope: &MatchEnvelope, fill: impl FnOnce(C::Receive) -> u32) -> bool {
        let Some(slot) = self.posted.first(envelope.match_info) else { return false };
        let Some((id, request)) = self.requests.at_mut(slot) else { return false };
        let Some(receive) = request.receive.take() else { return false };
        self.posted.remove(slot);
        set_envelope(&mut request.status, envelope);
        request.end(StatusCode::Success, fill(receive));
        if request.is_forgotten {
            self.requests.remove(id);
        } else {
            self.done.push(slot, envelope.match_info);
        }
        true
    }

    /// Ends a receive that a message was found for, after `xfer_length` bytes. False if it has ended already.
    #[inline]
    pub fn received(&mut self, request: RequestId, code: StatusCode, xfer_length: u32) -> bool {
        self.finish(request, RequestKind::Receive, code, xfer_length)
    }

    /// Keeps an unexpected message. It comes back if its sender has been disconnected, or there are 2^24 already.
    #[inline]
    pub fn hold(&mut self, envelope: MatchEnvelope, message: C::Message) -> Result<MessageId, C::Message> {
        if !self.messages.has_room() {
            return Err(message);
        }
        let Some(partner) = self.partners.get_mut(envelope.source) else { return Err(message) };
        let id = self.messages.insert(UnexpectedMessage { envelope, message }).expect("there is room, as asked above");
        self.by_source.push(&mut partner.unexpected, id.slot(), ());
        self.unexpected.push(id.slot(), envelope.match_info);
        Ok(MessageId(id))
    }

    /// An unexpected message, while no receive has taken it.
    pub fn message(&self, message: MessageId) -> Option<&UnexpectedMessage<C::Message>> {
        self.messages.get(message.0)
    }

    /// Returns the transport's data of a message, mutably: the message's bytes may still be arriving.
    pub fn message_mut(&mut self, message: MessageId) -> Option<&mut C::Message> {
        self.messages.get_mut(message.0).map(|unexpected| &mut unexpected.message)
    }

    /// The unexpected messages of a partner, newest first.
    pub fn unexpected_from(&self, source: PartnerId) -> impl Iterator<Item = MessageId> {
        let unexpected = self.partners.get(source).map(|partner| partner.unexpected).unwrap_or_default();
        self.by_source.iter_rev(unexpected).filter_map(|slot| Some(MessageId(self.messages.at(slot)?.0)))
    }

    /// Takes an unexpected message out: it will not be found any more.
    #[inline]
    pub fn remove_message(&mut self, message: MessageId) -> Option<UnexpectedMessage<C::Message>> {
        let unexpected = self.messages.remove(message.0)?;
        self.unexpected.remove(message.0.slot());
        if let Some(partner) = self.partners.get_mut(unexpected.envelope.source) {
            self.by_source.remove(&mut partner.unexpected, message.0.slot());
        }
        Some(unexpected)
    }

    /// The oldest unexpected message that a filter accepts. It stays where it is, and may still be arriving.
    pub fn probe(&mut self, filter: Filter) -> Option<Status> {
        let slot = self.unexpected.first(filter)?;
        let (_, unexpected) = self.messages.at(slot)?;
        let MatchEnvelope { source, match_info, msg_length } = unexpected.envelope;
        let code = StatusCode::Success;
        Some(Status { code, source: Some(source), match_info, msg_length, xfer_length: msg_length, context: 0 })
    }
}

/// Fills in the fields of a receive's status that its message determines.
#[inline]
fn set_envelope(status: &mut Status, envelope: &MatchEnvelope) {
    status.source = Some(envelope.source);
    status.match_info = envelope.match_info;
    status.msg_length = envelope.msg_length;
}
