//! Handling of received packets (mxoe-wire 3.13, 8).

use super::endpoint::NackPacket;
use super::inbox::{FragmentRange, MessageInfo, NumberedKind};
use super::outbox::OutboxEntry;
use super::regions::RegionName;
use super::rendezvous::Announced;
use super::{Address, Endpoint, EndpointEvent, Ignored, Time};
use crate::StatusCode;
use crate::wire::{EndpointNumber, Liback, MessageHead, Nack, NackLib, Notify, Packet, PeerIndex, SeqNum, SessionId};

/// Limit of the negative acknowledgements that wait to be sent.
const NACKS_MAX: usize = 64;

/// The number of long messages that each partner may announce, however many others have announced.
const ANNOUNCED_MIN: u32 = 16;

/// The fields that numbered packets have in common.
struct Numbered {
    from: Address,
    session: SessionId,
    seq: SeqNum,
    ack: SeqNum,
    info: MessageInfo,
    frag_range: Option<FragmentRange>,
}

impl Numbered {
    fn message(
        from: Address,
        head: &MessageHead,
        kind: NumberedKind,
        length: u32,
        frag_range: Option<FragmentRange>,
    ) -> Self {
        Self {
            from,
            session: head.session,
            seq: head.lib_seqnum,
            ack: head.lib_piggyack,
            info: MessageInfo { kind, match_info: head.match_info, length },
            frag_range,
        }
    }

    fn whole(from: Address, head: &MessageHead, data: &[u8]) -> Self {
        // The data of TINY and SMALL is short.
        let len = data.len() as u32;
        Self::message(from, head, NumberedKind::Eager, len, Some(FragmentRange { number: 0, at: 0, len }))
    }

    /// `total_length` is stored as the length of the message, so that the number carries all contents of a NOTIFY.
    fn notify(from: Address, notify: &Notify) -> Self {
        let (id, seqnum) = (notify.pulled_rdma_id, notify.pulled_rdma_seqnum);
        let kind = NumberedKind::Finished { region: RegionName { id, seqnum } };
        Self {
            from,
            session: notify.session,
            seq: notify.lib_seqnum,
            ack: notify.lib_piggyack,
            info: MessageInfo { kind, match_info: 0, length: notify.total_length },
            frag_range: None,
        }
    }
}

impl Endpoint {
    /// Handles a packet from the host with index `from` in our table of peers. The caller takes the resulting [events](Self::event)
    /// before it releases the packet's data. An error is the reason why the packet changed nothing; it is counted.
    pub fn receive(&mut self, now: Time, from: PeerIndex, packet: &Packet<&[u8]>) -> Result<(), Ignored> {
        let received = self.receive_packet(now, from, packet);
        match received {
            Ok(()) => self.traffic.received_bytes += packet.data().map_or(0, |data| data.len() as u64),
            Err(reason) => self.ignored.add(reason),
        }
        received
    }

    fn receive_packet(&mut self, now: Time, peer: PeerIndex, packet: &Packet<&[u8]>) -> Result<(), Ignored> {
        if packet.dst_endpoint().is_some_and(|endpoint| endpoint != self.setup.number) {
            return Err(Ignored::WrongEndpoint);
        }
        let address = |endpoint: EndpointNumber| Address { peer, endpoint };
        let numbered = match packet {
            Packet::Tiny(eager) | Packet::Small(eager) => {
                Numbered::whole(address(eager.head.src_endpoint), &eager.head, eager.data)
            }
            Packet::Medium(fragment) => {
                let at = fragment.offset(self.setup.dialect, &self.setup.sizes);
                let at = u32::try_from(at).map_err(|_| Ignored::Inconsistent)?;
                let frag_range = FragmentRange { number: fragment.frag_seqnum, at, len: fragment.data.len() as u32 };
                let from = address(fragment.head.src_endpoint);
                Numbered::message(from, &fragment.head, NumberedKind::Eager, fragment.length, Some(frag_range))
            }
            Packet::Rndv(rndv) => {
                let (id, seqnum) = (rndv.pulled_rdma_id, rndv.pulled_rdma_seqnum);
                let kind =
                    NumberedKind::Announced { region: RegionName { id, seqnum }, offset: rndv.pulled_rdma_offset };
                Numbered::message(address(rndv.head.src_endpoint), &rndv.head, kind, rndv.msg_length, None)
            }
            Packet::Notify(notify) => Numbered::notify(address(notify.src_endpoint), notify),
            other => return self.receive_unnumbered(now, peer, other),
        };
        let from = numbered.from;
        let received = self.receive_numbered(now, numbered);
        self.update(now, from);
        received
    }

