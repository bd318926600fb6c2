//! The public heads of objects, as the headers declare them.

use super::tables::{
    AtomicOps, AvOps, CmOps, CntrOps, CqOps, DomainOps, EpOps, EqOps, FabricOps, MrOps, MsgOps, Ops, RmaOps, TaggedOps,
};
use std::ffi::c_void;

/// `struct fid`, the first field of every object.
#[repr(C)]
pub(crate) struct Fid {
    pub(crate) class: usize,
    pub(crate) context: *mut c_void,
    pub(crate) ops: *const Ops,
}

/// `struct fid_fabric`.
#[repr(C)]
pub(crate) struct FidFabric {
    pub(crate) fid: Fid,
    pub(crate) ops: *const FabricOps,
    pub(crate) api_version: u32,
}

/// `struct fid_domain`.
#[repr(C)]
pub(crate) struct FidDomain {
    pub(crate) fid: Fid,
    pub(crate) ops: *const DomainOps,
    pub(crate) mr: *const MrOps,
}

/// `struct fid_ep`.
#[repr(C)]
pub(crate) struct FidEp {
    pub(crate) fid: Fid,
    pub(crate) ops: *const EpOps,
    pub(crate) cm: *const CmOps,
    pub(crate) msg: *const MsgOps,
    pub(crate) rma: *const RmaOps,
    pub(crate) tagged: *const TaggedOps,
    pub(crate) atomic: *const AtomicOps,
    pub(crate) collective: *const c_void,
}

/// `struct fid_av`.
#[repr(C)]
pub(crate) struct FidAv {
    pub(crate) fid: Fid,
    pub(crate) ops: *const AvOps,
}

/// `struct fid_mr`.
#[repr(C)]
pub(crate) struct FidMr {
    pub(crate) fid: Fid,
    pub(crate) mem_desc: *mut c_void,
    pub(crate) key: u64,
}

/// `struct fid_eq`.
#[repr(C)]
pub(crate) struct FidEq {
    pub(crate) fid: Fid,
    pub(crate) ops: *const EqOps,
}

/// `struct fid_cq`.
#[repr(C)]
pub(crate) struct FidCq {
    pub(crate) fid: Fid,
    pub(crate) ops: *const CqOps,
}

/// `struct fid_cntr`.
#[repr(C)]
pub(crate) struct FidCntr {
    pub(crate) fid: Fid,
    pub(crate) ops: *const CntrOps,
}
