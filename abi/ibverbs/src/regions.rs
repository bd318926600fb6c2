//! Protection domains, memory regions and addresses.

use crate::abi::context::IbvContext;
use crate::abi::objects::*;
use crate::abi::queries::IbvAhAttr;
use crate::convert;
use crate::device::{Device, fail, status};
use crate::memory;
use isthmus_verbs::{Access, Pd};
use std::ffi::{c_int, c_void};

/// Bits of the changes of `ibv_rereg_mr()`.
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 2;
const CHANGE_ACCESS: c_int = 4;

/// The rights by which memory is written.
const WRITTEN: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

pub(crate) unsafe extern "C" fn alloc_pd(context: *mut IbvContext) -> *mut IbvPd {
    // SAFETY: libibverbs passes an open context.
    let made = unsafe { Device::of(context) }.lock().engine().alloc_pd();
    match made {
        Ok(pd) => {
            let ibv = IbvPd { context, handle: pd.number() };
            PdObject::embedded(Box::into_raw(Box::new(PdObject { ibv: ibv.into(), pd })))
        }
        Err(refused) => fail(convert::errno(refused)),
    }
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut IbvPd) -> c_int {
    // SAFETY: a protection domain of this provider, from a program that uses it no more.
    let object = unsafe { &*pd.cast::<PdObject>() };
    // SAFETY: its context is open.
    let ended = unsafe { Device::of((*pd).context) }.lock().engine().dealloc_pd(object.pd);
    if ended.is_ok() {
        // SAFETY: from `alloc_pd`.
        drop(unsafe { Box::from_raw(pd.cast::<PdObject>()) });
    }
    status(ended.map_err(convert::errno))
}

/// The protection domain of an object that a program passed.
///
/// # Safety
///
/// The object is of this provider and lives.
pub(crate) unsafe fn pd_of(pd: *const IbvPd) -> Pd {
    // SAFETY: by the caller's promise.
    unsafe { &*pd.cast::<PdObject>() }.pd
}

pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut IbvPd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    flags: c_int,
) -> *mut IbvMr {
    let access = match convert::access(flags as u32) {
        Ok(access) => access,
        Err(errno) => return fail(errno),
    };
    if let Err(errno) = memory::check(addr as u64, len as u64, access.intersects(WRITTEN)) {
        return fail(errno);
    }
    let iova = if convert::is_zero_based(flags as u32) { 0 } else { iova };
    // SAFETY: libibverbs passes a protection domain of this provider with an open context.
    let (context, pd_value) = unsafe { ((*pd).context, pd_of(pd)) };
    // SAFETY: as above.
    let device = unsafe { Device::of(context) };
    let region = (pd_value, (addr as u64, len as u64), iova, access);
    let made = device.lock().register(region);
    match made {
        Ok(key) => {
            device.exposures.expose(key, region);
            let mr = IbvMr { context, pd, addr, length: len, handle: key.0, lkey: key.0, rkey: key.0 };
            let verbs = VerbsMr { mr, mr_type: 0, access: flags };
            MrObject::embedded(Box::into_raw(Box::new(MrObject { verbs: verbs.into(), key })))
        }
        Err(refused) => fail(convert::errno(refused)),
    }
}

pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut VerbsMr) -> c_int {
    // SAFETY: libibverbs passes a region of this provider that the program uses no more.
    let object = unsafe { &*mr.cast::<MrObject>() };
    let key = object.key;
    // SAFETY: its context is open.
    let device = unsafe { Device::of((*mr).mr.context) };
    let ended = device.lock().deregister(key);
    device.exposures.close(key);
    if ended.is_ok() {
        // SAFETY: from `reg_mr`.
        drop(unsafe { Box::from_raw(mr.cast::<MrObject>()) });
    }
    status(ended.map_err(convert::errno))
}

pub(crate) unsafe extern "C" fn rereg_mr(
    mr: *mut VerbsMr,
    changes: c_int,
    pd: *mut IbvPd,
    addr: *mut c_void,
    len: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: libibverbs passes a region of this provider.
    let object = unsafe { &*mr.cast::<MrObject>() };
    let has = |change| changes & change != 0;
    let access = match has(CHANGE_ACCESS).then(|| convert::access(flags as u32)).transpose() {
        Ok(access) => access,
        Err(errno) => return errno.raw_os_error(),
    };
    let range = has(CHANGE_TRANSLATION).then_some((addr as u64, len as u64));
    // SAFETY: with this change, the program passes a protection domain of this provider.
    let pd = has(CHANGE_PD).then(|| unsafe { pd_of(pd) });
    // SAFETY: the context is open.
    let device = unsafe { Device::of((*mr).mr.context) };
    let before = device.lock().engine().region(object.key);
    if let Some((_, before, _, rights)) = before
        && (range.is_some() || access.is_some())
    {
        let (addr, len) = range.unwrap_or(before);
        if let Err(errno) = memory::check(addr, len, access.unwrap_or(rights).intersects(WRITTEN)) {
            return errno.raw_os_error();
        }
    }
    device.exposures.close(object.key);
    let changed = device.lock().reregister(object.key, pd, range, access);
    let exposed = |region: Option<_>| region.into_iter().for_each(|region| device.exposures.expose(object.key, region));
    status(changed.map(exposed).map_err(convert::errno))
}

pub(crate) unsafe extern "C" fn create_ah(pd: *mut IbvPd, attr: *mut IbvAhAttr) -> *mut IbvAh {
    // SAFETY: libibverbs passes a protection domain of this provider and attributes of the program.
    let (context, attr) = unsafe { ((*pd).context, *attr) };
    // SAFETY: the context is open.
    match convert::address_of_handle(&attr, &unsafe { Device::of(context) }.gids) {
        Ok(address) => {
            let ibv = IbvAh { context, pd, handle: 0 };
            AhObject::embedded(Box::into_raw(Box::new(AhObject { ibv: ibv.into(), address, attr })))
        }
        Err(errno) => fail(errno),
    }
}

pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut IbvAh) -> c_int {
    // SAFETY: from `create_ah`; the program uses it no more.
    drop(unsafe { Box::from_raw(ah.cast::<AhObject>()) });
    0
}
