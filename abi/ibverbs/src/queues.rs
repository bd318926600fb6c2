//! Completion queues and shared receive queues.

use crate::abi::consts::{SRQ_LIMIT, SRQ_MAX_WR};
use crate::abi::context::IbvContext;
use crate::abi::objects::*;
use crate::abi::queries::{IbvSrqAttr, IbvSrqInitAttr, IbvSrqInitAttrEx};
use crate::abi::requests::{IbvRecvWr, IbvWc};
use crate::channels;
use crate::convert::{self, SgeBuffer};
use crate::device::{Device, fail, status};
use crate::events::Object;
use crate::extended::CriticalSection;
use crate::regions::pd_of;
use rustix::io::Errno;
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn create_cq(
    context: *mut IbvContext,
    entries: c_int,
    channel: *mut IbvCompChannel,
    vector: c_int,
) -> *mut IbvCq {
    if let Err(errno) = convert::completion_vector(vector.cast_unsigned()) {
        return fail(errno);
    }
    // SAFETY: libibverbs passes an open context, and a channel of the program or null.
    unsafe { create(context, u32::try_from(entries).unwrap_or(0), channel, |_| ()) }
}

/// Creates a completion queue. `prepare` sets what the extended interface has in addition.
///
/// # Safety
///
/// The context is open. The channel is null or live.
pub(crate) unsafe fn create(
    context: *mut IbvContext,
    entries: u32,
    channel: *mut IbvCompChannel,
    prepare: impl FnOnce(&mut IbvCqEx),
) -> *mut IbvCq {
    // SAFETY: by the caller's promise.
    let mut adapter = unsafe { Device::of(context) }.lock();
    match adapter.engine().create_cq(entries) {
        Ok(cq) => {
            // SAFETY: all zeroes are a valid object: null pointers, no functions, and unlocked mutexes.
            let mut ibv: IbvCqEx = unsafe { std::mem::zeroed() };
            (ibv.cq.context, ibv.cq.handle, ibv.cq.cqe) = (context, cq.number(), entries as c_int);
            prepare(&mut ibv);
            let object = CqObject { ibv: ibv.into(), cq, polled: CriticalSection::new(IbvWc::default()) };
            let made = CqObject::embedded(Box::into_raw(Box::new(object)));
            adapter.events.name(Object::Cq(cq.number()), made as u64);
            // SAFETY: the program passes a channel that it has created, or null.
            if let Some(pipe) = unsafe { channels::pipe_of(channel) } {
                adapter.events.listen(cq, made as u64, pipe);
            }
            made
        }
        Err(refused) => fail(convert::errno(refused)),
    }
}

