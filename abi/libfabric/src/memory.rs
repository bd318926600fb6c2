//! Registered memory.

use crate::abi::consts::{FI_CLASS_CNTR, FI_CLASS_MR, FI_ENABLE};
use crate::abi::objects::{Fid, FidDomain, FidMr};
use crate::abi::requests::{IoVec, MrAttr};
use crate::abi::tables::{MrOps, Ops};
use crate::cntr;
use crate::domain::DomainObject;
use crate::engine::regions::Region;
use crate::errno::{Errno, call};
use crate::shared::Shared;
use crate::stubs;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// The maximum time for which closing a region waits for peers that access it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

#[repr(C)]
struct MrObject {
    raw: FidMr,
    shared: Arc<Shared>,
    region: Arc<Region>,
    key: u64,
}

static OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close,
    bind,
    control,
    ops_open: stubs::ops_open,
    tostr: stubs::tostr,
    ops_set: stubs::ops_set,
};

pub(crate) static MR_OPS: MrOps = MrOps { size: size_of::<MrOps>(), reg, regv, regattr };

unsafe fn register(
    domain: *mut Fid,
    iovec: IoVec,
    access: u64,
    offset: u64,
    key: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> Result<(), Errno> {
    if offset != 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: the domain that this table belongs to.
    let shared = unsafe { DomainObject::shared(domain.cast::<FidDomain>()) };
    let region = Arc::new(Region::new(iovec.base.cast(), iovec.len, access));
    let mut state = shared.lock(); // The lock keeps requests from being served out of memory that is being moved.
    shared.regions.insert(key, Arc::clone(&region))?;
    if !shared.options.no_regcache {
        // SAFETY: the program keeps registered memory mapped until it is closed, which calls `unexpose`.
        unsafe { shared.regions.expose(key, &region) };
        if let Some(arena) = shared.regions.arena() {
            state.members.values_mut().for_each(|member| member.endpoint.domain.share_arena(arena));
        }
    }
    drop(state);
    let raw = FidMr { fid: Fid { class: FI_CLASS_MR, context, ops: &OPS }, mem_desc: std::ptr::null_mut(), key };
    // SAFETY: writable, by the promise of our caller's.
    unsafe { mr.write(Box::into_raw(Box::new(MrObject { raw, shared, region, key })).cast()) };
    Ok(())
}

unsafe extern "C" fn reg(
    domain: *mut Fid,
    start: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    key: u64,
    _flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    let iovec = IoVec { base: start.cast_mut(), len };
    // SAFETY: passed on.
    call(|| unsafe { register(domain, iovec, access, offset, key, mr, context) })
}

unsafe extern "C" fn regv(
    domain: *mut Fid,
    iovecs: *const IoVec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    _flags: u64,
    mr: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    call(|| {
        if count != 1 {
            return Err(Errno::INVAL);
        }
        // SAFETY: one iovec is described there; the rest is passed on.
        unsafe { register(domain, *iovecs, access, offset, key, mr, context) }
    })
}

unsafe extern "C" fn regattr(domain: *mut Fid, attr: *const MrAttr, _flags: u64, mr: *mut *mut FidMr) -> c_int {
    call(|| {
        // SAFETY: readable, as far as every version of libfabric has it.
        let attr = unsafe { &*attr };
        if attr.iov_count != 1 {
            return Err(Errno::INVAL);
        }
        // SAFETY: one iovec is described there; the rest is passed on.
        unsafe { register(domain, *attr.iov, attr.access, attr.offset, attr.requested_key, mr, attr.context) }
    })
}

/// Closes a region. No access to the region happens after this returns.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: `fid` is the first field of an object made in `register`, which its owner gives back.
        let object = unsafe { Box::from_raw(fid.cast::<MrObject>()) };
        object.shared.regions.remove(object.key);
        object.region.unexpose();
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        let mut state = object.shared.lock();
        while state.members.values().any(|member| member.endpoint.is_region_in_use(&object.region)) {
            if Instant::now() >= deadline {
                state.members.values_mut().for_each(|member| member.endpoint.release_borrowed_buffers(&object.region));
                break;
            }
            state.progress_all();
        }
        Ok(())
    })
}

/// Accepts an endpoint, which has no effect, or a counter of accesses by peers.
unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, _flags: u64) -> c_int {
    call(|| {
        // SAFETY: both are objects of ours.
        let (object, class) = unsafe { (&*fid.cast::<MrObject>(), (*other).class) };
        if class == FI_CLASS_CNTR {
            // SAFETY: its class says that it is a counter.
            let counter = unsafe { cntr::counter(other.cast()) };
            object.region.unpublish();
            *object.region.counter.lock().unwrap_or_else(PoisonError::into_inner) = Some(counter);
        }
        Ok(())
    })
}

unsafe extern "C" fn control(_fid: *mut Fid, command: c_int, _arg: *mut c_void) -> c_int {
    if command == FI_ENABLE { 0 } else { -Errno::NOSYS.0 }
}
