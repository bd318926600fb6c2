//! Where the ordinary path meets the wire: an MX endpoint of this host, as the daemon serves it, and the endpoints of other hosts
//! that it talks to. To its domain each of these is a *stranger*: a peer with a number of its own, reached by records on the domain's
//! ring like any other peer that has no channel.
//!
//! ```text
//!   domain's ring          Gateway                                                  other hosts
//!   Eager, Start, More ──► take ──► sending ── bytes, kept until acknowledged ─┐
//!   Announce ────────────►          │ pages of the domain, or asked for (Pull) ├► net::Endpoint ──► transmit
//!   Pull, Taken ─────────►          arriving ── in order, whole, by credit ◄───┘        ▲
//!                deliver ◄──────────┘                                              receive ◄── frames
//! ```
//!
//! It decides, and does no I/O: records go out through [`Domain`], frames are made by whoever asks [`Gateway::transmit`], which finds
//! the bytes of a frame by [`Gateway::data`]. What it holds is bounded, both ways: what a domain sends is taken as long as not too
//! much of it is unacknowledged; what comes for a domain that does not read is refused after some MiB, and sent again by its sender.
//! Only announcements of long messages, which are small, are as many as the domain makes: to hold back its credit for them would
//! hold up those that are asked for.
#![forbid(unsafe_code)]

mod arriving;
mod counts;
mod events;
mod fetching;
mod sending;
mod stranger;
mod stream;

pub use arriving::{HELD_BYTES_MAX, PIECE_BYTES_MAX};
pub use counts::Counts;
pub use fetching::FETCHED_BYTES_MAX;
pub use sending::{STREAMS_MAX, UNDER_WAY_BYTES_MAX};

use arriving::Incoming;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route};
use isthmus_layout::{DomainId, EndpointIndex, RegionId};
use isthmus_mx::net::Transmit;
use isthmus_mx::net::{self, Address, CannotConnect, ConnectId, Endpoint, Ignored, IncomingId, SendId, Time};
use isthmus_mx::wire::{EndpointNumber, Packet, PeerIndex};
use isthmus_shm::rehome::PeerRegion;
use sending::Sending;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use stranger::{Place, Stranger, Strangers};

/// What a gateway wants done on the side of its domain.
pub trait Domain {
    /// Puts a record with its bytes into the domain's ring, or behind what waits for it.
    fn deliver(&mut self, route: Route, record: &Record<'_>, bytes: &[u8]);
    /// Gives the domain credit back for what it sent to a stranger. A few KiB of it may wait for something else that the domain gets.
    fn credit(&mut self, route: Route, bytes: u32);
    /// The same at once: a send of the domain's is over with it.
    fn credit_now(&mut self, route: Route, bytes: u32) {
        self.credit(route, bytes);
    }
    /// A number for a stranger at that address. None where there are no more.
    fn meet(&mut self, address: Address) -> Option<DomainId>;
    /// A stranger is nobody any more: what was delivered before comes before this. Messages of it that are whole are delivered
    /// first, so this takes as long as the domain does.
    fn part(&mut self, stranger: DomainId, reason: Reason);
    /// The answer to [`Gateway::connect`].
    fn connected(&mut self, request: u64, outcome: Result<DomainId, Reason>);
}

/// A record that no correct library sends to a stranger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misplaced {
    /// A message begins before the one before it is whole.
    #[error("a message begins while another one is not whole")]
    Begun,
    /// More of a message than it has.
    #[error("a piece of {piece} bytes for a message that has {left} left")]
    TooLong {
        /// Of the piece.
        piece: u32,
        /// Of the message.
        left: u32,
    },
    /// Longer than what goes in pieces.
    #[error("a message of {0} bytes begins without being announced")]
    NotAnnounced(u32),
    /// There are no channels to strangers, so nobody changes paths.
    #[error("a change of paths to somebody who can be reached by one only")]
    Switch,
}

/// One MX endpoint of this host.
#[derive(Debug)]
pub struct Gateway {
    net: Endpoint,
    /// The domain's endpoint that has the number.
    at: EndpointIndex,
    strangers: Strangers,
    sends: HashMap<SendId, Sending>,
    next_send: u64,
    /// Cost of what was taken from the domain and is not acknowledged.
    under_way: u32,
    /// Somebody's credit is held back because of others.
    holds_back: bool,
    /// Bytes of announced messages that are here: ends of those in memory of the domain's, and what was fetched from it.
    edges: usize,
    streamed: usize,
    /// Messages that are fetched from the domain piece by piece, and those that wait for their turn.
    streams: usize,
    waiting_streams: VecDeque<SendId>,
    incoming: HashMap<IncomingId, Incoming>,
    /// Bytes that are kept until the domain has room for them, and those of them whose messages' turn has not come.
    held: usize,
    early: usize,
    /// Bytes of long messages that the domain wants and has no room for.
    fetched: usize,
    /// Bytes that are being fetched before the domain has room for them, and messages that wait until these are fewer.
    ahead: usize,
    waiting_fetches: VecDeque<IncomingId>,
    regions: HashMap<(DomainId, RegionId), Arc<PeerRegion>>,
    connects: HashMap<ConnectId, u64>,
    next_connect: u64,
    /// The domain is gone; what it has sent is still delivered.
    closed: bool,
}

