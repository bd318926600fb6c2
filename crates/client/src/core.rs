//! The state of an attached domain: identity, channels, peers, endpoints. All work is done by [`Core::progress`], on the caller's
//! thread.

use crate::control::{Control, Notification};
use crate::endpoints::Endpoints;
use crate::error::{AttachError, Refusal};
use crate::matcher::{Completion, Envelope, Matcher, Outcome, Posted};
use crate::notifications::{ResumableChannel, map};
use crate::options::Options;
use crate::peer::{ChannelState, Destination, Peer, PeerIndex};
use crate::peer_table::Peers;
use crate::resume::RECONNECT_INTERVAL;
use crate::sleep::Sleeper;
use isthmus_channel::{Channel, ChannelKey, Inbox, InboxMapIndex, Polled};
use isthmus_layout::DomainId;
use isthmus_layout::control::{self, Detach, Name, Owner, RequestSerial, Ticket, ToDaemon, Welcome};
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::ids::{ChannelId, RegionId};
use isthmus_layout::ready_map::{self, ReadyBit};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::Serial;
use isthmus_platform::Doorbell;
use isthmus_shm::regcache::arena::Arena;
use isthmus_shm::regcache::{CacheConfig, RegistrationCache};
use isthmus_shm::{ForkGuard, RecordBuffer};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Records taken in one poll before the caller gets its completions.
const RECORDS_PER_POLL: usize = 32;

/// Polls between checks of the daemon's socket: a daemon that died sets no ready bit.
const SOCKET_CHECK_INTERVAL: u32 = 1 << 16;

/// How long a channel must be silent before its slab's pages are given back.
const TRIM_AFTER: Duration = Duration::from_secs(1);

/// Slab bytes that a silent channel keeps.
const TRIM_KEEP: u32 = 0;

/// The identity of this domain.
#[derive(Clone, Debug)]
pub(crate) struct LocalIdentity {
    pub(crate) domain: DomainId,
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    pub(crate) ticket: Ticket,
}

impl LocalIdentity {
    /// The identity that the daemon has assigned.
    pub(crate) fn of(welcome: &Welcome) -> Self {
        let Welcome { domain, owner, ticket, .. } = *welcome;
        Self { domain, name: welcome.name.clone(), owner, ticket }
    }
}

/// A ready map of this domain, kept for a daemon that comes back.
#[derive(Debug)]
pub(crate) struct OwnReadyMap {
    pub(crate) owner: Option<Owner>,
    pub(crate) memory: OwnedFd,
    pub(crate) doorbell: Doorbell,
    /// True if the ready map is in the window of a guest.
    pub(crate) in_guest: bool,
}

/// The state of a domain, except for the record that is being processed.
#[derive(Debug)]
pub(crate) struct Core<M: Matcher> {
    pub(crate) identity: LocalIdentity,
    pub(crate) control: Option<Control>,
    pub(crate) socket_path: PathBuf,
    pub(crate) inbox: Inbox,
    pub(crate) ring: Option<ChannelKey>,
    pub(crate) ready_maps: Vec<OwnReadyMap>,
    pub(crate) peers: Peers,
    /// The peer of each channel, by the channel's slot.
    slots: Vec<Option<PeerIndex>>,
    pub(crate) resumable_channels: HashMap<ChannelId, ResumableChannel>,
    pub(crate) endpoints: Endpoints,
    pub(crate) matcher: M,
    /// Peers with something to send.
    pub(crate) pending_peers: Vec<PeerIndex>,
    /// Peers that credit is owed to.
    pub(crate) peers_owed_credit: Vec<PeerIndex>,
    /// Requests for channels that were not answered yet.
    pub(crate) channel_requests: Vec<(RequestSerial, PeerIndex)>,
    /// Requests with a reply that the matcher gets.
    pub(crate) awaiting_reply: Vec<RequestSerial>,
    pub(crate) registration_cache: RegistrationCache,
    /// In a guest: the peers that each region of this domain is granted to, and the reason why no regions are granted, if any.
    pub(crate) region_viewers: HashMap<RegionId, Vec<DomainId>>,
    pub(crate) guest_regions_off: Option<Reason>,
    /// The memory that peers may read and write directly.
    pub(crate) arena: Option<Arc<Arena>>,
    /// The reason why this domain has no channels at all. None if it may have channels.
    pub(crate) no_channels: Option<Reason>,
    pub(crate) sleeper: Sleeper,
    /// The time of the last attempt to reconnect, and the time since which there is no daemon.
    pub(crate) last_reconnect: Option<Instant>,
    pub(crate) disconnected_since: Option<Instant>,
    pub(crate) last_refusal: Option<Refusal>,
    pub(crate) last_flight: String,
    pub(crate) faults: u64,
    pub(crate) bounced: u64,
    /// The number of records received from the daemon.
    pub(crate) daemon_records: u64,
    pub(crate) clock: u64,
    guard: ForkGuard,
    asleep: bool,
    /// True if some slab may have pages to return to the system.
    pub(crate) dirty: bool,
    polls: u32,
    next_serial: u32,
}

