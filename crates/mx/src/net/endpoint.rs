//! One endpoint toward the wire: its state, and the operations of a program on it.

use super::outbox::OutboxEntry;
use super::partner::Partner;
use super::pull_window::PullWindow;
use super::regions::{RegionName, Regions};
use super::rendezvous::{Announced, Pull, PullRequest};
use super::{
    Address, ConnectId, EndpointEvent, EndpointTuning, IgnoredCounts, IncomingId, SendId, SendMode, Time,
    TrafficCounters,
};
use crate::wire::{Dialect, EndpointNumber, NackLib, NackMcp, PeerIndex, SessionId, Sizes};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

/// The parameters of a new endpoint.
#[derive(Clone, Debug)]
pub struct EndpointSetup {
    /// The board's protocol variant.
    pub dialect: Dialect,
    /// Sizes that all of the endpoint's peers share.
    pub sizes: Sizes,
    /// The endpoint's number on the board.
    pub number: EndpointNumber,
    /// A new random session for each time that an endpoint is opened; not [`SessionId::UNSET`].
    pub session: SessionId,
    /// The key that a connect must carry.
    pub key: u32,
    /// A random number: a host that does not know it cannot forge frames of a transfer.
    pub secret: u32,
    /// Times and limits.
    pub tuning: EndpointTuning,
}

/// The reason why a connect cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The endpoint has the maximum number of partners.
    #[error("there are too many partners")]
    TooManyPartners,
    /// The maximum number of connects to this partner is pending.
    #[error("there are too many connects to this endpoint")]
    TooManyConnects,
}

/// The reason why a send cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointSendError {
    /// The endpoint is not connected, or its partner was given up.
    #[error("the endpoint is not connected")]
    NotConnected,
}

/// The message does not exist, or has nothing to pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such message to pull")]
pub struct UnknownMessage;

/// The maximum number of pending connects to one partner, because connect numbers have 8 bits.
const CONNECTS_MAX: usize = 64;

/// The subject of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Partner(Address),
    Pull(u32),
}

/// A negative acknowledgement to send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NackPacket {
    Lib(NackLib),
    Mcp(NackMcp),
}

/// One endpoint.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) setup: EndpointSetup,
    pub(crate) partners: BTreeMap<Address, Partner>,
    pub(crate) events: VecDeque<EndpointEvent>,
    /// Partners with packets to send.
    pub(crate) send_queue: VecDeque<Address>,
    pub(crate) nacks: VecDeque<(PeerIndex, NackPacket)>,
    pub(crate) timers: BTreeSet<(Time, Timer)>,
    pub(crate) incoming: u64,
    pub(crate) early_bytes: u64,
    pub(crate) is_accepting: bool,
    pub(crate) ignored: IgnoredCounts,
    pub(crate) traffic: TrafficCounters,
    /// The limit of the bytes in flight to us.
    pub(crate) pull_window: PullWindow,
    /// Long messages that were announced and not requested yet.
    pub(crate) announced: BTreeMap<IncomingId, Announced>,
    pub(crate) pulls: BTreeMap<u32, Pull>,
    /// Long messages that are complete, with their length. Their senders are not notified yet.
    pub(crate) fetched: BTreeMap<IncomingId, (Announced, u32)>,
    /// The pulls, by message.
    pub(crate) pulls_by_message: BTreeMap<IncomingId, u32>,
    /// Transfers that may have another block to request, in turn.
    pub(crate) pulls_ready: VecDeque<u32>,
    /// Bytes in flight that transfers have requested.
    pub(crate) fetch_bytes: u32,
    pub(crate) next_pull: u32,
    /// Transfers with requests to send.
    pub(crate) request_queue: VecDeque<u32>,
    /// The long messages that are being sent.
    pub(crate) regions: Regions,
    /// Partners that wait for a region.
    pub(crate) waiting_for_region: VecDeque<Address>,
    /// The requests of peers for data of our regions.
    pub(crate) pull_requests: VecDeque<PullRequest>,
    /// The next packet is requested data. Data and messages alternate.
    pub(crate) data_next: bool,
}

