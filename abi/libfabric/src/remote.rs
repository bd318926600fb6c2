//! The calls for remote memory access: writes and reads.

use crate::abi::consts::{FI_INJECT, FI_READ, FI_REMOTE_CQ_DATA, FI_RMA, FI_WRITE};
use crate::abi::objects::FidEp;
use crate::abi::requests::{IoVec, MsgRma, RmaIov};
use crate::abi::tables::RmaOps;
use crate::endpoint::EpObject;
use crate::engine::iovecs::IoVecs;
use crate::engine::request::RmaRequest;
use crate::errno::{Errno, number};
use std::ffi::c_void;

pub(crate) static RMA_OPS: RmaOps =
    RmaOps { size: size_of::<RmaOps>(), read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata };

/// The remote side of a call: destination, offset and key.
#[derive(Clone, Copy)]
pub(crate) struct RemoteAddr {
    pub(crate) to: u64,
    pub(crate) offset: u64,
    pub(crate) key: u64,
}

/// The context, flags and data of a call. `flags` is None for calls without flags of their own, which use the defaults.
#[derive(Clone, Copy)]
pub(crate) struct OpFlags {
    pub(crate) context: *mut c_void,
    pub(crate) flags: Option<u64>,
    pub(crate) data: Option<u64>,
}

pub(crate) const fn default_flags(context: *mut c_void) -> OpFlags {
    OpFlags { context, flags: None, data: None }
}

pub(crate) const INJECTED: OpFlags = OpFlags { context: std::ptr::null_mut(), flags: Some(FI_INJECT), data: None };

#[derive(Clone, Copy, PartialEq, Eq)]
enum RmaOp {
    Write,
    Read,
}

/// # Safety
///
/// `ep` is an endpoint of ours; the program lends the buffers until the operation is over.
unsafe fn request(
    ep: *mut FidEp,
    rma_op: RmaOp,
    remote_addr: RemoteAddr,
    op_flags: OpFlags,
    iovecs: Result<IoVecs, Errno>,
) -> isize {
    number(|| {
        let iovecs = iovecs?;
        // SAFETY: as promised.
        let object = unsafe { EpObject::of(ep) };
        let mut state = object.shared.lock();
        let (member, to) = state.route(object.slot, remote_addr.to)?;
        member.caps.check_tx(FI_RMA | if rma_op == RmaOp::Write { FI_WRITE } else { FI_READ })?;
        let OpFlags { context, flags, data } = op_flags;
        let flags = flags.unwrap_or(member.tx_flags);
        let rma_request = RmaRequest { to, offset: remote_addr.offset, key: remote_addr.key, context, flags, data };
        match rma_op {
            // SAFETY: as promised.
            RmaOp::Write => unsafe { member.endpoint.write(&rma_request, &iovecs)? },
            // SAFETY: as promised.
            RmaOp::Read => unsafe { member.endpoint.read(&rma_request, iovecs)? },
        }
        Ok(0)
    })
}

unsafe extern "C" fn read(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    to: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let remote_addr = RemoteAddr { to, offset, key };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, RmaOp::Read, remote_addr, default_flags(context), Ok(IoVecs::one(buf, len))) }
}

unsafe extern "C" fn readv(
    ep: *mut FidEp,
    list: *const IoVec,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let remote_addr = RemoteAddr { to, offset, key };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, RmaOp::Read, remote_addr, default_flags(context), IoVecs::read(list, count)) }
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call.
    unsafe { request_msg(ep, RmaOp::Read, msg, flags) }
}

unsafe extern "C" fn write(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let remote_addr = RemoteAddr { to, offset, key };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, RmaOp::Write, remote_addr, default_flags(context), Ok(IoVecs::one(buf, len))) }
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    list: *const IoVec,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let remote_addr = RemoteAddr { to, offset, key };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, RmaOp::Write, remote_addr, default_flags(context), IoVecs::read(list, count)) }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call.
    unsafe { request_msg(ep, RmaOp::Write, msg, flags) }
}

/// # Safety
///
/// As for [`request`]; the operation is described at `msg`.
unsafe fn request_msg(ep: *mut FidEp, rma_op: RmaOp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: as promised.
    let msg = unsafe { &*msg };
    // SAFETY: as promised.
    let iovecs = unsafe { IoVecs::read(msg.iov, msg.iov_count) };
    if msg.rma_iov_count != 1 {
        return -(Errno::INVAL.0 as isize);
    }
    // SAFETY: one place is described there.
    let RmaIov { addr, len, key } = unsafe { *msg.rma_iov };
    let fits = |iovecs: IoVecs| if iovecs.len() == len { Ok(iovecs) } else { Err(Errno::INVAL) };
    let remote_addr = RemoteAddr { to: msg.addr, offset: addr, key };
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
    // SAFETY: as promised.
    unsafe {
        request(
            ep,
            rma_op,
            remote_addr,
            OpFlags { context: msg.context, flags: Some(flags), data },
            iovecs.and_then(fits),
        )
    }
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64, offset: u64, key: u64) -> isize {
    let remote_addr = RemoteAddr { to, offset, key };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, RmaOp::Write, remote_addr, INJECTED, Ok(IoVecs::one(buf, len))) }
}

unsafe extern "C" fn writedata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let remote_addr = RemoteAddr { to, offset, key };
    let op_flags = OpFlags { data: Some(data), ..default_flags(context) };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, RmaOp::Write, remote_addr, op_flags, Ok(IoVecs::one(buf, len))) }
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: u64,
    offset: u64,
    key: u64,
) -> isize {
    let remote_addr = RemoteAddr { to, offset, key };
    // SAFETY: the program keeps the rules of the call.
    unsafe {
        request(ep, RmaOp::Write, remote_addr, OpFlags { data: Some(data), ..INJECTED }, Ok(IoVecs::one(buf, len)))
    }
}
