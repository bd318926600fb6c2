//! A queue pair: its attributes, its requester and its responder.

use crate::attributes::Attributes;
use crate::look_ups::Search;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::types::{Completion, CompletionKind, Cq, Pd, QpNumber, QpState, QpType, Status};
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
    /// The look-ups of a peer that no device had so far. Requests wait for their end.
    pub(crate) search: Option<Search>,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
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
            search: None,
            requester: Requester::new(init.sends_max, positions.sequence),
            responder: Responder::new(positions.serial),
        }
    }

    /// The numbers after those that this queue pair has used.
    pub(crate) fn positions(&self) -> Positions {
        Positions { sequence: self.requester.end(), serial: self.responder.next_serial() }
    }

    /// Returns to the state after creation.
    pub(crate) fn reset(&mut self) {
        (self.state, self.attributes) = (QpState::Reset, Attributes::default());
        self.peer = None;
        self.requester.reset();
        self.responder.reset();
    }

    pub(crate) const fn is_reliable(&self) -> bool {
        matches!(self.init.kind, QpType::Rc)
    }

    /// True if memory of the program may be in use.
    #[inline]
    pub(crate) fn has_work_under_way(&self) -> bool {
        !self.requester.is_empty() || self.responder.has_lent()
    }

    /// True if packets of the peer are taken.
    #[inline]
    pub(crate) const fn can_receive(&self) -> bool {
        matches!(
            self.state,
            QpState::ReadyToReceive | QpState::ReadyToSend | QpState::SendQueueDrained | QpState::SendQueueError
        )
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
