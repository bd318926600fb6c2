//! Cuts a frame for an edge that carries only frames of its MTU, with complete checksums.
//!
//! ```text
//!   frame     │ Ethernet, IP, TCP │ payload ............................... │
//!   segment 0 │ prefix │ headers' │ payload[0..size]          │
//!   segment 1 │ prefix │ headers' │ payload[size..2 * size]   │  ...
//! ```
//!
//! A segment is a head, made here, and a borrowed slice of the frame. *Prefix* is the header of the encapsulation, placed before each
//! head. A frame without segmentation is one segment; if its checksum is partial, it is completed.

use alloc::vec::Vec;

use thiserror::Error;

use crate::checksum::Sum;
use crate::headers::{Headers, HeadersError, IpVersion, Transport};
use crate::virtio_net::{ChecksumState, Gso, GsoKind, VirtioNetHeader};

/// The most segments of a frame. The limit bounds the work for a frame of a hostile guest; real segments are rarely shorter than 536 bytes.
pub const SEGMENTS_MAX: usize = 1024;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// Why a frame cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CutError {
    /// The frame cannot be parsed.
    #[error(transparent)]
    Headers(#[from] HeadersError),
    /// The virtio-net header states other protocols.
    #[error("the frame has other protocols than its virtio-net header states")]
    KindDiffers,
    /// The frame is shorter than its IP header states.
    #[error("the frame is shorter than its IP header states")]
    Short,
    /// More than [`SEGMENTS_MAX`].
    #[error("{0} segments are too many")]
    TooManySegments(usize),
    /// The checksum field is not in the frame.
    #[error("the checksum field is not in the frame")]
    ChecksumOutside,
}

/// Cuts frames, one at a time. Its buffers are reused.
#[derive(Debug, Default)]
pub struct Cutter {
    template: Vec<u8>,
    heads: Vec<u8>,
}

/// The segments of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a> {
    heads: &'a [u8],
    head_bytes: usize,
    data: &'a [u8],
    data_bytes: usize,
    count: usize,
}

impl Cutter {
    /// Cuts a frame. The edge sends each segment as one datagram: `prefix`, headers and data.
    ///
    /// # Errors
    /// The frame is not what its virtio-net header states, or is cut too finely.
    pub fn cut<'a>(
        &'a mut self,
        prefix: &[u8],
        header: &VirtioNetHeader,
        frame: &'a [u8],
    ) -> Result<Segments<'a>, CutError> {
        self.heads.clear();
        match (header.gso, header.checksum) {
            (Some(gso), _) => self.split(prefix, gso, frame),
            (None, ChecksumState::Partial { start, offset }) => {
                self.complete(prefix, start.into(), offset.into(), frame)
            }
            (None, ChecksumState::Unverified | ChecksumState::Verified) => {
                self.heads.extend_from_slice(prefix);
                Ok(Segments::one(&self.heads, frame))
            }
        }
    }

    /// One segment, with its checksum completed.
    fn complete<'a>(
        &'a mut self,
        prefix: &[u8],
        start: usize,
        offset: usize,
        frame: &'a [u8],
    ) -> Result<Segments<'a>, CutError> {
        let covered = frame.get(start..).ok_or(CutError::ChecksumOutside)?;
        let (head, data) = frame.split_at_checked(start + offset + 2).ok_or(CutError::ChecksumOutside)?;
        // 0 and 0xffff are the same number in ones' complement, and UDP must not have 0.
        let checksum = Sum::of(covered).complement_not_zero();
        self.heads.extend_from_slice(prefix);
        self.heads.extend_from_slice(&head[..head.len() - 2]);
        self.heads.extend_from_slice(&checksum.to_be_bytes());
        Ok(Segments::one(&self.heads, data))
    }

    fn split<'a>(&'a mut self, prefix: &[u8], gso: Gso, frame: &'a [u8]) -> Result<Segments<'a>, CutError> {
        let headers = Headers::parse(frame)?;
        if !is_kind(gso.kind, &headers) {
            return Err(CutError::KindDiffers);
        }
        let data = frame.get(headers.payload..headers.end).ok_or(CutError::Short)?;
        let data_bytes = usize::from(gso.size.get());
        let count = data.len().div_ceil(data_bytes).max(1);
        if count > SEGMENTS_MAX {
            return Err(CutError::TooManySegments(count));
        }
        self.template.clear();
        self.template.extend_from_slice(prefix);
        self.template.extend_from_slice(&frame[..headers.payload]);
        let template = Template::new(&mut self.template[prefix.len()..], &headers);
        let head_bytes = self.template.len();
        self.heads.resize(count * head_bytes, 0);
        for (index, head) in self.heads.chunks_exact_mut(head_bytes).enumerate() {
            head.copy_from_slice(&self.template);
            let start = index * data_bytes;
            let data = &data[start..data.len().min(start + data_bytes)];
            template.write(&mut head[prefix.len()..], Position { index, start, is_last: index + 1 == count }, data);
        }
        Ok(Segments { heads: &self.heads, head_bytes, data, data_bytes, count })
    }
}

