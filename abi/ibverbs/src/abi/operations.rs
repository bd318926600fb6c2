//! The operations of a provider: `struct verbs_context_ops`, a table in alphabetical order for each private ABI.
//!
//! A new operation moves those behind it, so each private ABI number has a table of its own. [`types`] has the type of every operation;
//! a table is a list of names. Operations that are empty in a table fail with `EOPNOTSUPP`, because libibverbs puts functions of its own there.

use super::context::IbvContext;
use super::objects::*;
use super::queries::*;
use super::requests::*;
use std::ffi::{c_int, c_void};

/// An argument of a type that this provider has no objects of.
type Other = *mut c_void;

/// The type of each operation, under its name in C.
macro_rules! operations {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {$(
        #[expect(non_camel_case_types, reason = "the name of the operation in C")]
        pub(crate) type $name = unsafe extern "C" fn($($argument),*) $(-> $result)?;
    )*};
}

/// The types of the operations.
pub(crate) mod types {
    use super::*;

    operations! {
        advise_mr(*mut IbvPd, u32, u32, *mut IbvSge, u32) -> c_int;
        alloc_dm(*mut IbvContext, Other) -> Other;
        alloc_mw(*mut IbvPd, u32) -> Other;
        alloc_null_mr(*mut IbvPd) -> *mut IbvMr;
        alloc_parent_domain(*mut IbvContext, Other) -> *mut IbvPd;
        alloc_pd(*mut IbvContext) -> *mut IbvPd;
        alloc_td(*mut IbvContext, Other) -> Other;
        async_event(*mut IbvContext, *mut IbvAsyncEvent);
        attach_counters_point_flow(Other, Other, Other) -> c_int;
        attach_mcast(*mut IbvQp, *const IbvGid, u16) -> c_int;
        bind_mw(*mut IbvQp, Other, Other) -> c_int;
        close_xrcd(Other) -> c_int;
        cq_event(*mut IbvCq);
        create_ah(*mut IbvPd, *mut IbvAhAttr) -> *mut IbvAh;
        create_counters(*mut IbvContext, Other) -> Other;
        create_cq(*mut IbvContext, c_int, *mut IbvCompChannel, c_int) -> *mut IbvCq;
        create_cq_ex(*mut IbvContext, *mut IbvCqInitAttrEx) -> *mut IbvCqEx;
        create_flow(*mut IbvQp, Other) -> Other;
        create_flow_action_esp(*mut IbvContext, Other) -> Other;
        create_qp(*mut IbvPd, *mut IbvQpInitAttr) -> *mut IbvQp;
        create_qp_ex(*mut IbvContext, *mut IbvQpInitAttrEx) -> *mut IbvQp;
        create_rwq_ind_table(*mut IbvContext, Other) -> Other;
        create_srq(*mut IbvPd, *mut IbvSrqInitAttr) -> *mut IbvSrq;
        create_srq_ex(*mut IbvContext, *mut IbvSrqInitAttrEx) -> *mut IbvSrq;
        create_wq(*mut IbvContext, Other) -> Other;
        dealloc_mw(Other) -> c_int;
        dealloc_pd(*mut IbvPd) -> c_int;
        dealloc_td(Other) -> c_int;
        dereg_mr(*mut VerbsMr) -> c_int;
        destroy_ah(*mut IbvAh) -> c_int;
        destroy_counters(Other) -> c_int;
        destroy_cq(*mut IbvCq) -> c_int;
        destroy_flow(Other) -> c_int;
        destroy_flow_action(Other) -> c_int;
        destroy_qp(*mut IbvQp) -> c_int;
        destroy_rwq_ind_table(Other) -> c_int;
        destroy_srq(*mut IbvSrq) -> c_int;
        destroy_wq(Other) -> c_int;
        detach_mcast(*mut IbvQp, *const IbvGid, u16) -> c_int;
        free_context(*mut IbvContext);
        free_dm(Other) -> c_int;
        get_srq_num(*mut IbvSrq, *mut u32) -> c_int;
        import_dm(*mut IbvContext, u32) -> Other;
        import_mr(*mut IbvPd, u32) -> *mut IbvMr;
        import_pd(*mut IbvContext, u32) -> *mut IbvPd;
        modify_cq(*mut IbvCq, Other) -> c_int;
        modify_flow_action_esp(Other, Other) -> c_int;
        modify_qp(*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int;
        modify_qp_rate_limit(*mut IbvQp, Other) -> c_int;
        modify_srq(*mut IbvSrq, *mut IbvSrqAttr, c_int) -> c_int;
        modify_wq(Other, Other) -> c_int;
        open_qp(*mut IbvContext, Other) -> *mut IbvQp;
        open_xrcd(*mut IbvContext, Other) -> Other;
        poll_cq(*mut IbvCq, c_int, *mut IbvWc) -> c_int;
        post_recv(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;
        post_send(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int;
        post_srq_ops(*mut IbvSrq, Other, *mut Other) -> c_int;
        post_srq_recv(*mut IbvSrq, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;
        query_device_ex(*mut IbvContext, *const IbvQueryDeviceExInput, *mut IbvDeviceAttrEx, usize) -> c_int;
        query_ece(*mut IbvQp, Other) -> c_int;
        query_port(*mut IbvContext, u8, *mut IbvPortAttr) -> c_int;
        query_qp(*mut IbvQp, *mut IbvQpAttr, c_int, *mut IbvQpInitAttr) -> c_int;
        query_qp_data_in_order(*mut IbvQp, u32, u32) -> c_int;
        query_rt_values(*mut IbvContext, Other) -> c_int;
        query_srq(*mut IbvSrq, *mut IbvSrqAttr) -> c_int;
        read_counters(Other, *mut u64, u32, u32) -> c_int;
        reg_dm_mr(*mut IbvPd, Other, u64, usize, u32) -> *mut IbvMr;
        reg_dmabuf_mr(*mut IbvPd, u64, usize, u64, c_int, c_int) -> *mut IbvMr;
        reg_mr(*mut IbvPd, *mut c_void, usize, u64, c_int) -> *mut IbvMr;
        req_notify_cq(*mut IbvCq, c_int) -> c_int;
        rereg_mr(*mut VerbsMr, c_int, *mut IbvPd, *mut c_void, usize, c_int) -> c_int;
        resize_cq(*mut IbvCq, c_int) -> c_int;
        set_ece(*mut IbvQp, Other) -> c_int;
        unimport_dm(Other);
        unimport_mr(*mut IbvMr);
        unimport_pd(*mut IbvPd);
    }
}

/// True if `a` stands before `b` in the alphabet.
const fn precedes(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() {
        if a[at] != b[at] {
            return a[at] < b[at];
        }
        at += 1;
    }
    a.len() < b.len()
}

/// The table of a private ABI: its operations in alphabetical order, as a structure with an optional function for each.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident { $($name:ident)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $table {
            $(pub(crate) $name: Option<types::$name>,)*
        }

        impl $table {
            /// A table without operations.
            pub(crate) const EMPTY: Self = Self { $($name: None,)* };
            /// The names of the operations.
            pub(crate) const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];
        }

        const _: () = {
            assert!(size_of::<$table>() == 8 * $table::NAMES.len());
            let mut at = 1;
            while at < $table::NAMES.len() {
                assert!(precedes($table::NAMES[at - 1], $table::NAMES[at]), "the table is not in alphabetical order");
                at += 1;
            }
        };
    };
}

