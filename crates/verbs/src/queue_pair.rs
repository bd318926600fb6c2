//! A queue pair: its attributes, the requests of both queues, and the positions of its connection.

use crate::attributes::Attributes;
use crate::packet::Syndrome;
use crate::queues::{ReceiveEntry, SgeList, total_len};
use crate::types::{
    AddressVector, Completion, CompletionKind, Cq, Gid, Key, Operation, Pd, QpNumber, QpState, QpType, Status,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use isthmus_layout::EndpointAddress;

/// The attributes that a program gives a new queue pair.
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
    pub(crate) datagram: Option<Box<Datagram>>,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) state: SendState,
    /// The packet waits for the caller.
    pub(crate) queued: bool,
    /// Transmissions that the caller has not confirmed: it may still read the bytes.
    pub(crate) transmissions: u32,
    /// The response has arrived, or none is needed.
    pub(crate) answered: bool,
    /// The payload of the response is to come.
    pub(crate) response_coming: bool,
}

impl SendEntry {
    pub(crate) const fn completion_kind(&self) -> CompletionKind {
        self.operation.completion_kind()
    }

    /// The caller needs the bytes, or will need them.
    #[inline]
    pub(crate) const fn is_in_use(&self) -> bool {
        self.queued || self.transmissions > 0
    }

    /// The payload of the response is wanted.
    pub(crate) const fn waits_for_payload(&self) -> bool {
        self.response_coming && !self.answered && matches!(self.state, SendState::Sent)
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
    /// The device that sent the request.
    pub(crate) from: EndpointAddress,
    /// The peer waits for an acknowledgement.
    pub(crate) acknowledge: bool,
    /// The receive request that was taken, and its completion.
    pub(crate) taken: Option<(ReceiveEntry, Completion)>,
    pub(crate) work: InboundWork,
    /// Bytes of a write that wait for earlier requests.
    pub(crate) late_bytes: u32,
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
    pub(crate) fn late_bytes(&self) -> u32 {
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

/// A pause before the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    /// The length in nanoseconds; None until the peer reports that it is ready.
    pub(crate) length_ns: Option<u64>,
    /// The end, once a caller has given the time.
    pub(crate) until: Option<u64>,
}

/// The next numbers of a queue pair. They go on when it is reset, or when another one takes its slot, so that late confirmations find
/// nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Positions {
    /// The sequence number of the next send request.
    pub(crate) sequence: u32,
    /// The serial number of the next request of the peer, or response.
    pub(crate) serial: u32,
}

impl Positions {
    /// The numbers wrap around soon, so that every program shows that they may.
    pub(crate) const FIRST: Self = Self { sequence: u32::MAX - 99, serial: u32::MAX - 99 };
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
    /// The sequence number that the peer counts as 0: the one of the first request, less its PSN.
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

    /// The PSN of the peer's first request, and one more for each request that was executed.
    pub(crate) executed: u32,
    /// The peer's first packet of this connection was taken.
    pub(crate) begun: bool,
    /// Packets are dropped up to the one that restarts, because one was refused or the connection is new.
    pub(crate) refusing: bool,
    /// The acknowledgement that the peer is to be sent.
    pub(crate) owed: Option<Syndrome>,
    pub(crate) owed_listed: bool,
    /// An acknowledgement is on its way out and not confirmed.
    pub(crate) ack_in_transmission: bool,
    /// The description that the peer is to be sent.
    pub(crate) owed_description: Option<crate::direct::Description>,
    /// The domain and the rights of the queue pair of the peer, once it has described it.
    pub(crate) remote: Option<crate::direct::Remote>,
    pub(crate) inbound: VecDeque<Inbound>,
    /// The sum of `late_bytes` of these.
    pub(crate) late_bytes: u64,
    pub(crate) next_serial: u32,
    /// Responses without a confirmation of their transmission.
    pub(crate) responses: u32,
}

impl QueuePair {
    pub(crate) fn new(number: QpNumber, init: QpInit, receive_queue: u32, positions: Positions) -> Self {
        Self {
            number,
            init,
            receive_queue,
            state: QpState::Reset,
            attributes: Attributes::default(),
            peer: None,
            sends: VecDeque::with_capacity(init.sends_max.min(1024) as usize),
            first: positions.sequence,
            next: positions.sequence,
            acked: positions.sequence,
            base: positions.sequence,
            inline_bytes: Vec::new(),
            established: false,
            restart: true,
            stopped: false,
            pause: None,
            retries_left: 0,
            rnr_retries_left: 0,
            reads_outstanding: 0,
            executed: 0,
            begun: false,
            refusing: true,
            owed: None,
            owed_listed: false,
            ack_in_transmission: false,
            owed_description: None,
            remote: None,
            inbound: VecDeque::new(),
            late_bytes: 0,
            next_serial: positions.serial,
            responses: 0,
        }
    }

    /// The numbers after those that this queue pair has used.
    pub(crate) fn positions(&self) -> Positions {
        Positions { sequence: self.end(), serial: self.next_serial }
    }

    /// Returns to the state after creation.
    pub(crate) fn reset(&mut self) {
        let mut sends = core::mem::take(&mut self.sends);
        let positions = Positions { sequence: self.first.wrapping_add(sends.len() as u32), serial: self.next_serial };
        sends.clear();
        *self = Self {
            sends,
            inline_bytes: core::mem::take(&mut self.inline_bytes),
            owed_listed: self.owed_listed,
            ack_in_transmission: self.ack_in_transmission,
            ..Self::new(self.number, self.init, self.receive_queue, positions)
        };
    }

    pub(crate) const fn is_reliable(&self) -> bool {
        matches!(self.init.kind, QpType::Rc)
    }

    /// True if memory of the program may be in use.
    #[inline]
    pub(crate) fn has_work_under_way(&self) -> bool {
        !self.sends.is_empty() || !self.inbound.is_empty() || self.responses > 0
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

    /// The first request that the peer has executed, and that has no response yet, nor the beginning of one.
    pub(crate) fn unanswered(&self) -> Option<u32> {
        let executed = self.acked.wrapping_sub(self.first) as usize;
        let at = self.sends.iter().take(executed).position(|entry| !entry.answered && !entry.response_coming)?;
        Some(self.first.wrapping_add(at as u32))
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
