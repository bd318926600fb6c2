//! A remote peer, as a library knows it, and messages from and to it.

use crate::content::{self, PAGE, Tag};
use isthmus_layout::limits::{DAEMON_PATH_CREDIT_BYTES, DAEMON_PATH_FRAGMENT_BYTES_MAX, DAEMON_PATH_RECORD_COST};
use isthmus_layout::record::{Fragment, MappablePages, Record, Serial};
use isthmus_layout::{DomainId, RegionId};
use isthmus_mx::net::Address;
use isthmus_mx_transport::MxTransport;
use std::collections::{BTreeMap, VecDeque};

const NO_FRAGMENT: Fragment = Fragment { offset: 0, len: 0 };

/// The region that messages may be sent out of.
pub(crate) const REGION: RegionId = RegionId(5);

/// How an announcement names its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    None,
    Mapped,
    /// The record names memory that does not exist as stated.
    Lie(MappablePages),
}

/// A message that goes out.
#[derive(Debug)]
pub(crate) struct OutgoingMessage {
    pub(crate) id: u64,
    pub(crate) len: u32,
    pub(crate) wanted: u32,
    pub(crate) sent: u32,
    pub(crate) announced: bool,
    pub(crate) memory: Memory,
    pub(crate) serial: Serial,
}

/// A message that comes in.
#[derive(Debug)]
pub(crate) struct IncomingMessage {
    pub(crate) id: u64,
    pub(crate) expected: u32,
    pub(crate) received: u32,
}

/// A remote peer.
#[derive(Debug)]
pub(crate) struct ModelPeer {
    pub(crate) address: Address,
    /// The credit left for sending to the peer.
    pub(crate) left: u32,
    /// Sent records without returned credit: the cost, and the message that the returned credit completes.
    pub(crate) flight: VecDeque<(u32, Option<u64>)>,
    pub(crate) returned: u32,
    /// The credit that the peer has left for sending.
    pub(crate) room: u32,
    pub(crate) owed: u32,
    pub(crate) urgent: VecDeque<Record<'static>>,
    pub(crate) queue: VecDeque<OutgoingMessage>,
    pub(crate) streams: VecDeque<OutgoingMessage>,
    pub(crate) announced: BTreeMap<Serial, OutgoingMessage>,
    pub(crate) started: Option<(Serial, IncomingMessage)>,
    pub(crate) pulled: BTreeMap<Serial, IncomingMessage>,
    pub(crate) unexpected: VecDeque<(Serial, Tag)>,
    pub(crate) last: u64,
    /// The transport has reported that it is gone.
    pub(crate) removed: bool,
}

impl OutgoingMessage {
    pub(crate) fn tag(&self, me: u8) -> u64 {
        Tag { from: me, len: self.len, id: self.id }.emit()
    }

    pub(crate) fn bytes(&self, at: u32, len: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len as usize);
        while bytes.len() < len as usize {
            let more = content::bytes(self.id, at as usize + bytes.len(), len as usize - bytes.len());
            bytes.extend_from_slice(more);
        }
        bytes
    }
}

impl IncomingMessage {
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        assert!(bytes.len() as u32 <= self.expected - self.received, "more than message {} has", self.id);
        assert!(content::is(self.id, self.received as usize, bytes), "message {} from byte {}", self.id, self.received);
        self.received += bytes.len() as u32;
    }
}

