//! Completion counters.

use crate::abi::consts::{FI_CLASS_CNTR, FI_GETWAIT, FI_WAIT_FD};
use crate::abi::objects::{Fid, FidCntr, FidDomain};
use crate::abi::requests::CntrAttr;
use crate::abi::tables::{CntrOps, Ops};
use crate::cq::copy_fd;
use crate::domain::DomainObject;
use crate::engine::events::Counter;
use crate::errno::{Errno, call};
use crate::shared::Shared;
use crate::stubs;
use crate::wait_object;
use isthmus_client::PollBackoff;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

#[repr(C)]
struct CntrObject {
    raw: FidCntr,
    shared: Arc<Shared>,
    counter: Arc<Counter>,
}

static OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close,
    bind: stubs::bind,
    control,
    ops_open: stubs::ops_open,
    tostr: stubs::tostr,
    ops_set: stubs::ops_set,
};

static CNTR_OPS: CntrOps = CntrOps { size: size_of::<CntrOps>(), read, readerr, add, set, wait, adderr, seterr };

/// # Safety
///
/// `cntr` was made in `open` and is not closed.
unsafe fn object<'a>(cntr: *mut FidCntr) -> &'a CntrObject {
    // SAFETY: an object begins with what the caller sees of it.
    unsafe { &*cntr.cast::<CntrObject>() }
}

/// Returns the counter behind `cntr`.
///
/// # Safety
///
/// `cntr` is a counter of ours.
pub(crate) unsafe fn counter(cntr: *mut FidCntr) -> Arc<Counter> {
    // SAFETY: as promised.
    Arc::clone(&unsafe { object(cntr) }.counter)
}

/// Opens a counter.
pub(crate) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    _attr: *mut CntrAttr,
    cntr: *mut *mut FidCntr,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: a domain of ours.
        let shared = unsafe { DomainObject::shared(domain) };
        let raw = FidCntr { fid: Fid { class: FI_CLASS_CNTR, context, ops: &OPS }, ops: &CNTR_OPS };
        let object = Box::new(CntrObject { raw, shared, counter: Arc::default() });
        // SAFETY: writable.
        unsafe { cntr.write(Box::into_raw(object).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: `fid` is the first field of an object made in `open`, which its owner gives back.
        drop(unsafe { Box::from_raw(fid.cast::<CntrObject>()) });
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    call(|| match command {
        // SAFETY: a counter of ours; the argument is room for a descriptor.
        FI_GETWAIT => unsafe { copy_fd(&object(fid.cast()).shared, FI_WAIT_FD, arg) },
        _ => Err(Errno::NOSYS),
    })
}

impl CntrObject {
    fn value(&self) -> u64 {
        self.counter.value.load(Ordering::Relaxed)
    }

    fn errors(&self) -> u64 {
        self.counter.errors.load(Ordering::Relaxed)
    }
}

unsafe extern "C" fn read(cntr: *mut FidCntr) -> u64 {
    // SAFETY: a counter of ours.
    let object = unsafe { object(cntr) };
    // The value is returned even if progress failed.
    let _ = call(|| {
        object.shared.lock().progress_all();
        Ok(())
    });
    object.value()
}

unsafe extern "C" fn readerr(cntr: *mut FidCntr) -> u64 {
    // SAFETY: a counter of ours.
    unsafe { object(cntr) }.errors()
}

unsafe extern "C" fn add(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: a counter of ours.
    let object = unsafe { object(cntr) };
    object.counter.value.fetch_add(value, Ordering::Relaxed);
    drop(object.shared.lock()); // Threads that wait for the counter check it again.
    0
}

unsafe extern "C" fn set(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: a counter of ours.
    let object = unsafe { object(cntr) };
    object.counter.value.store(value, Ordering::Relaxed);
    drop(object.shared.lock());
    0
}

unsafe extern "C" fn adderr(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: a counter of ours.
    let object = unsafe { object(cntr) };
    object.counter.errors.fetch_add(value, Ordering::Relaxed);
    drop(object.shared.lock());
    0
}

unsafe extern "C" fn seterr(cntr: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: a counter of ours.
    let object = unsafe { object(cntr) };
    object.counter.errors.store(value, Ordering::Relaxed);
    drop(object.shared.lock());
    0
}

/// Waits until the counter reaches the threshold. Returns an error if the error counter increases meanwhile.
unsafe extern "C" fn wait(cntr: *mut FidCntr, threshold: u64, timeout: c_int) -> c_int {
    call(|| {
        // SAFETY: a counter of ours.
        let object = unsafe { object(cntr) };
        let (deadline, errors) = (wait_object::deadline(timeout), object.errors());
        let mut idle = PollBackoff::default();
        let mut state = object.shared.lock();
        loop {
            state.progress_all();
            if object.value() >= threshold {
                return Ok(());
            }
            if object.errors() != errors {
                return Err(Errno::AVAIL);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Errno(110)); // FI_ETIMEDOUT
            }
            if let Some(limit) = idle.on_empty_poll() {
                if state.arm_all() && object.value() < threshold {
                    state = state.sleep(limit.min(wait_object::time_left(deadline)));
                }
            } else {
                // Releases the lock, so that other threads make progress.
                drop(state);
                state = object.shared.lock();
            }
        }
    })
}
