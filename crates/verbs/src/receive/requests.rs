//! Requests of peers: checked, matched with receive requests, and executed in their order.

use super::{PayloadUse, locate_list, scatter};
use crate::engine::{Engine, limits};
use crate::events::AsyncEvent;
use crate::memory::Memory;
use crate::packet::{HeaderReader, Syndrome, Tag, flags};
use crate::queue_pair::QueuePair;
use crate::queues::{ReceiveEntry, SgeList, total_len};
use crate::responder::InboundWork;
use crate::types::{Access, Completion, CompletionKind, QpNumber, QpType, Sge, Status};
use isthmus_layout::EndpointAddress;

/// A receive request that a message has taken.
pub(super) struct Taken {
    /// The ranges for the message, as addresses of the program.
    pub(super) into: SgeList,
    /// The request, as the program posted it.
    pub(super) entry: ReceiveEntry,
    pub(super) completion: Completion,
}

impl Engine {
    /// The connected queue pair that a packet is for. None if the packet is not to be executed.
    #[inline]
    fn admit(&mut self, from: EndpointAddress, tag: Tag, words: &mut HeaderReader<'_>) -> Option<u32> {
        let source = words.word_if(tag.has(flags::SOURCE))?;
        let slot = self.slot(tag.destination);
        let qp = slot.and_then(|slot| self.qp(slot)).filter(|qp| qp.can_receive());
        let qp_of_peer = qp.filter(|qp| qp.peer == Some(from) && qp.init.kind != QpType::Ud);
        let is_of_another = qp.is_some_and(|qp| qp.search.is_none()) && qp_of_peer.is_none();
        // The first packet of a connection has the PSN that both sides know; one of an earlier connection has another one, or none.
        let has_psn = |qp: &QueuePair| source.is_some_and(|source| qp.responder.begins_with(source >> 24));
        let is_next = |qp: &&QueuePair| qp.responder.has_begun() || !qp.is_reliable() || has_psn(qp);
        let Some(qp) = qp_of_peer.filter(is_next) else {
            self.violations += u64::from(is_of_another);
            // One refusal for each attempt: the sender marks the first packet of an attempt.
            if let (Some(source), true) = (source, tag.has(flags::RESTART)) {
                // The count says which attempt is refused.
                let (source, psn) = (QpNumber(source & QpNumber::MASK), source >> 24);
                let refusal = Tag::ack(source, psn, Syndrome::NotConnected);
                let qp = slot.and_then(|slot| self.qp_mut(slot)).filter(|qp| qp.attributes.destination == source);
                match qp.and_then(|qp| qp.search.as_mut()) {
                    Some(search) => search.drop_attempt(from, refusal),
                    None => self.refuse_stray(from, refusal),
                }
            }
            return None;
        };
        let (slot, full) = (slot?, qp.responder.inbound_len() >= limits::REQUESTS_MAX as usize);
        if qp.is_reliable() {
            // The peer does not repeat the count of a packet that is dropped.
            if (qp.responder.has_begun() || tag.has(flags::RESTART)) && !self.note_executed(slot, tag.count) {
                self.violations += 1;
            }
            let qp = self.qp_mut(slot).filter(|qp| qp.can_receive())?;
            if !qp.responder.take(tag.has(flags::RESTART)) {
                return None;
            }
        }
        if full {
            self.refuse(slot, Syndrome::InvalidRequest);
            return None;
        }
        Some(slot)
    }

    /// A request cannot be executed. The peer learns it when those before it have been executed: it goes back to the first one that is
    /// not counted. Until then, the queue pair takes no requests.
    fn refuse_in_turn(
        &mut self,
        slot: u32,
        from: EndpointAddress,
        taken: Option<(ReceiveEntry, Completion)>,
        syndrome: Syndrome,
    ) {
        let Some(qp) = self.qp_mut(slot) else { return };
        qp.responder.refuse_until_restart();
        if qp.responder.has_executed_all() {
            return self.refuse_now(slot, taken.map(|(_, completion)| completion), syndrome);
        }
        qp.responder.push(from, false, taken, InboundWork::Refuse(syndrome));
    }

