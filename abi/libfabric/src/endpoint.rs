//! The endpoint objects of libfabric: open, bind, enable, address.

use crate::abi::consts::{
    FI_CLASS_AV, FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EP, FI_CLASS_EQ, FI_ENABLE, FI_GETOPSFLAG, FI_OPT_CM_DATA_SIZE,
    FI_OPT_MIN_MULTI_RECV, FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SELECTIVE_COMPLETION, FI_SEND,
    FI_SETOPSFLAG, FI_WRITE,
};
use crate::abi::info::Info;
use crate::abi::objects::{Fid, FidDomain, FidEp};
use crate::abi::tables::{CmOps, EpOps, Ops};
use crate::address::{AvObject, put};
use crate::caps::Caps;
use crate::cq::CqObject;
use crate::domain::DomainObject;
use crate::engine::endpoint::Endpoint;
use crate::engine::events::{CounterKind, Side};
use crate::errno::{Errno, call, number};
use crate::shared::{Member, Shared};
use crate::{atomic, cntr, message, remote, stubs};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The minimum number of operations that an endpoint promises to take, reported to programs that ask.
const SIZE_LEFT: isize = 1024;

/// An endpoint.
#[repr(C)]
pub(crate) struct EpObject {
    raw: FidEp,
    pub(crate) shared: Arc<Shared>,
    pub(crate) slot: u32,
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

static EP_OPS: EpOps = EpOps {
    size: size_of::<EpOps>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: stubs::tx_ctx,
    rx_ctx: stubs::rx_ctx,
    rx_size_left: size_left,
    tx_size_left: size_left,
};

static CM_OPS: CmOps = CmOps {
    size: size_of::<CmOps>(),
    setname: stubs::setname,
    getname,
    getpeer: stubs::getpeer,
    connect: stubs::connect,
    listen: stubs::listen,
    accept: stubs::accept,
    reject: stubs::reject,
    shutdown: stubs::shutdown,
    join: stubs::join,
};

impl EpObject {
    /// # Safety
    ///
    /// `ep` was made in [`open`] and is not closed.
    #[inline]
    pub(crate) unsafe fn of<'a>(ep: *mut FidEp) -> &'a Self {
        // SAFETY: an object begins with what the caller sees of it.
        unsafe { &*ep.cast::<Self>() }
    }
}

/// Opens an endpoint. Attaches to the daemon, and starts a daemon if none runs.
pub(crate) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    info: *mut Info,
    ep: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: a domain of ours.
        let shared = unsafe { DomainObject::shared(domain) };
        // SAFETY: an info as we answered it, or a copy of it, perhaps without attributes.
        let (caps, tx_flags, rx_flags) = unsafe {
            let info = info.as_ref().ok_or(Errno::INVAL)?;
            let (tx, rx) = (info.tx_attr.as_ref(), info.rx_attr.as_ref());
            let caps = Caps::granted(info.caps, tx.map_or(0, |tx| tx.caps), rx.map_or(0, |rx| rx.caps));
            (caps, tx.map_or(0, |tx| tx.op_flags), rx.map_or(0, |rx| rx.op_flags))
        };
        let endpoint = Endpoint::open(&shared.options, Arc::clone(&shared.regions))?;
        shared.wait_object.watch(endpoint.fd())?;
        let member = Member { endpoint, av: None, caps, tx_flags, rx_flags, enabled: false };
        let slot = shared.lock().members.insert(member);
        let raw = FidEp {
            fid: Fid { class: FI_CLASS_EP, context, ops: &OPS },
            ops: &EP_OPS,
            cm: &CM_OPS,
            msg: &message::MSG_OPS,
            rma: &remote::RMA_OPS,
            tagged: &message::TAGGED_OPS,
            atomic: &atomic::ATOMIC_OPS,
            collective: std::ptr::null(),
        };
        // SAFETY: writable.
        unsafe { ep.write(Box::into_raw(Box::new(EpObject { raw, shared, slot })).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    call(|| {
        // SAFETY: `fid` is the first field of an object made in `open`, which its owner gives back.
        let object = unsafe { Box::from_raw(fid.cast::<EpObject>()) };
        let mut state = object.shared.lock();
        state.queues.values_mut().for_each(|queue| queue.forget(object.slot));
        let member = state.members.remove(object.slot);
        drop(state);
        if let Some(mut member) = member {
            // The lock is released between steps, and the other endpoints of the domain make progress, because a
            // receiver may be one of them.
            let linger = object.shared.options.linger();
            member.endpoint.deliver_injected(linger, || object.shared.lock().progress_all());
            member.endpoint.close();
        }
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    call(|| {
        // SAFETY: both are objects of ours.
        let (object, class) = unsafe { (EpObject::of(fid.cast()), (*other).class) };
        let mut state = object.shared.lock();
        match class {
            FI_CLASS_AV => {
                // SAFETY: its class says that it is an address vector.
                let av = unsafe { (*other.cast::<AvObject>()).slot };
                let vector = state.avs.get(av).ok_or(Errno::INVAL)?;
                let names = vector.names().iter().enumerate().map(|(at, name)| (at, *name, vector.first(at)));
                let names: Vec<_> = names.collect();
                let member = state.member(object.slot)?;
                member.av = Some(av);
                names.into_iter().for_each(|(at, name, first)| member.endpoint.insert(at, name, first));
            }
            FI_CLASS_CQ => {
                // SAFETY: its class says that it is a completion queue.
                let queue = unsafe { (*other.cast::<CqObject>()).slot };
                for (side, flag) in [(Side::Transmit, FI_SEND), (Side::Receive, FI_RECV)] {
                    if flags & flag != 0 {
                        let selective = flags & FI_SELECTIVE_COMPLETION != 0;
                        state.member(object.slot)?.endpoint.dispatcher().events.bind(side, selective);
                        let queue = state.queues.get_mut(queue).ok_or(Errno::INVAL)?;
                        queue.bind(object.slot, side);
                    }
                }
            }
            FI_CLASS_CNTR => {
                // SAFETY: its class says that it is a counter.
                let counter = unsafe { cntr::counter(other.cast()) };
                let all = [
                    (FI_SEND, CounterKind::Send),
                    (FI_RECV, CounterKind::Recv),
                    (FI_READ, CounterKind::Read),
                    (FI_WRITE, CounterKind::Write),
                    (FI_REMOTE_READ, CounterKind::RemoteRead),
                    (FI_REMOTE_WRITE, CounterKind::RemoteWrite),
                ];
                if flags & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 {
                    object.shared.regions.disable_direct();
                }
                let events = &mut state.member(object.slot)?.endpoint.dispatcher().events;
                for (_, counted) in all.into_iter().filter(|(flag, _)| flags & flag != 0) {
                    events.bind_counter(counted, Arc::clone(&counter));
                }
            }
            FI_CLASS_EQ => {}
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    call(|| {
        // SAFETY: an endpoint of ours.
        let object = unsafe { EpObject::of(fid.cast()) };
        let mut state = object.shared.lock();
        let member = state.member(object.slot)?;
        match command {
            FI_ENABLE => {
                if member.av.is_none() {
                    return Err(Errno::NOAV);
                }
                let events = &member.endpoint.dispatcher().events;
                if !events.is_bound(Side::Transmit) && !events.is_bound(Side::Receive) && !events.has_counters() {
                    return Err(Errno::NOCQ);
                }
                member.enabled = true;
                Ok(())
            }
            FI_GETOPSFLAG => {
                // SAFETY: the argument is a number that says which side, and becomes that side's flags.
                let flags = unsafe { &mut *arg.cast::<u64>() };
                *flags = if *flags & FI_RECV != 0 { member.rx_flags } else { member.tx_flags };
                Ok(())
            }
            FI_SETOPSFLAG => {
                // SAFETY: the argument is a number.
                let flags = unsafe { *arg.cast::<u64>() };
                let of = if flags & FI_RECV != 0 { &mut member.rx_flags } else { &mut member.tx_flags };
                *of = flags & !(FI_SEND | FI_RECV);
                Ok(())
            }
            _ => Err(Errno::NOSYS),
        }
    })
}

unsafe extern "C" fn getname(fid: *mut Fid, name: *mut c_void, len: *mut usize) -> c_int {
    call(|| {
        // SAFETY: an endpoint of ours.
        let object = unsafe { EpObject::of(fid.cast()) };
        let bytes = object.shared.lock().member(object.slot)?.endpoint.name.emit();
        // SAFETY: `len` says how much room there is, and may be written.
        let room = unsafe { *len };
        // SAFETY: as above.
        unsafe { put(&bytes, name, len) };
        if room < bytes.len() { Err(Errno::TOOSMALL) } else { Ok(()) }
    })
}

unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    number(|| {
        // SAFETY: an endpoint of ours.
        let object = unsafe { EpObject::of(fid.cast()) };
        let mut state = object.shared.lock();
        let dispatcher = state.member(object.slot)?.endpoint.dispatcher();
        let cancelled = dispatcher.receives.cancel(context, &mut dispatcher.events);
        if cancelled { Ok(0) } else { Err(Errno(2)) } // FI_ENOENT
    })
}

unsafe extern "C" fn getopt(fid: *mut Fid, _level: c_int, option: c_int, value: *mut c_void, len: *mut usize) -> c_int {
    call(|| {
        // SAFETY: an endpoint of ours.
        let object = unsafe { EpObject::of(fid.cast()) };
        let answer = match option {
            FI_OPT_MIN_MULTI_RECV => object.shared.lock().member(object.slot)?.endpoint.dispatcher().receives.multi_min,
            FI_OPT_CM_DATA_SIZE => 0,
            _ => return Err(Errno::NOPROTOOPT),
        };
        // SAFETY: `len` says how much room there is, and may be written.
        unsafe { put(&answer.to_ne_bytes(), value, len) };
        Ok(())
    })
}

unsafe extern "C" fn setopt(fid: *mut Fid, _level: c_int, option: c_int, value: *const c_void, len: usize) -> c_int {
    call(|| {
        if option != FI_OPT_MIN_MULTI_RECV {
            return Err(Errno::NOPROTOOPT);
        }
        if len != size_of::<usize>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: an endpoint of ours; the value is a number, as its length says.
        let (object, min) = unsafe { (EpObject::of(fid.cast()), value.cast::<usize>().read_unaligned()) };
        object.shared.lock().member(object.slot)?.endpoint.dispatcher().receives.multi_min = min;
        Ok(())
    })
}

unsafe extern "C" fn size_left(_ep: *mut FidEp) -> isize {
    SIZE_LEFT
}
