//! Merges received frames before they enter a TAP: consecutive TCP segments of a flow become one frame that the kernel takes whole.
//!
//! ```text
//!   received   a0 │ b0 │ a1 │ a2 │ x │ b1            flows a and b, and a frame x that cannot be merged
//!   delivered  a0 a1 a2 │ b0 b1 │ x                  a head of our own, then borrowed slices
//! ```
//!
//! Segments are merged if their headers are equal but for sequence number, lengths, checksums and IPv4 identification, and all but the
//! last have the same length. Frames of a flow stay in order; a frame with PSH or FIN is the last of its merged frame.
//!
//! Each checksum is verified here. A frame with a correct checksum is delivered with a partial checksum, which the kernel does not
//! verify again (a TAP of Linux 6.18 ignores `VIRTIO_NET_HDR_F_DATA_VALID`). Other frames pass unchanged, and the receiver drops them.
//!
//! # Frames of a sender on the same machine
//!
//! A veth pair neither cuts frames nor computes checksums. The VXLAN device of Linux sends by it what a network card would still change:
//! frames with partial checksums, and TCP frames of up to 64 KiB in one datagram. Neither is marked in the datagram. A transport checksum
//! that equals the sum of the pseudo-header is therefore taken for a partial one, and a TCP packet that has it and exceeds the MTU of the
//! interface is delivered to be cut to that MTU. A UDP packet of this kind is lost: it holds datagrams of a size that it does not state.
//!
//! The rule holds for all datagrams, because a socket does not report whether the outer checksum was verified. It weakens the inner checksum by
//! little. A frame that was corrupted on its way is accepted if its complete checksum happens to equal that sum, which is as likely as
//! a corruption that the checksum does not show: 1 in 65,536. With an outer checksum the kernel drops the frame before.

use alloc::vec::Vec;
use core::num::NonZeroU16;

use crate::headers::{Headers, HeadersError, IpVersion, PacketChecksum, Transport};
use crate::virtio_net::{ChecksumState, Gso, GsoKind, VirtioNetHeader};

/// The most segments in a merged frame, so that one `writev` takes them.
pub const MERGED_SEGMENTS_MAX: usize = 128;

/// Flows that may have an incomplete merged frame at a time.
const OPEN_FLOWS_MAX: usize = 16;
const IP_BYTES_MAX: usize = 65_535;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_ACK: u8 = 0x10;
const TCP_ECE: u8 = 0x40;
const TCP_CWR: u8 = 0x80;

/// Merges a run of frames at a time. Its buffers are reused.
#[derive(Debug, Default)]
pub struct Coalescer {
    heads: Vec<u8>,
    slices: Vec<Slice>,
    merged: Vec<Merged>,
    open: Vec<OpenFlow>,
    /// Frames of this run that are not delivered.
    lost: u64,
    counters: CoalesceCounters,
}

/// Counters of received frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoalesceCounters {
    /// Frames that were appended to an earlier one.
    pub merged: u64,
    /// TCP and UDP frames without a checksum, or with a wrong one.
    pub unverified: u64,
    /// Frames that are neither TCP nor UDP, or have headers that cannot be parsed.
    pub unparsed: u64,
    /// Frames that their sender left to be cut, into segments of a size that is not known. They are not delivered.
    pub uncut: u64,
}

/// The frames to deliver.
#[derive(Clone, Copy, Debug)]
pub struct Coalesced<'a> {
    coalescer: &'a Coalescer,
    frames: &'a [&'a [u8]],
}

/// A frame to deliver: its virtio-net header, its head, then its slices.
#[derive(Clone, Copy, Debug)]
pub struct MergedFrame<'a> {
    /// The header for the TAP.
    pub header: VirtioNetHeader,
    /// The headers of a merged frame, or of one with a partial checksum; empty for frames that stay as they came.
    pub head: &'a [u8],
    slices: Option<usize>,
    of: Coalesced<'a>,
}

/// A part of a received frame, in the list of a merged frame.
#[derive(Debug)]
struct Slice {
    frame: usize,
    start: usize,
    end: usize,
    next: Option<usize>,
}

#[derive(Debug)]
struct Merged {
    /// The headers of a frame with a complete or partial checksum, and where their bytes start in `heads`.
    head: Option<(Headers, usize)>,
    first: usize,
    last: usize,
    segments: usize,
    payload_bytes: usize,
    segment_bytes: usize,
    /// Whether the checksum of the first segment was complete.
    is_complete: bool,
}

/// A flow with a merged frame that may grow.
#[derive(Debug)]
struct OpenFlow {
    merged: usize,
    next_sequence: u32,
}

