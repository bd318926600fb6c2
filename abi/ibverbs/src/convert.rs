//! Requests, attributes and completions: from the structures of the interface to the values of the engine, and back.
//!
//! The program's structures are read once. Nothing here allocates for a request of up to [`SGES_INLINE`] ranges.

use crate::abi::consts::*;
use crate::abi::objects::{AhObject, CqObject, SrqObject, embedding};
use crate::abi::queries::{
    IbvAhAttr, IbvGid, IbvGlobalRoute, IbvQpAttr, IbvQpCap, IbvQpInitAttr, IbvQpInitAttrEx, IbvSrqInitAttr,
    IbvSrqInitAttrEx,
};
use crate::abi::requests::{IbvRecvWr, IbvSendWr, IbvSge, IbvWc};
use crate::attributes::PORT;
use isthmus_verbs::{
    Access, AddressVector, AtomicOperation, AttributeMask, Attributes, Completion, Gid, Key, Operation, Pd, QpInit,
    QpNumber, QpState, QpType, ReceiveRequest, Refused, SendFlags, SendRequest, Sge, limits,
};
use rustix::io::Errno;
use std::ffi::c_int;

/// The ranges of a request that need no allocation.
pub(crate) const SGES_INLINE: usize = 4;

/// Memory for the ranges of one request, to be reused for the next.
#[derive(Debug, Default)]
pub(crate) struct SgeBuffer {
    few: [Sge; SGES_INLINE],
    many: Vec<Sge>,
}

impl SgeBuffer {
    /// Reads the ranges of a program.
    ///
    /// # Safety
    ///
    /// If `len` is positive, `len` ranges at `list` may be read.
    #[inline]
    unsafe fn fill(&mut self, list: *const IbvSge, len: c_int) -> Result<&[Sge], Errno> {
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        if len == 0 {
            return Ok(&[]);
        }
        if len > limits::SGES_MAX as usize || list.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: `at` is below `len`, which the caller promises.
        let range = |at: usize| unsafe { list.add(at).read() };
        let sge = |IbvSge { addr, length, lkey }| Sge { addr, len: length, lkey };
        if let Some(few) = self.few.get_mut(..len) {
            for (at, place) in few.iter_mut().enumerate() {
                *place = sge(range(at));
            }
            Ok(few)
        } else {
            self.many.clear();
            self.many.extend((0..len).map(|at| sge(range(at))));
            Ok(&self.many)
        }
    }
}

/// Reads a send request. The list that follows it (`next`) is the caller's to walk.
///
/// # Errors
///
/// `EINVAL` for an invalid list, flag or operation, `EOPNOTSUPP` for an operation that the adapter does not have.
///
/// # Safety
///
/// `wr` is a request as `ibv_post_send()` demands for a queue pair of this type: its ranges may be read, and the address of a datagram is
/// null or an [`AhObject`].
#[inline]
pub(crate) unsafe fn send_request(
    wr: *const IbvSendWr,
    kind: QpType,
    buffer: &mut SgeBuffer,
) -> Result<SendRequest<'_>, Errno> {
    // SAFETY: the caller promises a request.
    let wr = unsafe { &*wr };
    let flags = SendFlags::from_bits(wr.send_flags).ok_or(Errno::INVAL)?;
    let datagram = match kind {
        QpType::Rc | QpType::Uc => None,
        // Other operations have other members in the union.
        QpType::Ud if matches!(wr.opcode, WR_SEND | WR_SEND_WITH_IMM) => {
            // SAFETY: the type of the queue pair selects this member.
            let ud = unsafe { wr.wr.ud };
            // SAFETY: the caller promises that it is null or an address of this provider.
            let address = unsafe { embedding::<AhObject>(ud.ah) }.ok_or(Errno::INVAL)?.address;
            Some((address, QpNumber(ud.remote_qpn & QpNumber::MASK), ud.remote_qkey))
        }
        QpType::Ud => return Err(Errno::INVAL),
    };
    // SAFETY: the operation selects the member.
    let operation = unsafe { operation(wr) }?;
    // SAFETY: the caller promises the ranges.
    let sges = unsafe { buffer.fill(wr.sg_list, wr.num_sge) }?;
    Ok(SendRequest { wr_id: wr.wr_id, operation, flags, sges, datagram })
}

