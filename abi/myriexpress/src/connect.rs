//! Connects, and queries of an address.
//!
//! The daemon replies at once with the domain that has an endpoint number, or with the reason of a refusal. Two cases
//! need a wait: a daemon that is restarting, and known endpoints that have not reattached to the new daemon yet.

use crate::codes::Return;
use crate::endpoint::MxAddress;
use crate::errors::{Failure, call};
use crate::matcher::{MessageSource, status_of};
use crate::table::{self, Locked};
use crate::types::{EndpointHandle, MxEndpointAddr, RequestHandle};
use crate::wait::{self, Ended};
use crate::{boards, errors};
use isthmus_client::{EndpointAddress, Reason, Refusal, RequestSerial};
use isthmus_mx::PartnerId;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::time::Instant;

/// The interval between attempts while there is no daemon, in milliseconds.
const RETRY_MS: u32 = 100;

/// The time in which a known endpoint may reattach to a new daemon, and the interval between attempts, in milliseconds.
const RECONNECT_MS: u32 = 1000;
const RECONNECT_POLL_MS: u32 = 20;

/// The longest wait for a daemon in calls without a timeout, in milliseconds: as long as MX resends.
const CONNECT_TIMEOUT_MAX_MS: u32 = 500_000;

/// The time in which pending messages may end before a partner is forgotten, in milliseconds.
const LINGER_MS: u32 = 250;

/// A started connect.
enum ConnectStart {
    /// A connect to the endpoint itself.
    Own,
    /// The daemon has not replied yet.
    Requested(RequestSerial),
}

impl Locked {
    /// Starts to resolve an endpoint number on a board.
    fn begin(&mut self, place: MxAddress, key: u32) -> Result<ConnectStart, Refusal> {
        if place == self.place {
            return Ok(ConnectStart::Own);
        }
        let connecting = self.domain.mx_connect_later(place.nic, place.number, key)?;
        self.matcher().connecting.insert(connecting, None);
        Ok(ConnectStart::Requested(connecting))
    }

    /// Returns the reply if the daemon sends one at once: for its own boards, and for unknown boards.
    fn immediate_answer(&mut self, connecting: RequestSerial, place: MxAddress) -> Option<Result<PartnerId, Refusal>> {
        let own = self.own;
        let own = self.engine().address_of(own).ok()?;
        let _ = self.domain.mx_resolve(own); // The daemon replies in order, so its earlier replies have arrived.
        if !self.is_progress_disabled() {
            self.progress_once();
        }
        let answer = self.matcher().answers.remove(&connecting)?;
        Some(answer.and_then(|address| self.add_partner(address, place)))
    }

    /// Adds the partner at an address, and records where it is.
    fn add_partner(&mut self, address: EndpointAddress, place: MxAddress) -> Result<PartnerId, Refusal> {
        self.partner_addresses.insert(address, place);
        self.engine().partner(address).map_err(|_| Reason::OutOfMemory.into())
    }

    /// Returns true if this endpoint knows an endpoint there, and its domain has not left.
    fn is_known_at(&mut self, place: MxAddress) -> bool {
        let gone = std::mem::take(&mut self.matcher().gone);
        self.partner_addresses.retain(|address, _| !gone.contains(&address.domain));
        self.partner_addresses.values().any(|known| *known == place)
    }

    fn address(&self, partner: PartnerId) -> MxEndpointAddr {
        MxEndpointAddr { stuff: [self.handle() as u64, partner.to_bits()] }
    }

    /// Returns the board and endpoint number of a partner.
    fn partner_place(&mut self, partner: PartnerId) -> Result<MxAddress, Failure> {
        let address = self.engine().address_of(partner).map_err(|_| Return::BAD_ENDPOINT)?;
        if partner == self.own {
            return Ok(self.place);
        }
        if let Some(place) = self.partner_addresses.get(&address) {
            return Ok(*place);
        }
        let (nic, number) = self.domain.mx_resolve(address)?;
        let place = MxAddress { nic, number };
        self.partner_addresses.insert(address, place);
        Ok(place)
    }
}

/// Resolves a partner and waits for the reply.
fn find(
    mut locked: Locked,
    place: MxAddress,
    key: u32,
    limit_ms: u32,
) -> Result<(Result<PartnerId, Refusal>, Locked), Failure> {
    let connecting = match locked.begin(place, key) {
        Ok(ConnectStart::Own) => return Ok((Ok(locked.own), locked)),
        Ok(ConnectStart::Requested(connecting)) => connecting,
        Err(refusal) => return Ok((Err(refusal), locked)),
    };
    let (ended, mut locked) = wait::until(locked, limit_ms, |locked| locked.matcher().answers.remove(&connecting))?;
    locked.matcher().connecting.remove(&connecting);
    let found = match ended {
        Ended::Found(Ok(address)) => locked.add_partner(address, place),
        Ended::Found(Err(refusal)) => Err(refusal),
        Ended::TimedOut | Ended::Woken => return Err(Return::TIMEOUT.into()),
    };
    Ok((found, locked))
}

