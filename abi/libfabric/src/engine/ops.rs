//! The operations in progress, by the tokens that the client library and other endpoints use for them.

use crate::engine::events::CounterKind;
use crate::engine::header::PARAMETER_BITS;
use crate::engine::iovecs::IoVecs;
use crate::engine::receive::{Meta, Receive};
use crate::engine::regions::Region;
use crate::errno::Errno;
use isthmus_client::{DomainId, EndpointAddress};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

/// Flag of a client's token: the message is over when there is room for it, and counts as waiting until then.
pub(crate) const EAGER: u64 = 1 << 60;
/// Flag of a client's token: the operation goes on after the message, unless the message fails.
pub(crate) const OP_CONTINUES: u64 = 1 << 61;

/// Flag of a client's token: the completion of the message returns memory that the operation lent.
pub(crate) const PAYLOAD: u64 = 1 << 62;

/// The width of an operation's slot number in bits.
const INDEX_BITS: u32 = 24;

/// The identifier of an operation: slot and generation. It has as many bits as the parameter of a header, and is never
/// zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpId(u64);

impl OpId {
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the operation ID in a client's token or in the parameter of a header.
    pub(crate) const fn of(bits: u64) -> Self {
        Self(bits & ((1 << PARAMETER_BITS) - 1))
    }
}

/// The report to the program when an operation of its own is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) wants_completion: bool,
    /// The operation was injected: the program considers it complete and has no context for it. Its end is only
    /// counted.
    pub(crate) injected: bool,
    pub(crate) counter_kind: CounterKind,
    pub(crate) len: usize,
}

/// The state of an operation that ends by a reply of the peer. The operation does not end before the client library has
/// returned all lent memory, whatever the peer replies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpProgress {
    /// The number of buffers that the client library holds.
    pub(crate) lent: u8,
    /// The reply has arrived. Further replies have no effect.
    pub(crate) replied: bool,
    /// The result of the operation. It is reported once no memory is lent.
    pub(crate) outcome: Option<Option<Errno>>,
}

/// An operation.
#[derive(Debug)]
pub(crate) enum Op {
    /// A send. With `acknowledged`, it ends when `to` replies.
    Send { report: Report, to: EndpointAddress, acknowledged: bool, progress: OpProgress },
    /// A receive that is being filled with a payload.
    Receive { receive: Receive, meta: Meta },
    /// A request to `to`. The reply goes `into`.
    Request { report: Report, to: EndpointAddress, into: IoVecs, progress: OpProgress },
    /// A write by a peer into a region, in progress.
    RemoteWrite(RemoteWrite),
    /// An atomic operation by a peer. Its operands are arriving.
    RemoteAtomic { peer: u32, request: u64, words: [u64; 4] },
    /// A reply that is sent out of a region.
    RemoteRead { region: Arc<Region>, to: DomainId },
}

/// A write by a peer.
#[derive(Debug)]
pub(crate) struct RemoteWrite {
    pub(crate) region: Arc<Region>,
    pub(crate) place: *mut u8,
    pub(crate) len: u64,
    pub(crate) peer: u32,
    pub(crate) request: u64,
    pub(crate) data: Option<u64>,
}

// SAFETY: contexts are the program's words; the place is in a region, of which `Region` says why threads do not matter.
unsafe impl Send for Op {}

#[derive(Debug)]
enum SlotState {
    Free { next: Option<u32> },
    Used(Op),
}

/// The table of operations.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    slots: Vec<(u32, SlotState)>,
    free: Option<u32>,
    /// The number of unanswered requests to each peer.
    unanswered: HashMap<EndpointAddress, u32>,
}

impl Ops {
    /// Adds an operation.
    #[inline]
    pub(crate) fn insert(&mut self, op: Op) -> OpId {
        if let Op::Request { to, .. } = &op {
            *self.unanswered.entry(*to).or_default() += 1;
        }
        let index = match self.free {
            Some(index) => {
                let (_, place) = &mut self.slots[index as usize];
                if let SlotState::Free { next } = *place {
                    self.free = next;
                }
                *place = SlotState::Used(op);
                index
            }
            None => {
                self.slots.push((1, SlotState::Used(op)));
                (self.slots.len() - 1) as u32
            }
        };
        OpId(u64::from(self.slots[index as usize].0) << INDEX_BITS | u64::from(index))
    }

    fn index(&self, id: OpId) -> Option<usize> {
        let index = (id.0 & ((1 << INDEX_BITS) - 1)) as usize;
        let (generation, _) = self.slots.get(index)?;
        (u64::from(*generation) == id.0 >> INDEX_BITS).then_some(index)
    }