pub(crate) unsafe extern "C" fn resize_cq(cq: *mut IbvCq, entries: c_int) -> c_int {
    // SAFETY: libibverbs passes a queue of this provider.
    let object = unsafe { &*cq.cast::<CqObject>() };
    let entries = u32::try_from(entries).unwrap_or(0);
    // SAFETY: its context is open.
    let resized = unsafe { Device::of((*cq).context) }.lock().engine().resize_cq(object.cq, entries);
    if resized.is_ok() {
        // SAFETY: as above.
        unsafe { (*cq).cqe = entries as c_int };
    }
    status(resized.map_err(convert::errno))
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut IbvCq) -> c_int {
    // SAFETY: libibverbs passes a queue of this provider that the program uses no more.
    let object = unsafe { &*cq.cast::<CqObject>() };
    // SAFETY: its context is open.
    let mut adapter = unsafe { Device::of((*cq).context) }.lock();
    let ended = adapter.engine().destroy_cq(object.cq);
    if ended.is_ok() {
        let read = adapter.events.forget_cq(object.cq);
        let read_async = adapter.events.forget(Object::Cq(object.cq.number()));
        drop(adapter);
        // SAFETY: the program has ended the queue, so only acknowledgements of events touch it.
        unsafe {
            wait_for(&raw mut (*cq).mutex, &raw mut (*cq).cond, || {
                (&raw const (*cq).comp_events_completed).read_volatile() == read
                    && (&raw const (*cq).async_events_completed).read_volatile() == read_async
            });
        }
        // SAFETY: from `create_cq`.
        drop(unsafe { Box::from_raw(cq.cast::<CqObject>()) });
    }
    status(ended.map_err(convert::errno))
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut IbvCq, limit: c_int, completions: *mut IbvWc) -> c_int {
    // SAFETY: a program passes a queue of this provider with an open context.
    let (device, cq) = unsafe { (Device::of((*cq).context), (*cq.cast::<CqObject>()).cq) };
    let limit = usize::try_from(limit).unwrap_or(0);
    let mut adapter = device.lock();
    let taken = adapter.poll(cq, limit, |at, completion| {
        // SAFETY: the program passes room for `limit` completions, and `at` is below it.
        unsafe { completions.add(at).write(convert::completion(completion)) }
    });
    if taken > 0 {
        device.end_call(&mut adapter);
        return taken as c_int;
    }
    if adapter.engine().is_overrun(cq) { -Errno::IO.raw_os_error() } else { 0 }
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut IbvCq, solicited_only: c_int) -> c_int {
    // SAFETY: a program passes a queue of this provider with an open context.
    let (device, cq) = unsafe { (Device::of((*cq).context), (*cq.cast::<CqObject>()).cq) };
    let requested = device.lock().request_notification(cq, solicited_only != 0);
    status(requested.map_err(convert::errno))
}

pub(crate) unsafe extern "C" fn create_srq(pd: *mut IbvPd, attr: *mut IbvSrqInitAttr) -> *mut IbvSrq {
    // SAFETY: libibverbs passes a protection domain of this provider and attributes of the program.
    let (context, values, pd) = unsafe { ((*pd).context, (*attr).attr, pd_of(pd)) };
    // SAFETY: the context is open.
    let mut adapter = unsafe { Device::of(context) }.lock();
    match adapter.engine().create_srq(pd, values.max_wr, values.max_sge) {
        Ok(srq) => {
            // SAFETY: all zeroes are a valid object: null pointers and unlocked mutexes.
            let mut verbs: VerbsSrq = unsafe { std::mem::zeroed() };
            verbs.srq.handle = srq.number();
            let made = SrqObject::embedded(Box::into_raw(Box::new(SrqObject { verbs: verbs.into(), srq })));
            adapter.events.name(Object::Srq(srq.number()), made as u64);
            made
        }
        Err(refused) => fail(convert::errno(refused)),
    }
}

pub(crate) unsafe extern "C" fn create_srq_ex(_context: *mut IbvContext, attr: *mut IbvSrqInitAttrEx) -> *mut IbvSrq {
    // SAFETY: the program passes its attributes.
    let attr = unsafe { &*attr };
    let mut init = match convert::srq_init(attr) {
        Ok(init) => init,
        Err(errno) => return fail(errno),
    };
    // SAFETY: the program passes a protection domain of this provider.
    let made = unsafe { create_srq(attr.pd, &raw mut init) };
    // SAFETY: null, or a queue that only this thread knows.
    if let Some(srq) = unsafe { made.as_mut() } {
        // libibverbs does it for `ibv_create_srq()` only.
        // SAFETY: as above.
        (srq.context, srq.srq_context, srq.pd) = (unsafe { (*attr.pd).context }, init.srq_context, attr.pd);
    }
    made
}

