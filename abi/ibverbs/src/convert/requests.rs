//! Work requests and completions.

use crate::abi::consts::*;
use crate::abi::objects::{AhObject, embedding};
use crate::abi::requests::{IbvRecvWr, IbvSendWr, IbvSge, IbvWc};
use isthmus_verbs::{
    AtomicOperation, Completion, Key, Operation, QpNumber, QpType, ReceiveRequest, SendFlags, SendRequest, Sge, limits,
};
use rustix::io::Errno;
use std::ffi::c_int;

/// The ranges of a request that need no allocation.
pub(super) const SGES_INLINE: usize = 4;

/// Memory for the ranges of one request, to be reused for the next.
#[derive(Debug, Default)]
pub(crate) struct SgeBuffer {
    pub(super) few: [Sge; SGES_INLINE],
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
