//! A host with one endpoint and a program that sends and receives, and that checks every event.

use isthmus_layout::NicId;
use isthmus_mx::StatusCode;
use isthmus_mx::net::{
    Address, ConnectId, Endpoint, EndpointEvent, EndpointSendError, EndpointSetup, EndpointTuning, IncomingId,
    PayloadRange, SendId, SendMode, Time,
};
use isthmus_mx::wire::{self, Dialect, EndpointNumber, Header, Packet, PeerIndex, SessionId, Sizes};
use std::collections::{BTreeMap, BTreeSet};

/// The settings that all hosts of a network share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostConfig {
    pub(crate) dialect: Dialect,
    pub(crate) sizes: Sizes,
    pub(crate) tuning: EndpointTuning,
    /// Some receivers request one block at a time.
    pub(crate) narrow: bool,
}

/// The state of a send at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) code: StatusCode,
    pub(crate) xfer_length: u32,
}

#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) to: usize,
    pub(crate) length: u32,
    /// The number of bytes of the send that are available to the peer.
    here: u32,
    pub(crate) ended: Option<Sent>,
}

#[derive(Debug)]
struct Incoming {
    bytes: Vec<u8>,
    covered: Vec<bool>,
    begun: Option<(usize, u64)>,
}

/// A host from its start to its end.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) number: usize,
    pub(crate) endpoint: Endpoint,
    pub(crate) sends: BTreeMap<u64, Sending>,
    /// The number of sends that are pending or have just ended.
    pub(crate) sending: usize,
    pub(crate) just_ended: Vec<u64>,
    incoming: BTreeMap<IncomingId, Incoming>,
    /// Sends (of all hosts and their restarts) that arrived complete, with the number of bytes taken.
    pub(crate) whole: BTreeMap<u64, u32>,
    /// Sends that failed at this receiver after they had begun.
    pub(crate) failed: BTreeSet<u64>,
    begun: BTreeSet<u64>,
    last: BTreeMap<usize, u64>,
    pub(crate) connected: BTreeMap<usize, Option<Result<SessionId, StatusCode>>>,
    connects: u64,
    pub(crate) failed_receives: u64,
    pub(crate) disconnected: u64,
    pub(crate) pulled: bool,
    narrow: bool,
}

pub(crate) fn address(host: usize) -> Address {
    Address { peer: PeerIndex::new(host as u16).unwrap(), endpoint: EndpointNumber(host as u8 + 1) }
}

fn nic(host: usize) -> NicId {
    NicId::from_octets([2, 0, 0, 0, 0, host as u8])
}