table! {
    /// `struct verbs_context_ops` of private ABI 34 (rdma-core 44).
    VerbsContextOps34 {
        advise_mr alloc_dm alloc_mw alloc_null_mr alloc_parent_domain alloc_pd alloc_td async_event attach_counters_point_flow
        attach_mcast bind_mw close_xrcd cq_event create_ah create_counters create_cq create_cq_ex create_flow create_flow_action_esp
        create_qp create_qp_ex create_rwq_ind_table create_srq create_srq_ex create_wq dealloc_mw dealloc_pd dealloc_td dereg_mr
        destroy_ah destroy_counters destroy_cq destroy_flow destroy_flow_action destroy_qp destroy_rwq_ind_table destroy_srq destroy_wq
        detach_mcast free_context free_dm get_srq_num import_dm import_mr import_pd modify_cq modify_flow_action_esp modify_qp
        modify_qp_rate_limit modify_srq modify_wq open_qp open_xrcd poll_cq post_recv post_send post_srq_ops post_srq_recv
        query_device_ex query_ece query_port query_qp query_qp_data_in_order query_rt_values query_srq read_counters reg_dm_mr
        reg_dmabuf_mr reg_mr req_notify_cq rereg_mr resize_cq set_ece unimport_dm unimport_mr unimport_pd
    }
}

const _: () = assert!(size_of::<VerbsContextOps34>() == 608);
