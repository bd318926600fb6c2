//! Send requests: posting, transmission, acknowledgement, retries and completion.

mod retries;

use crate::engine::{Engine, limits};
use crate::memory::{Memory, Regions};
use crate::outgoing::{Outgoing, Payload};
use crate::packet::{BodyWriter, PacketKind, Tag, flags};
use crate::queue_pair::QueuePair;
use crate::queues::{SgeList, total_len};
use crate::requester::{Datagram, SendEntry, Source};
use crate::types::{
    Access, AtomicOperation, Completion, Operation, QpNumber, QpState, QpType, Refused, SendFlags, SendRequest, Sge,
    Status,
};
use alloc::vec;
use isthmus_layout::EndpointAddress;

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
        let ends = matches!(qp.state, QpState::Error | QpState::SendQueueError);
        if let Some(Datagram { to: None, qp, address, .. }) = datagram {
            self.routes.remove(&(address.gid, qp));
        }
        if ends {
            self.flush_sends(slot);
        } else {
            self.pump(slot);
        }
        Ok(())
    }

    /// Returns the refusal that [`Self::post_send`] would give for a request after `earlier` others that are not posted yet. A missing
    /// route is none.
    pub fn check_send(&self, number: QpNumber, request: &SendRequest<'_>, earlier: usize) -> Result<(), Refused> {
        let qp = self.slot(number).and_then(|slot| self.qp(slot)).ok_or(Refused::Invalid)?;
        if qp.init.kind == QpType::Ud && request.datagram.is_none() {
            return Err(Refused::Invalid);
        }
        check(qp, request, earlier).map(|_| ())
    }

    /// Queues packets for all requests that may be sent now.
    #[inline]
    pub(crate) fn pump(&mut self, slot: u32) {
        let Some((qp, _, outbox)) = self.parts(slot) else { return };
        if qp.state != QpState::ReadyToSend || qp.search.is_some() {
            return;
        }
        while let Some(sequence) = qp.requester.send_next(u32::from(qp.attributes.reads_max)) {
            outbox.push_back(Outgoing::Request { slot, sequence });
        }
    }

    /// Asks the peer for an acknowledgement, because a request has failed that waits for those before it.
    fn ask(&mut self, slot: u32) {
        let Some((qp, _, outbox)) = self.parts(slot) else { return };
        if qp.is_reliable() && qp.requester.waits_for_execution() {
            outbox.push_back(Outgoing::Asks { slot });
        }
    }

    /// Completes the requests at the front of the queue that are over.
    #[inline]
    pub(crate) fn retire(&mut self, slot: u32) {
        while let Some(qp) = self.qp_mut(slot) {
            let cq = qp.init.send_cq;
            let drained_event = qp.attributes.drained_event;
            let Some((entry, status)) = qp.requester.front_over(qp.is_reliable()) else {
                if drained_event {
                    self.note_drained(slot);
                }
                return;
            };
            let failed = status != Status::Success;
            let signaled = entry.signaled || failed;
            let len = if entry.wants_response() { entry.len } else { 0 };
            let completion = Completion { len, ..qp.completion(entry.wr_id, status, entry.completion_kind()) };
            let failed = qp.requester.pop().filter(|_| failed);
            if signaled {
                self.report(cq, completion);
            }
            if let Some(entry) = failed {
                return self.fail_queue(slot, &entry);
            }
        }
    }

    /// A request has failed: those after it are flushed.
    fn fail_queue(&mut self, slot: u32, entry: &SendEntry) {
        let Some(qp) = self.qp_mut(slot) else { return };
        let borrower = entry.borrower(qp.peer);
        let reliable = qp.is_reliable();
        if !reliable {
            qp.state = QpState::SendQueueError;
        }
        if let Some(to) = borrower {
            self.release(to.domain);
        }
        match reliable {
            true => self.enter_error(slot),
            false => self.flush_sends(slot),
        }
    }
}

