//! The open device: `struct ibv_context`, and `struct verbs_context`, which ends with it.
//!
//! Programs call some operations through pointers at fixed offsets of the context, on both sides. libibverbs fills all of them from the
//! table of operations; this provider only knows where they are.

use super::assert_layout;
use super::device::IbvDevice;
use std::ffi::{c_int, c_void};

/// A pointer to a function that only libibverbs and programs use.
pub(crate) type Entry = *const c_void;

/// `struct ibv_context_ops`
#[repr(C)]
pub(crate) struct IbvContextOps {
    pub(crate) query_device_compat: Entry,
    pub(crate) query_port_compat: Entry,
    pub(crate) unused: [Entry; 5],
    pub(crate) alloc_mw: Entry,
    pub(crate) bind_mw: Entry,
    pub(crate) dealloc_mw: Entry,
    pub(crate) unused_create_cq: Entry,
    pub(crate) poll_cq: Entry,
    pub(crate) req_notify_cq: Entry,
    pub(crate) cq_event_compat: Entry,
    pub(crate) unused_queues: [Entry; 6],
    pub(crate) post_srq_recv: Entry,
    pub(crate) unused_queue_pairs: [Entry; 4],
    pub(crate) post_send: Entry,
    pub(crate) post_recv: Entry,
    pub(crate) unused_addresses: [Entry; 4],
    pub(crate) async_event_compat: Entry,
}

/// `struct ibv_context`
#[repr(C)]
pub(crate) struct IbvContext {
    pub(crate) device: *mut IbvDevice,
    pub(crate) ops: IbvContextOps,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

/// `struct verbs_context` of private ABI 34. The first field is the newest.
#[repr(C)]
pub(crate) struct VerbsContext {
    pub(crate) query_port: Entry,
    pub(crate) advise_mr: Entry,
    pub(crate) alloc_null_mr: Entry,
    pub(crate) read_counters: Entry,
    pub(crate) attach_counters_point_flow: Entry,
    pub(crate) create_counters: Entry,
    pub(crate) destroy_counters: Entry,
    pub(crate) reg_dm_mr: Entry,
    pub(crate) alloc_dm: Entry,
    pub(crate) free_dm: Entry,
    pub(crate) modify_flow_action_esp: Entry,
    pub(crate) destroy_flow_action: Entry,
    pub(crate) create_flow_action_esp: Entry,
    pub(crate) modify_qp_rate_limit: Entry,
    pub(crate) alloc_parent_domain: Entry,
    pub(crate) dealloc_td: Entry,
    pub(crate) alloc_td: Entry,
    pub(crate) modify_cq: Entry,
    pub(crate) post_srq_ops: Entry,
    pub(crate) destroy_rwq_ind_table: Entry,
    pub(crate) create_rwq_ind_table: Entry,
    pub(crate) destroy_wq: Entry,
    pub(crate) modify_wq: Entry,
    pub(crate) create_wq: Entry,
    pub(crate) query_rt_values: Entry,
    pub(crate) create_cq_ex: Entry,
    /// Memory of libibverbs.
    pub(crate) private: *mut c_void,
    pub(crate) query_device_ex: Entry,
    pub(crate) destroy_flow: Entry,
    pub(crate) placeholder2: Entry,
    pub(crate) create_flow: Entry,
    pub(crate) placeholder1: Entry,
    pub(crate) open_qp: Entry,
    pub(crate) create_qp_ex: Entry,
    pub(crate) get_srq_num: Entry,
    pub(crate) create_srq_ex: Entry,
    pub(crate) open_xrcd: Entry,
    pub(crate) close_xrcd: Entry,
    pub(crate) placeholder3: u64,
    /// The size of the structure that libibverbs knows.
    pub(crate) sz: usize,
    pub(crate) context: IbvContext,
}

assert_layout! {
    IbvContextOps: 256 { query_device_compat: 0, query_port_compat: 8, alloc_mw: 56, bind_mw: 64, dealloc_mw: 72, poll_cq: 88,
        req_notify_cq: 96, cq_event_compat: 104, post_srq_recv: 160, post_send: 200, post_recv: 208, async_event_compat: 248 }
    IbvContext: 328 { device: 0, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280, abi_compat: 320 }
    VerbsContext: 648 { query_port: 0, advise_mr: 8, modify_cq: 136, create_cq_ex: 200, private: 208, query_device_ex: 216,
        open_qp: 256, create_qp_ex: 264, get_srq_num: 272, create_srq_ex: 280, open_xrcd: 288, close_xrcd: 296, sz: 312, context: 320 }
}
