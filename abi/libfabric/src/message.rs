//! The calls of tagged and plain messages.

use crate::abi::consts::{
    FI_ADDR_UNSPEC, FI_CLAIM, FI_COMPLETION, FI_DISCARD, FI_INJECT, FI_MULTI_RECV, FI_PEEK, FI_REMOTE_CQ_DATA,
};
use crate::abi::objects::FidEp;
use crate::abi::requests::{IoVec, Msg, MsgTagged};
use crate::abi::tables::{MsgOps, TaggedOps};
use crate::endpoint::EpObject;
use crate::engine::events::{Event, Side};
use crate::engine::pieces::Pieces;
use crate::engine::receive::{Filter, Lane, Receive};
use crate::engine::send::Letter;
use crate::errno::{Errno, number};
use crate::shared::Member;
use std::ffi::c_void;

pub(crate) static TAGGED_OPS: TaggedOps = TaggedOps {
    size: size_of::<TaggedOps>(),
    recv: trecv,
    recvv: trecvv,
    recvmsg: trecvmsg,
    send: tsend,
    sendv: tsendv,
    sendmsg: tsendmsg,
    inject: tinject,
    senddata: tsenddata,
    injectdata: tinjectdata,
};

pub(crate) static MSG_OPS: MsgOps =
    MsgOps { size: size_of::<MsgOps>(), recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata };

/// Which flags a send has: those of the call, or those that calls without have.
#[derive(Clone, Copy)]
enum Flags {
    Own(u64),
    /// And these.
    Default(u64),
}

/// # Safety
///
/// `ep` is an endpoint of ours; the program lends the pieces for reading until the send is over.
#[inline]
unsafe fn post_send(ep: *mut FidEp, to: u64, letter: Letter, flags: Flags, pieces: &Pieces) -> isize {
    number(|| {
        // SAFETY: as promised.
        let object = unsafe { EpObject::of(ep) };
        let mut state = object.shared.lock();
        let (member, address) = state.route(object.slot, to)?;
        let flags = match flags {
            Flags::Own(flags) => flags,
            Flags::Default(more) => member.tx_flags | more,
        };
        // SAFETY: as promised.
        unsafe { member.endpoint.send(address, &Letter { flags, ..letter }, pieces)? };
        Ok(0)
    })
}

#[inline]
fn letter(lane: Lane, tag: u64, data: Option<u64>, context: *mut c_void) -> Letter {
    Letter { lane, tag, data, context, flags: 0 }
}

/// CQ data, if the flags say that there is some.
fn data(flags: u64, data: u64) -> Option<u64> {
    (flags & FI_REMOTE_CQ_DATA != 0).then_some(data)
}

unsafe extern "C" fn tsend(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, letter(Lane::Tagged, tag, None, context), Flags::Default(0), &Pieces::one(buf, len)) }
}

unsafe extern "C" fn tsendv(
    ep: *mut FidEp,
    list: *const IoVec,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program keeps the rules of the call.
    match unsafe { Pieces::read(list, count) } {
        // SAFETY: as above.
        Ok(pieces) => unsafe {
            post_send(ep, to, letter(Lane::Tagged, tag, None, context), Flags::Default(0), &pieces)
        },
        Err(errno) => -(errno.0 as isize),
    }
}

unsafe extern "C" fn tsendmsg(ep: *mut FidEp, msg: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call: the message is described there.
    unsafe {
        let msg = &*msg;
        match Pieces::read(msg.iov, msg.iov_count) {
            Ok(pieces) => {
                let letter = letter(Lane::Tagged, msg.tag, data(flags, msg.data), msg.context);
                post_send(ep, msg.addr, letter, Flags::Own(flags), &pieces)
            }
            Err(errno) => -(errno.0 as isize),
        }
    }
}

unsafe extern "C" fn tinject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64, tag: u64) -> isize {
    let letter = letter(Lane::Tagged, tag, None, std::ptr::null_mut());
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, letter, Flags::Own(FI_INJECT), &Pieces::one(buf, len)) }
}

