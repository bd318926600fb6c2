//! Sends to one partner: numbers messages, keeps them until acknowledged, and retransmits after a timeout (mxoe-wire 8.4, 8.6, 9.6).
//!
//! ```text
//!           acked                            next
//!             ▼                                ▼
//!   ‥ known │ sent sent sent to-send to-send │ waiting waiting      numbers are given when there is room in the window
//!   ────────┴────────────────────────────────┴────────────────
//! ```
//!
//! Acknowledgements are cumulative, so a timer for the oldest message is enough. When the timer expires, the oldest few messages are
//! retransmitted; how far the next acknowledgement goes determines what follows. Two acknowledgements that bring nothing new show
//! that the oldest message is missing while later ones arrive: it is retransmitted at once.
//!
//! The end of a transfer (NOTIFY) is outside the order of messages. It gets its number before everything that waits, and a part of
//! the window is reserved for it: a message may wait for a region or for room that only the end of another transfer frees.

use super::regions::RegionName;
use super::tuning::{EndpointTuning, RoundTrip};
use super::{SendId, Time};
use crate::wire::SeqNum;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Limits of the messages and bytes that are retransmitted at a time.
const RETRANSMIT_MESSAGES_MAX: usize = 16;
const RETRANSMIT_BYTES_MAX: u64 = 64 << 10;

/// The number of acknowledgements without progress that indicates a loss.
const DUPLICATE_ACKS: u8 = 2;

/// One part in this number of the window is reserved for NOTIFY.
const NOTICE_WINDOW_DIVISOR: u16 = 8;

/// The cost of an announcement in the window. Its frame is short, but thousands at a time would overflow a queue on the path.
const ANNOUNCEMENT_BYTES: u64 = 8 << 10;

/// The minimum assumed round trip in microseconds.
const MEAN_US_MIN: u64 = 500;

/// The minimum number of retransmissions before a partner is given up, however short the times are.
const RESENDS_MIN: u32 = 3;

/// An entry that takes a message number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutboxEntry {
    /// A message with its bytes.
    Eager { send: SendId, match_info: u64, length: u32 },
    /// The announcement of a long message. Its region is chosen when it gets its number; the first `ready` bytes are available.
    Announce { send: SendId, match_info: u64, length: u32, region: RegionName, ready: u32 },
    /// The notification that a long message has been fetched.
    Notify { total_length: u32, region: RegionName },
}

impl OutboxEntry {
    /// The cost of the entry in the window: approximately its bytes on the wire.
    fn bytes(&self) -> u64 {
        match self {
            Self::Eager { length, .. } => (*length).into(),
            Self::Announce { .. } => ANNOUNCEMENT_BYTES,
            Self::Notify { .. } => 0,
        }
    }

    /// Returns the send of the entry.
    pub(crate) const fn send(&self) -> Option<SendId> {
        match self {
            Self::Eager { send, .. } | Self::Announce { send, .. } => Some(*send),
            Self::Notify { .. } => None,
        }
    }
}

#[derive(Debug)]
struct InFlight {
    entry: OutboxEntry,
    /// When the whole entry was last sent.
    sent: Option<Time>,
    retransmitted: bool,
    /// The entry is to be sent, from `fragment` on.
    queued: bool,
    fragment: u32,
}

/// The state after a loss. While acknowledgements stop short of `until`, the oldest entries sent before `before` count
/// as lost, too.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    until: SeqNum,
    before: Time,
    /// The maximum number of messages retransmitted at a time.
    most: usize,
}

/// The sending end of one direction.
#[derive(Debug)]
pub(crate) struct Outbox {
    next: SeqNum,
    acked: SeqNum,
    /// The entries from `acked` on.
    in_flight: VecDeque<InFlight>,
    bytes: u64,
    waiting: VecDeque<OutboxEntry>,
    /// Entries that wait only for a number.
    notices: VecDeque<OutboxEntry>,
    /// The numbers to send.
    queue: VecDeque<SeqNum>,
    /// When the acknowledgement of the oldest number is overdue.
    retransmit_deadline: Option<Time>,
    /// When the partner last acknowledged anything, or had nothing to acknowledge.
    last_seen: Time,
    /// The number of timeouts since then.
    timeouts: u32,
    /// The recovery from a loss, if one is in progress.
    recovery: Option<Recovery>,
    duplicate_acks: u8,
    round_trip: RoundTrip,
}