impl Coalescer {
    /// Merges a run of frames. `mtu` is the MTU of the interfaces that receive them.
    pub fn coalesce<'a>(&'a mut self, mtu: u16, frames: &'a [&'a [u8]]) -> Coalesced<'a> {
        self.heads.clear();
        self.slices.clear();
        self.merged.clear();
        self.open.clear();
        self.lost = 0;
        for (index, frame) in frames.iter().enumerate() {
            self.add(mtu, index, frame);
        }
        for merged in &mut self.merged {
            // A frame to which nothing was merged stays as it came, with its complete checksum and its padding.
            if merged.segments == 1 && merged.is_complete {
                let slice = &mut self.slices[merged.first];
                (slice.start, slice.end) = (0, frames[slice.frame].len());
                merged.head = None;
            }
            if let Some((headers, head)) = merged.head {
                headers.write_lengths(&mut self.heads[head..head + headers.payload], merged.payload_bytes);
            }
        }
        Coalesced { coalescer: self, frames }
    }

    /// Counters of the frames that were received so far.
    pub const fn counters(&self) -> &CoalesceCounters {
        &self.counters
    }

    fn add(&mut self, mtu: u16, index: usize, frame: &[u8]) {
        let headers = match Headers::parse(frame) {
            Ok(headers) if headers.end <= frame.len() => headers,
            error => {
                self.counters.unparsed += 1;
                if error == Err(HeadersError::Fragment) {
                    self.open.clear(); // Its flow is not known.
                }
                return self.push(index, frame, None, false);
            }
        };
        let checksum = headers.checksum(frame);
        let is_complete = checksum == PacketChecksum::Complete;
        match checksum {
            PacketChecksum::Wrong => {
                self.counters.unverified += 1;
                return self.push(index, frame, None, false);
            }
            PacketChecksum::Partial if headers.end - headers.network > mtu.into() => {
                return self.push_uncut(mtu, index, frame, headers);
            }
            PacketChecksum::Partial | PacketChecksum::Complete => {}
        }
        if headers.transport_kind == Transport::Udp {
            return self.push(index, frame, Some(headers), is_complete);
        }
        let open =
            self.open.iter().position(|flow| is_same_flow(&self.merged[flow.merged], &self.heads, &headers, frame));
        if let Some(open) = open {
            if self.can_append(&self.open[open], &headers, frame) {
                return self.append(open, index, &headers, frame);
            }
            self.open.swap_remove(open);
        }
        self.push(index, frame, Some(headers), is_complete);
        if may_grow(&headers, frame) && self.open.len() < OPEN_FLOWS_MAX {
            let payload_bytes = (headers.end - headers.payload) as u32;
            let next_sequence = sequence(&headers, frame).wrapping_add(payload_bytes);
            self.open.push(OpenFlow { merged: self.merged.len() - 1, next_sequence });
        }
    }

    /// Starts a frame that its sender did not cut. No other frame is appended to it.
    fn push_uncut(&mut self, mtu: u16, index: usize, frame: &[u8], headers: Headers) {
        let segment_bytes = usize::from(mtu).saturating_sub(headers.payload - headers.network);
        if headers.transport_kind == Transport::Udp || segment_bytes == 0 {
            self.counters.uncut += 1;
            self.lost += 1;
            return;
        }
        self.open.retain(|flow| !is_same_flow(&self.merged[flow.merged], &self.heads, &headers, frame));
        self.push(index, frame, Some(headers), false);
        if let Some(merged) = self.merged.last_mut() {
            merged.segment_bytes = segment_bytes;
        }
    }

    /// Starts a frame to deliver. `headers` is for frames with a complete or partial checksum.
    fn push(&mut self, frame: usize, bytes: &[u8], headers: Option<Headers>, is_complete: bool) {
        let (start, end) = headers.map_or((0, bytes.len()), |headers| (headers.payload, headers.end));
        let slice = self.slices.len();
        self.slices.push(Slice { frame, start, end, next: None });
        let head = headers.map(|headers| (headers, self.heads.len()));
        self.heads.extend_from_slice(&bytes[..start]);
        let payload_bytes = end - start;
        self.merged.push(Merged {
            head,
            first: slice,
            last: slice,
            segments: 1,
            payload_bytes,
            segment_bytes: payload_bytes,
            is_complete,
        });
    }

    fn append(&mut self, open: usize, frame: usize, headers: &Headers, bytes: &[u8]) {
        let flow = &mut self.open[open];
        let merged = &mut self.merged[flow.merged];
        let payload_bytes = headers.end - headers.payload;
        self.slices[merged.last].next = Some(self.slices.len());
        merged.last = self.slices.len();
        self.slices.push(Slice { frame, start: headers.payload, end: headers.end, next: None });
        merged.segments += 1;
        merged.payload_bytes += payload_bytes;
        flow.next_sequence = flow.next_sequence.wrapping_add(payload_bytes as u32);
        self.counters.merged += 1;
        let flags = bytes[headers.transport + 13];
        if let Some((_, head)) = merged.head {
            self.heads[head + headers.transport + 13] |= flags;
        }
        let is_last = payload_bytes < merged.segment_bytes || flags & (TCP_PSH | TCP_FIN) != 0;
        if is_last || merged.segments == MERGED_SEGMENTS_MAX {
            self.open.swap_remove(open);
        }
    }

    fn can_append(&self, flow: &OpenFlow, headers: &Headers, frame: &[u8]) -> bool {
        let merged = &self.merged[flow.merged];
        let Some((ours, head)) = merged.head else { return false };
        let head = &self.heads[head..head + ours.payload];
        let payload_bytes = headers.end - headers.payload;
        let Headers { network, transport, payload, .. } = ours;
        let has_equal_ip = |head: &[u8], frame: &[u8]| match ours.version {
            // Length, identification and checksum lie between these.
            IpVersion::V4 => {
                head[network..network + 2] == frame[network..network + 2]
                    && head[network + 6..network + 10] == frame[network + 6..network + 10]
                    && head[network + 12..transport] == frame[network + 12..transport]
            }
            IpVersion::V6 => {
                head[network..network + 4] == frame[network..network + 4]
                    && head[network + 6..transport] == frame[network + 6..transport]
            }
        };
        let flags = frame[transport + 13];
        (network, transport, payload) == (headers.network, headers.transport, headers.payload)
            && sequence(headers, frame) == flow.next_sequence
            && (1..=merged.segment_bytes).contains(&payload_bytes)
            && payload + merged.payload_bytes + payload_bytes - network <= IP_BYTES_MAX
            && flags & !(TCP_PSH | TCP_FIN) == head[transport + 13] & !TCP_CWR
            && has_equal_ip(head, frame)
            && head[transport + 8..transport + 13] == frame[transport + 8..transport + 13]
            && head[transport + 14..transport + 16] == frame[transport + 14..transport + 16]
            && head[transport + 18..payload] == frame[transport + 18..payload]
    }
}

