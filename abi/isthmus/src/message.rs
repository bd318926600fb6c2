//! Endpoints, and messages from and to them.

use crate::domain::{self, Handle, Inner};
use crate::pending::{Context, Operation};
use crate::types::{self, IsthAddress};
use isthmus_client::{Buffer, DomainId, EndpointAddress, EndpointIndex, Reason, Refusal, Token};
use std::ffi::{c_char, c_void};

/// Opens an endpoint: 'wanted', or with ISTH_ENDPOINT_ANY the lowest that is free. `isthmus endpoint list` shows
/// 'label', which may be null.
///
/// # Safety
///
/// 'domain' is null or attached. 'label' is null or ends with a zero byte. 'endpoint' is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_open(domain: *mut Handle, wanted: u32, label: *const c_char, endpoint: *mut u32) -> i32 {
    // SAFETY: as the caller promised.
    unsafe {
        domain::call_locked(domain, |inner| {
            let wanted = if wanted == crate::ISTH_ENDPOINT_ANY { None } else { Some(index(wanted)?) };
            let label = types::string(label).map_or(Ok(""), types::utf8)?;
            check_not_null(endpoint)?;
            let opened = inner.domain.open(wanted, label)?;
            store_result(endpoint, u32::from(opened.number()))
        })
    }
}

/// Closes an endpoint. Its posted receives complete as cancelled; messages that waited for them are dropped.
///
/// # Safety
///
/// 'domain' is null or attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_close(domain: *mut Handle, endpoint: u32) -> i32 {
    // SAFETY: as the caller promised.
    unsafe { domain::call_locked(domain, |inner| inner.domain.close(index(endpoint)?).map(|()| 0)) }
}

/// Stores the number of the domain of this name in '*found'. A name such as "d7" means domain 7.
///
/// # Safety
///
/// 'domain' is null or attached. 'name' is null or ends with a zero byte. 'found' is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_lookup(domain: *mut Handle, name: *const c_char, found: *mut u32) -> i32 {
    // SAFETY: as the caller promised.
    unsafe {
        domain::call_locked(domain, |inner| {
            let name = types::string(name).ok_or_else(|| invalid("name is null"))?;
            check_not_null(found)?;
            let domain = inner.domain.lookup(types::utf8(name)?)?;
            store_result(found, domain.number())
        })
    }
}

/// Sends 'len' bytes, and returns at once. From the completion on, which carries 'context', the bytes may change again.
/// It comes at once for up to 32 KiB on a channel, otherwise when the receiver has the bytes. The token of the operation
/// is stored in '*token', unless 'token' is null.
///
/// # Safety
///
/// 'domain' is null or attached. Until the completion (or isth_detach()) the 'len' bytes at 'data' are readable and
/// do not change. 'token' is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_send(
    domain: *mut Handle,
    from: u32,
    to: IsthAddress,
    tag: u64,
    data: *const c_void,
    len: usize,
    context: *mut c_void,
    token: *mut u64,
) -> i32 {
    // SAFETY: as the caller promised; the buffer is used for a send, so it is only read.
    unsafe {
        domain::call_locked(domain, |inner| {
            let (from, to) = (index(from)?, address(to)?);
            let buffer = from_raw_parts(data.cast_mut(), len)?;
            let posted = inner.domain.send(from, to, tag, buffer).map_err(|(refusal, _)| refusal)?;
            inner.record_posted(posted, from, context, token)
        })
    }
}

/// Posts a receive of up to 'len' bytes. The oldest receive takes the oldest message, or the first bytes of a longer
/// one. The completion carries 'context'. The token of the operation is stored in '*token', unless 'token' is null.
///
/// # Safety
///
/// 'domain' is null or attached. Until the completion (or isth_detach()) the 'len' bytes at 'data' are writable and
/// used by nothing else. 'token' is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_receive(
    domain: *mut Handle,
    endpoint: u32,
    data: *mut c_void,
    len: usize,
    context: *mut c_void,
    token: *mut u64,
) -> i32 {
    // SAFETY: as the caller promised.
    unsafe {
        domain::call_locked(domain, |inner| {
            let at = index(endpoint)?;
            let posted = inner.domain.receive(at, from_raw_parts(data, len)?).map_err(|(refusal, _)| refusal)?;
            inner.record_posted(posted, at, context, token)
        })
    }
}

/// Cancels a posted receive. Returns 1 if it had not begun to receive; it then completes as ISTH_CANCELLED. Otherwise
/// returns 0: the receive is over, or completes later. A send cannot be cancelled.
///
/// # Safety
///
/// 'domain' is null or attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isth_cancel(domain: *mut Handle, token: u64) -> i32 {
    // SAFETY: as the caller promised.
    unsafe {
        domain::call_locked(domain, |inner| {
            let Some(&Operation { token, endpoint, .. }) = inner.pending.get(&token) else { return Ok(0) };
            Ok(i32::from(inner.domain.cancel(endpoint, token)))
        })
    }
}

impl Inner {
    /// Remembers what belongs to an operation.
    ///
    /// # Safety
    ///
    /// `number` is null or writable.
    unsafe fn record_posted(
        &mut self,
        token: Token,
        endpoint: EndpointIndex,
        context: *mut c_void,
        number: *mut u64,
    ) -> Result<i32, Refusal> {
        self.pending.insert(token.number(), Operation { token, endpoint, context: Context(context) });
        if !number.is_null() {
            // SAFETY: as promised.
            unsafe { number.write(token.number()) };
        }
        Ok(0)
    }
}

fn invalid(detail: &str) -> Refusal {
    Refusal::new(Reason::RequestInvalid, detail)
}

fn index(number: u32) -> Result<EndpointIndex, Refusal> {
    let index = u8::try_from(number).ok().and_then(EndpointIndex::new);
    index.ok_or_else(|| Refusal::new(Reason::RequestInvalid, format!("there is no endpoint {number}")))
}

fn address(address: IsthAddress) -> Result<EndpointAddress, Refusal> {
    let domain = DomainId::new(address.domain).ok_or_else(|| invalid("there is no domain 0"))?;
    Ok(EndpointAddress { domain, endpoint: index(address.endpoint)? })
}

/// The program's memory as a buffer.
///
/// # Safety
///
/// As for [`Buffer::from_raw_parts`].
unsafe fn from_raw_parts(data: *mut c_void, len: usize) -> Result<Buffer, Refusal> {
    if data.is_null() && len > 0 {
        return Err(invalid("data is null"));
    }
    if isize::try_from(len).is_err() {
        return Err(Refusal::new(Reason::MessageTooLong, format!("{len} bytes")));
    }
    // SAFETY: as promised.
    Ok(unsafe { Buffer::from_raw_parts(data.cast(), len) })
}

/// Refuses a null pointer for a result, before anything is done.
fn check_not_null<T>(place: *mut T) -> Result<(), Refusal> {
    if place.is_null() { Err(invalid("the place for the result is null")) } else { Ok(()) }
}

/// Hands a result out.
///
/// # Safety
///
/// `place` is null or writable.
pub(crate) unsafe fn store_result<T>(place: *mut T, value: T) -> Result<i32, Refusal> {
    check_not_null(place)?;
    // SAFETY: not null, so writable as promised.
    unsafe { place.write(value) };
    Ok(0)
}
