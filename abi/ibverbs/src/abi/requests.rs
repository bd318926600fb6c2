//! Work requests, completions and asynchronous events.

use super::assert_layout;
use super::objects::IbvAh;
use std::ffi::{c_int, c_void};

/// `struct ibv_sge`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IbvSge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// The member `rdma` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RdmaArguments {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// The member `atomic` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AtomicArguments {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// The member `ud` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UdArguments {
    pub(crate) ah: *mut IbvAh,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// The union `wr` of a send request, selected by the operation and the type of the queue pair.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union SendArguments {
    pub(crate) rdma: RdmaArguments,
    pub(crate) atomic: AtomicArguments,
    pub(crate) ud: UdArguments,
}

/// `struct ibv_send_wr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvSendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut IbvSendWr,
    pub(crate) sg_list: *mut IbvSge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: u32,
    /// Immediate data in the byte order of the wire, or the key to invalidate.
    pub(crate) imm_data: u32,
    pub(crate) wr: SendArguments,
    pub(crate) remote_srqn: u32,
    /// The arguments of a memory window or of segmentation.
    pub(crate) extra: [u64; 6],
}

/// `struct ibv_recv_wr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvRecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut IbvRecvWr,
    pub(crate) sg_list: *mut IbvSge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_wc`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IbvWc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// `struct ibv_async_event`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvAsyncEvent {
    /// A completion queue, queue pair or shared receive queue, or the number of a port in the lower half.
    pub(crate) element: *mut c_void,
    pub(crate) event_type: u32,
}

/// An event as libibverbs reads it from `async_fd` (`struct ib_uverbs_async_event_desc`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsyncEventRecord {
    /// The address of the object in the program, or the number of a port.
    pub(crate) element: u64,
    pub(crate) event_type: u32,
    pub(crate) reserved: u32,
}

assert_layout! {
    IbvSge: 16 { addr: 0, length: 8, lkey: 12 }
    IbvSendWr: 128 { wr_id: 0, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, imm_data: 36, wr: 40, remote_srqn: 72,
        extra: 80 }
    IbvRecvWr: 32 { wr_id: 0, next: 8, sg_list: 16, num_sge: 24 }
    IbvWc: 48 { wr_id: 0, status: 8, opcode: 12, vendor_err: 16, byte_len: 20, imm_data: 24, qp_num: 28, src_qp: 32, wc_flags: 36,
        pkey_index: 40, slid: 42, sl: 44, dlid_path_bits: 45 }
    IbvAsyncEvent: 16 { element: 0, event_type: 8 }
    AsyncEventRecord: 16 { element: 0, event_type: 8, reserved: 12 }
    AtomicArguments: 32 { remote_addr: 0, compare_add: 8, swap: 16, rkey: 24 }
    RdmaArguments: 16 { remote_addr: 0, rkey: 8 }
    UdArguments: 16 { ah: 0, remote_qpn: 8, remote_qkey: 12 }
}
