//! One endpoint, as the wire sees it. Here: what it is made of, and what a program does with it.

use super::allowance::Allowance;
use super::outbox::Letter;
use super::partner::Partner;
use super::regions::{RegionName, Regions};
use super::rendezvous::{Announced, Asked, Pull};
use super::{Address, Carried, ConnectId, Event, IgnoredCounts, IncomingId, Manner, SendId, Time, Tuning};
use crate::wire::{Dialect, EndpointNumber, NackLib, NackMcp, PeerIndex, SessionId, Sizes};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

/// What an endpoint is opened with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How the board speaks.
    pub dialect: Dialect,
    /// What all of its peers do alike.
    pub sizes: Sizes,
    /// Its number on the board.
    pub number: EndpointNumber,
    /// Drawn anew each time that an endpoint is opened; not [`SessionId::UNSET`].
    pub session: SessionId,
    /// What a connect must know.
    pub key: u32,
    /// A random number: who does not know it cannot make up frames of a transfer.
    pub secret: u32,
    /// Times and limits.
    pub tuning: Tuning,
}

/// A connect that cannot be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotConnect {
    /// As many partners as there may be.
    #[error("there are too many partners")]
    TooManyPartners,
    /// As many connects to this one as can be told apart.
    #[error("there are too many connects to this endpoint")]
    TooManyConnects,
}

/// A send that cannot be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotSend {
    /// Nobody has connected to it, or the partner was given up since.
    #[error("the endpoint is not connected")]
    NotConnected,
}

/// No such message, or nothing to pull of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no such message to pull")]
pub struct UnknownMessage;

/// Connects to one partner at a time: their numbers have 8 bits.
const CONNECTS_MAX: usize = 64;

/// Whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Partner(Address),
    Pull(u32),
}

/// A negative answer, to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    Lib(NackLib),
    Mcp(NackMcp),
}

/// One endpoint.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) setup: Setup,
    pub(crate) partners: BTreeMap<Address, Partner>,
    pub(crate) events: VecDeque<Event>,
    /// Partners with something to send.
    pub(crate) line: VecDeque<Address>,
    pub(crate) refusals: VecDeque<(PeerIndex, Refusal)>,
    pub(crate) timers: BTreeSet<(Time, Timer)>,
    pub(crate) incoming: u64,
    pub(crate) early_bytes: u64,
    pub(crate) accepting: bool,
    pub(crate) ignored: IgnoredCounts,
    pub(crate) carried: Carried,
    /// How much may be on its way to us.
    pub(crate) allowance: Allowance,
    /// Long messages that were announced and not asked for yet.
    pub(crate) announced: BTreeMap<IncomingId, Announced>,
    pub(crate) pulls: BTreeMap<u32, Pull>,
    /// Their messages.
    pub(crate) fetching: BTreeMap<IncomingId, u32>,
    /// Transfers that may have another block to ask for, in turn.
    pub(crate) hungry: VecDeque<u32>,
    /// Bytes that are on their way because transfers asked for them.
    pub(crate) fetch_bytes: u32,
    pub(crate) next_pull: u32,
    /// Transfers with questions to send.
    pub(crate) asking: VecDeque<u32>,
    /// Long messages that are being sent.
    pub(crate) regions: Regions,
    /// Partners that wait for a region.
    pub(crate) starved: VecDeque<Address>,
    /// What was asked of our regions.
    pub(crate) asked: VecDeque<Asked>,
    /// Data that was asked for and messages take turns.
    pub(crate) data_next: bool,
}

