//! Operations of a program on its requests: test, peek, cancel, forget.

use super::{Engine, Request, RequestKind, RequestState, TransportTypes, UnknownRequest};
use crate::RequestId;
use crate::filter::Filter;
use crate::status::Status;

/// The result of an attempt to cancel a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Cancelled<R> {
    /// A receive that no message had matched. It will not complete; its buffer is returned.
    Receive(R),
    /// A connect without a reply. It will not complete.
    Connect,
    /// The request is matched, connected or complete: it completes as if the call had not happened.
    TooLate,
    /// Sends cannot be cancelled.
    WrongKind,
    /// There is no such request.
    Unknown,
}

/// The reason why the state of a buffer is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferedError {
    /// The request is not a send.
    #[error("the request is not a send")]
    WrongKind,
    /// There is no such request.
    #[error(transparent)]
    Unknown(#[from] UnknownRequest),
}

impl<C: TransportTypes> Engine<C> {
    /// Returns a request that the program may still use.
    #[inline(always)]
    fn visible(&self, request: RequestId) -> Result<&Request<C::Receive>, UnknownRequest> {
        match self.requests.get(request.0) {
            Some(found) if !found.is_forgotten => Ok(found),
            _ => Err(UnknownRequest),
        }
    }

    /// Returns the status of a request if it is complete, and consumes the request.
    pub fn test(&mut self, request: RequestId) -> Result<Option<Status>, UnknownRequest> {
        self.test_as(request, |status| *status)
    }

    /// Like `test`, but converts the status in place, because copying a whole status that was written a moment ago is slow.
    #[inline(always)]
    pub fn test_as<S>(
        &mut self,
        request: RequestId,
        make: impl FnOnce(&Status) -> S,
    ) -> Result<Option<S>, UnknownRequest> {
        let Some(entry) = self.requests.entry(request.0) else { return Err(UnknownRequest) };
        let Some(found) = entry.value().filter(|found| !found.is_forgotten) else { return Err(UnknownRequest) };
        if found.state != RequestState::Done {
            return Ok(None);
        }
        let made = make(&found.status);
        entry.remove();
        self.done.remove(request.0.slot());
        Ok(Some(made))
    }

    /// Consumes and returns the oldest completed request, of any kind, with match info that a filter accepts.
    pub fn test_any(&mut self, filter: Filter) -> Option<Status> {
        let slot = self.done.first(filter)?;
        let (id, request) = self.requests.at(slot)?;
        let status = request.status;
        self.consume(RequestId(id));
        Some(status)
    }

    /// Returns the oldest completed request, without consuming it.
    pub fn peek(&self) -> Option<RequestId> {
        let (id, _) = self.requests.at(self.done.front()?)?;
        Some(RequestId(id))
    }

    /// Returns true if a request is complete.
    #[inline(always)]
    pub fn is_done(&self, request: RequestId) -> Result<bool, UnknownRequest> {
        Ok(self.visible(request)?.state == RequestState::Done)
    }

    /// Returns the context that the program gave to a request.
    pub fn context_of(&self, request: RequestId) -> Result<usize, UnknownRequest> {
        Ok(self.visible(request)?.status.context)
    }

    /// Returns the operation that made a request.
    pub fn kind(&self, request: RequestId) -> Result<RequestKind, UnknownRequest> {
        Ok(self.visible(request)?.kind)
    }

    /// Returns true if the buffer of a send may be reused: the send is complete, or its bytes were copied.
    pub fn is_buffered(&self, request: RequestId) -> Result<bool, BufferedError> {
        let found = self.visible(request)?;
        if found.kind == RequestKind::Send {
            Ok(found.is_buffered || found.state == RequestState::Done)
        } else {
            Err(BufferedError::WrongKind)
        }
    }

    /// Forgets a request: it continues, and is removed when it ends, without a completion.
    pub fn forget(&mut self, request: RequestId) -> Result<(), UnknownRequest> {
        if self.visible(request)?.state == RequestState::Done {
            self.consume(request);
        } else if let Some(found) = self.requests.get_mut(request.0) {
            found.is_forgotten = true;
        }
        Ok(())
    }

    /// Cancels a receive that no message has matched, or a connect without a reply.
    pub fn cancel(&mut self, request: RequestId) -> Cancelled<C::Receive> {
        let Ok(found) = self.visible(request) else { return Cancelled::Unknown };
        match (found.kind, found.state) {
            (RequestKind::Send, _) => Cancelled::WrongKind,
            (RequestKind::Connect, RequestState::InProgress) => {
                self.requests.remove(request.0);
                Cancelled::Connect
            }
            (RequestKind::Receive, RequestState::Posted) => {
                self.posted.remove(request.0.slot());
                let receive = self.requests.remove(request.0).and_then(|request| request.receive);
                receive.map_or(Cancelled::TooLate, Cancelled::Receive)
            }
            _ => Cancelled::TooLate,
        }
    }

    /// Removes a completed request from its queue.
    #[inline]
    fn consume(&mut self, request: RequestId) {
        self.done.remove(request.0.slot());
        self.requests.remove(request.0);
    }
}