impl Outbox {
    pub(crate) fn new(first: SeqNum) -> Self {
        Self {
            next: first,
            acked: first,
            in_flight: VecDeque::new(),
            bytes: 0,
            waiting: VecDeque::new(),
            notices: VecDeque::new(),
            queue: VecDeque::new(),
            retransmit_deadline: None,
            last_seen: Time::ZERO,
            timeouts: 0,
            recovery: None,
            duplicate_acks: 0,
            round_trip: RoundTrip::default(),
        }
    }

    /// Returns true if everything has been acknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.waiting.is_empty() && self.notices.is_empty()
    }

    /// Returns the number of the next message.
    pub(crate) const fn next(&self) -> SeqNum {
        self.next
    }

    /// Restarts the numbering at `first`. Requires that nothing is in flight.
    pub(crate) fn renumber(&mut self, first: SeqNum) {
        if self.in_flight.is_empty() {
            (self.next, self.acked) = (first, first);
        }
    }

    /// Removes and returns all entries in order, acknowledged or not.
    pub(crate) fn drain(&mut self) -> Vec<OutboxEntry> {
        let old = core::mem::replace(self, Self::new(self.next));
        old.in_flight.into_iter().map(|flight| flight.entry).chain(old.notices).chain(old.waiting).collect()
    }

    /// Queues an entry behind all others of its kind.
    pub(crate) fn push(&mut self, entry: OutboxEntry) {
        match entry {
            OutboxEntry::Notify { .. } => self.notices.push_back(entry),
            OutboxEntry::Eager { .. } | OutboxEntry::Announce { .. } => self.waiting.push_back(entry),
        }
    }

    /// Returns the next waiting entry for which the window has room.
    pub(crate) fn next_admissible(&mut self, tuning: &EndpointTuning) -> Option<&mut OutboxEntry> {
        let window = tuning.window_messages.min(SeqNum::OUTSTANDING_MAX);
        let room = usize::from(window).saturating_sub(self.in_flight.len());
        if let Some(notice) = self.notices.front_mut() {
            return (room > 0).then_some(notice);
        }
        let room = room > usize::from(window / NOTICE_WINDOW_DIVISOR);
        let entry = self.waiting.front_mut()?;
        let bytes = entry.bytes();
        (room && (bytes == 0 || self.bytes == 0 || self.bytes + bytes <= tuning.window_bytes)).then_some(entry)
    }

    /// Assigns a number to the entry that [`next_admissible`](Self::next_admissible) returned.
    pub(crate) fn assign_number(&mut self) {
        let Some(entry) = self.notices.pop_front().or_else(|| self.waiting.pop_front()) else { return };
        self.bytes += entry.bytes();
        self.queue.push_back(self.next);
        self.next = self.next.next();
        self.in_flight.push_back(InFlight { entry, sent: None, retransmitted: false, queued: true, fragment: 0 });
    }

    /// Returns true if there is a packet to send.
    pub(crate) fn has_frame(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns the next packet: its number, entry and fragment, and whether it is a retransmission. `fragments` returns
    /// the number of an entry's fragments.
    pub(crate) fn frame(
        &mut self,
        now: Time,
        tuning: &EndpointTuning,
        fragments: impl Fn(&OutboxEntry) -> u32,
    ) -> Option<(SeqNum, OutboxEntry, u32, bool)> {
        loop {
            let seq = *self.queue.front()?;
            let flight = self.in_flight.get_mut(usize::from(seq.steps_from(self.acked)));
            let Some(flight) = flight else {
                // The number has been acknowledged meanwhile.
                self.queue.pop_front();
                continue;
            };
            let (entry, fragment, again) = (flight.entry, flight.fragment, flight.sent.is_some());
            flight.fragment += 1;
            if flight.fragment >= fragments(&entry) {
                (flight.queued, flight.fragment) = (false, 0);
                flight.retransmitted |= flight.sent.is_some();
                flight.sent = Some(now);
                self.queue.pop_front();
                if self.retransmit_deadline.is_none() {
                    self.last_seen = now;
                    self.retransmit_deadline = Some(self.retransmit_at(now, tuning));
                }
            }
            return Some((seq, entry, fragment, again));
        }
    }

    fn retransmit_at(&self, now: Time, tuning: &EndpointTuning) -> Time {
        let us = self.round_trip.overdue_us(tuning.resend_us_min, tuning.resend_us);
        now.after_us(us.saturating_mul(1 << self.timeouts.min(20)).min(tuning.resend_us))
    }

    /// Handles an acknowledgement, and returns the entries that it ends, in order. `alone`: it came in a packet of its
    /// own.
    pub(crate) fn ack(&mut self, now: Time, ack: SeqNum, alone: bool, tuning: &EndpointTuning) -> Vec<OutboxEntry> {
        let new = usize::from(ack.steps_from(self.acked));
        if new == 0 && alone && !self.in_flight.is_empty() {
            self.count_duplicate_ack(now);
        }
        if new == 0 || new > self.in_flight.len() {
            return Vec::new();
        }
        let mut ended = Vec::with_capacity(new);
        let mut all_again = true;
        for flight in self.in_flight.drain(..new) {
            all_again &= flight.retransmitted;
            if let Some(sent) = flight.sent.filter(|_| !flight.retransmitted && ended.len() + 1 == new) {
                self.round_trip.sample(sent, now);
            }
            ended.push(flight.entry);
        }
        self.bytes -= ended.iter().map(OutboxEntry::bytes).sum::<u64>();
        self.acked = ack;
        (self.last_seen, self.timeouts, self.duplicate_acks) = (now, 0, 0);
        self.retransmit_deadline = if self.is_waiting() { Some(self.retransmit_at(now, tuning)) } else { None };
        match self.recovery {
            Some(Recovery { until, .. })
                if until.steps_from(ack) == 0 || until.steps_from(ack) > SeqNum::OUTSTANDING_MAX =>
            {
                self.recovery = None;
            }
            Some(mut mending) => {
                // None of the entries that were sent once had arrived, so the following ones are lost as well.
                mending.most = if all_again { RETRANSMIT_MESSAGES_MAX.min(2 * mending.most) } else { mending.most };
                self.recovery = Some(mending);
                self.retransmit(mending);
            }
            None => {}
        }
        ended
    }

    fn is_waiting(&self) -> bool {
        self.in_flight.iter().any(|flight| flight.sent.is_some())
    }

    /// Counts an acknowledgement without progress: a later entry arrived, but not the oldest.
    fn count_duplicate_ack(&mut self, now: Time) {
        self.duplicate_acks = self.duplicate_acks.saturating_add(1);
        let Some(sent) = self.in_flight.front().filter(|oldest| !oldest.queued).and_then(|oldest| oldest.sent) else {
            return;
        };
        // The oldest entry may still be in flight if it was sent recently. If it was sent long ago, one such
        // acknowledgement is enough.
        let (age_us, mean_us) = (now.since_us(sent), self.round_trip.mean_us().unwrap_or(0));
        let sure = self.duplicate_acks >= DUPLICATE_ACKS && self.recovery.is_none() && age_us >= mean_us / 2;
        if sure || age_us > 2 * mean_us.max(MEAN_US_MIN) {
            self.duplicate_acks = 0;
            self.start_recovery(now, 1);
        }
    }

    /// Retransmits the oldest entry, and afterwards at most `most` at a time of the following entries that prove lost.
    fn start_recovery(&mut self, now: Time, most: usize) {
        let mending = Recovery { until: self.next, before: now, most };
        self.recovery = Some(mending);
        self.retransmit(mending);
    }

    /// Queues the oldest entries that may be lost and were not retransmitted yet.
    fn retransmit(&mut self, Recovery { until, before, most }: Recovery) {
        let (mut messages, mut bytes) = (0, 0);
        let among = usize::from(until.steps_from(self.acked)).min(self.in_flight.len());
        for (number, flight) in (0..).zip(self.in_flight.iter_mut().take(among)) {
            let (entry, Some(sent)) = (flight.entry, flight.sent) else { continue };
            if flight.queued || sent > before {
                continue;
            }
            if messages == most || (messages > 0 && bytes + entry.bytes() > RETRANSMIT_BYTES_MAX) {
                return;
            }
            (messages, bytes) = (messages + 1, bytes + entry.bytes());
            flight.queued = true;
            self.queue.push_back(self.acked.plus(number));
        }
    }

    /// Returns when [`expire`](Self::expire) is due.
    pub(crate) const fn deadline(&self) -> Option<Time> {
        self.retransmit_deadline
    }

    /// Handles a timeout: retransmits the oldest entry. Returns false if the partner has to be given up.
    pub(crate) fn expire(&mut self, now: Time, tuning: &EndpointTuning) -> bool {
        if now.since_us(self.last_seen) >= tuning.give_up_us() && self.timeouts >= RESENDS_MIN {
            return false;
        }
        self.timeouts += 1;
        self.duplicate_acks = 0;
        self.start_recovery(now, RETRANSMIT_MESSAGES_MAX);
        self.retransmit_deadline = if self.is_waiting() { Some(self.retransmit_at(now, tuning)) } else { None };
        true
    }

    /// Returns true if this number was sent and is not acknowledged.
    pub(crate) fn is_underway(&self, seq: SeqNum) -> bool {
        let flight = self.in_flight.get(usize::from(seq.steps_from(self.acked)));
        flight.is_some_and(|flight| flight.sent.is_some() || flight.fragment > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64) -> OutboxEntry {
        OutboxEntry::Eager { send: SendId(number), match_info: 0, length: 10 }
    }

    fn sent(outbox: &mut Outbox, now: Time) -> Vec<u16> {
        let tuning = EndpointTuning::default();
        while outbox.next_admissible(&tuning).is_some() {
            outbox.assign_number();
        }
        core::iter::from_fn(|| outbox.frame(now, &tuning, |_| 1)).map(|(seq, ..)| seq.to_bits()).collect()
    }

    #[test]
    fn retransmits_unacknowledged_messages_until_giving_up() {
        let (mut outbox, tuning) =
            (Outbox::new(SeqNum::FIRST), EndpointTuning { resends_max: 4, ..EndpointTuning::default() });
        (0..3).for_each(|number| outbox.push(entry(number)));
        assert_eq!(sent(&mut outbox, Time::ZERO), [1, 2, 3]);
        assert_eq!(outbox.ack(Time::from_us(100), SeqNum::from_bits(3), true, &tuning), [entry(0), entry(1)]);
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
        assert_eq!(outbox.drain(), [entry(2)]);
    }

    #[test]
    fn two_duplicate_acknowledgements_trigger_a_retransmission() {
        let (mut outbox, tuning) = (Outbox::new(SeqNum::FIRST), EndpointTuning::default());
        (0..5).for_each(|number| outbox.push(entry(number)));
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
    fn sequence_numbers_are_assigned_when_the_window_has_room() {
        let tuning = EndpointTuning { window_messages: 2, ..EndpointTuning::default() };
        let mut outbox = Outbox::new(SeqNum::from_bits(0x3fff));
        (0..3).for_each(|number| outbox.push(entry(number)));
        for _ in 0..2 {
            assert!(outbox.next_admissible(&tuning).is_some());
            outbox.assign_number();
        }
        assert!(outbox.next_admissible(&tuning).is_none());
        assert_eq!(outbox.next(), SeqNum::from_bits(1));
        while outbox.frame(Time::ZERO, &tuning, |_| 1).is_some() {}
        assert!(outbox.is_underway(SeqNum::from_bits(0)) && !outbox.is_underway(SeqNum::from_bits(1)));
        assert_eq!(outbox.ack(Time::ZERO, SeqNum::from_bits(0), false, &tuning), [entry(0)]);
        assert!(outbox.deadline().is_some() && outbox.next_admissible(&tuning).is_some());
    }
}
