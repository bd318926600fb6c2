//! Memory regions: registered, changed and ended, with what is under way in them.

use super::{Engine, limits};
use crate::packet::Syndrome;
use crate::responder::Inbound;
use crate::types::{Access, CompletionKind, Key, Pd, Refused, Status};

impl Engine {
    /// Registers `len` bytes at `addr`, which requests call `iova`. Refused if the range wraps around, and for rights of peers to change
    /// memory that the adapter may not write.
    pub fn register(&mut self, pd: Pd, addr: u64, len: u64, iova: u64, access: Access) -> Result<Key, Refused> {
        self.pds.get(pd.0).ok_or(Refused::Invalid)?;
        if !rights_agree(access) {
            return Err(Refused::Invalid);
        }
        if addr.checked_add(len).is_none() || iova.checked_add(len).is_none() {
            return Err(Refused::Invalid);
        }
        if self.regions.len() >= limits::OBJECTS_MAX {
            return Err(Refused::Full);
        }
        Ok(self.regions.insert(pd, addr, len, iova, access))
    }

    /// Changes a region: its protection domain, its range (address and length in bytes), its rights. What is under way in it fails, as
    /// after [`Self::deregister`]. Refused if there is no such region or protection domain, or for rights that do not agree.
    pub fn reregister(
        &mut self,
        key: Key,
        pd: Option<Pd>,
        range: Option<(u64, u64)>,
        access: Option<Access>,
    ) -> Result<(), Refused> {
        if pd.is_some_and(|pd| self.pds.get(pd.0).is_none())
            || range.is_some_and(|(addr, len)| addr.checked_add(len).is_none())
            || !access.is_none_or(rights_agree)
        {
            return Err(Refused::Invalid);
        }
        let found = self.regions.change(key, |old_pd, old_range, old_access| {
            *old_pd = pd.unwrap_or(*old_pd);
            *old_range = range.unwrap_or(*old_range);
            *old_access = access.unwrap_or(*old_access);
        });
        if !found {
            return Err(Refused::Invalid);
        }
        self.end_uses(key);
        Ok(())
    }

    /// The protection domain, address and length, name of the first byte, and rights of a region.
    pub fn region(&self, key: Key) -> Option<(Pd, (u64, u64), u64, Access)> {
        self.regions.describe(key)
    }

    /// Ends a registration. Requests that name its key fail from now on, also those that are under way:
    /// after this call and [`Self::take_released`], nothing touches the memory.
    pub fn deregister(&mut self, key: Key) -> Result<(), Refused> {
        if !self.regions.remove(key) {
            return Err(Refused::Invalid);
        }
        self.end_uses(key);
        Ok(())
    }

    /// Ends what is under way in a region that has changed: its memory belongs to the program alone again.
    fn end_uses(&mut self, key: Key) {
        for slot in self.slots() {
            let Some(qp) = self.qp(slot).filter(|qp| qp.has_work_under_way()) else { continue };
            if qp.responder.lends_responses()
                && let Some(peer) = qp.peer
            {
                self.release(peer.domain);
            }
            self.end_uses_of_requests(slot, key);
            let packets = self.outbox.len();
            self.outbox.retain(|outgoing| outgoing.slot() != slot || !outgoing.lends(key));
            let revoked = self.outbox.len() < packets;
            let inbound = self.qp(slot).and_then(|qp| qp.responder.inbound().find(|request| request.work.uses(key)));
            match inbound.map(|request| request.taken.is_some()) {
                Some(true) => self.receive_failed(slot, key),
                None if !revoked => {}
                _ if self.qp(slot).is_some_and(|qp| qp.is_reliable()) => self.refuse(slot, Syndrome::Access),
                _ => self.forget_inbound(slot, |request| request.work.uses(key)),
            }
        }
    }

    /// Ends the first send request that needs a region.
    fn end_uses_of_requests(&mut self, slot: u32, key: Key) {
        let Some(qp) = self.qp(slot) else { return };
        let Some((sequence, entry)) = qp.requester.first_use(key) else { return };
        if let Some(to) = entry.destination(qp.peer) {
            self.release(to.domain);
        }
        self.fail_request(slot, sequence, Status::LocalProtection);
    }

    /// Receive requests that were taken for messages have lost their region.
    fn receive_failed(&mut self, slot: u32, key: Key) {
        let Some(qp) = self.qp_mut(slot) else { return };
        let cq = qp.init.receive_cq;
        let removed = qp.responder.remove(|request| request.work.uses(key));
        let Some(Inbound { taken: Some((_, completion)), from, .. }) = removed else { return };
        let failed = qp.completion(completion.wr_id, Status::LocalProtection, CompletionKind::Receive);
        self.report(cq, failed);
        self.release(from.domain);
        self.refuse(slot, Syndrome::Operation);
        self.enter_error(slot); // An unreliable one, too.
    }
}

/// A peer may change only what the adapter may write.
fn rights_agree(access: Access) -> bool {
    !access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) || access.contains(Access::LOCAL_WRITE)
}
