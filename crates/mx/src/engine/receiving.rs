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
    /// The match info that the sender gave.
    pub match_info: u64,
    /// The length of the message in bytes.
    pub msg_length: u32,
}

/// An unexpected message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnexpectedMessage<M> {
    /// The message's description.
    pub envelope: MatchEnvelope,
    /// The bytes of the message, or the data needed to get them.
    pub message: M,
}

/// The result of matching an arriving message with a receive.
#[derive(Debug, PartialEq, Eq)]
pub struct Matched<C: TransportTypes> {
    /// The receive. It is in progress until [`Engine::received`].
    pub request: RequestId,
    /// The destination of the bytes.
    pub receive: C::Receive,
    /// The length of the receive's buffer in bytes. The rest of the message is dropped.
    pub posted_length: u32,
}

/// The result of posting a receive.
#[derive(Debug, PartialEq, Eq)]
pub enum PostOutcome<C: TransportTypes> {
    /// The receive waits for a message.
    Waiting(RequestId),
    /// A queued message matched. It is not unexpected any more, and the receive is in progress.
    Found {
        /// The receive.
        request: RequestId,
        /// The destination of the bytes.
        receive: C::Receive,
        /// The message.
        unexpected: UnexpectedMessage<C::Message>,
    },
}

/// The reason why a receive cannot be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The mask omits bits of the context id.
    #[error("the mask leaves out bits of the context id")]
    MaskSplitsContext,
    /// There are too many requests.
    #[error(transparent)]
    Full(#[from] Full),
}

impl<C: TransportTypes> Engine<C> {
    /// Posts a receive with a buffer of `length` bytes. It takes the oldest unexpected message that its filter accepts,
    /// or waits.
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

    /// Matches a message that begins to arrive with the oldest receive that accepts it. `None` means that the message
    /// is unexpected; [`hold`](Self::hold) keeps it.
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

    /// Matches a complete message with the oldest receive that accepts it, and completes the receive. `fill` copies the
    /// bytes and returns their number. Returns false if the message is unexpected, like [`arrive`](Self::arrive).
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

    /// Completes a matched receive after `xfer_length` bytes. Returns false if the receive has ended already.
    #[inline]
    pub fn received(&mut self, request: RequestId, code: StatusCode, xfer_length: u32) -> bool {
        self.finish(request, RequestKind::Receive, code, xfer_length)
    }

    /// Keeps an unexpected message. Returns the message if its sender has been disconnected, or if there are 2^24
    /// messages already.
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

    /// Returns an unexpected message, until a receive takes it.
    pub fn message(&self, message: MessageId) -> Option<&UnexpectedMessage<C::Message>> {
        self.messages.get(message.0)
    }

    /// Returns the transport's data of a message, mutably: the message's bytes may still be arriving.
    pub fn message_mut(&mut self, message: MessageId) -> Option<&mut C::Message> {
        self.messages.get_mut(message.0).map(|unexpected| &mut unexpected.message)
    }

    /// Returns the unexpected messages of a partner, newest first.
    pub fn unexpected_from(&self, source: PartnerId) -> impl Iterator<Item = MessageId> {
        let unexpected = self.partners.get(source).map(|partner| partner.unexpected).unwrap_or_default();
        self.by_source.iter_rev(unexpected).filter_map(|slot| Some(MessageId(self.messages.at(slot)?.0)))
    }

    /// Removes and returns an unexpected message.
    #[inline]
    pub fn remove_message(&mut self, message: MessageId) -> Option<UnexpectedMessage<C::Message>> {
        let unexpected = self.messages.remove(message.0)?;
        self.unexpected.remove(message.0.slot());
        if let Some(partner) = self.partners.get_mut(unexpected.envelope.source) {
            self.by_source.remove(&mut partner.unexpected, message.0.slot());
        }
        Some(unexpected)
    }

    /// Returns the oldest unexpected message that a filter accepts. The message stays queued, and may still be
    /// arriving.
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
