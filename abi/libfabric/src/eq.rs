//! Event queues. The provider reports no events there. Programs can read back the events that they write.

use crate::abi::consts::FI_CLASS_EQ;
use crate::abi::objects::{Fid, FidEq, FidFabric};
use crate::abi::requests::EqErrEntry;
use crate::abi::tables::{EqOps, Ops};
use crate::errno::{Errno, call, number};
use crate::{cq, stubs};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Flag of a read: the event stays in the queue.
const FI_PEEK: u64 = crate::abi::consts::FI_PEEK;

static OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close,
    bind: stubs::bind,
    control: stubs::control,
    ops_open: stubs::ops_open,
    tostr: stubs::tostr,
    ops_set: stubs::ops_set,
};

static EQ_OPS: EqOps = EqOps { size: size_of::<EqOps>(), read, readerr, write, sread, strerror: cq_strerror };

#[repr(C)]
struct EqObject {
    raw: FidEq,
    events: Mutex<VecDeque<(u32, Vec<u8>)>>,
    written: Condvar,
}

/// Opens an event queue.
///
/// # Safety
///
/// `eq` is writable.
pub(crate) unsafe extern "C" fn open(
    _fabric: *mut FidFabric,
    _attr: *mut c_void,
    eq: *mut *mut FidEq,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let fid = Fid { class: FI_CLASS_EQ, context, ops: &OPS };
        let raw = FidEq { fid, ops: &EQ_OPS };
        let object = Box::new(EqObject { raw, events: Mutex::default(), written: Condvar::new() });
        // SAFETY: writable, as promised; the object begins with what the caller sees of it.
        unsafe { eq.write(Box::into_raw(object).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: `fid` is the first field of an object made in `open`, which its owner gives back.
        drop(unsafe { Box::from_raw(fid.cast::<EqObject>()) });
        Ok(())
    })
}

unsafe extern "C" fn read(eq: *mut FidEq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
    // SAFETY: passed on.
    unsafe { sread(eq, event, buf, len, 0, flags) }
}

unsafe extern "C" fn sread(
    eq: *mut FidEq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    number(|| {
        // SAFETY: made in `open` and not closed.
        let eq = unsafe { &*eq.cast::<EqObject>() };
        let deadline = crate::wait_object::deadline(timeout);
        let mut events = eq.events.lock().unwrap_or_else(PoisonError::into_inner);
        while events.is_empty() {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Errno::AGAIN);
            }
            let left = crate::wait_object::time_left(deadline);
            events = eq.written.wait_timeout(events, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let (kind, bytes) = events.front().ok_or(Errno::AGAIN)?;
        if bytes.len() > len {
            return Err(Errno::TOOSMALL);
        }
        // SAFETY: the caller has room for one number and for `len` bytes, which is not less than there are.
        unsafe {
            event.write(*kind);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), bytes.len());
        }
        let read = bytes.len() as isize;
        if flags & FI_PEEK == 0 {
            events.pop_front();
        }
        Ok(read)
    })
}

unsafe extern "C" fn readerr(_eq: *mut FidEq, _entry: *mut EqErrEntry, _flags: u64) -> isize {
    -(Errno::AGAIN.0 as isize)
}

unsafe extern "C" fn write(eq: *mut FidEq, event: u32, buf: *const c_void, len: usize, _flags: u64) -> isize {
    number(|| {
        // SAFETY: made in `open` and not closed.
        let eq = unsafe { &*eq.cast::<EqObject>() };
        let mut bytes = vec![0_u8; len];
        // SAFETY: the caller has `len` bytes there.
        unsafe { std::ptr::copy_nonoverlapping(buf.cast(), bytes.as_mut_ptr(), len) };
        eq.events.lock().unwrap_or_else(PoisonError::into_inner).push_back((event, bytes));
        eq.written.notify_all();
        Ok(len as isize)
    })
}

unsafe extern "C" fn cq_strerror(
    _eq: *mut FidEq,
    errno: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: passed on.
    unsafe { cq::text(errno, buf, len) }
}
