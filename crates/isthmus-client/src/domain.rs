//! A domain: the program's side of its daemon.

use crate::connect;
use crate::control::{Control, News};
use crate::endpoint::{Completion, Endpoints, Outcome, Posted, Token};
use crate::error::{AttachError, Refusal};
use crate::news::{Held, RECONNECT, map};
use crate::options::Options;
use crate::peer::{Making, Peer, PeerIndex};
use crate::sleep::Sleeper;
use crate::status::ChannelStatus;
use isthmus_channel::{BoardIndex, ChannelKey, Inbox, Wait, Waiting};
use isthmus_layout::control::{
    self, Attach, Close, CloseEndpoint, Lookup, Name, OpenEndpoint, Owner, RequestSerial, Ticket, ToClient, ToDaemon,
    Topic,
};
use isthmus_layout::ids::{ChannelId, EndpointIndex};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::Serial;
use isthmus_layout::{DomainId, EndpointAddress, board};
use isthmus_platform::Doorbell;
use isthmus_shm::rehome::{Cache, Config};
use isthmus_shm::{Buffer, ForkGuard, RecordBuffer};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::ops::{Index, IndexMut};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Records taken in one poll before the caller gets its completions.
const BATCH: usize = 32;

/// Empty polls between looks at the daemon's socket: a daemon that died marks no board.
const LOOK_EVERY: u32 = 1 << 16;

/// How long a channel must be silent before its slab's pages are given back.
const TRIM_AFTER: Duration = Duration::from_secs(1);

/// Slab bytes that a silent channel keeps.
const TRIM_KEEP: u32 = 0;

/// The program's side of its daemon. Used by one thread at a time; nothing happens outside its calls.
///
/// A process that forks leaves its domain to the parent: every call of the child is refused with
/// [`Reason::StillAttached`], and it may attach anew.
#[derive(Debug)]
pub struct Domain {
    record: RecordBuffer,
    waiting: Waiting,
    core: Core,
}

/// Who we are.
#[derive(Clone, Debug)]
pub(crate) struct Me {
    pub(crate) domain: DomainId,
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    pub(crate) ticket: Ticket,
}

/// A board of ours, kept to show it to a daemon that comes back.
#[derive(Debug)]
pub(crate) struct OwnBoard {
    pub(crate) owner: Option<Owner>,
    pub(crate) memory: OwnedFd,
    pub(crate) doorbell: Doorbell,
}

/// Everything but the record that is being looked at.
#[derive(Debug)]
pub(crate) struct Core {
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
    /// Peers with something to send.
    pub(crate) listed: Vec<PeerIndex>,
    /// Peers that credit is owed to.
    pub(crate) owing: Vec<PeerIndex>,
    /// Requests for channels that were not answered yet.
    pub(crate) asked: Vec<(RequestSerial, PeerIndex)>,
    pub(crate) rehome: Cache,
    pub(crate) channels: bool,
    pub(crate) sleeper: Sleeper,
    pub(crate) lost_at: Option<Instant>,
    pub(crate) last_refusal: Option<Refusal>,
    pub(crate) last_flight: String,
    pub(crate) faults: u64,
    pub(crate) bounced: u64,
    pub(crate) clock: u64,
    guard: ForkGuard,
    asleep: bool,
    /// Some slab has pages that could be given back.
    pub(crate) dirty: bool,
    empty_polls: u32,
    next_token: u64,
    next_serial: u32,
}

impl Domain {
    /// Attaches as the environment says.
    pub fn attach() -> Result<Self, AttachError> {
        Self::attach_with(&Options::from_environment()?)
    }

