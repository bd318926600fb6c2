//! The engine of one endpoint. This file has its state and its partners.
//!
//! - `receiving`: receives, arriving messages, unexpected messages
//! - `sending`: sends and connects
//! - `completing`: operations on a program's requests: test, cancel, forget, peek
//! - `ending`: the end of a partner or of the endpoint

mod completing;
mod ending;
mod receiving;
mod sending;

pub use completing::{BufferedError, Cancelled};
pub use ending::{DisconnectedPartner, DrainedRequests};
pub use receiving::{MatchEnvelope, Matched, PostError, PostOutcome, UnexpectedMessage};

use crate::filter::ContextIdBits;
use crate::hash::Seed;
use crate::list_arena::ListArena;
use crate::match_queue::MatchQueue;
use crate::partner::Partners;
use crate::slab::{Full, Slab};
use crate::status::{Status, StatusCode};
use crate::{PartnerId, RequestId};
use core::fmt;
use core::hash::Hash;

/// The transport's own data in receives and messages, which the engine stores and returns.
pub trait TransportTypes {
    /// The destination of a receive.
    type Receive;
    /// The bytes of an unexpected message, or the data needed to get them.
    type Message;
    /// The transport's address of a partner.
    type Address: Copy + Eq + Hash;
}

/// The operation that made a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// A receive.
    Receive,
    /// A send.
    Send,
    /// A connect.
    Connect,
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestState {
    /// A receive that no message has matched yet.
    Posted,
    /// The transport is working on the request.
    InProgress,
    /// The request is complete and in the queue of completed requests.
    Done,
}

/// A request in the slab.
#[derive(Debug)]
struct Request<R> {
    /// The status that the program will see; for a pending request, the part that is known so far.
    status: Status,
    kind: RequestKind,
    state: RequestState,
    /// The program has forgotten this request and will not test for it.
    is_forgotten: bool,
    /// The buffer of this send may be reused.
    is_buffered: bool,
    /// The length of a receive's buffer in bytes.
    length: u32,
    /// The position of the request in the order of posts.
    post_order: u64,
    /// The transport's data, while the receive is posted.
    receive: Option<R>,
}

/// The request does not exist: it was consumed, cancelled or forgotten, or never created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such request")]
pub struct UnknownRequest;

/// The partner does not exist: it was disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such partner")]
pub struct UnknownPartner;

/// The number of each kind of object in an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Receives that no message has matched yet.
    pub posted: usize,
    /// Unexpected messages.
    pub unexpected: usize,
    /// Pending requests: posted receives, and requests that the transport is working on. Includes forgotten ones.
    pub pending: usize,
    /// Completed requests that were not consumed.
    pub done: usize,
    /// Partners.
    pub partners: usize,
}

/// One MX endpoint.
pub struct Engine<C: TransportTypes> {
    contexts: ContextIdBits,
    partners: Partners<C::Address>,
    requests: Slab<Request<C::Receive>>,
    posted: crate::posted_queue::PostedQueue,
    done: MatchQueue,
    messages: Slab<UnexpectedMessage<C::Message>>,
    unexpected: MatchQueue,
    /// The links of the lists of messages by partner.
    by_source: ListArena<()>,
    /// The number of posts so far.
    post_order: u64,
}

impl<C: TransportTypes> Engine<C> {
    /// Creates an endpoint. `seed` is a random number that peers do not know, so that peers cannot choose match infos
    /// that collide.
    pub const fn new(contexts: ContextIdBits, seed: u64) -> Self {
        let seed = Seed::new(seed);
        Self {
            contexts,
            partners: Partners::new(seed),
            requests: Slab::new(),
            posted: crate::posted_queue::PostedQueue::new(seed),
            done: MatchQueue::new(seed),
            messages: Slab::new(),
            unexpected: MatchQueue::new(seed),
            by_source: ListArena::new(),
            post_order: 0,
        }
    }

    /// Returns the number of each kind of object.
    pub const fn counts(&self) -> Counts {
        Counts {
            posted: self.posted.len(),
            unexpected: self.unexpected.len(),
            pending: self.requests.len() - self.done.len(),
            done: self.done.len(),
            partners: self.partners.len(),
        }
    }

    /// Returns the partner with this address, and adds it if it is unknown.
    #[inline]
    pub fn partner(&mut self, address: C::Address) -> Result<PartnerId, Full> {
        self.partners.find_or_insert(address)
    }

    /// Returns the partner with this address, if it is known.
    pub fn find_partner(&self, address: C::Address) -> Option<PartnerId> {
        self.partners.find(address)
    }

    /// Returns all partners.
    pub fn partners(&self) -> impl Iterator<Item = (PartnerId, C::Address)> {
        self.partners.iter().map(|(index, partner)| (index, partner.address))
    }

    /// Returns the address of a partner.
    #[inline]
    pub fn address_of(&self, partner: PartnerId) -> Result<C::Address, UnknownPartner> {
        self.partners.get(partner).map(|partner| partner.address).ok_or(UnknownPartner)
    }

    /// Returns the program's context of a partner: 0 until it is set.
    pub fn partner_context(&self, partner: PartnerId) -> Result<usize, UnknownPartner> {
        self.partners.get(partner).map(|partner| partner.context).ok_or(UnknownPartner)
    }

    /// Sets the program's context of a partner.
    pub fn set_partner_context(&mut self, partner: PartnerId, context: usize) -> Result<(), UnknownPartner> {
        let partner = self.partners.get_mut(partner).ok_or(UnknownPartner)?;
        partner.context = context;
        Ok(())
    }

    /// Puts a new request into the slab.
    #[inline(always)]
    fn begin_request(&mut self, kind: RequestKind, state: RequestState, status: Status) -> Result<RequestId, Full> {
        self.begin_receive(kind, state, status, 0, None)
    }

    /// Begins a request, with the state that only a posted receive has.
    #[inline(always)]
    fn begin_receive(
        &mut self,
        kind: RequestKind,
        state: RequestState,
        status: Status,
        length: u32,
        receive: Option<C::Receive>,
    ) -> Result<RequestId, Full> {
        let post_order = self.post_order;
        let request =
            Request { status, kind, state, is_forgotten: false, is_buffered: false, length, post_order, receive };
        let id = self.requests.insert(request)?;
        self.post_order += 1;
        Ok(RequestId(id))
    }

    /// Ends a request that the transport was working on. A success with fewer bytes than the message becomes a
    /// truncation. Returns false if the request has ended already or does not exist.
    #[inline]
    fn finish(&mut self, id: RequestId, kind: RequestKind, code: StatusCode, xfer_length: u32) -> bool {
        let Some(request) = self.requests.get_mut(id.0) else { return false };
        if request.state != RequestState::InProgress || request.kind != kind {
            return false;
        }
        request.end(code, xfer_length);
        if request.is_forgotten {
            self.requests.remove(id.0);
        } else {
            self.done.push(id.0.slot(), request.status.match_info);
        }
        true
    }
}

impl<R> Request<R> {
    /// Ends a request. The caller queues it as completed, or removes it if the program has forgotten it.
    #[inline(always)]
    fn end(&mut self, code: StatusCode, xfer_length: u32) {
        let truncated = code == StatusCode::Success && xfer_length < self.status.msg_length;
        self.status.code = if truncated { StatusCode::Truncated } else { code };
        self.status.xfer_length = xfer_length;
        self.state = RequestState::Done;
    }
}

/// Formats the counts. The transport's types need no `Debug`.
impl<C: TransportTypes> fmt::Debug for Engine<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("contexts", &self.contexts).field("counts", &self.counts()).finish()
    }
}
