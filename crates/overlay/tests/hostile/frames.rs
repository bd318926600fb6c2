//! Bytes as frames: the first one selects the parser.

use isthmus_overlay::coalesce::Coalescer;
use isthmus_overlay::fast::{MESSAGE_BYTES_MAX, PENDING_MS_MAX, Reassembler, vni_of};
use isthmus_overlay::segment::{Cutter, SEGMENTS_MAX};
use isthmus_overlay::virtio_net::{FRAME_BYTES_MAX, VIRTIO_NET_BYTES, VirtioNetHeader};
use isthmus_overlay::vxlan::{self, VXLAN_BYTES, Vni};
use isthmus_overlay::{FrameHeader, HEADER_BYTES};

/// Passes bytes on as a frame of a guest, datagrams of VXLAN or bare frames, or datagrams of *fast*. Returns how many frames came out of each.
pub(super) fn pass(bytes: &[u8]) -> [usize; 3] {
    let Some((&kind, rest)) = bytes.split_first() else { return [0; 3] };
    match kind % 3 {
        0 => [cut(rest), 0, 0],
        1 => [0, merge(rest), 0],
        _ => [0, 0, reassemble(rest)],
    }
}

/// A frame of a guest for an edge. Returns the number of segments.
fn cut(bytes: &[u8]) -> usize {
    let Some((raw, frame)) = bytes.split_first_chunk::<VIRTIO_NET_BYTES>() else { return 0 };
    let is_frame = FrameHeader::parse(frame).is_ok();
    assert!(!is_frame || frame.len() >= HEADER_BYTES);
    let Ok(header) = VirtioNetHeader::parse(raw, frame.len()) else { return 0 };
    let prefix = vxlan::emit(Vni::MAX);
    let mut cutter = Cutter::default();
    let Ok(segments) = cutter.cut(&prefix, &header, frame) else { return 0 };
    assert!((1..=SEGMENTS_MAX).contains(&segments.len()));
    let mut payload = 0;
    for at in 0..segments.len() {
        let (head, data) = segments.get(at);
        assert!(head.starts_with(&prefix) && head.len() + data.len() <= prefix.len() + frame.len());
        assert!(head.len() - prefix.len() + data.len() <= segments.bytes_max(prefix.len()));
        payload += data.len();
    }
    assert!(payload <= frame.len(), "no byte of the frame is sent twice");
    segments.len()
}

/// Datagrams of another host. Their lengths precede them. Returns the number of frames.
fn merge(bytes: &[u8]) -> usize {
    let mut datagrams = Vec::new();
    let mut rest = bytes;
    while let Some(([high, low], after)) = rest.split_first_chunk() {
        let (datagram, after) = after.split_at(after.len().min(usize::from(u16::from_be_bytes([*high, *low]))));
        datagrams.push(match vxlan::parse(datagram) {
            Ok((vni, frame)) => {
                assert!(vni <= Vni::MAX && frame.len() + VXLAN_BYTES == datagram.len());
                frame
            }
            Err(_) => datagram,
        });
        rest = after;
    }
    let mut coalescer = Coalescer::default();
    let merged = coalescer.coalesce(1_500, &datagrams);
    assert!(merged.len() <= datagrams.len());
    let mut all = 0;
    for frame in merged.iter() {
        let len = frame.head.len() + frame.slices().map(<[u8]>::len).sum::<usize>();
        all += len;
        assert!(frame.head.is_empty() || len <= FRAME_BYTES_MAX + 8, "{len}: two more tags at most");
        if frame.header != VirtioNetHeader::default() {
            assert_eq!(VirtioNetHeader::parse(&frame.header.emit(), len), Ok(frame.header));
        }
    }
    assert!(all <= datagrams.iter().map(|datagram| datagram.len()).sum());
    merged.len()
}

/// Messages of another daemon, in buffers of datagrams of one length: the length of the buffer, that of its datagrams, and a delay.
fn reassemble(bytes: &[u8]) -> usize {
    let mut reassembler = Reassembler::default();
    let (mut rest, mut now_ms, mut delivered) = (bytes, 0, 0);
    let mut check = |delivery: isthmus_overlay::fast::Delivery<'_>| {
        let message: Vec<u8> = delivery.slices().flatten().copied().collect();
        assert_eq!(message.len(), delivery.message_bytes);
        assert!(message.len() <= MESSAGE_BYTES_MAX && delivery.head().len() >= VIRTIO_NET_BYTES + HEADER_BYTES);
        let (raw, frame) = message.split_first_chunk().unwrap();
        assert_eq!(VirtioNetHeader::parse(raw, frame.len()), Ok(delivery.header));
        delivered += 1;
    };
    while let Some((&[high, low, segment_high, segment_low, delay], after)) = rest.split_first_chunk() {
        let (buffer, after) = after.split_at(after.len().min(usize::from(u16::from_be_bytes([high, low]))));
        let _ = vni_of(buffer);
        reassembler.receive(buffer, u16::from_be_bytes([segment_high, segment_low]).into(), now_ms, &mut check);
        now_ms += u64::from(delay);
        reassembler.expire(now_ms, &mut check);
        assert!(reassembler.next_expiry_ms().is_none_or(|expiry_ms| expiry_ms > now_ms));
        rest = after;
    }
    reassembler.expire(now_ms + PENDING_MS_MAX, &mut check);
    assert_eq!(reassembler.next_expiry_ms(), None, "every message is delivered or given up in time");
    let counters = reassembler.counters();
    assert_eq!(counters.timed_out + counters.overtaken + counters.evicted, counters.incomplete + counters.lost);
    assert_eq!(delivered, counters.in_place + counters.copied + counters.parts);
    delivered as usize
}
