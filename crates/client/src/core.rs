//! Everything a domain is but the record it is looking at: who it is, its channels, peers and endpoints, and the one turn of the
//! wheel ([`Core::progress`]) in which everything happens.

use crate::control::{Control, Memory, News};
use crate::endpoints::Endpoints;
use crate::error::{AttachError, Refusal};
use crate::matcher::{Completion, Envelope, Matcher, Outcome, Posted};
use crate::mx::MxConnecting;
use crate::news::{Held, map};
use crate::options::Options;
use crate::peer::{Into, Making, Peer, PeerIndex};
use crate::peers::Peers;
use crate::resume::RECONNECT;
use crate::sleep::Sleeper;
use isthmus_channel::{BoardIndex, Channel, ChannelKey, Inbox, Polled};
use isthmus_layout::control::{self, Close, Name, Owner, RequestSerial, Ticket, ToDaemon, Welcome};
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::ids::{ChannelId, RegionId};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::Serial;
use isthmus_layout::{DomainId, board};
use isthmus_platform::Doorbell;
use isthmus_shm::rehome::arena::Arena;
use isthmus_shm::rehome::{Cache, Config};
use isthmus_shm::{ForkGuard, RecordBuffer};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Records taken in one poll before the caller gets its completions.
const BATCH: usize = 32;

/// Polls between looks at the daemon's socket: a daemon that died marks no board.
const LOOK_EVERY: u32 = 1 << 16;

/// How long a channel must be silent before its slab's pages are given back.
const TRIM_AFTER: Duration = Duration::from_secs(1);

/// Slab bytes that a silent channel keeps.
const TRIM_KEEP: u32 = 0;

/// Who we are.
#[derive(Clone, Debug)]
pub(crate) struct Me {
    pub(crate) domain: DomainId,
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    pub(crate) ticket: Ticket,
}

impl Me {
    /// Whom the daemon has taken us in as.
    pub(crate) fn of(welcome: &Welcome) -> Self {
        let Welcome { domain, owner, ticket, .. } = *welcome;
        Self { domain, name: welcome.name.clone(), owner, ticket }
    }
}

/// A board of ours, kept to show it to a daemon that comes back.
#[derive(Debug)]
pub(crate) struct OwnBoard {
    pub(crate) owner: Option<Owner>,
    pub(crate) memory: OwnedFd,
    pub(crate) doorbell: Doorbell,
    /// It lies in the window of a guest.
    pub(crate) in_guest: bool,
}

/// Everything but the record that is being looked at.
#[derive(Debug)]
pub(crate) struct Core<M: Matcher> {
    pub(crate) me: Me,
    pub(crate) control: Option<Control>,
    pub(crate) socket_path: PathBuf,
    pub(crate) inbox: Inbox,
    pub(crate) ring: Option<ChannelKey>,
    pub(crate) boards: Vec<OwnBoard>,
    pub(crate) peers: Peers,
    /// The peer of each channel, by the channel's slot.
    slots: Vec<Option<PeerIndex>>,
    pub(crate) held: HashMap<ChannelId, Held>,
    pub(crate) endpoints: Endpoints,
    pub(crate) matcher: M,
    /// Peers with something to send.
    pub(crate) listed: Vec<PeerIndex>,
    /// Peers that credit is owed to.
    pub(crate) owing: Vec<PeerIndex>,
    /// Requests for channels that were not answered yet.
    pub(crate) asked: Vec<(RequestSerial, PeerIndex)>,
    /// Connects that the daemon has not answered.
    pub(crate) connecting: Vec<MxConnecting>,
    pub(crate) rehome: Cache,
    /// In a guest: who was shown which of our regions; and why there are none at all, where there are none.
    pub(crate) shown: HashMap<RegionId, Vec<DomainId>>,
    pub(crate) no_guest_regions: Option<Reason>,
    /// What peers may read and write by themselves.
    pub(crate) arena: Option<Arc<Arena>>,
    /// Why there are no channels at all, where there are none.
    pub(crate) no_channels: Option<Reason>,
    pub(crate) sleeper: Sleeper,
    /// When a daemon was looked for last, and since when there is none.
    pub(crate) lost_at: Option<Instant>,
    pub(crate) alone_since: Option<Instant>,
    pub(crate) last_refusal: Option<Refusal>,
    pub(crate) last_flight: String,
    pub(crate) faults: u64,
    pub(crate) bounced: u64,
    /// Records that the daemon has brought.
    pub(crate) brought: u64,
    pub(crate) clock: u64,
    guard: ForkGuard,
    asleep: bool,
    /// Some slab has pages that could be given back.
    pub(crate) dirty: bool,
    polls: u32,
    next_serial: u32,
}

