//! The states of queue pairs, and the ends of their connections.

use super::{Engine, limits};
use crate::attributes::{AttributeMask, Attributes, rules};
use crate::events::AsyncEvent;
use crate::packet::{Syndrome, Tag};
use crate::queue_pair::QpInit;
use crate::types::{Completion, CompletionKind, QpNumber, QpState, ReceiveRequest, Refused, Srq, Status};
use alloc::vec::Vec;
use isthmus_layout::{DomainId, EndpointAddress};

impl Engine {
    /// The state and the attributes of a queue pair.
    pub fn query_qp(&self, number: QpNumber) -> Option<(QpState, Attributes, QpInit)> {
        let qp = self.qp(self.slot(number)?)?;
        Some((qp.state, Attributes { state: qp.state, current_state: qp.state, ..qp.attributes }, qp.init))
    }

    /// Changes a queue pair. For a change that connects it, `peer` is the device that has the destination; without one, requests end
    /// as if the peer never replied.
    pub fn modify_qp(
        &mut self,
        number: QpNumber,
        attributes: &Attributes,
        mask: AttributeMask,
        peer: Option<EndpointAddress>,
    ) -> Result<(), Refused> {
        let slot = self.slot(number).ok_or(Refused::Invalid)?;
        let qp = self.qp_mut(slot).ok_or(Refused::Invalid)?;
        let from = qp.state;
        if mask.contains(AttributeMask::CURRENT_STATE) && attributes.current_state != from {
            return Err(Refused::Invalid);
        }
        let to = if mask.contains(AttributeMask::STATE) { attributes.state } else { from };
        let (required, optional) = rules(qp.init.kind, from, to).ok_or(Refused::Invalid)?;
        let sets = mask - AttributeMask::STATE;
        if !mask.contains(required) || !(required | optional).contains(sets) || !valid(attributes, mask) {
            return Err(Refused::Invalid);
        }
        if mask.contains(AttributeMask::ADDRESS) {
            self.end_search(slot);
        }
        let qp = self.qp_mut(slot).ok_or(Refused::Invalid)?;
        apply(&mut qp.attributes, attributes, mask);
        if mask.contains(AttributeMask::ADDRESS) {
            qp.peer = peer;
        }
        match to {
            QpState::Reset => self.end_connection(slot),
            QpState::Error => self.enter_error(slot),
            QpState::ReadyToReceive => {
                qp.state = to;
                qp.responder.begin(qp.attributes.receive_psn);
                if qp.is_reliable() {
                    self.owe(slot, Syndrome::Ready);
                    self.describe(slot, true);
                }
            }
            QpState::ReadyToSend => {
                if from == QpState::ReadyToReceive {
                    qp.requester.begin(&qp.attributes);
                }
                qp.state = to;
                if mask.contains(AttributeMask::ACCESS) {
                    self.describe(slot, false);
                }
                self.pump(slot);
            }
            QpState::SendQueueDrained if from == QpState::ReadyToSend => {
                qp.state = to;
                qp.attributes.drained_event = mask.contains(AttributeMask::DRAINED_EVENT) && attributes.drained_event;
                self.note_drained(slot);
            }
            _ => qp.state = to,
        }
        Ok(())
    }

    /// Resets a queue pair: its requests and their completions are gone.
    pub(super) fn end_connection(&mut self, slot: u32) {
        self.end_search(slot);
        let Some(qp) = self.qp_mut(slot) else { return };
        let (number, init, receive_queue, peer) = (qp.number, qp.init, qp.receive_queue, qp.peer);
        let has_lent = qp.responder.has_lent();
        let lent = qp.requester.entries().filter_map(|entry| entry.borrower(peer));
        let mut released: Vec<_> = lent.chain(peer.filter(|_| has_lent)).map(|to| to.domain).collect();
        released.dedup();
        // In Error, the queue pair may still owe the reason.
        let syndrome = if qp.state == QpState::Error { qp.responder.owed() } else { Some(Syndrome::NotReady) };
        let goodbye = syndrome.map(|syndrome| Tag::ack(qp.attributes.destination, qp.responder.executed(), syndrome));
        let connected = qp.is_reliable() && (qp.can_receive() || qp.state == QpState::Error);
        qp.reset();
        if let (true, Some(peer), Some(goodbye)) = (connected, peer, goodbye) {
            self.refuse_stray(peer, goodbye);
        }
        released.into_iter().for_each(|domain| self.release(domain));
        self.outbox.retain(|outgoing| outgoing.slot() != slot);
        for cq in [init.send_cq, init.receive_cq] {
            self.cqs.get_mut(cq.0).into_iter().for_each(|cq| cq.forget(number));
        }
        if let Some(queue) = self.receive_queues.get_mut(receive_queue) {
            queue.refused.retain(|refused| *refused != slot);
            if !queue.shared {
                queue.entries.clear();
            }
        }
        self.pausing.retain(|pausing| *pausing != slot);
    }