fn is_same_flow(merged: &Merged, heads: &[u8], headers: &Headers, frame: &[u8]) -> bool {
    let Some((ours, head)) = merged.head else { return false };
    let head = &heads[head..];
    let addresses = |headers: &Headers| match headers.version {
        IpVersion::V4 => headers.network + 12..headers.network + 20,
        IpVersion::V6 => headers.network + 8..headers.network + 40,
    };
    let ports = |headers: &Headers| headers.transport..headers.transport + 4;
    ours.version == headers.version
        && head[ports(&ours)] == frame[ports(headers)]
        && head[addresses(&ours)] == frame[addresses(headers)]
        && head[..ours.network] == frame[..headers.network]
}

fn sequence(headers: &Headers, frame: &[u8]) -> u32 {
    let bytes = &frame[headers.transport + 4..headers.transport + 8];
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Returns true if others may follow in the same merged frame: the segment has payload, and only flags that permit it.
fn may_grow(headers: &Headers, frame: &[u8]) -> bool {
    let flags = frame[headers.transport + 13];
    headers.end > headers.payload && flags & TCP_ACK != 0 && flags & !(TCP_ACK | TCP_ECE | TCP_CWR) == 0
}

impl<'a> Coalesced<'a> {
    /// The number of frames to deliver.
    pub const fn len(&self) -> usize {
        self.coalescer.merged.len()
    }

    /// Returns true if there is no frame.
    pub const fn is_empty(&self) -> bool {
        self.coalescer.merged.is_empty()
    }

    /// The number of received frames that are not delivered: see [`CoalesceCounters::uncut`].
    pub const fn lost(&self) -> u64 {
        self.coalescer.lost
    }

    /// A frame to deliver.
    ///
    /// # Panics
    /// There is no such frame.
    pub fn get(&self, index: usize) -> MergedFrame<'a> {
        let merged = &self.coalescer.merged[index];
        let (header, head) = match merged.head {
            None => (VirtioNetHeader::default(), &[][..]),
            Some((headers, at)) => {
                let head = &self.coalescer.heads[at..at + headers.payload];
                (merged.header(&headers, head), head)
            }
        };
        MergedFrame { header, head, slices: Some(merged.first), of: *self }
    }

    /// All frames, in order.
    pub fn iter(&self) -> impl Iterator<Item = MergedFrame<'a>> {
        (0..self.len()).map(|index| self.get(index))
    }
}

impl Merged {
    fn header(&self, headers: &Headers, head: &[u8]) -> VirtioNetHeader {
        let kind = match headers.version {
            IpVersion::V4 => GsoKind::Tcp4,
            IpVersion::V6 => GsoKind::Tcp6,
        };
        let size = NonZeroU16::new(self.segment_bytes as u16).filter(|_| self.payload_bytes > self.segment_bytes);
        VirtioNetHeader {
            checksum: ChecksumState::Partial {
                start: headers.transport as u16,
                offset: headers.checksum_offset() as u16,
            },
            gso: size.map(|size| Gso { kind, size, ecn: head[headers.transport + 13] & TCP_CWR != 0 }),
            hdr_len: headers.payload as u16,
        }
    }
}

impl<'a> MergedFrame<'a> {
    /// Returns what follows the head, in order: at least one slice, at most [`MERGED_SEGMENTS_MAX`].
    pub fn slices(&self) -> impl Iterator<Item = &'a [u8]> {
        let Coalesced { coalescer, frames } = self.of;
        let list = core::iter::successors(self.slices, |slice| coalescer.slices[*slice].next);
        list.map(|slice| &coalescer.slices[slice]).map(|slice| &frames[slice.frame][slice.start..slice.end])
    }
}

#[cfg(test)]
mod tests;
