//! Acknowledgements and refusals of the peer: completion, retries, pauses and failures of send requests.

use crate::engine::Engine;
use crate::outgoing::Outgoing;
use crate::packet::Syndrome;
use crate::queue_pair::{Pause, SendEntry, SendState};
use crate::types::{QpNumber, QpState, Status};
use alloc::vec::Vec;

/// The pause after a refusal for want of a receive request, by the code of the receiver's timer, in units of 10 µs.
const RNR_PAUSES: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// The time after which the requests to a peer that has gone have failed, at most.
const RETRIES_NS_MAX: u64 = 1_000_000_000;

/// A request of this number of retries is tried without end.
const RNR_RETRY_FOREVER: u8 = 7;

impl Engine {
    /// The first request that the peer has not executed ends with this status, and with it the queue pair.
    pub(crate) fn fail_first_unacked(&mut self, slot: u32, status: Status) {
        let Some(qp) = self.qp(slot) else { return };
        let acked = qp.acked;
        // Reads that were executed without a response get none any more.
        let failed = qp.unanswered().unwrap_or(acked);
        self.fail_request(slot, failed, status);
    }

    /// A request ends with this status as soon as those before it have ended, and with it the queue pair.
    pub(crate) fn fail_request(&mut self, slot: u32, sequence: u32, status: Status) {
        let Some(qp) = self.qp_mut(slot) else { return };
        let Some(entry) = qp.entry(sequence) else { return };
        if !matches!(entry.state, SendState::Failed(_)) {
            entry.state = SendState::Failed(status);
        }
        qp.stopped = true;
        qp.pause = None;
        let (first, at) = (qp.first, sequence.wrapping_sub(qp.first));
        let keeps = |outgoing: &Outgoing| match outgoing {
            Outgoing::Request { slot: of, sequence } => *of != slot || sequence.wrapping_sub(first) < at,
            _ => true,
        };
        self.outbox.retain(keeps);
        self.pausing.retain(|pausing| *pausing != slot);
        self.retire(slot);
        if self.qp(slot).is_some_and(|qp| qp.stopped) {
            self.ask(slot);
        }
    }

    /// The peer has executed this number of requests since the connection began, modulo 2²⁴. False if that cannot be.
    #[inline]
    pub(crate) fn note_executed(&mut self, slot: u32, count: u32) -> bool {
        let Some(qp) = self.qp_mut(slot) else { return false };
        if qp.state == QpState::ReadyToReceive {
            return true; // This side has sent nothing, and has no PSN yet.
        }
        let executed = count.wrapping_sub(qp.acked.wrapping_sub(qp.base)) & QpNumber::MASK;
        if executed == 0 {
            return true;
        }
        if executed > qp.next.wrapping_sub(qp.acked) {
            return false;
        }
        qp.acked = qp.acked.wrapping_add(executed);
        qp.established = true;
        (qp.retries_left, qp.rnr_retries_left) = (qp.attributes.retry_count, qp.attributes.rnr_retry);
        self.retire(slot);
        true
    }

    /// Handles the syndrome of an acknowledgement.
    pub(crate) fn handle_syndrome(&mut self, slot: u32, syndrome: Syndrome) {
        let Some(qp) = self.qp_mut(slot) else { return };
        let waits = qp.next != qp.acked || syndrome != Syndrome::None && qp.unanswered().is_some();
        match syndrome {
            Syndrome::None => {}
            Syndrome::Asks => match qp.inbound.back_mut() {
                Some(request) => request.acknowledge = true,
                None => self.owe(slot, Syndrome::None),
            },
            Syndrome::NotReady | Syndrome::NotConnected => self.attempt_failed(slot),
            Syndrome::Ready if qp.pause.is_some() => self.resume(slot),
            Syndrome::Ready => {}
            _ if !waits => {}
            Syndrome::Again => {
                self.rewind(slot, None);
                self.resume(slot);
            }
            Syndrome::ReceiverNotReady(timer) => {
                let left = qp.rnr_retries_left;
                if left == 0 {
                    return self.fail_first_unacked(slot, Status::RnrRetryExceeded);
                }
                if left != RNR_RETRY_FOREVER {
                    qp.rnr_retries_left -= 1;
                }
                self.rewind(slot, Some(u64::from(RNR_PAUSES[usize::from(timer & 31)]) * 10_000));
            }
            Syndrome::InvalidRequest => self.fail_first_unacked(slot, Status::RemoteInvalidRequest),
            Syndrome::Access => self.fail_first_unacked(slot, Status::RemoteAccess),
            Syndrome::Operation => self.fail_first_unacked(slot, Status::RemoteOperation),
        }
    }

