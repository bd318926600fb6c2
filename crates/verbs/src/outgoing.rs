//! Packets on their way out, and the tokens that confirm their transmission.
//!
//! The caller takes packets with [`Engine::next_outgoing`] and acknowledgements with [`Engine::next_ack`], sends them in that order, and
//! passes each token to [`Engine::sent`] when the transport needs the bytes no more.

use crate::engine::Engine;
use crate::memory::Memory;
use crate::packet::{BodyWriter, PacketKind, SHORT_BYTES_MAX, Syndrome, Tag};
use crate::receive::PayloadUse;
use crate::types::{Key, QpType, Sge, Status};
use alloc::vec::Vec;
use isthmus_layout::EndpointAddress;

/// Refusals for queue pairs that do not exist, at most. More are dropped.
const STRAYS_MAX: usize = 4096;

/// Names an operation of the transport until its confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Request { slot: u32, sequence: u32 },
    Response { slot: u32, serial: u32 },
    Receive { slot: u32, serial: u32 },
    Ack { slot: u32 },
    ResponseBytes { slot: u32, sequence: u32 },
}

impl Token {
    /// The slot of the queue pair.
    const fn slot(self) -> u32 {
        (self.number() >> 32) as u32 & 0xfff_ffff
    }

    pub(crate) const fn number(self) -> u64 {
        let (kind, slot, number) = match self {
            Self::Request { slot, sequence } => (1_u64, slot, sequence),
            Self::Response { slot, serial } => (2, slot, serial),
            Self::Receive { slot, serial } => (3, slot, serial),
            Self::Ack { slot } => (4, slot, 0),
            Self::ResponseBytes { slot, sequence } => (5, slot, sequence),
        };
        kind << 60 | (slot as u64) << 32 | number as u64
    }

    pub(crate) const fn parse(number: u64) -> Option<Self> {
        let (slot, low) = ((number >> 32) as u32 & 0xfff_ffff, number as u32);
        Some(match number >> 60 {
            1 => Self::Request { slot, sequence: low },
            2 => Self::Response { slot, serial: low },
            3 => Self::Receive { slot, serial: low },
            4 => Self::Ack { slot },
            5 => Self::ResponseBytes { slot, sequence: low },
            _ => return None,
        })
    }
}

/// A packet that waits for the caller. It is made when it leaves.
#[derive(Debug)]
pub(crate) enum Outgoing {
    Request {
        slot: u32,
        sequence: u32,
    },
    Response {
        slot: u32,
        serial: u32,
        content: ResponseContent,
    },
    /// An acknowledgement that asks for one.
    Asks {
        slot: u32,
    },
}

/// The content of a response.
#[derive(Debug)]
pub(crate) enum ResponseContent {
    /// Bytes at an address of the program.
    Bytes(Sge),
    /// The number that an atomic operation found.
    Number(u64),
}

impl Outgoing {
    pub(crate) const fn slot(&self) -> u32 {
        match self {
            Self::Request { slot, .. } | Self::Response { slot, .. } | Self::Asks { slot } => *slot,
        }
    }

    /// True for a response that lends the bytes of a region.
    pub(crate) const fn lends(&self, key: Key) -> bool {
        matches!(self, Self::Response { content: ResponseContent::Bytes(sge), .. } if sge.len > 0 && sge.lkey == key.0)
    }

    pub(crate) const fn is_request_of(&self, of: u32) -> bool {
        matches!(self, Self::Request { slot, .. } if *slot == of)
    }
}

/// A packet to send: `len` bytes of the caller's body, then the payload as a message of its own, if there is one.
#[derive(Debug)]
pub struct Transmit {
    /// The device that gets the packet.
    pub to: EndpointAddress,
    /// The tag of the message.
    pub tag: u64,
    /// The length of the body in bytes.
    pub len: usize,
    /// The token that confirms the packet, with its payload.
    pub token: u64,
    /// The payload that follows, under the tag [`PAYLOAD_TAG`].
    pub payload: Option<Payload>,
}

/// The tag of a payload that follows its header.
pub const PAYLOAD_TAG: u64 = Tag::PAYLOAD;

/// A payload that follows its header.
#[derive(Debug)]
pub enum Payload {
    /// One range of the program's memory, which stays as it is until the token is confirmed.
    Range {
        /// The address of the first byte.
        addr: u64,
        /// The length in bytes.
        len: u64,
    },
    /// Bytes that were gathered.
    Bytes(Vec<u8>),
}

