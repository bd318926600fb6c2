//! The calls for tagged and untagged messages.

use crate::abi::consts::{
    FI_ADDR_UNSPEC, FI_CLAIM, FI_COMPLETION, FI_DISCARD, FI_INJECT, FI_MULTI_RECV, FI_PEEK, FI_RECV, FI_REMOTE_CQ_DATA,
    FI_SEND,
};
use crate::abi::objects::FidEp;
use crate::abi::requests::{IoVec, Msg, MsgTagged};
use crate::abi::tables::{MsgOps, TaggedOps};
use crate::endpoint::EpObject;
use crate::engine::events::{Event, Side};
use crate::engine::iovecs::IoVecs;
use crate::engine::receive::{Filter, MatchSpace, Receive};
use crate::engine::send::SendRequest;
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

/// The flags of a send.
#[derive(Clone, Copy)]
enum Flags {
    Own(u64),
    /// The call has no flags, so the endpoint's defaults apply, with these added.
    Default(u64),
}

/// # Safety
///
/// `ep` is an endpoint of ours; the program lends the buffers for reading until the send is over.
#[inline]
unsafe fn post_send(ep: *mut FidEp, to: u64, send_request: SendRequest, flags: Flags, iovecs: &IoVecs) -> isize {
    number(|| {
        // SAFETY: as promised.
        let object = unsafe { EpObject::of(ep) };
        let mut state = object.shared.lock();
        let (member, address) = state.route(object.slot, to)?;
        member.caps.check_tx(send_request.space.flag() | FI_SEND)?;
        let flags = match flags {
            Flags::Own(flags) => flags,
            Flags::Default(more) => member.tx_flags | more,
        };
        // SAFETY: as promised.
        unsafe { member.endpoint.send(address, &SendRequest { flags, ..send_request }, iovecs)? };
        Ok(0)
    })
}

#[inline]
fn make_send_request(space: MatchSpace, tag: u64, data: Option<u64>, context: *mut c_void) -> SendRequest {
    SendRequest { space, tag, data, context, flags: 0 }
}

/// Returns the CQ data, if the flags say that the call has any.
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
    unsafe {
        post_send(
            ep,
            to,
            make_send_request(MatchSpace::Tagged, tag, None, context),
            Flags::Default(0),
            &IoVecs::one(buf, len),
        )
    }
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
    match unsafe { IoVecs::read(list, count) } {
        // SAFETY: as above.
        Ok(iovecs) => unsafe {
            post_send(ep, to, make_send_request(MatchSpace::Tagged, tag, None, context), Flags::Default(0), &iovecs)
        },
        Err(errno) => -(errno.0 as isize),
    }
}

unsafe extern "C" fn tsendmsg(ep: *mut FidEp, msg: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call: the message is described there.
    unsafe {
        let msg = &*msg;
        match IoVecs::read(msg.iov, msg.iov_count) {
            Ok(iovecs) => {
                let send_request = make_send_request(MatchSpace::Tagged, msg.tag, data(flags, msg.data), msg.context);
                post_send(ep, msg.addr, send_request, Flags::Own(flags), &iovecs)
            }
            Err(errno) => -(errno.0 as isize),
        }
    }
}

unsafe extern "C" fn tinject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64, tag: u64) -> isize {
    let send_request = make_send_request(MatchSpace::Tagged, tag, None, std::ptr::null_mut());
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, send_request, Flags::Own(FI_INJECT), &IoVecs::one(buf, len)) }
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
    let send_request = make_send_request(MatchSpace::Tagged, tag, Some(data), context);
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, send_request, Flags::Default(0), &IoVecs::one(buf, len)) }
}

unsafe extern "C" fn tinjectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: u64,
    tag: u64,
) -> isize {
    let send_request = make_send_request(MatchSpace::Tagged, tag, Some(data), std::ptr::null_mut());
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, send_request, Flags::Own(FI_INJECT), &IoVecs::one(buf, len)) }
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
    unsafe {
        post_send(
            ep,
            to,
            make_send_request(MatchSpace::Untagged, 0, None, context),
            Flags::Default(0),
            &IoVecs::one(buf, len),
        )
    }
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
    match unsafe { IoVecs::read(list, count) } {
        // SAFETY: as above.
        Ok(iovecs) => unsafe {
            post_send(ep, to, make_send_request(MatchSpace::Untagged, 0, None, context), Flags::Default(0), &iovecs)
        },
        Err(errno) => -(errno.0 as isize),
    }
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call: the message is described there.
    unsafe {
        let msg = &*msg;
        match IoVecs::read(msg.iov, msg.iov_count) {
            Ok(iovecs) => {
                let send_request = make_send_request(MatchSpace::Untagged, 0, data(flags, msg.data), msg.context);
                post_send(ep, msg.addr, send_request, Flags::Own(flags), &iovecs)
            }
            Err(errno) => -(errno.0 as isize),
        }
    }
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64) -> isize {
    let send_request = make_send_request(MatchSpace::Untagged, 0, None, std::ptr::null_mut());
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, send_request, Flags::Own(FI_INJECT), &IoVecs::one(buf, len)) }
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
    let send_request = make_send_request(MatchSpace::Untagged, 0, Some(data), context);
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, send_request, Flags::Default(0), &IoVecs::one(buf, len)) }
}

unsafe extern "C" fn injectdata(ep: *mut FidEp, buf: *const c_void, len: usize, data: u64, to: u64) -> isize {
    let send_request = make_send_request(MatchSpace::Untagged, 0, Some(data), std::ptr::null_mut());
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_send(ep, to, send_request, Flags::Own(FI_INJECT), &IoVecs::one(buf, len)) }
}

