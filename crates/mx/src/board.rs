//! One board of MX over Ethernet, beside its endpoints: whom it knows, by which link it reaches them, what they are called, and which
//! endpoint a frame is for. Without I/O and without a clock.
//!
//! ```text
//!   links                              Board                                        endpoints
//!
//!   frame ──► receive ──► is it ours? from whom? ── demux ──► ForEndpoint ────────► net::Endpoint::receive
//!                            │          ▲                └──► nobody there: a refusal, or dropped and counted
//!                            ▼          │
//!              announcements, names   table: address ◄─► our index, their index for us, links
//!                            │                                    ▲
//!   frame ◄── transmit ◄─────┘                                    └── header_to, link_to ◄── net::Endpoint::transmit
//! ```
//!
//! A board has one address and one or more links; frames carry the address whatever link they go by. Its table of peers gives each
//! address an index, for good: an index is never another address's, so whoever keeps one cannot be led astray. Peers come into
//! the table by hand, by announcement, or because a program asks for them ([`PeerOrigin`]). Where frames name a peer by index, the
//! source address is compared with the one that has the index; Ethernet has no better proof of who sent something, and nothing
//! that a board is told here ends anything: what an announcement says makes the board ask, no more.
//!
//! Everything that an unknown host can cause has a limit: entries of the table, frames in answer, [events](BoardEvent) that wait.
//! What is dropped is counted by [reason](Dropped).
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

/// What a board is made with.
#[derive(Clone, Copy, Debug)]
pub struct BoardSetup {
    /// Its address.
    pub nic: NicId,
    /// What it says that it is called.
    pub name: BoardName,
    /// How its network speaks.
    pub dialect: Dialect,
    /// Random, drawn when the daemon starts: by another one others see that it started anew.
    pub serial: u32,
    /// Random too, and told to nobody but whom we ask: answers must have it.
    pub secret: u32,
    /// Whether it announces itself, and listens to others that do. Otherwise it knows those whom it was told of.
    pub discovery: bool,
    /// Times and limits.
    pub tuning: BoardTuning,
}

impl BoardSetup {
    /// As most boards are: with discovery, and the usual times and limits.
    pub const fn new(nic: NicId, name: BoardName, dialect: Dialect, serial: u32, secret: u32) -> Self {
        Self { nic, name, dialect, serial, secret, discovery: true, tuning: BoardTuning::DEFAULT }
    }
}

/// What has happened to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoardEvent {
    /// A peer is there that was not, or that had been forgotten.
    Found(PeerIndex),
    /// A peer has told its name, or another one than before.
    Named(PeerIndex),
    /// A peer's announcement says that its daemon started anew. Anybody can say so: it is a reason to ask the peer's endpoints
    /// whether they are still there, not a reason to give them up. The board asks for the peer's name by itself, and learns
    /// its new numbers thereby.
    Restarted(PeerIndex),
}

/// A packet of the board itself. Only announcements have data.
pub type OwnPacket = Packet<[u8; Announcement::BYTES]>;

/// Packets of its own that a board keeps until the links have room.
const OUTGOING_MAX: usize = 256;

/// One board.
#[derive(Debug)]
pub struct Board {
    setup: BoardSetup,
    table: Table,
    links: LinkSelector,
    counters: BoardCounters,
    /// A bit for each number: the endpoints that are open, the raw one among them.
    open: [u64; 4],
    announce_timer: AnnounceTimer,
    /// What questions of ours carry, and their answers must.
    magic: u32,
    /// Who is to be asked when.
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
    /// A board that knows itself, as peer 0, and has no links yet.
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

    /// What it was made with, limits brought to what is possible.
    pub const fn setup(&self) -> &BoardSetup {
        &self.setup
    }

    /// What was received, sent and dropped.
    pub const fn counters(&self) -> &BoardCounters {
        &self.counters
    }

    /// What has happened and was not taken yet, oldest first. What happens to a peer twice before it was taken is told once.
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

    /// The address that an index stands for. It is its own for good, also after the peer was forgotten.
    pub fn nic_of(&self, peer: PeerIndex) -> Option<NicId> {
        Some(self.table.get(peer)?.nic)
    }

    /// Who has this address. None also for a peer that was forgotten.
    pub fn find(&self, nic: NicId) -> Option<PeerIndex> {
        self.table.find_present(nic)
    }

    /// Who is called so. Names of this host's boards come first, then those that were given by hand.
    pub fn find_by_name(&self, name: &[u8]) -> Option<PeerIndex> {
        self.table.find_by_name(name)
    }

    /// What a peer is called first of all.
    pub fn name_of(&self, peer: PeerIndex) -> Option<BoardName> {
        self.table.get(peer)?.name()
    }

    /// Whether an address is a board of this host: nothing for it goes to the wire.
    pub fn is_local(&self, nic: NicId) -> bool {
        self.table
            .find_present(nic)
            .and_then(|peer| self.table.get(peer))
            .is_some_and(|peer| peer.origin == PeerOrigin::Local)
    }

    /// What frames for a peer begin with. None for a board of this host, and for a peer that was forgotten.
    #[inline]
    pub fn header_to(&self, peer: PeerIndex) -> Option<Header> {
        let peer = self.table.remote(peer)?;
        Some(Header { dst: peer.nic, src: self.setup.nic, peer_index: peer.remote_index })
    }

    /// The fastest link that reaches a peer: among those that are up, the one of the highest rank on which the peer was heard, not
    /// much earlier than it was heard at all. One that was not heard on any is sought on the fastest. None if no link is up.
    #[inline]
    pub fn link_to(&self, peer: PeerIndex) -> Option<LinkNumber> {
        self.links.best(&self.table.remote(peer)?.last_seen_by_link, self.setup.tuning.link_stale_us)
    }

    /// The next packet of the board's own, and how it is to be sent. To be asked, while the links have room, after everything that
    /// may have changed something.
    pub fn transmit(&mut self, now: Time) -> Option<(LinkNumber, Header, OwnPacket)> {
        if self.outgoing.is_empty() {
            self.tick(now);
        }
        let next = self.outgoing.pop_front()?;
        self.counters.add_sent(next.2.kind());
        Some(next)
    }

    /// When [`Board::transmit`] has something to send that it has not now, if nothing else happens. None: never.
    pub fn next_deadline(&self) -> Option<Time> {
        let announce = self.setup.discovery.then(|| self.announce_timer.due());
        let question = self.queries.first().map(|(due, _)| (*due).max(self.rate_limiters.queries.ready_at()));
        announce.into_iter().chain(question).min()
    }

    /// Time has passed.
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
