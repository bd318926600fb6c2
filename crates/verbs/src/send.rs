//! Send requests: posting, transmission, acknowledgement, retries and completion.

use crate::engine::{Engine, limits};
use crate::memory::{Memory, Regions};
use crate::outgoing::{Bytes, Outgoing, Token, fits};
use crate::packet::{Header, PacketKind, Syndrome, Tag, flags};
use crate::queue_pair::{Datagram, Pause, QueuePair, SendEntry, SendState, Source};
use crate::queues::{SgeList, total_len};
use crate::types::{
    Access, AtomicOperation, Completion, Operation, QpNumber, QpState, QpType, Refused, SendFlags, SendRequest, Sge,
    Status,
};
use alloc::vec::Vec;

/// The pause after a refusal for want of a receive request, by the code of the receiver's timer, in units of 10 µs.
const RNR_PAUSES: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// A request of this number of retries is tried without end.
const RNR_RETRY_FOREVER: u8 = 7;

impl Engine {
    /// Posts a send request. [`Refused::RouteMissing`] asks for [`Self::add_route`] and another call.
    #[inline]
    pub fn post_send(
        &mut self,
        number: QpNumber,
        request: &SendRequest<'_>,
        memory: &impl Memory,
    ) -> Result<(), Refused> {
        let slot = self.slot(number).ok_or(Refused::Invalid)?;
        let datagram = match (self.qp(slot).ok_or(Refused::Invalid)?.init.kind, request.datagram) {
            (QpType::Ud, Some((address, qp, q_key))) => {
                let to = *self.routes.get(&(address.gid, qp)).ok_or(Refused::RouteMissing(address.gid, qp))?;
                Some(Datagram { to, qp, q_key, address })
            }
            (QpType::Ud, None) => return Err(Refused::Invalid),
            _ => None,
        };
        let qp = self.qp_mut(slot).ok_or(Refused::Invalid)?;
        post(qp, request, datagram, memory)?;
        if let Some(Datagram { to: None, qp, address, .. }) = datagram {
            self.routes.remove(&(address.gid, qp));
        }
        match self.qp(slot).map(|qp| qp.state) {
            Some(QpState::Error | QpState::SendQueueError) => self.flush_sends(slot),
            _ => self.pump(slot),
        }
        Ok(())
    }

    /// Queues packets for all requests that may be sent now.
    #[inline]
    pub(crate) fn pump(&mut self, slot: u32) {
        while let Some((qp, regions, outbox)) = self.parts(slot) {
            if qp.state != QpState::ReadyToSend || qp.pause.is_some() || qp.stopped || qp.next == qp.end() {
                break;
            }
            let sequence = qp.next;
            let (reads, reads_max) = (qp.reads_outstanding, u32::from(qp.attributes.reads_max));
            let Some(entry) = qp.entry(sequence) else { break };
            let wants_response = entry.wants_response();
            if entry.fence && reads > 0 || wants_response && reads > 0 && reads >= reads_max {
                break;
            }
            match prepare(qp, regions, slot, sequence) {
                Ok(packet) => {
                    let queued = packet.is_some();
                    qp.reads_outstanding += u32::from(wants_response);
                    qp.restart = false;
                    outbox.extend(packet);
                    if let Some(entry) = qp.entry(sequence) {
                        (entry.state, entry.queued) = (SendState::Sent, queued);
                    }
                }
                Err(status) => {
                    qp.stopped = true;
                    qp.entry(sequence).into_iter().for_each(|entry| entry.state = SendState::Failed(status));
                    self.ask(slot);
                    break;
                }
            }
            qp.next = sequence.wrapping_add(1);
        }
        self.retire(slot);
    }

    /// Asks the peer for an acknowledgement, because a request has failed that waits for those before it.
    fn ask(&mut self, slot: u32) {
        let Some((qp, _, outbox)) = self.parts(slot) else { return };
        if let (true, Some(to)) = (qp.is_reliable() && qp.acked != qp.next, qp.peer) {
            let tag = Tag::ack(qp.attributes.destination, qp.executed, Syndrome::Asks);
            outbox.push_back(Outgoing {
                to,
                tag,
                header: Header::new(),
                bytes: Bytes::None,
                token: Token::Ack { slot },
            });
        }
    }

    /// Completes the requests at the front of the queue that are over.
    #[inline]
    pub(crate) fn retire(&mut self, slot: u32) {
        while let Some(qp) = self.qp_mut(slot) {
            let (cq, number) = (qp.init.send_cq, qp.number);
            let acked = !qp.is_reliable() || qp.acked != qp.first;
            let Some(entry) = qp.sends.front() else { return };
            let status = match entry.state {
                SendState::Sent if acked && entry.answered && !entry.is_in_use() => Status::Success,
                SendState::Failed(status) => status,
                SendState::Sent | SendState::Waiting => return,
            };
            let failed = status != Status::Success;
            let Some(entry) = qp.sends.pop_front() else { return };
            qp.first = qp.first.wrapping_add(1);
            if entry.signaled || failed {
                let len = if entry.wants_response() { entry.len } else { 0 };
                let completion = qp.completion(entry.wr_id, status, entry.completion_kind());
                self.report(cq, Completion { len, qp: number, ..completion });
            }
            if failed {
                return self.fail_queue(slot, &entry);
            }
        }
    }