/// Which segment of a frame.
struct Position {
    index: usize,
    start: usize,
    is_last: bool,
}

/// The common part of all heads. Its bytes have zeros in the fields that differ, and its sums do not include these.
struct Template {
    headers: Headers,
    network_sum: Sum,
    transport_sum: Sum,
    identification: u16,
    sequence: u32,
    flags: u8,
}

impl Template {
    fn new(head: &mut [u8], headers: &Headers) -> Self {
        let Headers { network, transport, .. } = *headers;
        let mut template = Self {
            headers: *headers,
            network_sum: Sum::default(),
            transport_sum: Sum::default(),
            identification: 0,
            sequence: 0,
            flags: 0,
        };
        if headers.version == IpVersion::V4 {
            template.identification = u16::from_be_bytes([head[network + 4], head[network + 5]]);
            head[network + 2..network + 6].fill(0);
            head[network + 10..network + 12].fill(0);
            template.network_sum = Sum::of(&head[network..transport]);
        }
        match headers.transport_kind {
            Transport::Tcp => {
                let sequence = &mut head[transport + 4..transport + 8];
                template.sequence = u32::from_be_bytes([sequence[0], sequence[1], sequence[2], sequence[3]]);
                sequence.fill(0);
                template.flags = core::mem::take(&mut head[transport + 13]);
                head[transport + 16..transport + 18].fill(0);
            }
            Transport::Udp => head[transport + 4..transport + 8].fill(0),
        }
        template.transport_sum = headers.pseudo_sum(head).plus(Sum::of(&head[transport..headers.payload]));
        template
    }

    /// Writes the fields in which this segment differs.
    fn write(&self, head: &mut [u8], position: Position, data: &[u8]) {
        let Headers { network, transport, payload, .. } = self.headers;
        let put = |head: &mut [u8], at: usize, word: u16| head[at..at + 2].copy_from_slice(&word.to_be_bytes());
        let end = payload + data.len();
        match self.headers.version {
            IpVersion::V4 => {
                let length = (end - network) as u16;
                let identification = self.identification.wrapping_add(position.index as u16);
                put(head, network + 2, length);
                put(head, network + 4, identification);
                let sum = self.network_sum.plus_word(length).plus_word(identification);
                put(head, network + 10, sum.complement());
            }
            IpVersion::V6 => put(head, network + 4, (end - network - 40) as u16),
        }
        let length = (end - transport) as u16;
        let sum = self.transport_sum.plus_word(length).plus(Sum::of(data));
        match self.headers.transport_kind {
            Transport::Tcp => {
                let sequence = self.sequence.wrapping_add(position.start as u32);
                let flags = self.flags_at(&position);
                head[transport + 4..transport + 8].copy_from_slice(&sequence.to_be_bytes());
                head[transport + 13] = flags;
                let sum = sum.plus_double_word(sequence).plus_word(flags.into());
                put(head, transport + 16, sum.complement());
            }
            Transport::Udp => {
                put(head, transport + 4, length);
                put(head, transport + 6, sum.plus_word(length).complement_not_zero());
            }
        }
    }

    /// FIN and PSH belong to the end of the payload, CWR to its first segment (RFC 3168, 6.1.2).
    const fn flags_at(&self, position: &Position) -> u8 {
        let mut flags = self.flags;
        if !position.is_last {
            flags &= !(TCP_FIN | TCP_PSH);
        }
        if position.index > 0 {
            flags &= !TCP_CWR;
        }
        flags
    }
}

/// Returns true if these are the protocols of the headers.
pub(crate) fn is_kind(kind: GsoKind, headers: &Headers) -> bool {
    match kind {
        GsoKind::Tcp4 => (headers.version, headers.transport_kind) == (IpVersion::V4, Transport::Tcp),
        GsoKind::Tcp6 => (headers.version, headers.transport_kind) == (IpVersion::V6, Transport::Tcp),
        GsoKind::Udp => headers.transport_kind == Transport::Udp,
    }
}

impl<'a> Segments<'a> {
    fn one(head: &'a [u8], data: &'a [u8]) -> Self {
        Self { heads: head, head_bytes: head.len(), data, data_bytes: data.len(), count: 1 }
    }

    /// The number of segments: at least 1, at most [`SEGMENTS_MAX`].
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Bytes of the first segment, which is the longest, without its prefix of `prefix_bytes`.
    pub fn bytes_max(&self, prefix_bytes: usize) -> usize {
        self.head_bytes - prefix_bytes + self.data_bytes.min(self.data.len())
    }

    /// The head, with the prefix, and the data of a segment.
    ///
    /// # Panics
    /// There is no such segment.
    pub fn get(&self, index: usize) -> (&'a [u8], &'a [u8]) {
        assert!(index < self.count, "segment {index} of {}", self.count);
        let head = index * self.head_bytes;
        let start = index * self.data_bytes;
        let end = self.data.len().min(start + self.data_bytes);
        (&self.heads[head..head + self.head_bytes], &self.data[start..end])
    }

    /// All segments, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        (0..self.count).map(|index| self.get(index))
    }
}

#[cfg(test)]
mod tests;
