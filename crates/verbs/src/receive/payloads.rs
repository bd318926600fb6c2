//! Payloads that follow their headers: where they go, and their arrival.

use super::{PayloadTarget, PayloadUse, locate_list, scatter};
use crate::engine::Engine;
use crate::memory::Memory;
use crate::outgoing::Token;
use crate::packet::Syndrome;
use crate::queues::{SgeList, total_len};
use crate::requester::{SendEntry, Source};
use crate::responder::{Inbound, InboundWork};
use crate::types::{QpType, Status};
use isthmus_layout::EndpointAddress;

impl Engine {
    /// A payload arrives that follows a header: where it goes.
    pub fn payload_target(&mut self, from: EndpointAddress, len: u64) -> PayloadTarget {
        match self.peers.remove(&from) {
            Some(PayloadUse::Receive { slot, serial }) => {
                let token = Token::Receive { slot, serial }.number();
                let request = self.qp(slot).and_then(|qp| qp.responder.find(serial));
                match request.map(|request| &request.work) {
                    Some(InboundWork::Payload { into, direct }) if total_len(into.as_slice()) == len => {
                        target(into, *direct, token)
                    }
                    Some(InboundWork::Datagram(head)) if u64::from(head.len) == len => PayloadTarget::Collect { token },
                    Some(_) => {
                        self.violations += 1;
                        self.payload_is_lost(PayloadUse::Receive { slot, serial });
                        PayloadTarget::Discard
                    }
                    None => PayloadTarget::Discard,
                }
            }
            Some(PayloadUse::Response { slot, sequence }) => {
                let token = Token::ResponseBytes { slot, sequence }.number();
                match self.response_place(slot, sequence) {
                    Some(into) if total_len(into.as_slice()) == len => target(&into, true, token),
                    Some(_) => {
                        self.violations += 1;
                        self.payload_is_lost(PayloadUse::Response { slot, sequence });
                        PayloadTarget::Discard
                    }
                    None => PayloadTarget::Discard,
                }
            }
            Some(PayloadUse::Discard) => PayloadTarget::Discard,
            None => {
                self.violations += 1;
                PayloadTarget::Discard
            }
        }
    }

    /// A payload does not come as its header announced it.
    pub(crate) fn payload_is_lost(&mut self, payload: PayloadUse) {
        match payload {
            PayloadUse::Receive { slot, serial } => match self.qp(slot).map(|qp| qp.init.kind) {
                Some(QpType::Rc) => self.refuse(slot, Syndrome::InvalidRequest),
                Some(QpType::Uc) => self.forget_inbound(slot, |_| true),
                _ => self.forget_inbound(slot, |request| request.serial == serial),
            },
            PayloadUse::Response { slot, sequence } => self.fail_request(slot, sequence, Status::RemoteOperation),
            PayloadUse::Discard => {}
        }
    }

    /// Drops requests of peers. Those that have taken receive requests return them.
    pub(crate) fn forget_inbound(&mut self, slot: u32, which: impl Fn(&Inbound) -> bool) {
        let Some(qp) = self.qp_mut(slot) else { return };
        let dropped = qp.responder.remove_all(which);
        let queue = qp.receive_queue;
        let Some(queue) = self.receive_queues.get_mut(queue) else { return };
        for request in dropped.into_iter().rev() {
            if let Some((entry, _)) = request.taken {
                queue.entries.push_front(entry);
            }
        }
    }

    /// True if the engine still waits for a payload, by the token of its target. The transport discards a payload that is not wanted,
    /// and writes no more of it.
    pub fn wants_payload(&self, token: u64) -> bool {
        match Token::parse(token) {
            Some(Token::Receive { slot, serial }) => {
                self.qp(slot).is_some_and(|qp| qp.responder.find(serial).is_some())
            }
            Some(Token::ResponseBytes { slot, sequence }) => {
                let entry = self.qp(slot).and_then(|qp| qp.requester.entry(sequence));
                entry.is_some_and(SendEntry::waits_for_payload)
            }
            _ => false,
        }
    }

    /// The ranges that take the response to a request.
    fn response_place(&mut self, slot: u32, sequence: u32) -> Option<SgeList> {
        let (qp, regions, _) = self.parts(slot)?;
        let pd = qp.init.pd;
        let entry = qp.requester.entry(sequence).filter(|entry| entry.waits_for_payload())?;
        let Source::Memory(list) = &entry.source else { return None };
        locate_list(regions, pd, list.as_slice(), u64::from(entry.len))
    }

    /// A payload is here: in place, or in `collected`.
    pub fn payload_received(&mut self, token: u64, collected: Option<&[u8]>, memory: &mut impl Memory) {
        match Token::parse(token) {
            Some(Token::Receive { slot, serial }) => {
                let Some(qp) = self.qp_mut(slot) else { return };
                let Some((request, is_first)) = qp.responder.find_mut(serial) else { return };
                match (&request.work, collected) {
                    (InboundWork::Datagram(head), bytes) => {
                        // Datagrams of one peer do not wait for those of another.
                        let (head, from) = (*head, request.from);
                        qp.responder.remove(|request| request.serial == serial);
                        return self.deliver_datagram(slot, from, &head, bytes.unwrap_or_default(), memory);
                    }
                    (InboundWork::Payload { into, .. }, Some(bytes)) if is_first => {
                        scatter(memory, into.as_slice(), bytes);
                        request.work = InboundWork::Done;
                    }
                    (InboundWork::Payload { into, .. }, Some(bytes)) => {
                        request.work = InboundWork::Write { into: into.clone(), bytes: bytes.to_vec() };
                    }
                    _ => request.work = InboundWork::Done,
                }
                self.execute_inbound(slot, memory);
            }
            Some(Token::ResponseBytes { slot, sequence }) => {
                if !self.wants_payload(token) {
                    return;
                }
                match (self.response_place(slot, sequence), collected) {
                    (None, _) => return self.fail_request(slot, sequence, Status::LocalProtection),
                    (Some(into), Some(bytes)) => scatter(memory, into.as_slice(), bytes),
                    (Some(_), None) => {}
                }
                self.answered(slot, sequence);
            }
            _ => {}
        }
    }

    /// A payload came as a short message.
    pub(super) fn receive_short_payload(&mut self, from: EndpointAddress, bytes: &[u8], memory: &mut impl Memory) {
        match self.payload_target(from, bytes.len() as u64) {
            PayloadTarget::Range { addr, token } => {
                memory.write(addr, bytes);
                self.payload_received(token, None, memory);
            }
            PayloadTarget::Collect { token } => self.payload_received(token, Some(bytes), memory),
            PayloadTarget::Discard => {}
        }
    }
}

/// Where a payload for these ranges goes.
fn target(into: &SgeList, direct: bool, token: u64) -> PayloadTarget {
    match into.as_slice() {
        [range] if direct => PayloadTarget::Range { addr: range.addr, token },
        _ => PayloadTarget::Collect { token },
    }
}