impl Endpoint {
    /// Returns a new endpoint without partners.
    pub fn new(setup: EndpointSetup) -> Self {
        Self {
            setup,
            partners: BTreeMap::new(),
            events: VecDeque::new(),
            send_queue: VecDeque::new(),
            nacks: VecDeque::new(),
            timers: BTreeSet::new(),
            incoming: 0,
            early_bytes: 0,
            is_accepting: true,
            ignored: IgnoredCounts::default(),
            traffic: TrafficCounters::default(),
            pull_window: PullWindow::new(),
            announced: BTreeMap::new(),
            pulls: BTreeMap::new(),
            fetched: BTreeMap::new(),
            pulls_by_message: BTreeMap::new(),
            pulls_ready: VecDeque::new(),
            fetch_bytes: 0,
            next_pull: 1,
            request_queue: VecDeque::new(),
            regions: Regions::new(),
            waiting_for_region: VecDeque::new(),
            pull_requests: VecDeque::new(),
            data_next: false,
        }
    }

    /// Returns the parameters of the endpoint.
    pub const fn setup(&self) -> &EndpointSetup {
        &self.setup
    }

    /// Returns the counts of packets that had no effect, by reason.
    pub const fn ignored(&self) -> &IgnoredCounts {
        &self.ignored
    }

    /// Returns the traffic counters.
    pub const fn traffic(&self) -> &TrafficCounters {
        &self.traffic
    }

    /// Returns the session of a partner that messages can be sent to.
    pub fn session_of(&self, partner: Address) -> Option<SessionId> {
        self.partners.get(&partner)?.true_session
    }

    /// Returns the number of bytes of out-of-order messages that the caller keeps.
    pub const fn early_bytes(&self) -> u64 {
        self.early_bytes
    }

    /// Removes and returns the oldest pending event.
    pub fn event(&mut self) -> Option<EndpointEvent> {
        self.events.pop_front()
    }

    /// Begins a connect. [`EndpointEvent::Connected`] ends it.
    pub fn connect(&mut self, now: Time, to: Address, key: u32, id: ConnectId) -> Result<(), ConnectError> {
        if !self.partners.contains_key(&to) && self.partners.len() >= self.setup.tuning.partners_max {
            return Err(ConnectError::TooManyPartners);
        }
        let partner = self.partners.entry(to).or_insert_with(Partner::new);
        if partner.connects.len() >= CONNECTS_MAX {
            return Err(ConnectError::TooManyConnects);
        }
        partner.connect(now, Some(id), key);
        self.update(now, to);
        Ok(())
    }

    /// Begins a send. [`EndpointEvent::Sent`] ends it; until then, its bytes must stay available.
    pub fn send(
        &mut self,
        now: Time,
        to: Address,
        send: SendId,
        match_info: u64,
        length: u32,
        mode: SendMode,
    ) -> Result<(), EndpointSendError> {
        let most = self.setup.tuning.eager_bytes_max.min(self.setup.sizes.medium_bytes_max());
        let partner = self.partners.get_mut(&to).ok_or(EndpointSendError::NotConnected)?;
        if partner.true_session.is_none() {
            return Err(EndpointSendError::NotConnected);
        }
        partner.outbox.push(if mode != SendMode::Standard || length > most {
            let ready = if mode == SendMode::OnDemand { 0 } else { length };
            OutboxEntry::Announce { send, match_info, length, region: RegionName::NONE, ready }
        } else {
            OutboxEntry::Eager { send, match_info, length }
        });
        self.update(now, to);
        Ok(())
    }

    /// Sets whether new messages are accepted. Otherwise they are dropped, and their senders try again.
    pub fn set_accepting(&mut self, is_accepting: bool) {
        self.is_accepting = is_accepting;
    }

    /// Makes delayed acknowledgements due now. The caller should transmit all pending packets before it closes the endpoint.
    pub fn flush(&mut self, now: Time) {
        let waiting = self.partners.iter().filter(|(_, partner)| partner.inbox.ack_at().is_some());
        let waiting: alloc::vec::Vec<Address> = waiting.map(|(address, _)| *address).collect();
        for address in waiting {
            if let Some(partner) = self.partners.get_mut(&address) {
                partner.inbox.ack_now(now);
            }
            self.update(now, address);
        }
    }

