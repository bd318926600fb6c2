//! The handler of unexpected messages, and periods without progress.
//!
//! ```text
//!   asked ─► a receive that was posted meanwhile wants it ──────────────► it has it
//!      └───► handler, without the lock ─► FINISHED ─► dropped; the sender is notified that nothing was taken
//!                                    └──► CONTINUE ─► receives are searched again, then it is unexpected
//! ```

use crate::codes::Return;
use crate::endpoint::{Endpoint, Handler};
use crate::errors::{Failure, call};
use crate::matcher::{HandlerPending, INDEX, MessageSource, Receive};
use crate::table::{self, Locked};
use crate::types::{EndpointHandle, MatchingCallback, MxEndpointAddr, UnexpectedHandler};
use crate::wait;
use isthmus_client::{EndpointAddress, Envelope, Unexpected, UnexpectedState};
use isthmus_mx::{RequestId, StatusCode};
use std::ffi::c_void;

/// `MX_RECV_FINISHED`.
const FINISHED: u32 = 1;

/// Calls the handler for each pending message.
#[cold]
pub(crate) fn run(mut locked: Locked) -> Result<Locked, Failure> {
    while let Some(pending) = locked.matcher().handler_pending.front() {
        let (serial, envelope) = (pending.serial, pending.envelope);
        let endpoint = &mut *locked;
        if endpoint.match_now(serial) {
            continue;
        }
        let Some(handler) = endpoint.handler else {
            endpoint.keep_unexpected(serial);
            continue;
        };
        let data = data_of(endpoint, serial);
        let source = MxEndpointAddr { stuff: [locked.handle() as u64, envelope.source.to_bits()] };
        locked.in_handler = Some(std::thread::current().id());
        let (after, action) = locked.unlocked(|| call_handler(handler, source, envelope, data))?;
        locked = after;
        locked.in_handler = None;
        locked.wake_all();
        if action == FINISHED {
            locked.drop_handler_pending(serial);
        } else if !locked.match_now(serial) {
            locked.keep_unexpected(serial);
        }
    }
    Ok(locked)
}

fn call_handler(
    handler: Handler,
    source: MxEndpointAddr,
    envelope: isthmus_mx::MatchEnvelope,
    data: *mut c_void,
) -> u32 {
    let Handler { function, context } = handler;
    // SAFETY: the program's function, with what it was registered to get. `data` stays where it is: only the thread that runs handlers
    // takes whole messages out of the queue, and that is this thread.
    unsafe { function(context, source, envelope.match_info, envelope.msg_length, data) }
}

/// Returns the bytes of a message if all have arrived.
fn data_of(endpoint: &mut Endpoint, serial: u64) -> *mut c_void {
    let pending = endpoint.matcher().handler_pending.iter_mut().find(|pending| pending.serial == serial);
    match pending.map(|pending| &mut pending.source) {
        Some(
            MessageSource::Peer(UnexpectedState::Whole(bytes)) | MessageSource::Own { bytes, is_contiguous: true, .. },
        ) => bytes.as_mut_ptr().cast(),
        _ => std::ptr::null_mut(),
    }
}

impl Endpoint {
    /// Delivers a message that waits for the handler to a matching receive, if there is one. Returns true also if the
    /// message is gone.
    fn match_now(&mut self, serial: u64) -> bool {
        let matcher = self.matcher();
        let Some(pending) = matcher.handler_pending.iter().find(|pending| pending.serial == serial) else {
            return true;
        };
        let Some(matched) = matcher.engine.arrive(&pending.envelope) else { return false };
        if let Some(HandlerPending { envelope, source, .. }) = matcher.take_handler_pending(serial) {
            self.deliver_held(matched.request, matched.receive, envelope, source);
        }
        true
    }

    /// Keeps a message as unexpected.
    fn keep_unexpected(&mut self, serial: u64) {
        let matcher = self.matcher();
        if let Some(HandlerPending { envelope, source, .. }) = matcher.take_handler_pending(serial) {
            matcher.events += 1;
            // The message is dropped if the queue is full or the partner was disconnected.
            let _ = matcher.engine.hold(envelope, source);
        }
    }

    /// Drops a message that the program has processed in its handler.
    fn drop_handler_pending(&mut self, serial: u64) {
        let Some(HandlerPending { envelope, source, .. }) = self.matcher().take_handler_pending(serial) else { return };
        match source {
            MessageSource::Own { bytes, send, .. } => {
                // Without the shortcut, a send to itself completes as a send to a peer that takes no bytes.
                let taken = if self.settings.no_self { 0 } else { bytes.len() as u32 };
                let send = send.map(|send| self.engine().sent(send, StatusCode::Success, taken));
                self.matcher().events += u64::from(send.is_some());
            }
            MessageSource::Peer(state) => self.refuse(envelope, state),
        }
    }