impl Gateway {
    /// For the endpoint `at` of a domain, which is given so much of each stranger's before it gives credit back.
    pub fn new(setup: net::Setup, at: EndpointIndex, credit: u32) -> Self {
        Self {
            net: Endpoint::new(setup),
            at,
            strangers: Strangers::new(credit),
            sends: HashMap::new(),
            next_send: 1,
            under_way: 0,
            holds_back: false,
            edges: 0,
            streamed: 0,
            streams: 0,
            waiting_streams: VecDeque::new(),
            incoming: HashMap::new(),
            held: 0,
            fetched: 0,
            early: 0,
            ahead: 0,
            waiting_fetches: VecDeque::new(),
            regions: HashMap::new(),
            connects: HashMap::new(),
            next_connect: 1,
            closed: false,
        }
    }

    /// Its number on the board.
    pub fn number(&self) -> EndpointNumber {
        self.net.setup().number
    }

    /// Packets that changed nothing, by reason.
    pub fn ignored(&self) -> &net::IgnoredCounts {
        self.net.ignored()
    }

    /// What it has carried.
    pub fn carried(&self) -> &net::Carried {
        self.net.carried()
    }

    /// Connects to an endpoint of another host. [`Domain::connected`] answers.
    pub fn connect(&mut self, now: Time, to: Address, key: u32, request: u64, domain: &mut impl Domain) {
        let id = ConnectId(self.next_connect);
        self.next_connect += 1;
        match self.net.connect(now, to, key, id) {
            Ok(()) => {
                self.connects.insert(id, request);
            }
            Err(CannotConnect::TooManyPartners | CannotConnect::TooManyConnects) => {
                domain.connected(request, Err(Reason::MxPartnersFull));
            }
        }
        self.settle(now, None, domain);
    }

    /// The domain lets a stranger's messages be sent straight out of memory of its.
    pub fn grant(&mut self, stranger: DomainId, region: RegionId, memory: Arc<PeerRegion>) {
        if self.strangers.find(stranger).is_some_and(|place| !self.strangers[place].gone) {
            self.regions.insert((stranger, region), memory);
        }
    }

    /// The domain takes that back. What is being sent goes on.
    pub fn revoke(&mut self, stranger: DomainId, region: RegionId) {
        self.regions.remove(&(stranger, region));
    }

    /// True if the domain knows somebody by this number.
    pub fn knows(&self, stranger: DomainId) -> bool {
        self.strangers.find(stranger).is_some()
    }

    /// A record of the domain's for a stranger, with its bytes. What it cost is given back by [`Domain::credit`], at once or when
    /// there is room for more.
    pub fn take(
        &mut self,
        now: Time,
        stranger: DomainId,
        record: &Record<'_>,
        bytes: &[u8],
        domain: &mut impl Domain,
    ) -> Result<(), Misplaced> {
        let Some(place) = self.strangers.find(stranger) else { return Ok(()) };
        let taken = self.take_record(now, place, record, bytes, domain);
        self.settle(now, None, domain);
        taken
    }

    /// The domain has taken so much of what a stranger sent.
    pub fn give(&mut self, now: Time, stranger: DomainId, bytes: u32, domain: &mut impl Domain) {
        let Some(place) = self.strangers.find(stranger) else { return };
        self.strangers[place].give(bytes);
        self.pump(now, place, domain);
        self.settle(now, None, domain);
    }

    /// A packet for this endpoint.
    pub fn receive(
        &mut self,
        now: Time,
        from: PeerIndex,
        packet: &Packet<&[u8]>,
        domain: &mut impl Domain,
    ) -> Result<(), Ignored> {
        let received = self.net.receive(now, from, packet);
        self.settle(now, packet.data().copied(), domain);
        received
    }

    /// When [`Self::tick`] is to be called, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        self.net.next_deadline()
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time, domain: &mut impl Domain) {
        self.net.tick(now);
        self.settle(now, None, domain);
    }

    /// The next packet to send, if there is one. [`Self::data`] has its bytes.
    pub fn transmit(&mut self, now: Time) -> Option<Transmit> {
        self.net.transmit(now)
    }

    /// The domain is gone. What it has sent is still brought to where it belongs, until [`Self::is_over`]; nothing more comes in.
    pub fn close(&mut self, now: Time) {
        self.closed = true;
        self.net.set_accepting(false);
        self.net.flush(now);
        self.incoming.clear();
        (self.held, self.early, self.ahead, self.fetched) = (0, 0, 0, 0);
        self.regions.clear();
    }

    /// After [`Self::close`]: nothing is left to bring anywhere.
    pub fn is_over(&self) -> bool {
        self.closed && self.sends.values().all(Sending::needs_the_domain) && !self.net.has_unacknowledged()
    }

    /// Whether long messages are being fetched from other hosts.
    pub fn is_fetching(&self) -> bool {
        self.net.is_fetching()
    }

    /// So many bytes of them may be on their way at a time.
    pub fn set_fetch_bytes_max(&mut self, bytes: u32) {
        self.net.set_fetch_bytes_max(bytes);
    }

    fn route(&self, stranger: DomainId) -> Route {
        let first = EndpointIndex::new(0).expect("the first endpoint is one");
        Route { from: first, to: self.at, epoch: 0, peer: Some(stranger) }
    }

    fn stranger(&self, place: Place) -> &Stranger {
        &self.strangers[place]
    }
}

/// Why somebody is not, or not any more, where a domain thought.
fn reason_of(code: isthmus_mx::StatusCode) -> Reason {
    use isthmus_mx::StatusCode;
    match code {
        StatusCode::BadKey => Reason::MxBadKey,
        StatusCode::EndpointClosed => Reason::MxEndpointClosed,
        StatusCode::BadEndpoint => Reason::MxEndpointBeyond,
        StatusCode::Timeout | StatusCode::EndpointUnreachable => Reason::MxUnreachable,
        StatusCode::BadSession => Reason::MxSevered,
        _ => Reason::MxBroken,
    }
}