    /// Attaches to the daemon, starting one for this user where none answers and `options` do not forbid it.
    pub fn attach_with(options: &Options) -> Result<Self, AttachError> {
        let (socket, socket_path) = connect::connect(options)?;
        let mut control = Control::open(socket)?;
        let attach = Attach { name: options.name.clone(), resume: None };
        let mut news = control.request(attach.into(), &[])?;
        let ToClient::Welcome(welcome) = news.message.clone() else {
            return Err(Refusal::from(Reason::NotIsthmus).into());
        };
        let me =
            Me { domain: welcome.domain, name: welcome.name.clone(), owner: welcome.owner, ticket: welcome.ticket };
        let guard = ForkGuard::new().map_err(|_| Refusal::from(Reason::OutOfAddressSpace))?;
        let mut core = Core::new(me, socket_path, options, guard)?;
        core.channels &= welcome.channels;
        core.take_ring(&welcome, &mut news).map_err(Refusal::from)?;
        core.sleeper.watch_control(&control);
        core.control = Some(control);
        Ok(Self { record: RecordBuffer::default(), waiting: Waiting::new(options.wait), core })
    }

    /// Our number.
    pub fn id(&self) -> DomainId {
        self.core.me.domain
    }

    /// Our name.
    pub fn name(&self) -> &str {
        self.core.me.name.as_str()
    }

    /// Opens an endpoint: the given one, or the lowest that is free.
    pub fn open(&mut self, index: Option<EndpointIndex>, label: &str) -> Result<EndpointIndex, Refusal> {
        let label = match label {
            "" => None,
            label => Some(Name::new(label).map_err(|error| Refusal::new(Reason::NameInvalid, error.to_string()))?),
        };
        let news = self.core.request(OpenEndpoint { index, label: label.clone() }.into())?;
        match news.message {
            ToClient::EndpointOpened(opened) => {
                self.core.endpoints.open(opened.index, label);
                Ok(opened.index)
            }
            _ => Err(Reason::NotIsthmus.into()),
        }
    }

    /// Closes an endpoint. Its posted receives complete as cancelled; messages that waited for them are dropped.
    pub fn close(&mut self, index: EndpointIndex) -> Result<(), Refusal> {
        self.core.check_alive()?;
        let endpoint = self.core.endpoints.close(index).ok_or_else(|| Refusal::from(Reason::EndpointClosed))?;
        for posted in endpoint.posted {
            self.core.endpoints.complete(posted, index, Outcome::Cancelled);
        }
        for message in &endpoint.unexpected {
            self.core.drop_unexpected(message);
        }
        self.core.request(CloseEndpoint { index }.into()).map(drop)
    }

    /// The domain of this name, or of this number as in `d7`.
    pub fn lookup(&mut self, name: &str) -> Result<DomainId, Refusal> {
        let name = Name::new(name).map_err(|error| Refusal::new(Reason::NameInvalid, error.to_string()))?;
        match self.core.request(Lookup { name }.into())?.message {
            ToClient::Found(found) => Ok(found.domain),
            _ => Err(Reason::NotIsthmus.into()),
        }
    }

    /// Sends the bytes of `buffer`. The completion gives it back: for messages up to 32 KiB on a channel that is at once,
    /// longer ones when the receiver has them. A buffer that could not be posted comes back with the refusal.
    #[inline]
    pub fn send(
        &mut self,
        from: EndpointIndex,
        to: EndpointAddress,
        tag: u64,
        buffer: Buffer,
    ) -> Result<Token, (Refusal, Buffer)> {
        if let Err(refusal) = self.core.check_alive() {
            return Err((refusal, buffer));
        }
        if !self.core.send_now(from, to, tag, buffer.as_slice()) {
            return self.core.post_send(from, to, tag, buffer);
        }
        let token = self.core.next_token();
        self.core.endpoints.completions.push_back(Completion { token, endpoint: from, buffer, outcome: Outcome::Sent });
        Ok(token)
    }

    /// Sends a message of at most 128 bytes if that can be done at once: there is a channel, with room, and nothing waits
    /// before it. True if it is sent; there is no completion.
    #[inline]
    pub fn inject(&mut self, from: EndpointIndex, to: EndpointAddress, tag: u64, bytes: &[u8]) -> bool {
        self.core.check_alive().is_ok() && self.core.send_now(from, to, tag, bytes)
    }

