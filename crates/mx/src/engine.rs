//! The engine of one endpoint. Here: what it is made of, and its partners.
//!
//! - `receiving`: receives, arriving messages, unexpected messages
//! - `sending`: sends and connects
//! - `completing`: what a program does with a request: test, cancel, forget, look
//! - `ending`: a partner dies or is disconnected; the endpoint is closed

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
    /// Where a receive wants its bytes.
    type Receive;
    /// The bytes of an unexpected message, or the way to them.
    type Message;
    /// A partner, as the transport knows it.
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

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestState {
    /// A receive that no message has come for.
    Posted,
    /// The transport is at it.
    InProgress,
    /// Over, and in the queue of those that are.
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
    /// The buffer of this send may be used again.
    is_buffered: bool,
    /// Bytes that a receive has room for.
    length: u32,
    /// Requests have the order of their posts.
    post_order: u64,
    /// Only of a posted receive.
    receive: Option<R>,
}

/// No such request: it was consumed, cancelled or forgotten, or never made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such request")]
pub struct UnknownRequest;

/// No such partner: it was disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such partner")]
pub struct UnknownPartner;

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Receives that no message has come for.
    pub posted: usize,
    /// Messages that no receive has taken.
    pub unexpected: usize,
    /// Requests that are not over: posted receives, and what the transport is at. Forgotten ones too.
    pub pending: usize,
    /// Requests that are over and not consumed.
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
    /// Links of the messages of each partner.
    by_source: ListArena<()>,
    /// Posts so far.
    post_order: u64,
}

impl<C: TransportTypes> Engine<C> {
    /// A new endpoint. `seed` is a random number that peers do not know: it keeps them from choosing match infos that collide.
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

    /// How many there are of everything.
    pub const fn counts(&self) -> Counts {
        Counts {
            posted: self.posted.len(),
            unexpected: self.unexpected.len(),
            pending: self.requests.len() - self.done.len(),
            done: self.done.len(),
            partners: self.partners.len(),
        }
    }

    /// The partner with this address; a new one if it is not known yet.
    #[inline]
    pub fn partner(&mut self, address: C::Address) -> Result<PartnerId, Full> {
        self.partners.find_or_insert(address)
    }

    /// The partner with this address, if it is known.
    pub fn find_partner(&self, address: C::Address) -> Option<PartnerId> {
        self.partners.find(address)
    }

    /// All partners.
    pub fn partners(&self) -> impl Iterator<Item = (PartnerId, C::Address)> {
        self.partners.iter().map(|(index, partner)| (index, partner.address))
    }

    /// Where a partner is.
    #[inline]
    pub fn address_of(&self, partner: PartnerId) -> Result<C::Address, UnknownPartner> {
        self.partners.get(partner).map(|partner| partner.address).ok_or(UnknownPartner)
    }

    /// The program's word about a partner: 0 until it is set.
    pub fn partner_context(&self, partner: PartnerId) -> Result<usize, UnknownPartner> {
        self.partners.get(partner).map(|partner| partner.context).ok_or(UnknownPartner)
    }

    /// Sets the program's word about a partner.
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

    /// Ends a request that the transport is at. A success that moved fewer bytes than the message has is a truncation. False if it
    /// is over already, or no such request.
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

/// How many there are of everything; what they carry may be anything.
impl<C: TransportTypes> fmt::Debug for Engine<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("contexts", &self.contexts).field("counts", &self.counts()).finish()
    }
}
