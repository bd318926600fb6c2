//! Sends of messages.
//!
//! ```text
//!   to this endpoint ──────────────────────────► copied to its receive, or held; over when it is taken
//!   up to 128 bytes, with room on a channel ───► sent, and over
//!   up to 32 KiB ──────────────────────────────► copied, and over; 512 of them may wait for room
//!   more, and every mx_issend ─────────────────► announced; over when the receiver has taken it
//! ```

use crate::codes::Return;
use crate::delivery;
use crate::errors::{Failure, call};
use crate::matcher::{INDEX, MessageSource};
use crate::segments::{self, SegmentList};
use crate::table::{self, Locked};
use crate::types::{EndpointHandle, MxEndpointAddr, RequestHandle, Segment};
use crate::wait;
use isthmus_client::{Buffer, Completion, EndpointAddress, Matcher, Message, Outcome, Token};
use isthmus_mx::{PartnerId, RequestId};
use std::ffi::c_void;

/// The longest message that is sent without a request, if the channel has room.
const INLINE_MAX: u32 = 128;

/// The arguments of a send, without its bytes.
struct SendRequest {
    to: PartnerId,
    match_info: u64,
    context: usize,
    sync: bool,
}

/// Starts a send.
///
/// # Safety
///
/// `segments` is null, or `segments_count` of them can be read there; what they point to can be read, and is not written, until
/// the request is over. `request` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_isend(
    endpoint: EndpointHandle,
    segments: *const Segment,
    segments_count: u32,
    destination: MxEndpointAddr,
    match_info: u64,
    context: *mut c_void,
    request: *mut RequestHandle,
) -> Return {
    call("mx_isend", endpoint, || {
        let mut locked = table::lock(endpoint)?;
        let to = locked.partner(destination)?;
        // SAFETY: as the caller promised.
        if unsafe { try_send_inline(&mut locked, segments, segments_count, to, match_info, context as usize, request)? }
        {
            locked.leave();
            return Ok(());
        }
        let send_request = SendRequest { to, match_info, context: context as usize, sync: false };
        // SAFETY: as the caller promised.
        unsafe { send(locked, SegmentList::read(segments, segments_count)?, &send_request, request) }
    })
}

/// Starts a send that is over only when a receive has taken it.
///
/// # Safety
///
/// As for [`mx_isend`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_issend(
    endpoint: EndpointHandle,
    segments: *const Segment,
    segments_count: u32,
    destination: MxEndpointAddr,
    match_info: u64,
    context: *mut c_void,
    request: *mut RequestHandle,
) -> Return {
    call("mx_issend", endpoint, || {
        // SAFETY: as the caller promised.
        let segment_list = unsafe { SegmentList::read(segments, segments_count)? };
        let locked = table::lock(endpoint)?;
        let to = locked.partner(destination)?;
        let send_request = SendRequest { to, match_info, context: context as usize, sync: true };
        // SAFETY: as the caller promised.
        unsafe { send(locked, segment_list, &send_request, request) }
    })
}

impl Locked {
    /// Returns the partner of an address of this endpoint.
    #[inline(always)]
    pub(crate) fn partner(&self, address: MxEndpointAddr) -> Result<PartnerId, Failure> {
        let own = address.stuff[0] == self.handle() as u64;
        PartnerId::from_bits(address.stuff[1]).filter(|_| own).ok_or_else(|| Return::BAD_ENDPOINT.into())
    }

    /// Writes the handle of a request to `place`; if `place` is null, the request is forgotten.
    ///
    /// # Safety
    ///
    /// `place` is null or writable.
    #[inline(always)]
    pub(crate) unsafe fn store_request(&mut self, request: RequestId, place: *mut RequestHandle) {
        if place.is_null() {
            // The request exists, because it was posted just now.
            let _ = self.engine().forget(request);
        } else {
            // SAFETY: not null, so writable as promised.
            unsafe { place.write(self.request_handle(request)) };
        }
    }
}

/// Sends a short message if there is a channel with room. Returns false, without an effect, if there is not, and for
/// unusual sends.
///
/// # Safety
///
/// As for [`mx_isend`].
#[inline(always)]
unsafe fn try_send_inline(
    locked: &mut Locked,
    segments: *const Segment,
    segments_count: u32,
    to: PartnerId,
    match_info: u64,
    context: usize,
    request: *mut RequestHandle,
) -> Result<bool, Failure> {
    // SAFETY: as the caller promised.
    let Some(bytes) = (unsafe { segments::short(segments, segments_count, INLINE_MAX) }) else { return Ok(false) };
    let handle = locked.handle();
    let endpoint = &mut **locked;
    let address = endpoint.engine().address_of(to).map_err(|_| Return::BAD_ENDPOINT)?;
    if to == endpoint.own || !endpoint.domain.inject(INDEX, address, match_info, bytes) {
        return Ok(false);
    }
    if !request.is_null() {
        let matcher = endpoint.matcher();
        let sent = matcher.engine.post_sent(to, match_info, context, bytes.len() as u32);
        matcher.events += 1;
        // SAFETY: not null, so writable as promised.
        unsafe { request.write(table::request_handle(handle, sent.map_err(|_| Return::NO_RESOURCES)?)) };
    }
    Ok(true)
}

