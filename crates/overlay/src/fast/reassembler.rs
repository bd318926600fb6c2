//! Makes messages of received datagrams.
//!
//! A run of datagrams that is a whole message is delivered where it lies. Other chunks are copied into one of a few [`Pending`]
//! messages, which is delivered when it is complete.
//!
//! A TCP frame is also delivered in parts, as soon as its last chunk or a newer message shows a hole. So TCP sees the losses and the order
//! of the path. Chunks that come late are further parts. Other frames wait until they are complete, or given up: after a time, after some
//! newer messages, or for their memory.

use alloc::vec::Vec;

use super::finished::Finished;
use super::header::{CHUNK_HEADER_BYTES, ChunkError, ChunkHeader};
use super::parts::Partition;
use super::pending::{Pending, Spare};
use super::{NEWER_MESSAGES_MAX, PENDING_MAX, PENDING_MS_MAX};
use crate::headers::Transport;
use crate::virtio_net::{VIRTIO_NET_BYTES, VirtioNetHeader};
use crate::vxlan::Vni;

/// The receiving end of an edge. Its memory is at most [`PENDING_MAX`] messages.
#[derive(Debug, Default)]
pub struct Reassembler {
    /// The oldest first.
    pending: Vec<Pending>,
    spares: Vec<Spare>,
    /// The head of a part.
    head: Vec<u8>,
    finished: Finished,
    counters: FastCounters,
}

/// Counters of datagrams and messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastCounters {
    /// Messages that were delivered where they lay.
    pub in_place: u64,
    /// Messages that were delivered whole after a copy.
    pub copied: u64,
    /// Messages that ended with a hole, of which parts were delivered.
    pub incomplete: u64,
    /// Messages of which nothing could be delivered.
    pub lost: u64,
    /// Parts of messages that were delivered as frames.
    pub parts: u64,
    /// Incomplete messages that were given up after [`PENDING_MS_MAX`].
    pub timed_out: u64,
    /// Incomplete messages that were given up after [`NEWER_MESSAGES_MAX`].
    pub overtaken: u64,
    /// Incomplete messages that were given up for a newer one.
    pub evicted: u64,
    /// Chunks that were there already, or came after their message was delivered or given up.
    pub duplicates: u64,
    /// Complete messages with a virtio-net header that does not fit the frame.
    pub header_refused: u64,
    /// Datagrams by [`ChunkError::Short`].
    pub short: u64,
    /// Datagrams by [`ChunkError::Version`].
    pub version_unknown: u64,
    /// Datagrams by [`ChunkError::Kind`].
    pub kind_unknown: u64,
    /// Datagrams by [`ChunkError::Total`].
    pub total_refused: u64,
    /// Datagrams by [`ChunkError::Outside`].
    pub outside: u64,
    /// Datagrams by [`ChunkError::ChunkShort`].
    pub chunk_short: u64,
    /// Datagrams by [`ChunkError::Inconsistent`].
    pub inconsistent: u64,
    /// Datagrams by [`ChunkError::Overlap`].
    pub overlapping: u64,
}

/// A message to deliver.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The network.
    pub vni: Vni,
    /// The header of the frame. Its bytes are also the first of the message.
    pub header: VirtioNetHeader,
    /// Bytes of the message.
    pub message_bytes: usize,
    /// False for a part of a message.
    pub is_whole: bool,
    parts: Parts<'a>,
}

