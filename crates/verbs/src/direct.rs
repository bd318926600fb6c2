//! Operations that the requester performs itself, in memory of the peer that both have mapped.
//!
//! Both sides of a connection describe their queue pairs to each other. With the description the requester knows what the responder's
//! queue pair allows, and in which protection domain a key must lie. The caller then finds the memory by domain and key. The result is
//! that of a packet: an operation is performed only after all earlier requests of the queue pair were executed.

use crate::engine::{Engine, limits};
use crate::packet::{PacketKind, Tag};
use crate::queue_pair::QueuePair;
use crate::queues::total_len;
use crate::types::{Access, Completion, Operation, Pd, QpNumber, QpState, SendFlags, SendRequest, Sge};
use isthmus_layout::EndpointAddress;

/// The sender of a description wants one in return.
const WANTED: u16 = 1 << 11;

/// A description to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    /// The peer is to send one, too.
    wants_reply: bool,
}

impl Description {
    /// A description that serves the purpose of an earlier one, too.
    pub(crate) const fn and(self, earlier: Option<Self>) -> Self {
        Self { wants_reply: self.wants_reply || matches!(earlier, Some(Self { wants_reply: true })) }
    }

    /// The packet.
    pub(crate) fn tag(self, qp: &QueuePair) -> Tag {
        let wanted = if self.wants_reply { WANTED } else { 0 };
        Tag {
            kind: PacketKind::Describe,
            parameter: qp.attributes.access.bits() as u16 | wanted,
            count: qp.init.pd.0,
            destination: qp.attributes.destination,
        }
    }
}

/// The domain and the rights of the queue pair of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pd: u32,
    access: Access,
}

/// An operation that the requester may perform itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    /// The device that has the memory.
    pub to: EndpointAddress,
    /// The protection domain of the peer and the key, as [`Direct::name`] makes it.
    pub key: u64,
    /// The address by which the request names the first byte.
    pub at: u64,
    /// The length in bytes.
    pub len: u64,
}

impl Direct {
    /// The number under which the owner shows a region to peers.
    pub const fn name(pd: Pd, key: crate::types::Key) -> u64 {
        (pd.0 as u64) << 32 | key.0 as u64
    }
}

impl Engine {
    /// The queue pair owes its peer a description.
    pub(crate) fn describe(&mut self, slot: u32, wants_reply: bool) {
        if let Some(qp) = self.qp_mut(slot)
            && qp.is_reliable()
        {
            qp.responder.owe_description(Description { wants_reply });
            self.list_owing(slot);
        }
    }

    pub(crate) fn receive_description(&mut self, from: EndpointAddress, tag: Tag) -> Option<()> {
        let slot = self.slot(tag.destination)?;
        let qp = self.qp_mut(slot).filter(|qp| qp.can_receive())?;
        if qp.peer != Some(from) || !qp.is_reliable() {
            self.violations += u64::from(qp.search.is_none());
            return None;
        }
        let access = Access::from_bits_truncate(u32::from(tag.parameter));
        qp.requester.set_remote(Remote { pd: tag.count, access });
        if tag.has(WANTED) {
            self.describe(slot, false);
        }
        Some(())
    }

    /// Returns true if a queue pair that can send does not know its peer's rights yet. They come soon after the peer is ready to receive, so
    /// the caller takes what has arrived before it decides between packets and [`Self::direct`].
    #[inline]
    pub fn awaits_description(&self, number: QpNumber) -> bool {
        let qp = self.slot(number).and_then(|slot| self.qp(slot));
        qp.is_some_and(|qp| qp.state == QpState::ReadyToSend && qp.is_reliable() && qp.requester.remote().is_none())
    }

    /// The operation of a request, if the requester may perform it now. The caller falls back to [`Self::post_send`] if it cannot.
    #[inline]
    pub fn direct(&self, number: QpNumber, request: &SendRequest<'_>) -> Option<Direct> {
        let qp = self.qp(self.slot(number)?)?;
        if qp.requester.is_empty() { self.direct_later(number, request) } else { None }
    }

