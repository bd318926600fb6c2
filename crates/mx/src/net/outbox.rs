//! What goes to one partner: numbered, kept until acknowledged, sent again when that takes too long (mxoe-wire 8.4, 8.6, 9.6).
//!
//! ```text
//!           acked                            next
//!             ▼                                ▼
//!   ‥ known │ sent sent sent to-send to-send │ waiting waiting      numbers are given when there is room in the window
//!   ────────┴────────────────────────────────┴────────────────
//! ```
//!
//! Acknowledgements are cumulative, so a timer for the oldest is enough. When it runs out, the oldest few are sent again; what
//! is sent after them depends on how far the acknowledgement then goes. Two acknowledgements that bring nothing new say that
//! the oldest is missing while later ones arrive: it is sent again at once.
//!
//! What ends a transfer (NOTIFY) has no place in the order of messages. It gets its number before everything that waits, and a part of the
//! window is its alone: a message may wait for a region or for room that only the end of another one gives back.

use super::regions::RegionName;
use super::tuning::{RoundTrip, Tuning};
use super::{SendId, Time};
use crate::wire::SeqNum;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Messages and bytes that are sent again at a time.
const AGAIN_MESSAGES: usize = 16;
const AGAIN_BYTES: u64 = 64 << 10;

/// Acknowledgements without news that mean loss.
const EMPTY_ACKS: u8 = 2;

/// Such a part of the window is for notices alone.
const NOTICES_PART: u16 = 8;

/// What an announcement counts for in the window: its frame is short, but thousands of them at a time would find no room on their way.
const ANNOUNCEMENT_BYTES: u64 = 8 << 10;

/// No round trip is taken to be shorter.
const MEAN_US_MIN: u64 = 500;

/// Times that something is sent again before a partner is given up, however short the times are.
const RESENDS_MIN: u32 = 3;

/// What is numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Letter {
    /// A message with its bytes.
    Eager { send: SendId, match_info: u64, length: u32 },
    /// The announcement of a long message. Its region is chosen when it gets its number; so much of it is here.
    Announce { send: SendId, match_info: u64, length: u32, region: RegionName, ready: u32 },
    /// A long message has been fetched.
    Notify { total_length: u32, region: RegionName },
}

impl Letter {
    /// What it counts for in the window: bytes on the wire, about.
    fn bytes(&self) -> u64 {
        match self {
            Self::Eager { length, .. } => (*length).into(),
            Self::Announce { .. } => ANNOUNCEMENT_BYTES,
            Self::Notify { .. } => 0,
        }
    }

    /// The send that this is of.
    pub(crate) const fn send(&self) -> Option<SendId> {
        match self {
            Self::Eager { send, .. } | Self::Announce { send, .. } => Some(*send),
            Self::Notify { .. } => None,
        }
    }
}

#[derive(Debug)]
struct Flight {
    letter: Letter,
    /// Last time that all of it had been sent.
    sent: Option<Time>,
    again: bool,
    /// It is to be sent, from this fragment on.
    queued: bool,
    fragment: u32,
}

/// After a loss: as long as acknowledgements stop short of `until`, the oldest of what was sent before `before` are lost, too.
#[derive(Clone, Copy, Debug)]
struct Mending {
    until: SeqNum,
    before: Time,
    /// Messages that are sent again at a time.
    most: usize,
}

/// One direction, at its beginning.
#[derive(Debug)]
pub(crate) struct Outbox {
    next: SeqNum,
    acked: SeqNum,
    /// From `acked` on.
    flights: VecDeque<Flight>,
    bytes: u64,
    waiting: VecDeque<Letter>,
    /// The same, of those that wait for nothing but a number.
    notices: VecDeque<Letter>,
    /// Numbers that are to be sent.
    queue: VecDeque<SeqNum>,
    /// When the oldest is overdue.
    overdue: Option<Time>,
    /// When the partner last acknowledged anything, or had nothing to acknowledge.
    heard: Time,
    /// Times that it has been overdue since.
    in_vain: u32,
    /// More than the oldest may be lost.
    mending: Option<Mending>,
    empty_acks: u8,
    round_trip: RoundTrip,
}