impl ModelPeer {
    pub(crate) fn new(address: Address) -> Self {
        Self {
            address,
            left: DAEMON_PATH_CREDIT_BYTES,
            flight: VecDeque::new(),
            returned: 0,
            room: DAEMON_PATH_CREDIT_BYTES,
            owed: 0,
            urgent: VecDeque::new(),
            queue: VecDeque::new(),
            streams: VecDeque::new(),
            announced: BTreeMap::new(),
            started: None,
            pulled: BTreeMap::new(),
            unexpected: VecDeque::new(),
            last: 0,
            removed: false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        let outward = self.queue.is_empty() && self.urgent.is_empty() && self.streams.is_empty();
        let inward = self.unexpected.is_empty() && self.pulled.is_empty() && self.started.is_none() && self.owed == 0;
        outward && inward && self.announced.is_empty() && self.flight.is_empty()
    }

    /// A message comes from it.
    pub(crate) fn begin(&mut self, tag: u64, len: u64) -> IncomingMessage {
        let tag = Tag::parse(tag);
        let from = usize::from(self.address.peer.number()) * 2 + usize::from(self.address.endpoint.0) - 1;
        assert_eq!((usize::from(tag.from), u64::from(tag.len)), (from, len), "message {}", tag.id);
        assert!(self.started.is_none(), "message {} begins within another one", tag.id);
        assert!(self.last < tag.id, "message {} after {}", tag.id, self.last);
        self.last = tag.id;
        IncomingMessage { id: tag.id, expected: tag.len, received: 0 }
    }

    /// Everything at once, for nothing.
    pub(crate) fn spend(&mut self) {
        self.flight.push_back((std::mem::take(&mut self.left), None));
    }

    /// Pays for a record.
    pub(crate) fn send(
        &mut self,
        record: Record<'static>,
        bytes: Vec<u8>,
        over: Option<u64>,
    ) -> (Record<'static>, Vec<u8>) {
        let cost = DAEMON_PATH_RECORD_COST + bytes.len() as u32;
        self.left = self.left.checked_sub(cost).expect("what is sent was affordable");
        self.flight.push_back((cost, over));
        (record, bytes)
    }

    /// The next fragment of a message.
    pub(crate) fn next_fragment(
        &mut self,
        me: u8,
        out: &mut OutgoingMessage,
        most: u32,
    ) -> Option<(Record<'static>, Vec<u8>)> {
        let affordable = (self.left - DAEMON_PATH_RECORD_COST).min(DAEMON_PATH_FRAGMENT_BYTES_MAX);
        let len = (out.wanted - out.sent).min(most).min(affordable);
        if len == 0 {
            return None;
        }
        let (bytes, serial) = (out.bytes(out.sent, len), out.serial);
        let record = match out.sent {
            0 if !out.announced => {
                Record::FirstFragment { tag: out.tag(me), len: out.len, serial, fragment: NO_FRAGMENT }
            }
            _ => Record::NextFragment { serial, fragment: NO_FRAGMENT },
        };
        out.sent += len;
        Some(self.send(record, bytes, (out.sent == out.wanted).then_some(out.id)))
    }

    pub(crate) fn announce(
        &mut self,
        me: u8,
        out: &OutgoingMessage,
        remote_peer: DomainId,
        transport: &mut MxTransport,
    ) -> Option<(Record<'static>, Vec<u8>)> {
        let mapped = match out.memory {
            Memory::None => None,
            Memory::Lie(mapped) => Some(mapped),
            Memory::Mapped => {
                let start = content::start(out.id);
                let body = start.next_multiple_of(PAGE);
                let end = (start + out.len as usize) / PAGE * PAGE;
                let edges = || ((body - start) as u16, (start + out.len as usize - end) as u16);
                (body < end).then(edges).map(|(head, tail)| MappablePages {
                    region: REGION,
                    offset: body as u64,
                    head,
                    tail,
                })
            }
        };
        let (head, tail) = mapped.map_or((0, 0), |mapped| (u32::from(mapped.head), u32::from(mapped.tail)));
        if self.left < DAEMON_PATH_RECORD_COST + head + tail {
            return None;
        }
        if out.memory == Memory::Mapped {
            transport.grant(remote_peer, REGION, content::region());
        }
        let mut edges = out.bytes(0, head);
        edges.extend(out.bytes(out.len.saturating_sub(tail), tail));
        let (tag, len, serial) = (out.tag(me), u64::from(out.len), out.serial);
        Some(self.send(Record::Announce { tag, len, serial, fragment: NO_FRAGMENT, mapped }, edges, None))
    }
}
