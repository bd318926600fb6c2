//! The matcher: a protocol on top of this library decides in it which receive an arriving message goes to.
//!
//! ```text
//!   a message arrives ── take ──► a posted receive: its bytes go there, then `complete`
//!                          └────► none: `store_unexpected` keeps what came
//!   a receive is posted ── the matcher finds what it holds ──► Domain::give: copied, or fetched, then `complete`
//!   a held message that was still arriving ── whole ──► next_match
//! ```
//!
//! [`InOrder`](crate::InOrder) is the simplest matcher: the oldest receive takes the oldest message.

use crate::error::Refusal;
use isthmus_layout::control::{RequestSerial, ToClient};
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::record::{MappablePages, Serial};
use isthmus_layout::{DomainId, EndpointAddress, reason::Reason};
use isthmus_shm::Buffer;

/// The identifier of an operation, from its post to its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// Creates a token from a matcher's own number. The matcher ensures that no two pending operations have the same
    /// number.
    #[inline]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A completed operation, with its buffer.
#[derive(Debug)]
pub struct Completion {
    /// The token of the operation.
    pub token: Token,
    /// The endpoint that the operation was posted to.
    pub endpoint: EndpointIndex,
    /// The buffer of the operation.
    pub buffer: Buffer,
    /// The result of the operation.
    pub outcome: Outcome,
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A message was sent. Its buffer may be reused. The message arrives unless the peer is gone.
    Sent {
        /// The number of bytes that the receiver took, as it reports for announced messages. For all others, the length
        /// of the message.
        taken: u64,
    },
    /// A message was received.
    Received {
        /// The endpoint that sent the message.
        from: EndpointAddress,
        /// The tag that the sender gave.
        tag: u64,
        /// The length of the message in bytes. If the buffer is shorter, it holds the first ones.
        len: u64,
    },
    /// The operation was cancelled, or its endpoint closed, before anything happened.
    Cancelled,
    /// The operation failed.
    Failed(Reason),
}

/// A posted receive.
#[derive(Debug)]
pub struct Posted {
    /// The token of the completion.
    pub token: Token,
    /// The buffer for the message.
    pub buffer: Buffer,
}

impl Posted {
    /// Returns the completion for a message with this envelope.
    #[inline]
    pub fn completed_by(self, envelope: &Envelope) -> Completion {
        let outcome = Outcome::Received { from: envelope.from, tag: envelope.tag, len: envelope.len };
        Completion { token: self.token, endpoint: envelope.to, buffer: self.buffer, outcome }
    }
}

/// The description of a message, known when it begins to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The endpoint that sent the message.
    pub from: EndpointAddress,
    /// The endpoint that the message is for.
    pub to: EndpointIndex,
    /// The tag that the sender gave.
    pub tag: u64,
    /// The length of the message in bytes.
    pub len: u64,
}

/// An unexpected message: no posted receive matched it.
#[derive(Debug)]
pub struct Unexpected {
    /// The envelope of the message.
    pub envelope: Envelope,
    /// The location of its bytes.
    pub state: UnexpectedState,
}

/// The location of an unexpected message's bytes.
#[derive(Debug)]
pub enum UnexpectedState {
    /// All bytes have arrived.
    Whole(Vec<u8>),
    /// The bytes are arriving; [`Matcher::unexpected_complete`] delivers them. Each domain sends at most one such
    /// message at a time.
    Arriving,
    /// The bytes are at the sender, which waits for a receive.
    Announced(Announced),
}

/// The data that a receiver needs to fetch an announced message.
#[derive(Debug)]
pub struct Announced {
    pub(crate) serial: Serial,
    pub(crate) mapped: Option<MappablePages>,
    pub(crate) edges: Vec<u8>,
}

/// Decides which receive an arriving message goes to, and keeps those that no receive matches.
pub trait Matcher {
    /// Receives a whole short message for an open endpoint. Returns true if the matcher has handled the message and its
    /// bytes. For protocols that decide by the first bytes of a message. `words` holds the bytes, and the last word is
    /// padded.
    ///
    /// Some short messages do not pass this function: a message of this domain to itself is matched or kept like any
    /// other.
    #[inline]
    fn try_receive_eager(&mut self, _envelope: &Envelope, _words: &[u32]) -> bool {
        false
    }

    /// Matches an arriving message for an open endpoint. The returned receive is no longer posted.
    fn match_message(&mut self, envelope: &Envelope) -> Option<Posted>;

    /// Keeps a message for which [`Self::match_message`] returned no receive.
    fn store_unexpected(&mut self, message: Unexpected);

    /// Delivers the bytes of a message that was kept as [`UnexpectedState::Arriving`].
    fn unexpected_complete(&mut self, envelope: &Envelope, bytes: Vec<u8>);

    /// Returns a receive and a kept message that match. The caller repeats this until it returns `None`.
    fn next_match(&mut self, endpoint: EndpointIndex) -> Option<(Posted, Unexpected)>;

    /// Handles a receive that has its message.
    #[inline]
    fn received(&mut self, posted: Posted, envelope: &Envelope) {
        self.complete(posted.completed_by(envelope));
    }

    /// Handles a completed operation.
    fn complete(&mut self, completion: Completion);

    /// Returns true if the program should run before more records are taken from channels.
    fn is_busy(&self) -> bool;

    /// Forgets incomplete and announced messages of a peer, because they will not arrive. Complete messages stay.
    fn forget(&mut self, peer: DomainId);

    /// Handles the end of a peer after all its records have been taken. [`Self::forget`] was called before.
    fn peer_gone(&mut self, _peer: DomainId) {}

    /// Handles the daemon's reply to [`Domain::request_later`](crate::Domain::request_later).
    fn answered(&mut self, _serial: RequestSerial, _reply: Result<ToClient, Refusal>) {}

    /// Closes an endpoint, and returns its posted receives and kept messages.
    fn close(&mut self, endpoint: EndpointIndex) -> (Vec<Posted>, Vec<Unexpected>);
}