    fn refuse_now(&mut self, slot: u32, completion: Option<Completion>, syndrome: Syndrome) {
        let Some(qp) = self.qp(slot) else { return };
        let (cq, queue) = (qp.init.receive_cq, qp.receive_queue);
        if let Some(completion) = completion {
            self.report(cq, completion);
        }
        if syndrome == Syndrome::Again {
            return self.owe(slot, syndrome);
        }
        if !matches!(syndrome, Syndrome::ReceiverNotReady(_)) {
            self.refuse(slot, syndrome);
            return self.enter_error(slot); // An unreliable one, too.
        }
        let Some(queue) = self.receive_queues.get_mut(queue) else { return };
        if !queue.entries.is_empty() {
            return self.owe(slot, Syndrome::Again);
        }
        if !queue.refused.contains(&slot) {
            queue.refused.push(slot);
        }
        self.owe(slot, syndrome);
    }

    /// A request cannot be executed at all. On a reliable connection that ends both queue pairs.
    pub(crate) fn refuse(&mut self, slot: u32, syndrome: Syndrome) {
        if let Some(qp) = self.qp(slot).filter(|qp| qp.is_reliable()) {
            let number = qp.number;
            match syndrome {
                Syndrome::InvalidRequest => self.async_events.push_back(AsyncEvent::QpRequestError(number)),
                Syndrome::Access => self.async_events.push_back(AsyncEvent::QpAccessError(number)),
                _ => {}
            }
            self.enter_error(slot);
            if let Some(qp) = self.qp_mut(slot) {
                qp.responder.set_owed(Some(syndrome));
            }
            self.list_owing(slot);
        }
    }

    /// Takes the oldest receive request for a message of `len` bytes. None if the message cannot be received.
    #[inline]
    pub(super) fn take_receive(&mut self, slot: u32, from: EndpointAddress, len: u64) -> Option<Taken> {
        let qp = self.qp(slot)?;
        let (queue, timer) = (qp.receive_queue, qp.attributes.rnr_timer);
        let completion = qp.completion(0, Status::Success, CompletionKind::Receive);
        let reliable = qp.is_reliable();
        let queue = self.receive_queues.get_mut(queue)?;
        let Some(entry) = queue.entries.front() else {
            if reliable {
                self.refuse_in_turn(slot, from, None, Syndrome::ReceiverNotReady(timer));
            }
            return None;
        };
        let fits = len <= total_len(entry.sges.as_slice());
        if !fits && !reliable {
            return None;
        }
        let pd = queue.pd;
        let entry = queue.entries.pop_front()?;
        if !queue.refused.is_empty() {
            queue.refused.retain(|refused| *refused != slot);
        }
        if queue.limit > 0 {
            let number = self.qp(slot)?.receive_queue;
            self.note_taken(number);
        }
        if !fits {
            let completion = Completion { wr_id: entry.wr_id, status: Status::LocalLength, ..completion };
            self.refuse_in_turn(slot, from, Some((entry, completion)), Syndrome::InvalidRequest);
            return None;
        }
        let completion = Completion { wr_id: entry.wr_id, ..completion };
        let Some(into) = locate_list(&mut self.regions, pd, entry.sges.as_slice(), len) else {
            let completion = Completion { status: Status::LocalProtection, ..completion };
            self.refuse_in_turn(slot, from, Some((entry, completion)), Syndrome::Operation);
            return None;
        };
        Some(Taken { into, entry, completion })
    }

    #[inline]
    pub(super) fn receive_send(
        &mut self,
        from: EndpointAddress,
        tag: Tag,
        words: &mut HeaderReader<'_>,
        memory: &mut impl Memory,
    ) -> Option<()> {
        let slot = self.admit(from, tag, words)?;
        let immediate = words.word_if(tag.has(flags::IMMEDIATE))?;
        let follows = tag.has(flags::FOLLOWS);
        if !follows && self.receive_at_once(slot, tag, immediate, words.0, memory).is_some() {
            return Some(());
        }
        let len = if follows { words.word()? } else { words.0.len() as u32 };
        let Taken { into, entry, completion } = self.take_receive(slot, from, u64::from(len))?;
        let solicited = tag.has(flags::SOLICITED);
        let completion = Completion { len, immediate, solicited, ..completion };
        self.accept_message(slot, from, tag, (into, entry, completion), words.0, memory);
        Some(())
    }

