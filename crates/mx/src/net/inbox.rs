//! Receives from one partner: delivers each message once and in order, whatever the wire does (mxoe-wire 8.2, 8.3, 8.5).
//!
//! ```text
//!           front                  match
//!             ▼                      ▼
//!   ‥ whole │ part whole part whole │ ‥ early ‥ early     numbers
//!   ────────┴───────────────────────┴──────────────────
//!    forgotten      begun, in order    kept until those before them are here
//! ```
//!
//! `front` is the acknowledged number: everything before it is complete.

use super::regions::RegionName;
use super::{EndpointTuning, Ignored, IncomingId, Time};
use crate::wire::SeqNum;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The maximum distance of an out-of-order message from the first missing one.
const EARLY_MAX: usize = 255;

/// The maximum number of hints about one loss. After that, the sender's timeout applies.
const HINTS_MAX: u32 = 4;

/// The maximum number of fragments of a message.
const FRAGMENTS_MAX: u64 = 256;

/// The use of a message number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberedKind {
    /// A message with its bytes in its own packets.
    Eager,
    /// The announcement of a long message.
    Announced { region: RegionName, offset: u16 },
    /// The end of a long message that this endpoint sent.
    Finished { region: RegionName },
}

/// The description that all packets of a message share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageInfo {
    pub(crate) kind: NumberedKind,
    pub(crate) match_info: u64,
    pub(crate) length: u32,
}

/// The bytes of a message in one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentRange {
    pub(crate) number: u8,
    pub(crate) at: u32,
    pub(crate) len: u32,
}

#[derive(Debug)]
struct IncomingMessage {
    id: IncomingId,
    info: MessageInfo,
    /// The fragments that have arrived.
    received_fragments: [u64; 4],
    /// The length of each fragment except the last, once a fragment has shown it.
    fragment_bytes: Option<u32>,
    received: u32,
    is_complete: bool,
}

impl IncomingMessage {
    fn new(id: IncomingId, info: MessageInfo) -> Self {
        Self { id, info, received_fragments: [0; 4], fragment_bytes: None, received: 0, is_complete: false }
    }

    /// Adds a fragment. Fragments cover the message without overlap: the number of a fragment determines its position.
    fn add(&mut self, frag_range: FragmentRange) -> Result<(), Ignored> {
        let (word, bit) = (usize::from(frag_range.number / 64), 1 << (frag_range.number % 64));
        if self.is_complete || self.received_fragments[word] & bit != 0 {
            return Err(Ignored::Duplicate);
        }
        let unit = match (self.fragment_bytes, u32::from(frag_range.number)) {
            (Some(unit), _) => unit,
            (None, 0) => frag_range.len,
            (None, number) => frag_range.at / number,
        };
        // A fragment number has 8 bits. Fragments that are too short for their message are refused, because it could
        // never be complete.
        if u64::from(self.info.length) > FRAGMENTS_MAX * u64::from(unit) {
            return Err(Ignored::Inconsistent);
        }
        let rest = self.info.length.checked_sub(frag_range.at).ok_or(Ignored::Inconsistent)?;
        let stands = u64::from(frag_range.at) == u64::from(frag_range.number) * u64::from(unit);
        if !stands || frag_range.len != unit.min(rest) || (frag_range.len == 0 && self.info.length != 0) {
            return Err(Ignored::Inconsistent);
        }
        self.fragment_bytes = Some(unit);
        self.received_fragments[word] |= bit;
        self.received += frag_range.len;
        self.is_complete = self.received == self.info.length;
        Ok(())
    }

    fn early_bytes(&self) -> u64 {
        if self.info.kind == NumberedKind::Eager { self.info.length.into() } else { 0 }
    }
}

/// The result of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedPart {
    pub(crate) id: IncomingId,
    pub(crate) info: MessageInfo,
    /// The message began before, and is complete now.
    pub(crate) ended: bool,
}

/// A message that is the next in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) id: IncomingId,
    pub(crate) info: MessageInfo,
    pub(crate) is_complete: bool,
}

