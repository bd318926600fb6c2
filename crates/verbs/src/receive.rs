//! Packets of peers: checked, matched with receive requests, executed and acknowledged.

use crate::engine::{Engine, limits};
use crate::memory::{Memory, Regions};
use crate::outgoing::{Bytes, Outgoing, Token, fits};
use crate::packet::{Header, HeaderReader, PacketKind, Syndrome, Tag, flags};
use crate::queue_pair::{Inbound, InboundWork, Source};
use crate::queues::{SgeList, total_len};
use crate::types::{Access, AtomicOperation, Completion, CompletionKind, Gid, Key, Pd, QpNumber, QpType, Sge, Status};
use alloc::vec::Vec;
use isthmus_layout::EndpointAddress;

/// What the next payload of a peer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadUse {
    /// A request of the peer.
    Receive {
        slot: u32,
        serial: u32,
    },
    /// The response to a request of this device.
    Response {
        slot: u32,
        sequence: u32,
    },
    Discard,
}

/// Where a payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadTarget {
    /// The transport copies the payload into one range of the program's memory.
    Range {
        /// The address of the first byte.
        addr: u64,
        /// The token for [`Engine::payload_received`].
        token: u64,
    },
    /// The caller collects the bytes.
    Collect {
        /// The token for [`Engine::payload_received`].
        token: u64,
    },
    /// The payload is not wanted.
    Discard,
}

impl Engine {
    /// Handles a packet of a peer, with its whole body. A packet that the peer could not have sent is dropped and counted.
    #[inline]
    pub fn receive(&mut self, from: EndpointAddress, tag: u64, body: &[u8], memory: &mut impl Memory) {
        let Some(tag) = Tag::parse(tag) else { return self.violations += 1 };
        if tag.kind == PacketKind::Payload {
            return self.receive_short_payload(from, body, memory);
        }
        let mut words = HeaderReader(body);
        let handled = match tag.kind {
            PacketKind::Send => self.receive_send(from, tag, &mut words, memory),
            PacketKind::Datagram => self.receive_datagram(from, tag, &mut words, memory),
            PacketKind::Write => self.receive_write(from, tag, &mut words, memory),
            PacketKind::Read => self.receive_read(from, tag, &mut words, memory),
            PacketKind::Atomic => self.receive_atomic(from, tag, &mut words, memory),
            PacketKind::Response => self.receive_response(from, tag, &mut words, memory),
            PacketKind::Ack => self.receive_ack(from, tag),
            PacketKind::Payload => None,
        };
        if handled.is_none() && tag.kind != PacketKind::Ack && tag.has(flags::FOLLOWS) {
            self.expect(from, PayloadUse::Discard);
        }
    }

    fn expect(&mut self, from: EndpointAddress, payload: PayloadUse) {
        self.peers.entry(from).or_default().payload = Some(payload);
    }

    /// The connected queue pair that a packet is for. None if the packet is not to be executed.
    #[inline]
    fn admit(&mut self, from: EndpointAddress, tag: Tag, words: &mut HeaderReader<'_>) -> Option<u32> {
        let source = words.word_if(tag.has(flags::SOURCE))?.map(|number| QpNumber(number & QpNumber::MASK));
        let slot = self.slot(tag.destination);
        let qp = slot.and_then(|slot| self.qp_mut(slot)).filter(|qp| qp.can_receive());
        let Some(qp) = qp else {
            if let Some(qp) = slot.and_then(|slot| self.qp_mut(slot)) {
                qp.refusing = true;
            }
            if let Some(source) = source {
                self.refuse_stray(from, Tag::ack(source, 0, Syndrome::NotReady));
            }
            return None;
        };
        if qp.peer != Some(from) || qp.init.kind == QpType::Ud {
            self.violations += 1;
            return None;
        }
        let slot = slot?;
        if qp.is_reliable() {
            if qp.refusing && !tag.has(flags::RESTART) {
                return None;
            }
            qp.refusing = false;
            if !self.note_executed(slot, tag.count) {
                self.violations += 1;
            }
            self.qp(slot).filter(|qp| qp.can_receive())?;
        }
        Some(slot)
    }

