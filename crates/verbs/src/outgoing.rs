//! Packets on their way out, and the tokens that confirm their transmission.
//!
//! The caller takes packets with [`Engine::next_outgoing`] and acknowledgements with [`Engine::next_ack`], sends them in that order, and
//! passes each token to [`Engine::sent`] when the transport needs the bytes no more.

use crate::engine::Engine;
use crate::memory::Memory;
use crate::packet::{Header, PacketKind, SHORT_BYTES_MAX, Syndrome, Tag};
use crate::queues::{SgeList, total_len};
use crate::receive::PayloadUse;
use crate::types::{Key, QpType, Status};
use alloc::vec;
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

/// Where the payload of a packet is.
#[derive(Debug)]
pub(crate) enum Bytes {
    None,
    /// Inline bytes of a request.
    Inline {
        len: u32,
    },
    /// The program's memory, at addresses of the program.
    Memory(SgeList),
}

/// A packet that waits for the caller.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) to: EndpointAddress,
    /// The tag. The count of a reliable connection is entered when the packet leaves.
    pub(crate) tag: Tag,
    pub(crate) header: Header,
    pub(crate) bytes: Bytes,
    pub(crate) token: Token,
}

impl Outgoing {
    pub(crate) const fn to(&self) -> EndpointAddress {
        self.to
    }

    pub(crate) const fn slot(&self) -> Option<u32> {
        match self.token {
            Token::Request { slot, .. } | Token::Response { slot, .. } | Token::Ack { slot } => Some(slot),
            Token::Receive { .. } | Token::ResponseBytes { .. } => None,
        }
    }

    /// True for a response, and for a request, that lends the bytes of a region.
    pub(crate) fn lends(&self, key: Key) -> bool {
        matches!(&self.bytes, Bytes::Memory(list) if list.uses(key))
    }

