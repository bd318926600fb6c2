//! The state of a peer: the path to it, queued messages, and messages in flight.
//!
//! Two paths and no third: the *channel*, once there is one, and before that (or where policy wants it) the *daemon path*, through the
//! daemon. A sender changes paths at a record of its choice: it sends `Switch` on the old path and numbers the records that
//! follow with the next epoch. The receiver takes records from the new path only after the `Switch`, so none is overtaken.

use crate::matcher::{Envelope, Posted, Token};
use isthmus_channel::{Channel, ChannelKey, ChannelSendError, Inbox};
use isthmus_layout::control::{Name, Owner, RequestSerial};
use isthmus_layout::ids::{ChannelId, EndpointIndex, RegionId};
use isthmus_layout::limits::{DAEMON_PATH_CREDIT_BYTES, DAEMON_PATH_FRAGMENT_BYTES_MAX, DAEMON_PATH_RECORD_COST};
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Fragment, Record, Route, Serial};
use isthmus_layout::{DomainId, EndpointAddress};
use isthmus_shm::regcache::arena::ArenaMapping;
use isthmus_shm::regcache::{PeerRegion, RegionUse};
use isthmus_shm::{AccessCounters, Buffer, PeerFault};
use std::collections::{HashMap, VecDeque};

/// Index of a peer in its domain's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerIndex(pub(crate) u32);

/// A path to a peer, or from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Daemon,
    Channel(ChannelKey),
}

/// The state of the channel with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelState {
    /// This domain has not asked for a channel.
    Absent,
    /// This domain has asked for a channel.
    Asked,
    /// The channel exists. The connector asked for it, and uses it once it is open, that is once the listener has it too.
    Made { id: ChannelId, key: ChannelKey, connector: bool, open: bool },
    /// There is no channel; none will be made, or none before the next try.
    Refused { reason: Reason, last: bool },
}

/// The sending and the receiving endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndpointPair {
    pub(crate) from: EndpointIndex,
    pub(crate) to: EndpointIndex,
}

/// An outgoing message.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) token: Token,
    pub(crate) endpoints: EndpointPair,
    pub(crate) tag: u64,
    pub(crate) serial: Serial,
    pub(crate) buffer: Buffer,
    /// True if the receiver is to report that it has a receive for the message.
    pub(crate) sync: bool,
    /// The number of bytes to send. It is less than the length if the receiver has less room.
    pub(crate) wanted: usize,
    /// The number of bytes that are in the slab already.
    pub(crate) sent: usize,
    /// Keeps the region of an announced message until the peer has taken the message.
    pub(crate) region_use: Option<RegionUse>,
}

/// An incoming message.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) envelope: Envelope,
    /// The number of bytes that will arrive: all, or as many as this domain asked for.
    pub(crate) expected: u64,
    pub(crate) received: u64,
    pub(crate) destination: Destination,
}

/// The destination of an incoming message.
#[derive(Debug)]
pub(crate) enum Destination {
    /// A posted receive.
    Posted(Posted),
    /// Memory of the library, because no receive matched the message when it began.
    Own(Vec<u8>),
    /// None, because the endpoint was closed.
    Discard,
}

/// The state of a grant of this domain's region to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantState {
    /// This domain has asked the daemon to pass the grant on.
    Asked(RequestSerial),
    /// The peer has the grant.
    Yes,
    /// The daemon or its policy has refused the grant.
    Refused(Reason),
}

/// A record in flight through the daemon.
#[derive(Debug)]
struct InFlightRecord {
    cost: u32,
    /// The send that is over when the peer has taken this record.
    completes: Option<Outgoing>,
    /// True if its send has failed already. The send is not reported again if the record comes back.
    abandoned: bool,
}

/// Flow control on the daemon path, both ways.
#[derive(Debug)]
pub(crate) struct DaemonPathCredit {
    remaining: u32,
    /// Records in flight, oldest first.
    in_flight: VecDeque<InFlightRecord>,
    returned: u32,
    /// The cost of records that this domain has taken and not returned credit for yet.
    pub(crate) owed: u32,
    /// True while the peer is in `peers_owed_credit`.
    pub(crate) is_due: bool,
}

impl Default for DaemonPathCredit {
    fn default() -> Self {
        Self { remaining: DAEMON_PATH_CREDIT_BYTES, in_flight: VecDeque::new(), returned: 0, owed: 0, is_due: false }
    }
}