/// # Safety
///
/// As for [`mx_isend`].
#[inline(never)]
unsafe fn send(
    mut locked: Locked,
    segment_list: SegmentList<'_>,
    send_request: &SendRequest,
    request: *mut RequestHandle,
) -> Result<(), Failure> {
    let address = locked.engine().address_of(send_request.to).map_err(|_| Return::BAD_ENDPOINT)?;
    if send_request.to == locked.own {
        // SAFETY: passed on.
        return unsafe { send_to_self(locked, segment_list, send_request, request) };
    }
    // SAFETY: passed on.
    unsafe { post(locked, segment_list, send_request, address, request) }
}

/// Posts a send to another endpoint. The send may have to wait for room.
///
/// # Safety
///
/// As for [`mx_isend`].
unsafe fn post(
    mut locked: Locked,
    segment_list: SegmentList<'_>,
    send_request: &SendRequest,
    address: EndpointAddress,
    request: *mut RequestHandle,
) -> Result<(), Failure> {
    let &SendRequest { to, match_info, context, sync } = send_request;
    let len = segment_list.len();
    let sync = sync || len > locked.settings.eager_max;
    let lends = sync && matches!(segment_list, SegmentList::One { .. });
    let buffer = match segment_list {
        // SAFETY: the program lent the bytes until the request is over.
        SegmentList::One { start, len } if sync => unsafe { Buffer::from_raw_parts(start, len as usize) },
        // What is short is copied: the program has its memory back, whenever there is room.
        // SAFETY: the program lends the bytes for reading.
        _ => Buffer::from(unsafe { segment_list.gather()? }),
    };
    let early_max = locked.settings.copied_sends_max;
    let early = if sync { None } else { locked.matcher().copied_send_token(early_max) };
    let posted = match early {
        Some(_) => locked.engine().post_sent(to, match_info, context, len),
        None => locked.engine().post_send(to, match_info, context, len),
    };
    let posted = posted.map_err(|_| Return::NO_RESOURCES)?;
    if !lends {
        locked.engine().set_buffered(posted);
    }
    locked.matcher().events += 1;
    let token = early.unwrap_or(Token::new(posted.to_bits()));
    let message = Message { token, from: INDEX, to: address, tag: match_info, buffer, sync };
    if let Err((refusal, buffer)) = locked.domain.post(message) {
        let outcome = Outcome::Failed(refusal.reason);
        locked.matcher().complete(Completion { token, endpoint: INDEX, buffer, outcome });
        let _ = locked.engine().forget(posted);
        return Err(refusal.into());
    }
    if early.is_none() {
        locked.begin_deadline(posted);
    }
    // SAFETY: passed on.
    unsafe { locked.store_request(posted, request) };
    let mut locked = wait::progress(locked)?;
    locked.slot().count_post();
    delivery::start_if_needed(&mut locked);
    Ok(())
}

/// # Safety
///
/// As for [`mx_isend`].
#[inline(never)]
unsafe fn send_to_self(
    mut locked: Locked,
    segment_list: SegmentList<'_>,
    send_request: &SendRequest,
    request: *mut RequestHandle,
) -> Result<(), Failure> {
    let &SendRequest { to, match_info, context, sync } = send_request;
    let len = segment_list.len();
    // Without the shortcut, a message to itself is handled as any other: a short one completes once it is copied.
    let no_self = locked.settings.no_self;
    let at_once = no_self && !sync && len <= locked.settings.eager_max;
    // SAFETY: the program lends the bytes for reading.
    let bytes = unsafe { segment_list.gather()? };
    let engine = locked.engine();
    let sent = if at_once {
        engine.post_sent(to, match_info, context, len)
    } else {
        engine.post_send(to, match_info, context, len)
    };
    let sent = sent.map_err(|_| Return::NO_RESOURCES)?;
    engine.set_buffered(sent);
    let send = (!at_once).then_some(sent);
    let envelope = isthmus_mx::MatchEnvelope { source: to, match_info, msg_length: len };
    let matcher = locked.matcher();
    if let Some(matched) = matcher.engine.arrive(&envelope) {
        matcher.deliver_own(matched.request, &matched.receive, &bytes, send);
    } else {
        // The bytes of an announced message are not available to the handler.
        let is_announced = no_self && !at_once;
        let is_contiguous = matches!(segment_list, SegmentList::One { .. }) && !is_announced;
        matcher.keep(envelope, MessageSource::Own { bytes, send, is_contiguous });
    }
    if !at_once {
        locked.begin_deadline(sent);
    }
    // SAFETY: passed on.
    unsafe { locked.store_request(sent, request) };
    wait::run_handlers(locked).map(drop)
}