    /// Receives a message in the common case: nothing waits before it, and the oldest receive request has one range that takes it. None,
    /// and nothing is done, in all other cases.
    #[inline]
    fn receive_at_once(
        &mut self,
        slot: u32,
        tag: Tag,
        immediate: Option<u32>,
        bytes: &[u8],
        memory: &mut impl Memory,
    ) -> Option<()> {
        let qp = self.qp(slot)?;
        let (is_first, number) = (qp.responder.has_executed_all(), qp.receive_queue);
        let acknowledge = qp.is_reliable() && tag.has(flags::ACKNOWLEDGE);
        let completion = qp.completion(0, Status::Success, CompletionKind::Receive);
        let queue = self.receive_queues.get_mut(number)?;
        let ReceiveEntry { wr_id, sges: SgeList::One(sge) } = queue.entries.front()? else { return None };
        let len = bytes.len() as u32;
        if !is_first || len > sge.len || queue.limit > 0 || !queue.refused.is_empty() {
            return None;
        }
        let completion =
            Completion { wr_id: *wr_id, len, immediate, solicited: tag.has(flags::SOLICITED), ..completion };
        let into = self.regions.locate_sge(queue.pd, &Sge { len, ..*sge }, Access::LOCAL_WRITE)?;
        queue.entries.pop_front();
        if len > 0 {
            memory.write(into.addr, bytes);
        }
        self.executed(slot, Some(completion), acknowledge);
        Some(())
    }

    /// Accepts a message that has taken a receive request.
    #[inline]
    fn accept_message(
        &mut self,
        slot: u32,
        from: EndpointAddress,
        tag: Tag,
        (into, entry, completion): (SgeList, ReceiveEntry, Completion),
        bytes: &[u8],
        memory: &mut impl Memory,
    ) {
        let work = if tag.has(flags::FOLLOWS) {
            InboundWork::Payload { into, direct: true }
        } else {
            scatter(memory, into.as_slice(), bytes);
            InboundWork::Done
        };
        self.accept(slot, from, tag, Some((entry, completion)), work, memory);
    }

    /// Executes a request in its turn.
    #[inline]
    pub(super) fn accept(
        &mut self,
        slot: u32,
        from: EndpointAddress,
        tag: Tag,
        taken: Option<(ReceiveEntry, Completion)>,
        work: InboundWork,
        memory: &mut impl Memory,
    ) {
        let Some(qp) = self.qp_mut(slot) else { return };
        let acknowledge = qp.is_reliable() && tag.has(flags::ACKNOWLEDGE);
        if qp.responder.has_executed_all() && matches!(work, InboundWork::Done) {
            return self.executed(slot, taken.map(|(_, completion)| completion), acknowledge);
        }
        let follows = work.waits_for_payload();
        let serial = qp.responder.push(from, acknowledge, taken, work);
        if follows {
            self.expect(from, PayloadUse::Receive { slot, serial });
        } else {
            self.execute_inbound(slot, memory);
        }
    }

    /// A request of the peer was executed.
    #[inline]
    pub(super) fn executed(&mut self, slot: u32, completion: Option<Completion>, acknowledge: bool) {
        let Some(qp) = self.qp_mut(slot) else { return };
        qp.responder.count_executed();
        let cq = qp.init.receive_cq;
        if let Some(completion) = completion {
            self.report(cq, completion);
        }
        if acknowledge {
            self.owe(slot, Syndrome::None);
        }
    }

    /// Executes the requests that are next in order.
    pub(super) fn execute_inbound(&mut self, slot: u32, memory: &mut impl Memory) {
        while let Some(qp) = self.qp_mut(slot) {
            let Some(request) = qp.responder.pop_executable() else { return };
            match request.work {
                InboundWork::Payload { .. } | InboundWork::Datagram(_) => return,
                InboundWork::Done => {}
                InboundWork::Refuse(syndrome) => {
                    return self.refuse_now(slot, request.taken.map(|(_, completion)| completion), syndrome);
                }
                InboundWork::Write { into, bytes } => {
                    // The program may have unmapped it since the request came.
                    if into.as_slice().iter().any(|sge| !memory.is_mapped(sge.addr, u64::from(sge.len.max(1)))) {
                        return self.refuse(slot, Syndrome::Access);
                    }
                    scatter(memory, into.as_slice(), &bytes);
                }
                InboundWork::Read { at, len, key } => {
                    if self.respond_to_read(slot, at, len, key, memory).is_none() {
                        return self.refuse(slot, Syndrome::Access);
                    }
                }
                InboundWork::Atomic { at, key, operation } => {
                    if self.respond_to_atomic(slot, at, key, operation, memory).is_none() {
                        return self.refuse(slot, Syndrome::Access);
                    }
                }
            }
            self.executed(slot, request.taken.map(|(_, completion)| completion), request.acknowledge);
        }
    }