    /// The peer has no queue pair that takes the requests.
    fn attempt_failed(&mut self, slot: u32) {
        let Some(qp) = self.qp_mut(slot) else { return };
        (qp.established, qp.restart, qp.remote) = (false, true, None);
        let unanswered = qp.unanswered().is_some();
        if !unanswered && (qp.next == qp.acked || qp.pause.is_some()) {
            return;
        }
        if unanswered || qp.retries_left == 0 {
            return self.fail_first_unacked(slot, Status::RetryExceeded);
        }
        qp.retries_left -= 1;
        let timeout = qp.attributes.timeout;
        self.rewind(slot, (timeout != 0).then(|| 4096 << timeout));
    }

    /// The peer has gone: what it has not executed fails when the retries of the queue pair would be over. Completions of earlier requests
    /// reach the program before that, as they do on a wire.
    pub(crate) fn peer_replies_no_more(&mut self, slot: u32) {
        let Some(qp) = self.qp(slot) else { return };
        if qp.unanswered().is_some() {
            return self.fail_first_unacked(slot, Status::RetryExceeded);
        }
        if !qp.sends.is_empty() {
            let (timeout, attempts) = (qp.attributes.timeout, u64::from(qp.attributes.retry_count) + 1);
            let all = if timeout == 0 { RETRIES_NS_MAX } else { (4096 << timeout) * attempts };
            self.rewind(slot, Some(all.min(RETRIES_NS_MAX)));
        }
    }

    /// Goes back to the first request that the peer has not executed, and pauses.
    fn rewind(&mut self, slot: u32, length_ns: Option<u64>) {
        self.outbox.retain(|outgoing| !outgoing.is_request_of(slot));
        let Some(qp) = self.qp_mut(slot) else { return };
        let acked = qp.acked.wrapping_sub(qp.first) as usize;
        for entry in qp.sends.iter_mut().skip(acked) {
            (entry.state, entry.queued, entry.response_coming) = (SendState::Waiting, false, false);
        }
        let unanswered = |entry: &&SendEntry| !entry.answered;
        qp.reads_outstanding = qp.sends.iter().take(acked).filter(unanswered).count() as u32;
        qp.next = qp.acked;
        qp.stopped = qp.sends.iter().take(acked).any(|entry| matches!(entry.state, SendState::Failed(_)));
        qp.restart = true;
        qp.pause = Some(Pause { length_ns, until: None });
        if length_ns.is_some() && !self.pausing.contains(&slot) {
            self.pausing.push(slot);
        }
        self.note_drained(slot);
    }

    fn resume(&mut self, slot: u32) {
        self.pausing.retain(|pausing| *pausing != slot);
        if let Some(qp) = self.qp_mut(slot) {
            qp.pause = None;
            self.pump(slot);
        }
    }

    /// True if a queue pair pauses for some time, so that [`Self::tick`] has to be called from time to time.
    #[inline]
    pub fn has_pauses(&self) -> bool {
        !self.pausing.is_empty()
    }

    /// Ends pauses that are over at `now`, in nanoseconds of any clock that does not go back. Returns when the next one ends.
    pub fn tick(&mut self, now: u64) -> Option<u64> {
        let mut over = Vec::new();
        let mut next = None;
        for at in 0..self.pausing.len() {
            let slot = self.pausing[at];
            let Some(pause) = self.qp_mut(slot).and_then(|qp| qp.pause.as_mut()) else { continue };
            let Some(length) = pause.length_ns else { continue };
            let until = *pause.until.get_or_insert(now.saturating_add(length));
            if until <= now {
                over.push(slot);
            } else {
                next = Some(next.map_or(until, |next: u64| next.min(until)));
            }
        }
        over.into_iter().for_each(|slot| self.resume(slot));
        next
    }
}
