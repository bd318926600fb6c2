//! The handler of unexpected messages, and the times in which nothing happens by itself.
//!
//! ```text
//!   asked ─► a receive that was posted meanwhile wants it ──────────────► it has it
//!      └───► handler, without the lock ─► FINISHED ─► dropped; its sender hears that nothing was taken
//!                                    └──► CONTINUE ─► receives are searched again, then it is unexpected
//! ```

use crate::codes::Return;
use crate::endpoint::{Endpoint, Handler};
use crate::errors::{Failure, call};
use crate::matching::{Asked, Held, INDEX, Receive};
use crate::table::{self, Locked};
use crate::types::{Address, EndpointHandle, MatchingCallback, UnexpectedHandler};
use crate::wait;
use isthmus_client::{EndpointAddress, Envelope, Unexpected, UnexpectedState};
use isthmus_mx::{RequestId, StatusCode};
use std::ffi::c_void;

/// `MX_RECV_FINISHED`.
const FINISHED: u32 = 1;

/// Calls the handler for each message that waits for that.
#[cold]
pub(crate) fn run(mut locked: Locked) -> Result<Locked, Failure> {
    while let Some(asked) = locked.matching().asked.front() {
        let (serial, envelope) = (asked.serial, asked.envelope);
        let endpoint = &mut *locked;
        if endpoint.finds_receive(serial) {
            continue;
        }
        let Some(handler) = endpoint.handler else {
            endpoint.give_up(serial);
            continue;
        };
        let data = data_of(endpoint, serial);
        let source = Address { stuff: [locked.handle() as u64, envelope.source.to_bits()] };
        locked.in_handler = Some(std::thread::current().id());
        let (after, action) = locked.without(|| call_handler(handler, source, envelope, data))?;
        locked = after;
        locked.in_handler = None;
        locked.wake_all();
        if action == FINISHED {
            locked.drop_asked(serial);
        } else if !locked.finds_receive(serial) {
            locked.give_up(serial);
        }
    }
    Ok(locked)
}

fn call_handler(handler: Handler, source: Address, envelope: isthmus_mx::Envelope, data: *mut c_void) -> u32 {
    let Handler { function, context } = handler;
    // SAFETY: the program's function, with what it was registered to get. `data` stays where it is: only whoever runs handlers
    // takes whole messages out of the queue, and that is us.
    unsafe { function(context, source, envelope.match_info, envelope.msg_length, data) }
}

/// All bytes of a message, where they are here.
fn data_of(endpoint: &mut Endpoint, serial: u64) -> *mut c_void {
    let asked = endpoint.matching().asked.iter_mut().find(|asked| asked.serial == serial);
    match asked.map(|asked| &mut asked.held) {
        Some(Held::Peer(UnexpectedState::Whole(bytes)) | Held::Own { bytes, one_piece: true, .. }) => {
            bytes.as_mut_ptr().cast()
        }
        _ => std::ptr::null_mut(),
    }
}

impl Endpoint {
    /// Gives a message that the handler is to be asked about to a receive that waits for it, if there is one. True also if the
    /// message has gone.
    fn finds_receive(&mut self, serial: u64) -> bool {
        let matching = self.matching();
        let Some(asked) = matching.asked.iter().find(|asked| asked.serial == serial) else { return true };
        let Some(matched) = matching.engine.arrive(&asked.envelope) else { return false };
        if let Some(Asked { envelope, held, .. }) = matching.take_asked(serial) {
            self.give(matched.request, matched.receive, envelope, held);
        }
        true
    }

    /// Keeps a message as unexpected.
    fn give_up(&mut self, serial: u64) {
        let matching = self.matching();
        if let Some(Asked { envelope, held, .. }) = matching.take_asked(serial) {
            matching.events += 1;
            // There is no room for more of them, or the partner was disconnected: the message is dropped.
            let _ = matching.engine.hold(envelope, held);
        }
    }

    /// The program has done with a message.
    fn drop_asked(&mut self, serial: u64) {
        let Some(Asked { envelope, held, .. }) = self.matching().take_asked(serial) else { return };
        match held {
            Held::Own { bytes, send, .. } => {
                let send = send.map(|send| self.engine().sent(send, StatusCode::Success, bytes.len() as u32));
                self.matching().events += u64::from(send.is_some());
            }
            Held::Peer(state) => self.refuse(envelope, state),
        }
    }