unsafe extern "C" fn tsenddata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let letter = letter(Lane::Tagged, tag, Some(data), context);
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, letter, Flags::Default(0), &Pieces::one(buf, len)) }
}

unsafe extern "C" fn tinjectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: u64,
    tag: u64,
) -> isize {
    let letter = letter(Lane::Tagged, tag, Some(data), std::ptr::null_mut());
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, letter, Flags::Own(FI_INJECT), &Pieces::one(buf, len)) }
}

unsafe extern "C" fn send(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, letter(Lane::Plain, 0, None, context), Flags::Default(0), &Pieces::one(buf, len)) }
}

unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    list: *const IoVec,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the program keeps the rules of the call.
    match unsafe { Pieces::read(list, count) } {
        // SAFETY: as above.
        Ok(pieces) => unsafe { post_send(ep, to, letter(Lane::Plain, 0, None, context), Flags::Default(0), &pieces) },
        Err(errno) => -(errno.0 as isize),
    }
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call: the message is described there.
    unsafe {
        let msg = &*msg;
        match Pieces::read(msg.iov, msg.iov_count) {
            Ok(pieces) => {
                let letter = letter(Lane::Plain, 0, data(flags, msg.data), msg.context);
                post_send(ep, msg.addr, letter, Flags::Own(flags), &pieces)
            }
            Err(errno) => -(errno.0 as isize),
        }
    }
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64) -> isize {
    let letter = letter(Lane::Plain, 0, None, std::ptr::null_mut());
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, letter, Flags::Own(FI_INJECT), &Pieces::one(buf, len)) }
}

unsafe extern "C" fn senddata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: u64,
    context: *mut c_void,
) -> isize {
    let letter = letter(Lane::Plain, 0, Some(data), context);
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, letter, Flags::Default(0), &Pieces::one(buf, len)) }
}

unsafe extern "C" fn injectdata(ep: *mut FidEp, buf: *const c_void, len: usize, data: u64, to: u64) -> isize {
    let letter = letter(Lane::Plain, 0, Some(data), std::ptr::null_mut());
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, letter, Flags::Own(FI_INJECT), &Pieces::one(buf, len)) }
}

/// What a program says of a receive.
struct Wanted {
    lane: Lane,
    filter: Filter,
    context: *mut c_void,
    /// None: those that calls without flags have.
    flags: Option<u64>,
    into: Pieces,
}

/// # Safety
///
/// `ep` is an endpoint of ours; the program lends the pieces for writing until the receive is over.
#[inline]
unsafe fn post_receive(ep: *mut FidEp, mut wanted: Wanted) -> isize {
    number(|| {
        // SAFETY: as promised.
        let object = unsafe { EpObject::of(ep) };
        let mut state = object.shared.lock();
        if wanted.filter.source != FI_ADDR_UNSPEC {
            wanted.filter.source = state.source(object.slot, wanted.filter.source)?;
        }
        let member = state.member(object.slot)?;
        let flags = wanted.flags.unwrap_or(member.rx_flags);
        let tell = member.endpoint.hub().events.wants(Side::Receive, flags & FI_COMPLETION != 0);
        let into = std::mem::replace(&mut wanted.into, Pieces::one(std::ptr::null(), 0));
        let receive = Receive { context: wanted.context, into, tell, multi: None };
        if flags & (FI_PEEK | FI_CLAIM) != 0 {
            return look(member, &wanted, flags, receive);
        }
        member.endpoint.receive(wanted.lane, wanted.filter, receive, flags & FI_MULTI_RECV != 0);
        // A message of this endpoint to itself may have been waited for.
        member.endpoint.answer_all();
        Ok(0)
    })
}