fn is_daemon_unreachable(refusal: &Refusal) -> bool {
    matches!(refusal.reason, Reason::DaemonConnectionLost | Reason::DaemonUnreachable)
}

/// Connects.
///
/// # Safety
///
/// `address` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_connect(
    endpoint: EndpointHandle,
    nic_id: u64,
    endpoint_id: u32,
    key: u32,
    timeout_ms: u32,
    address: *mut MxEndpointAddr,
) -> Return {
    call("mx_connect", endpoint, || {
        let place = MxAddress { nic: nic_id, number: endpoint_id };
        let mut locked = table::lock(endpoint)?;
        let limit = if timeout_ms == 0 { CONNECT_TIMEOUT_MAX_MS } else { timeout_ms };
        let (deadline, returned) = (wait::deadline(limit), wait::deadline(RECONNECT_MS.min(limit)));
        let left_ms = || deadline.map_or(0, |deadline| deadline.saturating_duration_since(Instant::now()).as_millis());
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let partner = loop {
            let found;
            (found, locked) = find(locked, place, key, left_ms().clamp(1, limit.into()) as u32)?;
            let again_ms = match found {
                Ok(partner) => break partner,
                Err(refusal) if is_daemon_unreachable(&refusal) => RETRY_MS,
                Err(refusal) if refusal.reason == Reason::MxEndpointClosed => {
                    if !locked.is_known_at(place) || is_over(returned) {
                        return Err(refusal.into());
                    }
                    RECONNECT_POLL_MS
                }
                Err(refusal) => return Err(refusal.into()),
            };
            let (ended, after) = wait::until(locked, again_ms.min(limit), |_| None::<()>)?;
            if matches!(ended, Ended::Woken) || is_over(deadline) {
                return Err(Return::TIMEOUT.into());
            }
            locked = after;
        };
        let found = locked.address(partner);
        // Messages that arrived meanwhile are received, as in every call.
        drop(wait::progress(locked)?);
        // SAFETY: null or writable by the caller's promise.
        unsafe { boards::put(address, found) }
    })
}

/// Starts to connect.
///
/// # Safety
///
/// `request` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_iconnect(
    endpoint: EndpointHandle,
    nic_id: u64,
    endpoint_id: u32,
    key: u32,
    match_info: u64,
    context: *mut c_void,
    request: *mut RequestHandle,
) -> Return {
    call("mx_iconnect", endpoint, || {
        let mut locked = table::lock(endpoint)?;
        let place = MxAddress { nic: nic_id, number: endpoint_id };
        let answered = match locked.begin(place, key) {
            Ok(ConnectStart::Own) => Ok(Ok(locked.own)),
            Ok(ConnectStart::Requested(connecting)) => locked.immediate_answer(connecting, place).ok_or(connecting),
            Err(refusal) => Ok(Err(refusal)),
        };
        if let Ok(Err(refusal)) = &answered
            && errors::code_of(refusal.reason) == Return::NIC_NOT_FOUND
        {
            return Err(Failure::from(refusal.clone()));
        }
        let engine = locked.engine();
        let posted = engine.post_connect(match_info, context as usize).map_err(|_| Return::NO_RESOURCES)?;
        match answered {
            Ok(outcome) => {
                engine.connected(posted, outcome.map_err(|refusal| status_of(refusal.reason)));
                locked.matcher().events += 1;
            }
            Err(connecting) => {
                locked.matcher().connecting.insert(connecting, Some(posted));
                locked.begin_deadline(posted);
            }
        }
        // SAFETY: as the caller promised.
        unsafe { locked.store_request(posted, request) };
        wait::progress(locked).map(drop)
    })
}

