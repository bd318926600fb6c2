//! The responder of a queue pair: requests of the peer, and what the peer is owed.

use crate::direct::Description;
use crate::packet::Syndrome;
use crate::queues::{ReceiveEntry, SgeList, total_len};
use crate::types::{Completion, Gid, Key, QpNumber};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use isthmus_layout::EndpointAddress;

/// A request of the peer that is not executed yet, because its payload or an earlier one is still to come.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) serial: u32,
    /// The device that sent the request.
    pub(crate) from: EndpointAddress,
    /// The peer waits for an acknowledgement.
    pub(crate) acknowledge: bool,
    /// The receive request that was taken, and its completion.
    pub(crate) taken: Option<(ReceiveEntry, Completion)>,
    pub(crate) work: InboundWork,
    /// Bytes of a write that wait for earlier requests.
    late_bytes: u32,
}

/// The work that a request of the peer needs.
#[derive(Debug)]
pub(crate) enum InboundWork {
    /// The payload is to come. It goes to these ranges of the program's memory, at once if `direct`, or else in its turn.
    Payload { into: SgeList, direct: bool },
    /// The payload of a datagram is to come.
    Datagram(DatagramHead),
    /// The payload is here. It goes to these ranges.
    Write { into: SgeList, bytes: Vec<u8> },
    /// The bytes are in place.
    Done,
    /// The request is refused, and those after it are dropped.
    Refuse(Syndrome),
    /// Read from the program's memory, and respond.
    Read { at: u64, len: u32, key: Key },
    /// Perform an atomic operation, and respond.
    Atomic { at: u64, key: Key, operation: crate::types::AtomicOperation },
}

/// A datagram, without its payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatagramHead {
    pub(crate) len: u32,
    pub(crate) immediate: Option<u32>,
    /// Of the source and of the destination.
    pub(crate) gids: Option<(Gid, Gid)>,
    pub(crate) source: QpNumber,
    pub(crate) solicited: bool,
    pub(crate) service_level: u8,
}

impl InboundWork {
    /// The payload is to come.
    #[inline]
    pub(crate) const fn waits_for_payload(&self) -> bool {
        matches!(self, Self::Payload { .. } | Self::Datagram(_))
    }

    /// Bytes that the engine keeps until earlier requests are executed.
    fn late_bytes(&self) -> u32 {
        match self {
            Self::Payload { into, direct: false } | Self::Write { into, .. } => total_len(into.as_slice()) as u32,
            _ => 0,
        }
    }

    /// True if bytes are to be written to the region with this key.
    pub(crate) fn uses(&self, key: Key) -> bool {
        matches!(self, Self::Payload { into, .. } | Self::Write { into, .. } if into.uses(key))
    }
}

/// The responder of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    /// The PSN of the peer's first request, and one more for each request that was executed.
    executed: u32,
    /// The peer's first packet of this connection was taken.
    begun: bool,
    /// Packets are dropped up to the one that restarts, because one was refused or the connection is new.
    refusing: bool,
    /// The acknowledgement that the peer is to be sent.
    owed: Option<Syndrome>,
    /// The engine has the queue pair in its list of those that owe one.
    listed: bool,
    /// An acknowledgement is on its way out and not confirmed.
    ack_in_transmission: bool,
    /// The description that the peer is to be sent.
    owed_description: Option<Description>,
    inbound: VecDeque<Inbound>,
    /// The sum of `late_bytes` of these.
    late_bytes: u64,
    next_serial: u32,
    /// Responses without a confirmation of their transmission.
    responses: u32,
}

impl Responder {
    /// A responder: the next request of the peer, or response, gets this serial number.
    pub(crate) const fn new(serial: u32) -> Self {
        Self {
            executed: 0,
            begun: false,
            refusing: true,
            owed: None,
            listed: false,
            ack_in_transmission: false,
            owed_description: None,
            inbound: VecDeque::new(),
            late_bytes: 0,
            next_serial: serial,
            responses: 0,
        }
    }