    pub(super) fn receive_write(
        &mut self,
        from: EndpointAddress,
        tag: Tag,
        words: &mut HeaderReader<'_>,
        memory: &mut impl Memory,
    ) -> Option<()> {
        let slot = self.admit(from, tag, words)?;
        let (at, key) = words.remote()?;
        let immediate = words.word_if(tag.has(flags::IMMEDIATE))?;
        let follows = tag.has(flags::FOLLOWS);
        let len = if follows { words.word()? } else { words.0.len() as u32 };
        let Some(addr) = self.locate_remote(slot, (key, at, u64::from(len)), Access::REMOTE_WRITE, memory) else {
            if self.qp(slot)?.is_reliable() {
                self.refuse_in_turn(slot, from, None, Syndrome::Access);
            }
            return None;
        };
        // A program that polls memory must not see a later write before an earlier one.
        let responder = &self.qp(slot)?.responder;
        let (first, late_bytes) = (responder.has_executed_all(), responder.late_bytes() + u64::from(len));
        let has_room = first || late_bytes <= limits::LATE_BYTES_MAX;
        if !has_room && self.qp(slot)?.is_reliable() {
            self.refuse_in_turn(slot, from, None, Syndrome::Again);
            return None;
        }
        let taken = match immediate {
            None => {
                self.count_served(slot, (key, at, u64::from(len)));
                None
            }
            Some(_) => {
                let Taken { entry, completion, .. } = self.take_receive(slot, from, 0)?;
                let kind = CompletionKind::ReceiveWriteImmediate;
                let solicited = tag.has(flags::SOLICITED);
                Some((entry, Completion { kind, len, immediate, solicited, ..completion }))
            }
        };
        let into = SgeList::One(Sge { addr, len, lkey: key.0 });
        let work = match (follows, first) {
            (true, _) => InboundWork::Payload { into, direct: first || !has_room },
            (false, true) => {
                scatter(memory, into.as_slice(), words.0);
                InboundWork::Done
            }
            (false, false) => InboundWork::Write { into, bytes: words.0.to_vec() },
        };
        self.accept(slot, from, tag, taken, work, memory);
        Some(())
    }

    pub(super) fn receive_read(
        &mut self,
        from: EndpointAddress,
        tag: Tag,
        words: &mut HeaderReader<'_>,
        memory: &mut impl Memory,
    ) -> Option<()> {
        let slot = self.admit(from, tag, words)?;
        let (at, key) = words.remote()?;
        let len = words.word()?;
        self.accept_response(slot, from, tag, InboundWork::Read { at, len, key }, memory)
    }

    pub(super) fn receive_atomic(
        &mut self,
        from: EndpointAddress,
        tag: Tag,
        words: &mut HeaderReader<'_>,
        memory: &mut impl Memory,
    ) -> Option<()> {
        let slot = self.admit(from, tag, words)?;
        let (at, key) = words.remote()?;
        let operation = words.atomic(tag.has(flags::COMPARE))?;
        self.accept_response(slot, from, tag, InboundWork::Atomic { at, key, operation }, memory)
    }

    /// Accepts a request that leads to a response, if not too many are under way.
    fn accept_response(
        &mut self,
        slot: u32,
        from: EndpointAddress,
        tag: Tag,
        work: InboundWork,
        memory: &mut impl Memory,
    ) -> Option<()> {
        let qp = self.qp(slot)?;
        let under_way = qp.responder.responses_under_way();
        // The requester counts a response as over when it has arrived, which may be before its confirmation here.
        if qp.init.kind != QpType::Rc || under_way >= 2 * limits::READS_MAX as usize {
            self.refuse(slot, Syndrome::InvalidRequest);
            return None;
        }
        self.accept(slot, from, tag, None, work, memory);
        Some(())
    }
}
