//! The matcher of plain endpoints: the oldest posted receive takes the oldest message.

use crate::matcher::{Completion, Envelope, Matcher, Posted, Token, Unexpected, UnexpectedState};
use isthmus_layout::DomainId;
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::limits::ENDPOINTS_MAX;
use std::collections::VecDeque;

/// The posted receives and unexpected messages of an endpoint.
#[derive(Debug, Default)]
struct Queues {
    posted: VecDeque<Posted>,
    unexpected: VecDeque<Unexpected>,
}

/// Messages match receives in order.
#[derive(Debug)]
pub struct InOrder {
    endpoints: [Queues; ENDPOINTS_MAX as usize],
    pub(crate) completions: VecDeque<Completion>,
    last_token: u64,
}

impl Default for InOrder {
    fn default() -> Self {
        Self { endpoints: Default::default(), completions: VecDeque::with_capacity(64), last_token: 0 }
    }
}

impl InOrder {
    #[inline]
    pub(crate) fn next_token(&mut self) -> Token {
        self.last_token += 1;
        Token::new(self.last_token)
    }

    #[inline]
    fn at(&mut self, endpoint: EndpointIndex) -> &mut Queues {
        &mut self.endpoints[usize::from(endpoint.number())]
    }

    /// Posts a receive. True if it may have to take a message that is here already.
    #[inline]
    pub(crate) fn post(&mut self, endpoint: EndpointIndex, posted: Posted) -> bool {
        let queues = self.at(endpoint);
        queues.posted.push_back(posted);
        !queues.unexpected.is_empty()
    }

    /// True if nothing waits at an endpoint, nor for the program.
    #[inline]
    pub(crate) fn is_idle(&self, endpoint: EndpointIndex) -> bool {
        let queues = &self.endpoints[usize::from(endpoint.number())];
        queues.posted.is_empty() && queues.unexpected.is_empty() && self.completions.is_empty()
    }

    /// Takes the posted receive with this token back.
    pub(crate) fn cancel(&mut self, endpoint: EndpointIndex, token: Token) -> Option<Posted> {
        let posted = &mut self.at(endpoint).posted;
        let at = posted.iter().position(|posted| posted.token == token)?;
        posted.remove(at)
    }
}

impl Matcher for InOrder {
    #[inline]
    fn match_message(&mut self, envelope: &Envelope) -> Option<Posted> {
        let queues = self.at(envelope.to);
        // What came earlier is entitled to it.
        if queues.unexpected.is_empty() { queues.posted.pop_front() } else { None }
    }

    fn store_unexpected(&mut self, message: Unexpected) {
        self.at(message.envelope.to).unexpected.push_back(message);
    }

    fn unexpected_complete(&mut self, envelope: &Envelope, bytes: Vec<u8>) {
        let waiting = self.at(envelope.to).unexpected.iter_mut().find(|message| {
            message.envelope.from == envelope.from && matches!(message.state, UnexpectedState::Arriving)
        });
        if let Some(message) = waiting {
            message.state = UnexpectedState::Whole(bytes);
        }
    }

    fn next_match(&mut self, endpoint: EndpointIndex) -> Option<(Posted, Unexpected)> {
        let Queues { posted, unexpected } = self.at(endpoint);
        if posted.is_empty() || matches!(unexpected.front()?.state, UnexpectedState::Arriving) {
            return None;
        }
        Some((posted.pop_front()?, unexpected.pop_front()?))
    }

    #[inline]
    fn complete(&mut self, completion: Completion) {
        self.completions.push_back(completion);
    }

    #[inline]
    fn is_busy(&self) -> bool {
        !self.completions.is_empty()
    }

    fn forget(&mut self, peer: DomainId) {
        for queues in &mut self.endpoints {
            queues.unexpected.retain(|message| {
                message.envelope.from.domain != peer || matches!(message.state, UnexpectedState::Whole(_))
            });
        }
    }

    fn close(&mut self, endpoint: EndpointIndex) -> (Vec<Posted>, Vec<Unexpected>) {
        let Queues { posted, unexpected } = std::mem::take(self.at(endpoint));
        (posted.into(), unexpected.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_receive_is_taken_once() {
        let at = EndpointIndex::new(3).expect("a number below the limit");
        let mut endpoints = InOrder::default();
        assert!(!endpoints.post(at, Posted { token: Token::new(1), buffer: vec![0; 4].into() }));
        assert!(endpoints.cancel(at, Token::new(2)).is_none());
        assert!(endpoints.cancel(at, Token::new(1)).is_some());
        assert!(endpoints.cancel(at, Token::new(1)).is_none());
    }
}