    fn receive_unnumbered(&mut self, now: Time, peer: PeerIndex, packet: &Packet<&[u8]>) -> Result<(), Ignored> {
        let address = |endpoint: EndpointNumber| Address { peer, endpoint };
        let (from, received) = match packet {
            Packet::ConnectRequest(request) => {
                let from = address(request.src_endpoint);
                (from, self.receive_request(now, from, request))
            }
            Packet::ConnectReply(reply) => {
                let from = address(reply.src_endpoint);
                (from, self.receive_reply(now, from, reply))
            }
            Packet::Liback(liback) => {
                let from = address(liback.src_endpoint);
                (from, self.receive_liback(now, from, liback))
            }
            Packet::NackLib(nack) => {
                let from = address(nack.src_endpoint);
                (from, self.receive_nack(now, from, nack))
            }
            Packet::Pull(pull) => {
                let from = address(pull.src_endpoint);
                (from, self.receive_pull(now, from, pull))
            }
            Packet::PullReply(reply) => return self.receive_frame(now, peer, reply),
            Packet::NackMcp(nack) => return self.pull_refused(now, peer, nack),
            _ => return Err(Ignored::NotForEndpoints),
        };
        self.update(now, from);
        received
    }

    /// Handles a numbered packet (8.2).
    fn receive_numbered(&mut self, now: Time, numbered: Numbered) -> Result<(), Ignored> {
        let Numbered { from, session, seq, ack, info, frag_range, .. } = numbered;
        if session != self.setup.session {
            let (dst_endpoint, src_endpoint) = (from.endpoint, self.setup.number);
            let nack_type = Nack::BadSession;
            let nack = NackLib { dst_endpoint, src_endpoint, nack_type, lib_seqnum: seq };
            self.queue_nack(from.peer, NackPacket::Lib(nack));
            return Err(Ignored::WrongSession);
        }
        let tuning = self.setup.tuning;
        let partner = self.partners.get_mut(&from).ok_or(Ignored::NotConnected)?;
        if partner.session_back().is_none() {
            return Err(Ignored::NotConnected);
        }
        if seq.sesnum() != partner.inbox.front().sesnum() || ack.sesnum() != partner.outbox.next().sesnum() {
            return Err(Ignored::WrongSesnum);
        }
        partner.last_seen = now;
        let ended = partner.outbox.ack(now, ack, false, &tuning);
        self.acknowledged(now, ended);
        let id = self.next_incoming();
        let Some(partner) = self.partners.get_mut(&from) else { return Ok(()) };
        let before = partner.inbox.early_bytes();
        let elsewhere = self.early_bytes - before;
        let long = self.announced.len() + self.pulls.len() + self.fetched.len();
        let full = partner.announced >= ANNOUNCED_MIN && long >= tuning.announced_max;
        let room = match info.kind {
            NumberedKind::Finished { .. } => Ok(()),
            _ if !self.is_accepting => Err(Ignored::NotAccepting),
            NumberedKind::Announced { .. } if full => Err(Ignored::TooManyAnnounced),
            NumberedKind::Announced { .. } | NumberedKind::Eager => Ok(()),
        };
        let room = room.map(|()| tuning.early_bytes_max.saturating_sub(elsewhere));
        let taken = partner.inbox.take(now, seq, info, frag_range, id, room);
        self.early_bytes = elsewhere + partner.inbox.early_bytes();
        let notified = if let NumberedKind::Finished { region } = info.kind { Some(region) } else { None };
        let taken = taken?;
        if let Some(region) = notified {
            // A NOTIFY takes effect at once, because earlier messages may wait for the region that it frees. It takes
            // effect once, because its number is recorded now.
            self.notified(now, from, region, info.length);
        }
        let bytes = frag_range.filter(|_| info.kind == NumberedKind::Eager).map(|frag_range| EndpointEvent::Bytes {
            message: taken.id,
            length: info.length,
            at: frag_range.at,
            len: frag_range.len,
        });
        self.begin(from, taken.id, bytes);
        if taken.ended {
            self.events.push_back(EndpointEvent::Received {
                message: taken.id,
                code: StatusCode::Success,
                xfer_length: info.length,
            });
        }
        let Some(partner) = self.partners.get_mut(&from) else { return Ok(()) };
        // Messages that have begun do not count as early.
        self.early_bytes = elsewhere + partner.inbox.early_bytes();
        partner.inbox.update(now, &tuning);
        if notified.is_some()
            && self.setup.dialect == crate::wire::Dialect::Mx
            && partner.inbox.front() == partner.inbox.next()
        {
            partner.inbox.ack_now(now);
        }
        Ok(())
    }

