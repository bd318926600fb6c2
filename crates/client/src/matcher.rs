//! Where an arriving message goes: the question that a protocol on top of this library answers.
//!
//! ```text
//!   a message arrives ── take ──► a posted receive: its bytes go there, then `complete`
//!                          └────► none: `store_unexpected` keeps what came
//!   a receive is posted ── the matcher finds what it holds ──► Domain::give: copied, or fetched, then `complete`
//!   a held message that was still arriving ── whole ──► next_match
//! ```
//!
//! [`InOrder`](crate::InOrder) is the simplest: the oldest receive takes the oldest message.

use crate::error::Refusal;
use crate::mx::MxConnecting;
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::record::{MappablePages, Serial};
use isthmus_layout::{DomainId, EndpointAddress, reason::Reason};
use isthmus_shm::Buffer;

/// Names an operation from its post to its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// A matcher's own number for an operation; it sees to it that no two are under way with the same one.
    #[inline]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[inline]
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
    Sent {
        /// Bytes that the receiver has room for, where it has said so: it does for announced messages. Else all of them.
        taken: u64,
    },
    /// A message.
    Received {
        /// The endpoint that sent the message.
        from: EndpointAddress,
        /// The number that the sender gave.
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
    /// Names it in its completion.
    pub token: Token,
    /// Where the message goes.
    pub buffer: Buffer,
}

impl Posted {
    /// Its completion, with the message of this envelope in its buffer.
    #[inline]
    pub fn completed_by(self, envelope: &Envelope) -> Completion {
        let outcome = Outcome::Received { from: envelope.from, tag: envelope.tag, len: envelope.len };
        Completion { token: self.token, endpoint: envelope.to, buffer: self.buffer, outcome }
    }
}

/// The properties of a message that are known when it begins to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The endpoint that sent the message.
    pub from: EndpointAddress,
    /// The endpoint it is for.
    pub to: EndpointIndex,
    /// The number that the sender gave.
    pub tag: u64,
    /// Bytes of the message.
    pub len: u64,
}

/// A message that found no posted receive.
#[derive(Debug)]
pub struct Unexpected {
    /// The envelope of the message.
    pub envelope: Envelope,
    /// Where its bytes are.
    pub state: UnexpectedState,
}

/// Where the bytes of an unexpected message are.
#[derive(Debug)]
pub enum UnexpectedState {
    /// All bytes have arrived.
    Whole(Vec<u8>),
    /// The bytes are arriving; [`Matcher::unexpected_complete`] delivers them. A domain sends one such message at a time.
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
    /// A whole short message arrives for an open endpoint: true if the matcher has dealt with it, bytes and all. For protocols that
    /// decide by the first bytes of a message. `words` hold them, the last one padded.
    ///
    /// Not every short message comes this way: one from this domain itself is taken or held as any other.
    #[inline]
    fn try_receive_eager(&mut self, _envelope: &Envelope, _words: &[u32]) -> bool {
        false
    }

    /// A message arrives for an open endpoint: the receive that takes it, which thereby is no longer posted.
    fn match_message(&mut self, envelope: &Envelope) -> Option<Posted>;

    /// Keeps a message for which [`Self::match_message`] had no receive.
    fn store_unexpected(&mut self, message: Unexpected);

    /// The bytes of a held message that was [`UnexpectedState::Arriving`] are here.
    fn unexpected_complete(&mut self, envelope: &Envelope, bytes: Vec<u8>);

    /// A receive and a held message that now belong together, if there are such; asked for until there are none.
    fn next_match(&mut self, endpoint: EndpointIndex) -> Option<(Posted, Unexpected)>;

    /// A receive has its message.
    #[inline]
    fn received(&mut self, posted: Posted, envelope: &Envelope) {
        self.complete(posted.completed_by(envelope));
    }

    /// An operation is over.
    fn complete(&mut self, completion: Completion);

    /// True if the program should run before more records are taken from channels.
    fn is_busy(&self) -> bool;

    /// Forgets messages that the peer announced or had begun to send, because they will not arrive. Complete messages stay.
    fn forget(&mut self, peer: DomainId);

    /// The peer is gone, and all its records have been taken. [`Self::forget`] was called before.
    fn peer_gone(&mut self, _peer: DomainId) {}

    /// The daemon has answered [`Domain::mx_connect_start`](crate::Domain::mx_connect_start).
    fn mx_connected(&mut self, _connecting: MxConnecting, _outcome: Result<EndpointAddress, Refusal>) {}

    /// An endpoint is closed: its posted receives and held messages.
    fn close(&mut self, endpoint: EndpointIndex) -> (Vec<Posted>, Vec<Unexpected>);
}
