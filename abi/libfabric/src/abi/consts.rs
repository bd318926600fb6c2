//! Constants of the headers: capabilities, flags, modes, orders, classes and commands.

use std::ffi::c_int;

/// Returns a version number in libfabric's encoding.
pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

pub(crate) const FI_MSG: u64 = 1 << 1;
pub(crate) const FI_RMA: u64 = 1 << 2;
pub(crate) const FI_TAGGED: u64 = 1 << 3;
pub(crate) const FI_ATOMIC: u64 = 1 << 4;
pub(crate) const FI_READ: u64 = 1 << 8;
pub(crate) const FI_WRITE: u64 = 1 << 9;
pub(crate) const FI_RECV: u64 = 1 << 10;
pub(crate) const FI_SEND: u64 = 1 << 11;
pub(crate) const FI_REMOTE_READ: u64 = 1 << 12;
pub(crate) const FI_REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const FI_MULTI_RECV: u64 = 1 << 16;
pub(crate) const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub(crate) const FI_MORE: u64 = 1 << 18;
pub(crate) const FI_PEEK: u64 = 1 << 19;
pub(crate) const FI_COMPLETION: u64 = 1 << 24;
pub(crate) const FI_INJECT: u64 = 1 << 25;
pub(crate) const FI_INJECT_COMPLETE: u64 = 1 << 26;
pub(crate) const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
pub(crate) const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub(crate) const FI_COMMIT_COMPLETE: u64 = 1 << 30;
pub(crate) const FI_MATCH_COMPLETE: u64 = 1 << 31;
pub(crate) const FI_LOCAL_COMM: u64 = 1 << 51;
pub(crate) const FI_REMOTE_COMM: u64 = 1 << 52;
pub(crate) const FI_RMA_EVENT: u64 = 1 << 56;
pub(crate) const FI_SOURCE: u64 = 1 << 57;
pub(crate) const FI_DIRECTED_RECV: u64 = 1 << 59;
/// Flag of a receive that peeks.
pub(crate) const FI_CLAIM: u64 = 1 << 59;
/// Flag of a receive that peeks.
pub(crate) const FI_DISCARD: u64 = 1 << 58;
/// Flag of an endpoint's binding to a completion queue.
pub(crate) const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
/// Flag of `fi_getinfo()`: the service and node are those of the caller.
pub(crate) const FI_SOURCE_GIVEN: u64 = 1 << 57;
/// Flag of `fi_query_atomic()`.
pub(crate) const FI_FETCH_ATOMIC: u64 = 1 << 58;
/// Flag of `fi_query_atomic()`.
pub(crate) const FI_COMPARE_ATOMIC: u64 = 1 << 59;

pub(crate) const FI_ADDR_UNSPEC: u64 = u64::MAX;
pub(crate) const FI_ADDR_NOTAVAIL: u64 = u64::MAX;
pub(crate) const FI_PROV_SPECIFIC: u32 = 1 << 31;
pub(crate) const FI_FORMAT_UNSPEC: u32 = 0;

pub(crate) const FI_MR_BASIC: c_int = 1;
pub(crate) const FI_MR_SCALABLE: c_int = 2;

pub(crate) const FI_PROGRESS_UNSPEC: c_int = 0;
pub(crate) const FI_PROGRESS_AUTO: c_int = 1;
pub(crate) const FI_PROGRESS_MANUAL: c_int = 2;

pub(crate) const FI_THREAD_UNSPEC: c_int = 0;
pub(crate) const FI_THREAD_DOMAIN: c_int = 3;

pub(crate) const FI_RM_ENABLED: c_int = 2;

pub(crate) const FI_EP_UNSPEC: c_int = 0;
pub(crate) const FI_EP_RDM: c_int = 3;

/// Every order of the nine between reads, writes and sends.
pub(crate) const FI_ORDER_STRICT: u64 = 0x1ff;
/// Every order between RMA operations, and between atomic ones.
pub(crate) const FI_ORDER_RMA_AND_ATOMIC: u64 = 0xff << 32;

pub(crate) const FI_TC_UNSPEC: u32 = 0;

pub(crate) const FI_CLASS_FABRIC: usize = 1;
pub(crate) const FI_CLASS_DOMAIN: usize = 2;
pub(crate) const FI_CLASS_EP: usize = 3;
pub(crate) const FI_CLASS_AV: usize = 11;
pub(crate) const FI_CLASS_MR: usize = 12;
pub(crate) const FI_CLASS_EQ: usize = 13;
pub(crate) const FI_CLASS_CQ: usize = 14;
pub(crate) const FI_CLASS_CNTR: usize = 15;

pub(crate) const FI_GETWAIT: c_int = 5;
pub(crate) const FI_GETOPSFLAG: c_int = 2;
pub(crate) const FI_SETOPSFLAG: c_int = 3;
pub(crate) const FI_ENABLE: c_int = 6;
pub(crate) const FI_GETWAITOBJ: c_int = 16;

pub(crate) const FI_WAIT_NONE: c_int = 0;
pub(crate) const FI_WAIT_UNSPEC: c_int = 1;
pub(crate) const FI_WAIT_FD: c_int = 3;
pub(crate) const FI_WAIT_YIELD: c_int = 5;

pub(crate) const FI_CQ_FORMAT_UNSPEC: c_int = 0;
pub(crate) const FI_CQ_FORMAT_CONTEXT: c_int = 1;
pub(crate) const FI_CQ_FORMAT_MSG: c_int = 2;
pub(crate) const FI_CQ_FORMAT_DATA: c_int = 3;
pub(crate) const FI_CQ_FORMAT_TAGGED: c_int = 4;
pub(crate) const FI_CQ_COND_NONE: c_int = 0;

pub(crate) const FI_OPT_MIN_MULTI_RECV: c_int = 0;
pub(crate) const FI_OPT_CM_DATA_SIZE: c_int = 1;