/// The operation of a send request.
///
/// # Safety
///
/// The member of the union that the operation selects is initialised.
#[inline]
unsafe fn operation(wr: &IbvSendWr) -> Result<Operation, Errno> {
    let immediate = Some(wr.imm_data);
    // SAFETY: for the operations of remote memory.
    let rdma = || unsafe { wr.wr.rdma };
    // SAFETY: for atomic operations.
    let atomic = || unsafe { wr.wr.atomic };
    Ok(match wr.opcode {
        WR_SEND => Operation::Send { immediate: None },
        WR_SEND_WITH_IMM => Operation::Send { immediate },
        WR_RDMA_WRITE => Operation::Write { remote_addr: rdma().remote_addr, rkey: Key(rdma().rkey), immediate: None },
        WR_RDMA_WRITE_WITH_IMM => {
            Operation::Write { remote_addr: rdma().remote_addr, rkey: Key(rdma().rkey), immediate }
        }
        WR_RDMA_READ => Operation::Read { remote_addr: rdma().remote_addr, rkey: Key(rdma().rkey) },
        WR_ATOMIC_CMP_AND_SWP => Operation::Atomic {
            remote_addr: atomic().remote_addr,
            rkey: Key(atomic().rkey),
            atomic: AtomicOperation::CompareSwap { compare: atomic().compare_add, swap: atomic().swap },
        },
        WR_ATOMIC_FETCH_AND_ADD => Operation::Atomic {
            remote_addr: atomic().remote_addr,
            rkey: Key(atomic().rkey),
            atomic: AtomicOperation::FetchAdd(atomic().compare_add),
        },
        WR_LOCAL_INV | WR_BIND_MW | WR_SEND_WITH_INV | WR_TSO | WR_DRIVER1 | WR_ATOMIC_WRITE => {
            return Err(Errno::OPNOTSUPP);
        }
        _ => return Err(Errno::INVAL),
    })
}

/// Reads a receive request.
///
/// # Errors
///
/// `EINVAL` for an invalid list.
///
/// # Safety
///
/// `wr` is a request as `ibv_post_recv()` demands: its ranges may be read.
#[inline]
pub(crate) unsafe fn receive_request(
    wr: *const IbvRecvWr,
    buffer: &mut SgeBuffer,
) -> Result<ReceiveRequest<'_>, Errno> {
    // SAFETY: the caller promises a request.
    let wr = unsafe { &*wr };
    // SAFETY: the caller promises the ranges.
    let sges = unsafe { buffer.fill(wr.sg_list, wr.num_sge) }?;
    Ok(ReceiveRequest { wr_id: wr.wr_id, sges })
}

/// A completion as `ibv_poll_cq()` returns it.
#[inline]
pub(crate) const fn completion(completion: &Completion) -> IbvWc {
    let (imm_data, with_immediate) = match completion.immediate {
        Some(immediate) => (immediate, WC_WITH_IMM),
        None => (0, 0),
    };
    IbvWc {
        wr_id: completion.wr_id,
        status: completion.status as u32,
        opcode: completion.kind as u32,
        vendor_err: 0,
        byte_len: completion.len,
        imm_data,
        qp_num: completion.qp.0,
        src_qp: completion.source_qp.0,
        wc_flags: with_immediate | if completion.has_grh { WC_GRH } else { 0 },
        pkey_index: 0,
        slid: 0,
        sl: completion.service_level,
        dlid_path_bits: 0,
    }
}

/// The error number of a refusal.
pub(crate) const fn errno(refused: Refused) -> Errno {
    match refused {
        Refused::Invalid => Errno::INVAL,
        Refused::Full | Refused::NumbersMissing => Errno::NOMEM,
        Refused::Busy => Errno::BUSY,
        Refused::RouteMissing(..) => Errno::HOSTUNREACH,
        Refused::Unsupported => Errno::OPNOTSUPP,
    }
}

/// Access flags without the optional ones and those that only describe the memory (`IBV_ACCESS_HUGETLB`) or its addresses
/// ([`is_zero_based`]).
///
/// # Errors
///
/// `EOPNOTSUPP` for flags of memory windows and paging, which the adapter does not have, `EINVAL` for unknown ones.
pub(crate) fn access(flags: u32) -> Result<Access, Errno> {
    if flags & (ACCESS_MW_BIND | ACCESS_ON_DEMAND) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Access::from_bits(flags & !(ACCESS_OPTIONAL_RANGE | ACCESS_HUGETLB | ACCESS_ZERO_BASED)).ok_or(Errno::INVAL)
}

/// True if requests name the first byte of a region by address 0.
pub(crate) const fn is_zero_based(flags: u32) -> bool {
    flags & ACCESS_ZERO_BASED != 0
}

