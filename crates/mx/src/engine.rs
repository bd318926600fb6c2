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
pub use ending::{Drained, Severed};
pub use receiving::{Envelope, Held, Matched, PostError, Posted};

use crate::filter::Contexts;
use crate::hash::Seed;
use crate::line::Line;
use crate::links::Links;
use crate::partner::Partners;
use crate::slab::{Full, Slab};
use crate::status::{Status, StatusCode};
use crate::{PartnerIndex, RequestId};
use core::fmt;
use core::hash::Hash;

/// What travels with receives and messages: the transport's own types, which the engine keeps and hands on.
pub trait Cargo {
    /// Where a receive wants its bytes.
    type Receive;
    /// The bytes of an unexpected message, or the way to them.
    type Message;
    /// A partner, as the transport knows it.
    type Address: Copy + Eq + Hash;
}

/// What a request was made by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A receive.
    Receive,
    /// A send.
    Send,
    /// A connect.
    Connect,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A receive that no message has come for.
    Posted,
    /// The transport is at it.
    Underway,
    /// Over, and in the queue of those that are.
    Done,
}

/// A request in the slab.
#[derive(Debug)]
struct Request<R> {
    /// What the program will see; of a request that is not over, what is known of it so far.
    status: Status,
    kind: Kind,
    stage: Stage,
    /// Nobody will ask for it.
    forgotten: bool,
    /// The buffer of this send may be used again.
    buffered: bool,
    /// Bytes that a receive has room for.
    length: u32,
    /// Requests have the order of their posts.
    born: u64,
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
pub struct Engine<C: Cargo> {
    contexts: Contexts,
    partners: Partners<C::Address>,
    requests: Slab<Request<C::Receive>>,
    posted: crate::posted::Posted,
    done: Line,
    messages: Slab<Held<C::Message>>,
    unexpected: Line,
    /// Links of the messages of each partner.
    by_source: Links<()>,
    /// Posts so far.
    born: u64,
}

impl<C: Cargo> Engine<C> {
    /// A new endpoint. `seed` is a random number that peers do not know: it keeps them from choosing match infos that collide.
    pub const fn new(contexts: Contexts, seed: u64) -> Self {
        let seed = Seed::new(seed);
        Self {
            contexts,
            partners: Partners::new(seed),
            requests: Slab::new(),
            posted: crate::posted::Posted::new(seed),
            done: Line::new(seed),
            messages: Slab::new(),
            unexpected: Line::new(seed),
            by_source: Links::new(),
            born: 0,
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
    pub fn partner(&mut self, address: C::Address) -> Result<PartnerIndex, Full> {
        self.partners.find_or_add(address)
    }

    /// The partner with this address, if it is known.
    pub fn find_partner(&self, address: C::Address) -> Option<PartnerIndex> {
        self.partners.find(address)
    }

    /// All partners.
    pub fn partners(&self) -> impl Iterator<Item = (PartnerIndex, C::Address)> {
        self.partners.iter().map(|(index, partner)| (index, partner.address))
    }

    /// Where a partner is.
    #[inline]
    pub fn address_of(&self, partner: PartnerIndex) -> Result<C::Address, UnknownPartner> {
        self.partners.get(partner).map(|partner| partner.address).ok_or(UnknownPartner)
    }

    /// The program's word about a partner: 0 until it is set.
    pub fn partner_context(&self, partner: PartnerIndex) -> Result<usize, UnknownPartner> {
        self.partners.get(partner).map(|partner| partner.context).ok_or(UnknownPartner)
    }

    /// Sets the program's word about a partner.
    pub fn set_partner_context(&mut self, partner: PartnerIndex, context: usize) -> Result<(), UnknownPartner> {
        let partner = self.partners.get_mut(partner).ok_or(UnknownPartner)?;
        partner.context = context;
        Ok(())
    }

    /// Puts a new request into the slab.
    #[inline(always)]
    fn begin(&mut self, kind: Kind, stage: Stage, status: Status) -> Result<RequestId, Full> {
        self.begin_receive(kind, stage, status, 0, None)
    }

    /// The same, with what only a posted receive has.
    #[inline(always)]
    fn begin_receive(
        &mut self,
        kind: Kind,
        stage: Stage,
        status: Status,
        length: u32,
        receive: Option<C::Receive>,
    ) -> Result<RequestId, Full> {
        let born = self.born;
        let request = Request { status, kind, stage, forgotten: false, buffered: false, length, born, receive };
        let id = self.requests.insert(request)?;
        self.born += 1;
        Ok(RequestId(id))
    }

    /// Ends a request that the transport is at. A success that moved fewer bytes than the message has is a truncation. False if it
    /// is over already, or no such request.
    #[inline]
    fn finish(&mut self, id: RequestId, kind: Kind, code: StatusCode, xfer_length: u32) -> bool {
        let Some(request) = self.requests.get_mut(id.0) else { return false };
        if request.stage != Stage::Underway || request.kind != kind {
            return false;
        }
        request.end(code, xfer_length);
        if request.forgotten {
            self.requests.remove(id.0);
        } else {
            self.done.push(id.0.slot(), request.status.match_info);
        }
        true
    }
}

impl<R> Request<R> {
    /// It is over, and to be queued or, if nobody will ask for it, removed.
    #[inline(always)]
    fn end(&mut self, code: StatusCode, xfer_length: u32) {
        let truncated = code == StatusCode::Success && xfer_length < self.status.msg_length;
        self.status.code = if truncated { StatusCode::Truncated } else { code };
        self.status.xfer_length = xfer_length;
        self.stage = Stage::Done;
    }
}

/// How many there are of everything; what they carry may be anything.
impl<C: Cargo> fmt::Debug for Engine<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("contexts", &self.contexts).field("counts", &self.counts()).finish()
    }
}