impl<M: Matcher> Drop for Core<M> {
    /// A program that ends says so, unless it is a child of the one that attached.
    fn drop(&mut self) {
        if self.check_alive().is_ok() {
            self.tell(Close {}.into(), &[]);
        }
    }
}

impl<M: Matcher> Core<M> {
    pub(crate) fn new(
        me: Me,
        socket_path: PathBuf,
        options: &Options,
        guard: ForkGuard,
        matcher: M,
    ) -> Result<Self, AttachError> {
        let config = Config { enabled: !options.no_rehoming, ..Config::default() };
        let off = || if options.no_rehoming { Reason::BufferCacheOff } else { Reason::BufferGuestOff };
        let no_guest_regions = (options.no_rehoming || !options.rehoming_in_guests).then(off);
        Ok(Self {
            me,
            control: None,
            socket_path,
            inbox: Inbox::new(),
            ring: None,
            boards: Vec::new(),
            peers: Peers::default(),
            slots: Vec::new(),
            held: HashMap::new(),
            endpoints: Endpoints::default(),
            matcher,
            listed: Vec::new(),
            owing: Vec::new(),
            asked: Vec::new(),
            connecting: Vec::new(),
            rehome: Cache::new(config),
            shown: HashMap::new(),
            no_guest_regions,
            arena: None,
            no_channels: options.no_channels.then_some(Reason::ChannelsSwitchedOff),
            sleeper: Sleeper::new()?,
            lost_at: None,
            alone_since: None,
            last_refusal: None,
            last_flight: String::new(),
            faults: 0,
            bounced: 0,
            brought: 0,
            clock: 0,
            guard,
            asleep: false,
            dirty: false,
            polls: 0,
            next_serial: 0,
        })
    }

    /// In a child of a fork everything that is shared belongs to the parent.
    #[inline]
    pub(crate) fn is_child(&self) -> bool {
        self.guard.is_child()
    }

    #[inline]
    pub(crate) fn check_alive(&self) -> Result<(), Refusal> {
        if self.is_child() {
            return Err(Refusal::new(Reason::StillAttached, "this process is a child of the one that attached"));
        }
        Ok(())
    }

    /// Asks the daemon and waits for its answer.
    pub(crate) fn request(&mut self, message: ToDaemon) -> Result<News, Refusal> {
        self.ask(|control| control.request(message.clone(), &[]))
    }

    /// The same for what may take longer than the daemon itself does.
    pub(crate) fn request_within(&mut self, message: ToDaemon, limit: Duration) -> Result<News, Refusal> {
        self.ask(|control| control.request_within(message.clone(), limit))
    }

    /// Has `ask` ask the daemon. Where that turns out to be dead, it asks once more, whoever has taken its place.
    pub(crate) fn ask<T>(&mut self, ask: impl Fn(&mut Control) -> Result<T, Refusal>) -> Result<T, Refusal> {
        self.check_alive()?;
        let mut answer = Err(Refusal::from(Reason::DaemonGone));
        for _ in 0..2 {
            self.lost_at = self.lost_at.map(|_| Instant::now() - RECONNECT); // Somebody waits for it: look at once.
            self.reconnect();
            let Some(control) = &mut self.control else { break };
            answer = ask(control);
            if !answer.as_ref().is_err_and(|refusal| refusal.reason == Reason::DaemonGone) {
                break;
            }
            self.daemon_lost();
        }
        answer
    }

    /// Everything that goes on, once around.
    #[inline]
    pub(crate) fn progress(&mut self, record: &mut RecordBuffer) {
        if self.asleep {
            // The program slept on our descriptor: take what woke it.
            let news = self.sleeper.sleep(Some(Duration::ZERO));
            self.awake(news);
        }
        let mut taken = 0;
        while taken < BATCH && !self.matcher.is_busy() {
            let polled = self.inbox.poll(record);
            self.take_polled(polled, record);
            match polled {
                Polled::Nothing => break,
                Polled::Record(key) => taken += 1 + self.take_following(key, record),
                Polled::Marked(..) | Polled::Fault(..) => taken += 1,
            }
        }
        self.end_turn();
        self.polls += 1;
        if self.polls >= LOOK_EVERY {
            self.look_around();
        }
    }

    /// What a turn owes to others for what it has taken.
    #[inline]
    pub(crate) fn end_turn(&mut self) {
        if !self.listed.is_empty() {
            self.advance_listed();
        }
        // At once: our program may not call again for a while, and somebody's send is over when this arrives.
        if !self.owing.is_empty() {
            self.give_credit();
        }
    }

