//! What this endpoint does in others' memory without asking: they have registered it for that, and granted it to us.
//!
//! ```text
//!   write, read ── copied, once
//!   atomic ─────── done by the processor, as the owner's own library does it: so all are atomic to each other
//! ```
//!
//! Nothing of the other side is needed: it may compute, or be stopped. What is done here is over when the call returns. It is not
//! begun while a request that this endpoint made before is still with the other one, or a message on its way out: so everything keeps its
//! order. Whatever cannot be done here is asked for ([`request`](crate::engine::request)): what shares a page with something else
//! or cannot be moved, what was not registered for this, what somebody counts, numbers that no processor changes at once.

use crate::engine::arithmetic::What;
use crate::engine::endpoint::Endpoint;
use crate::engine::pieces::Pieces;
use crate::engine::request::Demand;
use crate::errno::Errno;
use isthmus_client::arena::{Evicted, Want};

/// Who does everything in others' memory still has to serve those that ask, now and then.
const VISITS_PER_TURN: u32 = 16;

impl Endpoint {
    /// Has `act` done on `len` bytes of somebody else's. None, and nothing is done, where he has to be asked.
    fn visit<T>(
        &mut self,
        demand: &Demand,
        len: usize,
        want: Want,
        act: impl FnOnce(*mut u8) -> Option<T>,
    ) -> Option<Result<T, Evicted>> {
        if len == 0 || self.domain.matcher().ops.asks(demand.to) {
            return None;
        }
        let visitor = self.domain.visit(demand.to.domain)?;
        let visit = visitor.enter(demand.key, demand.offset, len as u64, want)?;
        let done = act(visit.place().as_ptr())?;
        let left = visit.leave();
        self.visits = self.visits.wrapping_add(1);
        if self.visits.is_multiple_of(VISITS_PER_TURN) {
            self.turn();
        }
        Some(left.map(|()| done))
    }

    /// Writes. False if the owner has to be asked for it, be it because nobody has seen what was written.
    ///
    /// # Safety
    ///
    /// The program lends the pieces for reading while we are here.
    pub(crate) unsafe fn write_direct(&mut self, demand: &Demand, pieces: &Pieces) -> bool {
        let act = |place: *mut u8| {
            // SAFETY: as promised; the visit has as many bytes.
            unsafe { pieces.copy_to_place(place) };
            Some(())
        };
        matches!(self.visit(demand, pieces.len(), Want::Write, act), Some(Ok(())))
    }

    /// Reads. False if the owner has to be asked for it.
    ///
    /// # Safety
    ///
    /// The program lends the pieces for writing while we are here.
    pub(crate) unsafe fn read_direct(&mut self, demand: &Demand, into: &Pieces) -> bool {
        let act = |place: *mut u8| {
            // SAFETY: as promised; the visit has as many bytes.
            unsafe { into.copy_from_place(place) };
            Some(())
        };
        matches!(self.visit(demand, into.len(), Want::Read, act), Some(Ok(())))
    }

    /// Does an atomic operation. None if the owner has to be asked for it; an error if it cannot be known whether it was done: that
    /// is never done twice.
    ///
    /// # Safety
    ///
    /// The program lends the pieces for writing while we are here.
    pub(crate) unsafe fn operate_direct(
        &mut self,
        demand: &Demand,
        what: u64,
        operands: &[u8],
        result: &Pieces,
    ) -> Option<Result<(), Errno>> {
        let what = What::parse(what).ok()?;
        if what.operand_bytes() != operands.len() {
            return None;
        }
        let want = match (what.only_reads(), what.reads()) {
            (true, _) => Want::Read,
            (_, true) => Want::Both,
            _ => Want::Write,
        };
        let mut before = vec![0; if what.fetches() { what.target_bytes() } else { 0 }];
        let act = |place: *mut u8| {
            // SAFETY: the visit has as many bytes; the operands are as long as they have to be.
            what.is_atomic_at(place).then(|| unsafe { what.apply(place, operands, &mut before) })
        };
        match self.visit(demand, what.target_bytes(), want, act)? {
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