/// Checks a request that follows `earlier` others, and returns its length.
#[inline]
fn check(qp: &QueuePair, request: &SendRequest<'_>, earlier: usize) -> Result<u64, Refused> {
    if matches!(qp.state, QpState::Reset | QpState::Init | QpState::ReadyToReceive) {
        return Err(Refused::Invalid);
    }
    if qp.requester.len() + earlier >= qp.init.sends_max as usize {
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
    let fits = len <= u64::from(len_max) && (!inline || len <= u64::from(qp.init.inline_max));
    if !allowed || !fits || request.sges.len() > qp.init.send_sges_max as usize {
        return Err(Refused::Invalid);
    }
    Ok(len)
}

/// Checks a request and adds it to the send queue.
#[inline]
fn post(
    qp: &mut QueuePair,
    request: &SendRequest<'_>,
    datagram: Option<Datagram>,
    memory: &impl Memory,
) -> Result<(), Refused> {
    let len = check(qp, request, 0)?;
    let source = if request.flags.contains(SendFlags::INLINE) {
        copy_inline(qp, request.sges, memory);
        Source::Inline
    } else {
        Source::Memory(SgeList::new(request.sges))
    };
    let mut entry = SendEntry::new(request, len as u32, source, datagram);
    entry.signaled |= qp.init.signal_all;
    qp.requester.push(entry);
    Ok(())
}

/// Copies the bytes of an inline request.
#[inline]
fn copy_inline(qp: &mut QueuePair, sges: &[Sge], memory: &impl Memory) {
    let mut room = qp.requester.inline_room(&qp.init);
    for sge in sges {
        let (now, later) = room.split_at_mut(sge.len as usize);
        memory.read(sge.addr, now);
        room = later;
    }
}

/// The packet of a request, without its count.
pub(crate) struct RequestPacket {
    pub(crate) to: EndpointAddress,
    pub(crate) tag: Tag,
    /// The length of the body in bytes.
    pub(crate) len: usize,
    pub(crate) payload: Option<Payload>,
}

/// Makes the packet of a request. None for a datagram that reaches no device; an error ends the request.
#[inline]
pub(crate) fn packet(
    qp: &QueuePair,
    entry: &SendEntry,
    regions: &mut Regions,
    sequence: u32,
    memory: &impl Memory,
    mut body: BodyWriter<'_>,
) -> Result<Option<RequestPacket>, Status> {
    let kind = qp.init.kind;
    let acknowledges = qp.is_reliable();
    let mut parameter = if entry.solicited { flags::SOLICITED } else { 0 };
    if acknowledges {
        if let Some(position) = qp.requester.position_of_attempt(sequence) {
            parameter |= flags::SOURCE;
            body.word(qp.number.0 | position << 24);
        }
        parameter |= if qp.requester.restarts() { flags::RESTART } else { 0 };
        let half_full = qp.requester.len() * 2 >= qp.init.sends_max as usize;
        parameter |= if entry.signaled || half_full { flags::ACKNOWLEDGE } else { 0 };
    }
    let packet_kind = match kind {
        QpType::Ud => PacketKind::Datagram,
        _ => request_words(&mut body, &mut parameter, entry),
    };
    let (mut to, mut destination) = (qp.peer, qp.attributes.destination);
    if let Some(datagram) = &entry.datagram {
        (to, destination) = (datagram.to, datagram.qp);
        parameter |= datagram_words(&mut body, datagram, qp.attributes.q_key, entry.operation);
    }
    let mut payload = None;
    if entry.wants_response() {
        check_response_place(regions, qp.init.pd, &entry.source)?;
    } else {
        let follows = body.follows(entry.len);
        parameter |= follows;
        payload = payload_of(qp, entry, regions, sequence, memory, (follows == 0).then_some(&mut body))?;
    }
    let Some(to) = to else {
        return if kind == QpType::Rc { Err(Status::RetryExceeded) } else { Ok(None) };
    };
    let tag = Tag { kind: packet_kind, parameter, count: 0, destination };
    Ok(Some(RequestPacket { to, tag, len: body.len(), payload }))
}

/// Writes the bytes of a request to the body, or returns them if there is none: they follow as a message of their own.
#[inline]
fn payload_of(
    qp: &QueuePair,
    entry: &SendEntry,
    regions: &mut Regions,
    sequence: u32,
    memory: &impl Memory,
    body: Option<&mut BodyWriter<'_>>,
) -> Result<Option<Payload>, Status> {
    let list = match &entry.source {
        Source::Inline => {
            let bytes = qp.requester.inline_bytes(&qp.init, sequence, entry.len);
            return Ok(match body {
                Some(body) => {
                    body.take(bytes.len()).copy_from_slice(bytes);
                    None
                }
                None => Some(Payload::Bytes(bytes.to_vec())),
            });
        }
        Source::Memory(list) => list.as_slice(),
    };
    let pd = qp.init.pd;
    let mut locate =
        |sge: &Sge| regions.locate_sge(pd, sge, Access::empty()).map(|sge| sge.addr).ok_or(Status::LocalProtection);
    Ok(match (body, list) {
        (Some(body), list) => {
            for sge in list {
                memory.read(locate(sge)?, body.take(sge.len as usize));
            }
            None
        }
        (None, [sge]) => Some(Payload::Range { addr: locate(sge)?, len: u64::from(sge.len) }),
        (None, list) => {
            let mut gathered = vec![0; entry.len as usize];
            let mut rest = &mut gathered[..];
            for sge in list {
                let (now, later) = rest.split_at_mut(sge.len as usize);
                memory.read(locate(sge)?, now);
                rest = later;
            }
            Some(Payload::Bytes(gathered))
        }
    })
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
fn request_words(body: &mut BodyWriter<'_>, parameter: &mut u16, entry: &SendEntry) -> PacketKind {
    let mut word_of = |body: &mut BodyWriter<'_>, flag, word: Option<u32>| {
        if let Some(word) = word {
            *parameter |= flag;
            body.word(word);
        }
    };
    match entry.operation {
        Operation::Send { immediate } => {
            word_of(body, flags::IMMEDIATE, immediate);
            PacketKind::Send
        }
        Operation::Write { remote_addr, rkey, immediate } => {
            body.long(remote_addr);
            body.word(rkey.0);
            word_of(body, flags::IMMEDIATE, immediate);
            PacketKind::Write
        }
        Operation::Read { remote_addr, rkey } => {
            body.long(remote_addr);
            body.word(rkey.0);
            body.word(entry.len);
            PacketKind::Read
        }
        Operation::Atomic { remote_addr, rkey, atomic } => {
            body.long(remote_addr);
            body.word(rkey.0);
            let (operand, compare) = match atomic {
                AtomicOperation::FetchAdd(add) => (add, 0),
                AtomicOperation::CompareSwap { compare, swap } => {
                    *parameter |= flags::COMPARE;
                    (swap, compare)
                }
            };
            body.long(operand);
            body.long(compare);
            PacketKind::Atomic
        }
    }
}

/// Writes the words of a datagram. Returns its flags.
fn datagram_words(body: &mut BodyWriter<'_>, datagram: &Datagram, q_key_of_qp: u32, operation: Operation) -> u16 {
    // A Q_Key with the highest bit stands for that of the queue pair.
    let q_key = if datagram.q_key >> 31 != 0 { q_key_of_qp } else { datagram.q_key };
    body.word(q_key);
    body.word(u32::from(datagram.address.service_level));
    let mut parameter = 0;
    if let Operation::Send { immediate: Some(immediate) } = operation {
        parameter |= flags::IMMEDIATE;
        body.word(immediate);
    }
    let has_grh = datagram.address.gid != crate::types::Gid::default();
    if has_grh {
        parameter |= flags::GRH;
        body.gid(datagram.address.source_gid);
        body.gid(datagram.address.gid);
    }
    parameter
}