impl DaemonPathCredit {
    /// Applies `bytes` of credit that the peer returned. Returns the sends that this completes.
    pub(crate) fn apply_return(&mut self, bytes: u32) -> Vec<Outgoing> {
        self.remaining = self.remaining.saturating_add(bytes).min(DAEMON_PATH_CREDIT_BYTES);
        self.returned = self.returned.saturating_add(bytes);
        let mut over = Vec::new();
        while let Some(record) = self.in_flight.pop_front_if(|record| record.cost <= self.returned) {
            self.returned -= record.cost;
            over.extend(record.completes);
        }
        over
    }

    /// A record came back. True if its send has failed before: then this says nothing of what was sent later.
    pub(crate) fn pop_bounced(&mut self) -> bool {
        let abandoned = self.in_flight.iter_mut().find(|record| record.abandoned);
        abandoned.is_some_and(|record| std::mem::take(&mut record.abandoned))
    }

    /// Resets the account because the path is gone. Returns the sends that fail.
    pub(crate) fn reset(&mut self) -> Vec<Outgoing> {
        let sends = self.abandon();
        *self = Self::default();
        sends
    }

    /// Abandons the records in flight, because the peer will not take them. Returns the sends that fail. The daemon's account goes on.
    pub(crate) fn abandon(&mut self) -> Vec<Outgoing> {
        let abandon = |record: &mut InFlightRecord| {
            record.abandoned = true;
            record.completes.take()
        };
        self.in_flight.iter_mut().filter_map(abandon).collect()
    }

    /// The sends that complete when the peer has taken the records in flight.
    pub(crate) fn sends(&mut self) -> impl Iterator<Item = &mut Outgoing> {
        self.in_flight.iter_mut().filter_map(|record| record.completes.as_mut())
    }

    /// True if a record is in flight.
    pub(crate) fn in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }
}

/// Another domain.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: DomainId,
    pub(crate) name: Option<Name>,
    pub(crate) owner: Option<Owner>,
    pub(crate) channel_state: ChannelState,
    /// The number of requests for a channel since the last sign of the peer.
    pub(crate) channel_attempts: u32,
    pub(crate) path_out: Path,
    pub(crate) epoch_out: u16,
    pub(crate) path_in: Path,
    pub(crate) epoch_in: u16,
    /// The path to switch to before the next record is sent.
    pub(crate) switch: Option<Path>,
    /// Why both sides return to the daemon path.
    pub(crate) fallback_reason: Option<Reason>,
    /// Short records that overtake messages.
    pub(crate) urgent: VecDeque<(EndpointPair, Record<'static>)>,
    pub(crate) queue: VecDeque<Outgoing>,
    pub(crate) streams: VecDeque<Outgoing>,
    pub(crate) announced: HashMap<Serial, Outgoing>,
    pub(crate) started: Option<(Serial, Incoming)>,
    pub(crate) pulled: HashMap<Serial, Incoming>,
    pub(crate) credit: DaemonPathCredit,
    /// Mapped regions of the peer, and the last use of each.
    pub(crate) regions: HashMap<RegionId, (PeerRegion, u64)>,
    /// The peer's arena, if it has granted one.
    pub(crate) arena_mapping: Option<ArenaMapping>,
    /// The number of checks for the peer's arena.
    pub(crate) arena_checks: u32,
    /// Grants of this domain's regions to the peer.
    pub(crate) granted: HashMap<RegionId, GrantState>,
    /// Why the policy refuses every grant to the peer. No buffer is moved for it then. The reason holds for this channel.
    pub(crate) grants_refused: Option<Reason>,
    /// Why large messages to the peer go in fragments, if they do.
    pub(crate) fragmented: Option<Reason>,
    /// Why the peer last needed help for an access to memory of this domain. `MemoryNotReady` does not replace another reason.
    pub(crate) assisted: Option<Reason>,
    /// Counts of accesses to memory between the peer and this domain. Those that the arena mapping has not handed over yet are missing.
    pub(crate) accesses: AccessCounters,
    /// True if the peer is on the domain's list of peers with something to send.
    pub(crate) is_pending: bool,
}

impl Peer {
    pub(crate) fn new(id: DomainId) -> Self {
        Self {
            id,
            name: None,
            owner: None,
            channel_state: ChannelState::Absent,
            channel_attempts: 0,
            path_out: Path::Daemon,
            epoch_out: 0,
            path_in: Path::Daemon,
            epoch_in: 0,
            switch: None,
            fallback_reason: None,
            urgent: VecDeque::new(),
            queue: VecDeque::new(),
            streams: VecDeque::new(),
            announced: HashMap::new(),
            started: None,
            pulled: HashMap::new(),
            credit: DaemonPathCredit::default(),
            regions: HashMap::new(),
            arena_mapping: None,
            arena_checks: 0,
            granted: HashMap::new(),
            grants_refused: None,
            fragmented: None,
            assisted: None,
            accesses: AccessCounters::default(),
            is_pending: false,
        }
    }

