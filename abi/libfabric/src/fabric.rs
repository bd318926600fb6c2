//! The fabric object, which opens domains and event queues.

use crate::abi::consts::FI_CLASS_FABRIC;
use crate::abi::info::{FabricAttr, Info};
use crate::abi::objects::{Fid, FidDomain, FidFabric};
use crate::abi::tables::{FabricOps, Ops};
use crate::errno::{Errno, call};
use crate::{cq, domain, eq, stubs};
use std::ffi::{c_int, c_void};

static OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close,
    bind: stubs::bind,
    control: stubs::control,
    ops_open: stubs::ops_open,
    tostr: stubs::tostr,
    ops_set: stubs::ops_set,
};

static FABRIC_OPS: FabricOps = FabricOps {
    size: size_of::<FabricOps>(),
    domain: open_domain,
    passive_ep: stubs::passive_ep,
    eq_open: eq::open,
    wait_open: stubs::wait_open,
    trywait,
    domain2: open_domain2,
};

/// Opens the fabric.
///
/// # Safety
///
/// `fabric` is writable.
pub(crate) unsafe extern "C" fn open(
    _attr: *mut FabricAttr,
    fabric: *mut *mut FidFabric,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let fid = Fid { class: FI_CLASS_FABRIC, context, ops: &OPS };
        let object = Box::new(FidFabric { fid, ops: &FABRIC_OPS, api_version: 0 });
        // SAFETY: writable, as promised.
        unsafe { fabric.write(Box::into_raw(object)) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: `fid` is the first field of an object made in `open`, which its owner gives back.
        drop(unsafe { Box::from_raw(fid.cast::<FidFabric>()) });
        Ok(())
    })
}

unsafe extern "C" fn open_domain(
    fabric: *mut FidFabric,
    info: *mut Info,
    domain: *mut *mut FidDomain,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: made in `open` and not closed; libfabric has written the version to it.
        let version = unsafe { (*fabric).api_version };
        // SAFETY: `info` is one of ours, `domain` is writable.
        unsafe { domain::open(version, info, domain, context) }
    })
}

unsafe extern "C" fn open_domain2(
    fabric: *mut FidFabric,
    info: *mut Info,
    domain: *mut *mut FidDomain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -Errno::BADFLAGS.0;
    }
    // SAFETY: passed on.
    unsafe { open_domain(fabric, info, domain, context) }
}

/// Checks whether a program may sleep on the descriptors of these objects.
unsafe extern "C" fn trywait(_fabric: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    call(|| {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        for at in 0..count {
            // SAFETY: `count` objects of ours stand there.
            let fid = unsafe { *fids.add(at) };
            // SAFETY: as above.
            unsafe { cq::trywait(fid)? };
        }
        Ok(())
    })
}