/// Forgets a partner: requests to it end, and its unexpected messages are dropped.
#[unsafe(no_mangle)]
pub extern "C" fn mx_disconnect(endpoint: EndpointHandle, address: MxEndpointAddr) -> Return {
    call("mx_disconnect", endpoint, || {
        let mut locked = wait::progress(table::lock(endpoint)?)?;
        let partner = locked.partner(address)?;
        let at = locked.engine().address_of(partner).map_err(|_| Return::BAD_ENDPOINT)?;
        if partner == locked.own {
            return Ok(()); // The endpoint itself is always reachable.
        }
        // Pending messages use memory of the program until their requests end, so they get a moment to end.
        let (_, mut locked) = wait::until(locked, LINGER_MS, |locked| (!locked.domain.has_unsent()).then_some(()))?;
        let all = std::mem::take(&mut locked.matcher().handler_pending);
        let (pending, others): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(|pending| pending.envelope.source == partner);
        locked.matcher().handler_pending = others;
        for pending in pending {
            if let MessageSource::Peer(state) = pending.source {
                locked.refuse(pending.envelope, state);
            }
        }
        // The remaining requests end now, which returns their memory to the program.
        locked.domain.release_borrowed_buffers(at.domain);
        let disconnected = locked.engine().disconnect(partner);
        let matcher = locked.matcher();
        matcher.abandon(&disconnected.requests);
        matcher.events += 1;
        locked.partner_addresses.remove(&at);
        for unexpected in disconnected.messages {
            if let MessageSource::Peer(state) = unexpected.message {
                locked.refuse_from(at, unexpected.envelope, state);
            }
        }
        Ok(())
    })
}

/// Returns the board and endpoint number of an address.
///
/// # Safety
///
/// `nic_id` and `endpoint_id` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_decompose_endpoint_addr(
    address: MxEndpointAddr,
    nic_id: *mut u64,
    endpoint_id: *mut u32,
) -> Return {
    call("mx_decompose_endpoint_addr", address.stuff[0] as usize, || {
        // SAFETY: as the caller promised.
        unsafe { decompose(address, nic_id, endpoint_id, std::ptr::null_mut()) }
    })
}

/// Returns the board, endpoint number and session of an address.
///
/// # Safety
///
/// `nic_id`, `endpoint_id` and `session_id` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_decompose_endpoint_addr2(
    address: MxEndpointAddr,
    nic_id: *mut u64,
    endpoint_id: *mut u32,
    session_id: *mut u32,
) -> Return {
    call("mx_decompose_endpoint_addr2", address.stuff[0] as usize, || {
        // SAFETY: as the caller promised.
        unsafe { decompose(address, nic_id, endpoint_id, session_id) }
    })
}

/// # Safety
///
/// All three are null or writable.
unsafe fn decompose(
    address: MxEndpointAddr,
    nic_id: *mut u64,
    endpoint_id: *mut u32,
    session_id: *mut u32,
) -> Result<(), Failure> {
    let mut locked = table::lock(address.stuff[0] as usize)?;
    let partner = locked.partner(address)?;
    let place = locked.partner_place(partner)?;
    // A domain number is never reused, and each endpoint is a domain of its own.
    let session = locked.engine().address_of(partner).map_or(0, |at| at.domain.number());
    drop(locked);
    // SAFETY: as promised.
    unsafe {
        boards::put(nic_id, place.nic)?;
        boards::put(endpoint_id, place.number)?;
        boards::put(session_id, session)
    }
}

/// Sets the program's context of an address.
#[unsafe(no_mangle)]
pub extern "C" fn mx_set_endpoint_addr_context(address: MxEndpointAddr, context: *mut c_void) -> Return {
    call("mx_set_endpoint_addr_context", address.stuff[0] as usize, || {
        let mut locked = table::lock(address.stuff[0] as usize)?;
        let partner = locked.partner(address)?;
        let set = locked.engine().set_partner_context(partner, context as usize);
        set.map_err(|_| Return::BAD_ENDPOINT.into())
    })
}

/// Returns the program's context of an address; null if none was set.
///
/// # Safety
///
/// `context` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_get_endpoint_addr_context(address: MxEndpointAddr, context: *mut *mut c_void) -> Return {
    call("mx_get_endpoint_addr_context", address.stuff[0] as usize, || {
        let mut locked = table::lock(address.stuff[0] as usize)?;
        let partner = locked.partner(address)?;
        let word = locked.engine().partner_context(partner).map_err(|_| Return::BAD_ENDPOINT)?;
        drop(locked);
        // SAFETY: as the caller promised.
        unsafe { boards::put(context, word as *mut c_void) }
    })
}

/// Calls that no MX library has implemented.
macro_rules! unsupported {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(
                endpoint: EndpointHandle,
                _local: *mut c_void,
                _length: u32,
                _destination: MxEndpointAddr,
                _remote: u64,
                _context: *mut c_void,
                _request: *mut RequestHandle,
            ) -> Return {
                call(stringify!($name), endpoint, || {
                    drop(table::lock(endpoint)?);
                    Err(Return::FAILURE.into())
                })
            }
        )*
    };
}

unsupported! {
    /// Returns an error.
    mx_iput;
    /// Returns an error.
    mx_iget;
}
