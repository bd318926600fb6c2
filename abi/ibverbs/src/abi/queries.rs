//! Attributes: of the device, its port, queue pairs, queues and addresses.

use super::assert_layout;
use super::objects::{IbvCompChannel, IbvCq, IbvPd, IbvSrq};
use std::ffi::{c_char, c_int, c_void};

/// `union ibv_gid`, which C aligns to 8 bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IbvGid {
    pub(crate) raw: [u8; 16],
}

/// `struct ibv_device_attr`. Padding is a field, because the structure is copied as bytes: a program sees no memory of ours.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvDeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    /// In the byte order of the wire, as the next one.
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: u32,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: u32,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
    pub(crate) padding: u32,
}

/// `struct ibv_device_attr_ex`. The capabilities that the adapter lacks are zeroes without names.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvDeviceAttrEx {
    pub(crate) orig_attr: IbvDeviceAttr,
    pub(crate) comp_mask: u32,
    pub(crate) padding: u32,
    pub(crate) odp_caps: [u64; 3],
    pub(crate) completion_timestamp_mask: u64,
    pub(crate) hca_core_clock: u64,
    pub(crate) device_cap_flags_ex: u64,
    pub(crate) tso_caps: [u32; 2],
    pub(crate) rss_caps: [u64; 4],
    pub(crate) max_wq_type_rq: u32,
    pub(crate) packet_pacing_caps: [u32; 3],
    pub(crate) raw_packet_caps: u32,
    pub(crate) tm_caps: [u32; 5],
    pub(crate) cq_mod_caps: [u16; 2],
    pub(crate) padding_after_cq: u32,
    pub(crate) max_dm_size: u64,
    pub(crate) pci_atomic_caps: [u16; 3],
    pub(crate) padding_after_pci: u16,
    pub(crate) xrc_odp_caps: u32,
    pub(crate) phys_port_cnt_ex: u32,
}

/// `struct ibv_port_attr` with the field that version 50 appended. Callers give the length that they know.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvPortAttr {
    pub(crate) state: u32,
    pub(crate) max_mtu: u32,
    pub(crate) active_mtu: u32,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
    pub(crate) padding: u16,
    pub(crate) active_speed_ex: u32,
}

/// The size of `struct ibv_port_attr` in private ABI 34.
pub(crate) const PORT_ATTR_BYTES_34: usize = 52;

/// `struct ibv_global_route`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IbvGlobalRoute {
    pub(crate) dgid: IbvGid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// `struct ibv_ah_attr`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IbvAhAttr {
    pub(crate) grh: IbvGlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `struct ibv_qp_cap`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IbvQpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_attr`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IbvQpAttr {
    pub(crate) qp_state: u32,
    pub(crate) cur_qp_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) cap: IbvQpCap,
    pub(crate) ah_attr: IbvAhAttr,
    pub(crate) alt_ah_attr: IbvAhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// `struct ibv_qp_init_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvQpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut IbvCq,
    pub(crate) recv_cq: *mut IbvCq,
    pub(crate) srq: *mut IbvSrq,
    pub(crate) cap: IbvQpCap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: c_int,
}

/// `struct ibv_qp_init_attr_ex`. The first fields are those of [`IbvQpInitAttr`], without the padding at its end.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvQpInitAttrEx {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut IbvCq,
    pub(crate) recv_cq: *mut IbvCq,
    pub(crate) srq: *mut IbvSrq,
    pub(crate) cap: IbvQpCap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut IbvPd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    pub(crate) rx_hash_conf: [u64; 3],
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

impl IbvQpInitAttrEx {
    /// The attributes that `ibv_create_qp()` has, too.
    pub(crate) const fn base(&self) -> IbvQpInitAttr {
        let Self { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, .. } = *self;
        IbvQpInitAttr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    }
}

/// `struct ibv_srq_attr`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IbvSrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `struct ibv_srq_init_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvSrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: IbvSrqAttr,
}

/// `struct ibv_srq_init_attr_ex`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvSrqInitAttrEx {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: IbvSrqAttr,
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: u32,
    pub(crate) pd: *mut IbvPd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) cq: *mut IbvCq,
    pub(crate) tm_cap: [u32; 2],
}

/// `struct ibv_cq_init_attr_ex`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvCqInitAttrEx {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut IbvCompChannel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: *mut IbvPd,
}

/// `struct ibv_query_device_ex_input`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IbvQueryDeviceExInput {
    pub(crate) comp_mask: u32,
}

assert_layout! {
    IbvGid: 16 { raw: 0 }
    IbvDeviceAttr: 232 { fw_ver: 0, node_guid: 64, max_mr_size: 80, vendor_id: 96, max_qp: 108, max_sge: 120, atomic_cap: 164,
        max_ah: 200, max_srq: 212, max_pkeys: 224, phys_port_cnt: 227 }
    IbvDeviceAttrEx: 400 { comp_mask: 232, odp_caps: 240, device_cap_flags_ex: 280, phys_port_cnt_ex: 396 }
    IbvPortAttr: 56 { state: 0, gid_tbl_len: 12, pkey_tbl_len: 32, link_layer: 46, flags: 47, port_cap_flags2: 48, active_speed_ex: 52 }
    IbvAhAttr: 32 { dlid: 24, sl: 26, is_global: 29, port_num: 30 }
    IbvQpAttr: 144 { cap: 36, ah_attr: 56, alt_ah_attr: 88, pkey_index: 120, port_num: 129, rate_limit: 136 }
    IbvQpInitAttr: 64 { cap: 32, qp_type: 52, sq_sig_all: 56 }
    IbvQpInitAttrEx: 136 { cap: 32, qp_type: 52, sq_sig_all: 56, comp_mask: 60, pd: 64, create_flags: 80, rwq_ind_tbl: 88, send_ops_flags: 128 }
    IbvSrqInitAttr: 24 { attr: 8 }
    IbvSrqInitAttrEx: 64 { comp_mask: 20, pd: 32, cq: 48 }
    IbvCqInitAttrEx: 56 { channel: 16, wc_flags: 32, comp_mask: 40, parent_domain: 48 }
}
