//! Direct access to registered memory of peers that have granted it to this endpoint.
//!
//! ```text
//!   write, read ── copied, once
//!   atomic ─────── done by the processor, as the owner's own library does it: so all are atomic to each other
//! ```
//!
//! The peer takes no part: it may compute, or be stopped. A direct operation is complete when the call returns. It does
//! not start while a request or a message of this endpoint to the same peer is pending, because operations must stay in
//! order. Any other access is requested of the owner ([`request`](crate::engine::request)): accesses to memory that
//! shares a page with other data or cannot be moved, to memory that was not registered for direct access or has a
//! counter, and atomic operations that the processor does not execute as one instruction.

use crate::engine::arithmetic::AtomicOp;
use crate::engine::endpoint::Endpoint;
use crate::engine::iovecs::IoVecs;
use crate::engine::request::RmaRequest;
use crate::errno::Errno;
use isthmus_client::arena::{AccessRights, Evicted};

/// The number of direct operations after which the endpoint makes progress, so that requests of peers are served.
const DIRECT_OPS_PER_PROGRESS: u32 = 16;

impl Endpoint {
    /// Runs `act` on `len` bytes of a peer's memory. Returns `None`, and does nothing, if the owner has to be asked.
    fn access_arena<T>(
        &mut self,
        rma_request: &RmaRequest,
        len: usize,
        want: AccessRights,
        act: impl FnOnce(*mut u8) -> Option<T>,
    ) -> Option<Result<T, Evicted>> {
        if len == 0 || self.domain.matcher().ops.has_unanswered(rma_request.to) {
            return None;
        }
        let arena_mapping = self.domain.peer_arena(rma_request.to.domain)?;
        let access = arena_mapping.access(rma_request.key, rma_request.offset, len as u64, want)?;
        let done = act(access.pointer().as_ptr())?;
        let left = access.finish();
        self.direct_ops = self.direct_ops.wrapping_add(1);
        if self.direct_ops.is_multiple_of(DIRECT_OPS_PER_PROGRESS) {
            self.progress();
        }
        Some(left.map(|()| done))
    }

    /// Writes. Returns false if the owner has to be asked to write. This includes memory evicted during the write, because the owner may
    /// not see the bytes then.
    ///
    /// # Safety
    ///
    /// The program lends the buffers for reading while we are here.
    pub(crate) unsafe fn write_direct(&mut self, rma_request: &RmaRequest, iovecs: &IoVecs) -> bool {
        let act = |place: *mut u8| {
            // SAFETY: as promised; the access covers as many bytes.
            unsafe { iovecs.copy_to_place(place) };
            Some(())
        };
        matches!(self.access_arena(rma_request, iovecs.len(), AccessRights::Write, act), Some(Ok(())))
    }

    /// Reads. Returns false if the owner has to be asked.
    ///
    /// # Safety
    ///
    /// The program lends the buffers for writing while we are here.
    pub(crate) unsafe fn read_direct(&mut self, rma_request: &RmaRequest, into: &IoVecs) -> bool {
        let act = |place: *mut u8| {
            // SAFETY: as promised; the access covers as many bytes.
            unsafe { into.copy_from_place(place) };
            Some(())
        };
        matches!(self.access_arena(rma_request, into.len(), AccessRights::Read, act), Some(Ok(())))
    }

    /// Executes an atomic operation. Returns `None` if the owner has to be asked. Returns an error if the outcome is
    /// unknown, because the operation must not be executed twice.
    ///
    /// # Safety
    ///
    /// The program lends the buffers for writing while we are here.
    pub(crate) unsafe fn operate_direct(
        &mut self,
        rma_request: &RmaRequest,
        what: u64,
        operands: &[u8],
        result: &IoVecs,
    ) -> Option<Result<(), Errno>> {
        let what = AtomicOp::parse(what).ok()?;
        if what.operand_bytes() != operands.len() {
            return None;
        }
        let want = match (what.only_reads(), what.reads()) {
            (true, _) => AccessRights::Read,
            (_, true) => AccessRights::Both,
            _ => AccessRights::Write,
        };
        let mut before = vec![0; if what.fetches() { what.target_bytes() } else { 0 }];
        let act = |place: *mut u8| {
            // SAFETY: the access covers as many bytes; the operands are as long as they have to be.
            what.is_atomic_at(place).then(|| unsafe { what.apply(place, operands, &mut before) })
        };
        match self.access_arena(rma_request, what.target_bytes(), want, act)? {
            Ok(()) => {
                // SAFETY: as promised.
                unsafe { result.copy_from(&before) };
                Some(Ok(()))
            }
            Err(Evicted) if what.only_reads() => None,
            Err(Evicted) => Some(Err(Errno::IO)),
        }
    }
}
