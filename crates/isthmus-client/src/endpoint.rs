//! Endpoints: receives that were posted, messages that nobody waited for yet, completions.
//!
//! Messages match receives in order: the oldest posted receive takes the oldest message. More elaborate matching belongs to the
//! protocols that stand on this library.

use isthmus_layout::control::Name;
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::record::{Mapped, Serial};
use isthmus_layout::{DomainId, EndpointAddress, reason::Reason};
use isthmus_shm::Buffer;
use std::collections::VecDeque;

/// Names an operation from its post to its completion. Never used twice by a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(crate) u64);

impl Token {
    /// The number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// An operation is over; its buffer comes back.
#[derive(Debug)]
pub struct Completion {
    /// Which.
    pub token: Token,
    /// The endpoint it was posted to.
    pub endpoint: EndpointIndex,
    /// Its buffer.
    pub buffer: Buffer,
    /// How it ended.
    pub outcome: Outcome,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The buffer may be used again; the message arrives, or the peer is gone.
    Sent,
    /// A message.
    Received {
        /// Who sent it.
        from: EndpointAddress,
        /// The sender's word.
        tag: u64,
        /// Bytes of the message. Where the buffer is shorter, it holds the first ones.
        len: u64,
    },
    /// The operation was cancelled, or its endpoint closed, before anything happened.
    Cancelled,
    /// It did not work.
    Failed(Reason),
}

/// A posted receive.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) token: Token,
    pub(crate) buffer: Buffer,
}

/// What is known of a message when it begins to arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) from: EndpointAddress,
    pub(crate) to: EndpointIndex,
    pub(crate) tag: u64,
    pub(crate) len: u64,
}

/// A message that found no posted receive.
#[derive(Debug)]
pub(crate) struct Unexpected {
    pub(crate) envelope: Envelope,
    pub(crate) state: UnexpectedState,
}

#[derive(Debug)]
pub(crate) enum UnexpectedState {
    /// All of it, in memory of ours.
    Whole(Vec<u8>),
    /// Its pieces are still arriving; the peer's `started` holds them.
    Arriving,
    /// It waits at its sender.
    Announced { serial: Serial, mapped: Option<Mapped>, edges: Vec<u8> },
}

/// An open endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) label: Option<Name>,
    pub(crate) posted: VecDeque<Posted>,
    pub(crate) unexpected: VecDeque<Unexpected>,
}

impl Endpoint {
    pub(crate) fn new(label: Option<Name>) -> Self {
        Self { label, posted: VecDeque::new(), unexpected: VecDeque::new() }
    }

    /// Takes the posted receive with this token back.
    pub(crate) fn cancel(&mut self, token: Token) -> Option<Posted> {
        let at = self.posted.iter().position(|posted| posted.token == token)?;
        self.posted.remove(at)
    }

    /// Drops what `peer` announced or had begun to send: it will not come any more. What arrived whole stays.
    pub(crate) fn forget(&mut self, peer: DomainId) {
        self.unexpected.retain(|message| {
            message.envelope.from.domain != peer || matches!(message.state, UnexpectedState::Whole(_))
        });
    }
}

/// Endpoints and the queue of completions: where arriving messages go.
#[derive(Debug)]
pub(crate) struct Endpoints {
    open: [Option<Box<Endpoint>>; isthmus_layout::limits::ENDPOINTS_MAX as usize],
    pub(crate) completions: VecDeque<Completion>,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self { open: Default::default(), completions: VecDeque::with_capacity(64) }
    }
}

impl Endpoints {
    pub(crate) fn open(&mut self, index: EndpointIndex, label: Option<Name>) {
        self.open[usize::from(index.number())] = Some(Box::new(Endpoint::new(label)));
    }

    pub(crate) fn close(&mut self, index: EndpointIndex) -> Option<Box<Endpoint>> {
        self.open[usize::from(index.number())].take()
    }

    #[inline]
    pub(crate) fn at(&mut self, index: EndpointIndex) -> Option<&mut Endpoint> {
        self.open[usize::from(index.number())].as_deref_mut()
    }

    pub(crate) fn all(&mut self) -> impl Iterator<Item = (EndpointIndex, &mut Endpoint)> {
        let number = |at| EndpointIndex::new(at as u8).expect("there are as many places as numbers");
        self.open.iter_mut().enumerate().filter_map(move |(at, open)| Some((number(at), open.as_deref_mut()?)))
    }

    /// The oldest posted receive of an endpoint, if nothing that came earlier is entitled to it.
    #[inline]
    pub(crate) fn take_posted(&mut self, index: EndpointIndex) -> Option<Posted> {
        let endpoint = self.at(index)?;
        if endpoint.unexpected.is_empty() { endpoint.posted.pop_front() } else { None }
    }

    /// A receive is over.
    #[inline]
    pub(crate) fn received(&mut self, posted: Posted, envelope: &Envelope) {
        isthmus_shm::step!("received");
        let outcome = Outcome::Received { from: envelope.from, tag: envelope.tag, len: envelope.len };
        self.complete(posted, envelope.to, outcome);
    }

    #[inline]
    pub(crate) fn complete(&mut self, posted: Posted, endpoint: EndpointIndex, outcome: Outcome) {
        self.completions.push_back(Completion { token: posted.token, endpoint, buffer: posted.buffer, outcome });
    }
}

/// Copies message words, as they came in a record, into bytes; as many as there is room for.
#[inline]
pub(crate) fn copy_words(words: &[u32], into: &mut [u8]) {
    let (whole, rest) = into.as_chunks_mut::<4>();
    for (bytes, word) in whole.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    if let Some(word) = words.get(whole.len()) {
        rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_fill_bytes_of_any_length() {
        let words = [u32::from_le_bytes(*b"abcd"), u32::from_le_bytes(*b"efgh")];
        for len in 0..=8 {
            let mut bytes = vec![0; len];
            copy_words(&words, &mut bytes);
            assert_eq!(bytes, b"abcdefgh"[..len]);
        }
    }

    #[test]
    fn a_cancelled_receive_is_taken_once() {
        let mut endpoint = Endpoint::new(None);
        endpoint.posted.push_back(Posted { token: Token(1), buffer: vec![0; 4].into() });
        assert!(endpoint.cancel(Token(2)).is_none());
        assert!(endpoint.cancel(Token(1)).is_some());
        assert!(endpoint.cancel(Token(1)).is_none());
    }
}
