//! One partner of an endpoint: an endpoint of another host (mxoe-wire 6).

use super::inbox::Inbox;
use super::outbox::Outbox;
use super::tuning::RoundTrip;
use super::{ConnectId, EndpointTuning, Time};
use crate::StatusCode;
use crate::wire::{ConnectStatus, SeqNum, SessionId};
use alloc::collections::VecDeque;

/// Replies that wait to be sent. A request that finds no room for its reply comes again.
const REPLIES_MAX: usize = 4;

/// A connect without an answer.
#[derive(Debug)]
pub(crate) struct Connect {
    /// None for one that nobody asked for: we introduce ourselves before the first message to somebody who connected to us.
    pub(crate) id: Option<ConnectId>,
    pub(crate) key: u32,
    pub(crate) seqnum: u8,
    pub(crate) started: Time,
    /// When it is to be sent, for the first time or again.
    pub(crate) due: Time,
    pub(crate) times: u32,
    /// Somebody has said that it is refused.
    pub(crate) refused: Option<StatusCode>,
}

impl Connect {
    /// It is to be sent.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.due <= now && self.refused.is_none()
    }
}

/// An answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) session: SessionId,
    pub(crate) seqnum: u8,
    pub(crate) status: ConnectStatus,
}

/// What is known of it.
#[derive(Debug)]
pub(crate) struct Partner {
    /// What goes into messages to it.
    pub(crate) true_session: Option<SessionId>,
    /// Who it was when it last showed itself. Both are set by its requests and by its replies (7.4).
    pub(crate) back_session: Option<SessionId>,
    /// Who it was before that: what still comes of it is late.
    pub(crate) previous_session: Option<SessionId>,
    /// It has answered one of our requests, so that it knows our session.
    pub(crate) knows_session: bool,
    /// Something was given a number since it is who it is.
    pub(crate) has_sequenced: bool,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
    pub(crate) connects: VecDeque<Connect>,
    pub(crate) connect_seqnum: u8,
    /// What the first of the requests that are under way said we expect next.
    pub(crate) told: Option<SeqNum>,
    /// It has refused a message, which may be late news: the answer to a connect will tell.
    pub(crate) refused: Option<StatusCode>,
    pub(crate) replies: VecDeque<Reply>,
    /// The last acknowledgement packet of it that counted.
    pub(crate) recv_acknum: u32,
    /// It waits in the line of those with something to send.
    pub(crate) is_queued: bool,
    /// When it is looked at next.
    pub(crate) wake: Option<Time>,
    /// When it last said anything.
    pub(crate) last_seen: Time,
    /// Long messages that it has announced and that were not asked for yet.
    pub(crate) announced: u32,
    /// What its replies to PULL take.
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

    /// The session for TRUC, PULL and NOTIFY.
    pub(crate) fn session_back(&self) -> Option<SessionId> {
        self.back_session.or(self.true_session)
    }

    /// Whether messages can go to it.
    pub(crate) const fn can_send(&self) -> bool {
        self.true_session.is_some() && self.knows_session
    }

    /// Begins a connect.
    pub(crate) fn connect(&mut self, now: Time, id: Option<ConnectId>, key: u32) {
        let seqnum = self.connect_seqnum;
        self.connect_seqnum = seqnum.wrapping_add(1);
        self.connects.push_back(Connect { id, key, seqnum, started: now, due: now, times: 0, refused: None });
    }

    /// Puts a reply where it will be sent from, unless it is there or there are many.
    pub(crate) fn reply(&mut self, reply: Reply) {
        if self.replies.len() < REPLIES_MAX && !self.replies.contains(&reply) {
            self.replies.push_back(reply);
        }
    }

    /// Whether there is something to send now.
    pub(crate) fn has_frame(&self, now: Time) -> bool {
        !self.replies.is_empty()
            || self.outbox.has_frame()
            || self.connects.iter().any(|connect| connect.is_due(now))
            || self.inbox.ack_at().is_some_and(|at| at <= now)
    }

    /// When it has to be looked at, if nothing happens before.
    ///
    /// `fetches`: it has long messages of ours to fetch.
    pub(crate) fn deadlines(&self, tuning: &EndpointTuning, fetches: bool) -> impl Iterator<Item = Time> {
        let probe = (fetches && self.connects.is_empty()).then(|| self.last_seen.after_us(tuning.probe_us));
        let give_up_us = tuning.give_up_us();
        let connects = self.connects.iter().flat_map(move |connect| {
            // The end of its life, and the next time that it is sent.
            [connect.started.after_us(give_up_us), connect.due]
        });
        let inbox = [self.inbox.ack_at(), self.inbox.hint_at(tuning), self.inbox.abandoned_at(tuning)];
        connects.chain(inbox.into_iter().flatten()).chain(self.outbox.deadline()).chain(probe)
    }
}
