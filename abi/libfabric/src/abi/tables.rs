//! The function tables of objects. The order of the fields is part of the interface: programs call through these
//! tables.

use super::info::{Info, RxAttr, TxAttr};
use super::objects::{Fid, FidAv, FidCntr, FidCq, FidDomain, FidEp, FidEq, FidFabric, FidMr};
use super::requests::{
    AtomicAttr, AvAttr, CntrAttr, CqAttr, CqErrEntry, EqErrEntry, IoVec, Ioc, MrAttr, Msg, MsgAtomic, MsgRma, MsgTagged,
};
use std::ffi::{c_char, c_int, c_void};

/// Declares function tables, each with the size that libfabric expects in front.
macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: fn($($argument:ty),*) -> $answer:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub(crate) struct $name {
                pub(crate) size: usize,
                $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $answer,)*
            }
        )*
    };
}

tables! {
    /// `struct fi_ops`, the operations of every object.
    Ops {
        close: fn(*mut Fid) -> c_int,
        bind: fn(*mut Fid, *mut Fid, u64) -> c_int,
        control: fn(*mut Fid, c_int, *mut c_void) -> c_int,
        ops_open: fn(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int,
        tostr: fn(*const Fid, *mut c_char, usize) -> c_int,
        ops_set: fn(*mut Fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int,
    }

    /// `struct fi_ops_fabric`.
    FabricOps {
        domain: fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, *mut c_void) -> c_int,
        passive_ep: fn(*mut FidFabric, *mut Info, *mut *mut c_void, *mut c_void) -> c_int,
        eq_open: fn(*mut FidFabric, *mut c_void, *mut *mut FidEq, *mut c_void) -> c_int,
        wait_open: fn(*mut FidFabric, *mut c_void, *mut *mut c_void) -> c_int,
        trywait: fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
        domain2: fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, u64, *mut c_void) -> c_int,
    }

    /// `struct fi_ops_domain`.
    DomainOps {
        av_open: fn(*mut FidDomain, *mut AvAttr, *mut *mut FidAv, *mut c_void) -> c_int,
        cq_open: fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, *mut c_void) -> c_int,
        endpoint: fn(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> c_int,
        scalable_ep: fn(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> c_int,
        cntr_open: fn(*mut FidDomain, *mut CntrAttr, *mut *mut FidCntr, *mut c_void) -> c_int,
        poll_open: fn(*mut FidDomain, *mut c_void, *mut *mut c_void) -> c_int,
        stx_ctx: fn(*mut FidDomain, *mut TxAttr, *mut *mut c_void, *mut c_void) -> c_int,
        srx_ctx: fn(*mut FidDomain, *mut RxAttr, *mut *mut FidEp, *mut c_void) -> c_int,
        query_atomic: fn(*mut FidDomain, c_int, c_int, *mut AtomicAttr, u64) -> c_int,
        query_collective: fn(*mut FidDomain, c_int, *mut c_void, u64) -> c_int,
        endpoint2: fn(*mut FidDomain, *mut Info, *mut *mut FidEp, u64, *mut c_void) -> c_int,
    }

    /// `struct fi_ops_mr`.
    MrOps {
        reg: fn(*mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut FidMr, *mut c_void) -> c_int,
        regv: fn(*mut Fid, *const IoVec, usize, u64, u64, u64, u64, *mut *mut FidMr, *mut c_void) -> c_int,
        regattr: fn(*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> c_int,
    }

    /// `struct fi_ops_av`, as 1.17 has it.
    AvOps {
        insert: fn(*mut FidAv, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
        insertsvc: fn(*mut FidAv, *const c_char, *const c_char, *mut u64, u64, *mut c_void) -> c_int,
        insertsym: fn(*mut FidAv, *const c_char, usize, *const c_char, usize, *mut u64, u64, *mut c_void) -> c_int,
        remove: fn(*mut FidAv, *mut u64, usize, u64) -> c_int,
        lookup: fn(*mut FidAv, u64, *mut c_void, *mut usize) -> c_int,
        straddr: fn(*mut FidAv, *const c_void, *mut c_char, *mut usize) -> *const c_char,
        av_set: fn(*mut FidAv, *mut c_void, *mut *mut c_void, *mut c_void) -> c_int,
    }

    /// `struct fi_ops_ep`.
    EpOps {
        cancel: fn(*mut Fid, *mut c_void) -> isize,
        getopt: fn(*mut Fid, c_int, c_int, *mut c_void, *mut usize) -> c_int,
        setopt: fn(*mut Fid, c_int, c_int, *const c_void, usize) -> c_int,
        tx_ctx: fn(*mut FidEp, c_int, *mut TxAttr, *mut *mut FidEp, *mut c_void) -> c_int,
        rx_ctx: fn(*mut FidEp, c_int, *mut RxAttr, *mut *mut FidEp, *mut c_void) -> c_int,
        rx_size_left: fn(*mut FidEp) -> isize,
        tx_size_left: fn(*mut FidEp) -> isize,
    }

    /// `struct fi_ops_cm`.
    CmOps {
        setname: fn(*mut Fid, *mut c_void, usize) -> c_int,
        getname: fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
        getpeer: fn(*mut FidEp, *mut c_void, *mut usize) -> c_int,
        connect: fn(*mut FidEp, *const c_void, *const c_void, usize) -> c_int,
        listen: fn(*mut c_void) -> c_int,
        accept: fn(*mut FidEp, *const c_void, usize) -> c_int,
        reject: fn(*mut c_void, *mut Fid, *const c_void, usize) -> c_int,
        shutdown: fn(*mut FidEp, u64) -> c_int,
        join: fn(*mut FidEp, *const c_void, u64, *mut *mut c_void, *mut c_void) -> c_int,
    }

    /// `struct fi_ops_msg`.
    MsgOps {
        recv: fn(*mut FidEp, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
        recvv: fn(*mut FidEp, *const IoVec, *mut *mut c_void, usize, u64, *mut c_void) -> isize,
        recvmsg: fn(*mut FidEp, *const Msg, u64) -> isize,
        send: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
        sendv: fn(*mut FidEp, *const IoVec, *mut *mut c_void, usize, u64, *mut c_void) -> isize,
        sendmsg: fn(*mut FidEp, *const Msg, u64) -> isize,
        inject: fn(*mut FidEp, *const c_void, usize, u64) -> isize,
        senddata: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> isize,
        injectdata: fn(*mut FidEp, *const c_void, usize, u64, u64) -> isize,
    }

    /// `struct fi_ops_tagged`.
    TaggedOps {
        recv: fn(*mut FidEp, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
        recvv: fn(*mut FidEp, *const IoVec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void) -> isize,
        recvmsg: fn(*mut FidEp, *const MsgTagged, u64) -> isize,
        send: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> isize,
        sendv: fn(*mut FidEp, *const IoVec, *mut *mut c_void, usize, u64, u64, *mut c_void) -> isize,
        sendmsg: fn(*mut FidEp, *const MsgTagged, u64) -> isize,
        inject: fn(*mut FidEp, *const c_void, usize, u64, u64) -> isize,
        senddata: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
        injectdata: fn(*mut FidEp, *const c_void, usize, u64, u64, u64) -> isize,
    }

    /// `struct fi_ops_rma`.
    RmaOps {
        read: fn(*mut FidEp, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
        readv: fn(*mut FidEp, *const IoVec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void) -> isize,
        readmsg: fn(*mut FidEp, *const MsgRma, u64) -> isize,
        write: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
        writev: fn(*mut FidEp, *const IoVec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void) -> isize,
        writemsg: fn(*mut FidEp, *const MsgRma, u64) -> isize,
        inject: fn(*mut FidEp, *const c_void, usize, u64, u64, u64) -> isize,
        writedata: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, u64, *mut c_void) -> isize,
        injectdata: fn(*mut FidEp, *const c_void, usize, u64, u64, u64, u64) -> isize,
    }

    /// `struct fi_ops_atomic`.
    AtomicOps {
        write: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, c_int, c_int, *mut c_void) -> isize,
        writev: fn(*mut FidEp, *const Ioc, *mut *mut c_void, usize, u64, u64, u64, c_int, c_int, *mut c_void) -> isize,
        writemsg: fn(*mut FidEp, *const MsgAtomic, u64) -> isize,
        inject: fn(*mut FidEp, *const c_void, usize, u64, u64, u64, c_int, c_int) -> isize,
        readwrite: fn(*mut FidEp, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, u64, u64, c_int,
            c_int, *mut c_void) -> isize,
        readwritev: fn(*mut FidEp, *const Ioc, *mut *mut c_void, usize, *mut Ioc, *mut *mut c_void, usize, u64, u64,
            u64, c_int, c_int, *mut c_void) -> isize,
        readwritemsg: fn(*mut FidEp, *const MsgAtomic, *mut Ioc, *mut *mut c_void, usize, u64) -> isize,
        compwrite: fn(*mut FidEp, *const c_void, usize, *mut c_void, *const c_void, *mut c_void, *mut c_void,
            *mut c_void, u64, u64, u64, c_int, c_int, *mut c_void) -> isize,
        compwritev: fn(*mut FidEp, *const Ioc, *mut *mut c_void, usize, *const Ioc, *mut *mut c_void, usize, *mut Ioc,
            *mut *mut c_void, usize, u64, u64, u64, c_int, c_int, *mut c_void) -> isize,
        compwritemsg: fn(*mut FidEp, *const MsgAtomic, *const Ioc, *mut *mut c_void, usize, *mut Ioc,
            *mut *mut c_void, usize, u64) -> isize,
        writevalid: fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int,
        readwritevalid: fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int,
        compwritevalid: fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int,
    }

    /// `struct fi_ops_eq`.
    EqOps {
        read: fn(*mut FidEq, *mut u32, *mut c_void, usize, u64) -> isize,
        readerr: fn(*mut FidEq, *mut EqErrEntry, u64) -> isize,
        write: fn(*mut FidEq, u32, *const c_void, usize, u64) -> isize,
        sread: fn(*mut FidEq, *mut u32, *mut c_void, usize, c_int, u64) -> isize,
        strerror: fn(*mut FidEq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
    }

    /// `struct fi_ops_cq`.
    CqOps {
        read: fn(*mut FidCq, *mut c_void, usize) -> isize,
        readfrom: fn(*mut FidCq, *mut c_void, usize, *mut u64) -> isize,
        readerr: fn(*mut FidCq, *mut CqErrEntry, u64) -> isize,
        sread: fn(*mut FidCq, *mut c_void, usize, *const c_void, c_int) -> isize,
        sreadfrom: fn(*mut FidCq, *mut c_void, usize, *mut u64, *const c_void, c_int) -> isize,
        signal: fn(*mut FidCq) -> c_int,
        strerror: fn(*mut FidCq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
    }

    /// `struct fi_ops_cntr`.
    CntrOps {
        read: fn(*mut FidCntr) -> u64,
        readerr: fn(*mut FidCntr) -> u64,
        add: fn(*mut FidCntr, u64) -> c_int,
        set: fn(*mut FidCntr, u64) -> c_int,
        wait: fn(*mut FidCntr, u64, c_int) -> c_int,
        adderr: fn(*mut FidCntr, u64) -> c_int,
        seterr: fn(*mut FidCntr, u64) -> c_int,
    }
}
