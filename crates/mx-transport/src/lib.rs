//! Maps records of a domain ring to sends of the MX engine and back: an MX endpoint of this host, as the daemon serves it, and the
//! endpoints of other hosts that it talks to. To its domain each of these is a *remote peer*: a peer with a number of its own, reached
//! by records on the domain's ring like any other peer that has no channel.
//!
//! ```text
//!   domain's ring              MxTransport                                              other hosts
//!   Eager, First-, NextFragment ──► sending ── bytes, kept until acknowledged ─┐
//!   Announce ─────────────────────► │ pages of the domain, or asked for (Pull) ├► net::Endpoint ──► transmit
//!   Pull, Completed ──────────────► receiving ─ in order, whole, by credit ◄───┘        ▲
//!                deliver ◄──────────┘                                              receive ◄── frames
//!   credit ───────────────────────► notify: the end of a long message, which its sender waits for
//! ```
//!
//! It decides, and does no I/O: records go out through [`LocalPeer`], frames are made by the caller of [`MxTransport::transmit`], which finds
//! the bytes of a frame by [`MxTransport::data`]. What it holds is bounded, both ways: what a domain sends is taken as long as not too
//! much of it is unacknowledged; what comes for a domain that does not read is refused after some MiB, and sent again by its sender.
//! Only announcements of long messages, which are small, are as many as the domain makes: to hold back its credit for them would
//! hold up those that are asked for.
#![forbid(unsafe_code)]

mod fetching;
mod levels;
mod net_events;
mod outgoing_stream;
mod receiving;
mod remote_peers;
mod sending;

pub use fetching::FETCHED_BYTES_MAX;
pub use levels::TransportLevels;
pub use receiving::{FRAGMENT_BYTES_MAX, HELD_BYTES_MAX};
pub use sending::{STREAMS_MAX, UNACKED_BYTES_MAX};

use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route};
use isthmus_layout::{DomainId, EndpointIndex, RegionId};
use isthmus_mx::net::Transmit;
use isthmus_mx::net::{self, Address, ConnectError, ConnectId, Endpoint, Ignored, IncomingId, SendId, Time};
use isthmus_mx::wire::{EndpointNumber, Packet, PeerIndex};
use isthmus_shm::regcache::PeerRegion;
use receiving::Incoming;
use remote_peers::{RemotePeer, RemotePeerIndex, RemotePeers};
use sending::Sending;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The local domain of an [`MxTransport`]: how the transport reaches the domain's ring and control.
pub trait LocalPeer {
    /// Puts a record with its bytes into the domain's ring, or behind the records that wait for room there.
    fn deliver(&mut self, route: Route, record: &Record<'_>, bytes: &[u8]);
    /// Gives the domain credit back for records that it sent to a remote peer. A few KiB of credit may wait for the domain's next record.
    fn return_credit(&mut self, route: Route, bytes: u32);
    /// Gives the domain credit back at once, because it completes a send of the domain.
    fn return_credit_now(&mut self, route: Route, bytes: u32) {
        self.return_credit(route, bytes);
    }
    /// Adds a remote peer at that address, and returns its number. None if there are no numbers left.
    fn remote_peer_added(&mut self, address: Address) -> Option<DomainId>;
    /// Removes a remote peer that is gone. Called after its last complete message has been delivered, which may be late if the domain
    /// reads slowly.
    fn remote_peer_removed(&mut self, remote_peer: DomainId, reason: Reason);
    /// Reports the outcome of [`MxTransport::connect`].
    fn connect_finished(&mut self, request: u64, outcome: Result<DomainId, Reason>);
}

/// A record that no correct library sends to a remote peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportViolation {
    /// A message begins before the previous one is complete.
    #[error("a message begins while another one is not whole")]
    Assembling,
    /// More of a message than it has.
    #[error("a fragment of {fragment} bytes for a message that has {left} left")]
    TooLong {
        /// Of the fragment.
        fragment: u32,
        /// Of the message.
        left: u32,
    },
    /// Longer than what is sent in fragments without an announcement.
    #[error("a message of {0} bytes begins without being announced")]
    NotAnnounced(u32),
    /// There are no channels to remote peers, so paths never change.
    #[error("a change of paths to a remote peer, which has one path only")]
    Switch,
}