    pub(crate) const fn is_request_of(&self, of: u32) -> bool {
        matches!(self.token, Token::Request { slot, .. } if slot == of)
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

/// True if this many bytes fit beside a header.
#[inline]
pub(crate) fn fits(header: &Header, len: u64) -> bool {
    header.as_bytes().len() as u64 + len <= SHORT_BYTES_MAX as u64
}

impl Engine {
    /// Takes the next packet. The body is written to `body`.
    #[inline]
    pub fn next_outgoing(&mut self, memory: &impl Memory, body: &mut [u8; SHORT_BYTES_MAX]) -> Option<Transmit> {
        let outgoing = self.outbox.pop_front()?;
        let Outgoing { to, mut tag, header, bytes, token } = outgoing;
        let words = header.as_bytes();
        body[..words.len()].copy_from_slice(words);
        let mut len = words.len();
        let mut payload = None;
        if let Token::Request { slot, .. } | Token::Response { slot, .. } | Token::Ack { slot } = token
            && let Some(qp) = self.qp_mut(slot)
        {
            if qp.init.kind != QpType::Ud {
                tag.count = qp.executed;
            }
            if qp.owed == Some(Syndrome::None) {
                qp.owed = None; // The packet acknowledges.
            }
            if let Token::Request { sequence, .. } = token
                && let Some(entry) = qp.entry(sequence)
            {
                entry.queued = false;
                entry.transmissions += 1;
            }
            if let (Bytes::Inline { len: inline }, Token::Request { sequence, .. }) = (&bytes, token) {
                let place = qp.inline_place(sequence);
                let inline = &qp.inline_bytes[place..place + *inline as usize];
                if tag.has(crate::packet::flags::FOLLOWS) {
                    payload = Some(Payload::Bytes(inline.to_vec()));
                } else {
                    body[len..len + inline.len()].copy_from_slice(inline);
                    len += inline.len();
                }
            }
        }
        if let Bytes::Memory(list) = &bytes {
            match (tag.has(crate::packet::flags::FOLLOWS), list.as_slice()) {
                (false, sges) => {
                    for sge in sges {
                        memory.read(sge.addr, &mut body[len..len + sge.len as usize]);
                        len += sge.len as usize;
                    }
                }
                (true, [sge]) => payload = Some(Payload::Range { addr: sge.addr, len: u64::from(sge.len) }),
                (true, sges) => {
                    let mut gathered = vec![0; total_len(sges) as usize];
                    let mut at = 0;
                    for sge in sges {
                        memory.read(sge.addr, &mut gathered[at..at + sge.len as usize]);
                        at += sge.len as usize;
                    }
                    payload = Some(Payload::Bytes(gathered));
                }
            }
        }
        let token = if tag.kind == PacketKind::Ack { 0 } else { token.number() };
        Some(Transmit { to, tag: tag.emit(), len, token, payload })
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
            qp.owed_listed = false;
            if qp.ack_in_transmission {
                continue;
            }
            let Some(peer) = qp.peer else { continue };
            if let Some(description) = qp.owed_description.take() {
                let tag = description.tag(qp);
                self.list_owing(slot);
                return Some((peer, tag.emit(), Token::Ack { slot }.number()));
            }
            let Some(syndrome) = qp.owed.take() else { continue };
            let tag = Tag::ack(qp.attributes.destination, qp.executed, syndrome);
            return Some((peer, tag.emit(), Token::Ack { slot }.number()));
        }
        None
    }

    /// The transport has queued an acknowledgement. The queue pair owes no other one until the token is confirmed.
    pub fn ack_queued(&mut self, token: u64) {
        if let Some(Token::Ack { slot }) = Token::parse(token)
            && let Some(qp) = self.qp_mut(slot)
        {
            qp.ack_in_transmission = true;
        }
    }

    /// The transport needs the bytes of a packet no more. The caller passes each token once, and before later packets of the peer that
    /// has taken the bytes; none for a peer that is gone. A token that names nothing any more changes nothing.
    #[inline]
    pub fn sent(&mut self, token: u64) {
        match Token::parse(token) {
            Some(Token::Request { slot, sequence }) => {
                if let Some(entry) = self.qp_mut(slot).and_then(|qp| qp.entry(sequence)) {
                    entry.transmissions = entry.transmissions.saturating_sub(1);
                    self.retire(slot);
                }
            }
            Some(Token::Response { slot, .. }) => {
                if let Some(qp) = self.qp_mut(slot) {
                    qp.responses = qp.responses.saturating_sub(1);
                }
            }
            Some(Token::Ack { slot }) => {
                if let Some(qp) = self.qp_mut(slot) {
                    qp.ack_in_transmission = false;
                    if qp.owed.is_some() || qp.owed_description.is_some() {
                        self.list_owing(slot);
                    }
                }
            }
            Some(Token::Receive { .. } | Token::ResponseBytes { .. }) | None => {}
        }
    }

    /// The transport could not carry out an operation, or its other side is gone. The connection that it belongs to fails.
    pub fn failed(&mut self, token: u64) {
        self.sent(token);
        match Token::parse(token) {
            Some(Token::Request { slot, sequence } | Token::ResponseBytes { slot, sequence }) => {
                if self.qp(slot).is_some_and(|qp| qp.is_reliable() && qp.can_receive()) {
                    self.fail_request(slot, sequence, Status::RetryExceeded);
                }
            }
            Some(Token::Receive { slot, serial }) => self.payload_is_lost(PayloadUse::Receive { slot, serial }),
            Some(Token::Response { slot, .. }) if self.qp(slot).is_some_and(|qp| qp.can_receive()) => {
                self.enter_error(slot);
            }
            Some(Token::Response { .. } | Token::Ack { .. }) | None => {}
        }
    }

    /// True if there is nothing to send and no pause to end.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.has_work() && self.pausing.is_empty()
    }

    /// True if there is something to send.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.outbox.is_empty() || !self.owing.is_empty() || !self.strays.is_empty() || !self.released.is_empty()
    }

    /// The queue pair owes its peer an acknowledgement with this syndrome.
    #[inline]
    pub(crate) fn owe(&mut self, slot: u32, syndrome: Syndrome) {
        // In Error, the queue pair owes the reason, or has given it.
        let Some(qp) = self.qp_mut(slot).filter(|qp| qp.can_receive()) else { return };
        let refused = matches!(qp.owed, Some(Syndrome::ReceiverNotReady(_) | Syndrome::Again));
        qp.owed = Some(match (qp.owed, syndrome) {
            (Some(owed), Syndrome::None) => owed,
            (_, Syndrome::Ready) if refused => Syndrome::Again,
            (_, syndrome) => syndrome,
        });
        self.list_owing(slot);
    }

    #[inline]
    pub(crate) fn list_owing(&mut self, slot: u32) {
        if let Some(qp) = self.qp_mut(slot)
            && !qp.owed_listed
            && !qp.ack_in_transmission
        {
            qp.owed_listed = true;
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