/// Returns the byte at an offset of a send. No two sends have the same bytes.
fn content(send: u64, at: u32) -> u8 {
    ((send.wrapping_mul(0x9e37_79b9) ^ u64::from(at)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
}

/// Returns how much of a message the receiver has room for, by the message's number: all, some or nothing.
pub(crate) fn posted(send: u64, length: u32) -> u32 {
    match send % 16 {
        3 => length / 2,
        7 => 0,
        _ => length,
    }
}

impl Host {
    pub(crate) fn new(number: usize, session: u32, kind: &HostConfig) -> Self {
        let endpoint = Endpoint::new(EndpointSetup {
            dialect: kind.dialect,
            sizes: kind.sizes,
            number: address(number).endpoint,
            session: SessionId(session),
            key: 77,
            secret: session.wrapping_mul(0x9e37_79b9),
            tuning: kind.tuning,
        });
        Self {
            number,
            endpoint,
            sends: BTreeMap::new(),
            sending: 0,
            just_ended: Vec::new(),
            incoming: BTreeMap::new(),
            whole: BTreeMap::new(),
            failed: BTreeSet::new(),
            begun: BTreeSet::new(),
            last: BTreeMap::new(),
            connected: BTreeMap::new(),
            connects: 0,
            failed_receives: 0,
            disconnected: 0,
            pulled: true,
            narrow: kind.narrow,
        }
    }

    pub(crate) fn connect(&mut self, now: Time, to: usize, key: u32) {
        self.connects += 1;
        self.endpoint.connect(now, address(to), key, ConnectId(self.connects)).unwrap();
        self.connected.insert(to, None);
    }

    pub(crate) fn send(
        &mut self,
        now: Time,
        to: usize,
        send: u64,
        length: u32,
        synchronous: bool,
    ) -> Result<(), EndpointSendError> {
        let mode = match (synchronous, send % 2) {
            (false, _) => SendMode::Standard,
            (true, 0) => SendMode::Synchronous,
            (true, _) => SendMode::OnDemand,
        };
        self.endpoint.send(now, address(to), SendId(send), send, length, mode)?;
        let here = if mode == SendMode::OnDemand { 0 } else { length };
        self.sends.insert(send, Sending { to, length, here, ended: None });
        self.sending += 1;
        Ok(())
    }

    /// Returns the next frame to send, with its destination.
    pub(crate) fn transmit(&mut self, now: Time, dialect: Dialect) -> Option<(usize, Vec<u8>)> {
        let transmit = self.endpoint.transmit(now)?;
        let to = usize::from(transmit.to.number());
        let header = Header { dst: nic(to), src: nic(self.number), peer_index: PeerIndex::new(self.number as u16) };
        let sends = &self.sends;
        let packet = transmit.packet.map(|PayloadRange { send, at, len }| -> Vec<u8> {
            let sending = &sends[&send.0];
            assert!(sending.ended.is_none(), "a packet carries bytes of a send that is over");
            assert!(at + len <= sending.here, "a packet carries bytes that a send has not");
            (at..at + len).map(|at| content(send.0, at)).collect()
        });
        let mut frame = vec![0; packet.parts(dialect).frame()];
        wire::emit(dialect, &header, &packet, &mut frame).unwrap();
        Some((to, frame))
    }

    /// Receives a frame.
    pub(crate) fn receive(&mut self, now: Time, from: usize, dialect: Dialect, frame: &[u8]) {
        let (_, packet) = wire::parse(dialect, frame).unwrap();
        let _ = self.endpoint.receive(now, PeerIndex::new(from as u16).unwrap(), &packet);
        self.process_events(now, Some(&packet));
    }

    /// Handles pending events.
    pub(crate) fn process_events(&mut self, now: Time, packet: Option<&Packet<&[u8]>>) {
        while let Some(event) = self.endpoint.event() {
            match event {
                EndpointEvent::Begun { message, source, match_info, length, large } => {
                    self.begun(now, message, usize::from(source.peer.number()), match_info, length, large);
                }
                EndpointEvent::Bytes { message, length, at, len } => {
                    let data = packet.and_then(|packet| packet.data()).unwrap();
                    self.bytes(message, length, at, &data[..len as usize]);
                    self.endpoint.allow(now, message, at + len + 1);
                }
                EndpointEvent::Received { message, code, xfer_length } => {
                    self.received(message, code, xfer_length);
                    self.endpoint.notify(now, message);
                }
                EndpointEvent::DataWanted { send, bytes, total } => {
                    let sending = self.sends.get_mut(&send.0).unwrap();
                    assert!(sending.here < bytes && bytes <= total && total <= sending.length);
                    sending.here = bytes;
                    self.endpoint.provide(send, bytes);
                }
                EndpointEvent::Sent { send, code, xfer_length } => {
                    let sending = self.sends.get_mut(&send.0).unwrap();
                    assert_eq!(sending.ended, None, "a send ends once");
                    sending.ended = Some(Sent { code, xfer_length });
                    self.sending -= 1;
                    self.just_ended.push(send.0);
                }
                EndpointEvent::Connected { partner, outcome, .. } => {
                    self.connected.insert(usize::from(partner.peer.number()), Some(outcome));
                }
                EndpointEvent::Disconnected { partner } => {
                    self.disconnected += 1;
                    if self.endpoint.session_of(partner).is_none() {
                        self.connected.remove(&usize::from(partner.peer.number()));
                    }
                }
            }
        }
    }

    fn begun(&mut self, now: Time, message: IncomingId, from: usize, send: u64, length: u32, large: bool) {
        assert!(self.begun.insert(send), "message {send} has begun twice at {}", self.number);
        let last = self.last.insert(from, send);
        assert!(last.is_none_or(|last| last < send), "{send} of {from} came after {last:?}");
        let size = if large { posted(send, length) } else { length } as usize;
        let incoming = self.incoming.entry(message).or_insert_with(|| Incoming {
            bytes: vec![0; size],
            covered: vec![false; size],
            begun: None,
        });
        assert_eq!(incoming.begun.replace((from, send)), None);
        if large && self.pulled {
            let limit = if self.narrow && send % 4 == 1 { 1 } else { u32::MAX };
            self.endpoint.pull(now, message, size as u32, limit).unwrap();
        }
    }

    fn bytes(&mut self, message: IncomingId, length: u32, at: u32, data: &[u8]) {
        let size = length as usize;
        let incoming = self.incoming.entry(message).or_insert_with(|| Incoming {
            bytes: vec![0; size],
            covered: vec![false; size],
            begun: None,
        });
        let range = at as usize..at as usize + data.len();
        assert!(incoming.covered[range.clone()].iter().all(|covered| !covered), "bytes come once");
        incoming.covered[range.clone()].fill(true);
        incoming.bytes[range].copy_from_slice(data);
    }

    fn received(&mut self, message: IncomingId, code: StatusCode, xfer_length: u32) {
        let Some(incoming) = self.incoming.remove(&message) else {
            assert_ne!(code, StatusCode::Success);
            return;
        };
        if code != StatusCode::Success {
            self.failed_receives += 1;
            self.failed.extend(incoming.begun.map(|(_, send)| send));
            return;
        }
        let (_, send) = incoming.begun.expect("what has not begun is not whole");
        assert_eq!(incoming.bytes.len(), xfer_length as usize);
        assert!(incoming.covered.iter().all(|covered| *covered), "whole");
        for (at, byte) in (0..).zip(&incoming.bytes) {
            assert_eq!(*byte, content(send, at), "message {send}, byte {at}");
        }
        assert_eq!(self.whole.insert(send, xfer_length), None);
    }

    /// Returns the number of messages that have begun and not ended.
    pub(crate) fn underway(&self) -> usize {
        self.incoming.len()
    }
}
