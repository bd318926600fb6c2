//! The end of a partner, and of the endpoint.

use super::{Engine, RequestKind, RequestState, TransportTypes, UnexpectedMessage};
use crate::filter::Filter;
use crate::status::StatusCode;
use crate::{MessageId, PartnerId, RequestId};
use alloc::vec::Vec;

/// The requests and messages that ended with a partner. The transport must not touch these requests any more: the
/// engine ignores later reports of them.
#[derive(Debug, PartialEq, Eq)]
pub struct DisconnectedPartner<M> {
    /// Sends to the partner, and receives that were being filled by it, in the order of their posts. They have ended.
    pub requests: Vec<RequestId>,
    /// Unexpected messages of the partner, oldest first.
    pub messages: Vec<UnexpectedMessage<M>>,
}

/// The requests and messages that were left when an endpoint was closed.
#[derive(Debug, PartialEq, Eq)]
pub struct DrainedRequests<C: TransportTypes> {
    /// Receives that no message had matched, oldest first.
    pub receives: Vec<(RequestId, C::Receive)>,
    /// The requests that the transport was working on, in the order of the posts.
    pub underway: Vec<(RequestId, RequestKind)>,
    /// Unexpected messages, oldest first.
    pub messages: Vec<UnexpectedMessage<C::Message>>,
}

impl<C: TransportTypes> Engine<C> {
    /// Ends every send to a partner and every receive that is being filled by it with `code`, because the partner is
    /// gone. `keep` decides, oldest first, which of its unexpected messages stay: complete ones can still be received.
    /// The partner stays, with its context.
    pub fn fail_partner(
        &mut self,
        partner: PartnerId,
        code: StatusCode,
        mut keep: impl FnMut(&C::Message) -> bool,
    ) -> DisconnectedPartner<C::Message> {
        let mut requests = self.in_progress(|status| status == Some(partner));
        requests.retain(|(request, kind)| self.finish(*request, *kind, code, 0));
        let unexpected = self.partners.get(partner).map(|partner| partner.unexpected).unwrap_or_default();
        let messages = self.by_source.iter(unexpected).filter_map(|slot| self.messages.at(slot));
        let drop = messages.filter(|(_, unexpected)| !keep(&unexpected.message)).map(|(id, _)| MessageId(id));
        let drop: Vec<MessageId> = drop.collect();
        DisconnectedPartner {
            requests: requests.into_iter().map(|(request, _)| request).collect(),
            messages: drop.into_iter().filter_map(|message| self.remove_message(message)).collect(),
        }
    }

    /// Forgets a partner. Its requests end as unreachable, its unexpected messages are dropped, and its index no longer names a
    /// partner.
    pub fn disconnect(&mut self, partner: PartnerId) -> DisconnectedPartner<C::Message> {
        let disconnected = self.fail_partner(partner, StatusCode::EndpointUnreachable, |_| false);
        self.partners.remove(partner);
        disconnected
    }

    /// Removes all requests, pending or complete, and all messages. Partners stay.
    pub fn drain(&mut self) -> DrainedRequests<C> {
        let mut drained =
            DrainedRequests { receives: Vec::new(), underway: self.in_progress(|_| true), messages: Vec::new() };
        for (request, _) in &drained.underway {
            self.requests.remove(request.0);
        }
        while self.test_any(Filter::ANY).is_some() {}
        while let Some(slot) = self.posted.front() {
            self.posted.remove(slot);
            let Some((id, _)) = self.requests.at(slot) else { continue };
            let receive = self.requests.remove(id).and_then(|request| request.receive);
            drained.receives.extend(receive.map(|receive| (RequestId(id), receive)));
        }
        while let Some((id, _)) = self.unexpected.front().and_then(|slot| self.messages.at(slot)) {
            drained.messages.extend(self.remove_message(MessageId(id)));
        }
        drained
    }

    /// Returns the requests that the transport is working on, with matching partners, in the order of their posts.
    fn in_progress(&self, with: impl Fn(Option<PartnerId>) -> bool) -> Vec<(RequestId, RequestKind)> {
        let all = self.requests.iter().filter(|(_, request)| request.state == RequestState::InProgress);
        let mut some: Vec<_> = all.filter(|(_, request)| with(request.status.source)).collect();
        some.sort_unstable_by_key(|(_, request)| request.post_order);
        some.into_iter().map(|(id, request)| (RequestId(id), request.kind)).collect()
    }
}
