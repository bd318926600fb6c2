//! Acknowledgements and refusals of the peer: completion, retries, pauses and failures of send requests.

use crate::engine::Engine;
use crate::outgoing::Outgoing;
use crate::packet::Syndrome;
use crate::types::{QpState, Status};
use alloc::vec::Vec;

/// The pause after a refusal for want of a receive request, by the code of the receiver's timer, in units of 10 µs.
const RNR_PAUSES: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// The time after which the requests to a peer that has gone have failed, at most.
const RETRIES_NS_MAX: u64 = 1_000_000_000;

impl Engine {
    /// The first request that the peer has not executed ends with this status, and with it the queue pair.
    pub(crate) fn fail_first_unacked(&mut self, slot: u32, status: Status) {
        let Some(qp) = self.qp(slot) else { return };
        // Reads that were executed without a response get none any more.
        let failed = qp.requester.first_unfinished();
        self.fail_request(slot, failed, status);
    }

    /// A request ends with this status as soon as those before it have ended, and with it the queue pair.
    pub(crate) fn fail_request(&mut self, slot: u32, sequence: u32, status: Status) {
        let Some((qp, _, outbox)) = self.parts(slot) else { return };
        if !qp.requester.fail(sequence, status) {
            return;
        }
        outbox.retain(|outgoing| match outgoing {
            Outgoing::Request { slot: of, sequence: queued } => *of != slot || qp.requester.precedes(*queued, sequence),
            _ => true,
        });
        self.pausing.retain(|pausing| *pausing != slot);
        self.retire(slot);
        if self.qp(slot).is_some_and(|qp| qp.requester.is_stopped()) {
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
        let Some(executed) = qp.requester.newly_executed(count) else { return false };
        if executed > 0 {
            qp.requester.confirm_executed(executed, &qp.attributes);
            self.retire(slot);
        }
        true
    }

    /// Handles the syndrome of an acknowledgement.
    pub(crate) fn handle_syndrome(&mut self, slot: u32, syndrome: Syndrome) {
        let Some(qp) = self.qp_mut(slot) else { return };
        let requester = &qp.requester;
        let waits = requester.waits_for_execution() || syndrome != Syndrome::None && requester.misses_response();
        match syndrome {
            Syndrome::None => {}
            Syndrome::Asks => match qp.responder.last_mut() {
                Some(request) => request.acknowledge = true,
                None => self.owe(slot, Syndrome::None),
            },
            Syndrome::NotReady | Syndrome::NotConnected => self.attempt_failed(slot),
            Syndrome::Ready if qp.requester.is_paused() => self.resume(slot),
            Syndrome::Ready => {}
            _ if !waits => {}
            Syndrome::Again => {
                self.rewind(slot, None);
                self.resume(slot);
            }
            Syndrome::ReceiverNotReady(timer) => {
                if !qp.requester.count_rnr_retry() {
                    return self.fail_first_unacked(slot, Status::RnrRetryExceeded);
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
        let requester = &mut qp.requester;
        requester.peer_lost();
        let misses_response = requester.misses_response();
        if !misses_response && (!requester.waits_for_execution() || requester.is_paused()) {
            return;
        }
        if misses_response || !requester.count_retry() {
            return self.fail_first_unacked(slot, Status::RetryExceeded);
        }
        let timeout = qp.attributes.timeout;
        self.rewind(slot, (timeout != 0).then(|| 4096 << timeout));
    }

    /// The peer has gone: what it has not executed fails when the retries of the queue pair would be over. Completions of earlier requests
    /// reach the program before that, as they do on a wire.
    pub(crate) fn peer_replies_no_more(&mut self, slot: u32) {
        let Some(qp) = self.qp(slot) else { return };
        if qp.requester.misses_response() {
            return self.fail_first_unacked(slot, Status::RetryExceeded);
        }
        if !qp.requester.is_empty() {
            let (timeout, attempts) = (qp.attributes.timeout, u64::from(qp.attributes.retry_count) + 1);
            let all = if timeout == 0 { RETRIES_NS_MAX } else { (4096 << timeout) * attempts };
            self.rewind(slot, Some(all.min(RETRIES_NS_MAX)));
        }
    }

    /// Goes back to the first request that the peer has not executed, and pauses.
    fn rewind(&mut self, slot: u32, length_ns: Option<u64>) {
        self.outbox.retain(|outgoing| !outgoing.is_request_of(slot));
        let Some(qp) = self.qp_mut(slot) else { return };
        qp.requester.rewind(length_ns);
        if length_ns.is_some() && !self.pausing.contains(&slot) {
            self.pausing.push(slot);
        }
        self.note_drained(slot);
    }

    /// Ends the pause of a queue pair.
    pub(crate) fn resume(&mut self, slot: u32) {
        self.pausing.retain(|pausing| *pausing != slot);
        if let Some(qp) = self.qp_mut(slot) {
            qp.requester.end_pause();
            self.pump(slot);
        }
    }

    /// True if a queue pair pauses for some time, so that [`Self::tick`] has to be called from time to time.
    #[inline]
    pub fn has_pauses(&self) -> bool {
        !self.pausing.is_empty() || !self.searching.is_empty()
    }

    /// Ends pauses that are over at `now`, in nanoseconds of any clock that does not go back. Returns when the next one ends.
    /// [`Self::next_look_up`] may have something for the caller then.
    pub fn tick(&mut self, now: u64) -> Option<u64> {
        let mut over = Vec::new();
        let mut next = self.tick_look_ups(now);
        for at in 0..self.pausing.len() {
            let slot = self.pausing[at];
            let Some(until) = self.qp_mut(slot).and_then(|qp| qp.requester.pause_until(now)) else { continue };
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