    /// The operation of a request, if the requester may perform it as soon as the peer has executed all earlier requests. None if those
    /// are not all writes, reads and atomic operations: they may take long.
    #[inline]
    pub fn direct_later(&self, number: QpNumber, request: &SendRequest<'_>) -> Option<Direct> {
        let (remote_addr, rkey, access) = match request.operation {
            Operation::Write { remote_addr, rkey, immediate: None } => (remote_addr, rkey, Access::REMOTE_WRITE),
            Operation::Read { remote_addr, rkey } if !request.flags.contains(SendFlags::INLINE) => {
                (remote_addr, rkey, Access::REMOTE_READ)
            }
            Operation::Atomic { remote_addr, rkey, .. } if remote_addr.is_multiple_of(8) => {
                (remote_addr, rkey, Access::REMOTE_ATOMIC)
            }
            _ => return None,
        };
        let qp = self.qp(self.slot(number)?)?;
        let one_sided = |entry: &crate::requester::SendEntry| !matches!(entry.operation, Operation::Send { .. });
        let requester = &qp.requester;
        let ready = qp.state == QpState::ReadyToSend && !requester.is_paused() && requester.entries().all(one_sided);
        let remote = requester.remote().filter(|remote| ready && remote.access.contains(access))?;
        let len = total_len(request.sges);
        let inline = request.flags.contains(SendFlags::INLINE);
        let len_max = u64::from(if inline { qp.init.inline_max } else { limits::MESSAGE_BYTES_MAX });
        let fits = request.sges.len() <= qp.init.send_sges_max as usize && (1..=len_max).contains(&len);
        let whole = !matches!(request.operation, Operation::Atomic { .. }) || len == 8;
        let key = Direct::name(Pd(remote.pd), rkey);
        (fits && whole).then_some(Direct { to: qp.peer?, key, at: remote_addr, len })
    }

    /// The number of send requests that are not over.
    pub fn sends_under_way(&self, number: QpNumber) -> usize {
        self.slot(number).and_then(|slot| self.qp(slot)).map_or(0, |qp| qp.requester.len())
    }

    /// The program's address of one range of a request that is performed directly. None if the adapter may not use the range.
    #[inline]
    pub fn local_range(&mut self, number: QpNumber, request: &SendRequest<'_>, sge: &Sge) -> Option<u64> {
        if request.flags.contains(SendFlags::INLINE) {
            return Some(sge.addr);
        }
        let access = match request.operation {
            Operation::Send { .. } | Operation::Write { .. } => Access::empty(),
            Operation::Read { .. } | Operation::Atomic { .. } => Access::LOCAL_WRITE,
        };
        let pd = self.qp(self.slot(number)?)?.init.pd;
        self.regions.locate_sge(pd, sge, access).map(|sge| sge.addr)
    }

    /// The caller does not know whether it has performed a request directly. The connection fails, because the request must not be
    /// performed twice.
    pub fn fail_direct(&mut self, number: QpNumber, request: &SendRequest<'_>) {
        let Some(slot) = self.slot(number) else { return };
        let Some(qp) = self.qp(slot) else { return };
        let (kind, cq) = (request.operation.completion_kind(), qp.init.send_cq);
        let completion = qp.completion(request.wr_id, crate::types::Status::RemoteOperation, kind);
        self.report(cq, completion);
        self.enter_error(slot);
    }

    /// The caller has performed a request directly: it is over.
    #[inline]
    pub fn complete_direct(&mut self, number: QpNumber, request: &SendRequest<'_>) {
        let Some(qp) = self.slot(number).and_then(|slot| self.qp(slot)) else { return };
        if !qp.init.signal_all && !request.flags.contains(SendFlags::SIGNALED) {
            return;
        }
        let (kind, cq) = (request.operation.completion_kind(), qp.init.send_cq);
        let len = match request.operation {
            Operation::Send { .. } | Operation::Write { .. } => 0,
            _ => total_len(request.sges) as u32,
        };
        let completion = qp.completion(request.wr_id, crate::types::Status::Success, kind);
        self.report(cq, Completion { len, ..completion });
    }
}
