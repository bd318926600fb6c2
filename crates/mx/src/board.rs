//! One board of MX over Ethernet, without its endpoints: its table of peers, the links that reach them, their names, and the
//! dispatch of frames to endpoints. Does no I/O and reads no clock.
//!
//! ```text
//!   links                              Board                                        endpoints
//!
//!   frame ──► receive ──► for this board? sender? ── demux ──► ForEndpoint ────────► net::Endpoint::receive
//!                            │          ▲                └──► no endpoint: a refusal, or dropped and counted
//!                            ▼          │
//!              announcements, names   table: address ◄─► our index, their index for us, links
//!                            │                                    ▲
//!   frame ◄── transmit ◄─────┘                                    └── header_to, link_to ◄── net::Endpoint::transmit
//! ```
//!
//! A board has one address and one or more links. Frames carry the address on every link. The table of peers gives each address
//! an index and never reuses it for another address, so a stale index cannot name the wrong peer. Peers enter the table by
//! configuration, by announcement, or because a program asks for them ([`PeerOrigin`]). Where a frame names a peer by index, the
//! board compares the source address with the address of that index. Ethernet has no better proof of a frame's sender, so no frame
//! that a board receives ends anything: an announcement only makes the board send a query.
//!
//! Everything that an unknown host can cause is limited: table entries, reply frames, and pending [events](BoardEvent).
//! Dropped frames are counted by [reason](Dropped).
//!
//! ```
//! use isthmus_layout::NicId;
//! use isthmus_mx::board::{Board, BoardSetup, FrameAction, LinkNumber};
//! use isthmus_mx::net::Time;
//! use isthmus_mx::wire::{self, BoardName, Dialect};
//!
//! let board = |octet: u8, name: &[u8]| {
//!     let nic = NicId::from_octets([2, 0, 0, 0, 0, octet]);
//!     let mut board = Board::new(BoardSetup::new(nic, BoardName::new(name).unwrap(), Dialect::OPEN_MX, u32::from(octet), 5));
//!     board.add_link(Time::ZERO, LinkNumber(0), 1).unwrap();
//!     board
//! };
//! let mut boards = [board(1, b"nodeA:0"), board(2, b"nodeB:0")];
//!
//! // A wire between the two: they announce themselves, and ask each other for their names.
//! for turn in 0..10 {
//!     let (from, to) = (turn % 2, 1 - turn % 2);
//!     while let Some((link, header, packet)) = boards[from].transmit(Time::ZERO) {
//!         let mut frame = [0; 1024];
//!         let bytes = wire::emit(Dialect::OPEN_MX, &header, &packet, &mut frame)?;
//!         assert!(matches!(boards[to].receive(Time::ZERO, link, &frame[..bytes]), FrameAction::Consumed));
//!     }
//! }
//! assert!(boards[0].find_by_name(b"nodeB:0").is_some());
//! # Ok::<(), wire::EmitError>(())
//! ```

mod admin;
mod counters;
mod demux;
mod discovery;
mod links;
mod names;
mod peers;
mod rate;
mod report;
mod table;
mod tuning;

pub use admin::NoSuchEndpoint;
pub use counters::{BoardCounters, Dropped};
pub use demux::FrameAction;
pub use links::{LINKS_MAX, LinkNumber, NoSuchLink};
pub use peers::{PeerLineError, PeerTableError, parse_peers};
pub use rate::Rate;
pub use report::{LinkReport, PeerReport};
pub use table::{AddPeerError, PeerOrigin};
pub use tuning::BoardTuning;

use crate::net::Time;
use crate::wire::{Announcement, BoardName, Dialect, EndpointNumber, Header, Packet, PeerIndex};
use alloc::collections::{BTreeSet, VecDeque};
use discovery::AnnounceTimer;
use isthmus_layout::NicId;
use links::LinkSelector;
use rate::RateLimiter;
use table::Table;

/// The parameters of a new board.
#[derive(Clone, Copy, Debug)]
pub struct BoardSetup {
    /// The board's address.
    pub nic: NicId,
    /// The name that the board reports to peers.
    pub name: BoardName,
    /// The protocol variant that its network uses.
    pub dialect: Dialect,
    /// Random, drawn when the daemon starts. Peers detect a restart by a changed serial.
    pub serial: u32,
    /// Random. Sent only to the hosts that this board queries; their replies must carry it.
    pub secret: u32,
    /// Whether the board announces itself and accepts announcements. Otherwise it knows only the peers that were added here.
    pub discovery: bool,
    /// Times and limits.
    pub tuning: BoardTuning,
}

impl BoardSetup {
    /// Returns the setup of an ordinary board: with discovery, and the default times and limits.
    pub const fn new(nic: NicId, name: BoardName, dialect: Dialect, serial: u32, secret: u32) -> Self {
        Self { nic, name, dialect, serial, secret, discovery: true, tuning: BoardTuning::DEFAULT }
    }
}

/// A change of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoardEvent {
    /// A peer has appeared that was unknown or forgotten.
    Found(PeerIndex),
    /// A peer has reported its first name, or a new one.
    Named(PeerIndex),
    /// A peer's announcement reports that its daemon restarted. Any host can send one: it is a reason to ask the peer's endpoints
    /// whether they still exist, not a reason to give them up. The board itself queries the peer's name, and learns the peer's
    /// new numbers from the reply.
    Restarted(PeerIndex),
}

/// A packet of the board itself. Only announcements have data.
pub type OwnPacket = Packet<[u8; Announcement::BYTES]>;

/// Limit of the board's own packets that wait until the links have room.
const OUTGOING_MAX: usize = 256;