    /// Ends all requests of a queue pair with an error, in their order.
    pub(crate) fn enter_error(&mut self, slot: u32) {
        self.end_search(slot);
        let Some(qp) = self.qp_mut(slot) else { return };
        if core::mem::replace(&mut qp.state, QpState::Error) != QpState::Error {
            qp.responder.set_owed(qp.is_reliable().then_some(Syndrome::NotReady));
            let last_of = qp.init.srq.map(|_| AsyncEvent::LastRequestReached(qp.number));
            self.async_events.extend(last_of);
        }
        let Some(qp) = self.qp_mut(slot) else { return };
        let peer = qp.peer;
        let lent = qp.responder.has_lent();
        let (init, receive_queue) = (qp.init, qp.receive_queue);
        let inbound = qp.responder.remove_all(|_| true);
        self.flush_sends(slot);
        if let (true, Some(peer)) = (lent, peer) {
            self.release(peer.domain);
        }
        let Some(qp) = self.qp(slot) else { return };
        let number = qp.number;
        let mut flushed: Vec<_> = inbound
            .into_iter()
            .filter_map(|request| request.taken)
            .map(|(entry, _)| qp.completion(entry.wr_id, Status::Flushed, CompletionKind::Receive))
            .collect();
        if let Some(queue) = self.receive_queues.get_mut(receive_queue) {
            queue.refused.retain(|refused| *refused != slot);
        }
        if let Some(queue) = self.receive_queues.get_mut(receive_queue)
            && !queue.shared
        {
            let completion = |wr_id| Completion { qp: number, ..flush_completion(wr_id, CompletionKind::Receive) };
            flushed.extend(queue.entries.drain(..).map(|entry| completion(entry.wr_id)));
        }
        flushed.into_iter().for_each(|completion| self.report(init.receive_cq, completion));
        if let Some(qp) = self.qp(slot)
            && qp.responder.owed().is_some()
        {
            self.list_owing(slot);
        }
    }

    /// Ends all send requests of a queue pair as flushed.
    pub(crate) fn flush_sends(&mut self, slot: u32) {
        self.outbox.retain(|outgoing| !outgoing.is_request_of(slot));
        let Some(qp) = self.qp_mut(slot) else { return };
        let (number, cq, peer) = (qp.number, qp.init.send_cq, qp.peer);
        for entry in qp.requester.flush() {
            if let Some(to) = entry.borrower(peer) {
                self.release(to.domain);
            }
            let completion = flush_completion(entry.wr_id, entry.completion_kind());
            self.report(cq, Completion { qp: number, ..completion });
        }
        self.pausing.retain(|pausing| *pausing != slot);
    }

    /// Posts a receive request to a shared receive queue.
    #[inline]
    pub fn post_srq_receive(&mut self, srq: Srq, request: &ReceiveRequest<'_>) -> Result<(), Refused> {
        self.receive_queues.get_mut(srq.0).ok_or(Refused::Invalid)?.push(request.wr_id, request.sges)?;
        self.invite_refused(srq.0);
        Ok(())
    }

    /// Posts a receive request.
    #[inline]
    pub fn post_receive(&mut self, number: QpNumber, request: &ReceiveRequest<'_>) -> Result<(), Refused> {
        let slot = self.slot(number).ok_or(Refused::Invalid)?;
        let qp = self.qp(slot).ok_or(Refused::Invalid)?;
        let (queue, state, cq) = (qp.receive_queue, qp.state, qp.init.receive_cq);
        if qp.init.srq.is_some() || state == QpState::Reset {
            return Err(Refused::Invalid);
        }
        let queue_of_qp = self.receive_queues.get_mut(queue).ok_or(Refused::Invalid)?;
        queue_of_qp.push(request.wr_id, request.sges)?;
        if state == QpState::Error {
            queue_of_qp.entries.pop_back();
            let completion = flush_completion(request.wr_id, CompletionKind::Receive);
            self.report(cq, Completion { qp: number, ..completion });
        } else if !queue_of_qp.refused.is_empty() {
            self.invite_refused(queue);
        }
        Ok(())
    }

