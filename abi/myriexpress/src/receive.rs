//! Receives and probes.

use crate::codes::Return;
use crate::completion::answer;
use crate::errors::{Failure, call};
use crate::matcher::{MessageSource, Receive};
use crate::segments::SegmentList;
use crate::table::{self, Locked};
use crate::types::{EndpointHandle, MxStatus, RequestHandle, Segment};
use crate::wait;
use isthmus_mx::{Filter, PostError, PostOutcome, RequestId};
use std::ffi::c_void;

/// Posts a receive.
///
/// # Safety
///
/// `segments` is null, or `segments_count` of them can be read there; what they point to is the library's until the request is
/// over. `request` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_irecv(
    endpoint: EndpointHandle,
    segments: *const Segment,
    segments_count: u32,
    match_info: u64,
    match_mask: u64,
    context: *mut c_void,
    request: *mut RequestHandle,
) -> Return {
    call("mx_irecv", endpoint, || {
        // SAFETY: as the caller promised.
        let segment_list = unsafe { SegmentList::read(segments, segments_count)? };
        let filter = filter(match_info, match_mask)?;
        let mut locked = table::lock(endpoint)?;
        let posted = locked.engine().post_receive(filter, context as usize, segment_list.len(), segment_list.receive());
        let id = match posted.map_err(post_error_code)? {
            PostOutcome::Waiting(id) => id,
            PostOutcome::Found { request, receive, unexpected } => {
                deliver_held(&mut locked, request, receive, unexpected)
            }
        };
        // SAFETY: as the caller promised.
        unsafe { locked.store_request(id, request) };
        locked.leave();
        Ok(())
    })
}

#[inline(never)]
fn deliver_held(
    locked: &mut Locked,
    request: RequestId,
    receive: Receive,
    unexpected: isthmus_mx::UnexpectedMessage<MessageSource>,
) -> RequestId {
    locked.deliver_held(request, receive, unexpected.envelope, unexpected.message);
    request
}

fn post_error_code(error: PostError) -> Return {
    match error {
        PostError::MaskSplitsContext => Return::BAD_MATCHING_FOR_CONTEXT_ID_MASK,
        PostError::Full(_) => Return::NO_RESOURCES,
    }
}

/// Returns the filter for a match information under a mask.
#[inline]
pub(crate) fn filter(match_info: u64, match_mask: u64) -> Result<Filter, Failure> {
    Filter::new(match_info, match_mask).map_err(|_| Return::BAD_MATCH_MASK.into())
}

/// Returns the oldest unexpected message that matches.
///
/// # Safety
///
/// `status` and `result` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_iprobe(
    endpoint: EndpointHandle,
    match_info: u64,
    match_mask: u64,
    status: *mut MxStatus,
    result: *mut u32,
) -> Return {
    call("mx_iprobe", endpoint, || {
        let filter = filter(match_info, match_mask)?;
        let mut locked = wait::poll(table::lock(endpoint)?)?;
        let found = probe(&mut locked, filter);
        // SAFETY: as the caller promised.
        unsafe { answer(found, status, result) }
    })
}

/// Like [`mx_iprobe`], but waits for a message.
///
/// # Safety
///
/// `status` and `result` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_probe(
    endpoint: EndpointHandle,
    timeout_ms: u32,
    match_info: u64,
    match_mask: u64,
    status: *mut MxStatus,
    result: *mut u32,
) -> Return {
    call("mx_probe", endpoint, || {
        let filter = filter(match_info, match_mask)?;
        let (ended, locked) = wait::until(table::lock(endpoint)?, timeout_ms, |locked| probe(locked, filter))?;
        drop(locked);
        // SAFETY: as the caller promised.
        unsafe { answer(ended.found(), status, result) }
    })
}

fn probe(locked: &mut Locked, filter: Filter) -> Option<MxStatus> {
    let status = locked.engine().probe(filter)?;
    Some(locked.status(&status))
}