    /// A request cannot be executed yet. The peer repeats it later.
    fn refuse_not_ready(&mut self, slot: u32) {
        let Some(qp) = self.qp_mut(slot) else { return };
        if !qp.is_reliable() {
            return;
        }
        qp.refusing = true;
        let (queue, timer) = (qp.receive_queue, qp.attributes.rnr_timer);
        if let Some(queue) = self.receive_queues.get_mut(queue)
            && !queue.refused.contains(&slot)
        {
            queue.refused.push(slot);
        }
        self.owe(slot, Syndrome::ReceiverNotReady(timer));
    }

    /// A request cannot be executed at all. On a reliable connection that ends both queue pairs.
    fn refuse(&mut self, slot: u32, syndrome: Syndrome) {
        if self.qp(slot).is_some_and(|qp| qp.is_reliable()) {
            self.enter_error(slot);
            if let Some(qp) = self.qp_mut(slot) {
                qp.owed = Some(syndrome);
            }
            self.list_owing(slot);
        }
    }

    /// The first `skip + len` bytes of the oldest receive request, and the completion of the request. None if the
    /// message cannot be received.
    #[inline]
    fn take_receive(&mut self, slot: u32, skip: u64, len: u64) -> Option<(SgeList, Completion)> {
        let qp = self.qp(slot)?;
        let (pd, cq, queue) = (qp.init.pd, qp.init.receive_cq, qp.receive_queue);
        let failed = |status| qp.completion(0, status, CompletionKind::Receive);
        let (too_long, protected) = (failed(Status::LocalLength), failed(Status::LocalProtection));
        let reliable = qp.is_reliable();
        let queue = self.receive_queues.get_mut(queue)?;
        let Some(entry) = queue.entries.front() else {
            self.refuse_not_ready(slot);
            return None;
        };
        if total_len(entry.sges.as_slice()) < skip + len {
            if reliable {
                let wr_id = queue.entries.pop_front()?.wr_id;
                self.report(cq, Completion { wr_id, ..too_long });
                self.refuse(slot, Syndrome::InvalidRequest);
            }
            return None;
        }
        // A shared queue has a protection domain of its own.
        let pd = if queue.shared { queue.pd } else { pd };
        let entry = queue.entries.pop_front()?;

        match locate_list(&mut self.regions, pd, entry.sges.as_slice(), 0, skip + len) {
            Some(list) => Some((list, Completion { wr_id: entry.wr_id, status: Status::Success, ..too_long })),
            None => {
                self.report(cq, Completion { wr_id: entry.wr_id, ..protected });
                self.refuse(slot, Syndrome::Operation);
                None
            }
        }
    }

    #[inline]
    fn receive_send(
        &mut self,
        from: EndpointAddress,
        tag: Tag,
        words: &mut HeaderReader<'_>,
        memory: &mut impl Memory,
    ) -> Option<()> {
        let slot = self.admit(from, tag, words)?;
        let immediate = words.word_if(tag.has(flags::IMMEDIATE))?;
        let follows = tag.has(flags::FOLLOWS);
        let len = if follows { words.word()? } else { words.0.len() as u32 };
        let (into, completion) = self.take_receive(slot, 0, u64::from(len))?;
        let solicited = tag.has(flags::SOLICITED);
        let completion = Some(Completion { len, immediate, solicited, ..completion });
        let work = if follows {
            InboundWork::Payload { into, direct: true }
        } else {
            scatter(memory, into.as_slice(), words.0);
            InboundWork::Done
        };
        self.accept(slot, from, tag, completion, work, memory);
        Some(())
    }

    /// Executes a request in its turn.
    #[inline]
    fn accept(
        &mut self,
        slot: u32,
        from: EndpointAddress,
        tag: Tag,
        completion: Option<Completion>,
        work: InboundWork,
        memory: &mut impl Memory,
    ) {
        let Some(qp) = self.qp_mut(slot) else { return };
        let acknowledge = qp.is_reliable() && tag.has(flags::ACKNOWLEDGE);
        if qp.inbound.is_empty() && matches!(work, InboundWork::Done) {
            return self.executed(slot, completion, acknowledge);
        }
        if qp.inbound.len() >= limits::REQUESTS_MAX as usize {
            return self.refuse(slot, Syndrome::InvalidRequest);
        }
        let serial = qp.next_serial;
        qp.next_serial = serial.wrapping_add(1);
        let follows = matches!(work, InboundWork::Payload { .. });
        qp.inbound.push_back(Inbound { serial, acknowledge, completion, work });
        if follows {
            self.expect(from, PayloadUse::Receive { slot, serial });
        } else {
            self.execute_inbound(slot, memory);
        }
    }

