//! Reads and atomic operations: the responses to those of peers, and the responses of peers.

use super::{PayloadUse, locate_list, scatter};
use crate::engine::Engine;
use crate::memory::Memory;
use crate::outgoing::{Outgoing, ResponseContent};
use crate::packet::{HeaderReader, Tag, flags};
use crate::requester::Source;
use crate::types::{Access, AtomicOperation, Key, Sge, Status};
use isthmus_layout::EndpointAddress;

impl Engine {
    /// The program's address of bytes that a peer names by a key, an address and a length, if the region and the queue pair allow the
    /// access, and the memory is there. Counts a refusal.
    pub(super) fn locate_remote(
        &mut self,
        slot: u32,
        named: (Key, u64, u64),
        access: Access,
        memory: &impl Memory,
    ) -> Option<u64> {
        let found = self.locate_allowed(slot, named, access);
        let found = found.filter(|addr| named.2 == 0 || memory.is_mapped(*addr, named.2));
        if found.is_none() {
            self.count_refused(slot);
        }
        found
    }

    fn locate_allowed(&mut self, slot: u32, (key, at, len): (Key, u64, u64), access: Access) -> Option<u64> {
        let qp = self.qp(slot)?;
        let pd = qp.init.pd;
        if !qp.attributes.access.contains(access) {
            return None;
        }
        if len == 0 {
            return Some(at);
        }
        self.regions.locate(pd, key, at, len, access)
    }

    pub(super) fn respond_to_read(
        &mut self,
        slot: u32,
        at: u64,
        len: u32,
        key: Key,
        memory: &impl Memory,
    ) -> Option<()> {
        let addr = self.locate_remote(slot, (key, at, u64::from(len)), Access::REMOTE_READ, memory)?;
        self.count_served(slot, (key, at, u64::from(len)));
        self.respond(slot, ResponseContent::Bytes(Sge { addr, len, lkey: key.0 }))
    }

    pub(super) fn respond_to_atomic(
        &mut self,
        slot: u32,
        at: u64,
        key: Key,
        operation: AtomicOperation,
        memory: &mut impl Memory,
    ) -> Option<()> {
        let addr = self.locate_remote(slot, (key, at, 8), Access::REMOTE_ATOMIC, memory)?;
        if !addr.is_multiple_of(8) {
            return None;
        }
        self.count_served(slot, (key, at, 8));
        let before = memory.atomic(addr, operation);
        self.respond(slot, ResponseContent::Number(before))
    }

    fn respond(&mut self, slot: u32, content: ResponseContent) -> Option<()> {
        let (qp, _, outbox) = self.parts(slot)?;
        qp.peer?;
        let serial = qp.responder.add_response();
        outbox.push_back(Outgoing::Response { slot, serial, content });
        Some(())
    }

    pub(super) fn receive_response(
        &mut self,
        from: EndpointAddress,
        tag: Tag,
        words: &mut HeaderReader<'_>,
        memory: &mut impl Memory,
    ) -> Option<()> {
        let slot = self.slot(tag.destination)?;
        let qp = self.qp(slot)?;
        let connected = qp.peer == Some(from) && qp.is_reliable();
        if connected && !qp.can_receive() {
            return None; // The connection has ended meanwhile.
        }
        if !connected || !self.note_executed(slot, tag.count) {
            self.violations += 1;
            return None;
        }
        let (qp, regions, _) = self.parts(slot)?;
        let pd = qp.init.pd;
        let Some((sequence, entry)) = qp.requester.awaiting_response() else {
            self.violations += 1;
            return None;
        };
        let follows = tag.has(flags::FOLLOWS);
        let len = if follows { words.word()? } else { words.0.len() as u32 };
        if len != entry.len {
            self.violations += 1;
            return None;
        }
        if follows {
            entry.expect_payload();
            self.expect(from, PayloadUse::Response { slot, sequence });
            return Some(());
        }
        let Source::Memory(list) = &entry.source else { return None };
        match locate_list(regions, pd, list.as_slice(), u64::from(len)) {
            Some(into) => {
                scatter(memory, into.as_slice(), words.0);
                self.answered(slot, sequence);
            }
            None => self.fail_first_unacked(slot, Status::LocalProtection),
        }
        Some(())
    }

    /// The response to a request is complete.
    pub(super) fn answered(&mut self, slot: u32, sequence: u32) {
        let Some(qp) = self.qp_mut(slot) else { return };
        if !qp.requester.answered(sequence) {
            return;
        }
        self.pump(slot);
        self.retire(slot);
    }
}