/// Where the bytes of a message lie: in a row, as a head and payload, or between the chunk headers
/// of datagrams of one length.
#[derive(Clone, Copy, Debug)]
enum Parts<'a> {
    One(&'a [u8]),
    Two(&'a [u8], &'a [u8]),
    Datagrams { bytes: &'a [u8], segment_bytes: usize },
}

impl Reassembler {
    /// Takes a buffer of `UDP_GRO`: datagrams of `segment_bytes`, the last one may be shorter. A single datagram has its own length.
    /// `deliver` gets the messages that are complete now.
    pub fn receive(&mut self, buffer: &[u8], segment_bytes: usize, now_ms: u64, mut deliver: impl FnMut(Delivery<'_>)) {
        if buffer.is_empty() {
            self.counters.short += 1;
        }
        let segment_bytes = if segment_bytes == 0 { buffer.len() } else { segment_bytes.min(buffer.len()) };
        let mut rest = buffer;
        while !rest.is_empty() {
            let run = Run::take(rest, segment_bytes);
            let (datagrams, after) = rest.split_at(run.bytes);
            rest = after;
            let header = match run.header {
                Ok(header) => header,
                Err(error) => {
                    self.counters.refuse(error);
                    continue;
                }
            };
            self.deliver_older(header.message, &mut deliver);
            if run.is_whole && !self.is_known(header.message) {
                self.finish(header.message, &mut deliver);
                let parts = Parts::of_datagrams(datagrams, segment_bytes, header.total);
                if self.deliver_whole(header, parts, &mut deliver) {
                    self.counters.in_place += 1;
                }
                continue;
            }
            for datagram in datagrams.chunks(segment_bytes) {
                self.store(datagram, now_ms, &mut deliver);
            }
            if let Some(index) = self.position(header.message).filter(|index| self.pending[*index].has_end()) {
                self.deliver_parts(index, false, &mut deliver);
            }
        }
    }

    /// Gives up messages that were incomplete for [`PENDING_MS_MAX`].
    pub fn expire(&mut self, now_ms: u64, mut deliver: impl FnMut(Delivery<'_>)) {
        while self.next_expiry_ms().is_some_and(|expiry_ms| expiry_ms <= now_ms) {
            self.counters.timed_out += 1;
            self.give_up(0, &mut deliver);
        }
    }

    /// The time at which to call [`Reassembler::expire`], if messages are incomplete.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.pending.first().map(|pending| pending.started_ms.saturating_add(PENDING_MS_MAX))
    }

    /// Counters of the datagrams and messages so far.
    pub const fn counters(&self) -> &FastCounters {
        &self.counters
    }

    /// Returns true if chunks of a message have come before.
    fn is_known(&self, message: u32) -> bool {
        self.finished.contains(message) || self.position(message).is_some()
    }

    fn position(&self, message: u32) -> Option<usize> {
        self.pending.iter().position(|pending| pending.header.message == message)
    }

    /// Copies a chunk, and delivers its message if it is complete.
    fn store(&mut self, datagram: &[u8], now_ms: u64, deliver: &mut impl FnMut(Delivery<'_>)) {
        let (header, chunk) = match ChunkHeader::parse(datagram) {
            Ok(parsed) => parsed,
            Err(error) => return self.counters.refuse(error),
        };
        if self.finished.contains(header.message) {
            // A repeated head is not needed for a message that was complete before.
            self.counters.duplicates += u64::from(header.offset < header.total);
            return;
        }
        let index = match self.position(header.message) {
            Some(index) if !self.pending[index].header.is_same_message(&header) => {
                return self.counters.refuse(ChunkError::Inconsistent);
            }
            Some(index) => index,
            None => self.start(header, now_ms, deliver),
        };
        match self.pending[index].add(header.offset, chunk) {
            Ok(true) if self.pending[index].is_complete() => self.complete(index, deliver),
            Ok(true) => {}
            Ok(false) => self.counters.duplicates += 1,
            Err(error) => self.counters.refuse(error),
        }
    }

    /// Makes room for a message. Returns its index.
    fn start(&mut self, header: ChunkHeader, now_ms: u64, deliver: &mut impl FnMut(Delivery<'_>)) -> usize {
        if self.pending.len() == PENDING_MAX {
            self.counters.evicted += 1;
            self.give_up(0, deliver);
        }
        let spare = self.spares.pop().unwrap_or_default();
        self.pending.push(Pending::new(header, now_ms, spare));
        self.pending.len() - 1
    }

    fn complete(&mut self, index: usize, deliver: &mut impl FnMut(Delivery<'_>)) {
        if self.pending[index].is_in_parts {
            self.deliver_parts(index, false, deliver);
        }
        let pending = self.pending.remove(index);
        self.finish(pending.header.message, deliver);
        if !pending.is_in_parts && self.deliver_whole(pending.header, Parts::One(pending.prefix()), deliver) {
            self.counters.copied += 1;
        }
        self.spares.push(pending.into_spare());
    }

    /// Returns false if the virtio-net header is refused.
    fn deliver_whole(&mut self, header: ChunkHeader, parts: Parts<'_>, deliver: &mut impl FnMut(Delivery<'_>)) -> bool {
        let Some(delivery) = Delivery::new(header.vni, header.total, parts) else {
            self.counters.header_refused += 1;
            return false;
        };
        deliver(delivery);
        true
    }

    /// Remembers that a message is complete. Gives up messages that are older than a few complete ones.
    fn finish(&mut self, message: u32, deliver: &mut impl FnMut(Delivery<'_>)) {
        self.finished.insert(message);
        let mut index = 0;
        while let Some(pending) = self.pending.get_mut(index) {
            pending.newer = pending.newer.saturating_add(u8::from(is_newer(message, pending.header.message)));
            if pending.newer >= NEWER_MESSAGES_MAX && !pending.is_in_parts {
                self.counters.overtaken += 1;
                self.give_up(index, deliver);
            } else {
                index += 1;
            }
        }
    }

    /// Delivers the parts of older messages before a newer one, so that the order of the path is kept.
    fn deliver_older(&mut self, message: u32, deliver: &mut impl FnMut(Delivery<'_>)) {
        for index in 0..self.pending.len() {
            if is_newer(message, self.pending[index].header.message) {
                self.deliver_parts(index, false, deliver);
            }
        }
    }

    /// Delivers what has come of a TCP frame. At its end also of others that have parts.
    fn deliver_parts(&mut self, index: usize, is_end: bool, deliver: &mut impl FnMut(Delivery<'_>)) {
        let pending = &mut self.pending[index];
        let ChunkHeader { vni, total, .. } = pending.header;
        if pending.undelivered().is_empty() {
            return;
        }
        let Some(partition) = Partition::parse(pending.head(), total) else { return };
        if partition.transport() == Transport::Udp && !is_end {
            return;
        }
        let before = self.counters.parts;
        for range in pending.undelivered() {
            if let Some((header, payload)) = partition.part(pending.head(), range, &mut self.head) {
                self.counters.parts += 1;
                let message_bytes = self.head.len() + payload.len();
                let parts = Parts::Two(&self.head, pending.get(payload));
                deliver(Delivery { vni, header, message_bytes, is_whole: false, parts });
            }
        }
        pending.is_in_parts |= self.counters.parts > before;
        pending.set_delivered();
    }

    /// Ends an incomplete message.
    fn give_up(&mut self, index: usize, deliver: &mut impl FnMut(Delivery<'_>)) {
        self.deliver_parts(index, true, deliver);
        let pending = self.pending.remove(index);
        self.finished.insert(pending.header.message);
        let counter = if pending.is_in_parts { &mut self.counters.incomplete } else { &mut self.counters.lost };
        *counter += 1;
        self.spares.push(pending.into_spare());
    }
}

/// Message numbers are compared modulo 2³².
const fn is_newer(message: u32, other: u32) -> bool {
    (message.wrapping_sub(other) as i32) > 0
}

/// Consecutive datagrams of one message at the start of a buffer, without a gap between their chunks.
struct Run {
    /// Of the first datagram. A run that cannot be parsed is one datagram.
    header: Result<ChunkHeader, ChunkError>,
    bytes: usize,
    is_whole: bool,
}

impl Run {
    fn take(buffer: &[u8], segment_bytes: usize) -> Self {
        let mut datagrams = buffer.chunks(segment_bytes);
        let first = datagrams.next().unwrap_or_default();
        let (header, chunk) = match ChunkHeader::parse(first) {
            Ok(parsed) => parsed,
            Err(error) => return Self { header: Err(error), bytes: first.len(), is_whole: false },
        };
        let mut bytes = first.len();
        let mut expected = header.offset + chunk.len();
        for datagram in datagrams {
            match ChunkHeader::parse(datagram) {
                Ok((next, chunk)) if next.is_same_message(&header) && next.offset == expected => {
                    bytes += datagram.len();
                    expected += chunk.len();
                }
                _ => break,
            }
        }
        Self { header: Ok(header), bytes, is_whole: header.offset == 0 && expected == header.extent() }
    }
}

impl<'a> Delivery<'a> {
    fn new(vni: Vni, message_bytes: usize, parts: Parts<'a>) -> Option<Self> {
        let raw = parts.iter().next()?.first_chunk::<VIRTIO_NET_BYTES>()?;
        let header = VirtioNetHeader::parse(raw, message_bytes - VIRTIO_NET_BYTES).ok()?;
        Some(Self { vni, header, message_bytes, is_whole: true, parts })
    }

    /// The first bytes of the message: the virtio-net header, and at least the Ethernet header.
    pub fn head(&self) -> &'a [u8] {
        self.parts.iter().next().unwrap_or_default()
    }

    /// The bytes of the message in order, as a TAP takes them.
    pub fn slices(&self) -> impl Iterator<Item = &'a [u8]> {
        self.parts.iter()
    }
}

impl<'a> Parts<'a> {
    /// A whole message of `total` bytes, without its repeated head.
    fn of_datagrams(datagrams: &'a [u8], segment_bytes: usize, total: usize) -> Self {
        let chunk_bytes = segment_bytes - CHUNK_HEADER_BYTES;
        let last = match total % chunk_bytes {
            0 => 0,
            rest => CHUNK_HEADER_BYTES + rest,
        };
        Self::Datagrams { bytes: &datagrams[..total / chunk_bytes * segment_bytes + last], segment_bytes }
    }

    fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let (head, bytes, segment_bytes, header_bytes) = match self {
            Self::One(bytes) => (None, bytes, bytes.len().max(1), 0),
            Self::Two(head, payload) => (Some(head), payload, payload.len().max(1), 0),
            Self::Datagrams { bytes, segment_bytes } => (None, bytes, segment_bytes, CHUNK_HEADER_BYTES),
        };
        head.into_iter().chain(bytes.chunks(segment_bytes).map(move |datagram| &datagram[header_bytes..]))
    }
}

impl FastCounters {
    /// Datagrams that are no chunks, and complete messages that are no frames.
    pub const fn refused(&self) -> u64 {
        self.header_refused
            + self.short
            + self.version_unknown
            + self.kind_unknown
            + self.total_refused
            + self.outside
            + self.chunk_short
            + self.inconsistent
            + self.overlapping
    }

    fn refuse(&mut self, error: ChunkError) {
        let counter = match error {
            ChunkError::Short(_) => &mut self.short,
            ChunkError::Version(_) => &mut self.version_unknown,
            ChunkError::Kind(_) => &mut self.kind_unknown,
            ChunkError::Total(_) => &mut self.total_refused,
            ChunkError::Outside { .. } => &mut self.outside,
            ChunkError::ChunkShort(_) => &mut self.chunk_short,
            ChunkError::Inconsistent => &mut self.inconsistent,
            ChunkError::Overlap => &mut self.overlapping,
        };
        *counter += 1;
    }
}