    /// True if the next turn of the wheel has nothing to do but to look at channels. Counts as that turn.
    #[inline]
    pub(crate) fn is_settled(&mut self) -> bool {
        self.polls += 1;
        self.polls < LOOK_EVERY && !self.asleep && self.listed.is_empty() && self.owing.is_empty()
    }

    /// What need not happen at each poll.
    #[cold]
    fn look_around(&mut self) {
        self.polls = 0;
        if self.check_alive().is_ok() {
            self.take_news();
            self.reconnect();
            self.revoke_released();
        }
    }

    #[cold]
    fn advance_listed(&mut self) {
        for at in std::mem::take(&mut self.listed) {
            if self.peers.has(at) {
                self.peers[at].listed = false;
                self.advance(at);
            }
        }
    }

    /// True if there is nothing to do and every doorbell will ring when there is.
    pub(crate) fn may_sleep(&mut self) -> bool {
        if self.control.is_none() {
            self.reconnect();
        }
        if self.matcher.is_busy() || !self.block_unsent() {
            return false;
        }
        self.set_alarm();
        self.asleep = true;
        let quiet = self.inbox.sleep();
        if !quiet {
            self.awake(false);
        }
        quiet
    }

    /// The program has slept on our descriptor and taken what woke it.
    pub(crate) fn woken(&mut self, news: bool) {
        if self.asleep {
            self.sleeper.clear();
            self.awake(news);
        }
    }

    pub(crate) fn awake(&mut self, news: bool) {
        self.asleep = false;
        self.inbox.awake();
        if news {
            self.take_news();
        }
        if self.sleeper.rang() {
            self.trim();
            self.reconnect();
        }
    }

    /// Has every peer that we have no room toward say so when there is room again. False if there is some already.
    fn block_unsent(&mut self) -> bool {
        if let (false, Some(ring)) = (self.owing.is_empty(), self.ring) {
            self.inbox.channel(ring).into_iter().for_each(Channel::block);
            self.give_credit();
        }
        for at in self.listed.clone() {
            if !self.peers.has(at) {
                continue;
            }
            if let Some(lane) = self.peers[at].lane(&mut self.inbox, self.ring) {
                lane.channel.block();
            }
            self.advance(at);
            if !self.peers[at].has_work() {
                return false;
            }
        }
        true
    }

    /// Sees to it that somebody who sleeps wakes for what no doorbell announces.
    fn set_alarm(&mut self) {
        if self.control.is_none() {
            self.sleeper.alarm(RECONNECT);
        } else if self.dirty {
            self.sleeper.alarm(TRIM_AFTER);
        }
    }

    /// Gives pages of silent channels back.
    fn trim(&mut self) {
        self.dirty = false;
        for (_, channel) in self.inbox.channels() {
            // A fault is met again, and dealt with, when the channel is used.
            let _ = channel.trim(TRIM_KEEP);
            self.dirty |= channel.dirty() > TRIM_KEEP;
        }
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.owing.is_empty()
            || self.peers.iter().any(|peer| peer.has_work() || !peer.announced.is_empty() || peer.credit.in_flight())
    }

    /// Ends everything that is under way, as a domain that leaves does.
    pub(crate) fn cancel_all(&mut self) {
        for at in self.peers.indices() {
            self.fail_peer(at, Reason::ClosedHere);
        }
        let open: Vec<_> = self.endpoints.all().map(|(index, _)| index).collect();
        for index in open {
            self.close_endpoint(index);
        }
    }

    /// Closes an endpoint: its posted receives complete as cancelled, what waited for them is dropped. False if it is not open.
    pub(crate) fn close_endpoint(&mut self, index: EndpointIndex) -> bool {
        if !self.endpoints.close(index) {
            return false;
        }
        let (posted, unexpected) = self.matcher.close(index);
        for posted in posted {
            self.complete(posted, index, Outcome::Cancelled);
        }
        for message in &unexpected {
            self.drop_unexpected(message);
        }
        true
    }

    /// A receive is over.
    #[inline]
    pub(crate) fn complete(&mut self, posted: Posted, endpoint: EndpointIndex, outcome: Outcome) {
        self.matcher.complete(Completion { token: posted.token, endpoint, buffer: posted.buffer, outcome });
    }

    /// A receive has its message.
    #[inline]
    pub(crate) fn received(&mut self, posted: Posted, envelope: &Envelope) {
        isthmus_shm::step!("received");
        self.matcher.received(posted, envelope);
    }

