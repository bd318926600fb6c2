//! The requester of a queue pair: its send requests, and how far the peer has executed them.

mod entry;

use crate::attributes::Attributes;
use crate::direct::Remote;
use crate::queue_pair::QpInit;
use crate::types::{Key, QpNumber, Status};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use entry::SendState;
pub(crate) use entry::{Datagram, SendEntry, Source};
use isthmus_layout::{DomainId, EndpointAddress};

/// A pause before the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pause {
    /// The length in nanoseconds; None until the peer reports that it is ready.
    length_ns: Option<u64>,
    /// The end, once a caller has given the time.
    until: Option<u64>,
}

/// The requester of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    /// Send requests that are not over. The first one has the sequence number `first`.
    sends: VecDeque<SendEntry>,
    first: u32,
    /// The sequence number of the next request to send.
    next: u32,
    /// The sequence number of the first request that the peer has not executed.
    acked: u32,
    /// The sequence number that the peer counts as 0: the one of the first request, less its PSN.
    base: u32,
    /// Inline bytes of send requests, `inline_max` for each.
    inline_bytes: Vec<u8>,
    /// The peer has acknowledged something, so it exists.
    established: bool,
    /// The next packet is the first of the connection, or after a refusal.
    restart: bool,
    /// A request has failed. No later request is sent.
    stopped: bool,
    pause: Option<Pause>,
    retries_left: u8,
    rnr_retries_left: u8,
    /// Reads and atomic operations without a response.
    reads_outstanding: u32,
    /// The domain and the rights of the queue pair of the peer, once it has described it.
    remote: Option<Remote>,
}

impl Requester {
    /// A requester with room for `sends_max` requests, the first of which gets this sequence number.
    pub(crate) fn new(sends_max: u32, sequence: u32) -> Self {
        Self::with_memory(VecDeque::with_capacity(sends_max.min(1024) as usize), Vec::new(), sequence)
    }

    fn with_memory(sends: VecDeque<SendEntry>, inline_bytes: Vec<u8>, sequence: u32) -> Self {
        Self {
            sends,
            first: sequence,
            next: sequence,
            acked: sequence,
            base: sequence,
            inline_bytes,
            established: false,
            restart: true,
            stopped: false,
            pause: None,
            retries_left: 0,
            rnr_retries_left: 0,
            reads_outstanding: 0,
            remote: None,
        }
    }

    /// Returns to the state after creation. The sequence numbers go on.
    pub(crate) fn reset(&mut self) {
        let sequence = self.end();
        let mut sends = core::mem::take(&mut self.sends);
        sends.clear();
        *self = Self::with_memory(sends, core::mem::take(&mut self.inline_bytes), sequence);
    }

    /// The queue pair may send: its first request has this PSN.
    pub(crate) fn begin(&mut self, attributes: &Attributes) {
        self.base = self.first.wrapping_sub(attributes.send_psn & QpNumber::MASK);
        self.renew_retries(attributes);
    }

    fn renew_retries(&mut self, attributes: &Attributes) {
        (self.retries_left, self.rnr_retries_left) = (attributes.retry_count, attributes.rnr_retry);
    }