impl Engine {
    /// Takes the next packet. The body is written to `body`.
    #[inline]
    pub fn next_outgoing(&mut self, memory: &impl Memory, body: &mut [u8; SHORT_BYTES_MAX]) -> Option<Transmit> {
        loop {
            let transmit = match self.outbox.pop_front()? {
                Outgoing::Request { slot, sequence } => self.transmit_request(slot, sequence, memory, body),
                Outgoing::Response { slot, serial, content } => {
                    self.transmit_response(Token::Response { slot, serial }, slot, &content, memory, body)
                }
                Outgoing::Asks { slot } => self.transmit_question(slot),
            };
            if transmit.is_some() {
                return transmit;
            }
        }
    }

    /// The packet of a request. None if there is none any more, or the request has failed.
    #[inline]
    fn transmit_request(
        &mut self,
        slot: u32,
        sequence: u32,
        memory: &impl Memory,
        body: &mut [u8; SHORT_BYTES_MAX],
    ) -> Option<Transmit> {
        let (qp, regions, _) = self.parts(slot)?;
        let entry = qp.requester.queued(sequence)?;
        let packet = crate::send::packet(qp, entry, regions, sequence, memory, BodyWriter::new(body));
        qp.requester.packet_taken(sequence, matches!(packet, Ok(Some(_))));
        match packet {
            Ok(Some(mut packet)) => {
                let datagrams = qp.init.kind == QpType::Ud;
                packet.tag.count = if datagrams { qp.number.0 } else { qp.responder.acknowledge() };
                let token = Token::Request { slot, sequence }.number();
                Some(Transmit {
                    to: packet.to,
                    tag: packet.tag.emit(),
                    len: packet.len,
                    token,
                    payload: packet.payload,
                })
            }
            // The datagram is lost.
            Ok(None) => {
                self.retire(slot);
                None
            }
            Err(status) => {
                self.fail_request(slot, sequence, status);
                None
            }
        }
    }

    fn transmit_response(
        &mut self,
        token: Token,
        slot: u32,
        content: &ResponseContent,
        memory: &impl Memory,
        body: &mut [u8; SHORT_BYTES_MAX],
    ) -> Option<Transmit> {
        let qp = self.qp_mut(slot)?;
        let (to, destination, count) = (qp.peer?, qp.attributes.destination, qp.responder.acknowledge());
        let mut body = BodyWriter::new(body);
        let (mut parameter, mut payload) = (0, None);
        match content {
            ResponseContent::Number(number) => body.long(*number),
            ResponseContent::Bytes(sge) => {
                parameter = body.follows(sge.len);
                if parameter == 0 {
                    memory.read(sge.addr, body.take(sge.len as usize));
                } else {
                    payload = Some(Payload::Range { addr: sge.addr, len: u64::from(sge.len) });
                }
            }
        }
        let tag = Tag { kind: PacketKind::Response, parameter, count, destination };
        Some(Transmit { to, tag: tag.emit(), len: body.len(), token: token.number(), payload })
    }

    fn transmit_question(&mut self, slot: u32) -> Option<Transmit> {
        let qp = self.qp_mut(slot)?;
        let (to, count) = (qp.peer?, qp.responder.acknowledge());
        let tag = Tag::ack(qp.attributes.destination, count, Syndrome::Asks);
        Some(Transmit { to, tag: tag.emit(), len: 0, token: 0, payload: None })
    }

    /// Takes the next acknowledgement: a message without a body. The caller takes packets first. The token need not be confirmed if the
    /// message has left at once; otherwise [`Self::ack_queued`] is called.
    #[inline]
    pub fn next_ack(&mut self) -> Option<(EndpointAddress, u64, u64)> {
        // A refusal may be of a queue pair's last connection. It must not come after those of its next one.
        if let Some((to, tag)) = self.strays.pop_front() {
            return Some((to, tag.emit(), 0));
        }
        while let Some(slot) = self.owing.pop_front() {
            let Some(qp) = self.qp_mut(slot) else { continue };
            if !qp.responder.taken_from_list() {
                continue;
            }
            let Some(peer) = qp.peer else { continue };
            if let Some(description) = qp.responder.take_owed_description() {
                let tag = description.tag(qp);
                self.list_owing(slot);
                return Some((peer, tag.emit(), Token::Ack { slot }.number()));
            }
            let Some(syndrome) = qp.responder.take_owed() else { continue };
            let tag = Tag::ack(qp.attributes.destination, qp.responder.executed(), syndrome);
            return Some((peer, tag.emit(), Token::Ack { slot }.number()));
        }
        None
    }

