//! The calls of remote memory: writes and reads.

use crate::abi::consts::{FI_INJECT, FI_REMOTE_CQ_DATA};
use crate::abi::objects::FidEp;
use crate::abi::requests::{IoVec, MsgRma, RmaIov};
use crate::abi::tables::RmaOps;
use crate::endpoint::EpObject;
use crate::engine::pieces::Pieces;
use crate::engine::request::Demand;
use crate::errno::{Errno, number};
use std::ffi::c_void;

pub(crate) static RMA_OPS: RmaOps =
    RmaOps { size: size_of::<RmaOps>(), read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata };

/// What a call says of the far side.
#[derive(Clone, Copy)]
pub(crate) struct Far {
    pub(crate) to: u64,
    pub(crate) offset: u64,
    pub(crate) key: u64,
}

/// What a call says of itself. Flags are the call's own, or None for those that calls without have.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) context: *mut c_void,
    pub(crate) flags: Option<u64>,
    pub(crate) data: Option<u64>,
}

pub(crate) const fn plain(context: *mut c_void) -> Terms {
    Terms { context, flags: None, data: None }
}

pub(crate) const INJECTED: Terms = Terms { context: std::ptr::null_mut(), flags: Some(FI_INJECT), data: None };

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Write,
    Read,
}

/// # Safety
///
/// `ep` is an endpoint of ours; the program lends the pieces until the operation is over.
unsafe fn request(ep: *mut FidEp, way: Way, far: Far, terms: Terms, pieces: Result<Pieces, Errno>) -> isize {
    number(|| {
        let pieces = pieces?;
        // SAFETY: as promised.
        let object = unsafe { EpObject::of(ep) };
        let mut state = object.shared.lock();
        let (member, to) = state.route(object.slot, far.to)?;
        let Terms { context, flags, data } = terms;
        let flags = flags.unwrap_or(member.tx_flags);
        let demand = Demand { to, offset: far.offset, key: far.key, context, flags, data };
        match way {
            // SAFETY: as promised.
            Way::Write => unsafe { member.endpoint.write(&demand, &pieces)? },
            // SAFETY: as promised.
            Way::Read => unsafe { member.endpoint.read(&demand, pieces)? },
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
    let far = Far { to, offset, key };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, Way::Read, far, plain(context), Ok(Pieces::one(buf, len))) }
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
    let far = Far { to, offset, key };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, Way::Read, far, plain(context), Pieces::read(list, count)) }
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call.
    unsafe { request_msg(ep, Way::Read, msg, flags) }
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
    let far = Far { to, offset, key };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, Way::Write, far, plain(context), Ok(Pieces::one(buf, len))) }
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
    let far = Far { to, offset, key };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, Way::Write, far, plain(context), Pieces::read(list, count)) }
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call.
    unsafe { request_msg(ep, Way::Write, msg, flags) }
}

/// # Safety
///
/// As for [`request`]; the operation is described at `msg`.
unsafe fn request_msg(ep: *mut FidEp, way: Way, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: as promised.
    let msg = unsafe { &*msg };
    // SAFETY: as promised.
    let pieces = unsafe { Pieces::read(msg.iov, msg.iov_count) };
    if msg.rma_iov_count != 1 {
        return -(Errno::INVAL.0 as isize);
    }
    // SAFETY: one place is described there.
    let RmaIov { addr, len, key } = unsafe { *msg.rma_iov };
    let fits = |pieces: Pieces| if pieces.len() == len { Ok(pieces) } else { Err(Errno::INVAL) };
    let far = Far { to: msg.addr, offset: addr, key };
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
    // SAFETY: as promised.
    unsafe { request(ep, way, far, Terms { context: msg.context, flags: Some(flags), data }, pieces.and_then(fits)) }
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64, offset: u64, key: u64) -> isize {
    let far = Far { to, offset, key };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, Way::Write, far, INJECTED, Ok(Pieces::one(buf, len))) }
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
    let far = Far { to, offset, key };
    let terms = Terms { data: Some(data), ..plain(context) };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, Way::Write, far, terms, Ok(Pieces::one(buf, len))) }
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
    let far = Far { to, offset, key };
    // SAFETY: the program keeps the rules of the call.
    unsafe { request(ep, Way::Write, far, Terms { data: Some(data), ..INJECTED }, Ok(Pieces::one(buf, len))) }
}