    /// A request has failed: those after it are flushed.
    fn fail_queue(&mut self, slot: u32, entry: &SendEntry) {
        let Some(qp) = self.qp_mut(slot) else { return };
        let to = entry.datagram.and_then(|to| to.to).or(qp.peer);
        let reliable = qp.is_reliable();
        if !reliable {
            qp.state = QpState::SendQueueError;
        }
        if let (true, Some(to)) = (entry.transmissions > 0, to) {
            self.released.push(to.domain);
        }
        match reliable {
            true => self.enter_error(slot),
            false => self.flush_sends(slot),
        }
    }

    /// The first request that the peer has not executed ends with this status, and with it the queue pair.
    pub(crate) fn fail_first_unacked(&mut self, slot: u32, status: Status) {
        let Some(qp) = self.qp(slot) else { return };
        let acked = qp.acked;
        // Reads that were executed, but whose bytes have not come, get none any more.
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
        let keeps = |outgoing: &Outgoing| match outgoing.token {
            Token::Request { slot: of, sequence } => of != slot || sequence.wrapping_sub(first) < at,
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
        (qp.established, qp.restart) = (false, true);
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
        if qp.pause.replace(Pause { length_ns, until: None }).is_none() {
            self.pausing.push(slot);
        }
    }

    fn resume(&mut self, slot: u32) {
        self.pausing.retain(|pausing| *pausing != slot);
        if let Some(qp) = self.qp_mut(slot) {
            qp.pause = None;
            self.pump(slot);
        }
    }

    /// True if a queue pair pauses, so that [`Self::tick`] has to be called from time to time.
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

/// Checks a request and adds it to the send queue.
#[inline]
fn post(
    qp: &mut QueuePair,
    request: &SendRequest<'_>,
    datagram: Option<Datagram>,
    memory: &impl Memory,
) -> Result<(), Refused> {
    if matches!(qp.state, QpState::Reset | QpState::Init | QpState::ReadyToReceive) {
        return Err(Refused::Invalid);
    }
    if qp.sends.len() >= qp.init.sends_max as usize {
        return Err(Refused::Full);
    }
    let len = total_len(request.sges);
    let kind = qp.init.kind;
    let len_max = if kind == QpType::Ud { limits::DATAGRAM_BYTES_MAX } else { limits::MESSAGE_BYTES_MAX };
    let inline = request.flags.contains(SendFlags::INLINE);
    let allowed = match request.operation {
        Operation::Send { .. } => true,
        Operation::Write { .. } => kind != QpType::Ud,
        Operation::Read { .. } => kind == QpType::Rc && !inline,
        Operation::Atomic { remote_addr, .. } => {
            kind == QpType::Rc && !inline && len == 8 && remote_addr.is_multiple_of(8)
        }
    };
    if !allowed || request.sges.len() > qp.init.send_sges_max as usize || len > u64::from(len_max) {
        return Err(Refused::Invalid);
    }
    let source = if inline {
        if len > u64::from(qp.init.inline_max) {
            return Err(Refused::Invalid);
        }
        copy_inline(qp, request.sges, memory);
        Source::Inline
    } else {
        Source::Memory(SgeList::new(request.sges))
    };
    let entry = SendEntry {
        wr_id: request.wr_id,
        operation: request.operation,
        len: len as u32,
        source,
        datagram,
        signaled: qp.init.signal_all || request.flags.contains(SendFlags::SIGNALED),
        solicited: request.flags.contains(SendFlags::SOLICITED),
        fence: request.flags.contains(SendFlags::FENCE),
        state: SendState::Waiting,
        queued: false,
        transmissions: 0,
        answered: !matches!(request.operation, Operation::Read { .. } | Operation::Atomic { .. }),
        response_coming: false,
    };
    qp.sends.push_back(entry);
    Ok(())
}

/// Copies the bytes of an inline request.
#[inline]
fn copy_inline(qp: &mut QueuePair, sges: &[Sge], memory: &impl Memory) {
    if qp.inline_bytes.is_empty() {
        qp.inline_bytes.resize(qp.init.inline_max as usize * qp.init.sends_max as usize, 0);
    }
    let mut at = qp.inline_place(qp.end());
    for sge in sges {
        memory.read(sge.addr, &mut qp.inline_bytes[at..at + sge.len as usize]);
        at += sge.len as usize;
    }
}

/// Makes the packet of a request. None for a datagram that reaches no device; an error ends the request.
#[inline]
fn prepare(qp: &mut QueuePair, regions: &mut Regions, slot: u32, sequence: u32) -> Result<Option<Outgoing>, Status> {
    let (pd, kind, number) = (qp.init.pd, qp.init.kind, qp.number);
    let acknowledges = qp.is_reliable();
    let (source, restart) = (acknowledges && !qp.established, acknowledges && qp.restart);
    let half_full = qp.sends.len() * 2 >= qp.init.sends_max as usize;
    let (peer, destination) = (qp.peer, qp.attributes.destination);
    let q_key_of_qp = qp.attributes.q_key;
    let entry = qp.entry(sequence).ok_or(Status::LocalQpOperation)?;
    let bytes = match &entry.source {
        _ if entry.wants_response() => {
            check_response_place(regions, pd, &entry.source)?;
            Bytes::None
        }
        Source::Inline => Bytes::Inline { len: entry.len },
        Source::Memory(list) => {
            let mut list = list.clone();
            for sge in list.as_mut_slice() {
                *sge = regions.locate_sge(pd, sge, Access::empty()).ok_or(Status::LocalProtection)?;
            }
            Bytes::Memory(list)
        }
    };
    let mut parameter = if entry.solicited { flags::SOLICITED } else { 0 };
    let mut header = Header::new();
    if source {
        parameter |= flags::SOURCE;
        header.word(number.0);
    }
    parameter |= if restart { flags::RESTART } else { 0 };
    parameter |= if acknowledges && (entry.signaled || half_full) { flags::ACKNOWLEDGE } else { 0 };
    let packet_kind = match kind {
        QpType::Ud => PacketKind::Datagram,
        _ => request_words(&mut header, &mut parameter, entry),
    };
    let mut tag = Tag { kind: packet_kind, parameter: 0, count: 0, destination };
    let mut to = peer;
    if let Some(datagram) = &entry.datagram {
        (to, tag.destination, tag.count) = (datagram.to, datagram.qp, number.0);
        parameter |= datagram_words(&mut header, datagram, q_key_of_qp, entry.operation);
    }
    // A length and a payload that follows, or the payload.
    let len = if matches!(bytes, Bytes::None) { 0 } else { entry.len };
    if !fits(&header, u64::from(len)) {
        parameter |= flags::FOLLOWS;
        header.word(len);
    }
    tag.parameter = parameter;
    let Some(to) = to else {
        return if kind == QpType::Rc { Err(Status::RetryExceeded) } else { Ok(None) };
    };
    Ok(Some(Outgoing { to, tag, header, bytes, token: Token::Request { slot, sequence } }))
}

/// The ranges that take a response must allow it.
fn check_response_place(regions: &mut Regions, pd: crate::types::Pd, source: &Source) -> Result<(), Status> {
    let Source::Memory(list) = source else { return Err(Status::LocalQpOperation) };
    for sge in list.as_slice() {
        regions.locate_sge(pd, sge, Access::LOCAL_WRITE).ok_or(Status::LocalProtection)?;
    }
    Ok(())
}

/// Writes the words of a request of a connection.
#[inline]
fn request_words(header: &mut Header, parameter: &mut u16, entry: &SendEntry) -> PacketKind {
    let mut word_of = |header: &mut Header, flag, word: Option<u32>| {
        if let Some(word) = word {
            *parameter |= flag;
            header.word(word);
        }
    };
    match entry.operation {
        Operation::Send { immediate } => {
            word_of(header, flags::IMMEDIATE, immediate);
            PacketKind::Send
        }
        Operation::Write { remote_addr, rkey, immediate } => {
            header.long(remote_addr);
            header.word(rkey.0);
            word_of(header, flags::IMMEDIATE, immediate);
            PacketKind::Write
        }
        Operation::Read { remote_addr, rkey } => {
            header.long(remote_addr);
            header.word(rkey.0);
            header.word(entry.len);
            PacketKind::Read
        }
        Operation::Atomic { remote_addr, rkey, atomic } => {
            header.long(remote_addr);
            header.word(rkey.0);
            let (operand, compare) = match atomic {
                AtomicOperation::FetchAdd(add) => (add, 0),
                AtomicOperation::CompareSwap { compare, swap } => {
                    *parameter |= flags::COMPARE;
                    (swap, compare)
                }
            };
            header.long(operand);
            header.long(compare);
            PacketKind::Atomic
        }
    }
}

/// Writes the words of a datagram. Returns its flags.
fn datagram_words(header: &mut Header, datagram: &Datagram, q_key_of_qp: u32, operation: Operation) -> u16 {
    // A Q_Key with the highest bit stands for that of the queue pair.
    let q_key = if datagram.q_key >> 31 != 0 { q_key_of_qp } else { datagram.q_key };
    header.word(q_key);
    header.word(u32::from(datagram.address.service_level));
    let mut parameter = 0;
    if let Operation::Send { immediate: Some(immediate) } = operation {
        parameter |= flags::IMMEDIATE;
        header.word(immediate);
    }
    let has_grh = datagram.address.gid != crate::types::Gid::default();
    if has_grh {
        parameter |= flags::GRH;
        header.gid(datagram.address.source_gid);
        header.gid(datagram.address.gid);
    }
    parameter
}
