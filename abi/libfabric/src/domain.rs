//! Domains: the owners of endpoints, queues and registered memory.

use crate::abi::consts::{FI_CLASS_DOMAIN, FI_COMPARE_ATOMIC, FI_FETCH_ATOMIC};
use crate::abi::info::Info;
use crate::abi::objects::{Fid, FidDomain, FidEp};
use crate::abi::requests::AtomicAttr;
use crate::abi::tables::{DomainOps, Ops};
use crate::engine::arithmetic::{AtomicForm, AtomicOp};
use crate::errno::{Errno, call};
use crate::shared::Shared;
use crate::{address, cntr, cq, endpoint, getinfo, memory, stubs};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

#[repr(C)]
pub(crate) struct DomainObject {
    raw: FidDomain,
    shared: Arc<Shared>,
}

static OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close,
    bind,
    control: stubs::control,
    ops_open: stubs::ops_open,
    tostr: stubs::tostr,
    ops_set: stubs::ops_set,
};

static DOMAIN_OPS: DomainOps = DomainOps {
    size: size_of::<DomainOps>(),
    av_open: address::open,
    cq_open: cq::open,
    endpoint: endpoint::open,
    scalable_ep: stubs::scalable_ep,
    cntr_open: cntr::open,
    poll_open: stubs::poll_open,
    stx_ctx: stubs::stx_ctx,
    srx_ctx: stubs::srx_ctx,
    query_atomic,
    query_collective: stubs::query_collective,
    endpoint2,
};

impl DomainObject {
    /// Returns the state that the domain's objects share.
    ///
    /// # Safety
    ///
    /// `domain` was made in [`open`] and is not closed.
    pub(crate) unsafe fn shared(domain: *mut FidDomain) -> Arc<Shared> {
        // SAFETY: an object begins with what the caller sees of it.
        Arc::clone(&unsafe { &*domain.cast::<Self>() }.shared)
    }
}

/// Opens a domain.
///
/// # Safety
///
/// `domain` is writable.
pub(crate) unsafe fn open(
    api_version: u32,
    _info: *mut Info,
    domain: *mut *mut FidDomain,
    context: *mut c_void,
) -> Result<(), Errno> {
    let options = getinfo::options().map_err(|_| Errno::INVAL)?;
    let shared = Arc::new(Shared::new(options, api_version)?);
    let fid = Fid { class: FI_CLASS_DOMAIN, context, ops: &OPS };
    let raw = FidDomain { fid, ops: &DOMAIN_OPS, mr: &memory::MR_OPS };
    // SAFETY: writable, as promised.
    unsafe { domain.write(Box::into_raw(Box::new(DomainObject { raw, shared })).cast()) };
    Ok(())
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: `fid` is the first field of an object made in `open`, which its owner gives back.
        let object = unsafe { &*fid.cast::<DomainObject>() };
        if !object.shared.lock().members.is_empty() {
            return Err(Errno::BUSY);
        }
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(fid.cast::<DomainObject>()) });
        Ok(())
    })
}

/// Accepts an event queue. No events are reported there.
unsafe extern "C" fn bind(_fid: *mut Fid, _eq: *mut Fid, _flags: u64) -> c_int {
    0
}

unsafe extern "C" fn endpoint2(
    domain: *mut FidDomain,
    info: *mut Info,
    ep: *mut *mut FidEp,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -Errno::BADFLAGS.0;
    }
    // SAFETY: passed on.
    unsafe { endpoint::open(domain, info, ep, context) }
}

unsafe extern "C" fn query_atomic(
    _domain: *mut FidDomain,
    datatype: c_int,
    op: c_int,
    attr: *mut AtomicAttr,
    flags: u64,
) -> c_int {
    call(|| {
        let form = match (flags & FI_FETCH_ATOMIC != 0, flags & FI_COMPARE_ATOMIC != 0) {
            (false, false) => AtomicForm::Write,
            (true, false) => AtomicForm::Fetch,
            (false, true) => AtomicForm::Compare,
            (true, true) => return Err(Errno::INVAL),
        };
        let (count, size) = AtomicOp::limits(op, datatype, form)?;
        // SAFETY: writable.
        unsafe { attr.write(AtomicAttr { count, size }) };
        Ok(())
    })
}