impl<M: Matcher> Drop for Core<M> {
    /// A program that ends says so, unless it is a child of the one that attached.
    fn drop(&mut self) {
        if self.check_alive().is_ok() {
            self.send_request(Detach {}.into(), &[]);
        }
    }
}

impl<M: Matcher> Core<M> {
    pub(crate) fn new(
        identity: LocalIdentity,
        socket_path: PathBuf,
        options: &Options,
        guard: ForkGuard,
        matcher: M,
    ) -> Result<Self, AttachError> {
        let config = CacheConfig { enabled: !options.no_regcache, ..CacheConfig::default() };
        let off = || if options.no_regcache { Reason::BufferCacheDisabled } else { Reason::BufferCacheGuestDefault };
        let guest_regions_off = (options.no_regcache || !options.regcache_in_guests).then(off);
        Ok(Self {
            identity,
            control: None,
            socket_path,
            inbox: Inbox::new(),
            ring: None,
            ready_maps: Vec::new(),
            peers: Peers::default(),
            slots: Vec::new(),
            resumable_channels: HashMap::new(),
            endpoints: Endpoints::default(),
            matcher,
            pending_peers: Vec::new(),
            peers_owed_credit: Vec::new(),
            channel_requests: Vec::new(),
            awaiting_reply: Vec::new(),
            registration_cache: RegistrationCache::new(config),
            region_viewers: HashMap::new(),
            guest_regions_off,
            arena: None,
            no_channels: options.no_channels.then_some(Reason::ChannelsDisabled),
            sleeper: Sleeper::new()?,
            last_reconnect: None,
            disconnected_since: None,
            last_refusal: None,
            last_flight: String::new(),
            faults: 0,
            bounced: 0,
            daemon_records: 0,
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

    /// Sends a request to the daemon and waits for the reply.
    pub(crate) fn request(&mut self, message: ToDaemon) -> Result<Notification, Refusal> {
        self.request_or_retry(|control| control.request(message.clone(), &[]))
    }

    /// Calls `ask` with the connection to the daemon, and once more with a new connection if the daemon turns out to be dead.
    pub(crate) fn request_or_retry<T>(
        &mut self,
        ask: impl Fn(&mut Control) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        self.check_alive()?;
        let mut answer = Err(Refusal::from(Reason::DaemonConnectionLost));
        for _ in 0..2 {
            self.last_reconnect = self.last_reconnect.map(|_| Instant::now() - RECONNECT_INTERVAL); // The caller waits: reconnect at once.
            self.reconnect();
            let Some(control) = &mut self.control else { break };
            answer = ask(control);
            if !answer.as_ref().is_err_and(|refusal| refusal.reason == Reason::DaemonConnectionLost) {
                break;
            }
            self.daemon_lost();
        }
        answer
    }

    /// Runs one iteration of the domain's work.
    #[inline]
    pub(crate) fn progress(&mut self, record: &mut RecordBuffer) {
        if self.asleep {
            // The program slept on the domain's descriptor: clear the event that woke it.
            let notification = self.sleeper.sleep(Some(Duration::ZERO));
            self.end_sleep(notification);
        }
        let mut taken = 0;
        while taken < RECORDS_PER_POLL && !self.matcher.is_busy() {
            let polled = self.inbox.poll(record);
            self.handle_polled(polled, record);
            match polled {
                Polled::Nothing => break,
                Polled::Record(key) => taken += 1 + self.receive_eager_run(key, record),
                Polled::Control(..) | Polled::Fault(..) => taken += 1,
            }
        }
        self.finish_iteration();
        self.polls += 1;
        if self.polls >= SOCKET_CHECK_INTERVAL {
            self.check_daemon();
        }
    }

    /// Ends an iteration: advances pending peers, and returns the credit that this domain owes.
    #[inline]
    pub(crate) fn finish_iteration(&mut self) {
        if !self.pending_peers.is_empty() {
            self.advance_pending_peers();
        }
        // Credit is returned at once, because the program may not call again for a while and the credit completes the peers' sends.
        if !self.peers_owed_credit.is_empty() {
            self.send_owed_credit();
        }
    }

    /// True if the next iteration has nothing to do but to poll channels. Counts as that iteration.
    #[inline]
    pub(crate) fn has_no_pending_work(&mut self) -> bool {
        self.polls += 1;
        self.polls < SOCKET_CHECK_INTERVAL
            && !self.asleep
            && self.pending_peers.is_empty()
            && self.peers_owed_credit.is_empty()
    }

    /// Does work that is not needed at each poll, such as processing notifications and reconnecting.
    #[cold]
    fn check_daemon(&mut self) {
        self.polls = 0;
        if self.check_alive().is_ok() {
            self.process_notifications();
            self.reconnect();
            self.revoke_released();
        }
    }

    #[cold]
    fn advance_pending_peers(&mut self) {
        for at in std::mem::take(&mut self.pending_peers) {
            if self.peers.contains(at) {
                self.peers[at].is_pending = false;
                self.advance(at);
            }
        }
    }

    /// True if there is nothing to do and every doorbell will ring when there is.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        if self.control.is_none() {
            self.reconnect();
        }
        if self.matcher.is_busy() || !self.block_on_full_paths() {
            return false;
        }
        self.set_alarm();
        self.asleep = true;
        let quiet = self.inbox.begin_sleep();
        if !quiet {
            self.end_sleep(false);
        }
        quiet
    }

    /// Ends a sleep of the program on the domain's descriptor, after the program has taken the event.
    pub(crate) fn woke_up(&mut self, notification: bool) {
        if self.asleep {
            self.sleeper.clear();
            self.end_sleep(notification);
        }
    }

    pub(crate) fn end_sleep(&mut self, notification: bool) {
        self.asleep = false;
        self.inbox.end_sleep();
        if notification {
            self.process_notifications();
        }
        if self.sleeper.take_alarm() {
            self.trim_idle_channels();
            self.reconnect();
        }
    }

    /// Asks every peer on a full path to notify this domain when there is room. False if there is room already.
    fn block_on_full_paths(&mut self) -> bool {
        if let (false, Some(ring)) = (self.peers_owed_credit.is_empty(), self.ring) {
            self.inbox.channel(ring).into_iter().for_each(Channel::block);
            self.send_owed_credit();
        }
        for at in self.pending_peers.clone() {
            if !self.peers.contains(at) {
                continue;
            }
            if let Some(send_path) = self.peers[at].send_path(&mut self.inbox, self.ring) {
                send_path.channel.block();
            }
            self.advance(at);
            if !self.peers[at].has_work() {
                return false;
            }
        }
        true
    }

    /// Sets the timer for work that no doorbell announces.
    fn set_alarm(&mut self) {
        if self.control.is_none() {
            self.sleeper.set_alarm(RECONNECT_INTERVAL);
        } else if self.dirty {
            self.sleeper.set_alarm(TRIM_AFTER);
        }
    }

    /// Returns pages of silent channels to the system.
    fn trim_idle_channels(&mut self) {
        self.dirty = false;
        for (_, channel) in self.inbox.channels() {
            // The next use of the channel meets the fault again and handles it.
            let _ = channel.trim(TRIM_KEEP);
            self.dirty |= channel.dirty_bytes() > TRIM_KEEP;
        }
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.peers_owed_credit.is_empty()
            || self.peers.iter().any(|peer| peer.has_work() || !peer.announced.is_empty() || peer.credit.in_flight())
    }

    /// Ends all operations, because this domain detaches.
    pub(crate) fn cancel_all(&mut self) {
        for at in self.peers.indices() {
            self.fail_peer(at, Reason::ClosedLocally);
        }
        let open: Vec<_> = self.endpoints.all().map(|(index, _)| index).collect();
        for index in open {
            self.close_endpoint(index);
        }
    }

    /// Closes an endpoint. Its posted receives complete as cancelled, and its unexpected messages are dropped. False if it is not open.
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

    /// Completes a receive.
    #[inline]
    pub(crate) fn complete(&mut self, posted: Posted, endpoint: EndpointIndex, outcome: Outcome) {
        self.matcher.complete(Completion { token: posted.token, endpoint, buffer: posted.buffer, outcome });
    }

    /// Completes a receive with its message.
    #[inline]
    pub(crate) fn received(&mut self, posted: Posted, envelope: &Envelope) {
        isthmus_shm::step!("received");
        self.matcher.received(posted, envelope);
    }

    /// Fails all operations to and from a peer.
    pub(crate) fn fail_peer(&mut self, at: PeerIndex, reason: Reason) {
        self.peers[at].urgent.clear();
        self.fail_sends(at, reason);
        let peer = &mut self.peers[at];
        let begun = peer.started.take().map(|(_, incoming)| incoming);
        let receives: Vec<_> = begun.into_iter().chain(peer.pulled.drain().map(|(_, incoming)| incoming)).collect();
        let id = peer.id;
        for incoming in receives {
            if let Destination::Posted(posted) = incoming.destination {
                self.complete(posted, incoming.envelope.to, Outcome::Failed(reason));
            }
        }
        self.matcher.forget(id);
        let open: Vec<_> = self.endpoints.all().map(|(index, _)| index).collect();
        for index in open {
            self.match_unexpected(index); // What waited behind a message that will not come.
        }
    }

    /// Fails all sends to a peer.
    pub(crate) fn fail_sends(&mut self, at: PeerIndex, reason: Reason) {
        let peer = &mut self.peers[at];
        let mut sends: Vec<_> = peer.credit.abandon();
        sends.extend(peer.announced.drain().map(|(_, message)| message));
        sends.extend(peer.streams.drain(..).chain(peer.queue.drain(..)));
        sends.sort_unstable_by_key(|message| message.token);
        sends.into_iter().for_each(|message| self.fail_send(message, reason));
    }

    /// Like [`Self::fail_peer`], except that the credit of the daemon path is kept, and messages that were not begun stay queued for
    /// another path.
    pub(crate) fn fail_path(&mut self, at: PeerIndex, reason: Reason) {
        let queue = &mut self.peers[at].queue;
        let begun = queue.iter().take_while(|message| message.sent > 0).count();
        let kept = queue.split_off(begun);
        let credit = std::mem::take(&mut self.peers[at].credit);
        self.fail_peer(at, reason);
        let peer = &mut self.peers[at];
        (peer.queue, peer.credit) = (kept, credit);
        self.mark_pending(at);
    }

    pub(crate) fn next_serial(&mut self) -> Serial {
        self.next_serial = self.next_serial.wrapping_add(1).max(1);
        Serial(self.next_serial)
    }

    /// Returns the peer of a domain, and adds it to the table if it is not there.
    #[inline]
    pub(crate) fn peer(&mut self, domain: DomainId) -> PeerIndex {
        match self.peers.find(domain) {
            Some(at) => at,
            None => self.peers.add(Peer::new(domain)),
        }
    }

    pub(crate) fn find_peer(&self, domain: DomainId) -> Option<PeerIndex> {
        self.peers.index.get(&domain).copied()
    }

    pub(crate) fn forget_peer(&mut self, at: PeerIndex) {
        self.channel_requests.retain(|(_, asked)| *asked != at);
        self.peers_owed_credit.retain(|owing| *owing != at);
        self.pending_peers.retain(|pending| *pending != at);
        self.peers.remove(at);
    }

    pub(crate) fn assign_channel(&mut self, key: ChannelKey, at: PeerIndex) {
        if self.slots.len() <= key.slot() {
            self.slots.resize(key.slot() + 1, None);
        }
        self.slots[key.slot()] = Some(at);
    }

    #[inline]
    pub(crate) fn peer_of_channel(&self, key: ChannelKey) -> Option<PeerIndex> {
        self.slots.get(key.slot()).copied().flatten()
    }

    pub(crate) fn channel_by_id(&self, id: ChannelId) -> Option<(PeerIndex, ChannelKey)> {
        self.peers.indices().into_iter().find_map(|at| match self.peers[at].channel_state {
            ChannelState::Made { id: made, key, .. } if made == id => Some((at, key)),
            _ => None,
        })
    }

    pub(crate) fn ready_map(&self, ready_map: control::ReadyMapIndex) -> Option<InboxMapIndex> {
        (usize::from(ready_map.number()) < self.ready_maps.len()).then_some(InboxMapIndex(ready_map.number()))
    }

    /// Adds a channel to the inbox. Its ready map's doorbell is in the sleep set while the ready map has channels.
    pub(crate) fn add_to_inbox(
        &mut self,
        channel: Channel,
        ready_map: InboxMapIndex,
        ready_bit: ReadyBit,
    ) -> Result<ChannelKey, Reason> {
        if !self.inbox.has_channels(ready_map) {
            let doorbell = &self.ready_maps[usize::from(ready_map.0)].doorbell;
            self.sleeper.watch_doorbell(doorbell).map_err(|_| Reason::OutOfFds)?;
        }
        Ok(self.inbox.add(channel, ready_map, ready_bit))
    }

    /// Removes a channel from the inbox. A ready map without channels leaves the sleep set, so that its doorbell wakes no program.
    pub(crate) fn remove_from_inbox(&mut self, key: ChannelKey) {
        let Some(ready_map) = self.inbox.ready_map_of(key) else { return };
        self.inbox.remove(key);
        if !self.inbox.has_channels(ready_map) {
            self.sleeper.unwatch_doorbell(&self.ready_maps[usize::from(ready_map.0)].doorbell);
        }
    }

    /// Adds a ready map to the inbox. Ready maps come in the order of their numbers.
    pub(crate) fn add_ready_map(
        &mut self,
        number: control::ReadyMapIndex,
        owner: Option<Owner>,
        memory: OwnedFd,
        doorbell: Doorbell,
    ) -> Result<(), Reason> {
        if usize::from(number.number()) != self.ready_maps.len() {
            return Err(Reason::ReadyMapsFull);
        }
        let mapping = map(&memory, ready_map::SIZE)?;
        let in_guest = mapping.is_shared_across();
        self.inbox.add_ready_map(mapping, doorbell.clone());
        self.ready_maps.push(OwnReadyMap { owner, memory, doorbell, in_guest });
        Ok(())
    }
}