/// The receiving end of one direction.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// The first number that is not complete.
    front: SeqNum,
    /// The messages from `front` on. The first `begun` are present.
    slots: VecDeque<Option<IncomingMessage>>,
    begun: usize,
    /// The last acknowledgement sent.
    acked: SeqNum,
    /// When an acknowledgement is due.
    ack_at: Option<Time>,
    /// The number of acknowledgements that were sent as separate packets.
    acknum: u32,
    early_bytes: u64,
    /// When the last packet of a message arrived.
    last_seen: Time,
    /// The number of hints since then.
    hints: u32,
}

impl Inbox {
    pub(crate) const fn new(first: SeqNum) -> Self {
        Self {
            front: first,
            slots: VecDeque::new(),
            begun: 0,
            acked: first,
            ack_at: None,
            acknum: 0,
            early_bytes: 0,
            last_seen: Time::ZERO,
            hints: 0,
        }
    }

    /// Returns the first number that is not complete, which an acknowledgement carries.
    pub(crate) const fn front(&self) -> SeqNum {
        self.front
    }

    /// Returns the next number to begin.
    pub(crate) fn next(&self) -> SeqNum {
        // There are fewer than 2^14 slots.
        self.front.plus(self.begun as u16)
    }

    /// Returns the bytes of messages that came out of order.
    pub(crate) const fn early_bytes(&self) -> u64 {
        self.early_bytes
    }

    /// Restarts the numbering at `first`. Returns the messages that are incomplete, or have not begun.
    pub(crate) fn restart(&mut self, first: SeqNum) -> Vec<IncomingId> {
        // The count of acknowledgements continues, because the peer ignores lower counts.
        let acknum = self.acknum;
        let old = core::mem::replace(self, Self { acknum, ..Self::new(first) });
        let slots = old.slots.into_iter().enumerate();
        let messages = slots.filter_map(|(ahead, message)| Some((ahead, message?)));
        let cut = messages.filter(|(ahead, message)| {
            message.info.kind == NumberedKind::Eager && (*ahead >= old.begun || !message.is_complete)
        });
        cut.map(|(_, message)| message.id).collect()
    }

    /// Receives a packet of a message. `id` is the identifier of a new message; `room` is the space for out-of-order
    /// bytes, or the reason why new messages are not accepted.
    pub(crate) fn take(
        &mut self,
        now: Time,
        seq: SeqNum,
        info: MessageInfo,
        frag_range: Option<FragmentRange>,
        id: IncomingId,
        room: Result<u64, Ignored>,
    ) -> Result<ReceivedPart, Ignored> {
        let ahead = usize::from(seq.steps_from(self.front));
        if ahead > self.begun + EARLY_MAX {
            return Err(self.reject(now, seq));
        }
        (self.last_seen, self.hints) = (now, 0);
        let found = self.slots.get_mut(ahead).and_then(Option::as_mut);
        if let Some(message) = found {
            if message.info != info {
                return Err(Ignored::Inconsistent);
            }
            match frag_range {
                Some(frag_range) => message.add(frag_range)?,
                None => return Err(Ignored::Duplicate),
            }
            let taken = ReceivedPart { id: message.id, info, ended: message.is_complete && ahead < self.begun };
            self.ack_if_gap(now, ahead);
            return Ok(taken);
        }
        let room = room?;
        let mut message = IncomingMessage::new(id, info);
        match frag_range {
            Some(frag_range) => message.add(frag_range)?,
            None => message.is_complete = true,
        }
        if ahead > self.begun && self.early_bytes + message.early_bytes() > room {
            return Err(Ignored::EarlyLimit);
        }
        self.early_bytes += message.early_bytes();
        while self.slots.len() <= ahead {
            self.slots.push_back(None);
        }
        self.slots[ahead] = Some(message);
        self.ack_if_gap(now, ahead);
        Ok(ReceivedPart { id, info, ended: false })
    }

    /// Schedules an acknowledgement if a message is complete and an earlier one is not, because a repeated
    /// acknowledgement tells the sender of the loss.
    fn ack_if_gap(&mut self, now: Time, ahead: usize) {
        if ahead > 0 && self.is_complete_at(ahead) && !self.is_complete_at(0) {
            self.ack_at = Some(now);
        }
    }