/// Peeks at a message, claims it, receives or discards one that was claimed.
fn look(member: &mut Member, wanted: &Wanted, flags: u64, receive: Receive) -> Result<isize, Errno> {
    let endpoint = &mut member.endpoint;
    let context = wanted.context;
    if flags & FI_PEEK == 0 {
        let held = endpoint.hub().holding.take_claimed(context as usize).ok_or(Errno::INVAL)?;
        if flags & FI_DISCARD != 0 {
            endpoint.discard(&held);
            endpoint.hub().events.tell(Side::Receive, Event { len: 0, ..held.meta.event(context) });
        } else {
            endpoint.give(held, receive);
        }
        return Ok(0);
    }
    if endpoint.hub().holding.find(wanted.lane, &wanted.filter).is_none() {
        endpoint.turn();
    }
    let hub = endpoint.hub();
    let event = match hub.holding.find(wanted.lane, &wanted.filter) {
        Some(held) => held.meta.event(context),
        None => {
            let event = Event::of(context, crate::abi::consts::FI_RECV | wanted.lane.flag());
            Event { error: Errno::NOMSG.0, tag: wanted.filter.tag, ..event }
        }
    };
    if event.error == 0 && flags & (FI_CLAIM | FI_DISCARD) != 0 {
        let held = hub.holding.take(wanted.lane, &wanted.filter).ok_or(Errno::NOMSG)?;
        if flags & FI_CLAIM != 0 {
            hub.holding.claim(context as usize, held);
        } else {
            endpoint.discard(&held);
        }
    }
    endpoint.hub().events.tell(Side::Receive, event);
    Ok(0)
}

unsafe extern "C" fn trecv(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    source: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let filter = Filter { source, tag, ignore };
    let wanted = Wanted { lane: Lane::Tagged, filter, context, flags: None, into: Pieces::one(buf, len) };
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_receive(ep, wanted) }
}

unsafe extern "C" fn trecvv(
    ep: *mut FidEp,
    list: *const IoVec,
    _desc: *mut *mut c_void,
    count: usize,
    source: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let filter = Filter { source, tag, ignore };
    // SAFETY: the program keeps the rules of the call.
    match unsafe { Pieces::read(list, count) } {
        // SAFETY: as above.
        Ok(into) => unsafe { post_receive(ep, Wanted { lane: Lane::Tagged, filter, context, flags: None, into }) },
        Err(errno) => -(errno.0 as isize),
    }
}

unsafe extern "C" fn trecvmsg(ep: *mut FidEp, msg: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call: the receive is described there.
    unsafe {
        let msg = &*msg;
        let filter = Filter { source: msg.addr, tag: msg.tag, ignore: msg.ignore };
        match Pieces::read(msg.iov, msg.iov_count) {
            Ok(into) => {
                let flags = Some(flags);
                post_receive(ep, Wanted { lane: Lane::Tagged, filter, context: msg.context, flags, into })
            }
            Err(errno) => -(errno.0 as isize),
        }
    }
}

/// What a receive of plain messages wants.
fn from(source: u64) -> Filter {
    Filter { source, tag: 0, ignore: u64::MAX }
}

unsafe extern "C" fn recv(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    source: u64,
    context: *mut c_void,
) -> isize {
    let into = Pieces::one(buf, len);
    let wanted = Wanted { lane: Lane::Plain, filter: from(source), context, flags: None, into };
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_receive(ep, wanted) }
}

unsafe extern "C" fn recvv(
    ep: *mut FidEp,
    list: *const IoVec,
    _desc: *mut *mut c_void,
    count: usize,
    source: u64,
    context: *mut c_void,
) -> isize {
    let filter = from(source);
    // SAFETY: the program keeps the rules of the call.
    match unsafe { Pieces::read(list, count) } {
        // SAFETY: as above.
        Ok(into) => unsafe { post_receive(ep, Wanted { lane: Lane::Plain, filter, context, flags: None, into }) },
        Err(errno) => -(errno.0 as isize),
    }
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call: the receive is described there.
    unsafe {
        let msg = &*msg;
        match Pieces::read(msg.iov, msg.iov_count) {
            Ok(into) => {
                let (filter, flags) = (from(msg.addr), Some(flags));
                post_receive(ep, Wanted { lane: Lane::Plain, filter, context: msg.context, flags, into })
            }
            Err(errno) => -(errno.0 as isize),
        }
    }
}
