//! A partner: an endpoint of another host (mxoe-wire 6).

use super::inbox::Inbox;
use super::outbox::Outbox;
use super::tuning::RoundTrip;
use super::{ConnectId, EndpointTuning, Time};
use crate::StatusCode;
use crate::wire::{ConnectStatus, SeqNum, SessionId};
use alloc::collections::VecDeque;

/// Limit of the replies that wait to be sent. A request without room for its reply is repeated by its sender.
const REPLIES_MAX: usize = 4;

/// The number of tries of one connect that have to be refused before the refusal holds. The partner may be late or its reply lost
/// while another host sends refusals, so one try proves little.
const REFUSED_TRIES: u32 = 3;

/// A connect that has not been answered.
#[derive(Debug)]
pub(crate) struct Connect {
    /// None for a connect that this endpoint began itself: it sends one before the first message to a partner that connected to us.
    pub(crate) id: Option<ConnectId>,
    pub(crate) key: u32,
    pub(crate) seqnum: u8,
    pub(crate) started: Time,
    /// When the connect is sent next.
    pub(crate) due: Time,
    pub(crate) times: u32,
    /// The refusal of the last try. Any host can have sent it.
    refused: Option<StatusCode>,
    /// The number of tries that were refused.
    refused_tries: u32,
}

impl Connect {
    /// Returns true if the connect is to be sent.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.due <= now && self.refusal().is_none()
    }

    /// Records that a try was sent, and when the next one is due.
    pub(crate) fn record_try(&mut self, next: Time) {
        self.due = next;
        self.times += 1;
        self.refused = None;
    }

    /// Records a refusal. More refusals of the same try count as one.
    pub(crate) fn refuse(&mut self, code: StatusCode) {
        if self.refused.replace(code).is_none() {
            self.refused_tries += 1;
        }
    }

    /// Returns the refusal if it holds unless a reply arrives before the next try would be due.
    fn refusal(&self) -> Option<StatusCode> {
        self.refused.filter(|_| self.refused_tries >= REFUSED_TRIES)
    }

    /// Returns the refusal if it holds now.
    pub(crate) fn final_refusal(&self, now: Time) -> Option<StatusCode> {
        self.refusal().filter(|_| self.due <= now)
    }
}

/// A reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) session: SessionId,
    pub(crate) seqnum: u8,
    pub(crate) status: ConnectStatus,
}

/// The state of a partner.
#[derive(Debug)]
pub(crate) struct Partner {
    /// The session that messages to the partner carry.
    pub(crate) true_session: Option<SessionId>,
    /// The partner's session when it last sent a request or a reply. Both set both sessions (7.4).
    pub(crate) back_session: Option<SessionId>,
    /// The partner's session before that. Packets from it are late.
    pub(crate) previous_session: Option<SessionId>,
    /// The partner has answered one of our requests, so it knows our session.
    pub(crate) knows_session: bool,
    /// A message has been numbered in the partner's current session.
    pub(crate) has_sequenced: bool,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
    pub(crate) connects: VecDeque<Connect>,
    pub(crate) connect_seqnum: u8,
    /// The number that we expect next, as stated in the first of the pending requests.
    pub(crate) told: Option<SeqNum>,
    /// The status of a refused message. The refusal may be old; the reply to a connect shows whether the partner is gone.
    pub(crate) refused: Option<StatusCode>,
    pub(crate) replies: VecDeque<Reply>,
    /// The number of the last acknowledgement packet that counted.
    pub(crate) recv_acknum: u32,
    /// The partner is in the queue of those with packets to send.
    pub(crate) is_queued: bool,
    /// When the partner is checked next.
    pub(crate) wake: Option<Time>,
    /// When the last packet from the partner arrived.
    pub(crate) last_seen: Time,
    /// Long messages that the partner has announced and that were not requested yet.
    pub(crate) announced: u32,
    /// The round trip of its replies to PULL.
    pub(crate) pull_round_trip: RoundTrip,
}

impl Partner {
    pub(crate) fn new() -> Self {
        Self {
            true_session: None,
            back_session: None,
            previous_session: None,
            knows_session: false,
            has_sequenced: false,
            inbox: Inbox::new(SeqNum::FIRST),
            outbox: Outbox::new(SeqNum::FIRST),
            connects: VecDeque::new(),
            connect_seqnum: 0,
            told: None,
            refused: None,
            replies: VecDeque::new(),
            recv_acknum: 0,
            is_queued: false,
            wake: None,
            last_seen: Time::ZERO,
            announced: 0,
            pull_round_trip: RoundTrip::default(),
        }
    }

    /// Returns the session for TRUC, PULL and NOTIFY.
    pub(crate) fn session_back(&self) -> Option<SessionId> {
        self.back_session.or(self.true_session)
    }

    /// Returns true if messages can be sent to the partner.
    pub(crate) const fn can_send(&self) -> bool {
        self.true_session.is_some() && self.knows_session
    }

    /// Begins a connect.
    pub(crate) fn connect(&mut self, now: Time, id: Option<ConnectId>, key: u32) {
        let seqnum = self.connect_seqnum;
        self.connect_seqnum = seqnum.wrapping_add(1);
        let (started, due) = (now, now);
        self.connects.push_back(Connect { id, key, seqnum, started, due, times: 0, refused: None, refused_tries: 0 });
    }

    /// Queues a reply, unless it is queued already or the queue is full.
    pub(crate) fn reply(&mut self, reply: Reply) {
        if self.replies.len() < REPLIES_MAX && !self.replies.contains(&reply) {
            self.replies.push_back(reply);
        }
    }

    /// Returns true if there is a packet to send now.
    pub(crate) fn has_frame(&self, now: Time) -> bool {
        !self.replies.is_empty()
            || self.outbox.has_frame()
            || self.connects.iter().any(|connect| connect.is_due(now))
            || self.inbox.ack_at().is_some_and(|at| at <= now)
    }

    /// Returns when the partner has to be checked, if nothing happens before.
    ///
    /// `fetches`: the partner has long messages of ours to fetch.
    pub(crate) fn deadlines(&self, tuning: &EndpointTuning, fetches: bool) -> impl Iterator<Item = Time> {
        let probe = (fetches && self.connects.is_empty()).then(|| self.last_seen.after_us(tuning.probe_us));
        let give_up_us = tuning.give_up_us();
        let connects = self.connects.iter().flat_map(move |connect| {
            // The end of the connect, and its next transmission.
            [connect.started.after_us(give_up_us), connect.due]
        });
        let inbox = [self.inbox.ack_at(), self.inbox.hint_at(tuning), self.inbox.abandoned_at(tuning)];
        connects.chain(inbox.into_iter().flatten()).chain(self.outbox.deadline()).chain(probe)
    }
}
