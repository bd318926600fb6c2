//! Makes a frame of a part of a message, if its frame was to be cut anyway: the segments that lie in that part.
//!
//! ```text
//!   message   │ header │ headers │ payload ............... hole ............ │
//!   part 0    │ header'│ headers'│ payload ...............│
//!   part 1    │ header'│ headers'                              │ ........... │
//! ```
//!
//! TCP takes any bytes, so a lost chunk costs only its own. Of UDP a part has the datagrams that are whole. A frame that is one packet has
//! no parts.

use alloc::vec::Vec;
use core::ops::Range;

use crate::headers::{Headers, IpVersion, Transport};
use crate::segment::is_kind;
use crate::virtio_net::{ChecksumState, Gso, VIRTIO_NET_BYTES, VirtioNetHeader};

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// The headers of a message that can be delivered in parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition {
    gso: Gso,
    headers: Headers,
}

impl Partition {
    /// Parses the head of a message of `total` bytes. Returns `None` if the head is not whole, or the frame is one packet.
    pub(super) fn parse(head: &[u8], total: usize) -> Option<Self> {
        let (raw, frame) = head.split_first_chunk::<VIRTIO_NET_BYTES>()?;
        let frame_bytes = total - VIRTIO_NET_BYTES;
        let gso = VirtioNetHeader::parse(raw, frame_bytes).ok()?.gso?;
        let headers = Headers::parse(frame).ok()?;
        (is_kind(gso.kind, &headers) && headers.end <= frame_bytes).then_some(Self { gso, headers })
    }

    pub(super) fn transport(&self) -> Transport {
        self.headers.transport_kind
    }

    /// Makes the head of a part from the message's. `range` has come; returns the payload to deliver from it, if there is any.
    pub(super) fn part(
        &self,
        message: &[u8],
        range: &Range<usize>,
        head: &mut Vec<u8>,
    ) -> Option<(VirtioNetHeader, Range<usize>)> {
        let Headers { network, transport, payload, end, .. } = self.headers;
        let (first, last) = (VIRTIO_NET_BYTES + payload, VIRTIO_NET_BYTES + end);
        let size = usize::from(self.gso.size.get());
        let (mut start, mut end) = (range.start.max(first), range.end.min(last));
        if self.headers.transport_kind == Transport::Udp {
            start = first + (start - first).next_multiple_of(size);
            end = if end == last { end } else { first + end.checked_sub(first)? / size * size };
        }
        if start >= end {
            return None;
        }
        let header = self.header(end - start, start == first);
        head.clear();
        head.extend_from_slice(&header.emit());
        head.extend_from_slice(&message[VIRTIO_NET_BYTES..first]);
        let frame = &mut head[VIRTIO_NET_BYTES..];
        if self.headers.version == IpVersion::V4 {
            let at = network + 4..network + 6;
            let identification = u16::from_be_bytes([frame[at.start], frame[at.start + 1]]);
            let identification = identification.wrapping_add(((start - first) / size) as u16);
            frame[at].copy_from_slice(&identification.to_be_bytes());
        }
        if self.headers.transport_kind == Transport::Tcp {
            let sequence = &mut frame[transport + 4..transport + 8];
            let moved = u32::from_be_bytes([sequence[0], sequence[1], sequence[2], sequence[3]]);
            sequence.copy_from_slice(&moved.wrapping_add((start - first) as u32).to_be_bytes());
            let flags = &mut frame[transport + 13];
            *flags &= if start == first { !0 } else { !TCP_CWR };
            *flags &= if end == last { !0 } else { !(TCP_FIN | TCP_PSH) };
        }
        self.headers.write_lengths(frame, end - start);
        Some((header, start..end))
    }

    fn header(&self, payload_bytes: usize, is_first: bool) -> VirtioNetHeader {
        let start = self.headers.transport as u16;
        let offset = self.headers.checksum_offset() as u16;
        let gso = Gso { ecn: self.gso.ecn && is_first, ..self.gso };
        VirtioNetHeader {
            checksum: ChecksumState::Partial { start, offset },
            gso: Some(gso).filter(|gso| payload_bytes > gso.size.get().into()),
            hdr_len: self.headers.payload as u16,
        }
    }
}