    /// Begins all messages that are next in order. The event for the packet's bytes follows the event that begins its message.
    fn begin(&mut self, from: Address, packet: super::IncomingId, mut bytes: Option<EndpointEvent>) {
        while let Some(begun) = self.partners.get_mut(&from).and_then(|partner| partner.inbox.begin()) {
            let MessageInfo { kind, match_info, length } = begun.info;
            let message = begun.id;
            match kind {
                NumberedKind::Finished { .. } => continue, // It took effect on arrival.
                NumberedKind::Announced { region, offset } => {
                    self.announced.insert(message, Announced { from, length, region, offset });
                    if let Some(partner) = self.partners.get_mut(&from) {
                        partner.announced += 1;
                    }
                }
                NumberedKind::Eager => {}
            }
            let large = kind != NumberedKind::Eager;
            self.events.push_back(EndpointEvent::Begun { message, source: from, match_info, length, large });
            if message == packet {
                self.events.extend(bytes.take());
            }
            if begun.is_complete && !large {
                self.events.push_back(EndpointEvent::Received {
                    message,
                    code: StatusCode::Success,
                    xfer_length: length,
                });
            }
        }
        self.events.extend(bytes);
    }

    /// Handles the entries that a partner has acknowledged. Eager messages complete.
    fn acknowledged(&mut self, now: Time, entries: alloc::vec::Vec<OutboxEntry>) {
        for entry in entries {
            match entry {
                OutboxEntry::Eager { send, length, .. } => {
                    self.events.push_back(EndpointEvent::Sent { send, code: StatusCode::Success, xfer_length: length });
                }
                OutboxEntry::Announce { region, .. } => {
                    if let Some((send, bytes)) = self.regions.acked(region) {
                        self.region_closed(now, send, bytes);
                    }
                }
                OutboxEntry::Notify { .. } => {}
            }
        }
    }

    /// Handles an acknowledgement packet (8.4).
    fn receive_liback(&mut self, now: Time, from: Address, liback: &Liback) -> Result<(), Ignored> {
        if liback.session != self.setup.session {
            return Err(Ignored::WrongSession);
        }
        let partner = self.partners.get_mut(&from).ok_or(Ignored::NotConnected)?;
        if partner.session_back().is_none() {
            return Err(Ignored::NotConnected);
        }
        if liback.lib_seqnum.sesnum() != partner.outbox.next().sesnum() {
            return Err(Ignored::WrongSesnum);
        }
        if liback.acknum <= partner.recv_acknum {
            return Err(Ignored::OldAck);
        }
        (partner.recv_acknum, partner.last_seen) = (liback.acknum, now);
        let ended = partner.outbox.ack(now, liback.lib_seqnum, true, &self.setup.tuning);
        self.acknowledged(now, ended);
        Ok(())
    }

    /// Queues a negative acknowledgement, if there is room.
    pub(crate) fn queue_nack(&mut self, to: PeerIndex, refusal: NackPacket) {
        if self.nacks.len() < NACKS_MAX {
            self.nacks.push_back((to, refusal));
        }
    }
}