    fn is_complete_at(&self, ahead: usize) -> bool {
        self.slots.get(ahead).is_some_and(|slot| slot.as_ref().is_some_and(|message| message.is_complete))
    }

    fn has_complete(&self) -> bool {
        (0..self.slots.len()).any(|ahead| self.is_complete_at(ahead))
    }

    /// Rejects a duplicate, or a message too far ahead. A duplicate is acknowledged again, because the acknowledgement
    /// was lost.
    fn reject(&mut self, now: Time, seq: SeqNum) -> Ignored {
        if self.front.steps_from(seq) <= SeqNum::OUTSTANDING_MAX {
            self.ack_at = Some(now);
            return Ignored::Duplicate;
        }
        Ignored::TooEarly
    }

    /// Returns the next message in order. The caller repeats this until there is none.
    pub(crate) fn begin(&mut self) -> Option<Begun> {
        let message = self.slots.get(self.begun)?.as_ref()?;
        self.begun += 1;
        self.early_bytes -= message.early_bytes();
        Some(Begun { id: message.id, info: message.info, is_complete: message.is_complete })
    }

    /// Returns when a sender that stopped within a message counts as gone. A live sender would have retransmitted many
    /// times.
    pub(crate) fn abandoned_at(&self, tuning: &EndpointTuning) -> Option<Time> {
        if self.slots.is_empty() { None } else { Some(self.last_seen.after_us(tuning.give_up_us())) }
    }

    /// Returns when to hint to the sender that a packet is missing, although no later packet shows it.
    pub(crate) fn hint_at(&self, tuning: &EndpointTuning) -> Option<Time> {
        if self.slots.is_empty() || self.hints == HINTS_MAX {
            return None;
        }
        // 1, 3, 7, 15: each interval is twice as long as the previous one.
        Some(self.last_seen.after_us(tuning.hint_us.saturating_mul((2 << self.hints) - 1)))
    }

    /// Sends a hint: an acknowledgement that may acknowledge nothing new.
    pub(crate) fn hint(&mut self, now: Time) {
        self.hints += 1;
        self.ack_at = Some(now);
    }

    /// Updates the state after packets: forgets complete messages, and schedules an acknowledgement.
    pub(crate) fn update(&mut self, now: Time, tuning: &EndpointTuning) {
        let before = self.front;
        while self.begun > 0 && self.is_complete_at(0) {
            self.slots.pop_front();
            self.begun -= 1;
            self.front = self.front.next();
        }
        // A gap was filled. The acknowledgement is due at once, because the sender may have to retransmit the next
        // message, too.
        if self.front.steps_from(before) > 1 || (self.front != before && self.has_complete()) {
            self.ack_at = Some(now);
        }
        match self.front.steps_from(self.acked) {
            0 => {}
            few if few < tuning.ack_at_once => {
                self.ack_at.get_or_insert(now.after_us(tuning.ack_delay_us));
            }
            _ => self.ack_at = Some(now),
        }
    }

    /// Requests an immediate acknowledgement.
    pub(crate) fn ack_now(&mut self, now: Time) {
        self.ack_at = Some(now);
    }

    /// Returns when an acknowledgement has to be sent.
    pub(crate) const fn ack_at(&self) -> Option<Time> {
        self.ack_at
    }

    /// Returns the acknowledgement for a packet to carry.
    pub(crate) fn piggyback_ack(&mut self) -> SeqNum {
        self.ack_at = None;
        self.acked = self.front;
        self.front
    }

