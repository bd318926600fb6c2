//! Rights, and the creation of queue pairs and shared receive queues.

use crate::abi::consts::*;
use crate::abi::objects::{CqObject, SrqObject, embedding};
use crate::abi::queries::{IbvQpCap, IbvQpInitAttr, IbvQpInitAttrEx, IbvSrqInitAttr, IbvSrqInitAttrEx};
use crate::attributes::COMPLETION_VECTORS;
use isthmus_verbs::{Access, Pd, QpInit, QpType};
use rustix::io::Errno;

/// Bytes that each queue pair takes inline, at least. Other adapters round up as well, and programs such as `rdma_xclient` rely on it.
const INLINE_BYTES_MIN: u32 = 64;

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

/// Checks the completion vector of a new queue.
///
/// # Errors
///
/// `EINVAL` if the device has fewer vectors.
pub(crate) fn completion_vector(vector: u32) -> Result<(), Errno> {
    if vector < COMPLETION_VECTORS { Ok(()) } else { Err(Errno::INVAL) }
}

/// The type of a queue pair, or `EOPNOTSUPP` for those that the adapter does not have.
pub(super) const fn qp_type(code: u32) -> Result<QpType, Errno> {
    match code {
        QPT_RC => Ok(QpType::Rc),
        QPT_UC => Ok(QpType::Uc),
        QPT_UD => Ok(QpType::Ud),
        _ => Err(Errno::OPNOTSUPP),
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
        inline_max: attr.cap.max_inline_data.max(INLINE_BYTES_MIN),
    })
}

/// The operations of the newer interface for posting that `ibv_create_qp_ex()` asks for; 0 for none. [`qp_init`] reads the rest.
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
