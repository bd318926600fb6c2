//! Makes a valid message of the bytes before a hole, if the frame was to be cut anyway: its first segments are what TCP would have sent
//! before the lost one.
//!
//! A frame that is one packet cannot be shortened, and is lost.

use core::num::NonZeroU16;

use crate::headers::{Headers, Transport};
use crate::segment::is_kind;
use crate::virtio_net::{ChecksumState, VIRTIO_NET_BYTES, VirtioNetHeader};

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;

/// Corrects the headers in `prefix`, the first bytes of a message of `total` bytes. Returns how many of them are the message now, or `None`
/// if nothing of it can be delivered.
pub(super) fn truncate(prefix: &mut [u8], total: usize) -> Option<usize> {
    let (raw, frame) = prefix.split_first_chunk_mut::<VIRTIO_NET_BYTES>()?;
    let frame_bytes = total - VIRTIO_NET_BYTES;
    let header = VirtioNetHeader::parse(raw, frame_bytes).ok()?;
    let gso = header.gso?;
    let headers = Headers::parse(frame).ok()?;
    if !is_kind(gso.kind, &headers) || headers.end > frame_bytes {
        return None;
    }
    let there = frame.len().min(headers.end).checked_sub(headers.payload)?;
    let size = usize::from(NonZeroU16::get(gso.size));
    let payload_bytes = match headers.transport_kind {
        Transport::Tcp => there,
        // A datagram is delivered whole, or not.
        Transport::Udp => there / size * size,
    };
    if payload_bytes == 0 {
        return None;
    }
    headers.write_lengths(&mut frame[..headers.payload], payload_bytes);
    if headers.transport_kind == Transport::Tcp && headers.payload + payload_bytes < headers.end {
        // These are about the end of the payload.
        frame[headers.transport + 13] &= !(TCP_FIN | TCP_PSH);
    }
    let start = headers.transport as u16;
    let offset = headers.checksum_offset() as u16;
    let shortened = VirtioNetHeader {
        checksum: ChecksumState::Partial { start, offset },
        gso: Some(gso).filter(|_| payload_bytes > size),
        hdr_len: headers.payload as u16,
    };
    *raw = shortened.emit();
    Some(VIRTIO_NET_BYTES + headers.payload + payload_bytes)
}