/// One MX endpoint of this host.
#[derive(Debug)]
pub struct MxTransport {
    net: Endpoint,
    /// The domain's endpoint that has the number.
    at: EndpointIndex,
    remote_peers: RemotePeers,
    sends: HashMap<SendId, Sending>,
    next_send: u64,
    /// The cost of records that were taken from the domain and are not acknowledged.
    unacked: u32,
    /// The credit of some remote peer is held back because of others.
    withholds_credit: bool,
    /// Kept bytes of announced messages: the ends of messages in the domain's memory, and bytes fetched from the domain.
    edges: usize,
    streamed: usize,
    /// Messages that are fetched from the domain in fragments, and those that wait.
    streams: usize,
    waiting_streams: VecDeque<SendId>,
    incoming: HashMap<IncomingId, Incoming>,
    /// Bytes that are kept until the domain has room for them, and the part of them that belongs to messages that have not begun.
    held: usize,
    held_before_begin: usize,
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

impl MxTransport {
    /// Creates the transport of a domain's endpoint `at`. The domain is given `credit` bytes of each remote peer before it returns
    /// credit.
    pub fn new(setup: net::EndpointSetup, at: EndpointIndex, credit: u32) -> Self {
        Self {
            net: Endpoint::new(setup),
            at,
            remote_peers: RemotePeers::new(credit),
            sends: HashMap::new(),
            next_send: 1,
            unacked: 0,
            withholds_credit: false,
            edges: 0,
            streamed: 0,
            streams: 0,
            waiting_streams: VecDeque::new(),
            incoming: HashMap::new(),
            held: 0,
            fetched: 0,
            held_before_begin: 0,
            ahead: 0,
            waiting_fetches: VecDeque::new(),
            regions: HashMap::new(),
            connects: HashMap::new(),
            next_connect: 1,
            closed: false,
        }
    }

    /// The endpoint's number on the board.
    pub fn number(&self) -> EndpointNumber {
        self.net.setup().number
    }

    /// Packets that changed nothing, by reason.
    pub fn ignored(&self) -> &net::IgnoredCounts {
        self.net.ignored()
    }

    /// Counters of the traffic that the endpoint has carried.
    pub fn traffic(&self) -> &net::TrafficCounters {
        self.net.traffic()
    }

    /// Connects to an endpoint of another host. [`LocalPeer::connect_finished`] answers.
    pub fn connect(&mut self, now: Time, to: Address, key: u32, request: u64, domain: &mut impl LocalPeer) {
        let id = ConnectId(self.next_connect);
        self.next_connect += 1;
        match self.net.connect(now, to, key, id) {
            Ok(()) => {
                self.connects.insert(id, request);
            }
            Err(ConnectError::TooManyPartners | ConnectError::TooManyConnects) => {
                domain.connect_finished(request, Err(Reason::MxPartnersFull));
            }
        }
        self.process_net_events(now, None, domain);
    }

    /// The domain permits messages to a remote peer to be sent directly from its memory.
    pub fn grant(&mut self, remote_peer: DomainId, region: RegionId, memory: Arc<PeerRegion>) {
        if self.remote_peers.find(remote_peer).is_some_and(|peer| !self.remote_peers[peer].gone) {
            self.regions.insert((remote_peer, region), memory);
        }
    }

    /// The domain revokes a grant. Sends from the memory that have begun go on.
    pub fn revoke(&mut self, remote_peer: DomainId, region: RegionId) {
        self.regions.remove(&(remote_peer, region));
    }

    /// True if the domain has a remote peer of this number.
    pub fn knows(&self, remote_peer: DomainId) -> bool {
        self.remote_peers.find(remote_peer).is_some()
    }

