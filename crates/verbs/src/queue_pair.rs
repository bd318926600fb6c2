//! A queue pair: its attributes, the requests of both queues, and the positions of its connection.

use crate::attributes::Attributes;
use crate::packet::Syndrome;
use crate::queues::SgeList;
use crate::types::{
    AddressVector, Completion, CompletionKind, Cq, Key, Operation, Pd, QpNumber, QpState, QpType, Status,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use isthmus_layout::EndpointAddress;

/// What a program asks for when it creates a queue pair.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the attributes of the standard")]
pub struct QpInit {
    pub kind: QpType,
    pub pd: Pd,
    pub send_cq: Cq,
    pub receive_cq: Cq,
    pub srq: Option<crate::types::Srq>,
    /// Each send request reports its completion.
    pub signal_all: bool,
    pub sends_max: u32,
    pub receives_max: u32,
    pub send_sges_max: u32,
    pub receive_sges_max: u32,
    pub inline_max: u32,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    /// The device that has the queue pair. None if no device could be found: the datagram is lost.
    pub(crate) to: Option<EndpointAddress>,
    pub(crate) qp: QpNumber,
    pub(crate) q_key: u32,
    pub(crate) address: AddressVector,
}

/// Where the bytes of a send request are.
#[derive(Debug)]
pub(crate) enum Source {
    /// In the queue pair's memory for inline bytes.
    Inline,
    /// In the program's memory.
    Memory(SgeList),
}

/// How far a send request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    Waiting,
    /// A packet for it was queued or sent.
    Sent,
    /// The request ends with this status when those before it have ended.
    Failed(Status),
}

/// A send request.
#[derive(Debug)]
pub(crate) struct SendEntry {
    pub(crate) wr_id: u64,
    pub(crate) operation: Operation,
    pub(crate) len: u32,
    pub(crate) source: Source,
    pub(crate) datagram: Option<Datagram>,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) state: SendState,
    /// The caller has not confirmed the transmission, and may still read the bytes.
    pub(crate) in_transmission: bool,
    /// The response has arrived, or none is needed.
    pub(crate) answered: bool,
    /// The payload of the response is to come.
    pub(crate) response_coming: bool,
}

impl SendEntry {
    pub(crate) const fn completion_kind(&self) -> CompletionKind {
        self.operation.completion_kind()
    }

    /// The peer sends a response with bytes.
    pub(crate) const fn wants_response(&self) -> bool {
        matches!(self.operation, Operation::Read { .. } | Operation::Atomic { .. })
    }
}

/// A request of the peer that is not executed yet, because its payload or an earlier one is still to come.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) serial: u32,
    /// The peer waits for an acknowledgement.
    pub(crate) acknowledge: bool,
    /// The completion of the receive request that the request has taken.
    pub(crate) completion: Option<Completion>,
    pub(crate) work: InboundWork,
}

/// What has to be done for a request of the peer.
#[derive(Debug)]
pub(crate) enum InboundWork {
    /// The payload is to come. It goes to these ranges of the program's memory, at once if `direct`, or else in its turn.
    Payload { into: SgeList, direct: bool },
    /// The payload is here. It goes to these ranges.
    Write { into: SgeList, bytes: Vec<u8> },
    /// The bytes are in place.
    Done,
    /// Read from the program's memory, and respond.
    Read { at: u64, len: u32, key: Key },
    /// Perform an atomic operation, and respond.
    Atomic { at: u64, key: Key, operation: crate::types::AtomicOperation },
}