impl Outbox {
    pub(crate) fn new(first: SeqNum) -> Self {
        Self {
            next: first,
            acked: first,
            flights: VecDeque::new(),
            bytes: 0,
            waiting: VecDeque::new(),
            notices: VecDeque::new(),
            queue: VecDeque::new(),
            overdue: None,
            heard: Time::ZERO,
            in_vain: 0,
            mending: None,
            empty_acks: 0,
            round_trip: RoundTrip::default(),
        }
    }

    /// Whether everything has been acknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.waiting.is_empty() && self.notices.is_empty()
    }

    /// The number that the next message gets.
    pub(crate) const fn next(&self) -> SeqNum {
        self.next
    }

    /// Counting starts elsewhere. Only with nothing under way.
    pub(crate) fn renumber(&mut self, first: SeqNum) {
        if self.flights.is_empty() {
            (self.next, self.acked) = (first, first);
        }
    }

    /// Everything that was to be sent, in order, known to have arrived or not; the outbox is empty then.
    pub(crate) fn drain(&mut self) -> Vec<Letter> {
        let old = core::mem::replace(self, Self::new(self.next));
        old.flights.into_iter().map(|flight| flight.letter).chain(old.notices).chain(old.waiting).collect()
    }

    /// Something to send, after everything else of its kind.
    pub(crate) fn push(&mut self, letter: Letter) {
        match letter {
            Letter::Notify { .. } => self.notices.push_back(letter),
            Letter::Eager { .. } | Letter::Announce { .. } => self.waiting.push_back(letter),
        }
    }

    /// What waits for room in the window, and there is room.
    pub(crate) fn admissible(&mut self, tuning: &Tuning) -> Option<&mut Letter> {
        let window = tuning.window_messages.min(SeqNum::OUTSTANDING_MAX);
        let room = usize::from(window).saturating_sub(self.flights.len());
        if let Some(notice) = self.notices.front_mut() {
            return (room > 0).then_some(notice);
        }
        let room = room > usize::from(window / NOTICES_PART);
        let letter = self.waiting.front_mut()?;
        let bytes = letter.bytes();
        (room && (bytes == 0 || self.bytes == 0 || self.bytes + bytes <= tuning.window_bytes)).then_some(letter)
    }

    /// Numbers what was admissible.
    pub(crate) fn admit(&mut self) {
        let Some(letter) = self.notices.pop_front().or_else(|| self.waiting.pop_front()) else { return };
        self.bytes += letter.bytes();
        self.queue.push_back(self.next);
        self.next = self.next.next();
        self.flights.push_back(Flight { letter, sent: None, again: false, queued: true, fragment: 0 });
    }

    /// Whether there is something to send.
    pub(crate) fn has_frame(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The next packet: a number, what it stands for, which fragment, and whether it was sent before. `fragments` says how many there
    /// are.
    pub(crate) fn frame(
        &mut self,
        now: Time,
        tuning: &Tuning,
        fragments: impl Fn(&Letter) -> u32,
    ) -> Option<(SeqNum, Letter, u32, bool)> {
        loop {
            let seq = *self.queue.front()?;
            let flight = self.flights.get_mut(usize::from(seq.steps_from(self.acked)));
            let Some(flight) = flight else {
                // Acknowledged since.
                self.queue.pop_front();
                continue;
            };
            let (letter, fragment, again) = (flight.letter, flight.fragment, flight.sent.is_some());
            flight.fragment += 1;
            if flight.fragment >= fragments(&letter) {
                (flight.queued, flight.fragment) = (false, 0);
                flight.again |= flight.sent.is_some();
                flight.sent = Some(now);
                self.queue.pop_front();
                if self.overdue.is_none() {
                    self.heard = now;
                    self.overdue = Some(self.patience(now, tuning));
                }
            }
            return Some((seq, letter, fragment, again));
        }
    }

    fn patience(&self, now: Time, tuning: &Tuning) -> Time {
        let us = self.round_trip.overdue_us(tuning.resend_us_min, tuning.resend_us);
        now.after_us(us.saturating_mul(1 << self.in_vain.min(20)).min(tuning.resend_us))
    }

    /// An acknowledgement: what it ends, in order. `alone`: it came as a packet of its own.
    pub(crate) fn ack(&mut self, now: Time, ack: SeqNum, alone: bool, tuning: &Tuning) -> Vec<Letter> {
        let new = usize::from(ack.steps_from(self.acked));
        if new == 0 && alone && !self.flights.is_empty() {
            self.empty_ack(now);
        }
        if new == 0 || new > self.flights.len() {
            return Vec::new();
        }
        let mut ended = Vec::with_capacity(new);
        let mut all_again = true;
        for flight in self.flights.drain(..new) {
            all_again &= flight.again;
            if let Some(sent) = flight.sent.filter(|_| !flight.again && ended.len() + 1 == new) {
                self.round_trip.sample(sent, now);
            }
            ended.push(flight.letter);
        }
        self.bytes -= ended.iter().map(Letter::bytes).sum::<u64>();
        self.acked = ack;
        (self.heard, self.in_vain, self.empty_acks) = (now, 0, 0);
        self.overdue = if self.is_waiting() { Some(self.patience(now, tuning)) } else { None };
        match self.mending {
            Some(Mending { until, .. })
                if until.steps_from(ack) == 0 || until.steps_from(ack) > SeqNum::OUTSTANDING_MAX =>
            {
                self.mending = None;
            }
            Some(mut mending) => {
                // None that was sent once only had arrived: what comes next is lost as well.
                mending.most = if all_again { AGAIN_MESSAGES.min(2 * mending.most) } else { mending.most };
                self.mending = Some(mending);
                self.send_again(mending);
            }
            None => {}
        }
        ended
    }

    fn is_waiting(&self) -> bool {
        self.flights.iter().any(|flight| flight.sent.is_some())
    }

    /// Something arrives there, but not the oldest.
    fn empty_ack(&mut self, now: Time) {
        self.empty_acks = self.empty_acks.saturating_add(1);
        let Some(sent) = self.flights.front().filter(|oldest| !oldest.queued).and_then(|oldest| oldest.sent) else {
            return;
        };
        // The oldest may still be on its way, if it was sent a moment ago; if it was sent long ago, one hint is enough.
        let (age_us, mean_us) = (now.since_us(sent), self.round_trip.mean_us().unwrap_or(0));
        let sure = self.empty_acks >= EMPTY_ACKS && self.mending.is_none() && age_us >= mean_us / 2;
        if sure || age_us > 2 * mean_us.max(MEAN_US_MIN) {
            self.empty_acks = 0;
            self.mend(now, 1);
        }
    }

    /// The oldest is lost: it is sent again, and `most` at a time of those after it that turn out to be lost, too.
    fn mend(&mut self, now: Time, most: usize) {
        let mending = Mending { until: self.next, before: now, most };
        self.mending = Some(mending);
        self.send_again(mending);
    }

    /// Queues the oldest of those that may be lost and were not sent again yet.
    fn send_again(&mut self, Mending { until, before, most }: Mending) {
        let (mut messages, mut bytes) = (0, 0);
        let among = usize::from(until.steps_from(self.acked)).min(self.flights.len());
        for (number, flight) in (0..).zip(self.flights.iter_mut().take(among)) {
            let (letter, Some(sent)) = (flight.letter, flight.sent) else { continue };
            if flight.queued || sent > before {
                continue;
            }
            if messages == most || (messages > 0 && bytes + letter.bytes() > AGAIN_BYTES) {
                return;
            }
            (messages, bytes) = (messages + 1, bytes + letter.bytes());
            flight.queued = true;
            self.queue.push_back(self.acked.plus(number));
        }
    }

    /// When [`expire`](Self::expire) has something to do.
    pub(crate) const fn deadline(&self) -> Option<Time> {
        self.overdue
    }

    /// The oldest is overdue: it is sent again. False if the partner is to be given up.
    pub(crate) fn expire(&mut self, now: Time, tuning: &Tuning) -> bool {
        if now.since_us(self.heard) >= tuning.give_up_us() && self.in_vain >= RESENDS_MIN {
            return false;
        }
        self.in_vain += 1;
        self.empty_acks = 0;
        self.mend(now, AGAIN_MESSAGES);
        self.overdue = if self.is_waiting() { Some(self.patience(now, tuning)) } else { None };
        true
    }

    /// Whether this number was sent and is not acknowledged.
    pub(crate) fn is_underway(&self, seq: SeqNum) -> bool {
        let flight = self.flights.get(usize::from(seq.steps_from(self.acked)));
        flight.is_some_and(|flight| flight.sent.is_some() || flight.fragment > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(number: u64) -> Letter {
        Letter::Eager { send: SendId(number), match_info: 0, length: 10 }
    }

    fn sent(outbox: &mut Outbox, now: Time) -> Vec<u16> {
        let tuning = Tuning::default();
        while outbox.admissible(&tuning).is_some() {
            outbox.admit();
        }
        core::iter::from_fn(|| outbox.frame(now, &tuning, |_| 1)).map(|(seq, ..)| seq.to_bits()).collect()
    }

    #[test]
    fn what_is_not_acknowledged_is_sent_again_until_given_up() {
        let (mut outbox, tuning) = (Outbox::new(SeqNum::FIRST), Tuning { resends_max: 4, ..Tuning::default() });
        (0..3).for_each(|number| outbox.push(letter(number)));
        assert_eq!(sent(&mut outbox, Time::ZERO), [1, 2, 3]);
        assert_eq!(outbox.ack(Time::from_us(100), SeqNum::from_bits(3), true, &tuning), [letter(0), letter(1)]);
        assert!(outbox.ack(Time::from_us(100), SeqNum::from_bits(5), true, &tuning).is_empty(), "not sent yet");
        let mut resends = 0;
        let end = loop {
            let now = outbox.deadline().unwrap();
            if !outbox.expire(now, &tuning) {
                break now;
            }
            resends += 1;
            assert_eq!(sent(&mut outbox, now), [3]);
        };
        assert!((4..20).contains(&resends) && (2_000_000..3_000_000).contains(&end.us()), "{resends} {end:?}");
        assert_eq!(outbox.drain(), [letter(2)]);
    }

    #[test]
    fn two_acknowledgements_without_news_are_loss() {
        let (mut outbox, tuning) = (Outbox::new(SeqNum::FIRST), Tuning::default());
        (0..5).for_each(|number| outbox.push(letter(number)));
        sent(&mut outbox, Time::ZERO);
        let now = Time::from_us(300);
        outbox.ack(now, SeqNum::FIRST, true, &tuning);
        assert_eq!(sent(&mut outbox, now), []);
        outbox.ack(now, SeqNum::FIRST, true, &tuning);
        outbox.ack(now, SeqNum::FIRST, true, &tuning);
        assert_eq!(sent(&mut outbox, now), [1], "once");
        assert_eq!(outbox.ack(now, SeqNum::from_bits(6), true, &tuning).len(), 5);
        assert_eq!(outbox.deadline(), None);
    }

    #[test]
    fn numbers_wait_for_room() {
        let tuning = Tuning { window_messages: 2, ..Tuning::default() };
        let mut outbox = Outbox::new(SeqNum::from_bits(0x3fff));
        (0..3).for_each(|number| outbox.push(letter(number)));
        for _ in 0..2 {
            assert!(outbox.admissible(&tuning).is_some());
            outbox.admit();
        }
        assert!(outbox.admissible(&tuning).is_none());
        assert_eq!(outbox.next(), SeqNum::from_bits(1));
        while outbox.frame(Time::ZERO, &tuning, |_| 1).is_some() {}
        assert!(outbox.is_underway(SeqNum::from_bits(0)) && !outbox.is_underway(SeqNum::from_bits(1)));
        assert_eq!(outbox.ack(Time::ZERO, SeqNum::from_bits(0), false, &tuning), [letter(0)]);
        assert!(outbox.deadline().is_some() && outbox.admissible(&tuning).is_some());
    }
}