    /// A request of the peer was executed.
    #[inline]
    fn executed(&mut self, slot: u32, completion: Option<Completion>, acknowledge: bool) {
        let Some(qp) = self.qp_mut(slot) else { return };
        qp.executed = qp.executed.wrapping_add(1);
        let cq = qp.init.receive_cq;
        if let Some(completion) = completion {
            self.report(cq, completion);
        }
        if acknowledge {
            self.owe(slot, Syndrome::None);
        }
    }

    /// Executes the requests whose turn has come.
    fn execute_inbound(&mut self, slot: u32, memory: &mut impl Memory) {
        while let Some(qp) = self.qp_mut(slot) {
            if !qp.inbound.front().is_some_and(|request| !matches!(request.work, InboundWork::Payload { .. })) {
                return;
            }
            let Some(request) = qp.inbound.pop_front() else { return };
            match request.work {
                InboundWork::Payload { .. } => return,
                InboundWork::Done => {}
                InboundWork::Write { into, bytes } => scatter(memory, into.as_slice(), &bytes),
                InboundWork::Read { at, len, key } => {
                    if self.respond_to_read(slot, at, len, key).is_none() {
                        return self.refuse(slot, Syndrome::Access);
                    }
                }
                InboundWork::Atomic { at, key, operation } => {
                    if self.respond_to_atomic(slot, at, key, operation, memory).is_none() {
                        return self.refuse(slot, Syndrome::Access);
                    }
                }
            }
            self.executed(slot, request.completion, request.acknowledge);
        }
    }

    fn receive_datagram(
        &mut self,
        from: EndpointAddress,
        tag: Tag,
        words: &mut HeaderReader<'_>,
        memory: &mut impl Memory,
    ) -> Option<()> {
        let slot = self.slot(tag.destination)?;
        let qp = self.qp(slot)?;
        if qp.init.kind != QpType::Ud {
            self.violations += 1;
            return None;
        }
        let (q_key, service_level) = (words.word()?, words.word()?);
        if !qp.can_receive() || q_key != qp.attributes.q_key {
            return None;
        }
        let immediate = words.word_if(tag.has(flags::IMMEDIATE))?;
        let gids = if tag.has(flags::GRH) { Some((words.gid()?, words.gid()?)) } else { None };
        let follows = tag.has(flags::FOLLOWS);
        let len = if follows { words.word()? } else { words.0.len() as u32 };
        if len > limits::DATAGRAM_BYTES_MAX {
            self.violations += 1;
            return None;
        }
        let grh_bytes = limits::GRH_BYTES;
        let (list, completion) = self.take_receive(slot, u64::from(grh_bytes), u64::from(len))?;
        let completion = Some(Completion {
            len: len + grh_bytes,
            immediate,
            source_qp: QpNumber(tag.count),
            has_grh: gids.is_some(),
            service_level: service_level as u8,
            solicited: tag.has(flags::SOLICITED),
            ..completion
        });
        if let Some((source, destination)) = gids {
            scatter(memory, list.as_slice(), &grh(len, source, destination));
        }
        let into = SgeList::new(&part(list.as_slice(), u64::from(grh_bytes), u64::from(len)));
        let work = if follows {
            InboundWork::Payload { into, direct: true }
        } else {
            scatter(memory, into.as_slice(), words.0);
            InboundWork::Done
        };
        self.accept(slot, from, tag, completion, work, memory);
        Some(())
    }