    /// Requests that are not over, in their order.
    #[inline]
    pub(crate) fn entries(&self) -> impl Iterator<Item = &SendEntry> {
        self.sends.iter()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.sends.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    #[inline]
    pub(crate) fn entry(&self, sequence: u32) -> Option<&SendEntry> {
        self.sends.get(sequence.wrapping_sub(self.first) as usize)
    }

    #[inline]
    fn entry_mut(&mut self, sequence: u32) -> Option<&mut SendEntry> {
        self.sends.get_mut(sequence.wrapping_sub(self.first) as usize)
    }

    /// The sequence number after the last request.
    #[inline]
    pub(crate) fn end(&self) -> u32 {
        self.first.wrapping_add(self.sends.len() as u32)
    }

    /// True if the request with this sequence number was posted before the other one. Both are under way, or were posted later.
    #[inline]
    pub(crate) const fn precedes(&self, sequence: u32, other: u32) -> bool {
        sequence.wrapping_sub(self.first) < other.wrapping_sub(self.first)
    }

    /// Adds a request.
    #[inline]
    pub(crate) fn push(&mut self, entry: SendEntry) {
        self.sends.push_back(entry);
    }

    /// The place of a request's inline bytes.
    #[inline]
    fn inline_place(init: &QpInit, sequence: u32) -> usize {
        (sequence % init.sends_max.max(1)) as usize * init.inline_max as usize
    }

    /// The inline bytes of a request.
    #[inline]
    pub(crate) fn inline_bytes(&self, init: &QpInit, sequence: u32, len: u32) -> &[u8] {
        &self.inline_bytes[Self::inline_place(init, sequence)..][..len as usize]
    }

    /// The room for the inline bytes of the request that is pushed next.
    #[inline]
    pub(crate) fn inline_room(&mut self, init: &QpInit) -> &mut [u8] {
        if self.inline_bytes.is_empty() {
            self.inline_bytes.resize(init.inline_max as usize * init.sends_max as usize, 0);
        }
        let place = Self::inline_place(init, self.end());
        &mut self.inline_bytes[place..][..init.inline_max as usize]
    }

    /// The next request that may be sent, with `reads_max` reads and atomic operations under way at most. It counts as sent.
    #[inline]
    pub(crate) fn send_next(&mut self, reads_max: u32) -> Option<u32> {
        if self.pause.is_some() || self.stopped {
            return None;
        }
        let (sequence, reads) = (self.next, self.reads_outstanding);
        let entry = self.entry_mut(sequence)?;
        let wants_response = entry.wants_response();
        if entry.fence && reads > 0 || wants_response && reads > 0 && reads >= reads_max {
            return None;
        }
        (entry.state, entry.queued) = (SendState::Sent, true);
        self.reads_outstanding += u32::from(wants_response);
        self.next = sequence.wrapping_add(1);
        Some(sequence)
    }

    /// A request with a packet that waits for the caller.
    #[inline]
    pub(crate) fn queued(&self, sequence: u32) -> Option<&SendEntry> {
        self.entry(sequence).filter(|entry| entry.queued)
    }

    /// The caller has taken the packet of a request, or there is none if it was not `transmitted`.
    #[inline]
    pub(crate) fn packet_taken(&mut self, sequence: u32, transmitted: bool) {
        if let Some(entry) = self.entry_mut(sequence) {
            entry.queued = false;
            entry.transmissions += u32::from(transmitted);
            self.restart &= !transmitted;
        }
    }

    /// A transmission of a request was confirmed. False if the request is over.
    #[inline]
    pub(crate) fn confirm_transmission(&mut self, sequence: u32) -> bool {
        let entry = self.entry_mut(sequence);
        entry.map(|entry| entry.transmissions = entry.transmissions.saturating_sub(1)).is_some()
    }

    /// The transport confirms no more packets to this domain.
    pub(crate) fn forget_transmissions(&mut self, domain: DomainId, peer: Option<EndpointAddress>) {
        for entry in &mut self.sends {
            if entry.destination(peer).is_some_and(|to| to.domain == domain) {
                (entry.queued, entry.transmissions, entry.response_coming) = (false, 0, false);
            }
        }
    }

    /// The position of a request for a peer that has acknowledged nothing yet, modulo 256: it may belong to an earlier connection.
    #[inline]
    pub(crate) fn position_of_attempt(&self, sequence: u32) -> Option<u32> {
        (!self.established).then(|| sequence.wrapping_sub(self.base) & 0xff)
    }

    /// True if a refusal with this count is of the present attempt.
    pub(crate) const fn is_of_attempt(&self, count: u32) -> bool {
        (self.acked.wrapping_sub(self.base) ^ count) & 0xff == 0
    }

    /// The next packet is the first of an attempt.
    #[inline]
    pub(crate) const fn restarts(&self) -> bool {
        self.restart
    }

    /// The number of requests that the peer has executed since the last count, by its count modulo 2²⁴. None if that cannot be.
    #[inline]
    pub(crate) fn newly_executed(&self, count: u32) -> Option<u32> {
        let executed = count.wrapping_sub(self.acked.wrapping_sub(self.base)) & QpNumber::MASK;
        (executed <= self.next.wrapping_sub(self.acked)).then_some(executed)
    }

    /// The peer has executed this number of requests more.
    #[inline]
    pub(crate) fn confirm_executed(&mut self, executed: u32, attributes: &Attributes) {
        self.acked = self.acked.wrapping_add(executed);
        self.established = true;
        self.renew_retries(attributes);
    }

    /// Requests were sent that the peer has not executed.
    #[inline]
    pub(crate) const fn waits_for_execution(&self) -> bool {
        self.next != self.acked
    }

    /// No request is under way.
    pub(crate) const fn is_drained(&self) -> bool {
        self.next == self.first
    }

    /// The first request that the peer has executed, and that has no response yet, nor the beginning of one.
    fn unanswered(&self) -> Option<u32> {
        let executed = self.acked.wrapping_sub(self.first) as usize;
        let at = self.sends.iter().take(executed).position(SendEntry::is_unanswered)?;
        Some(self.first.wrapping_add(at as u32))
    }

    /// A request was executed, and its response has not begun to arrive.
    pub(crate) fn misses_response(&self) -> bool {
        self.unanswered().is_some()
    }

    /// The first request that is not executed or has no response.
    pub(crate) fn first_unfinished(&self) -> u32 {
        self.unanswered().unwrap_or(self.acked)
    }

    /// The request that the next response is for, with its sequence number.
    pub(crate) fn awaiting_response(&mut self) -> Option<(u32, &mut SendEntry)> {
        let sequence = self.unanswered()?;
        Some((sequence, self.entry_mut(sequence).filter(|entry| entry.state == SendState::Sent)?))
    }

    /// The response to a request is complete. False if the request is over.
    pub(crate) fn answered(&mut self, sequence: u32) -> bool {
        let Some(entry) = self.entry_mut(sequence) else { return false };
        if !core::mem::replace(&mut entry.answered, true) {
            self.reads_outstanding = self.reads_outstanding.saturating_sub(1);
        }
        true
    }

    /// The first request, if it is over, with its status.
    #[inline]
    pub(crate) fn front_over(&self, reliable: bool) -> Option<(&SendEntry, Status)> {
        let acked = !reliable || self.acked != self.first;
        let entry = self.sends.front()?;
        match entry.state {
            SendState::Sent if acked && entry.answered && !entry.is_in_use() => Some((entry, Status::Success)),
            SendState::Failed(status) => Some((entry, status)),
            SendState::Sent | SendState::Waiting => None,
        }
    }

    /// Removes the first request.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<SendEntry> {
        self.first = self.first.wrapping_add(1);
        self.sends.pop_front()
    }