    /// Drops a message that no receive will take, without fetching it.
    pub(crate) fn refuse(&mut self, envelope: isthmus_mx::MatchEnvelope, state: UnexpectedState) {
        if let Ok(from) = self.engine().address_of(envelope.source) {
            self.refuse_from(from, envelope, state);
        }
    }

    /// Like `refuse`, for a partner that no longer exists.
    pub(crate) fn refuse_from(
        &mut self,
        from: EndpointAddress,
        envelope: isthmus_mx::MatchEnvelope,
        state: UnexpectedState,
    ) {
        let (tag, len) = (envelope.match_info, u64::from(envelope.msg_length));
        self.domain.discard_held(&Unexpected { envelope: Envelope { from, to: INDEX, tag, len }, state });
    }

    /// Delivers a held message to its receive.
    pub(crate) fn deliver_held(
        &mut self,
        request: RequestId,
        receive: Receive,
        envelope: isthmus_mx::MatchEnvelope,
        source: MessageSource,
    ) {
        let state = match source {
            MessageSource::Own { bytes, send, .. } => {
                return self.matcher().deliver_own(request, &receive, &bytes, send);
            }
            MessageSource::Peer(state) => state,
        };
        let Some(envelope) = self.client_envelope(envelope) else {
            self.engine().received(request, StatusCode::EndpointUnreachable, 0);
            return;
        };
        if matches!(state, UnexpectedState::Arriving) {
            return self.matcher().wait_for_rest(envelope.from, request, receive);
        }
        let posted = self.matcher().posted_receive(request, receive, u32::try_from(envelope.len).unwrap_or(u32::MAX));
        self.domain.deliver_held(posted, Unexpected { envelope, state });
    }

    /// Converts an envelope to the client library's form.
    fn client_envelope(&mut self, envelope: isthmus_mx::MatchEnvelope) -> Option<Envelope> {
        let from = self.engine().address_of(envelope.source).ok()?;
        Some(Envelope { from, to: INDEX, tag: envelope.match_info, len: u64::from(envelope.msg_length) })
    }
}

/// Locks an endpoint when no handler runs on it; within the handler, at once.
fn lock_outside_of_handlers(endpoint: EndpointHandle) -> Result<Locked, Failure> {
    let mut locked = table::lock(endpoint)?;
    while locked.in_handler.is_some_and(|thread| thread != std::thread::current().id()) {
        locked.sleepers += 1;
        locked = locked.sleep(None)?;
        locked.sleepers -= 1;
    }
    Ok(locked)
}

/// Sets the handler of unexpected messages; null removes it.
#[unsafe(no_mangle)]
pub extern "C" fn mx_register_unexp_handler(
    endpoint: EndpointHandle,
    handler: Option<UnexpectedHandler>,
    context: *mut c_void,
) -> Return {
    call("mx_register_unexp_handler", endpoint, || {
        let mut locked = table::lock(endpoint)?;
        locked.handler = handler.map(|function| Handler { function, context });
        locked.matcher().has_handler = handler.is_some();
        Ok(())
    })
}

/// Returns an error: the callback has no way to report how it used the message.
#[unsafe(no_mangle)]
pub extern "C" fn mx_register_unexp_callback(
    endpoint: EndpointHandle,
    _callback: Option<MatchingCallback>,
    _context: *mut c_void,
) -> Return {
    call("mx_register_unexp_callback", endpoint, || {
        drop(table::lock(endpoint)?);
        Err(Return::FAILURE.into())
    })
}

/// Disables progress on the endpoint until `mx_reenable_progression()`.
#[unsafe(no_mangle)]
pub extern "C" fn mx_disable_progression(endpoint: EndpointHandle) -> Return {
    call("mx_disable_progression", endpoint, || {
        let mut locked = lock_outside_of_handlers(endpoint)?;
        locked.progress_disabled = true;
        locked.wake_all();
        Ok(())
    })
}

/// Enables progress again, and makes progress once.
#[unsafe(no_mangle)]
pub extern "C" fn mx_reenable_progression(endpoint: EndpointHandle) -> Return {
    call("mx_reenable_progression", endpoint, || {
        let mut locked = table::lock(endpoint)?;
        locked.progress_disabled = false;
        locked.wake_all();
        wait::progress(locked).map(drop)
    })
}

/// Makes progress.
#[unsafe(no_mangle)]
pub extern "C" fn mx_progress(endpoint: EndpointHandle) -> Return {
    call("mx_progress", endpoint, || wait::progress(table::lock(endpoint)?).map(drop))
}

/// Closes an endpoint.
pub(crate) fn lock_to_close(endpoint: EndpointHandle) -> Result<Locked, Failure> {
    let locked = lock_outside_of_handlers(endpoint)?;
    if locked.in_handler.is_some() { Err(Return::CLOSE_IN_HANDLER.into()) } else { Ok(locked) }
}