/// One board.
#[derive(Debug)]
pub struct Board {
    setup: BoardSetup,
    table: Table,
    links: LinkSelector,
    counters: BoardCounters,
    /// A bit for each endpoint number, set while the endpoint is open. The raw endpoint is among them.
    open: [u64; 4],
    announce_timer: AnnounceTimer,
    /// The value that our queries carry, and that their replies must carry.
    magic: u32,
    /// The peers to query, by due time.
    queries: BTreeSet<(Time, PeerIndex)>,
    outgoing: VecDeque<(LinkNumber, Header, OwnPacket)>,
    events: VecDeque<BoardEvent>,
    rate_limiters: RateLimiters,
}

/// Limits of what other hosts can cause per second.
#[derive(Debug)]
struct RateLimiters {
    found: RateLimiter,
    queries: RateLimiter,
    replies: RateLimiter,
    nacks: RateLimiter,
}

impl Board {
    /// Creates a board. Its table has the board itself as peer 0, and it has no links yet.
    pub fn new(mut setup: BoardSetup) -> Self {
        let tuning = setup.tuning.within_limits();
        setup.tuning = tuning;
        let table = Table::with_board(setup.nic, setup.name, tuning.peers_max);
        let rate_limiters = RateLimiters {
            found: RateLimiter::new(tuning.found),
            queries: RateLimiter::new(tuning.queries),
            replies: RateLimiter::new(tuning.replies),
            nacks: RateLimiter::new(tuning.nacks),
        };
        Self {
            setup,
            table,
            links: LinkSelector::default(),
            counters: BoardCounters::default(),
            open: [0; 4],
            announce_timer: AnnounceTimer::new(&tuning),
            magic: setup.secret,
            queries: BTreeSet::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            rate_limiters,
        }
    }

    /// Returns the parameters of the board, with its limits clamped to their valid ranges.
    pub const fn setup(&self) -> &BoardSetup {
        &self.setup
    }

    /// Returns the counts of received, sent and dropped packets.
    pub const fn counters(&self) -> &BoardCounters {
        &self.counters
    }

    /// Removes and returns the oldest pending event. An event that is already pending for a peer is not queued twice.
    pub fn event(&mut self) -> Option<BoardEvent> {
        let event = self.events.pop_front()?;
        self.table.clear_pending_event(event);
        Some(event)
    }

    fn push_event(&mut self, event: BoardEvent) {
        if self.table.mark_event_pending(event) {
            self.events.push_back(event);
        }
    }

    /// Returns the address of an index. An index keeps its address, also after the peer was forgotten.
    pub fn nic_of(&self, peer: PeerIndex) -> Option<NicId> {
        Some(self.table.get(peer)?.nic)
    }

    /// Returns the peer that has this address. None also for a peer that was forgotten.
    pub fn find(&self, nic: NicId) -> Option<PeerIndex> {
        self.table.find_present(nic)
    }

    /// Returns the peer that has this name. Names of this host's boards come first, then configured names.
    pub fn find_by_name(&self, name: &[u8]) -> Option<PeerIndex> {
        self.table.find_by_name(name)
    }

    /// Returns the first name of a peer.
    pub fn name_of(&self, peer: PeerIndex) -> Option<BoardName> {
        self.table.get(peer)?.name()
    }

    /// Returns true if an address is a board of this host. Nothing for it goes to the wire.
    pub fn is_local(&self, nic: NicId) -> bool {
        self.table
            .find_present(nic)
            .and_then(|peer| self.table.get(peer))
            .is_some_and(|peer| peer.origin == PeerOrigin::Local)
    }

    /// Returns the header of frames for a peer. None for a board of this host, and for a peer that was forgotten.
    #[inline]
    pub fn header_to(&self, peer: PeerIndex) -> Option<Header> {
        let peer = self.table.remote(peer)?;
        Some(Header { dst: peer.nic, src: self.setup.nic, peer_index: peer.remote_index })
    }

    /// Returns the fastest link that reaches a peer: the one of the highest rank that is up and where the peer's last frame is not much
    /// older than its last frame on any link. If no frame came on any, the fastest link that is up. None if no link is up.
    #[inline]
    pub fn link_to(&self, peer: PeerIndex) -> Option<LinkNumber> {
        self.links.best(&self.table.remote(peer)?.last_seen_by_link, self.setup.tuning.link_stale_us)
    }

    /// Returns the next packet of the board's own, with its link and header. The caller repeats this, while the links have room, after
    /// every call that may have changed the board.
    pub fn transmit(&mut self, now: Time) -> Option<(LinkNumber, Header, OwnPacket)> {
        if self.outgoing.is_empty() {
            self.tick(now);
        }
        let next = self.outgoing.pop_front()?;
        self.counters.add_sent(next.2.kind());
        Some(next)
    }

    /// Returns when [`Board::transmit`] will have the next packet, if nothing else happens. None: never.
    pub fn next_deadline(&self) -> Option<Time> {
        let announce = self.setup.discovery.then(|| self.announce_timer.due());
        let question = self.queries.first().map(|(due, _)| (*due).max(self.rate_limiters.queries.ready_at()));
        announce.into_iter().chain(question).min()
    }

    /// Handles the passing of time: sends what is due.
    pub fn tick(&mut self, now: Time) {
        self.announce(now);
        self.send_due_queries(now);
    }

    /// Queues a packet of the board's own, if there is room.
    fn send(&mut self, link: LinkNumber, header: Header, packet: OwnPacket) -> bool {
        let room = self.outgoing.len() < OUTGOING_MAX;
        if room {
            self.outgoing.push_back((link, header, packet));
        }
        room
    }

    fn is_open(&self, endpoint: EndpointNumber) -> bool {
        self.open[usize::from(endpoint.0 / 64)] >> (endpoint.0 % 64) & 1 == 1
    }
}