    /// True if something waits to be sent.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !(self.queue.is_empty() && self.urgent.is_empty() && self.streams.is_empty() && self.switch.is_none())
    }

    /// The sends that are not over.
    fn outgoing(&mut self) -> impl Iterator<Item = &mut Outgoing> {
        let sends = self.queue.iter_mut().chain(&mut self.streams).chain(self.announced.values_mut());
        sends.chain(self.credit.sends())
    }

    /// Gives up a send: a message that has not begun to leave is removed, any other one goes on from a copy.
    pub(crate) fn abandon_send(&mut self, token: Token) {
        self.queue.retain(|message| message.token != token || message.sent > 0);
        self.outgoing().filter(|message| message.token == token).for_each(|message| message.buffer.make_owned());
    }

    /// Releases buffers that callers have lent: outgoing messages go on from copies. Incoming messages are dropped, except those for the
    /// receives that `keep` picks out.
    pub(crate) fn release_borrowed_buffers(&mut self, keep: impl Fn(Token) -> bool) {
        self.outgoing().for_each(|message| message.buffer.make_owned());
        let begun = self.started.iter_mut().map(|(_, incoming)| incoming);
        for incoming in begun.chain(self.pulled.values_mut()) {
            if let Destination::Posted(posted) = &incoming.destination
                && !keep(posted.token)
            {
                incoming.destination = Destination::Discard;
            }
        }
    }

    pub(crate) fn address(&self, endpoint: EndpointIndex) -> EndpointAddress {
        EndpointAddress { domain: self.id, endpoint }
    }

    /// The current send path. `ring` is the domain ring.
    #[inline]
    pub(crate) fn send_path<'a>(&'a mut self, inbox: &'a mut Inbox, ring: Option<ChannelKey>) -> Option<SendPath<'a>> {
        let (key, via_daemon) = match self.path_out {
            Path::Channel(key) => (key, false),
            Path::Daemon => (ring?, true),
        };
        let channel = inbox.channel(key)?;
        let peer = via_daemon.then_some(self.id);
        Some(SendPath { channel, peer, epoch: self.epoch_out, credit: &mut self.credit })
    }
}

/// The path to a peer, ready to send on.
pub(crate) struct SendPath<'a> {
    pub(crate) channel: &'a mut Channel,
    peer: Option<DomainId>,
    epoch: u16,
    credit: &'a mut DaemonPathCredit,
}

impl SendPath<'_> {
    /// Sends a record of `bytes` message bytes, of which `message` are in the record itself.
    #[inline]
    pub(crate) fn send(
        &mut self,
        endpoints: EndpointPair,
        record: &Record<'_>,
        message: &[u8],
        bytes: u32,
    ) -> Result<(), ChannelSendError> {
        let route = Route { from: endpoints.from, to: endpoints.to, epoch: self.epoch, peer: self.peer };
        if self.peer.is_none() {
            return self.channel.send(route, record, message);
        }
        let cost = DAEMON_PATH_RECORD_COST + bytes;
        if cost > self.credit.remaining {
            return Err(ChannelSendError::Full);
        }
        self.channel.send(route, record, message)?;
        self.credit.remaining -= cost;
        self.credit.in_flight.push_back(InFlightRecord { cost, completes: None, abandoned: false });
        Ok(())
    }

    /// The last record of this message is out. Answers it if its send is over with that; on the daemon path it is over
    /// when the peer has taken it, because the daemon could die with it. For a remote peer a message that is out `whole` is the
    /// daemon's: if that dies, so does the path there, which is reported.
    #[inline]
    pub(crate) fn message_sent(&mut self, message: Outgoing, whole: bool) -> Option<Outgoing> {
        match (self.peer, self.credit.in_flight.back_mut()) {
            (Some(peer), _) if whole && peer.is_remote() => Some(message),
            (Some(_), Some(record)) => {
                record.completes = Some(message);
                None
            }
            _ => Some(message),
        }
    }

    /// Room for message bytes: `want`, or less but no less than `least`.
    pub(crate) fn reserve(&mut self, least: u32, want: u32) -> Result<Option<Fragment>, PeerFault> {
        if self.peer.is_none() {
            return self.channel.reserve(least, want);
        }
        let affordable =
            self.credit.remaining.saturating_sub(DAEMON_PATH_RECORD_COST).min(DAEMON_PATH_FRAGMENT_BYTES_MAX);
        if affordable < least.min(DAEMON_PATH_FRAGMENT_BYTES_MAX) || affordable == 0 {
            return Ok(None);
        }
        self.channel.reserve(least.min(affordable), want.min(affordable))
    }
}
