//! The objects of the interface, and those of this provider, which begin with them.
//!
//! libibverbs and programs hold the address of the embedded object. The structures are `repr(C)` with that object first, so the address is
//! also that of the whole: [`embedding`] converts it. libibverbs and programs write embedded objects at any time (`state`, counters of
//! events, mutexes), so those are cells.

use super::assert_layout;
use super::context::{IbvContext, VerbsContext};
use super::queries::IbvAhAttr;
use super::requests::IbvWc;
use crate::extended::{CriticalSection, post::Batch};
use isthmus_verbs as engine;
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};

/// `struct ibv_pd`
#[repr(C)]
pub(crate) struct IbvPd {
    pub(crate) context: *mut IbvContext,
    pub(crate) handle: u32,
}

/// `struct ibv_mr`
#[repr(C)]
pub(crate) struct IbvMr {
    pub(crate) context: *mut IbvContext,
    pub(crate) pd: *mut IbvPd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct verbs_mr`, which libibverbs expects behind each [`IbvMr`].
#[repr(C)]
pub(crate) struct VerbsMr {
    pub(crate) mr: IbvMr,
    pub(crate) mr_type: u32,
    pub(crate) access: c_int,
}

/// `struct ibv_comp_channel`
#[repr(C)]
pub(crate) struct IbvCompChannel {
    pub(crate) context: *mut IbvContext,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

/// `struct ibv_cq`
#[repr(C)]
pub(crate) struct IbvCq {
    pub(crate) context: *mut IbvContext,
    pub(crate) channel: *mut IbvCompChannel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

/// `struct ibv_cq_ex`. `struct verbs_cq` is a union of it and [`IbvCq`], so it is the larger one.
#[repr(C)]
pub(crate) struct IbvCqEx {
    pub(crate) cq: IbvCq,
    pub(crate) comp_mask: u32,
    pub(crate) status: u32,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Option<unsafe extern "C" fn(*mut IbvCqEx, *mut c_void) -> c_int>,
    pub(crate) next_poll: Option<unsafe extern "C" fn(*mut IbvCqEx) -> c_int>,
    pub(crate) end_poll: Option<unsafe extern "C" fn(*mut IbvCqEx)>,
    pub(crate) read_opcode: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u32>,
    pub(crate) read_vendor_err: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u32>,
    pub(crate) read_byte_len: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u32>,
    pub(crate) read_imm_data: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u32>,
    pub(crate) read_qp_num: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u32>,
    pub(crate) read_src_qp: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u32>,
    pub(crate) read_wc_flags: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u32>,
    pub(crate) read_slid: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u32>,
    pub(crate) read_sl: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u8>,
    pub(crate) read_dlid_path_bits: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u8>,
    pub(crate) read_completion_ts: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u64>,
    pub(crate) read_cvlan: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u16>,
    pub(crate) read_flow_tag: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u32>,
    pub(crate) read_tm_info: Option<unsafe extern "C" fn(*mut IbvCqEx, *mut c_void)>,
    pub(crate) read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut IbvCqEx) -> u64>,
}

/// `struct ibv_qp`
#[repr(C)]
pub(crate) struct IbvQp {
    pub(crate) context: *mut IbvContext,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut IbvPd,
    pub(crate) send_cq: *mut IbvCq,
    pub(crate) recv_cq: *mut IbvCq,
    pub(crate) srq: *mut IbvSrq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: u32,
    pub(crate) qp_type: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// `struct ibv_data_buf`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvDataBuf {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
}

/// `struct ibv_qp_ex` of private ABI 34.
#[repr(C)]
pub(crate) struct IbvQpEx {
    pub(crate) qp: IbvQp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: u32,
    pub(crate) wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u64, u64)>,
    pub(crate) wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u64)>,
    pub(crate) wr_bind_mw: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, u32, *const c_void)>,
    pub(crate) wr_local_inv: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub(crate) wr_rdma_read: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64)>,
    pub(crate) wr_rdma_write: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64)>,
    pub(crate) wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u32)>,
    pub(crate) wr_send: Option<unsafe extern "C" fn(*mut IbvQpEx)>,
    pub(crate) wr_send_imm: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub(crate) wr_send_inv: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub(crate) wr_send_tso: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, u16, u16)>,
    pub(crate) wr_set_ud_addr: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut IbvAh, u32, u32)>,
    pub(crate) wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut IbvQpEx, u32)>,
    pub(crate) wr_set_inline_data: Option<unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, usize)>,
    pub(crate) wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut IbvQpEx, usize, *const IbvDataBuf)>,
    pub(crate) wr_set_sge: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u32)>,
    pub(crate) wr_set_sge_list: Option<unsafe extern "C" fn(*mut IbvQpEx, usize, *const super::requests::IbvSge)>,
    pub(crate) wr_start: Option<unsafe extern "C" fn(*mut IbvQpEx)>,
    pub(crate) wr_complete: Option<unsafe extern "C" fn(*mut IbvQpEx) -> c_int>,
    pub(crate) wr_abort: Option<unsafe extern "C" fn(*mut IbvQpEx)>,
    pub(crate) wr_atomic_write: Option<unsafe extern "C" fn(*mut IbvQpEx, u32, u64, *const c_void)>,
}

/// `struct verbs_qp` of private ABI 34. `ibv_qp_to_qp_ex()` reads `comp_mask`.
#[repr(C)]
pub(crate) struct VerbsQp {
    pub(crate) qp_ex: IbvQpEx,
    pub(crate) comp_mask: u32,
    pub(crate) xrcd: *mut c_void,
}

/// `struct ibv_srq`
#[repr(C)]
pub(crate) struct IbvSrq {
    pub(crate) context: *mut IbvContext,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut IbvPd,
    pub(crate) handle: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// `struct verbs_srq`
#[repr(C)]
pub(crate) struct VerbsSrq {
    pub(crate) srq: IbvSrq,
    pub(crate) srq_type: u32,
    pub(crate) xrcd: *mut c_void,
    pub(crate) cq: *mut IbvCq,
    pub(crate) srq_num: u32,
}

/// `struct ibv_ah`
#[repr(C)]
pub(crate) struct IbvAh {
    pub(crate) context: *mut IbvContext,
    pub(crate) pd: *mut IbvPd,
    pub(crate) handle: u32,
}

assert_layout! {
    IbvPd: 16 { context: 0, handle: 8 }
    IbvMr: 48 { context: 0, pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40 }
    VerbsMr: 56 { mr_type: 48, access: 52 }
    IbvCompChannel: 16 { context: 0, fd: 8, refcnt: 12 }
    IbvCq: 128 { channel: 8, cq_context: 16, handle: 24, cqe: 28, mutex: 32, cond: 72, comp_events_completed: 120 }
    IbvCqEx: 288 { comp_mask: 128, status: 132, wr_id: 136, start_poll: 144, read_completion_wallclock_ns: 280 }
    IbvQp: 160 { qp_context: 8, pd: 16, send_cq: 24, recv_cq: 32, srq: 40, handle: 48, qp_num: 52, state: 56, qp_type: 60, mutex: 64,
        cond: 104, events_completed: 152 }
    IbvQpEx: 352 { comp_mask: 160, wr_id: 168, wr_flags: 176, wr_atomic_cmp_swp: 184, wr_complete: 328, wr_abort: 336 }
    VerbsQp: 368 { comp_mask: 352, xrcd: 360 }
    IbvSrq: 128 { srq_context: 8, pd: 16, handle: 24, mutex: 32, cond: 72, events_completed: 120 }
    VerbsSrq: 160 { srq_type: 128, xrcd: 136, cq: 144, srq_num: 152 }
    IbvAh: 24 { context: 0, pd: 8, handle: 16 }
}

/// An object of this provider that begins with an object of the interface.
///
/// # Safety
///
/// The type is `repr(C)`. Its first field, at offset 0, is a cell that contains or begins with `Self::Embedded`.
pub(crate) unsafe trait Embeds: Sized {
    /// The object of the interface that programs hold.
    type Embedded;

    /// The address that programs hold.
    fn embedded(this: *mut Self) -> *mut Self::Embedded {
        this.cast()
    }
}

/// Returns the object that embeds the one that a program passed, or None for a null pointer.
///
/// # Safety
///
/// The pointer is null, or [`Embeds::embedded`] of an object that lives for `'a`, to which no exclusive reference exists meanwhile.
#[inline]
pub(crate) unsafe fn embedding<'a, T: Embeds>(embedded: *const T::Embedded) -> Option<&'a T> {
    // SAFETY: the trait promises that the object begins with the embedded one, the caller that it lives. What others write meanwhile
    // is in a cell.
    unsafe { embedded.cast::<T>().as_ref() }
}

macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident($first:ident: $kind:ty) embeds $embedded:ty { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $name {
            pub(crate) $first: UnsafeCell<$kind>,
            $(pub(crate) $field: $type,)*
        }

        // SAFETY: `repr(C)`, and the first field begins with it: this holds for each line below.
        unsafe impl Embeds for $name {
            type Embedded = $embedded;
        }

        const _: () = assert!(std::mem::offset_of!($name, $first) == 0);
    )*};
}