pub(crate) unsafe extern "C" fn modify_srq(srq: *mut IbvSrq, attr: *mut IbvSrqAttr, mask: c_int) -> c_int {
    // SAFETY: libibverbs passes a queue of this provider with an open context, and attributes of the program.
    let (device, srq, attr) = unsafe { (Device::of((*srq).context), (*srq.cast::<SrqObject>()).srq, *attr) };
    if mask as u32 & SRQ_MAX_WR != 0 {
        return Errno::INVAL.raw_os_error(); // The adapter does not claim to resize shared receive queues.
    }
    if mask as u32 & SRQ_LIMIT == 0 {
        return 0;
    }
    let mut adapter = device.lock();
    let changed = adapter.engine().set_srq_limit(srq, attr.srq_limit);
    adapter.deliver_events();
    status(changed.map_err(convert::errno))
}

pub(crate) unsafe extern "C" fn query_srq(srq: *mut IbvSrq, attr: *mut IbvSrqAttr) -> c_int {
    // SAFETY: libibverbs passes a queue of this provider with an open context.
    let (device, srq) = unsafe { (Device::of((*srq).context), (*srq.cast::<SrqObject>()).srq) };
    let found = device.lock().engine().query_srq(srq);
    let Some((max_wr, max_sge, srq_limit)) = found else { return Errno::INVAL.raw_os_error() };
    // SAFETY: the program passes room for the attributes.
    unsafe { attr.write(IbvSrqAttr { max_wr, max_sge, srq_limit }) };
    0
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut IbvSrq) -> c_int {
    // SAFETY: libibverbs passes a queue of this provider that the program uses no more.
    let object = unsafe { &*srq.cast::<SrqObject>() };
    // SAFETY: its context is open.
    let mut adapter = unsafe { Device::of((*srq).context) }.lock();
    let ended = adapter.engine().destroy_srq(object.srq);
    if ended.is_ok() {
        let read = adapter.events.forget(Object::Srq(object.srq.number()));
        drop(adapter);
        // SAFETY: the program has ended the queue, so only acknowledgements of events touch it.
        unsafe {
            wait_for(&raw mut (*srq).mutex, &raw mut (*srq).cond, || {
                (&raw const (*srq).events_completed).read_volatile() == read
            });
        }
        // SAFETY: from `create_srq`.
        drop(unsafe { Box::from_raw(srq.cast::<SrqObject>()) });
    }
    status(ended.map_err(convert::errno))
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut IbvSrq,
    first: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: a program passes a queue of this provider with an open context.
    let (device, srq) = unsafe { (Device::of((*srq).context), (*srq.cast::<SrqObject>()).srq) };
    let mut adapter = device.lock();
    // SAFETY: the program passes a list of requests, and a place for a refused one.
    let posted = unsafe { post_receives(first, bad, |request| adapter.post_srq_receive(srq, request)) };
    adapter.flush();
    posted
}

/// Waits until the program has acknowledged all events that it has read of an object. libibverbs counts acknowledgements under the
/// mutex, and signals the condition.
///
/// # Safety
///
/// The mutex and the condition are those of a live object. `acknowledged` reads its counters.
pub(crate) unsafe fn wait_for(
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    acknowledged: impl Fn() -> bool,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        while !acknowledged() {
            libc::pthread_cond_wait(cond, mutex);
        }
        libc::pthread_mutex_unlock(mutex);
    }
}

/// Posts each request of a list. Returns an error number, and the request in `bad`, for the first one that is refused.
///
/// # Safety
///
/// The requests of the list may be read, with their ranges, and `bad` may be written.
pub(crate) unsafe fn post_receives(
    first: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
    mut post: impl FnMut(&isthmus_verbs::ReceiveRequest<'_>) -> Result<(), isthmus_verbs::Refused>,
) -> c_int {
    let mut buffer = SgeBuffer::default();
    let mut at = first;
    while !at.is_null() {
        // SAFETY: by the caller's promise.
        let request = unsafe { convert::receive_request(at, &mut buffer) };
        if let Err(errno) = request.and_then(|request| post(&request).map_err(convert::errno)) {
            // SAFETY: by the caller's promise.
            unsafe { bad.write(at) };
            return errno.raw_os_error();
        }
        // SAFETY: by the caller's promise.
        at = unsafe { (*at).next };
    }
    0
}
