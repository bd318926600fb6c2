//! Direct access of this endpoint to the memory of peers, which have registered it for that and granted it to us.
//!
//! ```text
//!   write, read ── copied, once
//!   atomic ─────── done by the processor, as the owner's own library does it: so all are atomic to each other
//! ```
//!
//! The other side takes no part: it may compute, or be stopped. An operation done here is over when the call returns. It is not begun while
//! a request that this endpoint made before is still with the other one, or a message on its way out: so everything keeps its order. An
//! access that cannot be done here is requested of the owner ([`request`](crate::engine::request)). Such are accesses to memory that shares
//! a page with other data or cannot be moved, to memory that was not registered for this or has a counter, and atomic operations on numbers
//! that no processor changes at once.

use crate::engine::arithmetic::AtomicOp;
use crate::engine::endpoint::Endpoint;
use crate::engine::iovecs::IoVecs;
use crate::engine::request::RmaRequest;
use crate::errno::Errno;
use isthmus_client::arena::{AccessRights, Evicted};

/// An endpoint that does everything directly in its peers' memory still makes progress after this many operations, for those that ask.
const DIRECT_OPS_PER_PROGRESS: u32 = 16;

impl Endpoint {
    /// Runs `act` on `len` bytes of a peer's memory. None, and nothing is done, where the peer has to be asked.
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

    /// Reads. False if the owner has to be asked for it.
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

    /// Does an atomic operation. None if the owner has to be asked for it; an error if it cannot be known whether it was done: that
    /// is never done twice.
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
