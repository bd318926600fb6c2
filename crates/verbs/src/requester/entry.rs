//! The send requests of a requester.

use crate::queues::SgeList;
use crate::types::{AddressVector, CompletionKind, Operation, QpNumber, SendFlags, SendRequest, Status};
use alloc::boxed::Box;
use isthmus_layout::EndpointAddress;

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
pub(super) enum SendState {
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
    pub(super) state: SendState,
    /// The packet waits for the caller.
    pub(super) queued: bool,
    /// Transmissions that the caller has not confirmed: it may still read the bytes.
    pub(super) transmissions: u32,
    /// The response has arrived, or none is needed.
    pub(super) answered: bool,
    /// The payload of the response is to come.
    pub(super) response_coming: bool,
}

impl SendEntry {
    /// A request that was posted and checked.
    #[inline]
    pub(crate) fn new(request: &SendRequest<'_>, len: u32, source: Source, datagram: Option<Datagram>) -> Self {
        Self {
            wr_id: request.wr_id,
            operation: request.operation,
            len,
            source,
            datagram: datagram.map(Box::new),
            signaled: request.flags.contains(SendFlags::SIGNALED),
            solicited: request.flags.contains(SendFlags::SOLICITED),
            fence: request.flags.contains(SendFlags::FENCE),
            state: SendState::Waiting,
            queued: false,
            transmissions: 0,
            answered: !matches!(request.operation, Operation::Read { .. } | Operation::Atomic { .. }),
            response_coming: false,
        }
    }

    pub(crate) const fn completion_kind(&self) -> CompletionKind {
        self.operation.completion_kind()
    }

    /// The device that executes the request.
    pub(crate) fn destination(&self, peer: Option<EndpointAddress>) -> Option<EndpointAddress> {
        self.datagram.as_ref().and_then(|datagram| datagram.to).or(peer)
    }

    /// The device that may still read the bytes.
    pub(crate) fn borrower(&self, peer: Option<EndpointAddress>) -> Option<EndpointAddress> {
        self.destination(peer).filter(|_| self.transmissions > 0)
    }

    /// The caller needs the bytes, or will need them.
    #[inline]
    pub(super) const fn is_in_use(&self) -> bool {
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

    /// The header of the response is here, and its payload follows.
    pub(crate) const fn expect_payload(&mut self) {
        self.response_coming = true;
    }

    /// No part of the response is here.
    pub(super) const fn is_unanswered(&self) -> bool {
        !self.answered && !self.response_coming
    }
}
