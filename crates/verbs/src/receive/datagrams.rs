//! Datagrams of peers, which have no connection and no order.

use super::requests::Taken;
use super::{part, scatter};
use crate::engine::{Engine, limits};
use crate::memory::Memory;
use crate::packet::{HeaderReader, Tag, flags};
use crate::responder::{DatagramHead, InboundWork};
use crate::types::{Completion, Gid, QpNumber, QpType};
use isthmus_layout::EndpointAddress;

impl Engine {
    pub(super) fn receive_datagram(
        &mut self,
        from: EndpointAddress,
        tag: Tag,
        words: &mut HeaderReader<'_>,
        memory: &mut impl Memory,
    ) -> Option<()> {
        let slot = self.slot(tag.destination)?;
        let qp = self.qp(slot)?;
        if qp.init.kind != QpType::Ud {
            self.violations += 1;
            return None;
        }
        let (q_key, service_level) = (words.word()?, words.word()?);
        let full = qp.responder.inbound_len() >= limits::REQUESTS_MAX as usize;
        if full || !qp.can_receive() || q_key != qp.attributes.q_key {
            return None;
        }
        let immediate = words.word_if(tag.has(flags::IMMEDIATE))?;
        let gids = if tag.has(flags::GRH) { Some((words.gid()?, words.gid()?)) } else { None };
        let follows = tag.has(flags::FOLLOWS);
        let len = if follows { words.word()? } else { words.0.len() as u32 };
        if len > limits::DATAGRAM_BYTES_MAX {
            self.violations += 1;
            return None;
        }
        let (source, solicited, service_level) = (QpNumber(tag.count), tag.has(flags::SOLICITED), service_level as u8);
        let datagram = DatagramHead { len, immediate, gids, source, solicited, service_level };
        if follows {
            // The payload of a slow peer holds no receive request.
            self.accept(slot, from, tag, None, InboundWork::Datagram(datagram), memory);
        } else {
            self.deliver_datagram(slot, from, &datagram, words.0, memory);
        }
        Some(())
    }

    /// Gives a datagram to a receive request. Without one that has room, the datagram is lost.
    pub(super) fn deliver_datagram(
        &mut self,
        slot: u32,
        from: EndpointAddress,
        head: &DatagramHead,
        bytes: &[u8],
        memory: &mut impl Memory,
    ) {
        let (len, grh_bytes) = (head.len, limits::GRH_BYTES);
        let len_needed = u64::from(grh_bytes + len);
        let Some(Taken { into, completion, .. }) = self.take_receive(slot, from, len_needed) else { return };
        if let Some((source, destination)) = head.gids {
            scatter(memory, into.as_slice(), &grh(len, source, destination));
        }
        scatter(memory, &part(into.as_slice(), u64::from(grh_bytes), u64::from(len)), bytes);
        let completion = Completion {
            len: len + grh_bytes,
            immediate: head.immediate,
            source_qp: head.source,
            has_grh: head.gids.is_some(),
            service_level: head.service_level,
            solicited: head.solicited,
            ..completion
        };
        self.executed(slot, Some(completion), false);
    }
}

/// The GRH of a datagram: an IPv6 header with the GIDs as addresses. Its next header is that of RoCE v2, which is the type of all GIDs here:
/// libibverbs looks for a GID of that type when a program replies.
fn grh(len: u32, source: Gid, destination: Gid) -> [u8; 40] {
    const NEXT_HEADER_UDP: u8 = 17;
    const HOP_LIMIT: u8 = 64;
    let mut grh = [0; 40];
    grh[0] = 0x60;
    grh[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    (grh[6], grh[7]) = (NEXT_HEADER_UDP, HOP_LIMIT);
    grh[8..24].copy_from_slice(&source.0);
    grh[24..40].copy_from_slice(&destination.0);
    grh
}