    /// Posts a receive. The oldest takes the oldest message; of a longer one, the first bytes.
    #[inline]
    pub fn receive(&mut self, at: EndpointIndex, buffer: Buffer) -> Result<Token, (Refusal, Buffer)> {
        if let Err(refusal) = self.core.check_alive() {
            return Err((refusal, buffer));
        }
        let token = self.core.next_token();
        let Some(endpoint) = self.core.endpoints.at(at) else {
            return Err((Refusal::new(Reason::EndpointClosed, at.to_string()), buffer));
        };
        endpoint.posted.push_back(Posted { token, buffer });
        if !endpoint.unexpected.is_empty() {
            self.core.match_unexpected(at);
        }
        Ok(token)
    }

    /// Takes a posted receive back. True if it had not begun to receive; its completion says cancelled.
    pub fn cancel(&mut self, at: EndpointIndex, token: Token) -> bool {
        let posted = self.core.endpoints.at(at).and_then(|endpoint| endpoint.cancel(token));
        posted.is_some_and(|posted| {
            self.core.endpoints.complete(posted, at, Outcome::Cancelled);
            true
        })
    }

    /// The next completion, if there is one. Looks once, never waits; everything that goes on goes on in here.
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        if let Some(completion) = self.core.endpoints.completions.pop_front() {
            return Some(completion);
        }
        self.core.progress(&mut self.record);
        self.core.endpoints.completions.pop_front()
    }

    /// Puts completions back that somebody else is waiting for.
    pub(crate) fn keep(&mut self, completions: Vec<Completion>) {
        for completion in completions.into_iter().rev() {
            self.core.endpoints.completions.push_front(completion);
        }
    }

    /// Waits for the next completion, `limit` at most. None when that is over, or in the child of a fork.
    pub fn wait(&mut self, limit: Option<Duration>) -> Option<Completion> {
        if let Some(completion) = self.poll() {
            return Some(completion);
        }
        let deadline = limit.map(|limit| Instant::now() + limit);
        while self.core.check_alive().is_ok() {
            let Self { record, waiting, core } = self;
            let came = waiting.spin(|| {
                core.progress(record);
                !core.endpoints.completions.is_empty()
            });
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if came || left.is_some_and(|left| left.is_zero()) {
                return self.poll();
            }
            if self.waiting.wait() != Wait::Spin && self.core.may_sleep() {
                let news = self.core.sleeper.sleep(left);
                self.core.awake(news);
            }
            if let Some(completion) = self.poll() {
                return Some(completion);
            }
        }
        None
    }

    /// Says that the program will sleep on [`Self::fd`]. False if something is there already: poll first.
    pub fn arm(&mut self) -> bool {
        self.core.sleeper.sleep(Some(Duration::ZERO)); // Takes events that were for earlier news.
        self.core.progress(&mut self.record);
        self.core.endpoints.completions.is_empty() && self.core.may_sleep()
    }

    /// Readable when a poll may find something, once [`Self::arm`] has answered true. For epoll, poll or any event loop; it
    /// is not to be read.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.core.sleeper.as_fd()
    }

    /// The paths to all peers that were talked with.
    pub fn channels(&mut self) -> Vec<ChannelStatus> {
        let Core { peers, inbox, .. } = &mut self.core;
        let status = |peer: &Peer| {
            let sent = match peer.making {
                Making::Made { key, .. } => inbox.channel(key).map(|channel| channel.sent()),
                _ => None,
            };
            ChannelStatus::of(peer, sent.unwrap_or_default())
        };
        peers.iter().map(status).collect()
    }

    /// A report of the daemon, as JSON.
    pub fn query(&mut self, topic: Topic, arguments: &[&str]) -> Result<String, Refusal> {
        let control = self.core.control.as_mut().ok_or_else(|| Refusal::from(Reason::DaemonGone))?;
        crate::query::ask(control, topic, arguments)
    }

    /// True while the daemon answers. Channels go on without it.
    pub fn is_connected(&self) -> bool {
        self.core.control.is_some()
    }

    /// Leaves in order: what was sent is delivered as far as `limit` allows, pending operations complete as cancelled.
    pub fn detach(mut self, limit: Duration) -> Vec<Completion> {
        let deadline = Instant::now() + limit;
        let mut over = Vec::new();
        if self.core.check_alive().is_ok() {
            while self.core.has_unsent() && Instant::now() < deadline {
                over.extend(self.wait(Some(Duration::from_millis(10))));
            }
            over.extend(std::iter::from_fn(|| self.poll()));
            let _ = self.core.request(Close {}.into());
        }
        over.extend(self.core.cancel_all());
        over
    }
}