/// A pause before the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    /// The length in nanoseconds; None until the peer reports that it is ready.
    pub(crate) length_ns: Option<u64>,
    /// The end, once a caller has given the time.
    pub(crate) until: Option<u64>,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) number: QpNumber,
    pub(crate) init: QpInit,
    /// The receive queue, its own or a shared one.
    pub(crate) receive_queue: u32,
    pub(crate) state: QpState,
    pub(crate) attributes: Attributes,
    /// The device that has the peer's queue pair.
    pub(crate) peer: Option<EndpointAddress>,

    /// Send requests that are not over. The first one has the sequence number `first`.
    pub(crate) sends: VecDeque<SendEntry>,
    pub(crate) first: u32,
    /// The sequence number of the next request to send.
    pub(crate) next: u32,
    /// The sequence number of the first request that the peer has not executed.
    pub(crate) acked: u32,
    /// The sequence number at which the connection began, which the peer's count of executed requests does not include.
    pub(crate) base: u32,
    /// Inline bytes of send requests, `inline_max` for each.
    pub(crate) inline_bytes: Vec<u8>,
    /// The peer has acknowledged something, so it exists.
    pub(crate) established: bool,
    /// The next packet is the first of the connection, or after a refusal.
    pub(crate) restart: bool,
    /// A request has failed. No later request is sent.
    pub(crate) stopped: bool,
    pub(crate) pause: Option<Pause>,
    pub(crate) retries_left: u8,
    pub(crate) rnr_retries_left: u8,
    /// Reads and atomic operations without a response.
    pub(crate) reads_outstanding: u32,

    /// Requests of the peer that were executed.
    pub(crate) executed: u32,
    /// Packets are dropped up to the one that restarts, because one was refused or the connection is new.
    pub(crate) refusing: bool,
    /// The acknowledgement that the peer is to be sent.
    pub(crate) owed: Option<Syndrome>,
    pub(crate) owed_listed: bool,
    /// An acknowledgement is on its way out and not confirmed.
    pub(crate) ack_in_transmission: bool,
    /// The description that the peer is to be sent.
    pub(crate) owed_description: Option<crate::direct::Description>,
    /// What the peer's queue pair allows.
    pub(crate) remote: Option<crate::direct::Remote>,
    pub(crate) inbound: VecDeque<Inbound>,
    pub(crate) next_serial: u32,
    /// Responses whose transmission is not confirmed.
    pub(crate) responses: u32,
}

impl QueuePair {
    pub(crate) fn new(number: QpNumber, init: QpInit, receive_queue: u32) -> Self {
        Self {
            number,
            init,
            receive_queue,
            state: QpState::Reset,
            attributes: Attributes::default(),
            peer: None,
            sends: VecDeque::with_capacity(init.sends_max.min(1024) as usize),
            first: 0,
            next: 0,
            acked: 0,
            base: 0,
            inline_bytes: Vec::new(),
            established: false,
            restart: true,
            stopped: false,
            pause: None,
            retries_left: 0,
            rnr_retries_left: 0,
            reads_outstanding: 0,
            executed: 0,
            refusing: true,
            owed: None,
            owed_listed: false,
            ack_in_transmission: false,
            owed_description: None,
            remote: None,
            inbound: VecDeque::new(),
            next_serial: 0,
            responses: 0,
        }
    }

    /// Returns to the state after creation. Sequence numbers and serial numbers go on, so that late confirmations find nothing.
    pub(crate) fn reset(&mut self) {
        let (first, next_serial) = (self.first.wrapping_add(self.sends.len() as u32), self.next_serial);
        let (owed_listed, ack_in_transmission) = (self.owed_listed, self.ack_in_transmission);
        let mut sends = core::mem::take(&mut self.sends);
        let inline_bytes = core::mem::take(&mut self.inline_bytes);
        sends.clear();
        *self = Self {
            sends,
            first,
            next: first,
            acked: first,
            base: first,
            inline_bytes,
            owed_listed,
            ack_in_transmission,
            next_serial,
            ..Self::new(self.number, self.init, self.receive_queue)
        };
    }

    pub(crate) const fn is_reliable(&self) -> bool {
        matches!(self.init.kind, QpType::Rc)
    }

    /// True if packets of the peer are taken.
    #[inline]
    pub(crate) const fn can_receive(&self) -> bool {
        matches!(
            self.state,
            QpState::ReadyToReceive | QpState::ReadyToSend | QpState::SendQueueDrained | QpState::SendQueueError
        )
    }

    #[inline]
    pub(crate) fn entry(&mut self, sequence: u32) -> Option<&mut SendEntry> {
        self.sends.get_mut(sequence.wrapping_sub(self.first) as usize)
    }

    /// The place of a request's inline bytes.
    #[inline]
    pub(crate) fn inline_place(&self, sequence: u32) -> usize {
        (sequence % self.init.sends_max.max(1)) as usize * self.init.inline_max as usize
    }

    /// The sequence number after the last request.
    #[inline]
    pub(crate) fn end(&self) -> u32 {
        self.first.wrapping_add(self.sends.len() as u32)
    }

    /// The completion of a request that has this status.
    pub(crate) const fn completion(&self, wr_id: u64, status: Status, kind: CompletionKind) -> Completion {
        Completion {
            wr_id,
            status,
            kind,
            len: 0,
            immediate: None,
            qp: self.number,
            source_qp: QpNumber(0),
            has_grh: false,
            service_level: 0,
            solicited: false,
        }
    }
}