    /// The transport has queued an acknowledgement. The queue pair owes no other one until the token is confirmed.
    pub fn ack_queued(&mut self, token: u64) {
        if let Some(Token::Ack { slot }) = Token::parse(token)
            && let Some(qp) = self.qp_mut(slot)
        {
            qp.responder.ack_queued();
        }
    }

    /// The transport needs the bytes of a packet no more. The caller passes each token once, and before later packets of the peer that
    /// has taken the bytes; none for a peer that is gone. A token that names nothing any more changes nothing.
    #[inline]
    pub fn sent(&mut self, token: u64) {
        match Token::parse(token) {
            Some(Token::Request { slot, sequence }) => {
                if self.qp_mut(slot).is_some_and(|qp| qp.requester.confirm_transmission(sequence)) {
                    self.retire(slot);
                }
            }
            Some(Token::Response { slot, .. }) => {
                if let Some(qp) = self.qp_mut(slot) {
                    qp.responder.confirm_response();
                }
            }
            Some(Token::Ack { slot }) => {
                if self.qp_mut(slot).is_some_and(|qp| qp.responder.confirm_ack()) {
                    self.list_owing(slot);
                }
            }
            Some(Token::Receive { .. } | Token::ResponseBytes { .. }) | None => {}
        }
    }

    /// The transport has copied the whole packet of a token, so it needs no bytes of the program. [`Self::sent`] may follow.
    pub fn packet_copied(&mut self, token: u64) {
        if matches!(Token::parse(token), Some(Token::Request { .. })) {
            self.sent(token);
        }
    }

    /// The transport could not carry out an operation. The connection that it belongs to fails. If the peer has ended, [`Self::peer_gone`]
    /// follows, and does that: it is no error of this side that a message of the peer is incomplete, or that the peer takes none.
    pub fn failed(&mut self, token: u64, peer_ended: bool) {
        self.sent(token);
        let Some(token) = Token::parse(token) else { return };
        let Some(qp) = self.qp(token.slot()) else { return };
        let (reliable, can_receive) = (qp.is_reliable(), qp.can_receive());
        match token {
            _ if peer_ended && reliable => {}
            Token::Request { slot, sequence } | Token::ResponseBytes { slot, sequence } if reliable && can_receive => {
                self.fail_request(slot, sequence, Status::RetryExceeded);
            }
            Token::Receive { slot, serial } => self.payload_is_lost(PayloadUse::Receive { slot, serial }),
            Token::Response { slot, .. } if can_receive => self.enter_error(slot),
            Token::Request { .. } | Token::ResponseBytes { .. } | Token::Response { .. } | Token::Ack { .. } => {}
        }
    }

    /// True if there is nothing to send and no pause to end.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.has_work() && !self.has_pauses()
    }

    /// True if [`Self::next_outgoing`] may return a packet.
    #[inline]
    pub fn has_packets(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// True if there is something to send, or to release.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.outbox.is_empty() || !self.owing.is_empty() || !self.strays.is_empty() || !self.released.is_empty()
    }

    /// The queue pair owes its peer an acknowledgement with this syndrome.
    #[inline]
    pub(crate) fn owe(&mut self, slot: u32, syndrome: Syndrome) {
        // In Error, the queue pair owes the reason, or has given it.
        let Some(qp) = self.qp_mut(slot).filter(|qp| qp.can_receive()) else { return };
        qp.responder.owe(syndrome);
        self.list_owing(slot);
    }

    #[inline]
    pub(crate) fn list_owing(&mut self, slot: u32) {
        if self.qp_mut(slot).is_some_and(|qp| qp.responder.list()) {
            self.owing.push_back(slot);
        }
    }

    /// Refuses a packet for a queue pair that does not exist or is not connected.
    pub(crate) fn refuse_stray(&mut self, to: EndpointAddress, tag: Tag) {
        debug_assert!(tag.kind == PacketKind::Ack);
        if self.strays.len() < STRAYS_MAX {
            self.strays.push_back((to, tag));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_round_trips() {
        let (slot, number) = (0xabc_def0, 0xffff_fffe);
        for token in [
            Token::Request { slot, sequence: number },
            Token::Response { slot, serial: number },
            Token::Receive { slot, serial: number },
            Token::Ack { slot },
            Token::ResponseBytes { slot, sequence: number },
        ] {
            assert_eq!(Token::parse(token.number()), Some(token));
        }
        assert_eq!((Token::parse(0), Token::parse(7 << 60)), (None, None));
    }
}
