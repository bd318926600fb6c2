//! Queue pairs, and the requests that programs post to them.

use crate::abi::objects::*;
use crate::abi::queries::{IbvQpAttr, IbvQpInitAttr};
use crate::abi::requests::{IbvRecvWr, IbvSendWr};
use crate::convert::{self, SgeBuffer};
use crate::device::{Device, fail, status};
use crate::events::Object;
use crate::extended::{CriticalSection, post::Batch};
use crate::queues::{post_receives, wait_for};
use crate::regions::pd_of;
use isthmus_verbs::AttributeMask;
use rustix::io::Errno;
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn create_qp(pd: *mut IbvPd, attr: *mut IbvQpInitAttr) -> *mut IbvQp {
    // SAFETY: libibverbs passes a protection domain of this provider and attributes of the program.
    unsafe { create(pd, &mut *attr, |_| ()) }
}

/// Creates a queue pair. `prepare` sets what the extended interface has in addition.
///
/// # Safety
///
/// The protection domain is of this provider. The queues of the attributes are null or of this provider.
pub(crate) unsafe fn create(
    pd: *mut IbvPd,
    attr: &mut IbvQpInitAttr,
    prepare: impl FnOnce(&mut VerbsQp),
) -> *mut IbvQp {
    // SAFETY: by the caller's promise, here and below.
    let (context, pd_value) = unsafe { ((*pd).context, pd_of(pd)) };
    // SAFETY: as above.
    let init = match unsafe { convert::qp_init(attr, pd_value) } {
        Ok(init) => init,
        Err(errno) => return fail(errno),
    };
    // SAFETY: the context is open.
    let mut adapter = unsafe { Device::of(context) }.lock();
    match adapter.create_qp(&init) {
        Ok((number, init)) => {
            attr.cap = convert::qp_capacities(&init);
            // SAFETY: all zeroes are a valid object: null pointers, no functions, and unlocked mutexes.
            let mut verbs: VerbsQp = unsafe { std::mem::zeroed() };
            let qp = &mut verbs.qp_ex.qp;
            (qp.context, qp.qp_context, qp.pd) = (context, attr.qp_context, pd);
            (qp.send_cq, qp.recv_cq, qp.srq) = (attr.send_cq, attr.recv_cq, attr.srq);
            (qp.handle, qp.qp_num, qp.qp_type) = (number.0, number.0, attr.qp_type);
            prepare(&mut verbs);
            let (set, batch) = (Default::default(), CriticalSection::new(Batch::new(&init)));
            let object = QpObject { verbs: verbs.into(), qp: number, kind: init.kind, set, batch };
            let made = QpObject::embedded(Box::into_raw(Box::new(object)));
            adapter.events.name(Object::Qp(number.0), made as u64);
            made
        }
        Err(refused) => fail(convert::errno(refused)),
    }
}

pub(crate) unsafe extern "C" fn modify_qp(qp: *mut IbvQp, attr: *mut IbvQpAttr, mask: c_int) -> c_int {
    // SAFETY: libibverbs passes a queue pair of this provider with an open context, and attributes of the program.
    let (device, object, attr) = unsafe { (Device::of((*qp).context), &*qp.cast::<QpObject>(), &*attr) };
    let (values, mask) = match convert::attributes(attr, mask, &device.gids) {
        Ok(values) => values,
        Err(errno) => return errno.raw_os_error(),
    };
    let changed = device.lock().modify_qp(object.qp, &values, mask);
    if changed.is_ok() && mask.contains(AttributeMask::ADDRESS) {
        object.set.set(attr.ah_attr);
    }
    status(changed.map_err(convert::errno))
}

pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut IbvQp,
    attr: *mut IbvQpAttr,
    _mask: c_int,
    init_attr: *mut IbvQpInitAttr,
) -> c_int {
    // SAFETY: libibverbs passes a queue pair of this provider with an open context.
    let (device, object) = unsafe { (Device::of((*qp).context), &*qp.cast::<QpObject>()) };
    let found = device.lock().query_qp(object.qp);
    let Some((state, values, init)) = found else { return Errno::INVAL.raw_os_error() };
    let mut values = convert::qp_attributes(state, &values, &init, &device.gids);
    if object.set.get().port_num != 0 {
        values.ah_attr = object.set.get();
    }
    // SAFETY: as above.
    let ibv = unsafe { &*qp };
    let init = IbvQpInitAttr {
        qp_context: ibv.qp_context,
        send_cq: ibv.send_cq,
        recv_cq: ibv.recv_cq,
        srq: ibv.srq,
        cap: values.cap,
        qp_type: ibv.qp_type,
        sq_sig_all: c_int::from(init.signal_all),
    };
    // SAFETY: the program passes room for both.
    unsafe {
        attr.write(values);
        init_attr.write(init);
    }
    0
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut IbvQp) -> c_int {
    // SAFETY: libibverbs passes a queue pair of this provider that the program uses no more with an open context.
    let (device, number) = unsafe { (Device::of((*qp).context), (*qp.cast::<QpObject>()).qp) };
    let mut adapter = device.lock();
    let ended = adapter.destroy_qp(number);
    if ended.is_ok() {
        let read = adapter.events.forget(Object::Qp(number.0));
        drop(adapter);
        // SAFETY: the program has ended the queue pair, so only acknowledgements of events touch it.
        unsafe {
            wait_for(&raw mut (*qp).mutex, &raw mut (*qp).cond, || {
                (&raw const (*qp).events_completed).read_volatile() == read
            });
        }
        // SAFETY: from `create_qp`.
        drop(unsafe { Box::from_raw(qp.cast::<QpObject>()) });
    }
    status(ended.map_err(convert::errno))
}

pub(crate) unsafe extern "C" fn post_send(qp: *mut IbvQp, first: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: a program passes a queue pair of this provider with an open context.
    let (device, object) = unsafe { (Device::of((*qp).context), &*qp.cast::<QpObject>()) };
    let mut buffer = SgeBuffer::default();
    let mut adapter = device.lock();
    let (mut at, mut posted) = (first, Ok(()));
    while !at.is_null() {
        // SAFETY: the program passes a list of requests, with their ranges and addresses.
        let request = unsafe { convert::send_request(at, object.kind, &mut buffer) };
        posted = request.and_then(|request| adapter.post_send(object.qp, &request).map_err(convert::errno));
        if posted.is_err() {
            // SAFETY: the program passes a place for a refused request.
            unsafe { bad.write(at) };
            break;
        }
        // SAFETY: as above.
        at = unsafe { (*at).next };
    }
    adapter.flush_posts();
    device.end_call(&mut adapter);
    status(posted)
}

pub(crate) unsafe extern "C" fn post_recv(qp: *mut IbvQp, first: *mut IbvRecvWr, bad: *mut *mut IbvRecvWr) -> c_int {
    // SAFETY: a program passes a queue pair of this provider with an open context.
    let (device, number) = unsafe { (Device::of((*qp).context), (*qp.cast::<QpObject>()).qp) };
    let mut adapter = device.lock();
    // SAFETY: the program passes a list of requests, and a place for a refused one.
    let posted = unsafe { post_receives(first, bad, |request| adapter.post_receive(number, request)) };
    adapter.flush();
    posted
}