    /// A message that no receive will take is dropped where it is.
    pub(crate) fn refuse(&mut self, envelope: isthmus_mx::Envelope, state: UnexpectedState) {
        if let Ok(from) = self.engine().address_of(envelope.source) {
            self.refuse_from(from, envelope, state);
        }
    }

    /// The same for a partner that is no more.
    pub(crate) fn refuse_from(
        &mut self,
        from: EndpointAddress,
        envelope: isthmus_mx::Envelope,
        state: UnexpectedState,
    ) {
        let (tag, len) = (envelope.match_info, u64::from(envelope.msg_length));
        self.domain.consume(&Unexpected { envelope: Envelope { from, to: INDEX, tag, len }, state });
    }

    /// Brings a message to a receive that was found for it.
    pub(crate) fn give(&mut self, request: RequestId, receive: Receive, envelope: isthmus_mx::Envelope, held: Held) {
        let state = match held {
            Held::Own { bytes, send, .. } => return self.matching().deliver_own(request, &receive, &bytes, send),
            Held::Peer(state) => state,
        };
        let Some(envelope) = self.outer(envelope) else {
            self.engine().received(request, StatusCode::EndpointUnreachable, 0);
            return;
        };
        if matches!(state, UnexpectedState::Arriving) {
            return self.matching().wait_whole(envelope.from, request, receive);
        }
        let posted = self.matching().lend(request, receive, u32::try_from(envelope.len).unwrap_or(u32::MAX));
        self.domain.give(posted, Unexpected { envelope, state });
    }

    /// An envelope as the client library knows it.
    fn outer(&mut self, envelope: isthmus_mx::Envelope) -> Option<Envelope> {
        let from = self.engine().address_of(envelope.source).ok()?;
        Some(Envelope { from, to: INDEX, tag: envelope.match_info, len: u64::from(envelope.msg_length) })
    }
}

/// Locks an endpoint when no handler runs on it; in the handler itself, at once.
fn lock_outside_of_handlers(endpoint: EndpointHandle) -> Result<Locked, Failure> {
    let mut locked = table::lock(endpoint)?;
    while locked.in_handler.is_some_and(|thread| thread != std::thread::current().id()) {
        locked.sleepers += 1;
        locked = locked.sleep(None)?;
        locked.sleepers -= 1;
    }
    Ok(locked)
}

/// Sets the handler of unexpected messages; null takes it away.
#[unsafe(no_mangle)]
pub extern "C" fn mx_register_unexp_handler(
    endpoint: EndpointHandle,
    handler: Option<UnexpectedHandler>,
    context: *mut c_void,
) -> Return {
    call("mx_register_unexp_handler", endpoint, || {
        let mut locked = table::lock(endpoint)?;
        locked.handler = handler.map(|function| Handler { function, context });
        locked.matching().asks = handler.is_some();
        Ok(())
    })
}

/// Never was of use: it cannot say what becomes of the message.
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

/// Has nothing happen on the endpoint by itself until `mx_reenable_progression()`.
#[unsafe(no_mangle)]
pub extern "C" fn mx_disable_progression(endpoint: EndpointHandle) -> Return {
    call("mx_disable_progression", endpoint, || {
        let mut locked = lock_outside_of_handlers(endpoint)?;
        locked.still = true;
        locked.wake_all();
        Ok(())
    })
}

/// Lets things happen again, and has them happen once.
#[unsafe(no_mangle)]
pub extern "C" fn mx_reenable_progression(endpoint: EndpointHandle) -> Return {
    call("mx_reenable_progression", endpoint, || {
        let mut locked = table::lock(endpoint)?;
        locked.still = false;
        locked.wake_all();
        wait::progress(locked).map(drop)
    })
}

/// Has everything happen that can.
#[unsafe(no_mangle)]
pub extern "C" fn mx_progress(endpoint: EndpointHandle) -> Return {
    call("mx_progress", endpoint, || wait::progress(table::lock(endpoint)?).map(drop))
}

/// Closes an endpoint.
pub(crate) fn lock_to_close(endpoint: EndpointHandle) -> Result<Locked, Failure> {
    let locked = lock_outside_of_handlers(endpoint)?;
    if locked.in_handler.is_some() { Err(Return::CLOSE_IN_HANDLER.into()) } else { Ok(locked) }
}