    /// Returns true if a partner has not acknowledged all numbers: of messages, announcements, and ends of transfers.
    pub fn has_unacknowledged(&self) -> bool {
        self.partners.values().any(|partner| !partner.outbox.is_idle())
    }

    /// Returns when [`tick`](Self::tick) has to be called, if no other call comes before. The call may find no work.
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// Handles the passing of time: retransmits and gives up what is due.
    pub fn tick(&mut self, now: Time) {
        while let Some((time, timer)) = self.timers.first().copied()
            && time <= now
        {
            self.timers.pop_first();
            match timer {
                Timer::Partner(address) => self.tick_partner(now, address),
                Timer::Pull(handle) => self.tick_pull(now, handle),
            }
        }
    }

    fn tick_partner(&mut self, now: Time, address: Address) {
        self.confirm_refusal(now, address);
        let Some(partner) = self.partners.get_mut(&address) else { return };
        partner.wake = None;
        let tuning = &self.setup.tuning;
        let fetches = self.regions.has_open_for(address);
        if fetches && partner.connects.is_empty() && now.since_us(partner.last_seen) >= tuning.probe_us {
            // The partner may have exited before it fetched the message, or have given us up. Its reply shows which.
            partner.connect(now, None, 0);
        }
        if partner.inbox.hint_at(tuning).is_some_and(|at| at <= now) {
            partner.inbox.hint(now);
        }
        let abandoned = partner.inbox.abandoned_at(tuning).is_some_and(|at| at <= now);
        let hopeless =
            abandoned || partner.connects.iter().any(|connect| now.since_us(connect.started) >= tuning.give_up_us());
        let overdue = partner.outbox.deadline().is_some_and(|at| at <= now);
        if hopeless || (overdue && !partner.outbox.expire(now, tuning)) {
            self.give_up_partner(address);
        }
        self.update(now, address);
    }

    /// Updates a partner after any event: assigns numbers, queues the partner if it has packets to send, and schedules
    /// its next check.
    pub(crate) fn update(&mut self, now: Time, address: Address) {
        self.assign_numbers(now, address);
        let fetches = self.regions.has_open_for(address);
        let Some(partner) = self.partners.get_mut(&address) else { return };
        if !partner.is_queued && partner.has_frame(now) {
            partner.is_queued = true;
            self.send_queue.push_back(address);
        }
        // Due packets of a queued partner are sent when the link has room. An early wake-up costs less than moving the
        // timer.
        let in_line = partner.is_queued;
        let deadlines = partner.deadlines(&self.setup.tuning, fetches);
        let Some(at) = deadlines.filter(|at| *at > now || !in_line).min() else { return };
        if partner.wake.is_none_or(|wake| at < wake) {
            if let Some(wake) = partner.wake {
                self.timers.remove(&(wake, Timer::Partner(address)));
            }
            partner.wake = Some(at);
            self.timers.insert((at, Timer::Partner(address)));
        }
    }

    /// Assigns numbers to waiting entries, as far as the window has room.
    fn assign_numbers(&mut self, now: Time, address: Address) {
        let Some(partner) = self.partners.get_mut(&address) else { return };
        while let Some(entry) = partner.outbox.next_admissible(&self.setup.tuning) {
            let announces = matches!(entry, OutboxEntry::Announce { .. });
            if !partner.can_send() {
                // A partner that connected to us has to know our session first (7.4).
                if partner.true_session.is_some() && partner.connects.is_empty() {
                    partner.connect(now, None, 0);
                }
                return;
            }
            if announces {
                let Some(OutboxEntry::Announce { send, length, region, ready, .. }) =
                    partner.outbox.next_admissible(&self.setup.tuning)
                else {
                    return;
                };
                let Some(id) = self.regions.open(*send, address, *length, *ready) else {
                    if !self.waiting_for_region.contains(&address) {
                        self.waiting_for_region.push_back(address);
                    }
                    return;
                };
                *region = id;
            }
            partner.outbox.assign_number();
            partner.has_sequenced = true;
        }
    }

    /// Returns a new identifier for an incoming message.
    pub(crate) fn next_incoming(&mut self) -> IncomingId {
        self.incoming += 1;
        IncomingId(self.incoming)
    }
}