impl Drop for Core {
    /// A program that ends says so, unless it is a child of the one that attached.
    fn drop(&mut self) {
        if self.check_alive().is_ok() {
            self.tell(Close {}.into(), &[]);
        }
    }
}

impl Core {
    fn new(me: Me, socket_path: PathBuf, options: &Options, guard: ForkGuard) -> Result<Self, AttachError> {
        let config = Config { enabled: !options.no_rehoming, ..Config::default() };
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
            listed: Vec::new(),
            owing: Vec::new(),
            asked: Vec::new(),
            rehome: Cache::new(config),
            channels: !options.no_channels,
            sleeper: Sleeper::new()?,
            lost_at: None,
            last_refusal: None,
            last_flight: String::new(),
            faults: 0,
            bounced: 0,
            clock: 0,
            guard,
            asleep: false,
            dirty: false,
            empty_polls: 0,
            next_token: 0,
            next_serial: 0,
        })
    }

    #[inline]
    pub(crate) fn check_alive(&self) -> Result<(), Refusal> {
        if self.guard.is_child() {
            return Err(Refusal::new(Reason::StillAttached, "this process is a child of the one that attached"));
        }
        Ok(())
    }

    /// Asks the daemon and waits for its answer.
    fn request(&mut self, message: ToDaemon) -> Result<News, Refusal> {
        self.check_alive()?;
        self.reconnect();
        let control = self.control.as_mut().ok_or_else(|| Refusal::from(Reason::DaemonGone))?;
        let answer = control.request(message, &[]);
        if answer.as_ref().is_err_and(|refusal| refusal.reason == Reason::DaemonGone) {
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
        while taken < BATCH && self.endpoints.completions.is_empty() && self.poll_once(record) {
            taken += 1;
        }
        if !self.listed.is_empty() {
            self.advance_listed();
        }
        // At once: our program may not call again for a while, and somebody's send is over when this arrives.
        if !self.owing.is_empty() {
            self.give_credit();
        }
        self.empty_polls = if taken == 0 { self.empty_polls + 1 } else { 0 };
        if self.empty_polls >= LOOK_EVERY {
            self.look_around();
        }
    }

    /// What need not happen at each poll.
    #[cold]
    fn look_around(&mut self) {
        self.empty_polls = 0;
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
    fn may_sleep(&mut self) -> bool {
        if self.control.is_none() {
            self.reconnect();
        }
        if !self.endpoints.completions.is_empty() || !self.block_unsent() {
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

    fn awake(&mut self, news: bool) {
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

    fn has_unsent(&self) -> bool {
        self.peers.iter().any(|peer| peer.has_work() || !peer.announced.is_empty() || peer.credit.in_flight())
    }

    fn cancel_all(&mut self) -> Vec<Completion> {
        for at in self.peers.indices() {
            self.fail_peer(at, Reason::ClosedHere);
        }
        let endpoints: Vec<_> = self.endpoints.all().map(|(index, _)| index).collect();
        for index in endpoints {
            let Some(endpoint) = self.endpoints.close(index) else { continue };
            for posted in endpoint.posted {
                self.endpoints.complete(posted, index, Outcome::Cancelled);
            }
        }
        self.endpoints.completions.drain(..).collect()
    }

    /// Everything under way to and from a peer fails.
    pub(crate) fn fail_peer(&mut self, at: PeerIndex, reason: Reason) {
        let peer = &mut self.peers[at];
        peer.urgent.clear();
        let mut sends: Vec<_> = peer.queue.drain(..).chain(peer.streams.drain(..)).collect();
        sends.extend(peer.announced.drain().map(|(_, message)| message));
        sends.extend(peer.credit.abandon());
        let begun = peer.started.take().map(|(_, incoming)| incoming);
        let receives: Vec<_> = begun.into_iter().chain(peer.pulled.drain().map(|(_, incoming)| incoming)).collect();
        let id = peer.id;
        sends.into_iter().for_each(|message| self.failed(message, reason));
        for incoming in receives {
            if let crate::peer::Into::Posted(posted) = incoming.into {
                self.endpoints.complete(posted, incoming.envelope.to, Outcome::Failed(reason));
            }
        }
        self.endpoints.all().for_each(|(_, endpoint)| endpoint.forget(id));
    }

    pub(crate) fn next_token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
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
        memory: OwnedFd,
        doorbell: OwnedFd,
    ) -> Result<(), Reason> {
        if usize::from(number.number()) != self.boards.len() {
            return Err(Reason::BoardsFull);
        }
        let doorbell = Doorbell::from(doorbell);
        let window = map(&memory, board::SIZE)?;
        self.sleeper.watch_doorbell(&doorbell).map_err(|_| Reason::OutOfFds)?;
        self.inbox.add_board(window, doorbell.clone());
        self.boards.push(OwnBoard { owner, memory, doorbell });
        Ok(())
    }
}

/// The peers of a domain.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    list: Vec<Option<Box<Peer>>>,
    index: HashMap<DomainId, PeerIndex>,
    /// Whom we looked for last.
    last: Option<(DomainId, PeerIndex)>,
}

impl Peers {
    #[inline]
    pub(crate) fn find(&mut self, domain: DomainId) -> Option<PeerIndex> {
        match self.last {
            Some((last, at)) if last == domain => Some(at),
            _ => {
                let at = *self.index.get(&domain)?;
                self.last = Some((domain, at));
                Some(at)
            }
        }
    }

    fn add(&mut self, peer: Peer) -> PeerIndex {
        let free = self.list.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.list.push(None);
            self.list.len() - 1
        });
        let at = PeerIndex(place as u32);
        self.index.insert(peer.id, at);
        self.list[place] = Some(Box::new(peer));
        at
    }

    fn remove(&mut self, at: PeerIndex) {
        if let Some(peer) = self.list[at.0 as usize].take() {
            self.index.remove(&peer.id);
            self.last = None;
        }
    }

    fn has(&self, at: PeerIndex) -> bool {
        self.list.get(at.0 as usize).is_some_and(Option::is_some)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.list.iter().flatten().map(Box::as_ref)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.list.iter_mut().flatten().map(Box::as_mut)
    }

    pub(crate) fn indices(&self) -> Vec<PeerIndex> {
        let there = |(at, peer): (usize, &Option<_>)| peer.is_some().then_some(PeerIndex(at as u32));
        self.list.iter().enumerate().filter_map(there).collect()
    }
}

impl Index<PeerIndex> for Peers {
    type Output = Peer;

    #[inline]
    fn index(&self, at: PeerIndex) -> &Peer {
        self.list[at.0 as usize].as_deref().expect("indices name peers that are there")
    }
}

impl IndexMut<PeerIndex> for Peers {
    #[inline]
    fn index_mut(&mut self, at: PeerIndex) -> &mut Peer {
        self.list[at.0 as usize].as_deref_mut().expect("indices name peers that are there")
    }
}
