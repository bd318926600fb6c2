//! Requests of programs to capabilities: the program that asks, and the answer.

use isthmus_layout::Refusal;
use isthmus_layout::control::{Owner, RequestSerial, ToClient};
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_window::Resource;

use super::types::ControlSessionId;

/// The program that sends a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) session: ControlSessionId,
    /// The number of the request, which its answer repeats.
    pub(crate) serial: Option<RequestSerial>,
    /// The domain as which the program is attached.
    pub(crate) domain: Option<DomainId>,
    pub(crate) owner: Owner,
}

/// The answer of a capability to a request that it does not refuse.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The reply, with the resources that are sent with it.
    Now(ToClient, Vec<Resource>),
    /// The reply is sent later, or the request has none.
    Later,
}

impl Answer {
    /// Returns a reply without resources.
    pub(crate) fn now(reply: impl Into<ToClient>) -> Self {
        Self::Now(reply.into(), Vec::new())
    }
}

impl Requester {
    /// The domain as which the program is attached. Requests to some capabilities need one.
    pub(crate) fn domain(&self) -> Result<DomainId, Refusal> {
        self.domain.ok_or_else(|| Reason::UnexpectedMessageType.into())
    }
}