objects! {
    /// A protection domain.
    PdObject(ibv: IbvPd) embeds IbvPd { pd: engine::Pd }
    /// A memory region.
    MrObject(verbs: VerbsMr) embeds IbvMr { key: engine::Key }
    /// A completion queue. `polled` is the completion that the extended interface reads.
    CqObject(ibv: IbvCqEx) embeds IbvCq { cq: engine::Cq, polled: CriticalSection<IbvWc> }
    /// A queue pair. `set` is the address that the program set last, which the engine keeps in part; `batch` has the requests that the
    /// program builds by the extended interface.
    QpObject(verbs: VerbsQp) embeds IbvQp {
        qp: engine::QpNumber, kind: engine::QpType, set: Cell<IbvAhAttr>, batch: CriticalSection<Batch>,
    }
    /// A shared receive queue.
    SrqObject(verbs: VerbsSrq) embeds IbvSrq { srq: engine::Srq }
    /// An address.
    AhObject(ibv: IbvAh) embeds IbvAh { address: engine::AddressVector, attr: IbvAhAttr }
}

/// An open device, which [`libibverbs`](crate::libibverbs) allocates. `domain` is this provider's state, null until the device is open.
#[repr(C)]
pub(crate) struct ContextObject<D> {
    pub(crate) verbs: UnsafeCell<VerbsContext>,
    pub(crate) domain: *mut D,
}

impl<D> ContextObject<D> {
    /// Returns the open device of a context that a program passed, or None for a null pointer.
    ///
    /// # Safety
    ///
    /// The pointer is null, or the context of a `ContextObject<D>` with the same `D` that lives for `'a`.
    #[inline]
    pub(crate) unsafe fn of<'a>(context: *const IbvContext) -> Option<&'a Self> {
        if context.is_null() {
            return None;
        }
        // SAFETY: the caller promises that the context lies at this offset in a living object. What others write is in a cell.
        Some(unsafe { &*context.byte_sub(std::mem::offset_of!(VerbsContext, context)).cast::<Self>() })
    }
}

const _: () = assert!(std::mem::offset_of!(ContextObject<u8>, verbs) == 0);