    /// Returns to the state after creation. The serial numbers go on.
    pub(crate) fn reset(&mut self) {
        let (listed, ack_in_transmission) = (self.listed, self.ack_in_transmission);
        *self = Self { listed, ack_in_transmission, ..Self::new(self.next_serial) };
    }

    /// The queue pair may receive: the peer's first request has this PSN.
    pub(crate) const fn begin(&mut self, psn: u32) {
        self.executed = psn & QpNumber::MASK;
    }

    /// The serial number of the next request, or response.
    pub(crate) const fn next_serial(&self) -> u32 {
        self.next_serial
    }

    const fn take_serial(&mut self) -> u32 {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        serial
    }

    /// The PSN of the peer's first request, and one more for each request that was executed.
    #[inline]
    pub(crate) const fn executed(&self) -> u32 {
        self.executed
    }

    /// A request of the peer was executed.
    #[inline]
    pub(crate) const fn count_executed(&mut self) {
        self.executed = self.executed.wrapping_add(1);
    }

    /// The count of a packet that leaves the queue pair. It acknowledges.
    #[inline]
    pub(crate) fn acknowledge(&mut self) -> u32 {
        if self.owed == Some(Syndrome::None) {
            self.owed = None;
        }
        self.executed
    }

    /// The peer's first packet of this connection was taken.
    #[inline]
    pub(crate) const fn has_begun(&self) -> bool {
        self.begun
    }

    /// True if a first packet with this position, modulo 256, is of this connection.
    pub(crate) const fn begins_with(&self, position: u32) -> bool {
        position == self.executed & 0xff
    }

    /// Takes a packet of the peer. False if it is to be dropped, because the peer has not restarted after a refusal.
    #[inline]
    pub(crate) const fn take(&mut self, restarts: bool) -> bool {
        let takes = restarts || !self.refusing;
        if takes {
            (self.refusing, self.begun) = (false, true);
        }
        takes
    }

    /// Drops packets of the peer until it restarts.
    pub(crate) const fn refuse_until_restart(&mut self) {
        self.refusing = true;
    }

    /// Requests of the peer that are not executed, in their order.
    pub(crate) fn inbound(&self) -> impl Iterator<Item = &Inbound> {
        self.inbound.iter()
    }

    #[inline]
    pub(crate) fn inbound_len(&self) -> usize {
        self.inbound.len()
    }

    /// All requests of the peer were executed.
    #[inline]
    pub(crate) fn has_executed_all(&self) -> bool {
        self.inbound.is_empty()
    }

    /// The bytes of writes that wait for earlier requests.
    pub(crate) const fn late_bytes(&self) -> u64 {
        self.late_bytes
    }

    /// Adds a request to those that are not executed. Returns its serial number.
    pub(crate) fn push(
        &mut self,
        from: EndpointAddress,
        acknowledge: bool,
        taken: Option<(ReceiveEntry, Completion)>,
        work: InboundWork,
    ) -> u32 {
        let (serial, late_bytes) = (self.take_serial(), work.late_bytes());
        self.late_bytes += u64::from(late_bytes);
        self.inbound.push_back(Inbound { serial, from, acknowledge, taken, work, late_bytes });
        serial
    }

    /// Removes the first request, if it can be executed.
    pub(crate) fn pop_executable(&mut self) -> Option<Inbound> {
        let request = self.inbound.pop_front_if(|request| !request.work.waits_for_payload())?;
        self.late_bytes -= u64::from(request.late_bytes);
        Some(request)
    }

    /// A request by its serial number, and whether it is the first one.
    pub(crate) fn find_mut(&mut self, serial: u32) -> Option<(&mut Inbound, bool)> {
        let at = self.inbound.iter().position(|request| request.serial == serial)?;
        Some((&mut self.inbound[at], at == 0))
    }

    pub(crate) fn find(&self, serial: u32) -> Option<&Inbound> {
        self.inbound.iter().find(|request| request.serial == serial)
    }

    /// The last request that is not executed.
    pub(crate) fn last_mut(&mut self) -> Option<&mut Inbound> {
        self.inbound.back_mut()
    }