    /// The first request under way that needs a region.
    pub(crate) fn first_use(&self, key: Key) -> Option<(u32, &SendEntry)> {
        let uses = |entry: &SendEntry| matches!(&entry.source, Source::Memory(list) if list.uses(key));
        let is_over = |entry: &SendEntry| !entry.is_in_use() && entry.answered || entry.state == SendState::Waiting;
        let at = self.sends.iter().position(|entry| uses(entry) && !is_over(entry))?;
        Some((self.first.wrapping_add(at as u32), &self.sends[at]))
    }

    /// A request fails with this status when those before it have ended. No later one is sent. False if the request is over.
    pub(crate) fn fail(&mut self, sequence: u32, status: Status) -> bool {
        let Some(entry) = self.entry_mut(sequence) else { return false };
        if !matches!(entry.state, SendState::Failed(_)) {
            entry.state = SendState::Failed(status);
        }
        self.stopped = true;
        self.pause = None;
        true
    }

    /// A request has failed that waits for those before it.
    pub(crate) const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Ends all requests, and returns them.
    pub(crate) fn flush(&mut self) -> VecDeque<SendEntry> {
        let end = self.end();
        (self.first, self.next, self.acked) = (end, end, end);
        (self.pause, self.stopped, self.reads_outstanding) = (None, false, 0);
        core::mem::take(&mut self.sends)
    }

    /// Counts an attempt that the peer has not taken. False if there are no retries left.
    pub(crate) fn count_retry(&mut self) -> bool {
        let left = self.retries_left.checked_sub(1);
        self.retries_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Counts an attempt for which the peer had no receive request. False if there are no retries left.
    pub(crate) fn count_rnr_retry(&mut self) -> bool {
        /// A request of this number of retries is tried without end.
        const FOREVER: u8 = 7;
        let left = self.rnr_retries_left;
        if left != FOREVER {
            self.rnr_retries_left = left.saturating_sub(1);
        }
        left > 0
    }

    /// The peer has no queue pair that takes the requests.
    pub(crate) fn peer_lost(&mut self) {
        (self.established, self.restart, self.remote) = (false, true, None);
    }

    /// Goes back to the first request that the peer has not executed, and pauses.
    pub(crate) fn rewind(&mut self, length_ns: Option<u64>) {
        let acked = self.acked.wrapping_sub(self.first) as usize;
        for entry in self.sends.iter_mut().skip(acked) {
            (entry.state, entry.queued, entry.response_coming) = (SendState::Waiting, false, false);
        }
        let executed = || self.sends.iter().take(acked);
        self.reads_outstanding = executed().filter(|entry| !entry.answered).count() as u32;
        self.stopped = executed().any(|entry| matches!(entry.state, SendState::Failed(_)));
        self.next = self.acked;
        self.restart = true;
        self.pause = Some(Pause { length_ns, until: None });
    }

    #[inline]
    pub(crate) const fn is_paused(&self) -> bool {
        self.pause.is_some()
    }

    pub(crate) const fn end_pause(&mut self) {
        self.pause = None;
    }

    /// The end of a pause that has a length. The first call begins it at `now`.
    pub(crate) fn pause_until(&mut self, now: u64) -> Option<u64> {
        let pause = self.pause.as_mut()?;
        let length = pause.length_ns?;
        Some(*pause.until.get_or_insert(now.saturating_add(length)))
    }

    /// The domain and the rights of the queue pair of the peer, once it has described it.
    #[inline]
    pub(crate) const fn remote(&self) -> Option<Remote> {
        self.remote
    }

    pub(crate) const fn set_remote(&mut self, remote: Remote) {
        self.remote = Some(remote);
    }
}

#[cfg(test)]
mod tests;