    /// Everything under way to and from a peer fails.
    pub(crate) fn fail_peer(&mut self, at: PeerIndex, reason: Reason) {
        self.peers[at].urgent.clear();
        self.fail_sends(at, reason);
        let peer = &mut self.peers[at];
        let begun = peer.started.take().map(|(_, incoming)| incoming);
        let receives: Vec<_> = begun.into_iter().chain(peer.pulled.drain().map(|(_, incoming)| incoming)).collect();
        let id = peer.id;
        for incoming in receives {
            if let Into::Posted(posted) = incoming.into {
                self.complete(posted, incoming.envelope.to, Outcome::Failed(reason));
            }
        }
        self.matcher.forget(id);
        let open: Vec<_> = self.endpoints.all().map(|(index, _)| index).collect();
        for index in open {
            self.match_unexpected(index); // What waited behind a message that will not come.
        }
    }

    /// Everything under way to a peer fails.
    pub(crate) fn fail_sends(&mut self, at: PeerIndex, reason: Reason) {
        let peer = &mut self.peers[at];
        let mut sends: Vec<_> = peer.credit.abandon();
        sends.extend(peer.announced.drain().map(|(_, message)| message));
        sends.extend(peer.streams.drain(..).chain(peer.queue.drain(..)));
        sends.sort_unstable_by_key(|message| message.token);
        sends.into_iter().for_each(|message| self.failed(message, reason));
    }

    /// As [`Self::fail_peer`], but what goes through the daemon goes on, and what was not begun to be sent goes by another way.
    pub(crate) fn lose(&mut self, at: PeerIndex, reason: Reason) {
        let queue = &mut self.peers[at].queue;
        let begun = queue.iter().take_while(|message| message.sent > 0).count();
        let kept = queue.split_off(begun);
        let credit = std::mem::take(&mut self.peers[at].credit);
        self.fail_peer(at, reason);
        let peer = &mut self.peers[at];
        (peer.queue, peer.credit) = (kept, credit);
        self.list(at);
    }

    pub(crate) fn next_serial(&mut self) -> Serial {
        self.next_serial = self.next_serial.wrapping_add(1).max(1);
        Serial(self.next_serial)
    }

    /// The peer of this number, made known if it is not.
    #[inline]
    pub(crate) fn peer(&mut self, domain: DomainId) -> PeerIndex {
        match self.peers.find(domain) {
            Some(at) => at,
            None => self.peers.add(Peer::new(domain)),
        }
    }

    pub(crate) fn known(&self, domain: DomainId) -> Option<PeerIndex> {
        self.peers.index.get(&domain).copied()
    }

    pub(crate) fn forget_peer(&mut self, at: PeerIndex) {
        self.asked.retain(|(_, asked)| *asked != at);
        self.owing.retain(|owing| *owing != at);
        self.listed.retain(|listed| *listed != at);
        self.peers.remove(at);
    }

    pub(crate) fn name_channel(&mut self, key: ChannelKey, at: PeerIndex) {
        if self.slots.len() <= key.slot() {
            self.slots.resize(key.slot() + 1, None);
        }
        self.slots[key.slot()] = Some(at);
    }

    #[inline]
    pub(crate) fn by_channel(&self, key: ChannelKey) -> Option<PeerIndex> {
        self.slots.get(key.slot()).copied().flatten()
    }

    pub(crate) fn by_id(&self, id: ChannelId) -> Option<(PeerIndex, ChannelKey)> {
        self.peers.indices().into_iter().find_map(|at| match self.peers[at].making {
            Making::Made { id: made, key, .. } if made == id => Some((at, key)),
            _ => None,
        })
    }

    pub(crate) fn board(&self, board: control::BoardIndex) -> Option<BoardIndex> {
        (usize::from(board.number()) < self.boards.len()).then_some(BoardIndex(board.number()))
    }

    /// Hangs up a board of ours and sleeps on its doorbell too. Boards come in the order of their numbers.
    pub(crate) fn add_board(
        &mut self,
        number: control::BoardIndex,
        owner: Option<Owner>,
        memory: Memory,
        doorbell: Doorbell,
    ) -> Result<(), Reason> {
        if usize::from(number.number()) != self.boards.len() {
            return Err(Reason::BoardsFull);
        }
        let window = map(&memory, board::SIZE)?;
        self.sleeper.watch_doorbell(&doorbell).map_err(|_| Reason::OutOfFds)?;
        let in_guest = window.is_shared_across();
        self.inbox.add_board(window, doorbell.clone());
        self.boards.push(OwnBoard { owner, memory: memory.file, doorbell, in_guest });
        Ok(())
    }
}
