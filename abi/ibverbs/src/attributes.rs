//! Attributes of the device and its port, as queries report them, and the names of this provider's devices.

use crate::abi::consts::*;
use crate::abi::queries::{IbvDeviceAttr, IbvDeviceAttrEx, IbvPortAttr, PORT_ATTR_BYTES_34};
use isthmus_layout::verbs::{BLOCK_NUMBERS, BLOCKS_MAX};
use isthmus_verbs::limits;
use std::ffi::{c_char, c_int};

/// The only port.
pub(crate) const PORT: u8 = 1;

/// The completion vectors: events of all queues take one way.
pub(crate) const COMPLETION_VECTORS: u32 = 1;

/// Names of devices begin with it; a number follows.
const NAME_PREFIX: &[u8] = b"isthmus";

/// `active_width` of four lanes and `active_speed` of 25 Gbit/s each, together EDR.
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;

/// `phys_state` of a link that is up.
const LINK_UP: u8 = 5;

/// True for the name of a device of this provider: `isthmus` and a decimal number. The name ends at the first zero byte.
pub(crate) fn is_isthmus_device(name: &[c_char]) -> bool {
    let mut bytes = name.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0);
    let has_prefix = NAME_PREFIX.iter().all(|expected| bytes.next() == Some(*expected));
    let mut rest = bytes.peekable();
    has_prefix && rest.peek().is_some() && rest.all(|byte| byte.is_ascii_digit())
}

/// Parses a GUID of sysfs: four groups of four hexadecimal digits, separated by colons.
pub(crate) fn parse_guid(text: &str) -> Option<u64> {
    let mut groups = text.trim_end().split(':');
    let mut guid = 0;
    for _ in 0..4 {
        let group = groups.next().filter(|group| group.len() == 4 && group.bytes().all(|b| b.is_ascii_hexdigit()))?;
        guid = guid << 16 | u64::from(u16::from_str_radix(group, 16).ok()?);
    }
    groups.next().is_none().then_some(guid)
}

/// A limit as the interface has it.
const fn count(limit: u32) -> c_int {
    limit as c_int
}

/// The vendor of an adapter in software, as `rdma_rxe` has it. Programs take 0 for a failed query.
const VENDOR: u32 = 0xff_ffff;

/// The attributes of a device with this GUID.
pub(crate) fn device_attributes(guid: u64) -> IbvDeviceAttr {
    let objects = limits::OBJECTS_MAX as c_int;
    IbvDeviceAttr {
        fw_ver: firmware_version(),
        node_guid: guid.to_be(),
        sys_image_guid: guid.to_be(),
        max_mr_size: u64::MAX,
        page_size_cap: !0xfff,
        vendor_id: VENDOR,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: (BLOCK_NUMBERS as usize * BLOCKS_MAX) as c_int,
        max_qp_wr: count(limits::REQUESTS_MAX),
        device_cap_flags: DEVICE_CURR_QP_STATE_MOD | DEVICE_SYS_IMAGE_GUID | DEVICE_RC_RNR_NAK_GEN,
        max_sge: count(limits::SGES_MAX),
        max_sge_rd: count(limits::SGES_MAX),
        max_cq: objects,
        max_cqe: count(limits::COMPLETIONS_MAX),
        max_mr: objects,
        max_pd: objects,
        max_qp_rd_atom: count(limits::READS_MAX),
        max_ee_rd_atom: 0,
        max_res_rd_atom: count(limits::READS_MAX).saturating_mul(objects),
        max_qp_init_rd_atom: count(limits::READS_MAX),
        max_ee_init_rd_atom: 0,
        atomic_cap: ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: 0,
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: c_int::MAX,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: objects,
        max_srq_wr: count(limits::REQUESTS_MAX),
        max_srq_sge: count(limits::SGES_MAX),
        max_pkeys: 1,
        local_ca_ack_delay: 0,
        phys_port_cnt: 1,
        padding: 0,
    }
}

/// The version of this library, which is shorter than the field.
fn firmware_version() -> [c_char; 64] {
    const VERSION: &[u8] = env!("CARGO_PKG_VERSION").as_bytes();
    const { assert!(VERSION.len() < 64) };
    std::array::from_fn(|at| VERSION.get(at).map_or(0, |byte| *byte as c_char))
}

/// Copies the extended attributes of a device with this GUID to a program, up to the length that it knows. The rest of its structure is
/// left alone. Capabilities that the adapter lacks are zero.
///
/// # Safety
///
/// `len` bytes at `attr` may be written.
pub(crate) unsafe fn fill_device_attributes_ex(attr: *mut IbvDeviceAttrEx, len: usize, guid: u64) {
    let orig_attr = device_attributes(guid);
    let all = IbvDeviceAttrEx {
        orig_attr,
        comp_mask: 0,
        padding: 0,
        odp_caps: [0; 3],
        completion_timestamp_mask: 0,
        hca_core_clock: 0,
        device_cap_flags_ex: u64::from(orig_attr.device_cap_flags),
        tso_caps: [0; 2],
        rss_caps: [0; 4],
        max_wq_type_rq: 0,
        packet_pacing_caps: [0; 3],
        raw_packet_caps: 0,
        tm_caps: [0; 5],
        cq_mod_caps: [0; 2],
        padding_after_cq: 0,
        max_dm_size: 0,
        pci_atomic_caps: [0; 3],
        padding_after_pci: 0,
        xrc_odp_caps: 0,
        phys_port_cnt_ex: 1,
    };
    // SAFETY: both ranges are at least as long as what is copied.
    unsafe { copy_prefix(&all, attr, len) }
}

/// The attributes of the port. Its table of GIDs has the given length.
pub(crate) fn port_attributes(gids: usize) -> IbvPortAttr {
    IbvPortAttr {
        state: PORT_ACTIVE,
        max_mtu: MTU_4096,
        active_mtu: MTU_4096,
        gid_tbl_len: c_int::try_from(gids).unwrap_or(c_int::MAX),
        port_cap_flags: PORT_IP_BASED_GIDS,
        max_msg_sz: limits::MESSAGE_BYTES_MAX,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: LINK_UP,
        link_layer: LINK_LAYER_ETHERNET,
        ..IbvPortAttr::default()
    }
}

/// Copies the attributes of the port to a program, up to the length that it knows.
///
/// # Safety
///
/// `len` bytes at `attr` may be written.
pub(crate) unsafe fn fill_port_attributes(attr: *mut IbvPortAttr, len: usize, gids: usize) {
    // SAFETY: both ranges are at least as long as what is copied.
    unsafe { copy_prefix(&port_attributes(gids), attr, len) }
}

/// Copies the attributes of the port for the operation `query_port` of the table, which gives no length.
///
/// # Safety
///
/// `attr` has room for `struct ibv_port_attr` of private ABI 34.
pub(crate) unsafe fn fill_port_attributes_34(attr: *mut IbvPortAttr, gids: usize) {
    // SAFETY: by the caller's promise.
    unsafe { fill_port_attributes(attr, PORT_ATTR_BYTES_34, gids) }
}

/// Copies the first `len` bytes of a structure, or all of it if it is shorter. The structure has no implicit padding.
///
/// # Safety
///
/// `len` bytes at `to` may be written.
unsafe fn copy_prefix<T>(from: &T, to: *mut T, len: usize) {
    // SAFETY: `from` has `size_of::<T>()` bytes, `to` has `len`. The caller's memory and a local do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(from).cast::<u8>(), to.cast::<u8>(), len.min(size_of::<T>()))
    }
}

#[cfg(test)]
mod tests;