    /// A receive queue has one request more: the peer that was refused first may send.
    pub(crate) fn invite_refused(&mut self, queue: u32) {
        let Some(queue) = self.receive_queues.get_mut(queue).filter(|queue| !queue.refused.is_empty()) else { return };
        let slot = queue.refused.remove(0);
        self.owe(slot, Syndrome::Ready);
    }

    /// The domain has gone. Requests to it end when the retries of their queue pair would be over, one second later at most; receive
    /// requests that its messages had taken wait again. The transport confirms no more tokens of packets to it.
    pub fn peer_gone(&mut self, domain: DomainId) {
        self.routes.retain(|_, to| to.is_some_and(|to| to.domain != domain));
        self.peers.retain(|address, _| address.domain != domain);
        self.release(domain);
        self.strays.retain(|(to, _)| to.domain != domain);
        for slot in self.slots() {
            let Some(qp) = self.qp_mut(slot) else { continue };
            let connected = qp.peer.is_some_and(|peer| peer.domain == domain);
            qp.requester.forget_transmissions(domain, qp.peer);
            self.forget_inbound(slot, |request| request.from.domain == domain);
            self.retire(slot);
            if !connected {
                continue;
            }
            self.outbox.retain(|outgoing| outgoing.slot() != slot);
            let Some(qp) = self.qp_mut(slot) else { continue };
            qp.peer = None;
            qp.responder.peer_gone();
            if qp.is_reliable() && qp.can_receive() {
                self.peer_replies_no_more(slot);
            }
        }
    }
}

/// The completion of a flushed request.
const fn flush_completion(wr_id: u64, kind: CompletionKind) -> Completion {
    Completion {
        wr_id,
        status: Status::Flushed,
        kind,
        len: 0,
        immediate: None,
        qp: QpNumber(0),
        source_qp: QpNumber(0),
        has_grh: false,
        service_level: 0,
        solicited: false,
    }
}

/// True if the attributes of the mask have values that the adapter can have.
fn valid(attributes: &Attributes, mask: AttributeMask) -> bool {
    use AttributeMask as M;
    let ok = |flag: M, valid: bool| !mask.contains(flag) || valid;
    ok(M::PORT, attributes.port == 1)
        && ok(M::P_KEY_INDEX, attributes.p_key_index == 0)
        && ok(M::PATH_MTU, (1..=5).contains(&attributes.path_mtu))
        && ok(M::TIMEOUT, attributes.timeout < 32)
        && ok(M::RETRY_COUNT, attributes.retry_count <= 7)
        && ok(M::RNR_RETRY, attributes.rnr_retry <= 7)
        && ok(M::RNR_TIMER, attributes.rnr_timer < 32)
        && ok(M::READS_MAX, u32::from(attributes.reads_max) <= limits::READS_MAX)
        && ok(M::READS_SERVED_MAX, u32::from(attributes.reads_served_max) <= limits::READS_MAX)
        && ok(M::DESTINATION, attributes.destination.0 <= QpNumber::MASK)
        && !mask.intersects(M::ALTERNATE_PATH | M::MIGRATION | M::CAPACITIES)
}

fn apply(to: &mut Attributes, from: &Attributes, mask: AttributeMask) {
    use AttributeMask as M;
    macro_rules! set {
        ($($flag:ident $field:ident),*) => {$(
            if mask.contains(M::$flag) {
                to.$field = from.$field;
            }
        )*};
    }
    set!(ACCESS access, P_KEY_INDEX p_key_index, PORT port, Q_KEY q_key, ADDRESS address, PATH_MTU path_mtu);
    set!(TIMEOUT timeout, RETRY_COUNT retry_count, RNR_RETRY rnr_retry, RECEIVE_PSN receive_psn, SEND_PSN send_psn);
    set!(READS_MAX reads_max, READS_SERVED_MAX reads_served_max, RNR_TIMER rnr_timer, DESTINATION destination);
}