    /// Removes the first request that fits.
    pub(crate) fn remove(&mut self, which: impl Fn(&Inbound) -> bool) -> Option<Inbound> {
        let at = self.inbound.iter().position(which)?;
        let request = self.inbound.remove(at)?;
        self.late_bytes -= u64::from(request.late_bytes);
        Some(request)
    }

    /// Removes all requests that fit.
    pub(crate) fn remove_all(&mut self, which: impl Fn(&Inbound) -> bool) -> VecDeque<Inbound> {
        let (dropped, kept): (VecDeque<_>, VecDeque<_>) =
            core::mem::take(&mut self.inbound).into_iter().partition(which);
        self.late_bytes = kept.iter().map(|request| u64::from(request.late_bytes)).sum();
        self.inbound = kept;
        dropped
    }

    /// True if the peer may use memory of the program: for its requests, or for responses.
    #[inline]
    pub(crate) fn has_lent(&self) -> bool {
        !self.inbound.is_empty() || self.responses > 0
    }

    /// True if responses have no confirmation of their transmission.
    pub(crate) const fn lends_responses(&self) -> bool {
        self.responses > 0
    }

    /// Responses on their way out, and requests that will lead to one.
    pub(crate) fn responses_under_way(&self) -> usize {
        let waits = |request: &&Inbound| matches!(request.work, InboundWork::Read { .. } | InboundWork::Atomic { .. });
        self.responses as usize + self.inbound.iter().filter(waits).count()
    }

    /// A response is to be sent. Returns its serial number.
    pub(crate) const fn add_response(&mut self) -> u32 {
        self.responses += 1;
        self.take_serial()
    }

    /// The transmission of a response was confirmed.
    pub(crate) const fn confirm_response(&mut self) {
        self.responses = self.responses.saturating_sub(1);
    }

    /// The peer has gone: it is owed nothing, and the transport confirms no more.
    pub(crate) const fn peer_gone(&mut self) {
        (self.responses, self.owed) = (0, None);
    }

    /// The acknowledgement that the peer is to be sent.
    pub(crate) const fn owed(&self) -> Option<Syndrome> {
        self.owed
    }

    /// Sets the acknowledgement that the peer is to be sent.
    pub(crate) const fn set_owed(&mut self, owed: Option<Syndrome>) {
        self.owed = owed;
    }

    /// The peer is to be sent this syndrome, together with what it is owed.
    #[inline]
    pub(crate) const fn owe(&mut self, syndrome: Syndrome) {
        let refused = matches!(self.owed, Some(Syndrome::ReceiverNotReady(_) | Syndrome::Again));
        self.owed = Some(match (self.owed, syndrome) {
            (Some(owed), Syndrome::None) => owed,
            (_, Syndrome::Ready) if refused => Syndrome::Again,
            (_, syndrome) => syndrome,
        });
    }

    /// The peer is to be sent a description, together with what it is owed.
    pub(crate) const fn owe_description(&mut self, description: Description) {
        self.owed_description = Some(description.and(self.owed_description));
    }

    /// The queue pair owes something. True if the engine has to list it.
    #[inline]
    pub(crate) const fn list(&mut self) -> bool {
        let lists = !self.listed && !self.ack_in_transmission;
        self.listed |= lists;
        lists
    }

    /// The engine has taken the queue pair from its list. False if it may owe nothing until a confirmation.
    pub(crate) const fn taken_from_list(&mut self) -> bool {
        self.listed = false;
        !self.ack_in_transmission
    }

    pub(crate) const fn take_owed_description(&mut self) -> Option<Description> {
        self.owed_description.take()
    }

    pub(crate) const fn take_owed(&mut self) -> Option<Syndrome> {
        self.owed.take()
    }

    /// The transport has queued an acknowledgement.
    pub(crate) const fn ack_queued(&mut self) {
        self.ack_in_transmission = true;
    }

    /// The transmission of an acknowledgement was confirmed. True if the peer is owed more.
    pub(crate) const fn confirm_ack(&mut self) -> bool {
        self.ack_in_transmission = false;
        self.owed.is_some() || self.owed_description.is_some()
    }
}

#[cfg(test)]
mod tests;
