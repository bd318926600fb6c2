//! Transmission of packets. A packet is built when the link has room, so that it carries the newest acknowledgement.

use super::endpoint::NackPacket;
use super::outbox::OutboxEntry;
use super::partner::Partner;
use super::{Address, Endpoint, PayloadRange, Time, Transmit};
use crate::wire::{
    ConnectReply, ConnectRequest, Dialect, Eager, Liback, Medium, MessageHead, Notify, Packet, PullReply,
    SMALL_BYTES_MAX, SeqNum, Sizes, TINY_BYTES_MAX,
};

/// The number of packets that an entry is sent in.
fn fragments(entry: &OutboxEntry, sizes: &Sizes) -> u32 {
    match entry {
        OutboxEntry::Eager { length, .. } if *length as usize > SMALL_BYTES_MAX => {
            length.div_ceil(sizes.fragment_bytes())
        }
        _ => 1,
    }
}

impl Endpoint {
    /// Returns the next packet to send. The caller repeats this, while the link has room, after every call that may
    /// have changed the endpoint.
    pub fn transmit(&mut self, now: Time) -> Option<Transmit> {
        let transmit = self.transmit_any(now)?;
        self.traffic.sent_bytes += transmit.packet.data().map_or(0, |source| u64::from(source.len));
        Some(transmit)
    }

    fn transmit_any(&mut self, now: Time) -> Option<Transmit> {
        if let Some((to, refusal)) = self.nacks.pop_front() {
            let packet = match refusal {
                NackPacket::Lib(nack) => Packet::NackLib(nack),
                NackPacket::Mcp(nack) => Packet::NackMcp(nack),
            };
            return Some(Transmit { to, packet });
        }
        if let Some(question) = self.transmit_question() {
            return Some(question);
        }
        self.data_next = !self.data_next;
        if self.data_next {
            self.transmit_data().or_else(|| self.transmit_partner(now))
        } else {
            self.transmit_partner(now).or_else(|| self.transmit_data())
        }
    }

    /// Returns a PULL.
    fn transmit_question(&mut self) -> Option<Transmit> {
        while let Some(handle) = self.request_queue.pop_front() {
            let Some(pull) = self.pulls.get_mut(&handle) else { continue };
            let Some(ask) = pull.transfer.next_request() else {
                pull.is_queued = false;
                continue;
            };
            // Transfers take turns, one request each, so that they advance together.
            self.request_queue.push_back(handle);
            let Some(pull) = self.pulls.get(&handle) else { continue };
            if let Some(packet) = self.pull_packet(handle, pull, ask) {
                return Some(Transmit { to: pull.announced.from.peer, packet: Packet::Pull(packet) });
            }
        }
        None
    }

    /// Returns a PULL_REPLY.
    fn transmit_data(&mut self) -> Option<Transmit> {
        let (to, puller, send, frame, slice) = self.next_requested_frame()?;
        let data = PayloadRange { send, at: slice.msg_offset, len: slice.len };
        let frame_seqnum = frame as u8;
        Some(Transmit {
            to,
            packet: Packet::PullReply(PullReply { frame_seqnum, msg_offset: slice.msg_offset, puller, data }),
        })
    }

    /// Transmits any other packet, of the next partner in the queue.
    fn transmit_partner(&mut self, now: Time) -> Option<Transmit> {
        while let Some(address) = self.send_queue.pop_front() {
            let packet = self.packet_to(now, address);
            if let Some(partner) = self.partners.get_mut(&address) {
                partner.is_queued = false;
            }
            self.update(now, address);
            if let Some(packet) = packet {
                return Some(Transmit { to: address.peer, packet });
            }
        }
        None
    }

