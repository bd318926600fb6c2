//! Makes messages of received datagrams.
//!
//! A run of datagrams that is a whole message is delivered where it lies. Other chunks are copied into one of a few [`Pending`]
//! messages. A pending message is delivered when it is complete. It is given up after a time, after some newer messages, or for its memory.

use alloc::vec::Vec;

use super::finished::Finished;
use super::header::{CHUNK_HEADER_BYTES, ChunkError, ChunkHeader};
use super::pending::{Pending, Spare};
use super::repair::truncate;
use super::{NEWER_MESSAGES_MAX, PENDING_MAX, PENDING_MS_MAX};
use crate::virtio_net::{VIRTIO_NET_BYTES, VirtioNetHeader};
use crate::vxlan::Vni;

/// The receiving end of an edge. Its memory is at most [`PENDING_MAX`] messages.
#[derive(Debug, Default)]
pub struct Reassembler {
    /// The oldest first.
    pending: Vec<Pending>,
    spares: Vec<Spare>,
    finished: Finished,
    counters: FastCounters,
}

/// Counters of datagrams and messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastCounters {
    /// Messages that were delivered where they lay.
    pub in_place: u64,
    /// Messages that were complete after a copy.
    pub copied: u64,
    /// Messages of which the part before a hole was delivered.
    pub shortened: u64,
    /// Messages of which nothing could be delivered.
    pub lost: u64,
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
    /// False if only the part before a hole is delivered.
    pub is_whole: bool,
    parts: Parts<'a>,
}

/// Where the bytes of a message lie: in a row, or between the chunk headers of datagrams of one length.
#[derive(Clone, Copy, Debug)]
enum Parts<'a> {
    One(&'a [u8]),
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
            match run.header {
                Err(error) => self.counters.refuse(error),
                Ok(header) if run.is_whole && !self.is_known(header.message) => {
                    self.finish(header.message, &mut deliver);
                    let parts = Parts::Datagrams { bytes: datagrams, segment_bytes };
                    if self.deliver_whole(header, parts, &mut deliver) {
                        self.counters.in_place += 1;
                    }
                }
                Ok(_) => {
                    for datagram in datagrams.chunks(segment_bytes) {
                        self.store(datagram, now_ms, &mut deliver);
                    }
                }
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
        self.finished.contains(message) || self.pending.iter().any(|pending| pending.header.message == message)
    }

    /// Copies a chunk, and delivers its message if it is complete.
    fn store(&mut self, datagram: &[u8], now_ms: u64, deliver: &mut impl FnMut(Delivery<'_>)) {
        let (header, chunk) = match ChunkHeader::parse(datagram) {
            Ok(parsed) => parsed,
            Err(error) => return self.counters.refuse(error),
        };
        if self.finished.contains(header.message) {
            self.counters.duplicates += 1;
            return;
        }
        let index = match self.pending.iter().position(|pending| pending.header.message == header.message) {
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
        let mut pending = self.pending.remove(index);
        self.finish(pending.header.message, deliver);
        if self.deliver_whole(pending.header, Parts::One(pending.prefix()), deliver) {
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
            let is_newer = (message.wrapping_sub(pending.header.message) as i32) > 0;
            pending.newer += u8::from(is_newer);
            if pending.newer >= NEWER_MESSAGES_MAX {
                self.counters.overtaken += 1;
                self.give_up(index, deliver);
            } else {
                index += 1;
            }
        }
    }

    /// Delivers what lies before the first hole, if that can be a frame.
    fn give_up(&mut self, index: usize, deliver: &mut impl FnMut(Delivery<'_>)) {
        let mut pending = self.pending.remove(index);
        let ChunkHeader { message, vni, total, .. } = pending.header;
        self.finished.insert(message);
        let prefix = pending.prefix();
        let shortened =
            truncate(prefix, total).and_then(|bytes| Delivery::new(vni, bytes, Parts::One(&prefix[..bytes])));
        match shortened {
            Some(delivery) => {
                self.counters.shortened += 1;
                deliver(Delivery { is_whole: false, ..delivery });
            }
            None => self.counters.lost += 1,
        }
        self.spares.push(pending.into_spare());
    }
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
        Self { header: Ok(header), bytes, is_whole: header.offset == 0 && expected == header.total }
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
    fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let (bytes, segment_bytes, header_bytes) = match self {
            Self::One(bytes) => (bytes, bytes.len().max(1), 0),
            Self::Datagrams { bytes, segment_bytes } => (bytes, segment_bytes, CHUNK_HEADER_BYTES),
        };
        bytes.chunks(segment_bytes).map(move |datagram| &datagram[header_bytes..])
    }
}

impl FastCounters {
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
