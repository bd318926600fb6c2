//! The calls of atomic operations on remote memory.

use crate::abi::consts::{FI_ATOMIC, FI_READ, FI_REMOTE_CQ_DATA, FI_WRITE};
use crate::abi::objects::FidEp;
use crate::abi::requests::{IoVec, Ioc, MsgAtomic};
use crate::abi::tables::AtomicOps;
use crate::endpoint::EpObject;
use crate::engine::arithmetic::{AtomicForm, AtomicOp};
use crate::engine::iovecs::{IOV_LIMIT, IoVecs};
use crate::engine::request::RmaRequest;
use crate::errno::{Errno, call, number};
use crate::remote::{INJECTED, OpFlags, RemoteAddr, default_flags};
use std::ffi::{c_int, c_void};

pub(crate) static ATOMIC_OPS: AtomicOps = AtomicOps {
    size: size_of::<AtomicOps>(),
    write: atomic,
    writev: atomicv,
    writemsg: atomicmsg,
    inject: inject_atomic,
    readwrite: fetch,
    readwritev: fetchv,
    readwritemsg: fetchmsg,
    compwrite: compare,
    compwritev: comparev,
    compwritemsg: comparemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

/// An atomic operation in libfabric's numbering.
#[derive(Clone, Copy)]
struct RawAtomicOp {
    datatype: c_int,
    op: c_int,
    form: AtomicForm,
}

/// Returns the iovecs of a list of elements, with lengths in bytes.
///
/// # Safety
///
/// `list` has `count` descriptions.
unsafe fn elements(list: *const Ioc, count: usize, bytes: usize) -> Result<IoVecs, Errno> {
    if count > IOV_LIMIT {
        return Err(Errno::INVAL);
    }
    if count == 0 || list.is_null() {
        return Ok(IoVecs::one(std::ptr::null(), 0));
    }
    // SAFETY: not null, so readable as promised.
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    match list {
        [one] => Ok(IoVecs::one(one.addr, one.count.checked_mul(bytes).ok_or(Errno::INVAL)?)),
        list => {
            let iovec = |ioc: &Ioc| Some(IoVec { base: ioc.addr, len: ioc.count.checked_mul(bytes)? });
            let iovecs: Option<Vec<IoVec>> = list.iter().map(iovec).collect();
            Ok(IoVecs::Many(iovecs.ok_or(Errno::INVAL)?.into()))
        }
    }
}

/// The memory of an operation's elements.
struct Elements {
    operands: (*const Ioc, usize),
    compared: (*const Ioc, usize),
    results: (*const Ioc, usize),
}

const NONE: (*const Ioc, usize) = (std::ptr::null(), 0);

/// # Safety
///
/// `ep` is an endpoint of ours; the lists have as many descriptions as they say; the program lends operands for reading while we
/// are here, and the results for writing until the operation is over.
unsafe fn operate(
    ep: *mut FidEp,
    remote_addr: RemoteAddr,
    op_flags: OpFlags,
    raw_op: RawAtomicOp,
    elements_of: &Elements,
) -> isize {
    number(|| {
        let RawAtomicOp { datatype, op, form } = raw_op;
        let (_, bytes) = AtomicOp::limits(op, datatype, form)?;
        let Elements { operands, compared, results } = elements_of;
        // SAFETY: as promised.
        let (operands, compared, results) = unsafe {
            (
                elements(operands.0, operands.1, bytes)?,
                elements(compared.0, compared.1, bytes)?,
                elements(results.0, results.1, bytes)?,
            )
        };
        let count = if form == AtomicForm::Write { operands.len() } else { results.len() } / bytes;
        let what = AtomicOp::new(op, datatype, form, count)?;
        let mut sent = Vec::with_capacity(what.operand_bytes());
        if what.operand_bytes() > 0 {
            // SAFETY: as promised.
            unsafe {
                sent.extend(operands.gather());
                sent.extend(compared.gather());
            }
        }
        if sent.len() != what.operand_bytes() {
            return Err(Errno::INVAL);
        }
        // SAFETY: as promised.
        let object = unsafe { EpObject::of(ep) };
        let mut state = object.shared.lock();
        let (member, to) = state.route(object.slot, remote_addr.to)?;
        member.caps.check_tx(FI_ATOMIC | if form == AtomicForm::Write { FI_WRITE } else { FI_READ })?;
        let OpFlags { context, flags, data } = op_flags;
        let flags = flags.unwrap_or(member.tx_flags);
        let rma_request = RmaRequest { to, offset: remote_addr.offset, key: remote_addr.key, context, flags, data };
        // SAFETY: as promised.
        unsafe {
            member.endpoint.operate(&rma_request, AtomicOp::emit(op, datatype, form, count), form, sent, results)?
        };
        Ok(0)
    })
}

fn ioc(addr: *const c_void, count: usize) -> Ioc {
    Ioc { addr: addr.cast_mut(), count }
}

unsafe extern "C" fn atomic(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    to: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let operands = ioc(buf, count);
    // SAFETY: the program keeps the rules of the call.
    unsafe { atomicv(ep, &raw const operands, std::ptr::null_mut(), 1, to, offset, key, datatype, op, context) }
}

unsafe extern "C" fn atomicv(
    ep: *mut FidEp,
    list: *const Ioc,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let elements = Elements { operands: (list, count), compared: NONE, results: NONE };
    let raw_op = RawAtomicOp { datatype, op, form: AtomicForm::Write };
    // SAFETY: the program keeps the rules of the call.
    unsafe { operate(ep, RemoteAddr { to, offset, key }, default_flags(context), raw_op, &elements) }
}

/// Returns the remote address, flags and operation of a request that one structure describes.
///
/// # Safety
///
/// The operation is described at `msg`.
unsafe fn described(
    msg: *const MsgAtomic,
    flags: u64,
    form: AtomicForm,
) -> Result<(RemoteAddr, OpFlags, RawAtomicOp), Errno> {
    // SAFETY: as promised.
    let msg = unsafe { &*msg };
    if msg.rma_iov_count != 1 {
        return Err(Errno::INVAL);
    }
    // SAFETY: one place is described there.
    let place = unsafe { *msg.rma_iov };
    let remote_addr = RemoteAddr { to: msg.addr, offset: place.addr, key: place.key };
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
    let raw_op = RawAtomicOp { datatype: msg.datatype, op: msg.op, form };
    Ok((remote_addr, OpFlags { context: msg.context, flags: Some(flags), data }, raw_op))
}

unsafe extern "C" fn atomicmsg(ep: *mut FidEp, msg: *const MsgAtomic, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call.
    unsafe {
        let elements = Elements { operands: ((*msg).iov, (*msg).iov_count), compared: NONE, results: NONE };
        match described(msg, flags, AtomicForm::Write) {
            Ok((remote_addr, op_flags, raw_op)) => operate(ep, remote_addr, op_flags, raw_op, &elements),
            Err(errno) => -(errno.0 as isize),
        }
    }
}

unsafe extern "C" fn inject_atomic(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    to: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
) -> isize {
    let operands = ioc(buf, count);
    let elements = Elements { operands: (&raw const operands, 1), compared: NONE, results: NONE };
    let raw_op = RawAtomicOp { datatype, op, form: AtomicForm::Write };
    // SAFETY: the program keeps the rules of the call.
    unsafe { operate(ep, RemoteAddr { to, offset, key }, INJECTED, raw_op, &elements) }
}

unsafe extern "C" fn fetch(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    to: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (operands, results) = (ioc(buf, count), ioc(result, count));
    let elements = Elements { operands: (&raw const operands, 1), compared: NONE, results: (&raw const results, 1) };
    let raw_op = RawAtomicOp { datatype, op, form: AtomicForm::Fetch };
    // SAFETY: the program keeps the rules of the call.
    unsafe { operate(ep, RemoteAddr { to, offset, key }, default_flags(context), raw_op, &elements) }
}

unsafe extern "C" fn fetchv(
    ep: *mut FidEp,
    list: *const Ioc,
    _desc: *mut *mut c_void,
    count: usize,
    results: *mut Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    to: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let elements = Elements { operands: (list, count), compared: NONE, results: (results, result_count) };
    let raw_op = RawAtomicOp { datatype, op, form: AtomicForm::Fetch };
    // SAFETY: the program keeps the rules of the call.
    unsafe { operate(ep, RemoteAddr { to, offset, key }, default_flags(context), raw_op, &elements) }
}

unsafe extern "C" fn fetchmsg(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    results: *mut Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: the program keeps the rules of the call.
    unsafe {
        let operands = ((*msg).iov, (*msg).iov_count);
        let elements = Elements { operands, compared: NONE, results: (results, result_count) };
        match described(msg, flags, AtomicForm::Fetch) {
            Ok((remote_addr, op_flags, raw_op)) => operate(ep, remote_addr, op_flags, raw_op, &elements),
            Err(errno) => -(errno.0 as isize),
        }
    }
}

unsafe extern "C" fn compare(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compared: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    to: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (operands, compared, results) = (ioc(buf, count), ioc(compared, count), ioc(result, count));
    let elements = Elements {
        operands: (&raw const operands, 1),
        compared: (&raw const compared, 1),
        results: (&raw const results, 1),
    };
    let raw_op = RawAtomicOp { datatype, op, form: AtomicForm::Compare };
    // SAFETY: the program keeps the rules of the call.
    unsafe { operate(ep, RemoteAddr { to, offset, key }, default_flags(context), raw_op, &elements) }
}

unsafe extern "C" fn comparev(
    ep: *mut FidEp,
    list: *const Ioc,
    _desc: *mut *mut c_void,
    count: usize,
    compared: *const Ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    results: *mut Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    to: u64,
    offset: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let elements =
        Elements { operands: (list, count), compared: (compared, compare_count), results: (results, result_count) };
    let raw_op = RawAtomicOp { datatype, op, form: AtomicForm::Compare };
    // SAFETY: the program keeps the rules of the call.
    unsafe { operate(ep, RemoteAddr { to, offset, key }, default_flags(context), raw_op, &elements) }
}

unsafe extern "C" fn comparemsg(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    compared: *const Ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    results: *mut Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: the program keeps the rules of the call.
    unsafe {
        let operands = ((*msg).iov, (*msg).iov_count);
        let (compared, results) = ((compared, compare_count), (results.cast_const(), result_count));
        match described(msg, flags, AtomicForm::Compare) {
            Ok((remote_addr, op_flags, raw_op)) => {
                operate(ep, remote_addr, op_flags, raw_op, &Elements { operands, compared, results })
            }
            Err(errno) => -(errno.0 as isize),
        }
    }
}

/// Writes the maximum number of elements to `count`.
unsafe fn valid(datatype: c_int, op: c_int, form: AtomicForm, count: *mut usize) -> c_int {
    call(|| {
        let (max, _) = AtomicOp::limits(op, datatype, form)?;
        // SAFETY: null, or writable.
        if let Some(count) = unsafe { count.as_mut() } {
            *count = max;
        }
        Ok(())
    })
}

unsafe extern "C" fn writevalid(_ep: *mut FidEp, datatype: c_int, op: c_int, count: *mut usize) -> c_int {
    // SAFETY: passed on.
    unsafe { valid(datatype, op, AtomicForm::Write, count) }
}

unsafe extern "C" fn readwritevalid(_ep: *mut FidEp, datatype: c_int, op: c_int, count: *mut usize) -> c_int {
    // SAFETY: passed on.
    unsafe { valid(datatype, op, AtomicForm::Fetch, count) }
}

unsafe extern "C" fn compwritevalid(_ep: *mut FidEp, datatype: c_int, op: c_int, count: *mut usize) -> c_int {
    // SAFETY: passed on.
    unsafe { valid(datatype, op, AtomicForm::Compare, count) }
}
