//! Completions that a program reads one value at a time.

use crate::abi::consts::*;
use crate::abi::context::IbvContext;
use crate::abi::objects::*;
use crate::abi::queries::IbvCqInitAttrEx;
use crate::abi::requests::IbvWc;
use crate::convert;
use crate::device::{Device, fail};
use crate::queues;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};

/// The values that a program may ask for.
const VALUES: u64 = WC_EX_WITH_BYTE_LEN
    | WC_EX_WITH_IMM
    | WC_EX_WITH_QP_NUM
    | WC_EX_WITH_SRC_QP
    | WC_EX_WITH_SLID
    | WC_EX_WITH_SL
    | WC_EX_WITH_DLID_PATH_BITS;

/// Refuses values and extensions that the adapter does not have, as time stamps. A queue for a single thread is one for many.
pub(super) fn check(attr: &IbvCqInitAttrEx) -> Result<(), Errno> {
    let flags = if attr.comp_mask & CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    let known = attr.wc_flags & !VALUES == 0
        && attr.comp_mask & !CQ_INIT_ATTR_MASK_FLAGS == 0
        && flags & !CREATE_CQ_ATTR_SINGLE_THREADED == 0;
    if known { Ok(()) } else { Err(Errno::OPNOTSUPP) }
}

pub(crate) unsafe extern "C" fn create_cq_ex(context: *mut IbvContext, attr: *mut IbvCqInitAttrEx) -> *mut IbvCqEx {
    // SAFETY: the program passes its attributes.
    let attr = unsafe { &*attr };
    if let Err(errno) = check(attr).and_then(|()| convert::completion_vector(attr.comp_vector)) {
        return fail(errno);
    }
    // SAFETY: libibverbs passes an open context, and the program its channel or null.
    unsafe { queues::create(context, attr.cqe, attr.channel, set_functions) }.cast()
}

fn set_functions(cq: &mut IbvCqEx) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
}

/// Takes the next completion. `ENOENT` if there is none, `EIO` if some were lost.
///
/// # Safety
///
/// The queue is from [`create_cq_ex`], and this thread is in its critical section.
unsafe fn take(cq: *mut IbvCqEx) -> c_int {
    // SAFETY: by the caller's promise; the context of the queue is open.
    let (device, object) = unsafe { (Device::of((*cq).cq.context), &*cq.cast::<CqObject>()) };
    let mut adapter = device.lock();
    let mut polled = None;
    adapter.poll(object.cq, 1, |_, completion| polled = Some(convert::completion(completion)));
    let overrun = polled.is_none() && adapter.engine().is_overrun(object.cq);
    if polled.is_some() {
        device.end_call(&mut adapter);
    }
    drop(adapter);
    let Some(wc) = polled else {
        return if overrun { Errno::IO } else { Errno::NOENT }.raw_os_error();
    };
    // SAFETY: this thread is in the critical section.
    unsafe {
        ((*cq).wr_id, (*cq).status) = (wc.wr_id, wc.status);
        *object.polled.value() = wc;
    }
    0
}

/// The program calls `ibv_end_poll()` only if this succeeds.
unsafe extern "C" fn start_poll(cq: *mut IbvCqEx, attr: *mut c_void) -> c_int {
    // SAFETY: the program passes attributes (`struct ibv_poll_cq_attr`), which are a mask.
    if unsafe { attr.cast::<u32>().as_ref() }.is_some_and(|mask| *mask != 0) {
        return Errno::INVAL.raw_os_error();
    }
    // SAFETY: the program passes a queue of this provider. The thread has not entered its critical section.
    let object = unsafe { &*cq.cast::<CqObject>() };
    // SAFETY: as above.
    unsafe { object.polled.enter() };
    // SAFETY: the thread has entered it now.
    let taken = unsafe { take(cq) };
    if taken != 0 {
        // SAFETY: as above.
        unsafe { object.polled.leave() };
    }
    taken
}

unsafe extern "C" fn next_poll(cq: *mut IbvCqEx) -> c_int {
    // SAFETY: the program passes a queue of this provider in its critical section.
    unsafe { take(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut IbvCqEx) {
    // SAFETY: the program passes a queue of this provider in its critical section.
    unsafe { (*cq.cast::<CqObject>()).polled.leave() };
}

/// The functions that read a value of the completion.
macro_rules! readers {
    ($($name:ident -> $kind:ty: $field:ident;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut IbvCqEx) -> $kind {
            // SAFETY: the program passes a queue of this provider in its critical section.
            let wc: &IbvWc = unsafe { (*cq.cast::<CqObject>()).polled.value() };
            wc.$field.into()
        }
    )*};
}

readers! {
    read_opcode -> u32: opcode;
    read_vendor_err -> u32: vendor_err;
    read_byte_len -> u32: byte_len;
    read_imm_data -> u32: imm_data;
    read_qp_num -> u32: qp_num;
    read_src_qp -> u32: src_qp;
    read_wc_flags -> u32: wc_flags;
    read_slid -> u32: slid;
    read_sl -> u8: sl;
    read_dlid_path_bits -> u8: dlid_path_bits;
}