    /// Returns the acknowledgement for a separate packet, with that packet's number.
    pub(crate) fn explicit_ack(&mut self) -> (SeqNum, u32) {
        self.acknum = self.acknum.wrapping_add(1);
        (self.piggyback_ack(), self.acknum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn label(length: u32) -> MessageInfo {
        MessageInfo { kind: NumberedKind::Eager, match_info: 0, length }
    }

    fn take(inbox: &mut Inbox, number: u16, frag_range: FragmentRange, length: u32) -> Result<ReceivedPart, Ignored> {
        let id = IncomingId(number.into());
        inbox.take(Time::ZERO, SeqNum::from_bits(number), label(length), Some(frag_range), id, Ok(1000))
    }

    fn begun(inbox: &mut Inbox) -> Vec<(u64, bool)> {
        let all = core::iter::from_fn(|| inbox.begin()).map(|begun| (begun.id.0, begun.is_complete)).collect();
        inbox.update(Time::ZERO, &EndpointTuning::default());
        all
    }

    #[test]
    fn messages_begin_in_order_and_are_acknowledged_when_whole() {
        let mut inbox = Inbox::new(SeqNum::FIRST);
        let whole = FragmentRange { number: 0, at: 0, len: 5 };
        take(&mut inbox, 2, whole, 5).unwrap();
        assert_eq!((begun(&mut inbox), inbox.early_bytes()), (vec![], 5));
        take(&mut inbox, 1, FragmentRange { number: 1, at: 10, len: 3 }, 13).unwrap();
        assert_eq!(begun(&mut inbox), [(1, false), (2, true)]);
        assert_eq!((inbox.front(), inbox.next(), inbox.early_bytes()), (SeqNum::FIRST, SeqNum::from_bits(3), 0));
        assert_eq!(take(&mut inbox, 2, whole, 5), Err(Ignored::Duplicate));
        assert!(take(&mut inbox, 1, FragmentRange { number: 0, at: 0, len: 10 }, 13).unwrap().ended);
        assert_eq!(begun(&mut inbox), []);
        assert_eq!(inbox.front(), SeqNum::from_bits(3));
        assert_eq!(take(&mut inbox, 1, whole, 5), Err(Ignored::Duplicate));
        assert_eq!(inbox.ack_at(), Some(Time::ZERO), "the acknowledgement was lost");
        assert_eq!(take(&mut inbox, 3 + 256, whole, 5), Err(Ignored::TooEarly));
        assert_eq!(take(&mut inbox, 4, FragmentRange { number: 0, at: 0, len: 900 }, 1001), Err(Ignored::EarlyLimit));
    }

    #[test]
    fn fragments_that_contradict_are_refused() {
        let mut inbox = Inbox::new(SeqNum::FIRST);
        take(&mut inbox, 1, FragmentRange { number: 0, at: 0, len: 10 }, 25).unwrap();
        for (number, at, len) in [(1, 9, 10), (1, 10, 9), (2, 20, 10), (2, 15, 10), (1, 0, 10), (9, 90, 0)] {
            let refused = take(&mut inbox, 1, FragmentRange { number, at, len }, 25);
            assert_eq!(refused, Err(Ignored::Inconsistent), "{number} {at} {len}");
        }
        assert_eq!(take(&mut inbox, 1, FragmentRange { number: 1, at: 10, len: 10 }, 26), Err(Ignored::Inconsistent));
        let other = FragmentRange { number: 0, at: 0, len: 0 };
        assert_eq!(take(&mut inbox, 2, other, 9), Err(Ignored::Inconsistent), "no fragment is empty");
    }

    proptest! {
        /// Whatever a peer sends, the fragments of a complete message have covered each of its bytes once.
        #[test]
        fn complete_messages_cover_each_byte_once(length in 0_u32..40, fragments in prop::collection::vec((0_u8..6, 0_u32..40, 0_u32..20), 1..60)) {
            let mut message = IncomingMessage::new(IncomingId(1), label(length));
            let mut covered = vec![0_u8; length as usize];
            for (number, at, len) in fragments {
                if message.add(FragmentRange { number, at, len }).is_ok() {
                    covered[at as usize..(at + len) as usize].iter_mut().for_each(|byte| *byte += 1);
                }
                prop_assert!(covered.iter().all(|times| *times <= 1));
                prop_assert_eq!(message.is_complete, message.fragment_bytes.is_some() && covered.iter().all(|times| *times == 1));
            }
        }
    }
}