impl Endpoint {
    /// A new endpoint, which knows nobody.
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            partners: BTreeMap::new(),
            events: VecDeque::new(),
            line: VecDeque::new(),
            refusals: VecDeque::new(),
            timers: BTreeSet::new(),
            incoming: 0,
            early_bytes: 0,
            accepting: true,
            ignored: IgnoredCounts::default(),
            carried: Carried::default(),
            allowance: Allowance::new(),
            announced: BTreeMap::new(),
            pulls: BTreeMap::new(),
            fetching: BTreeMap::new(),
            hungry: VecDeque::new(),
            fetch_bytes: 0,
            next_pull: 1,
            asking: VecDeque::new(),
            regions: Regions::new(),
            starved: VecDeque::new(),
            asked: VecDeque::new(),
            data_next: false,
        }
    }

    /// What it was opened with.
    pub const fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Packets that changed nothing, by reason.
    pub const fn ignored(&self) -> &IgnoredCounts {
        &self.ignored
    }

    /// What it has carried.
    pub const fn carried(&self) -> &Carried {
        &self.carried
    }

    /// The session of a partner that messages can be sent to.
    pub fn session_of(&self, partner: Address) -> Option<SessionId> {
        self.partners.get(&partner)?.true_session
    }

    /// Bytes of messages that came before their turn and are kept by the caller.
    pub const fn early_bytes(&self) -> u64 {
        self.early_bytes
    }

    /// What has happened and was not taken yet, oldest first.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Begins a connect. [`Event::Connected`] ends it.
    pub fn connect(&mut self, now: Time, to: Address, key: u32, id: ConnectId) -> Result<(), CannotConnect> {
        if !self.partners.contains_key(&to) && self.partners.len() >= self.setup.tuning.partners_max {
            return Err(CannotConnect::TooManyPartners);
        }
        let partner = self.partners.entry(to).or_insert_with(Partner::new);
        if partner.connects.len() >= CONNECTS_MAX {
            return Err(CannotConnect::TooManyConnects);
        }
        partner.connect(now, Some(id), key);
        self.settle(now, to);
        Ok(())
    }

    /// Begins a send. [`Event::Sent`] ends it; until then its bytes stay where they are.
    pub fn send(
        &mut self,
        now: Time,
        to: Address,
        send: SendId,
        match_info: u64,
        length: u32,
        manner: Manner,
    ) -> Result<(), CannotSend> {
        let most = self.setup.tuning.eager_bytes_max.min(self.setup.sizes.medium_bytes_max());
        let partner = self.partners.get_mut(&to).ok_or(CannotSend::NotConnected)?;
        if partner.true_session.is_none() {
            return Err(CannotSend::NotConnected);
        }
        partner.outbox.push(if manner != Manner::Plain || length > most {
            let ready = if manner == Manner::OnDemand { 0 } else { length };
            Letter::Announce { send, match_info, length, region: RegionName::NONE, ready }
        } else {
            Letter::Eager { send, match_info, length }
        });
        self.settle(now, to);
        Ok(())
    }

    /// Whether new messages are taken. While they are not they are dropped, and their senders try again.
    pub fn set_accepting(&mut self, accepting: bool) {
        self.accepting = accepting;
    }

    /// Nothing is held back any more: acknowledgements that wait for company are sent now. What is there to transmit after this
    /// should be transmitted before the endpoint is closed.
    pub fn flush(&mut self, now: Time) {
        let waiting = self.partners.iter().filter(|(_, partner)| partner.inbox.ack_at().is_some());
        let waiting: alloc::vec::Vec<Address> = waiting.map(|(address, _)| *address).collect();
        for address in waiting {
            if let Some(partner) = self.partners.get_mut(&address) {
                partner.inbox.ack_now(now);
            }
            self.settle(now, address);
        }
    }

    /// Whether a partner has not acknowledged everything that was numbered: messages, announcements, ends of transfers.
    pub fn has_unacknowledged(&self) -> bool {
        self.partners.values().any(|partner| !partner.outbox.is_idle())
    }

    /// When [`tick`](Self::tick) is to be called, if nothing happens before. It may have nothing to do then.
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// Time has passed.
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
        self.believe_refusal(now, address);
        let Some(partner) = self.partners.get_mut(&address) else { return };
        partner.wake = None;
        let tuning = &self.setup.tuning;
        let fetches = self.regions.are_open_for(address);
        if fetches && partner.connects.is_empty() && now.since_us(partner.heard) >= tuning.probe_us {
            // It may have gone with what it wanted to fetch, or have given us up. Its answer tells.
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
            self.give_up(address);
        }
        self.settle(now, address);
    }

    /// After anything that concerns a partner: numbers what may be numbered, puts it in line if it has something to send, and sees
    /// to it that it is looked at in time.
    pub(crate) fn settle(&mut self, now: Time, address: Address) {
        self.admit(now, address);
        let fetches = self.regions.are_open_for(address);
        let Some(partner) = self.partners.get_mut(&address) else { return };
        if !partner.in_line && partner.has_frame(now) {
            partner.in_line = true;
            self.line.push_back(address);
        }
        // What is due now and in line will be sent when the link has room. A wake that is too early costs less than moving it.
        let in_line = partner.in_line;
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

    /// Gives numbers to what waits, as far as there is room.
    fn admit(&mut self, now: Time, address: Address) {
        let Some(partner) = self.partners.get_mut(&address) else { return };
        while let Some(letter) = partner.outbox.admissible(&self.setup.tuning) {
            let announces = matches!(letter, Letter::Announce { .. });
            if !partner.can_send() {
                // Whoever connected to us has to know our session first (7.4).
                if partner.true_session.is_some() && partner.connects.is_empty() {
                    partner.connect(now, None, 0);
                }
                return;
            }
            if announces {
                let Some(Letter::Announce { send, length, region, ready, .. }) =
                    partner.outbox.admissible(&self.setup.tuning)
                else {
                    return;
                };
                let Some(id) = self.regions.open(*send, address, *length, *ready) else {
                    if !self.starved.contains(&address) {
                        self.starved.push_back(address);
                    }
                    return;
                };
                *region = id;
            }
            partner.outbox.admit();
            partner.numbered = true;
        }
    }

    /// A name for a message that comes in.
    pub(crate) fn next_incoming(&mut self) -> IncomingId {
        self.incoming += 1;
        IncomingId(self.incoming)
    }
}