    /// Returns an operation, if it is still in progress.
    pub(crate) fn find(&self, id: OpId) -> Option<&Op> {
        match &self.slots[self.index(id)?].1 {
            SlotState::Used(op) => Some(op),
            SlotState::Free { .. } => None,
        }
    }

    /// Returns the state of an operation, if it is one that ends by a reply of the peer.
    pub(crate) fn progress(&mut self, id: OpId) -> Option<&mut OpProgress> {
        let index = self.index(id)?;
        match &mut self.slots[index].1 {
            SlotState::Used(Op::Send { progress, .. } | Op::Request { progress, .. }) => Some(progress),
            _ => None,
        }
    }

    /// Removes an operation. Its identifier is invalid from then on.
    #[inline]
    pub(crate) fn take(&mut self, id: OpId) -> Option<Op> {
        let index = self.index(id)?;
        let (generation, place) = &mut self.slots[index];
        let SlotState::Used(_) = place else { return None };
        let taken = std::mem::replace(place, SlotState::Free { next: self.free });
        *generation = generation.wrapping_add(1).max(1);
        self.free = Some(index as u32);
        match taken {
            SlotState::Used(op) => {
                self.answered(&op);
                Some(op)
            }
            SlotState::Free { .. } => None,
        }
    }

    fn answered(&mut self, op: &Op) {
        let Op::Request { to, .. } = op else { return };
        let count = self.unanswered.get_mut(to).expect("counted when it was entered");
        *count -= 1;
        if *count == 0 {
            self.unanswered.remove(to);
        }
    }

    /// Returns true if this peer has unanswered requests.
    #[inline]
    pub(crate) fn has_unanswered(&self, whom: EndpointAddress) -> bool {
        !self.unanswered.is_empty() && self.unanswered.contains_key(&whom)
    }

    /// Returns the operations in progress that match.
    pub(crate) fn find_all(&self, fits: impl Fn(&Op) -> bool) -> Vec<OpId> {
        let taken = self.slots.iter().enumerate().filter_map(|(index, (generation, place))| match place {
            SlotState::Used(op) if fits(op) => Some(OpId(u64::from(*generation) << INDEX_BITS | index as u64)),
            _ => None,
        });
        taken.collect()
    }

    /// Returns true if any operation in progress matches.
    pub(crate) fn any(&self, fits: impl Fn(&Op) -> bool) -> bool {
        self.slots.iter().any(|(_, place)| matches!(place, SlotState::Used(op) if fits(op)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_client::EndpointIndex;

    fn serve() -> Op {
        let region = Arc::new(Region::new(std::ptr::null_mut(), 0, 0));
        Op::RemoteRead { region, to: DomainId::new(1).expect("not zero") }
    }

    #[test]
    fn stale_op_id_does_not_resolve() {
        let mut ops = Ops::default();
        let (first, second) = (ops.insert(serve()), ops.insert(serve()));
        assert!(first != second && first.bits() != 0);
        assert!(ops.take(first).is_some() && ops.take(first).is_none());
        let third = ops.insert(serve());
        assert!(ops.find(first).is_none(), "its place has another one now");
        assert!(ops.find(third).is_some() && ops.find(second).is_some());
        assert_eq!(OpId::of(third.bits() | EAGER | OP_CONTINUES), third);
        assert_eq!(ops.find_all(|_| true).len(), 2);
    }

    #[test]
    fn tracks_peers_with_unanswered_requests() {
        let to = |domain| EndpointAddress {
            domain: DomainId::new(domain).expect("not zero"),
            endpoint: EndpointIndex::new(0).expect("the first endpoint is one"),
        };
        let (context, counter_kind) = (std::ptr::null_mut(), CounterKind::Read);
        let report = Report { context, flags: 0, wants_completion: false, injected: false, counter_kind, len: 0 };
        let request = |domain| {
            let (into, progress) = (IoVecs::one(std::ptr::null(), 0), OpProgress::default());
            Op::Request { report, to: to(domain), into, progress }
        };
        let mut ops = Ops::default();
        ops.insert(serve());
        let all = [1, 1, 2].map(|domain| ops.insert(request(domain)));
        assert!(ops.has_unanswered(to(1)) && ops.has_unanswered(to(2)) && !ops.has_unanswered(to(3)));
        assert!(ops.take(all[0]).is_some() && ops.take(all[0]).is_none() && ops.has_unanswered(to(1)));
        assert!(ops.take(all[1]).is_some() && !ops.has_unanswered(to(1)) && ops.has_unanswered(to(2)));
    }

    #[test]
    fn invalid_op_ids_resolve_to_nothing() {
        let mut ops = Ops::default();
        assert!(ops.take(OpId::of(0)).is_none() && ops.take(OpId::of(u64::MAX)).is_none());
    }
}