    /// A record of the domain's for a remote peer, with its bytes. What it cost is given back by [`LocalPeer::return_credit`], at once or when
    /// there is room for more.
    pub fn handle_domain_record(
        &mut self,
        now: Time,
        remote_peer: DomainId,
        record: &Record<'_>,
        bytes: &[u8],
        domain: &mut impl LocalPeer,
    ) -> Result<(), TransportViolation> {
        let Some(peer) = self.remote_peers.find(remote_peer) else { return Ok(()) };
        let taken = self.handle_record(now, peer, record, bytes, domain);
        self.process_net_events(now, None, domain);
        taken
    }

    /// The domain has taken `bytes` of what a remote peer sent.
    pub fn return_domain_credit(&mut self, now: Time, remote_peer: DomainId, bytes: u32, domain: &mut impl LocalPeer) {
        let Some(peer) = self.remote_peers.find(remote_peer) else { return };
        self.remote_peers[peer].add_credit(bytes);
        while let Some(message) = self.remote_peers[peer].next_taken() {
            self.net.notify(now, message);
        }
        self.deliver_to_domain(now, peer, domain);
        self.process_net_events(now, None, domain);
    }

    /// A packet for this endpoint.
    pub fn receive(
        &mut self,
        now: Time,
        from: PeerIndex,
        packet: &Packet<&[u8]>,
        domain: &mut impl LocalPeer,
    ) -> Result<(), Ignored> {
        let received = self.net.receive(now, from, packet);
        self.process_net_events(now, packet.data().copied(), domain);
        received
    }

    /// The time at which [`Self::tick`] is to be called, unless another call changes it before.
    pub fn next_deadline(&self) -> Option<Time> {
        self.net.next_deadline()
    }

    /// Runs the timers that are due.
    pub fn tick(&mut self, now: Time, domain: &mut impl LocalPeer) {
        self.net.tick(now);
        self.process_net_events(now, None, domain);
    }

    /// The next packet to send, if there is one. [`Self::data`] has its bytes.
    pub fn transmit(&mut self, now: Time) -> Option<Transmit> {
        self.net.transmit(now)
    }

    /// Closes the transport, because the domain is gone. Its messages are still delivered, until [`Self::is_over`]. Nothing more is
    /// received for it.
    pub fn close(&mut self, now: Time) {
        self.closed = true;
        self.net.set_accepting(false);
        self.net.flush(now);
        self.incoming.clear();
        (self.held, self.held_before_begin, self.ahead, self.fetched) = (0, 0, 0, 0);
        self.regions.clear();
    }

    /// True if the transport is closed and no message is left to deliver.
    pub fn is_over(&self) -> bool {
        self.closed && self.sends.values().all(Sending::needs_domain) && !self.net.has_unacknowledged()
    }

    /// Whether long messages are being fetched from other hosts.
    pub fn is_fetching(&self) -> bool {
        self.net.is_fetching()
    }

    /// Sets the maximum number of bytes of long messages that may be in flight at a time.
    pub fn set_fetch_bytes_max(&mut self, bytes: u32) {
        self.net.set_fetch_bytes_max(bytes);
    }

    fn route(&self, remote_peer: DomainId) -> Route {
        let first = EndpointIndex::new(0).expect("the first endpoint is one");
        Route { from: first, to: self.at, epoch: 0, peer: Some(remote_peer) }
    }

    fn remote_peer(&self, peer: RemotePeerIndex) -> &RemotePeer {
        &self.remote_peers[peer]
    }
}

/// The reason for which a remote peer is unreachable, or a message failed.
fn reason_of(code: isthmus_mx::StatusCode) -> Reason {
    use isthmus_mx::StatusCode;
    match code {
        StatusCode::BadKey => Reason::MxBadKey,
        StatusCode::EndpointClosed => Reason::MxEndpointClosed,
        StatusCode::BadEndpoint => Reason::MxEndpointOutOfRange,
        StatusCode::Timeout | StatusCode::EndpointUnreachable => Reason::MxUnreachable,
        StatusCode::BadSession => Reason::MxDisconnected,
        _ => Reason::MxTransferFailed,
    }
}