/// The type of a queue pair, or `EOPNOTSUPP` for those that the adapter does not have.
pub(crate) const fn qp_type(code: u32) -> Result<QpType, Errno> {
    match code {
        QPT_RC => Ok(QpType::Rc),
        QPT_UC => Ok(QpType::Uc),
        QPT_UD => Ok(QpType::Ud),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The code of a type of queue pairs.
pub(crate) const fn qp_type_code(kind: QpType) -> u32 {
    match kind {
        QpType::Rc => QPT_RC,
        QpType::Uc => QPT_UC,
        QpType::Ud => QPT_UD,
    }
}

/// The request to create a queue pair in a protection domain.
///
/// # Errors
///
/// `EINVAL` without a completion queue, `EOPNOTSUPP` for a type that the adapter does not have.
///
/// # Safety
///
/// The completion queues and the shared receive queue are null or live objects of this provider.
pub(crate) unsafe fn qp_init(attr: &IbvQpInitAttr, pd: Pd) -> Result<QpInit, Errno> {
    // SAFETY: by the caller's promise, here and below.
    let send_cq = unsafe { embedding::<CqObject>(attr.send_cq) }.ok_or(Errno::INVAL)?.cq;
    // SAFETY: as above.
    let receive_cq = unsafe { embedding::<CqObject>(attr.recv_cq) }.ok_or(Errno::INVAL)?.cq;
    // SAFETY: as above.
    let srq = unsafe { embedding::<SrqObject>(attr.srq) }.map(|srq| srq.srq);
    Ok(QpInit {
        kind: qp_type(attr.qp_type)?,
        pd,
        send_cq,
        receive_cq,
        srq,
        signal_all: attr.sq_sig_all != 0,
        sends_max: attr.cap.max_send_wr,
        receives_max: attr.cap.max_recv_wr,
        send_sges_max: attr.cap.max_send_sge,
        receive_sges_max: attr.cap.max_recv_sge,
        inline_max: attr.cap.max_inline_data,
    })
}

/// What `ibv_create_qp_ex()` asks for beyond [`qp_init`]: the operations of the new interface for posting, 0 for none.
///
/// # Errors
///
/// `EINVAL` without a protection domain, `EOPNOTSUPP` for extensions and operations that the adapter does not have.
pub(crate) fn qp_send_operations(attr: &IbvQpInitAttrEx) -> Result<u64, Errno> {
    const SUPPORTED: u64 = QP_EX_WITH_RDMA_WRITE
        | QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | QP_EX_WITH_SEND
        | QP_EX_WITH_SEND_WITH_IMM
        | QP_EX_WITH_RDMA_READ
        | QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    if attr.comp_mask & QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        return Err(Errno::INVAL);
    }
    let known = QP_INIT_ATTR_PD | QP_INIT_ATTR_CREATE_FLAGS | QP_INIT_ATTR_SEND_OPS_FLAGS;
    let creates = if attr.comp_mask & QP_INIT_ATTR_CREATE_FLAGS != 0 { attr.create_flags } else { 0 };
    let operations = if attr.comp_mask & QP_INIT_ATTR_SEND_OPS_FLAGS != 0 { attr.send_ops_flags } else { 0 };
    if attr.comp_mask & !known != 0 || creates != 0 || operations & !SUPPORTED != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(operations)
}

/// The capacities of a queue pair, as the program sees them after its creation.
pub(crate) const fn qp_capacities(init: &QpInit) -> IbvQpCap {
    IbvQpCap {
        max_send_wr: init.sends_max,
        max_recv_wr: init.receives_max,
        max_send_sge: init.send_sges_max,
        max_recv_sge: init.receive_sges_max,
        max_inline_data: init.inline_max,
    }
}

/// The request of `ibv_create_srq_ex()` as `ibv_create_srq()` has it, with `pd` apart.
///
/// # Errors
///
/// `EINVAL` without a protection domain, `EOPNOTSUPP` for other types of shared receive queues.
pub(crate) fn srq_init(attr: &IbvSrqInitAttrEx) -> Result<IbvSrqInitAttr, Errno> {
    if attr.comp_mask & SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        return Err(Errno::INVAL);
    }
    let basic = attr.comp_mask & SRQ_INIT_ATTR_TYPE == 0 || attr.srq_type == SRQT_BASIC;
    if !basic || attr.comp_mask & !(SRQ_INIT_ATTR_PD | SRQ_INIT_ATTR_TYPE) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(IbvSrqInitAttr { srq_context: attr.srq_context, attr: attr.attr })
}

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

#[cfg(test)]
mod tests;
