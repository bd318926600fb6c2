//! Addresses, and the attributes of queue pairs.

use super::creation::{access, qp_capacities};
use crate::abi::queries::{IbvAhAttr, IbvGid, IbvGlobalRoute, IbvQpAttr};
use crate::attributes::PORT;
use isthmus_verbs::{AddressVector, AttributeMask, Attributes, Gid, QpInit, QpNumber, QpState};
use rustix::io::Errno;
use std::ffi::c_int;

/// An address. `gids` is the table of the port.
///
/// # Errors
///
/// `EINVAL` for another port than 1, and for a `sgid_index` outside of the table.
pub(crate) fn address(attr: &IbvAhAttr, gids: &[Gid]) -> Result<AddressVector, Errno> {
    if attr.port_num != PORT {
        return Err(Errno::INVAL);
    }
    let mut address = AddressVector { service_level: attr.sl & 0xf, ..AddressVector::default() };
    if attr.is_global != 0 {
        address.gid = Gid(attr.grh.dgid.raw);
        address.source_gid = *gids.get(usize::from(attr.grh.sgid_index)).ok_or(Errno::INVAL)?;
    }
    Ok(address)
}

/// The address of a handle.
///
/// # Errors
///
/// Those of [`address`], and `EINVAL` without a GRH: ports with Ethernet have no other addresses (RoCE, annex A17).
pub(crate) fn address_of_handle(attr: &IbvAhAttr, gids: &[Gid]) -> Result<AddressVector, Errno> {
    if attr.is_global == 0 { Err(Errno::INVAL) } else { address(attr, gids) }
}

/// An address as queries return it, without the fields that the engine does not keep.
pub(crate) fn address_attributes(address: &AddressVector, gids: &[Gid]) -> IbvAhAttr {
    let is_global = address.gid != Gid::default();
    let index = gids.iter().position(|gid| *gid == address.source_gid);
    let sgid_index = index.and_then(|index| u8::try_from(index).ok()).unwrap_or(0);
    let grh = IbvGlobalRoute { dgid: IbvGid { raw: address.gid.0 }, sgid_index, ..IbvGlobalRoute::default() };
    IbvAhAttr {
        grh: if is_global { grh } else { IbvGlobalRoute::default() },
        sl: address.service_level,
        is_global: u8::from(is_global),
        port_num: PORT,
        ..IbvAhAttr::default()
    }
}

/// The attributes that `ibv_modify_qp()` sets. Those that the mask does not name have default values.
///
/// # Errors
///
/// `EINVAL` for an unknown bit of the mask, state, path MTU or P_Key index, and for an invalid address or port; `EOPNOTSUPP` for access
/// flags that the adapter does not have.
pub(crate) fn attributes(attr: &IbvQpAttr, mask: c_int, gids: &[Gid]) -> Result<(Attributes, AttributeMask), Errno> {
    let mask = AttributeMask::from_bits(mask as u32).ok_or(Errno::INVAL)?;
    let has = |bit| mask.contains(bit);
    let state = |code| QpState::from_code(code).ok_or(Errno::INVAL);
    let mut values = Attributes::default();
    if has(AttributeMask::STATE) {
        values.state = state(attr.qp_state)?;
    }
    if has(AttributeMask::CURRENT_STATE) {
        values.current_state = state(attr.cur_qp_state)?;
    }
    values.drained_event = has(AttributeMask::DRAINED_EVENT) && attr.en_sqd_async_notify != 0;
    if has(AttributeMask::ACCESS) {
        values.access = access(attr.qp_access_flags)?;
    }
    if has(AttributeMask::P_KEY_INDEX) {
        values.p_key_index = if attr.pkey_index == 0 { 0 } else { return Err(Errno::INVAL) };
    }
    if has(AttributeMask::PORT) {
        values.port = if attr.port_num == PORT { PORT } else { return Err(Errno::INVAL) };
    }
    if has(AttributeMask::ADDRESS) {
        values.address = address(&attr.ah_attr, gids)?;
    }
    if has(AttributeMask::PATH_MTU) {
        values.path_mtu = if matches!(attr.path_mtu, 1..=5) { attr.path_mtu as u8 } else { return Err(Errno::INVAL) };
    }
    copy_numbers(&mut values, attr, mask);
    Ok((values, mask))
}

/// Copies the attributes that need no check here.
fn copy_numbers(values: &mut Attributes, attr: &IbvQpAttr, mask: AttributeMask) {
    const PSN_MASK: u32 = 0xff_ffff;
    let set = |bit, value: u32, place: &mut u32| {
        if mask.contains(bit) {
            *place = value;
        }
    };
    set(AttributeMask::Q_KEY, attr.qkey, &mut values.q_key);
    set(AttributeMask::RECEIVE_PSN, attr.rq_psn & PSN_MASK, &mut values.receive_psn);
    set(AttributeMask::SEND_PSN, attr.sq_psn & PSN_MASK, &mut values.send_psn);
    set(AttributeMask::DESTINATION, attr.dest_qp_num & QpNumber::MASK, &mut values.destination.0);
    let set = |bit, value: u8, place: &mut u8| {
        if mask.contains(bit) {
            *place = value;
        }
    };
    set(AttributeMask::TIMEOUT, attr.timeout, &mut values.timeout);
    set(AttributeMask::RETRY_COUNT, attr.retry_cnt, &mut values.retry_count);
    set(AttributeMask::RNR_RETRY, attr.rnr_retry, &mut values.rnr_retry);
    set(AttributeMask::RNR_TIMER, attr.min_rnr_timer, &mut values.rnr_timer);
    set(AttributeMask::READS_MAX, attr.max_rd_atomic, &mut values.reads_max);
    set(AttributeMask::READS_SERVED_MAX, attr.max_dest_rd_atomic, &mut values.reads_served_max);
}

/// The attributes of a queue pair as `ibv_query_qp()` returns them.
pub(crate) fn qp_attributes(state: QpState, values: &Attributes, init: &QpInit, gids: &[Gid]) -> IbvQpAttr {
    IbvQpAttr {
        qp_state: state as u32,
        cur_qp_state: state as u32,
        path_mtu: u32::from(values.path_mtu),
        qkey: values.q_key,
        rq_psn: values.receive_psn,
        sq_psn: values.send_psn,
        dest_qp_num: values.destination.0,
        qp_access_flags: values.access.bits(),
        cap: qp_capacities(init),
        ah_attr: address_attributes(&values.address, gids),
        pkey_index: values.p_key_index,
        max_rd_atomic: values.reads_max,
        max_dest_rd_atomic: values.reads_served_max,
        min_rnr_timer: values.rnr_timer,
        port_num: values.port,
        timeout: values.timeout,
        retry_cnt: values.retry_count,
        rnr_retry: values.rnr_retry,
        ..IbvQpAttr::default()
    }
}
