//! The adapter of an open device: its objects, and the calls that make, change and end them.

use crate::attributes::{AttributeMask, Attributes, rules};
use crate::memory::{FastMap, Regions};
use crate::outgoing::Outgoing;
use crate::packet::{Syndrome, Tag};
use crate::queue_pair::{Inbound, Positions, QpInit, QueuePair, SendEntry, SendState, Source};
use crate::queues::{CompletionQueue, ReceiveQueue, Table};
use crate::receive::PayloadUse;
use crate::types::{
    Access, Completion, CompletionKind, Cq, Gid, Key, Pd, QpNumber, QpState, ReceiveRequest, Refused, Srq, Status,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;
use isthmus_layout::{DomainId, EndpointAddress};

/// The maximum values that the adapter reports and enforces.
pub mod limits {
    /// Requests of one queue.
    pub const REQUESTS_MAX: u32 = 16_384;
    /// Ranges of one list.
    pub const SGES_MAX: u32 = 32;
    /// Inline bytes of one request.
    pub const INLINE_BYTES_MAX: u32 = 1024;
    /// Completions of one queue.
    pub const COMPLETIONS_MAX: u32 = 1 << 20;
    /// Reads and atomic operations under way on one queue pair, in each direction.
    pub const READS_MAX: u32 = 128;
    /// Bytes of one message.
    pub const MESSAGE_BYTES_MAX: u32 = 1 << 30;
    /// Bytes of one datagram: the largest path MTU.
    pub const DATAGRAM_BYTES_MAX: u32 = 4096;
    /// Bytes before a datagram in its receive buffer, for the GRH.
    pub const GRH_BYTES: u32 = 40;
    /// Objects of one kind.
    pub const OBJECTS_MAX: usize = 1 << 20;
}

/// The queue pair numbers that the daemon has given.
#[derive(Debug, Default)]
struct Numbers {
    /// The first number of each block of 256.
    blocks: Vec<u32>,
    /// Numbers without a queue pair, the one that is free for longest first.
    free: VecDeque<QpNumber>,
}

const BLOCK: u32 = 256;

impl Numbers {
    /// The place of a number in tables.
    #[inline]
    fn slot(&self, number: QpNumber) -> Option<u32> {
        let first = number.0 & !(BLOCK - 1);
        let block = self.blocks.iter().position(|block| *block == first)?;
        Some(block as u32 * BLOCK + (number.0 & (BLOCK - 1)))
    }
}

/// The adapter of an open device.
///
/// The engine does no I/O. Calls of the program and arriving packets change its state; [`Self::next_outgoing`] and [`Self::next_ack`]
/// return the packets to send.
#[derive(Debug, Default)]
pub struct Engine {
    pub(crate) regions: Regions,
    pds: Table<()>,
    pub(crate) cqs: Table<CompletionQueue>,
    pub(crate) receive_queues: Table<ReceiveQueue>,
    numbers: Numbers,
    qps: Vec<Option<Box<QueuePair>>>,
    /// The numbers that the next queue pair of a slot begins with.
    positions: Vec<Positions>,
    /// Devices that send a payload next.
    pub(crate) peers: FastMap<EndpointAddress, PayloadUse>,
    pub(crate) routes: FastMap<(Gid, QpNumber), Option<EndpointAddress>>,
    pub(crate) outbox: VecDeque<Outgoing>,
    /// Slots of queue pairs that owe an acknowledgement.
    pub(crate) owing: VecDeque<u32>,
    /// Refusals for queue pairs that do not exist.
    pub(crate) strays: VecDeque<(EndpointAddress, Tag)>,
    /// Slots of queue pairs that pause.
    pub(crate) pausing: Vec<u32>,
    /// Peers whose borrowed buffers have to be released before the call returns.
    pub(crate) released: Vec<DomainId>,
    /// Packets of peers that no device of ours would have sent.
    pub(crate) violations: u64,
    /// Completions reported so far.
    pub(crate) completions: u64,
}

impl Engine {
    /// Makes an adapter. `seed` makes its keys unguessable, so it has to be random.
    pub fn new(seed: u64) -> Self {
        Self { regions: Regions::new(seed), ..Self::default() }
    }

    /// Adds a block of 256 queue pair numbers, the first of which is a multiple of 256.
    pub fn add_numbers(&mut self, numbers: Range<u32>) {
        assert!(numbers.start.is_multiple_of(BLOCK) && numbers.len() == BLOCK as usize);
        self.numbers.blocks.push(numbers.start);
        self.numbers.free.extend(numbers.map(QpNumber));
        let slots = self.numbers.blocks.len() * BLOCK as usize;
        self.qps.resize_with(slots, || None);
        self.positions.resize(slots, Positions::FIRST);
    }

    /// The number of violations of peers so far.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// The number of completions reported so far, polled or not.
    #[inline]
    pub fn completions(&self) -> u64 {
        self.completions
    }

    /// Peers whose borrowed buffers the caller has to release now, because requests ended that had lent them.
    pub fn take_released(&mut self) -> Vec<DomainId> {
        core::mem::take(&mut self.released)
    }

    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> Result<Pd, Refused> {
        match self.pds.len() < limits::OBJECTS_MAX {
            true => Ok(Pd(self.pds.insert(()))),
            false => Err(Refused::Full),
        }
    }

    /// Ends a protection domain. Refused while other objects use it.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), Refused> {
        let in_use = self.regions.uses_pd(pd)
            || self.qps.iter().flatten().any(|qp| qp.init.pd == pd)
            || self.receive_queues.iter().any(|queue| queue.pd == pd);
        if in_use {
            return Err(Refused::Busy);
        }
        self.pds.remove(pd.0).ok_or(Refused::Invalid)
    }

    /// Registers `len` bytes at `addr`, which requests call `iova`.
    pub fn register(&mut self, pd: Pd, addr: u64, len: u64, iova: u64, access: Access) -> Result<Key, Refused> {
        self.pds.get(pd.0).ok_or(Refused::Invalid)?;
        if !rights_agree(access) {
            return Err(Refused::Invalid);
        }
        if addr.checked_add(len).is_none() || iova.checked_add(len).is_none() {
            return Err(Refused::Invalid);
        }
        Ok(self.regions.insert(pd, addr, len, iova, access))
    }

    /// Changes a region: its protection domain, its range, its rights.
    pub fn reregister(
        &mut self,
        key: Key,
        pd: Option<Pd>,
        range: Option<(u64, u64)>,
        access: Option<Access>,
    ) -> Result<(), Refused> {
        if pd.is_some_and(|pd| self.pds.get(pd.0).is_none())
            || range.is_some_and(|(addr, len)| addr.checked_add(len).is_none())
            || !access.is_none_or(rights_agree)
        {
            return Err(Refused::Invalid);
        }
        let found = self.regions.change(key, |old_pd, old_range, old_access| {
            *old_pd = pd.unwrap_or(*old_pd);
            *old_range = range.unwrap_or(*old_range);
            *old_access = access.unwrap_or(*old_access);
        });
        if !found {
            return Err(Refused::Invalid);
        }
        self.end_uses(key);
        Ok(())
    }

    /// Ends a registration. Requests that name its key fail from now on, also those that are under way.
    pub fn deregister(&mut self, key: Key) -> Result<(), Refused> {
        if !self.regions.remove(key) {
            return Err(Refused::Invalid);
        }
        self.end_uses(key);
        Ok(())
    }

    /// Ends what is under way in a region that has changed: its memory belongs to the program alone again.
    fn end_uses(&mut self, key: Key) {
        for slot in self.slots() {
            let Some(qp) = self.qp(slot).filter(|qp| qp.has_work_under_way()) else { continue };
            if qp.responses > 0
                && let Some(peer) = qp.peer
            {
                self.released.push(peer.domain);
            }
            self.end_uses_of_requests(slot, key);
            let packets = self.outbox.len();
            self.outbox.retain(|outgoing| outgoing.slot() != Some(slot) || !outgoing.lends(key));
            let revoked = self.outbox.len() < packets;
            let inbound = self.qp(slot).and_then(|qp| qp.inbound.iter().find(|request| request.work.uses(key)));
            match inbound.map(|request| request.taken.is_some()) {
                Some(true) => self.receive_failed(slot, key),
                None if !revoked => {}
                _ if self.qp(slot).is_some_and(|qp| qp.is_reliable()) => self.refuse(slot, Syndrome::Access),
                _ => self.forget_inbound(slot, |request| request.work.uses(key)),
            }
        }
    }

    /// Ends the first send request that needs a region.
    fn end_uses_of_requests(&mut self, slot: u32, key: Key) {
        let Some(qp) = self.qp(slot) else { return };
        let uses = |entry: &SendEntry| matches!(&entry.source, Source::Memory(list) if list.uses(key));
        let is_over = |entry: &SendEntry| !entry.is_in_use() && entry.answered || entry.state == SendState::Waiting;
        let Some(at) = qp.sends.iter().position(|entry| uses(entry) && !is_over(entry)) else { return };
        let entry = &qp.sends[at];
        let (sequence, to) = (qp.first.wrapping_add(at as u32), entry.datagram.and_then(|to| to.to).or(qp.peer));
        if let Some(to) = to {
            self.released.push(to.domain);
        }
        self.fail_request(slot, sequence, Status::LocalProtection);
    }

    /// Receive requests that were taken for messages have lost their region.
    fn receive_failed(&mut self, slot: u32, key: Key) {
        let Some(qp) = self.qp_mut(slot) else { return };
        let cq = qp.init.receive_cq;
        let Some(at) = qp.inbound.iter().position(|request| request.work.uses(key)) else { return };
        let Some(Inbound { taken: Some((_, completion)), from, .. }) = qp.inbound.remove(at) else { return };
        let failed = qp.completion(completion.wr_id, Status::LocalProtection, CompletionKind::Receive);
        self.report(cq, failed);
        self.released.push(from.domain);
        self.refuse(slot, Syndrome::Operation);
        self.enter_error(slot); // An unreliable one, too.
    }

    /// Makes a completion queue with room for `capacity` completions.
    pub fn create_cq(&mut self, capacity: u32) -> Result<Cq, Refused> {
        if !(1..=limits::COMPLETIONS_MAX).contains(&capacity) {
            return Err(Refused::Invalid);
        }
        Ok(Cq(self.cqs.insert(CompletionQueue::new(capacity as usize))))
    }

    /// Changes the room of a completion queue.
    pub fn resize_cq(&mut self, cq: Cq, capacity: u32) -> Result<(), Refused> {
        if !(1..=limits::COMPLETIONS_MAX).contains(&capacity) {
            return Err(Refused::Invalid);
        }
        self.cqs.get_mut(cq.0).ok_or(Refused::Invalid)?.resize(capacity as usize)
    }

    /// Ends a completion queue. Refused while queue pairs use it.
    pub fn destroy_cq(&mut self, cq: Cq) -> Result<(), Refused> {
        if self.cqs.get(cq.0).ok_or(Refused::Invalid)?.users > 0 {
            return Err(Refused::Busy);
        }
        self.cqs.remove(cq.0);
        Ok(())
    }

    /// Takes the oldest completion of a queue.
    #[inline]
    pub fn poll(&mut self, cq: Cq) -> Option<Completion> {
        self.cqs.get_mut(cq.0)?.pop()
    }

    /// True if a completion queue has lost completions because it had no room.
    pub fn is_overrun(&self, cq: Cq) -> bool {
        self.cqs.get(cq.0).is_some_and(|cq| cq.overrun)
    }

    /// Makes a shared receive queue.
    pub fn create_srq(&mut self, pd: Pd, receives_max: u32, sges_max: u32) -> Result<Srq, Refused> {
        self.pds.get(pd.0).ok_or(Refused::Invalid)?;
        if !(1..=limits::REQUESTS_MAX).contains(&receives_max) || sges_max > limits::SGES_MAX {
            return Err(Refused::Invalid);
        }
        let queue = ReceiveQueue::new(pd, receives_max as usize, sges_max as usize, true);
        Ok(Srq(self.receive_queues.insert(queue)))
    }

    /// Ends a shared receive queue. Refused while queue pairs use it.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), Refused> {
        match self.receive_queues.get(srq.0) {
            Some(queue) if !queue.shared => Err(Refused::Invalid),
            Some(queue) if queue.users > 0 => Err(Refused::Busy),
            Some(_) => self.receive_queues.remove(srq.0).map(|_| ()).ok_or(Refused::Invalid),
            None => Err(Refused::Invalid),
        }
    }

    /// Posts a receive request to a shared receive queue.
    #[inline]
    pub fn post_srq_receive(&mut self, srq: Srq, request: &ReceiveRequest<'_>) -> Result<(), Refused> {
        self.receive_queues.get_mut(srq.0).ok_or(Refused::Invalid)?.push(request.wr_id, request.sges)?;
        self.invite_refused(srq.0);
        Ok(())
    }

    /// Makes a queue pair. [`Refused::NumbersMissing`] asks for [`Self::add_numbers`]. Returns the number and the capacities that it has.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<(QpNumber, QpInit), Refused> {
        let mut init = *init;
        self.pds.get(init.pd.0).ok_or(Refused::Invalid)?;
        let receives_max = if init.srq.is_some() { 0 } else { init.receives_max };
        let too_large = init.sends_max > limits::REQUESTS_MAX
            || receives_max > limits::REQUESTS_MAX
            || init.send_sges_max.max(init.receive_sges_max) > limits::SGES_MAX
            || init.inline_max > limits::INLINE_BYTES_MAX;
        if too_large || self.cqs.get(init.send_cq.0).is_none() || self.cqs.get(init.receive_cq.0).is_none() {
            return Err(Refused::Invalid);
        }
        if init.srq.is_some_and(|srq| !self.receive_queues.get(srq.0).is_some_and(|queue| queue.shared)) {
            return Err(Refused::Invalid);
        }
        let number = self.numbers.free.pop_front().ok_or(Refused::NumbersMissing)?;
        init.sends_max = init.sends_max.max(1).next_power_of_two();
        let receive_queue = match init.srq {
            Some(srq) => srq.0,
            None => {
                let (capacity, sges_max) = (receives_max as usize, init.receive_sges_max as usize);
                self.receive_queues.insert(ReceiveQueue::new(init.pd, capacity, sges_max, false))
            }
        };
        self.receive_queues.get_mut(receive_queue).into_iter().for_each(|queue| queue.users += 1);
        for cq in [init.send_cq, init.receive_cq] {
            self.cqs.get_mut(cq.0).into_iter().for_each(|cq| cq.users += 1);
        }
        let slot = self.numbers.slot(number).expect("the number comes from a block");
        let qp = QueuePair::new(number, init, receive_queue, self.positions[slot as usize]);
        self.qps[slot as usize] = Some(Box::new(qp));
        Ok((number, init))
    }

    /// Ends a queue pair, with its requests and their completions.
    pub fn destroy_qp(&mut self, number: QpNumber) -> Result<(), Refused> {
        let slot = self.slot(number).ok_or(Refused::Invalid)?;
        self.end_connection(slot);
        let qp = self.qps[slot as usize].take().ok_or(Refused::Invalid)?;
        self.positions[slot as usize] = qp.positions();
        self.owing.retain(|owing| *owing != slot);
        for cq in [qp.init.send_cq, qp.init.receive_cq] {
            self.cqs.get_mut(cq.0).into_iter().for_each(|cq| cq.users -= 1);
        }
        if let Some(queue) = self.receive_queues.get_mut(qp.receive_queue) {
            queue.users -= 1;
            if !queue.shared {
                self.receive_queues.remove(qp.receive_queue);
            }
        }
        self.numbers.free.push_back(number);
        Ok(())
    }

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
        apply(&mut qp.attributes, attributes, mask);
        if mask.contains(AttributeMask::ADDRESS) {
            qp.peer = peer;
        }
        match to {
            QpState::Reset => self.end_connection(slot),
            QpState::Error => self.enter_error(slot),
            QpState::ReadyToReceive => {
                qp.state = to;
                qp.executed = qp.attributes.receive_psn & QpNumber::MASK;
                if qp.is_reliable() {
                    self.owe(slot, Syndrome::Ready);
                }
            }
            QpState::ReadyToSend => {
                if from == QpState::ReadyToReceive {
                    (qp.retries_left, qp.rnr_retries_left) = (attributes.retry_count, attributes.rnr_retry);
                    qp.base = qp.first.wrapping_sub(qp.attributes.send_psn & QpNumber::MASK);
                }
                qp.state = to;
                self.pump(slot);
            }
            _ => qp.state = to,
        }
        Ok(())
    }

    /// Resets a queue pair: its requests and their completions are gone.
    fn end_connection(&mut self, slot: u32) {
        let Some(qp) = self.qp_mut(slot) else { return };
        let (number, init, receive_queue, peer) = (qp.number, qp.init, qp.receive_queue, qp.peer);
        let lent = qp.sends.iter().any(|entry| entry.transmissions > 0) || !qp.inbound.is_empty() || qp.responses > 0;
        let to = qp.sends.front().and_then(|entry| entry.datagram?.to).or(peer);
        // In Error, the queue pair may still owe the reason.
        let syndrome = if qp.state == QpState::Error { qp.owed } else { Some(Syndrome::NotReady) };
        let goodbye = syndrome.map(|syndrome| Tag::ack(qp.attributes.destination, qp.executed, syndrome));
        let connected = qp.is_reliable() && (qp.can_receive() || qp.state == QpState::Error);
        qp.reset();
        if let (true, Some(peer), Some(goodbye)) = (connected, peer, goodbye) {
            self.refuse_stray(peer, goodbye);
        }
        if let (true, Some(to)) = (lent, to) {
            self.released.push(to.domain);
        }
        self.outbox.retain(|outgoing| outgoing.slot() != Some(slot));
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
        let Some(qp) = self.qp_mut(slot) else { return };
        if core::mem::replace(&mut qp.state, QpState::Error) != QpState::Error {
            qp.owed = qp.is_reliable().then_some(Syndrome::NotReady);
        }
        let peer = qp.peer;
        let lent = !qp.inbound.is_empty() || qp.responses > 0;
        let (init, receive_queue) = (qp.init, qp.receive_queue);
        let inbound = core::mem::take(&mut qp.inbound);
        self.flush_sends(slot);
        if let (true, Some(peer)) = (lent, peer) {
            self.released.push(peer.domain);
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
            && qp.owed.is_some()
        {
            self.list_owing(slot);
        }
    }

    /// Ends all send requests of a queue pair as flushed.
    pub(crate) fn flush_sends(&mut self, slot: u32) {
        self.outbox.retain(|outgoing| !outgoing.is_request_of(slot));
        let Some(qp) = self.qp_mut(slot) else { return };
        let (end, cq, peer) = (qp.end(), qp.init.send_cq, qp.peer);
        (qp.first, qp.next, qp.acked) = (end, end, end);
        qp.pause = None;
        qp.stopped = false;
        qp.reads_outstanding = 0;
        let flushed = core::mem::take(&mut qp.sends);
        let number = qp.number;
        for entry in flushed {
            if let (true, Some(to)) = (entry.transmissions > 0, entry.datagram.and_then(|to| to.to).or(peer)) {
                self.released.push(to.domain);
            }
            let completion = flush_completion(entry.wr_id, entry.completion_kind());
            self.report(cq, Completion { qp: number, ..completion });
        }
        self.pausing.retain(|pausing| *pausing != slot);
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

    /// The place of a queue pair in tables.
    #[inline]
    pub(crate) fn slot(&self, number: QpNumber) -> Option<u32> {
        let slot = self.numbers.slot(number)?;
        self.qps.get(slot as usize)?.as_ref().map(|_| slot)
    }

    #[inline]
    pub(crate) fn qp(&self, slot: u32) -> Option<&QueuePair> {
        self.qps.get(slot as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn qp_mut(&mut self, slot: u32) -> Option<&mut QueuePair> {
        self.qps.get_mut(slot as usize)?.as_deref_mut()
    }

    /// A queue pair, with what its requests need.
    #[inline]
    pub(crate) fn parts(&mut self, slot: u32) -> Option<(&mut QueuePair, &mut Regions, &mut VecDeque<Outgoing>)> {
        let qp = self.qps.get_mut(slot as usize)?.as_deref_mut()?;
        Some((qp, &mut self.regions, &mut self.outbox))
    }

    /// All queue pairs, by slot.
    pub(crate) fn slots(&self) -> Vec<u32> {
        (0..self.qps.len() as u32).filter(|slot| self.qps[*slot as usize].is_some()).collect()
    }

    #[inline]
    pub(crate) fn report(&mut self, cq: Cq, completion: Completion) {
        self.completions += 1;
        if let Some(cq) = self.cqs.get_mut(cq.0) {
            cq.push(completion);
        }
    }

    /// Records the result of a look-up: the device that has a queue pair, or none. A look-up without a device is used once.
    pub fn add_route(&mut self, gid: Gid, number: QpNumber, to: Option<EndpointAddress>) {
        self.routes.insert((gid, number), to);
    }

    /// The domain has gone. Connections with it end, as if it no longer replied.
    pub fn peer_gone(&mut self, domain: DomainId) {
        self.routes.retain(|_, to| to.is_some_and(|to| to.domain != domain));
        self.peers.retain(|address, _| address.domain != domain);
        self.released.push(domain);
        self.strays.retain(|(to, _)| to.domain != domain);
        self.outbox.retain(|outgoing| outgoing.to().domain != domain);
        for slot in self.slots() {
            let Some(qp) = self.qp_mut(slot) else { continue };
            let connected = qp.peer.is_some_and(|peer| peer.domain == domain);
            for entry in &mut qp.sends {
                // The transport confirms no more.
                if entry.datagram.map_or(connected, |to| to.to.is_some_and(|to| to.domain == domain)) {
                    (entry.queued, entry.transmissions, entry.response_coming) = (false, 0, false);
                }
            }
            self.forget_inbound(slot, |request| request.from.domain == domain);
            self.retire(slot);
            let Some(qp) = self.qp_mut(slot).filter(|_| connected) else { continue };
            (qp.peer, qp.responses) = (None, 0);
            qp.owed = None;
            if qp.is_reliable() && qp.can_receive() {
                self.fail_first_unacked(slot, Status::RetryExceeded);
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

/// A peer may change only what the adapter may write.
fn rights_agree(access: Access) -> bool {
    !access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) || access.contains(Access::LOCAL_WRITE)
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