/// The program's description of a receive.
struct ReceiveRequest {
    space: MatchSpace,
    filter: Filter,
    context: *mut c_void,
    /// The flags of the call. `None` if it has none, so the endpoint's defaults apply.
    flags: Option<u64>,
    into: IoVecs,
}

/// # Safety
///
/// `ep` is an endpoint of ours; the program lends the buffers for writing until the receive is over.
#[inline]
unsafe fn post_receive(ep: *mut FidEp, mut request: ReceiveRequest) -> isize {
    number(|| {
        // SAFETY: as promised.
        let object = unsafe { EpObject::of(ep) };
        let mut state = object.shared.lock();
        if request.filter.source != FI_ADDR_UNSPEC {
            request.filter.source = state.source(object.slot, request.filter.source)?;
        }
        let member = state.member(object.slot)?;
        member.caps.check_rx(request.space.flag() | FI_RECV)?;
        let flags = request.flags.unwrap_or(member.rx_flags);
        let wants_completion = member.endpoint.dispatcher().events.wants(Side::Receive, flags & FI_COMPLETION != 0);
        let into = std::mem::replace(&mut request.into, IoVecs::one(std::ptr::null(), 0));
        let receive = Receive { context: request.context, into, wants_completion, multi: None };
        if flags & (FI_PEEK | FI_CLAIM) != 0 {
            return peek_or_claim(member, &request, flags, receive);
        }
        member.endpoint.receive(request.space, request.filter, receive, flags & FI_MULTI_RECV != 0);
        // The receive may have been posted for a message of this endpoint to itself.
        member.endpoint.send_replies();
        Ok(0)
    })
}

/// Peeks at a message, claims it, or receives or discards a claimed message.
fn peek_or_claim(member: &mut Member, request: &ReceiveRequest, flags: u64, receive: Receive) -> Result<isize, Errno> {
    let endpoint = &mut member.endpoint;
    let context = request.context;
    if flags & FI_PEEK == 0 {
        let unexpected = endpoint.dispatcher().unexpected.take_claimed(context as usize).ok_or(Errno::INVAL)?;
        if flags & FI_DISCARD != 0 {
            endpoint.discard(&unexpected);
            endpoint.dispatcher().events.report(Side::Receive, Event { len: 0, ..unexpected.meta.event(context) });
        } else {
            endpoint.deliver_held(unexpected, receive);
        }
        return Ok(0);
    }
    if endpoint.dispatcher().unexpected.find(request.space, &request.filter).is_none() {
        endpoint.progress();
    }
    let dispatcher = endpoint.dispatcher();
    let event = match dispatcher.unexpected.find(request.space, &request.filter) {
        Some(unexpected) => unexpected.meta.event(context),
        None => {
            let event = Event::of(context, FI_RECV | request.space.flag());
            Event { error: Errno::NOMSG.0, tag: request.filter.tag, ..event }
        }
    };
    if event.error == 0 && flags & (FI_CLAIM | FI_DISCARD) != 0 {
        let unexpected = dispatcher.unexpected.take(request.space, &request.filter).ok_or(Errno::NOMSG)?;
        if flags & FI_CLAIM != 0 {
            dispatcher.unexpected.claim(context as usize, unexpected);
        } else {
            endpoint.discard(&unexpected);
        }
    }
    endpoint.dispatcher().events.report(Side::Receive, event);
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
    let request =
        ReceiveRequest { space: MatchSpace::Tagged, filter, context, flags: None, into: IoVecs::one(buf, len) };
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_receive(ep, request) }
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
    match unsafe { IoVecs::read(list, count) } {
        // SAFETY: as above.
        Ok(into) => unsafe {
            post_receive(ep, ReceiveRequest { space: MatchSpace::Tagged, filter, context, flags: None, into })
        },
        Err(errno) => -(errno.0 as isize),
    }
}

unsafe extern "C" fn trecvmsg(ep: *mut FidEp, msg: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call: the receive is described there.
    unsafe {
        let msg = &*msg;
        let filter = Filter { source: msg.addr, tag: msg.tag, ignore: msg.ignore };
        match IoVecs::read(msg.iov, msg.iov_count) {
            Ok(into) => {
                let flags = Some(flags);
                post_receive(
                    ep,
                    ReceiveRequest { space: MatchSpace::Tagged, filter, context: msg.context, flags, into },
                )
            }
            Err(errno) => -(errno.0 as isize),
        }
    }
}

/// Returns the filter of a receive of untagged messages.
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
    let into = IoVecs::one(buf, len);
    let request = ReceiveRequest { space: MatchSpace::Untagged, filter: from(source), context, flags: None, into };
    // SAFETY: the program keeps the rules of the call.
    unsafe { post_receive(ep, request) }
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
    match unsafe { IoVecs::read(list, count) } {
        // SAFETY: as above.
        Ok(into) => unsafe {
            post_receive(ep, ReceiveRequest { space: MatchSpace::Untagged, filter, context, flags: None, into })
        },
        Err(errno) => -(errno.0 as isize),
    }
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: the program keeps the rules of the call: the receive is described there.
    unsafe {
        let msg = &*msg;
        match IoVecs::read(msg.iov, msg.iov_count) {
            Ok(into) => {
                let (filter, flags) = (from(msg.addr), Some(flags));
                post_receive(
                    ep,
                    ReceiveRequest { space: MatchSpace::Untagged, filter, context: msg.context, flags, into },
                )
            }
            Err(errno) => -(errno.0 as isize),
        }
    }
}
