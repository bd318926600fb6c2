//! Packets of peers: checked, matched with receive requests, executed and acknowledged.

mod datagrams;
mod payloads;
mod requests;
mod responses;

use crate::engine::Engine;
use crate::memory::{Memory, Regions};
use crate::packet::{HeaderReader, PacketKind, Syndrome, Tag, flags};
use crate::queues::SgeList;
use crate::types::{Access, Pd, Sge};
use alloc::vec::Vec;
use isthmus_layout::EndpointAddress;

/// The use of the next payload of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadUse {
    /// A request of the peer.
    Receive {
        slot: u32,
        serial: u32,
    },
    /// The response to a request of this device.
    Response {
        slot: u32,
        sequence: u32,
    },
    Discard,
}

/// Where a payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadTarget {
    /// The transport copies the payload into one range of the program's memory.
    Range {
        /// The address of the first byte.
        addr: u64,
        /// The token for [`Engine::payload_received`].
        token: u64,
    },
    /// The caller collects the bytes.
    Collect {
        /// The token for [`Engine::payload_received`].
        token: u64,
    },
    /// The payload is not wanted.
    Discard,
}

impl Engine {
    /// Handles a packet of a peer, with its whole body. A packet that the peer could not have sent is dropped and counted.
    #[inline]
    pub fn receive(&mut self, from: EndpointAddress, tag: u64, body: &[u8], memory: &mut impl Memory) {
        let Some(tag) = Tag::parse(tag) else { return self.violations += 1 };
        if tag.kind == PacketKind::Payload {
            return self.receive_short_payload(from, body, memory);
        }
        // Nothing comes between a header and its payload.
        if !self.peers.is_empty()
            && let Some(missing) = self.peers.remove(&from)
        {
            self.violations += 1;
            self.payload_is_lost(missing);
        }
        let mut words = HeaderReader(body);
        let handled = match tag.kind {
            PacketKind::Send => self.receive_send(from, tag, &mut words, memory),
            PacketKind::Datagram => self.receive_datagram(from, tag, &mut words, memory),
            PacketKind::Write => self.receive_write(from, tag, &mut words, memory),
            PacketKind::Read => self.receive_read(from, tag, &mut words, memory),
            PacketKind::Atomic => self.receive_atomic(from, tag, &mut words, memory),
            PacketKind::Response => self.receive_response(from, tag, &mut words, memory),
            PacketKind::Ack => self.receive_ack(from, tag),
            PacketKind::Describe => self.receive_description(from, tag),
            PacketKind::Payload => None,
        };
        if handled.is_none() && !matches!(tag.kind, PacketKind::Ack | PacketKind::Describe) && tag.has(flags::FOLLOWS) {
            self.expect(from, PayloadUse::Discard);
        }
    }

    fn expect(&mut self, from: EndpointAddress, payload: PayloadUse) {
        self.peers.insert(from, payload);
    }

    fn receive_ack(&mut self, from: EndpointAddress, tag: Tag) -> Option<()> {
        let slot = self.slot(tag.destination)?;
        // One side of a connection is ready before the other one.
        let qp = self.qp(slot).filter(|qp| qp.can_receive())?;
        let Some(syndrome) = tag.syndrome().filter(|_| qp.peer == Some(from) && qp.is_reliable()) else {
            self.violations += u64::from(qp.search.is_none());
            return None;
        };
        if syndrome == Syndrome::NotConnected && !qp.requester.is_of_attempt(tag.count) {
            return None; // An attempt of an earlier connection was refused.
        }
        if syndrome != Syndrome::NotConnected && !self.note_executed(slot, tag.count) {
            self.violations += 1;
            return None;
        }
        self.handle_syndrome(slot, syndrome);
        Some(())
    }
}

/// The part of a list that begins `skip` bytes after its beginning and has `len` bytes.
fn part(sges: &[Sge], mut skip: u64, mut len: u64) -> Vec<Sge> {
    let mut ranges = Vec::new();
    for sge in sges {
        let skipped = skip.min(u64::from(sge.len));
        skip -= skipped;
        let taken = len.min(u64::from(sge.len) - skipped);
        len -= taken;
        if taken > 0 {
            ranges.push(Sge { addr: sge.addr + skipped, len: taken as u32, lkey: sge.lkey });
        }
    }
    ranges
}

/// The first `len` bytes of a list, as addresses of the program that the adapter may write.
#[inline]
fn locate_list(regions: &mut Regions, pd: Pd, sges: &[Sge], len: u64) -> Option<SgeList> {
    if let [sge] = sges {
        let taken = Sge { len: len as u32, ..*sge };
        return regions.locate_sge(pd, &taken, Access::LOCAL_WRITE).map(SgeList::One);
    }
    let mut ranges = part(sges, 0, len);
    for range in &mut ranges {
        *range = regions.locate_sge(pd, range, Access::LOCAL_WRITE)?;
    }
    Some(SgeList::new(&ranges))
}

/// Copies bytes into ranges, as far as both go.
#[inline]
fn scatter(memory: &mut impl Memory, into: &[Sge], mut bytes: &[u8]) {
    for range in into {
        let (now, rest) = bytes.split_at(bytes.len().min(range.len as usize));
        if !now.is_empty() {
            memory.write(range.addr, now);
        }
        bytes = rest;
    }
}

#[cfg(test)]
mod tests;
