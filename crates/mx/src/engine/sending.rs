//! Sends and connects. The engine assigns their identifiers, keeps the program's data, and queues them when they
//! complete.

use super::{Engine, RequestKind, RequestState, TransportTypes};
use crate::slab::Full;
use crate::status::{Status, StatusCode};
use crate::{PartnerId, RequestId};

impl<C: TransportTypes> Engine<C> {
    /// Begins a send. The send is in progress until [`sent`](Self::sent).
    #[inline]
    pub fn post_send(
        &mut self,
        destination: PartnerId,
        match_info: u64,
        context: usize,
        length: u32,
    ) -> Result<RequestId, Full> {
        let status = send_status(destination, match_info, context, length, StatusCode::Pending);
        self.begin_request(RequestKind::Send, RequestState::InProgress, status)
    }

    /// Adds a send that is complete already, because its bytes have been copied.
    #[inline(always)]
    pub fn post_sent(
        &mut self,
        destination: PartnerId,
        match_info: u64,
        context: usize,
        length: u32,
    ) -> Result<RequestId, Full> {
        let mut status = send_status(destination, match_info, context, length, StatusCode::Success);
        status.xfer_length = length;
        let id = self.begin_request(RequestKind::Send, RequestState::Done, status)?;
        self.done.push(id.0.slot(), match_info);
        Ok(id)
    }

    /// Completes a send. `xfer_length` is the number of bytes that the receiver took, where known. Returns false if the
    /// send has ended already.
    #[inline]
    pub fn sent(&mut self, request: RequestId, code: StatusCode, xfer_length: u32) -> bool {
        self.finish(request, RequestKind::Send, code, xfer_length)
    }

    /// Records that the buffer of a pending send may be reused. Returns false if the request is not a send.
    pub fn set_buffered(&mut self, request: RequestId) -> bool {
        match self.requests.get_mut(request.0) {
            Some(send) if send.kind == RequestKind::Send => {
                send.is_buffered = true;
                true
            }
            _ => false,
        }
    }

    /// Begins a connect. The connect is in progress until [`connected`](Self::connected).
    pub fn post_connect(&mut self, match_info: u64, context: usize) -> Result<RequestId, Full> {
        let code = StatusCode::Pending;
        let status = Status { code, source: None, match_info, msg_length: 0, xfer_length: 0, context };
        self.begin_request(RequestKind::Connect, RequestState::InProgress, status)
    }

    /// Completes a connect with the partner or the reason of the failure. Returns false if the connect has ended
    /// already.
    pub fn connected(&mut self, request: RequestId, outcome: Result<PartnerId, StatusCode>) -> bool {
        let (partner, code) = match outcome {
            Ok(partner) => (Some(partner), StatusCode::Success),
            Err(code) => (None, code),
        };
        match self.requests.get_mut(request.0) {
            Some(connect) if connect.kind == RequestKind::Connect && connect.state == RequestState::InProgress => {
                connect.status.source = partner;
            }
            _ => return false,
        }
        self.finish(request, RequestKind::Connect, code, 0)
    }
}

#[inline]
fn send_status(destination: PartnerId, match_info: u64, context: usize, length: u32, code: StatusCode) -> Status {
    Status { code, source: Some(destination), match_info, msg_length: length, xfer_length: 0, context }
}