    fn receive_write(
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
        let Some(addr) = self.locate_remote(slot, key, at, u64::from(len), Access::REMOTE_WRITE) else {
            self.refuse(slot, Syndrome::Access);
            return None;
        };
        let completion = match immediate {
            None => None,
            Some(_) => {
                let (_, completion) = self.take_receive(slot, 0, 0)?;
                let kind = CompletionKind::ReceiveWriteImmediate;
                Some(Completion { kind, len, immediate, solicited: tag.has(flags::SOLICITED), ..completion })
            }
        };
        let into = SgeList::One(Sge { addr, len, lkey: key.0 });
        // A program that polls memory must not see a later write before an earlier one.
        let first = self.qp(slot)?.inbound.is_empty();
        let work = match (follows, first) {
            (true, _) => InboundWork::Payload { into, direct: first },
            (false, true) => {
                scatter(memory, into.as_slice(), words.0);
                InboundWork::Done
            }
            (false, false) => InboundWork::Write { into, bytes: words.0.to_vec() },
        };
        self.accept(slot, from, tag, completion, work, memory);
        Some(())
    }

    fn receive_read(
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

    fn receive_atomic(
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
        let waits = |request: &&Inbound| matches!(request.work, InboundWork::Read { .. } | InboundWork::Atomic { .. });
        let under_way = qp.responses as usize + qp.inbound.iter().filter(waits).count();
        // The requester counts a response as over when it has arrived, which may be before its confirmation here.
        if qp.init.kind != QpType::Rc || under_way >= 2 * limits::READS_MAX as usize {
            self.refuse(slot, Syndrome::InvalidRequest);
            return None;
        }
        self.accept(slot, from, tag, None, work, memory);
        Some(())
    }

    /// The program's address of bytes that a peer names, if the region and the queue pair allow the access.
    fn locate_remote(&mut self, slot: u32, key: Key, at: u64, len: u64, access: Access) -> Option<u64> {
        let qp = self.qp(slot)?;
        let pd = qp.init.pd;
        if !qp.attributes.access.contains(access) {
            return None;
        }
        if len == 0 {
            return Some(at);
        }
        self.regions.locate(pd, key, at, len, access)
    }

    fn respond_to_read(&mut self, slot: u32, at: u64, len: u32, key: Key) -> Option<()> {
        let addr = self.locate_remote(slot, key, at, u64::from(len), Access::REMOTE_READ)?;
        let bytes = Bytes::Memory(SgeList::One(Sge { addr, len, lkey: key.0 }));
        let mut header = Header::new();
        let mut parameter = 0;
        if !fits(&header, u64::from(len)) {
            parameter = flags::FOLLOWS;
            header.word(len);
        }
        self.respond(slot, parameter, header, bytes)
    }

    fn respond_to_atomic(
        &mut self,
        slot: u32,
        at: u64,
        key: Key,
        operation: AtomicOperation,
        memory: &mut impl Memory,
    ) -> Option<()> {
        let addr = self.locate_remote(slot, key, at, 8, Access::REMOTE_ATOMIC)?;
        if !addr.is_multiple_of(8) {
            return None;
        }
        let mut header = Header::new();
        header.long(memory.atomic(addr, operation));
        self.respond(slot, 0, header, Bytes::None)
    }

    fn respond(&mut self, slot: u32, parameter: u16, header: Header, bytes: Bytes) -> Option<()> {
        let (qp, _, outbox) = self.parts(slot)?;
        let to = qp.peer?;
        let tag = Tag { kind: PacketKind::Response, parameter, count: 0, destination: qp.attributes.destination };
        let serial = qp.next_serial;
        qp.next_serial = serial.wrapping_add(1);
        qp.responses += 1;
        outbox.push_back(Outgoing { to, tag, header, bytes, token: Token::Response { slot, serial } });
        Some(())
    }

    fn receive_response(
        &mut self,
        from: EndpointAddress,
        tag: Tag,
        words: &mut HeaderReader<'_>,
        memory: &mut impl Memory,
    ) -> Option<()> {
        let slot = self.slot(tag.destination)?;
        let qp = self.qp(slot)?;
        let connected = qp.peer == Some(from) && qp.is_reliable() && qp.can_receive();
        if !connected || !self.note_executed(slot, tag.count) {
            self.violations += 1;
            return None;
        }
        let (qp, regions, _) = self.parts(slot)?;
        let (first, pd, executed) = (qp.first, qp.init.pd, qp.acked.wrapping_sub(qp.first) as usize);
        let waits = |entry: &crate::queue_pair::SendEntry| !entry.answered && !entry.response_coming;
        let Some(at) = qp.sends.iter().take(executed).position(waits) else {
            self.violations += 1;
            return None;
        };
        let entry = qp.sends.get_mut(at)?;
        let follows = tag.has(flags::FOLLOWS);
        let len = if follows { words.word()? } else { words.0.len() as u32 };
        if len != entry.len {
            self.violations += 1;
            return None;
        }
        let sequence = first.wrapping_add(at as u32);
        if follows {
            entry.response_coming = true;
            self.expect(from, PayloadUse::Response { slot, sequence });
            return Some(());
        }
        let Source::Memory(list) = &entry.source else { return None };
        match locate_list_for(regions, pd, list.as_slice(), u64::from(len)) {
            Some(into) => {
                scatter(memory, into.as_slice(), words.0);
                self.answered(slot, sequence);
            }
            None => self.fail_first_unacked(slot, Status::LocalProtection),
        }
        Some(())
    }

    /// The response to a request is complete.
    fn answered(&mut self, slot: u32, sequence: u32) {
        let Some(qp) = self.qp_mut(slot) else { return };
        let Some(entry) = qp.entry(sequence) else { return };
        if !core::mem::replace(&mut entry.answered, true) {
            qp.reads_outstanding = qp.reads_outstanding.saturating_sub(1);
        }
        self.pump(slot);
    }

    fn receive_ack(&mut self, from: EndpointAddress, tag: Tag) -> Option<()> {
        let slot = self.slot(tag.destination)?;
        let qp = self.qp(slot)?;
        let Some(syndrome) = tag.syndrome().filter(|_| qp.peer == Some(from) && qp.is_reliable()) else {
            self.violations += 1;
            return None;
        };
        if !qp.can_receive() {
            return None;
        }
        if !self.note_executed(slot, tag.count) && syndrome != Syndrome::NotReady {
            self.violations += 1;
            return None;
        }
        self.handle_syndrome(slot, syndrome);
        Some(())
    }

    /// A payload arrives that follows a header: where it goes.
    pub fn payload_target(&mut self, from: EndpointAddress, len: u64) -> PayloadTarget {
        let payload = self.peers.get_mut(&from).and_then(|peer| peer.payload.take());
        match payload {
            Some(PayloadUse::Receive { slot, serial }) => {
                let token = Token::Receive { slot, serial }.number();
                let request = self.qp_mut(slot).and_then(|qp| {
                    let found = qp.inbound.iter().find(|request| request.serial == serial)?;
                    match &found.work {
                        InboundWork::Payload { into, direct } => Some((into.clone(), *direct)),
                        _ => None,
                    }
                });
                match request {
                    Some((into, direct)) if total_len(into.as_slice()) == len => target(&into, direct, token),
                    Some(_) => {
                        self.violations += 1;
                        self.refuse(slot, Syndrome::InvalidRequest);
                        PayloadTarget::Discard
                    }
                    None => PayloadTarget::Discard,
                }
            }
            Some(PayloadUse::Response { slot, sequence }) => {
                let token = Token::ResponseBytes { slot, sequence }.number();
                match self.response_place(slot, sequence) {
                    Some(into) if total_len(into.as_slice()) == len => target(&into, true, token),
                    _ => {
                        self.fail_first_unacked(slot, Status::LocalProtection);
                        PayloadTarget::Discard
                    }
                }
            }
            Some(PayloadUse::Discard) => PayloadTarget::Discard,
            None => {
                self.violations += 1;
                PayloadTarget::Discard
            }
        }
    }

    /// True if the engine still waits for a payload, by the token of its target. The transport discards a payload that is not wanted,
    /// and writes no more of it.
    pub fn wants_payload(&self, token: u64) -> bool {
        match Token::parse(token) {
            Some(Token::Receive { slot, serial }) => {
                self.qp(slot).is_some_and(|qp| qp.inbound.iter().any(|request| request.serial == serial))
            }
            Some(Token::ResponseBytes { slot, sequence }) => self.qp(slot).is_some_and(|qp| {
                let at = sequence.wrapping_sub(qp.first) as usize;
                qp.sends.get(at).is_some_and(|entry| entry.response_coming && !entry.answered)
            }),
            _ => false,
        }
    }

    /// The ranges that take the response to a request.
    fn response_place(&mut self, slot: u32, sequence: u32) -> Option<SgeList> {
        let (qp, regions, _) = self.parts(slot)?;
        let pd = qp.init.pd;
        let entry = qp.entry(sequence).filter(|entry| entry.response_coming)?;
        let Source::Memory(list) = &entry.source else { return None };
        locate_list_for(regions, pd, list.as_slice(), u64::from(entry.len))
    }

    /// A payload is here: in place, or in `collected`.
    pub fn payload_received(&mut self, token: u64, collected: Option<&[u8]>, memory: &mut impl Memory) {
        match Token::parse(token) {
            Some(Token::Receive { slot, serial }) => {
                let Some(qp) = self.qp_mut(slot) else { return };
                let Some(request) = qp.inbound.iter_mut().find(|request| request.serial == serial) else { return };
                if let (InboundWork::Payload { into, .. }, Some(bytes)) = (&request.work, collected) {
                    request.work = InboundWork::Write { into: into.clone(), bytes: bytes.to_vec() };
                } else {
                    request.work = InboundWork::Done;
                }
                self.execute_inbound(slot, memory);
            }
            Some(Token::ResponseBytes { slot, sequence }) => {
                if let (Some(into), Some(bytes)) = (self.response_place(slot, sequence), collected) {
                    scatter(memory, into.as_slice(), bytes);
                }
                self.answered(slot, sequence);
            }
            _ => {}
        }
    }

    /// A payload came as a short message.
    fn receive_short_payload(&mut self, from: EndpointAddress, bytes: &[u8], memory: &mut impl Memory) {
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

/// The part of a list that begins `skip` bytes after its beginning and has `len` bytes.
fn part(sges: &[Sge], mut skip: u64, mut len: u64) -> Vec<Sge> {
    let mut ranges = Vec::new();
    for sge in sges {
        let skipped = skip.min(u64::from(sge.len));
        skip -= skipped;
        let taken = len.min(u64::from(sge.len) - skipped);
        len -= taken;
        if taken > 0 {
            ranges.push(Sge { addr: sge.addr + skipped, len: taken as u32, lkey: sge.lkey });
        }
    }
    ranges
}

/// The first `skip + len` bytes of a list without the first `skip`, as addresses of the program that the adapter may write.
#[inline]
fn locate_list(regions: &mut Regions, pd: Pd, sges: &[Sge], skip: u64, len: u64) -> Option<SgeList> {
    if let ([sge], 0) = (sges, skip) {
        let taken = Sge { len: len as u32, ..*sge };
        return regions.locate_sge(pd, &taken, Access::LOCAL_WRITE).map(SgeList::One);
    }
    let mut ranges = part(sges, skip, len);
    for range in &mut ranges {
        *range = regions.locate_sge(pd, range, Access::LOCAL_WRITE)?;
    }
    Some(SgeList::new(&ranges))
}

fn locate_list_for(regions: &mut Regions, pd: Pd, sges: &[Sge], len: u64) -> Option<SgeList> {
    locate_list(regions, pd, sges, 0, len)
}

/// Copies bytes into ranges, as far as both go.
#[inline]
fn scatter(memory: &mut impl Memory, into: &[Sge], mut bytes: &[u8]) {
    for range in into {
        let (now, rest) = bytes.split_at(bytes.len().min(range.len as usize));
        if !now.is_empty() {
            memory.write(range.addr, now);
        }
        bytes = rest;
    }
}

/// The GRH of a datagram: an IPv6 header with the GIDs as addresses.
fn grh(len: u32, source: Gid, destination: Gid) -> [u8; 40] {
    const NEXT_HEADER_BTH: u8 = 0x1b;
    const HOP_LIMIT: u8 = 64;
    let mut grh = [0; 40];
    grh[0] = 0x60;
    grh[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    (grh[6], grh[7]) = (NEXT_HEADER_BTH, HOP_LIMIT);
    grh[8..24].copy_from_slice(&source.0);
    grh[24..40].copy_from_slice(&destination.0);
    grh
}