    fn packet_to(&mut self, now: Time, address: Address) -> Option<Packet<PayloadRange>> {
        let partner = self.partners.get_mut(&address)?;
        if let Some(reply) = partner.replies.pop_front() {
            return Some(Packet::ConnectReply(ConnectReply {
                dst_endpoint: address.endpoint,
                src_endpoint: self.setup.number,
                src_dst_peer_index: Some(address.peer),
                src_session_id: reply.session,
                target_session_id: self.setup.session,
                target_recv_seqnum_start: partner.inbox.next(),
                connect_seqnum: reply.seqnum,
                status: reply.status,
            }));
        }
        let tuning = &self.setup.tuning;
        let next = partner.inbox.next();
        if let Some(connect) = partner.connects.iter_mut().find(|connect| connect.is_due(now)) {
            let wait_us = tuning.resend_us_min.saturating_mul(1 << connect.times.min(20)).min(tuning.resend_us);
            connect.record_try(now.after_us(wait_us.max(1)));
            partner.told.get_or_insert(next);
            return Some(Packet::ConnectRequest(ConnectRequest {
                dst_endpoint: address.endpoint,
                src_endpoint: self.setup.number,
                src_dst_peer_index: Some(address.peer),
                src_session_id: self.setup.session,
                app_key: connect.key,
                target_recv_seqnum_start: next,
                connect_seqnum: connect.seqnum,
            }));
        }
        let sizes = self.setup.sizes;
        let frame = partner.outbox.frame(now, tuning, |entry| fragments(entry, &sizes));
        if let Some((seq, entry, fragment, again)) = frame {
            self.traffic.retransmitted += u64::from(again);
            return self.packet_of(address, seq, entry, fragment);
        }
        if partner.inbox.ack_at().is_none_or(|at| at > now) {
            return None;
        }
        let (lib_seqnum, acknum) = partner.inbox.explicit_ack();
        Some(Packet::Liback(Liback {
            dst_endpoint: address.endpoint,
            src_endpoint: self.setup.number,
            session: partner.session_back()?,
            lib_seqnum,
            acknum,
        }))
    }

    /// Returns a numbered packet.
    fn packet_of(
        &mut self,
        to: Address,
        seq: SeqNum,
        entry: OutboxEntry,
        fragment: u32,
    ) -> Option<Packet<PayloadRange>> {
        let partner = self.partners.get_mut(&to)?;
        let (lib_seqnum, lib_piggyack) = (seq, partner.inbox.piggyback_ack());
        let (dst_endpoint, src_endpoint) = (to.endpoint, self.setup.number);
        let session = partner.true_session?;
        let head =
            |match_info| MessageHead { dst_endpoint, src_endpoint, lib_seqnum, lib_piggyack, match_info, session };
        Some(match entry {
            OutboxEntry::Eager { send, match_info, length } => {
                self.eager_packet(head(match_info), send, length, fragment)
            }
            OutboxEntry::Announce { match_info, length, region, .. } => Packet::Rndv(crate::wire::Rndv {
                head: head(match_info),
                msg_length: length,
                pulled_rdma_id: region.id,
                pulled_rdma_seqnum: region.seqnum,
                pulled_rdma_offset: 0,
            }),
            OutboxEntry::Notify { total_length, region } => Packet::Notify(Notify {
                dst_endpoint,
                src_endpoint,
                session: Partner::session_back(partner)?,
                total_length,
                pulled_rdma_id: region.id,
                pulled_rdma_seqnum: region.seqnum,
                lib_seqnum,
                lib_piggyack,
            }),
        })
    }

    fn eager_packet(&self, head: MessageHead, send: super::SendId, length: u32, fragment: u32) -> Packet<PayloadRange> {
        let whole = PayloadRange { send, at: 0, len: length };
        if length as usize <= TINY_BYTES_MAX {
            return Packet::Tiny(Eager { head, data: whole });
        }
        if length as usize <= SMALL_BYTES_MAX {
            return Packet::Small(Eager { head, data: whole });
        }
        let bytes = self.setup.sizes.fragment_bytes();
        let at = fragment * bytes;
        let mx = self.setup.dialect == Dialect::Mx;
        Packet::Medium(Medium {
            head,
            length,
            // A message has no more fragments than 8 bits can number.
            frag_seqnum: fragment as u8,
            frag_pipeline: if mx { Medium::<()>::PIPELINE } else { 0 },
            data: PayloadRange { send, at, len: bytes.min(length - at) },
        })
    }
}
